"""Scores of forecasts: errors, CRPS, log scores, coverage."""

from gpssm.core.metrics import (
    central_interval,
    coverage,
    crps,
    energy_score,
    fair_crps,
    fit_percent,
    interval_width,
    log_density,
    mae,
    nlpd,
    nmll_paper,
    nrmse,
    pit,
    rmse,
    score,
    score_outputs,
)

__all__ = [
    "central_interval",
    "coverage",
    "crps",
    "energy_score",
    "fair_crps",
    "fit_percent",
    "interval_width",
    "log_density",
    "mae",
    "nlpd",
    "nmll_paper",
    "nrmse",
    "pit",
    "rmse",
    "score",
    "score_outputs",
]
