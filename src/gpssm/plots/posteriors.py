"""Figures of a fit: outputs and states along the data, residuals, and convergence."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.mixing import rhat
from gpssm.core.text import readable, shortened
from gpssm.evaluation.training import Correlation, Residuals, find_residuals
from gpssm.plots.style import (
    BLACK,
    BLUE,
    GREY,
    LEVEL,
    LIGHT,
    LINES,
    VERMILION,
    draw,
    extremes,
    figure_of,
    panels,
    say,
    shade,
    space_dates,
    time_axis,
    with_unit,
)
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Forecaster, Stack, smoothed_outputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = 18  # maximum number of letters of a name in a panel

Traces = dict[str, Float[np.ndarray, "chain draw"]]


@figure_of(Posterior, Stack)
def plot_smoothed(
    posterior: Forecaster, index: int = -1, smoothed: tuple[Forecast, Forecast] | None = None
) -> "Figure":
    """Plot the smoothed outputs of one training series: data, median, and 90 % bands.

    The bands are for E[y_t | x_{t+1}] and, lighter, for y_t, which should contain about 90 % of the
    data. Missing entries are shown as imputed values with 90 % intervals.

    Parameters
    ----------
    posterior
        The fit.
    index
        Number of the training series.
    smoothed
        The outputs without and with noise, if they have been computed.
    """
    posterior = stored_rows(posterior)
    series = posterior.dataset.experiment(index)
    outputs, observed = smoothed or smoothed_outputs(posterior, index)
    times, xlabel = time_axis(len(series), series.axis)
    ylabels = [with_unit(name, series.units) for name in series.outputs]
    figure, axes = panels(
        series.output_dim, height=1.9, xlabel=xlabel, ylabels=ylabels, sharex=True
    )
    for column, panel in enumerate(axes[:, 0]):
        for paths, alpha, name in ((observed, 0.2, "with noise"), (outputs, 0.35, "without noise")):
            low, high = paths.interval(LEVEL)
            label = f"90 %, {name}"
            shade(panel, times, low[:, column], high[:, column], alpha=alpha, label=label)
        draw(panel, times, outputs.median[:, column], color=BLUE, label="median")
        values = series.y[:, column]
        shown = extremes(values)
        panel.plot(times[shown], values[shown], ".", color=BLACK, markersize=2.5, label="data")
        _draw_missing(panel, times, observed, column, np.isnan(values))
        panel.margins(x=0.01)
    return figure


def _draw_missing(
    panel: "Axes", times: np.ndarray, observed: Forecast, column: int, missing: np.ndarray
) -> None:
    if not missing.any():
        return
    low, high = (limit[:, column][missing] for limit in observed.interval(LEVEL))
    shown = extremes(low, high, most=300)
    where = times[missing][shown]
    panel.vlines(where, low[shown], high[shown], color=VERMILION, linewidth=0.7, alpha=0.7)
    middle = observed.median[:, column][missing][shown]
    panel.plot(
        where,
        middle,
        "D",
        color=VERMILION,
        markersize=3,
        markerfacecolor="white",
        label="missing, filled in",
    )


@figure_of(Posterior)
def plot_states(posterior: Posterior, index: int = -1) -> "Figure":
    """Plot the states x₀..x_T of one training series in scaled units, one colour per chain.

    States are identified only up to a change of coordinates, so chains may differ here even if the
    outputs in `plot_smoothed` agree. At most eight states and four chains are drawn, with medians
    and 90 % bands.

    Parameters
    ----------
    posterior
        The fit.
    index
        Number of the training series.
    """
    posterior = stored_rows(posterior)
    series = posterior.dataset.experiment(index)
    states = np.asarray(posterior.draws.states[index])
    most = 8
    # x_t is drawn at the time of the output that it emits, y_{t-1}.
    times, xlabel = time_axis(len(series) + 1, series.axis, first=-1)
    ylabels = [f"$x_{{{dim + 1}}}$ (scaled)" for dim in range(most)]
    rows = min(states.shape[-1], most)
    figure, axes = panels(rows, height=1.15, xlabel=xlabel, ylabels=ylabels, sharex=True)
    levels = [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]
    for dim, panel in enumerate(axes[:, 0]):
        for chain, style in zip(range(min(len(states), 4)), LINES, strict=False):
            paths = states[chain, :, :, dim]
            low, middle, high = np.quantile(paths, levels, axis=0, method="weibull")
            shade(panel, times, low, high, color=style["color"], alpha=0.2)
            draw(panel, times, middle, **style, label=f"chain {chain}")
        panel.margins(x=0.01)
    if states.shape[-1] > most:
        axes[0, 0].set_title(f"the first {most} of {states.shape[-1]} states")
    return figure


@figure_of(Posterior, Stack)
def plot_residuals(
    posterior: Forecaster, index: int = -1, num_paths: int = 300, rows: int = 1000
) -> "Figure":
    """Plot one-step residuals, their autocorrelation and their correlation with inputs.

    Correlations outside the shaded 95 % band show that the model has missed structure in past
    outputs (perhaps because there are too few states) or in an input; correlations with future
    inputs (negative lags) indicate feedback.

    Parameters
    ----------
    posterior
        The fit.
    index
        Number of the training series.
    num_paths, rows
        As in `gpssm.evaluation.training.find_residuals`.
    """
    return draw_residuals(find_residuals(posterior, index, num_paths, rows))


@figure_of(Residuals)
def draw_residuals(residuals: Residuals) -> "Figure":
    """Return the figure of `plot_residuals` for computed residuals."""
    series = residuals.series
    number = min(series.input_dim, 3)  # inputs with the largest correlations
    ratios = (2.2, *(1.3,) * (1 + number))
    figure, axes = panels(
        series.output_dim, 2 + number, height=1.9, width_ratios=ratios, sharex="col"
    )
    for j, (row, values) in enumerate(zip(axes, residuals.values.T, strict=True)):
        autocorrelation = residuals.own[j]
        tests = residuals.inputs[j]
        if autocorrelation is None:
            for panel in row:
                say(panel, f"too few observed of {series.outputs[j]}")
            continue
        band = 1.96 / np.sqrt(np.isfinite(values).sum())
        _draw_errors(row[0], residuals, j)
        _draw_correlations(row[1], "its past", autocorrelation, 1, band)
        largest = {name: np.nanmax(np.abs(test.correlations)) for name, test in tests.items()}
        shown = sorted(sorted(tests, key=lambda name: -largest[name])[:number], key=[*tests].index)
        for panel, name in zip(row[2:], shown, strict=True):
            lags = -(len(tests[name].correlations) // 2)
            _draw_correlations(panel, shortened(name, NAME), tests[name], lags, band)
        row[1].set_ylabel("correlation", fontsize=8)
    for panel in axes[-1, 1:]:
        panel.set_xlabel("lag (steps)")
    axes[-1, 0].set_xlabel(time_axis(1, series.axis)[1])
    if series.axis is not None and series.axis.dates:
        space_dates(axes[-1, 0])
    return figure


def _draw_errors(panel: "Axes", residuals: Residuals, j: int) -> None:
    values = residuals.values[:, j]
    times, _ = time_axis(len(values), residuals.series.axis)
    shown = extremes(values)
    panel.axhspan(-1.96, 1.96, color=LIGHT, linewidth=0, zorder=0)
    panel.plot(times[shown], values[shown], ".", color=BLUE, markersize=3)
    share = np.mean(np.abs(values[np.isfinite(values)]) > 1.96)
    panel.set_title(f"one-step residuals\n{share:.1%} outside the 95 % band", pad=3)
    panel.set_ylabel(f"of {shortened(residuals.series.outputs[j], NAME)}")
    top = max(3.5, 1.05 * np.nanmax(np.abs(values)))
    panel.set_ylim(-top, top)


def _draw_correlations(
    panel: "Axes", name: str, test: Correlation, first: int, band: float
) -> None:
    """Draw correlations at lags from `first` on, in another colour outside the band."""
    values = test.correlations
    lags = np.arange(first, first + len(values))
    outside = np.abs(values) > band
    panel.axhspan(-band, band, color=LIGHT, linewidth=0, zorder=0)
    panel.axhline(0, color=GREY, linewidth=0.7)
    for chosen, colour, marker in ((~outside, BLUE, "o"), (outside, VERMILION, "D")):
        panel.vlines(lags[chosen], 0, values[chosen], color=colour, linewidth=1)
        panel.plot(lags[chosen], values[chosen], marker, color=colour, markersize=2.5)
    verdict = f"{'found' if test.found else 'none'} (p = {test.p_value:.2g})"
    panel.set_title(f"with {name}\n{verdict}", pad=3)
    top = max(0.3, 1.15 * np.max(np.abs(values)))
    panel.set_ylim(-top, top)


def traces(posterior: Posterior) -> Traces:
    """Return the log target and the six parameters with the largest R-hat, in this order.

    Chains may permute inducing points and need not agree about their locations, which therefore
    come last.
    """
    values = {}
    for name, leaf in posterior.draws.leaves.items():
        for entry in np.ndindex(leaf.shape[2:]):
            label = f"{name}[{','.join(map(str, entry))}]" if entry else name
            draws = np.asarray(leaf[(..., *entry)])
            if np.any(np.ptp(draws, axis=1) > 0):  # optimised parameters do not vary in a chain
                values[label] = draws
    target = {"log_target": np.asarray(posterior.info.log_target)}
    order = sorted(
        values, key=lambda name: ("locations" in name, -np.nan_to_num(_rhat(values[name])))
    )
    worst = order[:6]
    return target | {name: values[name] for name in values if name in worst}


def _rhat(values: Float[np.ndarray, "chain draw"]) -> float:
    return float(rhat(values)) if values.shape[1] >= 4 and np.ptp(values) > 0 else np.nan


@figure_of(Posterior)
def plot_traces(posterior: Posterior) -> "Figure":
    """Plot traces and rank histograms of the log target and the parameters with the largest R-hat.

    Traces should look alike and cover their whole range quickly. Ranks are over all chains
    together: if all chains have converged to the same distribution, the histogram of each chain is
    flat within the grey band, which contains 95 % of the bars for independent draws.
    """
    chosen = traces(posterior)
    figure, axes = panels(len(chosen), 2, height=1.05, width_ratios=(3, 2), sharex="col")
    for (trace, ranks), (name, values) in zip(axes, chosen.items(), strict=True):
        draws = np.arange(values.shape[1])
        for chain, style in zip(range(len(values)), LINES * len(values), strict=False):
            draw(
                trace,
                draws,
                values[chain],
                color=style["color"],
                linewidth=0.7,
                label=f"chain {chain}",
            )
        trace.margins(x=0.01)
        ratio = _rhat(values)
        words = "" if np.isnan(ratio) else f"   R-hat {ratio:.2f}"
        trace.set_title(readable(name) + words, pad=3)
        _draw_ranks(ranks, values)
    axes[-1, 0].set_xlabel("draw")
    axes[-1, 1].set_xlabel("rank over all chains")
    axes[0, 1].set_title("share of each chain's draws, 1 = even", pad=3)
    return figure


def _draw_ranks(panel: "Axes", values: Float[np.ndarray, "chain draw"]) -> None:
    """Draw the counts of each chain in bins of ranks, relative to a uniform distribution."""
    number, length = values.shape
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        say(panel, "does not vary")
        return
    bins = int(np.clip(length // 5, 2, 20))
    ranks = stats.rankdata(values.ravel()).reshape(values.shape)
    edges = np.linspace(0.5, values.size + 0.5, bins + 1)
    # The count of a chain in a bin is hypergeometric: `length` draws of all, 1/bins in the bin.
    low, high = stats.hypergeom(values.size, round(values.size / bins), length).interval(0.95)
    panel.axhspan(low * bins / length, high * bins / length, color=LIGHT, linewidth=0)
    for chain, style in zip(range(number), LINES * number, strict=False):
        share = np.histogram(ranks[chain], edges)[0] * bins / length
        panel.stairs(share, edges / values.size, color=style["color"], linestyle=style["linestyle"])
    panel.set_ylim(bottom=0)
