"""Priors of the parameters of a model."""

from gpssm.model.priors import (
    InverseGamma,
    Normal,
    Prior,
    default_prior,
)

__all__ = [
    "InverseGamma",
    "Normal",
    "Prior",
    "default_prior",
]
