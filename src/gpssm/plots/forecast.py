"""A forecast."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.forecast import LEVELS, SOME, Forecast
from gpssm.style import GREY, LIGHT, house, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOVEL = 0.5  # share of the prior variance of f that the data leave open, from which a step is marked


@house()
def plot_forecast(
    forecast: Forecast, actual: Any = None, history: Any = None, levels: Sequence[float] = LEVELS
) -> "Figure":
    """The fan of `Forecast.plot`, with marks where it should be trusted less.

    Grey behind the fan: more than 5 % of the paths had left the region the model knows. Crosses along the bottom: f is
    mostly prior there, as the paths are far from all training data.
    """
    figure = forecast.plot(actual, history, levels)
    trust = forecast.diagnostics
    if trust is not None:
        times = forecast.steps * (forecast.dt or 1)
        left, novel = trust.left_by_step > SOME, trust.novelty > NOVEL
        for panel in figure.axes:
            if left.any():
                label = f"paths left ({trust.share_left:.0%} by the end)"
                panel.axvspan(times[np.argmax(left)], times[-1], color=LIGHT, zorder=0, linewidth=0, label=label)
            if novel.any():
                at_bottom = {"transform": panel.get_xaxis_transform(), "label": "far from all data"}
                panel.plot(times[novel], np.full(novel.sum(), 0.02), "x", color=GREY, markersize=3, **at_bottom)
        legend(figure)
    return figure
