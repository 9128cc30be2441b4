"""Several forecasts of the same thing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.alignment import aligned
from gpssm.forecast import Forecast
from gpssm.plots.base import LEVEL
from gpssm.style import BLACK, GREY, LINES, MARKERS, draw, house, legend, panels, shade, time_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = 3  # forecasts up to which bands are drawn; of more they hide each other


@house()
def plot_comparison(forecasts: Mapping[str, Forecast], actual: Any = None, history: Any = None) -> "Figure":
    """Medians of several forecasts over what happened, with 90 % bands where they are three or fewer.

    :param forecasts: by the name of the method, all from the same row on.
    :param actual, history: as in `Forecast.plot`.
    """
    if not forecasts:
        raise ValueError("plot_comparison needs at least one forecast by name; got none")
    first = next(iter(forecasts.values()))
    figure, axes = panels(len(first.outputs), height=2.1, sharex=True)
    _draw_data(axes[:, 0], first, actual, history)
    for number, (name, forecast) in enumerate(forecasts.items()):
        style, steps = LINES[number % len(LINES)], forecast.steps * (forecast.dt or 1)
        marks = {"marker": MARKERS[number % len(MARKERS)], "markevery": max(forecast.horizon // 8, 1)}
        low, high = forecast.interval(LEVEL)
        for column, panel in enumerate(axes[:, 0]):
            if len(forecasts) <= BANDS:
                shade(panel, steps, low[:, column], high[:, column], color=style["color"], alpha=0.15)
            draw(panel, steps, forecast.median[:, column], **style, **marks, label=name)
    for panel, name in zip(axes[:, 0], first.outputs, strict=True):
        panel.set_ylabel(name)
        panel.margins(x=0.01)
    axes[-1, 0].set_xlabel("row" if first.dt is None else "time")
    legend(figure)
    return figure


def _draw_data(axes: np.ndarray, forecast: Forecast, actual: Any, history: Any) -> None:
    """What happened, and twice as many rows of what came before."""
    before = np.zeros((0, 0)) if history is None else aligned(history, forecast.outputs, "y")[-2 * forecast.horizon :]
    after = np.zeros((0, 0)) if actual is None else aligned(actual, forecast.outputs, "y")[: forecast.horizon]
    parts = ((before, forecast.start - len(before), GREY, "history"), (after, forecast.start, BLACK, "actual"))
    for values, first, colour, label in parts:
        times, _ = time_axis(len(values), forecast.dt, first)
        for panel, column in zip(axes, values.T, strict=False):
            draw(panel, times, column, color=colour, linewidth=1, label=label)
