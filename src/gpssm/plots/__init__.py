"""Figures of data, forecasts and posteriors, in one house style: each function gives back a matplotlib `Figure`.

    gpssm.plots.plot_forecast(posterior.forecast(u=test.u), actual=test).savefig("forecast.pdf")

They need matplotlib (`pip install gpssm[plots]`), never pyplot: nothing is shown or closed, and no display is needed.
"""

from gpssm.plots.calibration import plot_calibration
from gpssm.plots.comparison import plot_comparison
from gpssm.plots.ess import plot_ess
from gpssm.plots.forecast import plot_forecast
from gpssm.plots.linearisation import plot_bode, plot_poles, plot_response, plot_static_gain
from gpssm.plots.parameters import plot_parameters
from gpssm.plots.residuals import plot_residuals
from gpssm.plots.scores import plot_scores
from gpssm.plots.series import plot_series
from gpssm.plots.smoothed import plot_smoothed
from gpssm.plots.states import plot_states
from gpssm.plots.traces import plot_traces
from gpssm.plots.transition import plot_transition
from gpssm.plots.wiring import plot_wiring

__all__ = [
    "plot_bode",
    "plot_calibration",
    "plot_comparison",
    "plot_ess",
    "plot_forecast",
    "plot_parameters",
    "plot_poles",
    "plot_residuals",
    "plot_response",
    "plot_scores",
    "plot_series",
    "plot_smoothed",
    "plot_states",
    "plot_static_gain",
    "plot_traces",
    "plot_transition",
    "plot_wiring",
]
