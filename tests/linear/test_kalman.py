"""The filter and forecasts in NumPy against dense conditioning, and against the literal filter of the tests."""

import numpy as np
import pytest

import kalman as literal
from gpssm.data.series import Series
from gpssm.linear import kalman
from gpssm.linear.arx import Regression, to_state_space
from gpssm.linear.state_space import LinearSSM
from gpssm.methods.linear import as_linear
from linear_systems import simulate


def make_ssm(states=3, outputs=2, inputs=2, seed=0, radius=0.9):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(states, states))
    root = rng.normal(size=(states, states)) / np.sqrt(states)
    return LinearSSM(
        A * radius / np.abs(np.linalg.eigvals(A)).max(),
        rng.normal(size=(states, inputs)),
        rng.normal(size=states),
        rng.normal(size=(outputs, states)),
        rng.normal(size=outputs),
        0.1 * (root @ root.T + 0.2 * np.eye(states)),
        0.2 + 0.3 * rng.random(outputs),
    )


def make_arx(seed=3):
    """A stable regression of two outputs, whose errors are correlated, in state-space form."""
    rng = np.random.default_rng(seed)
    outputs, inputs = 0.2 * rng.normal(size=(3, 2, 2)), rng.normal(size=(2, 2, 1))
    covariance = np.array([[0.3, 0.1], [0.1, 0.2]])
    return to_state_space(Regression(outputs, inputs, rng.normal(size=2), covariance))


def joint(ssm, u):
    """Mean and covariance of all states and outputs of T rows, one after the other, by loops over time."""
    A, B, b, C, d, Q, noise = map(np.asarray, ssm)
    T, n = len(u), len(A)
    means, covariance = np.zeros((T + 1, n)), np.zeros((T + 1, T + 1, n, n))
    covariance[0, 0] = np.eye(n)
    for t in range(T):
        means[t + 1] = A @ means[t] + B @ u[t] + b
        for s in range(t + 1):
            covariance[t + 1, s] = A @ covariance[t, s]
            covariance[s, t + 1] = covariance[t + 1, s].T
        covariance[t + 1, t + 1] = A @ covariance[t, t] @ A.T + Q
    flat = covariance.transpose(0, 2, 1, 3).reshape((T + 1) * n, -1)
    seen = np.kron(np.eye(T + 1)[1:], C)
    return means.ravel(), flat, seen, np.tile(d, T), np.diag(np.tile(noise**2, T))


def condition(ssm, series, rows):
    """Mean and covariance of states[0..T] and of outputs of T rows, given the observed ones of the first `rows`."""
    mean, cov, C, d, R = joint(ssm, series.u)
    given = ~np.isnan(series.y)
    given[rows:] = False
    given = given.ravel()
    S = (C @ cov @ C.T + R)[np.ix_(given, given)]
    gain = (
        np.linalg.solve(S, (cov @ C.T)[:, given].T).T if given.any() else np.zeros((len(mean), 0))
    )
    error = series.y.ravel()[given] - (C @ mean + d)[given]
    mean, cov = mean + gain @ error, cov - gain @ S @ gain.T
    log_density = -0.5 * (np.linalg.slogdet(2 * np.pi * S)[1] + error @ np.linalg.solve(S, error))
    return mean, cov, C @ mean + d, C @ cov @ C.T + R, log_density


CASES = {
    "plain": (make_ssm(), simulate(make_ssm(), 40)),
    "missing": (make_ssm(), simulate(make_ssm(), 40, missing=0.3)),
    "no inputs": (make_ssm(2, 1, 0), simulate(make_ssm(2, 1, 0), 40, missing=0.1)),
    "regression": (make_arx(), simulate(make_arx(), 40)),
    "regression, missing": (make_arx(), simulate(make_arx(), 40, missing=0.2)),
}


