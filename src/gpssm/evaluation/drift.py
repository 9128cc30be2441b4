"""Test whether the system changes along the record, by a regression of one-step errors.

    e_t = (a + b τ_t)·z_t + ε_t,  z_t = [1, y_{t−1}, u_t, u_{t−1}],  −1 ≤ τ_t ≤ 1 along the record

If the model is valid throughout, b = 0. If a coefficient of the system drifts, errors grow with the
regressors towards both ends of the record, with opposite signs: b ≠ 0. A model that is wrong in the
same way everywhere has a ≠ 0 and b = 0, and is not mistaken for a drift. A drift is reported only
if the F-test of b = 0 is significant and b explains enough of the errors' variance, because in long
records the test detects effects that are too small to matter.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.text import percent
from gpssm.evaluation.residuals import Residuals
from gpssm.posterior.checks import Check

SIGNIFICANT = 0.001
MATTERS = 0.1  # minimum share of the variance of one-step errors


class Drift(NamedTuple):
    """The test of one output: the p-value of b = 0, and the share of the variance that b
    explains."""

    p_value: float
    share: float

    @property
    def found(self) -> bool:
        """Whether the drift is significant and large enough to matter."""
        return self.p_value < SIGNIFICANT and self.share > MATTERS


def find_drift(residuals: Residuals) -> list[Drift]:
    """Test each output; no drift is reported if too few rows were observed.

    Parameters
    ----------
    residuals
        One-step errors along a training series.
    """
    series = residuals.series
    drivers = np.hstack([_earlier(series.y), series.u, _earlier(series.u)])
    spread = np.nanstd(drivers, 0)
    drivers = (drivers - np.nanmean(drivers, 0)) / np.where(spread > 0, spread, 1.0)
    regressors = np.hstack([np.ones((len(series), 1)), drivers])
    late = np.linspace(-1, 1, len(series))[:, None]
    tests = []
    for errors in residuals.values.T:
        rows = np.isfinite(errors) & np.isfinite(regressors).all(1)
        constant = _least_squares(regressors[rows], errors[rows])
        changing = _least_squares(np.hstack([regressors, late * regressors])[rows], errors[rows])
        tests.append(_compare(constant, changing, int(rows.sum())))
    return tests


def check_drift(residuals: Residuals) -> Iterator[Check]:
    """Name the outputs whose one-step errors change along the record."""
    for output, drift in zip(residuals.series.outputs, find_drift(residuals), strict=True):
        if drift.found:
            yield Check(
                f"Drift of {output}",
                "caution",
                f"{percent(drift.share)} of the variance of one-step errors",
                "The system changes along the record: fit only its recent rows, or let the model "
                "forget old ones, posterior.learn(rows, forgetting='auto').",
                "training rows, one step ahead",
            )


def _earlier(values: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T D"]:
    """Return the values of the previous row, NaN for the first row."""
    return np.vstack([np.full((1, values.shape[1]), np.nan), values[:-1]])


class _Regression(NamedTuple):
    """Sum of squared residuals and rank of a least-squares regression."""

    squares: float
    rank: int


def _least_squares(
    regressors: Float[np.ndarray, "N K"], errors: Float[np.ndarray, " N"]
) -> _Regression:
    coefficients, _, rank, _ = np.linalg.lstsq(regressors, errors, rcond=1e-6)
    return _Regression(float(np.sum((errors - regressors @ coefficients) ** 2)), int(rank))


def _compare(constant: _Regression, changing: _Regression, rows: int) -> Drift:
    """Return the F-test of the additional coefficients of the second regression."""
    added = changing.rank - constant.rank
    freedom = rows - changing.rank
    gain = constant.squares - changing.squares
    if added < 1 or freedom < 1 or gain <= 0:
        return Drift(1.0, 0.0)
    statistic = gain / added / (changing.squares / freedom)
    return Drift(float(stats.f.sf(statistic, added, freedom)), gain / constant.squares)
