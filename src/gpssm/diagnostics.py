"""Convergence of a run: R-hat and effective sample sizes."""

from gpssm.core.mixing import (
    bfmi,
    ess_bulk,
    ess_tail,
    rhat,
)
from gpssm.posterior.diagnostics import (
    Diagnostics,
    Row,
    diagnose,
    forecast_mean,
    is_precise,
)

__all__ = [
    "Diagnostics",
    "Row",
    "bfmi",
    "diagnose",
    "ess_bulk",
    "ess_tail",
    "forecast_mean",
    "is_precise",
    "rhat",
]