@pytest.mark.parametrize("name", CASES)
def test_filter_and_forecasts_match_dense_conditioning(name):
    ssm, series = CASES[name]
    models = kalman.stack([make_ssm(5, ssm.C.shape[0], ssm.input_map.shape[1], seed=9), ssm])
    origins, horizon = np.array([0, 1, 7, 20, 34]), 6
    filtered = kalman.filter_states(models, series)
    means, covariances = kalman.forecast(models, filtered, series.u, origins, horizon)
    n, width = len(ssm.offset), len(ssm.d)
    for k, origin in enumerate(origins):
        mean, cov, y_mean, y_cov, _ = condition(ssm, series, origin)
        rows = slice(origin * n, (origin + 1) * n)
        np.testing.assert_allclose(filtered.means[1, origin, :n], mean[rows], rtol=1e-7, atol=1e-9)
        found = filtered.covariances[1, filtered.group[origin], :n, :n]
        np.testing.assert_allclose(found, cov[rows, rows], rtol=1e-6, atol=1e-9)
        for step in range(horizon):
            row = slice((origin + step) * width, (origin + step + 1) * width)
            np.testing.assert_allclose(means[1, k, step], y_mean[row], rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(
                covariances[1, k, step], y_cov[row, row], rtol=1e-6, atol=1e-9
            )
    evidence = condition(ssm, series, len(series))[-1]
    np.testing.assert_allclose(kalman.log_density(models, [series])[1], evidence, rtol=1e-8)


def test_the_filter_is_the_literal_one():
    model = literal.linear_model()
    series = literal.SCALER.scale(literal.user_series(60))
    expected = literal.kalman(model, series)
    linear = as_linear(model)
    found = kalman.filter_states(kalman.stack([linear]), series)
    np.testing.assert_allclose(found.means[0, 1:], expected.means, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        found.covariances[0, found.group[1:]], expected.covariances, rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(found.log_density[0], expected.log_density, rtol=1e-7, atol=1e-9)


def test_a_long_series_has_few_covariances_and_the_same_means():
    ssm = make_ssm(radius=0.7)
    series = simulate(ssm, 1500)
    filtered = kalman.filter_states(kalman.stack([ssm]), series)
    assert filtered.covariances.shape[1] < 200
    A, B, b, C, d, Q, noise = ssm
    mean, cov = np.zeros(3), np.eye(3)
    for y, u in zip(series.y, series.u, strict=True):
        mean, cov = A @ mean + B @ u + b, A @ cov @ A.T + Q
        gain = cov @ C.T @ np.linalg.inv(C @ cov @ C.T + np.diag(noise**2))
        mean, cov = mean + gain @ (y - C @ mean - d), cov - gain @ C @ cov
    np.testing.assert_allclose(filtered.means[0, -1], mean, rtol=1e-8)
    np.testing.assert_allclose(filtered.covariances[0, filtered.group[-1]], cov, rtol=1e-8)


@pytest.mark.parametrize("name", ["plain", "missing", "regression, missing"])
def test_draws_have_the_smoothing_distribution(name):
    ssm, series = CASES[name]
    series = series[:12]
    mean, cov, *_ = condition(ssm, series, len(series))
    if name.startswith("regression"):
        ssm = ssm._replace(process_cov=ssm.process_cov + 1e-12 * np.eye(len(ssm.offset)))
    count = 20000
    draws = kalman.draw_states(ssm, series, count, np.random.default_rng(0)).reshape(count, -1)
    std = np.sqrt(np.maximum(np.diagonal(cov), 1e-10))
    assert np.abs((draws.mean(0) - mean) / std).max() * np.sqrt(count) < 5
    np.testing.assert_allclose(
        np.cov(draws.T) / np.outer(std, std), cov / np.outer(std, std), atol=0.05
    )


def test_draws_do_not_depend_on_their_number():
    ssm, series = CASES["missing"]
    few, many = (
        kalman.draw_states(ssm, series, count, np.random.default_rng(1)) for count in (2, 5)
    )
    np.testing.assert_allclose(many[:2], few, rtol=1e-10)


def test_simulations_are_forecasts_without_noise():
    ssm = make_ssm()
    u = np.random.default_rng(0).normal(size=(7, 2))
    x, expected = np.arange(3.0), []
    for row in u:
        x = ssm.transition @ x + ssm.input_map @ row + ssm.offset
        expected.append(ssm.C @ x + ssm.d)
    found = kalman.simulate(kalman.stack([ssm]), np.arange(3.0)[None, None], u[None, None])
    np.testing.assert_allclose(found[0, 0], expected)


def test_inert_states_change_nothing():
    small, series = make_ssm(2, 2, 2, seed=4), simulate(make_ssm(), 30)
    alone, beside = kalman.stack([small]), kalman.stack([small, make_ssm(6)])
    np.testing.assert_allclose(
        kalman.log_density(beside, [series])[0], kalman.log_density(alone, [series])[0]
    )
    for leaf, expected in zip(beside, small, strict=True):
        leading = leaf[0][tuple(slice(size) for size in np.shape(expected))]
        np.testing.assert_array_equal(leading, expected)


def test_a_missing_output_is_no_information():
    ssm = make_ssm(2, 1, 0)
    nothing = Series(np.full((8, 1), np.nan))
    filtered = kalman.filter_states(kalman.stack([ssm]), nothing)

    assert filtered.log_density.sum() == 0.0
    covariance = np.eye(2)
    for _ in range(8):
        covariance = ssm.transition @ covariance @ ssm.transition.T + ssm.process_cov
    np.testing.assert_allclose(filtered.covariances[0, filtered.group[-1]], covariance, rtol=1e-8)
