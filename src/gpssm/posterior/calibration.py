"""How much wider a posterior's intervals must be, by step ahead, and forecasts widened by it.

    y' = μ_h + s_h (y − μ_h),   s_h ≥ 1,   μ_h the mean of all paths at step h

is done to every path of a forecast, for each output: means stay, distances from them grow by s_h,
so that intervals, scores and samples agree. A component N(m, v) of the predictive mixture becomes
N(μ_h + s_h (m − μ_h), s_h² v).

A forecast stretched by s about its mean μ has the 90 % interval [μ + s (low − μ), μ + s (high −
μ)], which reaches y from the factor

    r = (y − μ) / (high − μ)  if y > μ,   (μ − y) / (μ − low)  otherwise

on. Forecasts from many origins along unseen rows give an r for each origin, step and output, and
the 90 % quantile q_h of those around step h is the factor that would have covered nine outputs in
ten. There are few of them, and forecasts that overlap err together: c origins, `spacing` rows
apart, count as

    n_h = c · min(1, 1.5 · spacing / h)

independent ones, since the errors of h-step forecasts have correlations that fall to zero over h
rows, and 1.5 rows of h is what their squares are worth. So steps are taken by octaves, h = 1, 2, 4,
..., and each octave is a compromise between what it says itself and what the one before said, which
for the first is that the model is right:

    log s_h = max(0, λ log q_h + (1 − λ) log s_{h/2}),   λ = n_h / (n_h + 3),   s_{1/2} = 1

Between octaves log s is linear in log h, and beyond the last that `FEWEST` independent forecasts
speak for, it holds. Intervals are never made narrower than the model's.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gpssm.posterior.rollout import Pair

if TYPE_CHECKING:
    from gpssm.posterior.forecast import Forecast

LEVEL = 0.9  # of the intervals that are calibrated
WORTH = 1.5  # independent squared errors of h-step forecasts in h rows
WIDTH = 0.35  # of the window around an octave, as the standard deviation of log h
TRUST = 3.0  # independent forecasts that are worth as much as what is known before
FEWEST = 2.0  # independent forecasts from which on a step counts as measured
LARGEST = 10.0  # factor
SHOWN = (1, 2, 5, 10, 20, 30, 50, 100, 200)  # steps ahead in a table


@dataclass(frozen=True, eq=False)
class Calibration:
    """Factors by step ahead and output, and the rows they were measured on.

    Parameters
    ----------
    factors : array (H, Dy)
        The factors s.
    coverage : array (H, Dy)
        Share of the outputs inside the model's own 90 % intervals.
    effective : array (H,)
        Number of independent forecasts that the overlapping ones from all origins are worth.
    origins
        Number of origins.
    rows
        Which rows they were of.
    """

    factors: Float[np.ndarray, "H Dy"]
    coverage: Float[np.ndarray, "H Dy"]
    effective: Float[np.ndarray, " H"]
    origins: int
    rows: str

    @property
    def horizon(self) -> int:
        """H, the longest step that was measured."""
        return len(self.factors)

    def at(self, steps: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N Dy"]:
        """The factors of these steps ahead, counted from 1; the last holds beyond the horizon."""
        return self.factors[np.minimum(steps, self.horizon) - 1]

    def table(self) -> list[dict[str, Any]]:
        """A table over a few steps ahead: factors, coverage without them, independent forecasts."""
        return [
            {
                "step": step,
                "factors": self.factors[step - 1].tolist(),
                "coverage": self.coverage[step - 1].tolist(),
                "effective": float(self.effective[step - 1]),
            }
            for step in sorted({step for step in SHOWN if step < self.horizon} | {self.horizon})
        ]


def stretch(
    factors: Float[np.ndarray, "H Dy"], paths: Float[np.ndarray, "S H Dy"], *mixtures: Pair | None
) -> tuple[Any, ...]:
    """Return paths, and mixtures of Gaussians, further from the mean of the paths by factors."""
    centre = np.mean(paths, axis=0)

    def widen(values: Float[np.ndarray, "S H Dy"]) -> Float[np.ndarray, "S H Dy"]:
        return centre + factors * (values - centre)

    return widen(paths), *(
        (widen(pair[0]), factors**2 * pair[1]) if pair else None for pair in mixtures
    )


class Needed(NamedTuple):
    """Factors that intervals needed to reach the outputs.

    Parameters
    ----------
    factors : array (O, H, Dy)
        r by origin and step; NaN where no output was observed.
    spacing : int
        Rows between two origins.
    """

    factors: Float[np.ndarray, "O H Dy"]
    spacing: int


def needed_factors(
    forecast: "Forecast", actual: Float[np.ndarray, "H Dy"]
) -> Float[np.ndarray, "H Dy"]:
    """The smallest factor r whose stretched 90 % interval holds the output; NaN if missing."""
    mean, (low, high) = forecast.mean, forecast.interval(LEVEL)
    away = np.abs(actual - mean)
    reach = np.where(actual > mean, high - mean, mean - low)
    factors = np.divide(away, reach, out=np.full_like(away, LARGEST), where=reach > 0)
    return np.where(np.isnan(actual), np.nan, np.minimum(factors, LARGEST))


def estimate(measured: Sequence[Needed], rows: str) -> Calibration:
    """The factors s_h of each output, from those that were needed."""
    longest = max(part.factors.shape[1] for part in measured)
    needed = np.concatenate(
        [
            np.pad(
                part.factors,
                ((0, 0), (0, longest - part.factors.shape[1]), (0, 0)),
                constant_values=np.nan,
            )
            for part in measured
        ]
    )
    steps = 1 + np.arange(longest)
    spacing = np.concatenate([np.full(len(part.factors), part.spacing) for part in measured])
    # What each origin is worth at each step, where it has any output there.
    worth = np.minimum(1.0, WORTH * spacing[:, None] / steps[None])
    effective = np.sum(np.where(np.isnan(needed).all(-1), 0.0, worth), axis=0)
    settled = np.flatnonzero(effective >= FEWEST)
    if not settled.size:
        raise ValueError(f"calibrate found too few outputs to forecast in {rows}: give more rows")
    horizon = int(settled[-1]) + 1
    columns = [_curve(needed[..., j], worth, horizon) for j in range(needed.shape[-1])]
    covered = np.where(np.isnan(needed), np.nan, needed <= 1)[:, :horizon]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a step without any output has no coverage
        coverage = np.nanmean(covered, axis=0)
    return Calibration(np.stack(columns, axis=-1), coverage, effective[:horizon], len(needed), rows)


def _curve(
    needed: Float[np.ndarray, "O H"], worth: Float[np.ndarray, "O H"], horizon: int
) -> Float[np.ndarray, " horizon"]:
    """s_h of one output."""
    observed = ~np.isnan(needed)
    steps = 1 + np.arange(needed.shape[1])
    effective = np.sum(np.where(observed, worth, 0.0), axis=0)
    values, weights = needed[observed], worth[observed]
    places = np.log(np.broadcast_to(steps, needed.shape)[observed])
    octaves, logs, before = octaves_to(horizon), [], 0.0
    for middle in np.log(octaves):
        near = np.exp(-0.5 * ((places - middle) / WIDTH) ** 2) * weights
        window = np.exp(-0.5 * ((np.log(steps) - middle) / WIDTH) ** 2)
        number = np.sum(window * effective) / np.sum(window)
        if number > 0:
            share = number / (number + TRUST)
            factor = max(weighted_quantile(values, near, LEVEL), 1 / LARGEST)
            before = max(0.0, share * np.log(factor) + (1 - share) * before)
        logs.append(before)
    return np.exp(np.interp(np.log(1 + np.arange(horizon)), np.log(octaves), logs))


def octaves_to(horizon: int) -> Int[np.ndarray, " K"]:
    """1, 2, 4, ... and the last step, which takes the place of an octave just before it."""
    powers = 2 ** np.arange(int(np.log2(horizon)) + 1)
    return np.array([*powers[powers < horizon / np.sqrt(2)], horizon]) if horizon > 1 else powers


def weighted_quantile(
    values: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"], share: float
) -> float:
    """The value below which this share of the weight lies.

    It is interpolated between the middles of the weights.
    """
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    return float(np.interp(share * np.sum(weights), np.cumsum(weights) - weights / 2, values))
