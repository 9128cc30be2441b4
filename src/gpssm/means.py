"""Mean functions of the transition."""

from gpssm.model.means import (
    LSTM,
    MEANS,
    Curved,
    Function,
    Identity,
    LinearMap,
    Mean,
    PhysicsMean,
    Shifted,
    Wired,
    Zero,
)

__all__ = [
    "LSTM",
    "MEANS",
    "Curved",
    "Function",
    "Identity",
    "LinearMap",
    "Mean",
    "PhysicsMean",
    "Shifted",
    "Wired",
    "Zero",
]
