"""How well chains mix: R-hat, effective sample sizes and E-BFMI of arrays with axes (chain, draw, ...)."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float
from scipy import special, stats

Values = Float[np.ndarray | Array, "chain draw *shape"]


def rhat(values: Values) -> Float[np.ndarray, "*shape"]:
    """Rank-normalised split R-hat: the larger of that of the values and that of their distance from the median.

    Of one chain it compares the two halves; NaN for fewer than 4 draws, and fewer than 8 of one chain.
    """
    if len(values) > 1:
        return _by_arviz("rhat", values)
    # arviz-stats wants two chains and halves them: those that are halves already are ranked here, and not halved again.
    half = values.shape[1] // 2
    halves = np.concatenate([values[:, :half], values[:, values.shape[1] - half :]])
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(
        *(_by_arviz("rhat", _normal_scores(part), method="identity") for part in (halves, folded))
    )


def ess_bulk(values: Values) -> Float[np.ndarray, "*shape"]:
    """Effective number of draws for the middle of the distribution: that of the normal scores of the split chains."""
    return _by_arviz("ess", values, method="bulk")


def ess_tail(values: Values) -> Float[np.ndarray, "*shape"]:
    """Effective number of draws for the 5 % and 95 % quantiles, the smaller of the two."""
    return _by_arviz("ess", values, method="tail", prob=(0.05, 0.95))


def bfmi(energy: Float[np.ndarray | Array, "chain draw"]) -> Float[np.ndarray, " chain"]:
    """Σ_n (E_n − E_{n−1})² / Σ_n (E_n − Ē)²: how freely momentum draws move a chain between energies."""
    return _by_arviz("bfmi", energy)


def _by_arviz(figure: str, values: Values, **settings: Any) -> Float[np.ndarray, "*shape"]:
    """A figure of `arviz_stats`, which takes a second to import; what does not vary has R-hat and E-BFMI NaN."""
    from arviz_stats.base.array import array_stats

    with np.errstate(invalid="ignore", divide="ignore"):
        return getattr(array_stats, figure)(
            np.asarray(values), chain_axis=0, draw_axis=1, **settings
        )[()]


def _normal_scores(values: Values) -> Values:
    """Φ⁻¹((rank − 3/8) / (N + 1/4)), ranks over all chains together."""
    flat = values.reshape(-1, *values.shape[2:])
    ranks = stats.rankdata(flat, axis=0, nan_policy="propagate")
    return special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(values.shape)
