"""Figures of data and forecasts: series, forecasts, comparisons, backtests, calibration, orders."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.metrics import pit
from gpssm.core.text import as_tuple, check_kind, check_output, is_whole
from gpssm.data.columns import align_columns
from gpssm.data.series import Series, as_list
from gpssm.evaluation.held_out import LinearComparison
from gpssm.evaluation.scores import Backtest
from gpssm.plots.style import (
    BLACK,
    BLUE,
    DOTTED,
    GREEN,
    GREY,
    LEVEL,
    LIGHT,
    LINES,
    MARKERS,
    VERMILION,
    draw,
    figure_of,
    panels,
    shade,
    time_axis,
    untrusted_spans,
    with_unit,
)
from gpssm.posterior.forecast import LEVELS, Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENTRIES = 20  # minimum number of observed entries in a bin or in a group of steps
STEPS = {"color": GREEN, "linewidth": 0.9, "drawstyle": "steps-post", "label": "input (held)"}

Pair = tuple[Forecast, Any]


@figure_of()
def plot_series(series: Any, train: Any = None) -> "Figure":
    """Plot outputs above inputs, with the first four series side by side.

        plot_series(series, train=0.5)

    Parameters
    ----------
    series
        A `Series`, anything that `Series.of` accepts, or a list of these.
    train
        The training rows, which come first, as a number, a fraction, or a series. The other rows
        are shaded.
    """
    listed = as_list(series)
    first = listed[0]
    names = (*first.outputs, *first.inputs)
    shown = listed[:4]
    ylabels = [with_unit(name, first.units) for name in names]
    figure, axes = panels(
        len(names), len(shown), height=1.1, ylabels=ylabels, sharex="col", sharey="row"
    )
    for number, (column, rows) in enumerate(zip(axes.T, shown, strict=True)):
        _draw_columns(column, rows)
        if train is not None:
            _mark_split(column, rows, train)
        if len(listed) > 1:
            more = f" (of {len(listed)})" if len(listed) > len(shown) else ""
            column[0].set_title(rows.name or f"series {number}{more}")
    return figure


def _draw_columns(column: np.ndarray, rows: Series) -> None:
    times, name = time_axis(len(rows) + 1, rows.axis)
    end = times[-1]
    times = times[:-1]
    for panel, values in zip(column, rows.y.T, strict=False):
        draw(panel, times, values, color=BLUE, label="output")
        missing = times[np.isnan(values)]
        if missing.size:
            bottom = panel.get_xaxis_transform()
            panel.plot(
                missing,
                np.zeros(len(missing)),
                "|",
                transform=bottom,
                color=VERMILION,
                markersize=6,
                label="missing",
            )
    for panel, values in zip(column[rows.output_dim :], rows.u.T, strict=True):
        draw(panel, times, values, **STEPS)
    column[0].set_xlim(times[0], end)
    column[-1].set_xlabel(name)


def _mark_split(column: np.ndarray, rows: Series, train: Any) -> None:
    """Mark the end of training by a line, and shade the other rows."""
    length = len(rows)
    first = min(len(train), length) if isinstance(train, Series) else train
    if isinstance(train, float) and 0 < train <= 1:
        first = math.floor(train * length + 1e-9)
    if not is_whole(first) or not 0 < first <= length:
        raise ValueError(
            f"train is a number of rows up to {length}, a share up to 1.0, or a series; "
            f"got {train!r}"
        )
    times, _ = time_axis(length + 1, rows.axis)
    for panel in column:
        panel.axvspan(times[first], times[-1], color=LIGHT, zorder=0, linewidth=0, label="test")
        panel.axvline(
            times[first], color=GREY, linestyle="--", linewidth=0.9, label="end of training"
        )


@figure_of(Forecast)
def plot_forecast(
    forecast: Forecast,
    actual: Any = None,
    history: Any = None,
    levels: Sequence[float] = LEVELS,
) -> "Figure":
    """Plot intervals around the median for each output, and the inputs below.

    Steps where inputs or paths leave the region of the training data are hatched.

    Parameters
    ----------
    forecast
        The forecast.
    actual
        The actual outputs.
    history
        The previous outputs: a Series or an array that ends where the forecast starts, of which the
        last 2 H rows are shown.
    levels
        Levels of the intervals.
    """
    outputs = len(forecast.outputs)
    inputs = forecast.inputs
    ratios = (2.1,) * outputs + (1.0,) * len(inputs)
    times, xlabel = time_axis(forecast.horizon, forecast.axis, forecast.start)
    figure, axes = panels(
        len(ratios),
        height=float(np.mean(ratios)),
        xlabel=xlabel,
        ylabels=[with_unit(name, forecast.units) for name in (*forecast.outputs, *inputs)],
        sharex=True,
        height_ratios=ratios,
    )
    axes = axes.ravel()
    past = None if history is None else _last_rows(history, forecast)
    happened = None if actual is None else forecast.rows_of(actual)
    past_inputs = isinstance(history, Series) and set(inputs) <= set(history.inputs)
    bands = [(level, *forecast.interval(level)) for level in sorted(levels, reverse=True)]
    for j, panel in enumerate(axes[:outputs]):
        if past is not None:
            draw(panel, past[0], past[1][:, j], color=GREY, label="history")
        for rank, (level, low, high) in enumerate(bands):
            alpha = min(0.2 + 0.15 * rank, 0.6)
            shade(panel, times, low[:, j], high[:, j], alpha=alpha, label=f"{100 * level:g} %")
        draw(panel, times, forecast.median[:, j], color=BLUE, label="median")
        if happened is not None:
            draw(panel, times, happened[:, j], color=BLACK, label="actual", **DOTTED)
    for j, panel in enumerate(axes[outputs:]):
        if past is not None and past_inputs:
            before = align_columns(history, forecast.inputs, "u")[-len(past[0]) :, j]
            draw(panel, past[0], before, **STEPS | {"color": GREY, "label": "history"})
        draw(panel, times, forecast.u[:, j], **STEPS)
    # Untrusted steps are hatched up to the next step, so that a single one is visible.
    ends, _ = time_axis(forecast.horizon + 1, forecast.axis, forecast.start)
    for first, end in untrusted_spans(forecast) - forecast.start:
        for panel in axes:
            panel.axvspan(
                ends[first],
                ends[end],
                facecolor="none",
                edgecolor=GREY,
                hatch="///",
                linewidth=0,
                zorder=0,
                label="untrusted",
            )
    return figure


def _last_rows(history: Any, forecast: Forecast) -> tuple[np.ndarray, np.ndarray]:
    """Return times and outputs of the rows before a forecast, twice as many as its steps."""
    values = align_columns(history, forecast.outputs, "y")[-2 * forecast.horizon :]
    times, _ = time_axis(len(values), forecast.axis, forecast.start - len(values))
    return times, values


@figure_of()
def plot_comparison(
    forecasts: Mapping[str, Forecast],
    actual: Any = None,
    history: Any = None,
    output: str | None = None,
    level: float = LEVEL,
) -> "Figure":
    """Plot medians of forecasts and the actual outputs, with bands for up to three forecasts.

    Parameters
    ----------
    forecasts
        Forecasts that start at the same row, by name.
    actual, history
        As in `Forecast.plot`.
    output
        The output to show; all by default.
    level
        Level of the bands.
    """
    if not isinstance(forecasts, Mapping) or not forecasts:
        raise ValueError("plot_comparison needs at least one forecast by name; got none")
    for name, forecast in forecasts.items():
        check_kind(f"the forecast {name!r}", forecast, Forecast)
    first = next(iter(forecasts.values()))
    check_output(output, first.outputs)
    shown = first.outputs if output is None else (output,)
    ylabels = [with_unit(name, first.units) for name in shown]
    xlabel = time_axis(1, first.axis)[1]
    figure, axes = panels(len(shown), height=2.1, xlabel=xlabel, ylabels=ylabels, sharex=True)
    for panel, name in zip(axes[:, 0], shown, strict=True):
        column = first.outputs.index(name)
        if history is not None:
            times, values = _last_rows(history, first)
            draw(panel, times, values[:, column], color=GREY, linewidth=1, label="history")
        if actual is not None:
            values = align_columns(actual, first.outputs, "y")[: first.horizon]
            times, _ = time_axis(len(values), first.axis, first.start)
            draw(panel, times, values[:, column], color=BLACK, label="actual", **DOTTED)
        panel.margins(x=0.01)
    for number, (label, forecast) in enumerate(forecasts.items()):
        style = LINES[number % len(LINES)]
        marker = MARKERS[number % len(MARKERS)]
        times, _ = time_axis(forecast.horizon, forecast.axis, forecast.start)
        low, high = forecast.interval(level)
        for panel, name in zip(axes[:, 0], shown, strict=True):
            column = forecast.outputs.index(name)
            if len(forecasts) <= 3:  # bands of more forecasts hide each other
                shade(
                    panel, times, low[:, column], high[:, column], color=style["color"], alpha=0.15
                )
            draw(
                panel,
                times,
                forecast.median[:, column],
                **style,
                marker=marker,
                markevery=max(forecast.horizon // 8, 1),
                label=label,
            )
    return figure


@figure_of(Backtest)
def plot_backtest(backtest: Backtest, output: str | None = None, level: float = LEVEL) -> "Figure":
    """Plot forecasts along the series that do not overlap, and errors and coverage by step ahead.

    Parameters
    ----------
    backtest
        The forecasts.
    output
        The output to show, the first by default.
    level
        Level of the bands.
    """
    series = backtest.series
    names = series.outputs
    check_output(output, names)
    figure, ((along,), (errors,), (covered,)) = panels(3, height=1.9)
    column = names.index(output or names[0])
    horizon = backtest.horizon
    times, axis_name = time_axis(len(series), series.axis)
    labels = {"label": f"median and {100 * level:g} %"}
    free = 0  # the first row without a forecast
    for origin, forecast in zip(backtest.origins, backtest.forecasts, strict=True):
        if origin >= free:
            ahead = times[origin : origin + horizon]
            low, high = forecast.interval(level)
            shade(along, ahead, low[:, column], high[:, column])
            draw(along, ahead, forecast.median[:, column], color=BLUE, **labels)
            along.axvline(ahead[0], color=BLUE, linewidth=0.5, linestyle=":")
            labels = {}
            free = origin + horizon
    rows = np.arange(max(backtest.origins[0] - horizon, 0), backtest.origins[-1] + horizon)
    draw(along, times[rows], series.y[rows, column], color=BLACK, linewidth=0.8, label="actual")
    along.set(ylabel=with_unit(names[column], series.units), xlabel=axis_name)
    by_step = backtest.by_step(names[column])
    steps = by_step.index.to_numpy()
    for style, name in zip(LINES, ("rmse", "mae", "crps"), strict=False):
        draw(errors, steps, by_step[name].to_numpy(), label=name, **style)
    for style, share in zip(LINES[3:], backtest.levels, strict=False):
        values = by_step[f"coverage_{100 * share:g}"].to_numpy()
        draw(covered, steps, values, label=f"coverage of {100 * share:g} %", **style)
        covered.axhline(share, color=style["color"], linewidth=0.6, alpha=0.6)
    errors.set(ylabel="error", xlabel="steps ahead", ylim=(0, None))
    covered.set(ylabel="coverage", xlabel="steps ahead", ylim=(0, 1.03))
    return figure


@figure_of()
def plot_calibration(pairs: Iterable[Pair], levels: tuple[float, ...] = LEVELS) -> "Figure":
    """Plot the probability integral transform, and the coverage of intervals by step ahead.

        plot_calibration([(forecast, actual), ...])

    Left: a histogram of the share of paths below the actual outputs. It is flat if forecasts are
    calibrated, ∪-shaped if intervals are too narrow, ∩-shaped if they are too wide. Right: the
    coverage of intervals and their nominal levels. If entries were independent, 95 % of the bars
    and points would lie in the shaded areas; errors of one forecast are correlated, so deviations
    may be larger.

    Parameters
    ----------
    pairs
        Pairs of a forecast and the actual outputs, as in `Forecast.score`.
    levels
        Levels of the intervals.
    """
    listed = as_tuple(pairs)
    if not listed or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in listed):
        raise ValueError(
            f"plot_calibration needs at least one pair (forecast, actual outputs); got {pairs!r}"
        )
    for forecast, _ in listed:
        check_kind("the first of a pair", forecast, Forecast)
    values = transforms(listed)
    figure, axes = panels(1, 2, height=2.2)
    _draw_histogram(axes[0, 0], values[np.isfinite(values)])
    _draw_coverage(axes[0, 1], values, levels)
    return figure


def transforms(pairs: Sequence[Pair]) -> Float[np.ndarray, "N H Dy"]:
    """Return the share of paths below each entry; NaN for missing entries."""
    horizon = max(forecast.horizon for forecast, _ in pairs)
    values = np.full((len(pairs), horizon, len(pairs[0][0].outputs)), np.nan)
    for row, (forecast, actual) in zip(values, pairs, strict=True):
        y = align_columns(actual, forecast.outputs, "y")[: forecast.horizon]
        if np.isfinite(y).any():
            row[: len(y)] = pit(forecast.paths[:, : len(y)], y)
    return values


def _draw_histogram(panel: "Axes", values: Float[np.ndarray, " n"]) -> None:
    bins = int(np.clip(len(values) // ENTRIES, 4, 10))
    scale = bins / len(values)
    low, high = stats.binom(len(values), 1 / bins).interval(0.95)
    label = "95 % band if calibrated"
    panel.axhspan(scale * low, scale * high, color=LIGHT, linewidth=0, label=label)
    counts, edges = np.histogram(values, bins, (0, 1))
    panel.bar(
        edges[:-1], counts * scale, 1 / bins, align="edge", color=BLUE, alpha=0.6, edgecolor="white"
    )
    panel.axhline(1, color=GREY, linestyle="--", linewidth=0.9)
    words = f"PIT: share of paths below ({len(values)} entries)"
    panel.set(xlabel=words, ylabel="density", xlim=(0, 1))


def coverage_by_step(
    values: Float[np.ndarray, "N H Dy"], level: float
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Return the coverage in groups of neighbouring steps with enough entries.

    Returns
    -------
    steps
        The middle of each group.
    share
        The share of its entries inside the central interval.
    counts
        The number of its entries.
    """
    horizon = values.shape[1]
    groups = int(np.clip(np.isfinite(values).sum() // ENTRIES, 1, min(12, horizon)))
    rows = np.array_split(np.arange(horizon), groups)
    parts = [values[:, part][np.isfinite(values[:, part])] for part in rows]
    observed = [(part.mean() + 1, entries) for part, entries in zip(rows, parts, strict=True)]
    observed = [(step, entries) for step, entries in observed if entries.size]
    share = [np.mean(np.abs(entries - 0.5) <= level / 2) for _, entries in observed]
    counts = [entries.size for _, entries in observed]
    return np.array([step for step, _ in observed]), np.array(share), np.array(counts)


def _draw_coverage(
    panel: "Axes", values: Float[np.ndarray, "N H Dy"], levels: tuple[float, ...]
) -> None:
    for level, style, marker in zip(sorted(levels), LINES, MARKERS, strict=False):
        steps, share, counts = coverage_by_step(values, level)
        low, high = stats.binom(counts, level).interval(0.95)
        panel.vlines(steps, low / counts, high / counts, color=LIGHT, linewidth=9, zorder=1)
        panel.axhline(level, color=style["color"], linestyle="--", linewidth=0.8)
        panel.plot(steps, share, **style, marker=marker, label=f"{100 * level:g} % interval")
    panel.set(xlabel="steps ahead", ylabel="coverage", ylim=(-0.02, 1.02))


@figure_of(LinearComparison)
def plot_orders(models: LinearComparison) -> "Figure":
    """Plot the held-out loss of state-space models over their order, and of other linear models.

    Bars are standard errors over the held-out windows; the ring marks the order that
    `state_dim="auto"` uses.

    Parameters
    ----------
    models
        The result of `gpssm.linear_models`.
    """
    figure, axes = panels(1, height=3.0)
    panel = axes[0, 0]
    table = models.table
    ordered = table[table.index.str.startswith("ss-")]
    orders = [int(str(name)[3:]) for name in ordered.index]
    style = {"fmt": "o", "color": BLUE, "capsize": 2, "label": "state-space model"}
    panel.errorbar(orders, ordered["loss"], ordered["standard_error"], **style)
    chosen = f"ss-{models.orders[0]}"
    if chosen in table.index:
        panel.scatter(
            models.orders[0],
            table.loc[chosen, "loss"],
            s=150,
            facecolors="none",
            edgecolors=VERMILION,
            label="chosen",
        )
    # Models far worse than all orders would compress the other curves.
    others = table.drop(ordered.index)
    limit = ordered["loss"].max()
    for number, name in enumerate(others.index[others["loss"] <= limit]):
        style = LINES[(number + 1) % len(LINES)]
        panel.axhline(float(table.at[name, "loss"]), **style, label=str(name))
    panel.set_ylim(bottom=0)
    panel.set_xticks(sorted(orders))
    panel.set(xlabel="order: number of states", ylabel=f"{models.protocol}\n(held-out rows, SD)")
    return figure
