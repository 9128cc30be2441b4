"""Forecasts from many origins."""

from typing import TYPE_CHECKING

import numpy as np

from gpssm.core.text import as_share, check_kind, check_output
from gpssm.evaluation.backtest import Backtest
from gpssm.plots.quantities import LEVEL
from gpssm.plots.style import (
    BLACK,
    BLUE,
    LINES,
    draw,
    in_house_style,
    legend,
    panels,
    shade,
    time_axis,
    with_unit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@in_house_style()
def plot_backtest(backtest: Backtest, output: str | None = None, level: float = LEVEL) -> "Figure":
    """Forecasts along the series, as many as do not overlap; errors, and coverage, by step ahead.

    :param output: the output to show, the first if not given; errors and coverage are of that output too.
    """
    check_kind("backtest", backtest, Backtest)
    series, names = backtest.series, backtest.series.outputs
    check_output(output, names)
    level = as_share(level)
    figure, ((along,), (errors,), (covered,)) = panels(3, height=1.9)
    column, horizon = names.index(output or names[0]), backtest.horizon
    all_times, axis_name = time_axis(len(series), series.axis)
    last = backtest.origins[0] - horizon
    for origin, forecast in zip(backtest.origins, backtest.forecasts, strict=True):
        if origin >= last + horizon:
            label = (
                {"label": f"median and {100 * level:g} %"} if origin == backtest.origins[0] else {}
            )
            times, last = all_times[origin : origin + horizon], origin
            low, high = (end[:, column] for end in forecast.interval(level))
            shade(along, times, low, high)
            draw(along, times, forecast.median[:, column], color=BLUE, **label)
            along.axvline(times[0], color=BLUE, linewidth=0.5, linestyle=":")
    rows = np.arange(max(backtest.origins[0] - horizon, 0), backtest.origins[-1] + horizon)
    draw(along, all_times[rows], series.y[rows, column], color=BLACK, linewidth=0.8, label="actual")
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
    legend(figure)
    return figure
