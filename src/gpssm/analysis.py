"""Further functions of posteriors: control, physics, long records, evaluation."""

from gpssm.evaluation.design import informative
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.draws import model_of, stored_rows
from gpssm.posterior.explore import unknown
from gpssm.posterior.linearisation import relevance, static_gain
from gpssm.posterior.mean_model import mean_state

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
