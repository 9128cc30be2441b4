"""The free-form posterior log q*(v, x), its collapsed form log q*(x), and its Feynman-Kac forms."""

from gpssm.model.target import (
    feynman_kac,
    feynman_kac_predictive,
    log_boundary,
    log_collapsed,
    log_evidence,
    log_target,
    noise_squares,
    transition_statistics,
    weights_given,
    weights_given_states,
)

__all__ = [
    "feynman_kac",
    "feynman_kac_predictive",
    "log_boundary",
    "log_collapsed",
    "log_evidence",
    "log_target",
    "noise_squares",
    "transition_statistics",
    "weights_given",
    "weights_given_states",
]
