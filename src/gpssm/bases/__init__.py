"""The registry of bases: names for configuration files, classes for code."""

from gpssm.bases.base import Basis, Projection, Projector, Stacked, parts_of
from gpssm.bases.fourier import RandomFourier
from gpssm.bases.hilbert import Hilbert, total_degree_indices
from gpssm.bases.inducing import InducingPoints
from gpssm.bases.linear import LinearFeatures

BASES: dict[str, type[Basis]] = {
    "inducing": InducingPoints,
    "hilbert": Hilbert,
    "fourier": RandomFourier,
    "linear": LinearFeatures,
    "stacked": Stacked,
}

__all__ = [
    "BASES",
    "Basis",
    "Hilbert",
    "InducingPoints",
    "LinearFeatures",
    "Projection",
    "Projector",
    "RandomFourier",
    "Stacked",
    "parts_of",
    "total_degree_indices",
]
