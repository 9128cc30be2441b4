"""Scores of forecasts: accuracy of the mean, proper scores, calibration of intervals.

All functions use the same shapes: actual outputs y (H, Dy) in the user's units, NaN if missing; a
point forecast, mean (H, Dy); and paths (S, H, Dy), S draws from the predictive distribution. With
one output, the last axis may be omitted. Each function returns the average over all observed
entries as a float; with `by_step=True`, it returns an array (H,), the average over the outputs
observed at each step, NaN if there are none. Lower is better, except for `fit_percent`.

Outputs in different units cannot be averaged. Score them separately by `score_outputs`, or in units
of a `scale` (Dy,), usually the standard deviations of the training outputs: `nrmse` and `ncrps` of
`score`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from gpssm.core.text import check_shares

Score = float | Float[np.ndarray, " H"]
Entries = Float[np.ndarray, "H Dy"]
Paths = Float[np.ndarray, "S H Dy"]
Moments = tuple[ArrayLike, ArrayLike] | None
Levels = Sequence[float]
LEVELS = (0.5, 0.8, 0.9)
BLOCK = 2**20  # distances in memory at a time for the energy score: 8 MB


def rmse(mean: ArrayLike, y: ArrayLike, *, scale: ArrayLike = 1.0, by_step: bool = False) -> Score:
    """Root mean squared error, √ mean ((y − mean) / scale)²; a scale may be one per output."""
    return _average((_errors(mean, y) / np.asarray(scale)) ** 2, by_step) ** 0.5


def nrmse(mean: ArrayLike, y: ArrayLike, reference: ArrayLike, *, by_step: bool = False) -> Score:
    """Root mean squared error relative to a reference, √ mean ((y − mean) / std(reference))².

    `reference` (N, Dy) are data, usually the training outputs; each output is divided by its
    standard deviation.
    """
    spread, width = _spread(_outputs(reference, "reference")), _outputs(y).shape[1]
    if len(spread) != width or not spread.all():
        raise ValueError(
            f"reference must have the {width} outputs of y, all varying; their std is {spread}"
        )
    return rmse(mean, y, scale=spread, by_step=by_step)


def mae(mean: ArrayLike, y: ArrayLike, *, by_step: bool = False) -> Score:
    """Mean absolute error, mean |y − mean|."""
    return _average(np.abs(_errors(mean, y)), by_step)


def fit_percent(mean: ArrayLike, y: ArrayLike) -> float:
    """The "fit %" of system identification, 100 (1 − ‖y − mean‖ / ‖y − ȳ‖), averaged over outputs.

    100 is perfect, 0 equals forecasting the average ȳ of the actual outputs. It is undefined for an
    output whose observed values are all equal: such outputs are ignored, and the result is NaN if
    there are no others.
    """
    errors, spread = _errors(mean, y), _spread(_outputs(y))
    varies = spread > 0
    ratio = np.nanmean(errors[:, varies] ** 2, axis=0) ** 0.5 / spread[varies]
    return float(100 * (1 - np.mean(ratio))) if varies.any() else np.nan


def nlpd(
    paths_mean: ArrayLike, paths_variance: ArrayLike, y: ArrayLike, *, by_step: bool = False
) -> Score:
    """Negative log predictive density of a mixture, −mean log (1/S) Σ_s N(y; m_s, v_s).

    Means and variances are (S, H, Dy), one component per draw. Each output has a separate marginal
    mixture, and the average is over entries; multiply by Dy for the sum over outputs. A change of
    units by a factor c adds log c.
    """
    densities = _log_densities(paths_mean, paths_variance, y)
    return _average(np.log(len(densities)) - logsumexp(densities, axis=0), by_step)


def nmll_paper(
    mean: ArrayLike, variance: ArrayLike, y: ArrayLike, *, by_step: bool = False
) -> Score:
    """The "NMLL" of Fan et al. (2023), −mean (1/S) Σ_s log N(y; m_s, v_s), arrays (S, H, Dy).

    It averages log densities, whereas `nlpd` averages densities, so it is never below `nlpd`
    (Jensen's inequality) and is not a score of the mixture: it penalises differences between draws
    even if their mixture is calibrated. Use it only for comparison with published figures.
    """
    return _average(-np.mean(_log_densities(mean, variance, y), axis=0), by_step)


def crps(paths: ArrayLike, y: ArrayLike, *, scale: ArrayLike = 1.0, by_step: bool = False) -> Score:
    """Continuous ranked probability score, (E|X − y| − ½ E|X − X′|) / scale, in O(S log S).

    The fair estimator, Σ_s |x_s − y| / S − Σ_sr |x_s − x_r| / (2S(S−1)), is unbiased for any number
    of independent paths; with S² instead of S(S−1), more paths would seem better. It can be
    negative if S is small.
    """
    y = _outputs(y)
    return _average(fair_crps(_forecast(paths, y, fewest=2) - y) / np.asarray(scale), by_step)


def energy_score(
    paths: ArrayLike, y: ArrayLike, *, joint: bool = False, by_step: bool = False
) -> Score:
    """Energy score E‖X − y‖ − ½ E‖X − X′‖, the multivariate CRPS, by the same fair estimator.

    The vectors are all outputs of one step, averaged over steps; with `joint=True`, the whole
    horizon is one vector of H·Dy entries, which includes the dependence between steps and grows
    like √H. Missing entries are ignored. The score depends on the units of the outputs: rescale
    them first if they differ. Time is O(S²), memory is bounded.
    """
    y = _outputs(y)
    observed, deviations = ~np.isnan(y), _forecast(paths, y, fewest=2) - y
    if joint and by_step:
        raise ValueError("joint=True returns one score for all steps: omit joint or by_step=True")
    if joint:
        return _fair_energy(deviations[:, observed])
    if y.shape[1] == 1:
        return _average(fair_crps(deviations), by_step)
    steps = [
        [_fair_energy(deviations[:, t, row]) if row.any() else np.nan]
        for t, row in enumerate(observed)
    ]
    return _average(np.array(steps), by_step)


def central_interval(paths: ArrayLike, level: float = 0.9) -> tuple[Entries, Entries]:
    """Lower and upper limits (H, Dy) of the central interval: quantiles (1 ∓ level)/2 of paths.

    The level is a fraction between 0 and 1.

    Quantile p is order statistic p (S + 1), interpolated, so that a value from the same
    distribution falls inside with probability `level` from S ≥ (1 + level) / (1 − level) on;
    NumPy's default makes it about level (S − 1) / (S + 1).
    """
    (level,) = check_shares("level", [level])
    ends = (1 - level) / 2, (1 + level) / 2
    lower, upper = np.quantile(_forecast(paths, None, fewest=2), ends, axis=0, method="weibull")
    return lower, upper


def coverage(paths: ArrayLike, y: ArrayLike, level: float = 0.9, *, by_step: bool = False) -> Score:
    """Share of observed entries inside the central interval; close to `level` if calibrated."""
    y = _outputs(y)
    lower, upper = central_interval(_forecast(paths, y, fewest=2), level)
    return _average(np.where(np.isnan(y), np.nan, (lower <= y) & (y <= upper)), by_step)


def interval_width(paths: ArrayLike, level: float = 0.9, *, by_step: bool = False) -> Score:
    """Width of the central interval of that level, averaged over all entries."""
    lower, upper = central_interval(paths, level)
    return _average(upper - lower, by_step)


def pit(paths: ArrayLike, y: ArrayLike) -> Entries:
    """Probability integral transform (H, Dy), (rank of y among the paths + ½) / (S + 1).

    The rank counts paths below y, and half of the paths equal to y. Values are in (0, 1) and
    uniform if forecasts are calibrated.
    """
    y = _outputs(y)
    paths = _forecast(paths, y)
    rank = np.sum((paths < y) + 0.5 * (paths == y), axis=0)
    return np.where(np.isnan(y), np.nan, (rank + 0.5) / (len(paths) + 1))


def score(
    paths: ArrayLike,
    y: ArrayLike,
    *,
    levels: Levels = LEVELS,
    moments: Moments = None,
    mixture: Moments = None,
    scale: ArrayLike | None = None,
) -> dict[str, float]:
    """All scores: rmse, mae, fit, nlpd, nmll_paper, crps, energy, coverage_90, width_90, ...

    The first three are for the mean of the paths. `moments` and `mixture` are pairs (mean,
    variance), each (S, H, Dy): `moments` of the outputs given the states, for `nmll_paper`, which
    is NaN without them; `mixture`, by default the same, are the components of the predictive
    distribution. Without either, `nlpd` is computed by `log_density`, which is noisier. With
    `scale` (Dy,), the standard deviations of the training outputs, the result includes `nrmse` and
    `ncrps`, RMSE and CRPS in these units, which are suitable for ranking if outputs have different
    units.
    """
    paths = _forecast(paths, y := _outputs(y), fewest=2)
    mean = paths.mean(0)
    figures: dict[str, Score] = {
        "rmse": rmse(mean, y),
        "mae": mae(mean, y),
        "fit": fit_percent(mean, y),
    }
    components = mixture or moments
    if components:
        figures["nlpd"] = nlpd(*components, y)
    else:
        figures["nlpd"] = float(-np.mean(log_density(paths, y)[~np.isnan(y)]))
    figures["nmll_paper"] = np.nan if moments is None else nmll_paper(*moments, y)
    figures |= {"crps": crps(paths, y), "energy": energy_score(paths, y)}
    for level in check_shares("level", levels):
        figures[f"coverage_{100 * level:g}"] = coverage(paths, y, level)
        figures[f"width_{100 * level:g}"] = interval_width(paths[:, ~np.isnan(y)], level)
    if scale is not None:
        figures |= {"nrmse": rmse(mean, y, scale=scale), "ncrps": crps(paths, y, scale=scale)}
    return {name: float(figure) for name, figure in figures.items()}


def score_outputs(
    paths: ArrayLike,
    y: ArrayLike,
    names: Sequence[str],
    *,
    moments: Moments = None,
    mixture: Moments = None,
    scale: ArrayLike | None = None,
    **settings: Any,
) -> dict[str, dict[str, float]]:
    """Return `score` for each output by name; unobserved outputs are left out."""
    paths, y = _forecast(paths, None), _outputs(y)

    def of(pair: Moments, j: int) -> Moments:
        return None if pair is None else (np.asarray(pair[0])[..., j], np.asarray(pair[1])[..., j])

    return {
        name: score(
            paths[..., j],
            y[:, j],
            moments=of(moments, j),
            mixture=of(mixture, j),
            scale=None if scale is None else np.asarray(scale)[j],
            **settings,
        )
        for j, name in enumerate(names)
        if not np.isnan(y[:, j]).all()
    }


def log_density(paths: ArrayLike, y: ArrayLike) -> Entries:
    """log p(y) (H, Dy) of a density estimate: Gaussians of Silverman's bandwidth around paths.

    Quartiles make the bandwidth robust to outlying paths. If all paths are equal, the result is
    NaN.
    """
    paths = _forecast(paths, y := _outputs(y), fewest=2)
    low, high = np.quantile(paths, (0.25, 0.75), axis=0)
    std = np.std(paths, axis=0, ddof=1) * (
        np.ptp(paths, axis=0) > 0
    )  # rounding errors do not count as spread
    spread = np.where(high > low, np.minimum(std, (high - low) / 1.34), std)
    bandwidth = np.where(spread > 0, 1.06 * spread * len(paths) ** -0.2, np.nan)
    densities = -0.5 * (np.log(2 * np.pi * bandwidth**2) + ((y - paths) / bandwidth) ** 2)
    return logsumexp(densities, axis=0) - np.log(len(paths))


def _log_densities(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> Paths:
    """Return log N(y; mean, variance), (S, H, Dy), NaN where y is missing."""
    y = _outputs(y)
    mean, variance = _forecast(mean, y, "mean"), _forecast(variance, y, "variance")
    if mean.shape != variance.shape or not (variance > 0).all():
        raise ValueError(
            f"variance must be positive and have the shape of mean, {mean.shape}; got "
            f"{variance.shape}, smallest value {np.min(variance):g}"
        )
    return -0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)


def _fair_energy(deviations: Float[np.ndarray, "S D"]) -> float:
    """Return the score of one vector from x − y, computed in blocks of distances."""
    count = len(deviations)
    rows = max(1, BLOCK // count)
    between = sum(
        cdist(deviations[start : start + rows], deviations).sum() for start in range(0, count, rows)
    )
    return float(np.mean(np.linalg.norm(deviations, axis=1)) - between / (2 * count * (count - 1)))


def _average(entries: Entries, by_step: bool) -> Score:
    """Return the mean of the entries that are not NaN, over all entries or by step."""
    if not by_step:
        return float(np.nanmean(entries))
    count = np.sum(~np.isnan(entries), axis=1)
    return np.divide(
        np.nansum(entries, axis=1), count, out=np.full(len(count), np.nan), where=count > 0
    )


def _errors(mean: ArrayLike, y: ArrayLike) -> Entries:
    """Return y − mean, NaN where y is missing."""
    y = _outputs(y)
    return y - _forecast(mean, y, "mean", axes=2)


def _spread(y: Entries) -> Float[np.ndarray, " Dy"]:
    """Return the standard deviation of each output over its observed entries; 0 if all are
    equal.
    """
    columns = (column[~np.isnan(column)] for column in y.T)
    return np.array([np.std(column) if np.unique(column).size > 1 else 0.0 for column in columns])


def _outputs(y: ArrayLike, name: str = "y") -> Entries:
    """Return the actual outputs as (H, Dy), after checking that at least one entry is observed."""
    values = _columns(y, name, 2)
    infinite, missing = np.sum(np.isinf(values)), np.sum(np.isnan(values))
    if infinite or missing == values.size:
        raise ValueError(
            f"{name} must be finite, or NaN where missing, and observed at least once; of "
            f"{values.size} entries {infinite} are infinite, {missing} missing"
        )
    return values


def _forecast(
    values: ArrayLike, y: Entries | None, name: str = "paths", axes: int = 3, fewest: int = 1
) -> np.ndarray:
    """Return a forecast of y as a finite array (H, Dy), or (S, H, Dy) with S ≥ fewest."""
    array = _columns(values, name, axes)
    if y is not None and array.shape[-2:] != y.shape:
        expected = f"({'S, ' * (axes - 2)}{y.shape[0]}, {y.shape[1]})"
        raise ValueError(
            f"{name} must have the shape {expected}, as y is {y.shape}; got {array.shape}"
        )
    if len(array) < fewest:
        raise ValueError(
            f"{name} must have at least {fewest} draws along its first axis; got {len(array)}"
        )
    if bad := int(np.sum(~np.isfinite(array))):
        raise ValueError(f"{name} must be finite; {bad} of {array.size} values are NaN or infinite")
    return array


def _columns(values: ArrayLike, name: str, axes: int) -> np.ndarray:
    """Return a float array with this number of axes; one axis fewer means one output."""
    try:
        array = np.asarray(values, dtype=float)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be an array of numbers; got {type(values).__name__}: {error}"
        ) from None
    array = array[..., None] if array.ndim == axes - 1 else array
    if array.ndim != axes:
        shapes = "(H, Dy) or (H,)" if axes == 2 else "(S, H, Dy) or (S, H)"
        raise ValueError(f"{name} must have the shape {shapes}; got {np.shape(values)}")
    return array


def fair_crps(deviations: Float[np.ndarray, "S H Dy"]) -> Float[np.ndarray, "H Dy"]:
    """Return E|X − y| − ½ E|X − X′| of each entry from x − y, unbiased for independent paths.

    Σ_{s<r} |x_s − x_r| = Σ_s (2s − S − 1) x₍ₛ₎ with x₍ₛ₎ in ascending order, divided by S(S − 1).
    """
    count = len(deviations)
    weights = (2 * np.arange(1, count + 1) - count - 1) / (count * (count - 1))
    return np.mean(np.abs(deviations), axis=0) - np.tensordot(
        weights, np.sort(deviations, axis=0), axes=1
    )
