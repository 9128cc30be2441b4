"""Mixing of chains: R-hat, effective sample sizes and E-BFMI of arrays (chain, draw, ...)."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float
from scipy import special, stats

Values = Float[np.ndarray | Array, "chain draw *shape"]


def rhat(values: Values) -> Float[np.ndarray, "*shape"]:
    """Return rank-normalised split R-hat.

    It is the larger of the R-hat of the values and that of their distances from the median. For a
    single chain, it compares the two halves. It is NaN for fewer than 4 draws, or 8 for a single
    chain.
    """
    if len(values) > 1:
        return _by_arviz("rhat", values)
    # arviz-stats splits at least two chains: the halves of a single chain are ranked here, and not
    # split again.
    half = values.shape[1] // 2
    halves = np.concatenate([values[:, :half], values[:, values.shape[1] - half :]])
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(
        *(_by_arviz("rhat", _normal_scores(part), method="identity") for part in (halves, folded))
    )


def ess_bulk(values: Values) -> Float[np.ndarray, "*shape"]:
    """Return the effective number of draws of the normal scores of the split chains."""
    return _by_arviz("ess", values, method="bulk")


def ess_tail(values: Values) -> Float[np.ndarray, "*shape"]:
    """Return the effective number of draws for the 5 % or 95 % quantile, the smaller of the two."""
    return _by_arviz("ess", values, method="tail", prob=(0.05, 0.95))


def bfmi(energy: Float[np.ndarray | Array, "chain draw"]) -> Float[np.ndarray, " chain"]:
    """Return Σ_n (E_n − E_{n−1})² / Σ_n (E_n − Ē)², which is small if energies change slowly."""
    return _by_arviz("bfmi", energy)


def _by_arviz(figure: str, values: Values, **settings: Any) -> Float[np.ndarray, "*shape"]:
    """Return a diagnostic of `arviz_stats`, imported lazily; R-hat and E-BFMI of constants are
    NaN.
    """
    from arviz_stats.base.array import array_stats

    compute = getattr(array_stats, figure)
    with np.errstate(invalid="ignore", divide="ignore"):
        return compute(np.asarray(values), chain_axis=0, draw_axis=1, **settings)[()]


def _normal_scores(values: Values) -> Values:
    """Return Φ⁻¹((rank − 3/8) / (N + 1/4)), with ranks over all chains together."""
    flat = values.reshape(-1, *values.shape[2:])
    ranks = stats.rankdata(flat, axis=0, nan_policy="propagate")
    return special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(values.shape)
