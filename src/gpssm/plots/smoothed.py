"""Outputs along the training data, as the model sees them."""

from typing import TYPE_CHECKING

import numpy as np

from gpssm.core.text import check_kind
from gpssm.plots.quantities import LEVEL
from gpssm.plots.style import (
    BLACK,
    BLUE,
    VERMILION,
    draw,
    extremes,
    in_house_style,
    legend,
    panels,
    shade,
    time_axis,
    with_unit,
)
from gpssm.posterior.explore import smoothed_outputs
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@in_house_style()
def plot_smoothed(
    posterior: Posterior, index: int = -1, found: tuple[Forecast, Forecast] | None = None
) -> "Figure":
    """Outputs of training series `index`: data, median and 90 % bands of E[y_t | x_{t+1}] and, lighter, of y_t itself.

    About nine in ten of the data should lie in the lighter band. Missing entries are shown as filled in, each with the
    90 % interval of what it may have been.

    :param found: the smoothed outputs without and with noise, if they were computed already.
    """
    check_kind("posterior", posterior, Posterior)
    posterior = posterior.with_states()
    series = posterior.dataset.experiment(index)
    outputs, observed = found or smoothed_outputs(posterior, index)
    figure, axes = panels(series.output_dim, height=1.9, sharex=True)
    times, name_of_axis = time_axis(len(series), series.axis)
    for column, panel in enumerate(axes[:, 0]):
        for paths, alpha, name in ((observed, 0.2, "with noise"), (outputs, 0.35, "without noise")):
            low, high = (limit[:, column] for limit in paths.interval(LEVEL))
            shade(panel, times, low, high, alpha=alpha, label=f"90 %, {name}")
        draw(panel, times, outputs.median[:, column], color=BLUE, label="median")
        values = series.y[:, column]
        kept = extremes(values)
        panel.plot(times[kept], values[kept], ".", color=BLACK, markersize=2.5, label="data")
        _draw_missing(panel, times, observed, column, np.isnan(values))
        panel.set_ylabel(with_unit(series.outputs[column], series.units))
        panel.margins(x=0.01)
    axes[-1, 0].set_xlabel(name_of_axis)
    legend(figure)
    return figure


def _draw_missing(
    panel: "Axes", times: np.ndarray, observed: Forecast, column: int, missing: np.ndarray
) -> None:
    if not missing.any():
        return
    low, high = (limit[:, column][missing] for limit in observed.interval(LEVEL))
    middle, where = observed.median[:, column][missing], times[missing]
    kept = extremes(low, high, most=300)
    panel.vlines(where[kept], low[kept], high[kept], color=VERMILION, linewidth=0.7, alpha=0.7)
    (marks,) = panel.plot(
        where[kept], middle[kept], "D", color=VERMILION, markersize=3, label="missing, filled in"
    )
    marks.set_markerfacecolor("white")
