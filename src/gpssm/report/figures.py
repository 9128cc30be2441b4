"""The figures of a fit that has been examined, drawn from what was computed once."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpssm.evaluation.examine import Examination
from gpssm.model.means import Wired
from gpssm.plots import forecasts, posteriors
from gpssm.plots.dynamics import plot_transition, plot_wiring
from gpssm.posterior.stack import leading_member

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures_of(examination: Examination) -> dict[str, Callable[[], "Figure"]]:
    """A function for each figure that there are data for, by name."""
    posterior = examination.posterior
    member = leading_member(posterior)
    test = examination.test
    experiments = posterior.dataset.experiments
    history = experiments[-1]
    last = len(experiments) - 1
    actual = None if test is None else test[: examination.forecast.horizon]
    rolling = examination.rolling.own
    pairs = [
        (forecast, rolling.series[origin:])
        for origin, forecast in zip(rolling.origins.tolist(), rolling.forecasts, strict=True)
    ]
    series = list(experiments)
    if test is not None:
        y = np.concatenate([history.y, test.y])
        series = [replace(history, y=y, u=np.concatenate([history.u, test.u]))]
    smoothed = (examination.smoothed, examination.observed)
    figures = {
        "series": lambda: forecasts.plot_series(series, len(history)),
        "forecast": lambda: forecasts.plot_forecast(examination.forecast, actual, history),
        "comparison": lambda: forecasts.plot_comparison(examination.forecasts, actual, history),
        "calibration": lambda: forecasts.plot_calibration(pairs),
        "smoothed": lambda: posteriors.plot_smoothed(posterior, last, smoothed),
        "residuals": lambda: posteriors.draw_residuals(examination.residuals),
        "states": lambda: posteriors.plot_states(member, last),
        "transition": lambda: plot_transition(member),
        "traces": lambda: posteriors.plot_traces(member),
        "ess": lambda: posteriors.plot_ess(member, examination.diagnostics),
        "parameters": lambda: posteriors.plot_parameters(member),
    }
    if isinstance(member.model.mean, Wired):
        figures["wiring"] = lambda: plot_wiring(member)
    return figures
