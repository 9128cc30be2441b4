"""Figures of a fit: outputs and states along the data, residuals, convergence, learned dynamics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.mixing import rhat
from gpssm.core.text import readable, shortened
from gpssm.evaluation.training import Correlation, Residuals, find_residuals
from gpssm.plots.style import (
    BLACK,
    BLUE,
    FULL,
    GREY,
    HALF,
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
from gpssm.posterior.dynamics import (
    Bode,
    FunctionEstimate,
    Linearisation,
    Response,
    StaticGain,
    central_band,
    transition,
)
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
    verdict = f"{'found' if test.found else 'none'}, p = {test.p_value:.1g}"
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


class Slice(NamedTuple):
    """f along a line through the mean of the data.

    Parameters
    ----------
    name
        The direction of the line.
    places
        Positions of the data on the line.
    line
        Positions at which f is evaluated.
    x
        The states at these positions.
    estimate
        The estimates of f at these positions.
    """

    name: str
    places: Float[np.ndarray, " N"]
    line: Float[np.ndarray, " n"]
    x: Float[np.ndarray, "n Dx"]
    estimate: FunctionEstimate


def slices(posterior: Posterior) -> list[Slice]:
    """Return f along the first three principal directions of the training states and inputs.

    States are posterior means of all series.
    """
    posterior = stored_rows(posterior)
    means = [np.mean(np.asarray(path), axis=(0, 1)) for path in posterior.draws.states]
    x = np.concatenate([path[:-1] for path in means])
    u = np.concatenate([series.u for series in posterior.dataset.acting])
    z = np.hstack([x, posterior.dataset.encode_inputs(u)])
    dim = x.shape[1]
    centre = z.mean(0)
    _, spread, directions = np.linalg.svd(z - centre, full_matrices=False)
    names = [f"x_{{{number + 1}}}" for number in range(dim)]
    # Remove characters that mathtext would interpret from the names.
    for name in posterior.dataset.inputs:
        plain = "".join(letter if letter.isalnum() else " " for letter in name)
        names.append(rf"\mathrm{{{plain}}}")
    result = []
    for number, direction in enumerate(directions[:3]):
        # The sign of a principal direction is arbitrary: make its largest component positive.
        direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
        places = (z - centre) @ direction
        margin = 0.25 * max(np.ptp(places), 1e-6)
        line = np.linspace(places.min() - margin, places.max() + margin, 120)
        points = centre + line[:, None] * direction
        u = posterior.dataset.decode_inputs(points[:, dim:])
        share = spread[number] ** 2 / np.sum(spread**2)
        title = f"{_direction(direction, names)} ({share:.0%})"
        estimate = transition(posterior, points[:, :dim], u)
        result.append(Slice(title, places, line, points[:, :dim], estimate))
    return result


def _direction(direction: Float[np.ndarray, " Dz"], names: list[str]) -> str:
    """Return the two largest components of a direction as text, with dots for further large
    ones.
    """
    largest = sorted(np.argsort(-np.abs(direction))[:2])
    terms = []
    for part in largest:
        if abs(direction[part]) > 0.1:
            factor = f"{direction[part]:+.2g}"
            terms.append({"+1": "+", "-1": "-"}.get(factor, rf"{factor}\,") + names[part])
    text = " ".join(terms)
    hint = r" + \ldots" if np.sum(np.abs(direction) > 0.1) > 2 else ""
    return f"${text.lstrip('+')}{hint}$"


@figure_of(Posterior)
def plot_transition(posterior: Posterior, chain: int | None = 0) -> "Figure":
    """Plot the learned change f(x, u) − x with 90 % bands along slices through the data.

    The slices follow the principal directions of states and inputs in the training data, in scaled
    units and without process noise, for the first five states. The range of the data is grey; the
    lower panels show the novelty of the inputs (0 known, 1 prior).

    Parameters
    ----------
    posterior
        The fit.
    chain
        The chain whose draws are used, since chains may use different coordinates; None for all
        chains.
    """
    posterior = posterior if chain is None else posterior.thinned(chain=chain)
    lines = slices(posterior)
    shown = min(posterior.model.state_dim, 5)
    figure, axes = panels(
        shown + 1,
        len(lines),
        height=1.05,
        xlabel="along the direction",
        ylabels=[*(f"step of $x_{{{number + 1}}}$" for number in range(shown)), "novelty"],
        sharex="col",
        sharey="row",
        height_ratios=(*(1.0,) * shown, 0.5),
    )
    for column, slice_ in zip(axes.T, lines, strict=True):
        estimate = slice_.estimate
        limits = np.quantile(slice_.places, [0.05, 0.95])
        for number, panel in enumerate(column[:-1]):
            step = estimate.mean[:, number] - slice_.x[:, number]
            spread = 1.645 * estimate.std[:, number]
            panel.axvspan(*limits, color=LIGHT, linewidth=0, zorder=0, label="visited (90 %)")
            shade(panel, slice_.line, step - spread, step + spread, label="90 % band")
            draw(panel, slice_.line, step, color=BLUE, label="mean")
        assert estimate.novelty is not None
        novelty = np.nan_to_num(estimate.novelty)
        column[-1].fill_between(slice_.line, novelty, color=VERMILION, alpha=0.6, linewidth=0)
        ends = slice_.line[[0, -1]]
        column[-1].set(ylim=(0, 1), xlim=ends)
        column[0].set_title(slice_.name, pad=3)
    return figure


@figure_of(Response)
def plot_response(response: Response, level: float = LEVEL) -> "Figure":
    """Plot step or impulse responses over draws, one row per output and one column per input."""
    linear = response.linear
    columns = len(linear.inputs)
    time = with_unit("time", {"time": linear.time_unit})
    figure, axes = panels(
        len(linear.outputs),
        columns,
        width=HALF if columns == 1 else FULL,
        height=1.8,
        xlabel="steps" if linear.dt is None else time,
        sharex=True,
    )
    for (j, i), panel in np.ndenumerate(axes):
        panel.axhline(0, color=GREY, linewidth=0.7)
        _draw_band(panel, response.times, response.values[:, :, j, i], level)
        panel.set(
            title=f"{response.kind} to {linear.inputs[i]}",
            ylabel=_ratio(linear.outputs[j], linear.inputs[i], linear.units),
        )
    return figure


@figure_of(Bode)
def plot_bode(bode: Bode, level: float = LEVEL) -> "Figure":
    """Plot magnitude and phase over frequency, two rows per output and one column per input."""
    linear = bode.linear
    columns = len(linear.inputs)
    per = "step" if linear.dt is None else "unit of time"
    cycles = f"cycles per {linear.time_unit or per}"
    figure, axes = panels(
        2 * len(linear.outputs),
        columns,
        width=HALF if columns == 1 else FULL,
        height=1.5,
        xlabel="frequency [Hz]" if linear.time_unit == "s" else cycles,
        sharex=True,
    )
    for (row, i), panel in np.ndenumerate(axes):
        j, is_phase = divmod(row, 2)
        values = bode.phase if is_phase else bode.magnitude
        _draw_band(panel, bode.frequencies, values[:, :, j, i], level)
        panel.set(xscale="log", ylabel="phase [°]" if is_phase else "magnitude [dB]")
        ratio = _ratio(linear.outputs[j], linear.inputs[i], linear.units)
        panel.set_title("" if is_phase else f"{linear.inputs[i]} to {ratio}")
    return figure


@figure_of(Linearisation)
def plot_poles(linear: Linearisation, level: float = LEVEL) -> "Figure":
    """Plot the poles of all draws in the unit circle, coloured by their order of magnitude."""
    figure, axes = panels(1, width=HALF, height=HALF)
    panel = axes[0, 0]
    angle = np.linspace(0, 2 * np.pi, 400)
    panel.plot(np.cos(angle), np.sin(angle), color=BLACK, linewidth=0.8)
    for k, column in enumerate(linear.poles.T):
        low, high = np.quantile(np.abs(column), ((1 - level) / 2, (1 + level) / 2))
        label = f"|p| {low:.3f} to {high:.3f}"
        panel.plot(
            column.real,
            column.imag,
            "x",
            color=LINES[k % len(LINES)]["color"],
            alpha=0.6,
            label=label,
        )
    reach = 1.1 * max(1.0, float(np.abs(linear.poles).max()))
    limits = (-reach, reach)
    panel.set(xlim=limits, ylim=limits, aspect="equal", xlabel="real part", ylabel="imaginary part")
    return figure


@figure_of(StaticGain)
def plot_static_gain(curve: StaticGain, level: float = LEVEL) -> "Figure":
    """Plot steady-state outputs and their slope over the input.

    Dots mark values of the input at which the equilibria of half of the draws are unstable.
    """
    number = len(curve.outputs)
    figure, axes = panels(2, number, width=HALF if number == 1 else FULL, height=1.7, sharex=True)
    settled = curve.supported(curve.settled)
    gain = curve.supported(curve.gain)
    unstable = curve.stable.mean(0) < 0.5
    for j, output in enumerate(curve.outputs):
        top, bottom = axes[:, j]
        _draw_band(top, curve.values, settled[..., j], level)
        if unstable.any():
            top.plot(
                curve.values[unstable],
                curve.median[unstable, j],
                ".",
                color=VERMILION,
                label="unstable",
            )
        top.set(ylabel=with_unit(output, curve.units), title=f"{output} settles at")
        _draw_band(bottom, curve.values, gain[..., j], level)
        bottom.set(
            ylabel=_ratio(output, curve.input, curve.units),
            title=f"static gain, per unit of {curve.input}",
            xlabel=with_unit(curve.input, curve.units),
        )
    return figure


def _draw_band(
    panel: "Axes", x: Float[np.ndarray, " N"], values: Float[np.ndarray, "S N"], level: float
) -> None:
    """Draw the median over draws and their central interval."""
    shade(panel, x, *central_band(values, level), label=f"{100 * level:g} % of the draws")
    panel.plot(x, central_band(values, 0.0)[0], color=BLUE, label="median")


def _ratio(output: str, column: str, units: Mapping[str, str]) -> str:
    """Return the label of a change of an output per unit of an input, with units if both are
    known.
    """
    both = units.get(output) and units.get(column)
    return f"{output} [{units[output]}/{units[column]}]" if both else output
