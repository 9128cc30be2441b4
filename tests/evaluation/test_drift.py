"""Detection of systems that change along the record."""

import numpy as np
import pytest
from scipy import stats

import gpssm
from gpssm.evaluation.checks import check_drift
from gpssm.evaluation.training import Residuals, find_drift, find_residuals

ROWS = 300


def make_series(seed, change=0.0, rows=ROWS):
    """y_{t+1} = (.8 − .2 c t/T) y_t + .5 (1 + c t/T) u_t + noise, which a change c drifts."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.uniform(-1, 1, rows), 3)[:rows]
    y = np.zeros(rows + 1)
    for t in range(rows):
        part = change * t / rows
        y[t + 1] = (0.8 - 0.2 * part) * y[t] + 0.5 * (1 + part) * u[t]
    return gpssm.Series(y[1:] + 0.03 * rng.normal(size=rows), u)


def residuals_of(series, errors):
    return Residuals(series, series.y, errors[:, None], (None,), ({},))


def test_the_test_is_that_of_the_textbook():
    """F = ((S₀ − S₁)/k) / (S₁/(n − 2k)), with both regressions by their normal equations."""
    series = make_series(0)
    rng = np.random.default_rng(1)
    errors = rng.normal(size=ROWS) + 0.4 * np.linspace(-1, 1, ROWS) * series.u[:, 0]
    errors[40:50] = np.nan
    rows = np.array([t for t in range(1, ROWS) if np.isfinite(errors[t])])
    z = np.array([[1.0, series.y[t - 1, 0], series.u[t, 0], series.u[t - 1, 0]] for t in rows])
    late = np.array([[2 * t / (ROWS - 1) - 1] for t in rows])
    squares = []
    for regressors in (z, np.hstack([z, late * z])):
        solved = np.linalg.solve(regressors.T @ regressors, regressors.T @ errors[rows])
        squares.append(np.sum((errors[rows] - regressors @ solved) ** 2))
    statistic = (squares[0] - squares[1]) / 4 / (squares[1] / (len(rows) - 8))
    (drift,) = find_drift(residuals_of(series, errors))
    assert drift.p_value == pytest.approx(stats.f.sf(statistic, 4, len(rows) - 8), rel=1e-6)
    assert drift.share == pytest.approx(1 - squares[1] / squares[0], rel=1e-6)


def test_without_drift_p_is_uniform():
    series = make_series(0)
    rng = np.random.default_rng(2)
    p_values = [
        find_drift(residuals_of(series, rng.normal(size=ROWS)))[0].p_value for _ in range(400)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_errors_that_are_the_same_everywhere_are_no_drift():
    """A model that misses an effect of the input misses it from the first row to the last."""
    series = make_series(3)
    errors = np.random.default_rng(4).normal(size=ROWS) + 2 * series.u[:, 0]
    assert not find_drift(residuals_of(series, errors))[0].found


def test_with_too_few_rows_there_is_nothing_to_say():
    series = make_series(5)
    errors = np.full(ROWS, np.nan)
    errors[:6] = 1.0
    (drift,) = find_drift(residuals_of(series, errors))
    assert (drift.p_value, drift.share) == (1.0, 0.0)


@pytest.mark.parametrize(("change", "found"), [(0.0, False), (0.5, True)])
def test_a_system_that_drifts_is_named(change, found):
    posterior = gpssm.fit(make_series(6, change), method="arx", progress=False)
    named = [check.name for check in check_drift(find_residuals(posterior))]
    assert named == (["Drift of y"] if found else [])
    assert ("The system changes along the record" in str(posterior.summary())) == found
