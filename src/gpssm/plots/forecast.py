"""A forecast."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.core.text import check_kind, check_shares
from gpssm.data.columns import align_columns
from gpssm.plots.style import (
    BLACK,
    BLUE,
    DOTTED,
    GREY,
    LIGHT,
    draw,
    in_house_style,
    legend,
    panels,
    shade,
    time_axis,
    with_unit,
)
from gpssm.posterior.checks import SHARE_LEFT
from gpssm.posterior.forecast import LEVELS, Forecast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOVEL = (
    0.5  # share of the prior variance of f that the data leave open, from which a step is marked
)


@in_house_style()
def plot_fan(
    forecast: Forecast,
    actual: Any = None,
    history: Any = None,
    levels: Sequence[float] = LEVELS,
    ax: Any = None,
) -> "Figure":
    """A fan of intervals around the median, one panel an output: see `Forecast.plot`."""
    check_kind("forecast", forecast, Forecast)
    levels, width = check_shares("levels", levels), len(forecast.outputs)
    given = panels(width, height=2.1, sharex=True)[1] if ax is None else ax
    given = given.ravel() if isinstance(given, np.ndarray) else given
    axes = list(given) if isinstance(given, np.ndarray | list | tuple) else [given]
    if len(axes) != width or not all(hasattr(type(one), "set_xlabel") for one in axes):
        raise ValueError(
            f"ax must hold one pair of axes an output, {width} in all; got {len(axes)}"
        )
    times, name = time_axis(forecast.horizon, forecast.axis, forecast.start)
    before = (
        np.zeros((0, width)) if history is None else align_columns(history, forecast.outputs, "y")
    )
    before = before[-2 * forecast.horizon :]
    earlier, _ = time_axis(len(before), forecast.axis, forecast.start - len(before))
    happened = None if actual is None else forecast.rows_of(actual)
    bands = [(level, *forecast.interval(level)) for level in sorted(levels, reverse=True)]
    for j, panel in enumerate(axes):
        if history is not None:
            draw(panel, earlier, before[:, j], color=GREY, label="history")
        for rank, (level, low, high) in enumerate(bands):
            alpha = min(0.2 + 0.15 * rank, 0.6)
            shade(panel, times, low[:, j], high[:, j], alpha=alpha, label=f"{100 * level:g} %")
        draw(panel, times, forecast.median[:, j], color=BLUE, label="median")
        if happened is not None:
            draw(panel, times, happened[:, j], color=BLACK, label="actual", **DOTTED)
        panel.set_ylabel(with_unit(forecast.outputs[j], forecast.units))
    axes[-1].set_xlabel(name)
    if ax is None:
        legend(axes[0].figure)
    else:
        axes[0].legend()
    return axes[0].figure


@in_house_style()
def plot_forecast(
    forecast: Forecast, actual: Any = None, history: Any = None, levels: Sequence[float] = LEVELS
) -> "Figure":
    """The fan of `Forecast.plot`, with marks where it should be trusted less.

    Grey behind the fan: more than 5 % of the paths had left the region the model knows. Crosses along the bottom: f is
    mostly prior there, as the paths are far from all training data.
    """
    figure = plot_fan(forecast, actual, history, levels)
    trust = forecast.diagnostics
    if trust is not None:
        times, _ = time_axis(forecast.horizon, forecast.axis, forecast.start)
        left, novel = trust.left_by_step > SHARE_LEFT, trust.novelty > NOVEL
        for panel in figure.axes:
            if left.any():
                label = f"paths left ({trust.share_left:.0%} by the end)"
                panel.axvspan(
                    times[np.argmax(left)],
                    times[-1],
                    color=LIGHT,
                    zorder=0,
                    linewidth=0,
                    label=label,
                )
            if novel.any():
                at_bottom = {"transform": panel.get_xaxis_transform(), "label": "far from all data"}
                panel.plot(
                    times[novel],
                    np.full(novel.sum(), 0.02),
                    "x",
                    color=GREY,
                    markersize=3,
                    **at_bottom,
                )
        legend(figure)
    return figure
