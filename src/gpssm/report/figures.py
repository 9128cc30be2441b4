"""The figures of a fit that has been examined: the page and the run folder draw them from what was computed once."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpssm.data.series import Series
from gpssm.evaluation.examine import Examination
from gpssm.model.means import Wired
from gpssm.plots.calibration import plot_calibration
from gpssm.plots.comparison import plot_comparison
from gpssm.plots.ess import plot_ess
from gpssm.plots.forecast import plot_forecast
from gpssm.plots.parameters import plot_parameters
from gpssm.plots.residuals import draw_residuals
from gpssm.plots.scores import plot_scores
from gpssm.plots.series import plot_series
from gpssm.plots.smoothed import plot_smoothed
from gpssm.plots.states import plot_states
from gpssm.plots.traces import plot_traces
from gpssm.plots.transition import plot_transition
from gpssm.plots.wiring import plot_wiring

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures_of(found: Examination) -> dict[str, Callable[[], "Figure"]]:
    """A function for each figure that there are data for, by name."""
    posterior, test, own = found.posterior, found.test, found.rolling.own
    raw = posterior.dataset.experiments
    history, last = raw[-1], len(raw) - 1
    actual = None if test is None else test[: found.forecast.horizon]
    pairs = [
        (one, own.series[origin:])
        for origin, one in zip(own.origins.tolist(), own.forecasts, strict=True)
    ]
    figures = {
        "series": lambda: plot_series(
            [*raw] if test is None else _joined(history, test), len(history)
        ),
        "forecast": lambda: plot_forecast(found.forecast, actual, history),
        "comparison": lambda: plot_comparison(found.forecasts, actual, history),
        "calibration": lambda: plot_calibration(pairs),
        "smoothed": lambda: plot_smoothed(posterior, last, (found.smoothed, found.observed)),
        "residuals": lambda: draw_residuals(found.residuals),
        "states": lambda: plot_states(posterior, last),
        "transition": lambda: plot_transition(posterior),
        "traces": lambda: plot_traces(posterior),
        "ess": lambda: plot_ess(posterior, found.diagnostics),
        "parameters": lambda: plot_parameters(posterior),
    }
    if isinstance(posterior.model.mean, Wired):
        figures["wiring"] = lambda: plot_wiring(posterior)
    if found.scores:
        figures["scores"] = lambda: plot_scores(next(iter(found.scores.values())))
    return figures


def _joined(first: Series, second: Series) -> Series:
    y, u = (np.concatenate(pair) for pair in ((first.y, second.y), (first.u, second.u)))
    return replace(first, y=y, u=u)
