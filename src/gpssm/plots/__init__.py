"""Figures of data, forecasts and posteriors; each function returns a matplotlib `Figure`.

    gpssm.plots.plot_forecast(posterior.forecast(u=test.u), actual=test).savefig("forecast.pdf")

They need matplotlib (`pip install matplotlib`), but neither pyplot nor a display.
"""

from gpssm.plots.forecasts import (
    plot_backtest,
    plot_calibration,
    plot_comparison,
    plot_forecast,
    plot_orders,
    plot_series,
)
from gpssm.plots.posteriors import (
    plot_bode,
    plot_poles,
    plot_residuals,
    plot_response,
    plot_smoothed,
    plot_states,
    plot_static_gain,
    plot_traces,
    plot_transition,
)

__all__ = [
    "plot_backtest",
    "plot_bode",
    "plot_calibration",
    "plot_comparison",
    "plot_forecast",
    "plot_orders",
    "plot_poles",
    "plot_residuals",
    "plot_response",
    "plot_series",
    "plot_smoothed",
    "plot_states",
    "plot_static_gain",
    "plot_traces",
    "plot_transition",
]
