"""Calibration: factors for the width of intervals by step ahead, and widened forecasts.

    y' = μ_h + s_h (y − μ_h),   s_h ≥ 1,   μ_h the mean of all paths at step h

is applied to every path of a forecast, for each output: means do not change, and distances from
them grow by s_h, so intervals, scores and samples are consistent. A component N(m, v) of the
predictive mixture becomes N(μ_h + s_h (m − μ_h), s_h² v).

A forecast stretched by s about its mean μ has the 90 % interval [μ + s (low − μ), μ + s (high −
μ)], which contains y if s is at least

    r = (y − μ) / (high − μ)  if y > μ,   (μ − y) / (μ − low)  otherwise

Forecasts from many origins along held-out rows give an r for each origin, step and output, and the
90 % quantile q_h of the values around step h is the factor that would have covered nine outputs in
ten. There are few values, and errors of overlapping forecasts are correlated: c origins, `spacing`
rows apart, count as

    n_h = c · min(1, 1.5 · spacing / h)

independent forecasts, since the correlations of h-step errors fall to zero over h rows, and those
of their squares correspond to h / 1.5 rows. Steps are grouped by octaves, h = 1, 2, 4, ..., and
each octave is shrunk towards the previous one, the first towards the model:

    log s_h = max(0, λ log q_h + (1 − λ) log s_{h/2}),   λ = n_h / (n_h + 3),   s_{1/2} = 1

Between octaves, log s is linear in log h. Beyond the last octave with `FEWEST` independent
forecasts, it is constant. Intervals are never narrower than those of the model.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from gpssm.posterior.forecast import Forecast

LEVEL = 0.9  # level of the calibrated intervals
TRUST = 3.0  # weight of the prior in independent forecasts
FEWEST = 2.0  # minimum number of independent forecasts for an estimate
LARGEST = 10.0  # factor


@dataclass(frozen=True, eq=False)
class Calibration:
    """Factors by step ahead and output, and the rows from which they were estimated.

    Parameters
    ----------
    factors : array (H, Dy)
        The factors s.
    coverage : array (H, Dy)
        Share of the outputs inside the uncalibrated 90 % intervals.
    effective : array (H,)
        Effective number of independent forecasts by step ahead.
    origins
        Number of origins.
    rows
        Description of the rows.
    """

    factors: Float[np.ndarray, "H Dy"]
    coverage: Float[np.ndarray, "H Dy"]
    effective: Float[np.ndarray, " H"]
    origins: int
    rows: str

    def __repr__(self) -> str:
        low, high = self.factors.min(), self.factors.max()
        return f"Calibration(factors {low:.3g} to {high:.3g}, {self.horizon} steps, {self.rows})"

    @property
    def horizon(self) -> int:
        """H, the largest number of steps ahead."""
        return len(self.factors)

    @property
    def covered(self) -> Float[np.ndarray, " Dy"]:
        """Share of each output inside the uncalibrated 90 % intervals, over all steps ahead."""
        with warnings.catch_warnings(action="ignore"):  # an output may be missing
            return np.nanmean(self.coverage, axis=0)

    def at(self, steps: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N Dy"]:
        """Return the factors of these steps ahead, counted from 1; beyond the horizon, the last
        factor."""
        return self.factors[np.minimum(steps, self.horizon) - 1]

    def table(self) -> list[dict[str, Any]]:
        """Return a table by steps ahead: factors, coverage without them, independent forecasts."""
        shown = (1, 2, 5, 10, 20, 30, 50, 100, 200)
        return [
            {
                "step": step,
                "factors": self.factors[step - 1].tolist(),
                "coverage": self.coverage[step - 1].tolist(),
                "effective": float(self.effective[step - 1]),
            }
            for step in sorted({step for step in shown if step < self.horizon} | {self.horizon})
        ]


def needed_factors(
    forecast: "Forecast", actual: Float[np.ndarray, "H Dy"]
) -> Float[np.ndarray, "H Dy"]:
    """Return the smallest factor r whose 90 % interval contains the output; NaN if missing."""
    mean, (low, high) = forecast.mean, forecast.interval(LEVEL)
    away = np.abs(actual - mean)
    reach = np.where(actual > mean, high - mean, mean - low)
    factors = np.divide(away, reach, out=np.full_like(away, LARGEST), where=reach > 0)
    return np.where(np.isnan(actual), np.nan, np.minimum(factors, LARGEST))


def estimate(measured: Sequence[tuple[Float[np.ndarray, "O H Dy"], int]], rows: str) -> Calibration:
    """Estimate the factors s_h of each output from the needed factors.

    Parameters
    ----------
    measured
        The factors r by origin, step and output, NaN where no output was observed, and the number
        of rows between two origins.
    rows
        Description of the rows.
    """
    longest = max(factors.shape[1] for factors, _ in measured)
    padded = [
        np.pad(factors, ((0, 0), (0, longest - factors.shape[1]), (0, 0)), constant_values=np.nan)
        for factors, _ in measured
    ]
    needed = np.concatenate(padded)
    steps = 1 + np.arange(longest)
    spacing = np.concatenate([np.full(len(factors), step) for factors, step in measured])
    # The weight of each origin at each step with an output.
    worth = np.minimum(1.0, 1.5 * spacing[:, None] / steps[None])
    effective = np.sum(np.where(np.isnan(needed).all(-1), 0.0, worth), axis=0)
    settled = np.flatnonzero(effective >= FEWEST)
    if not settled.size:
        raise ValueError(f"too few outputs for calibration in {rows}: pass more rows")
    horizon = int(settled[-1]) + 1
    columns = [_curve(needed[..., j], worth, horizon) for j in range(needed.shape[-1])]
    covered = np.where(np.isnan(needed), np.nan, needed <= 1)[:, :horizon]
    with warnings.catch_warnings(action="ignore"):  # steps without any output have no coverage
        coverage = np.nanmean(covered, axis=0)
    return Calibration(np.stack(columns, axis=-1), coverage, effective[:horizon], len(needed), rows)


def _curve(
    needed: Float[np.ndarray, "O H"], worth: Float[np.ndarray, "O H"], horizon: int
) -> Float[np.ndarray, " horizon"]:
    """Return s_h for one output."""
    observed = ~np.isnan(needed)
    steps = 1 + np.arange(needed.shape[1])
    effective = np.sum(np.where(observed, worth, 0.0), axis=0)
    values, weights = needed[observed], worth[observed]
    places = np.log(np.broadcast_to(steps, needed.shape)[observed])
    octaves = octaves_to(horizon)
    width = 0.35  # of the window around an octave, as the standard deviation of log h
    logs = []
    before = 0.0
    for middle in np.log(octaves):
        near = np.exp(-0.5 * ((places - middle) / width) ** 2) * weights
        window = np.exp(-0.5 * ((np.log(steps) - middle) / width) ** 2)
        number = np.sum(window * effective) / np.sum(window)
        if number > 0:
            share = number / (number + TRUST)
            factor = max(weighted_quantile(values, near, LEVEL), 1 / LARGEST)
            before = max(0.0, share * np.log(factor) + (1 - share) * before)
        logs.append(before)
    return np.exp(np.interp(np.log(1 + np.arange(horizon)), np.log(octaves), logs))


def octaves_to(horizon: int) -> Int[np.ndarray, " K"]:
    """Return 1, 2, 4, ... and the last step, which replaces an octave just before it."""
    powers = 2 ** np.arange(int(np.log2(horizon)) + 1)
    return np.array([*powers[powers < horizon / np.sqrt(2)], horizon]) if horizon > 1 else powers


def weighted_quantile(
    values: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"], share: float
) -> float:
    """Return the value below which this share of the weight lies.

    It is interpolated between the midpoints of the weights.
    """
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    return float(np.interp(share * np.sum(weights), np.cumsum(weights) - weights / 2, values))
