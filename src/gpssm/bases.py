"""Bases, in which a transition is linear in whitened Gaussian weights: f | v ~ N(m + A v, B)."""

from gpssm.model.bases import (
    BASES,
    Basis,
    BlockDiagonal,
    CoregionalisedPoints,
    FeaturePoints,
    Hilbert,
    InducingPoints,
    Informed,
    LeadingPoints,
    LinearFeatures,
    RandomFourier,
    Stacked,
    parts_of,
)

__all__ = [
    "BASES",
    "Basis",
    "BlockDiagonal",
    "CoregionalisedPoints",
    "FeaturePoints",
    "Hilbert",
    "InducingPoints",
    "Informed",
    "LeadingPoints",
    "LinearFeatures",
    "RandomFourier",
    "Stacked",
    "parts_of",
]
