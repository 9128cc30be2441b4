"""Further functions of posteriors: control, physics, long records, evaluation."""

from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.control import informative, mean_state
from gpssm.posterior.draws import model_of, stored_rows
from gpssm.posterior.dynamics import relevance, static_gain, unknown

__all__ = [
    "condition_at",
    "informative",
    "mean_state",
    "model_of",
    "relevance",
    "static_gain",
    "stored_rows",
    "unknown",
]
