"""Bases, in which a transition is linear in whitened Gaussian weights: f | v ~ N(m + A v, B)."""

from gpssm.model.bases import (
    BASES,
    Apart,
    Basis,
    CommonPoints,
    Factored,
    FeaturePoints,
    Hilbert,
    InducingPoints,
    Informed,
    LinearFeatures,
    MixedPoints,
    RandomFourier,
    Stacked,
    parts_of,
)

__all__ = [
    "BASES",
    "Apart",
    "Basis",
    "CommonPoints",
    "Factored",
    "FeaturePoints",
    "Hilbert",
    "InducingPoints",
    "Informed",
    "LinearFeatures",
    "MixedPoints",
    "RandomFourier",
    "Stacked",
    "parts_of",
]
