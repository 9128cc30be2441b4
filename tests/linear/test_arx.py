"""Regressions: orders, coefficients, and the regularised one against a dense Gaussian posterior and brute force."""

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from gpssm.data.series import Series
from gpssm.linear import arx
from linear_systems import arx_series


def test_orders_and_coefficients_of_a_simulated_regression():
    series = [arx_series()]
    assert arx.select_orders(series, 10) == (2, 2)
    found = arx.regress(series, 2, 2)
    np.testing.assert_allclose(found.outputs.ravel(), [1.2, -0.5], atol=0.02)
    np.testing.assert_allclose(found.inputs.ravel(), [0, 0.8], atol=0.02)
    np.testing.assert_allclose(found.covariance, [[0.01]], rtol=0.25)


def test_orders_are_those_of_every_regression_by_itself():
    """Each candidate by least squares on its own regressors, on the rows that all candidates have."""
    rng = np.random.default_rng(5)
    series, most = Series(np.cumsum(rng.normal(size=(90, 2)), 0), rng.normal(size=(90, 2))), 4
    scores = {}
    for na in range(1, most + 1):
        for nb in range(1, most + 1):
            z, y = arx.regressors(series, na, nb, most)
            error = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
            scores[na, nb] = len(y) * np.log(np.mean(error**2, 0)).sum() + 2 * z.shape[1] * np.log(
                len(y)
            )
    assert arx.select_orders([series], most) == min(scores, key=scores.get)


def test_orders_without_enough_complete_rows_are_small():
    series = arx_series()
    y = series.y.copy()
    y[::5] = np.nan
    na, nb = arx.select_orders([Series(y, series.u)], 10)
    assert max(na, nb) <= 4


def kernel(count, scale, decay):
    lag = np.arange(1, count + 1)
    return scale * decay ** np.maximum.outer(lag, lag)


def dense(series, na, nb, hyper):
    """log p(y) up to a constant, and the coefficients' mean, by the covariance of the centred outputs."""
    z, y = arx.regressors(series, na, nb, max(na, nb - 1))
    z, y = z[:, :-1] - z[:, :-1].mean(0), y[:, 0] - y.mean()
    (log_c, log_d), (logit_a, logit_b) = hyper[:2], hyper[2:]
    prior = scipy.linalg.block_diag(
        kernel(na, np.exp(log_c), 1 / (1 + np.exp(-logit_a))),
        kernel(nb, np.exp(log_d), 1 / (1 + np.exp(-logit_b))),
    )
    covariance = np.eye(len(y)) + z @ prior @ z.T
    rows = len(y) - 1  # the mean has been taken out
    variance = y @ np.linalg.solve(covariance, y) / rows + (len(y) / rows) * arx.NO_NOISE**2
    loss = 0.5 * rows * np.log(variance) + 0.5 * np.linalg.slogdet(covariance)[1]
    return loss, prior @ z.T @ np.linalg.solve(covariance, y), variance


def ridge(series, na, nb):
    """The problem that `regress_regularised` solves for one output and one input, by its own steps."""
    z, y = arx.regressors(series, na, nb, max(na, nb - 1))
    z, y = z[:, :-1] - z[:, :-1].mean(0), y[:, 0] - y.mean()
    sums = scipy.linalg.block_diag(np.triu(np.ones((na, na))), np.triu(np.ones((nb, nb))))
    target = y @ y + len(y) * arx.NO_NOISE**2
    return arx.Ridge(
        sums.T @ z.T @ z @ sums, sums.T @ z.T @ y, target, len(y) - 1, np.array([na, nb])
    ), sums


@pytest.mark.parametrize("hyper", [(0.0, 1.0, 0.5, 1.0), (3.0, -2.0, 2.0, -1.0)])
def test_marginal_likelihood_and_posterior_mean_are_those_of_the_dense_gaussian(hyper):
    series, hyper = arx_series(60), np.array(hyper)
    problem, sums = ridge(series, 5, 4)
    loss, mean, variance = dense(series, 5, 4, hyper)
    found, gradient = problem.loss(hyper)
    np.testing.assert_allclose(found, loss, rtol=1e-8)
    increments, found_variance = problem.posterior_mean(hyper)
    np.testing.assert_allclose(sums @ increments, mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found_variance, variance, rtol=1e-8)
    steps = 1e-5 * np.eye(4)
    slopes = [
        (problem.loss(hyper + step)[0] - problem.loss(hyper - step)[0]) / 2e-5 for step in steps
    ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-4)


def test_hyper_parameters_are_where_a_grid_is_highest():
    series = arx_series(150)
    found = arx.regress_regularised([series], 8, 8)
    best = found.hyper[0]
    scales, decays = np.linspace(-2, 8, 11), np.linspace(-2, 3, 11)
    problem, _ = ridge(series, 8, 8)
    grid = [
        problem.loss(np.array([a, b, c, d]))[0]
        for a in scales
        for b in scales
        for c in decays
        for d in decays
    ]
    assert problem.loss(best)[0] <= min(grid) + 0.05
    _, mean, variance = dense(series, 8, 8, best)
    coefficients = np.concatenate([found.outputs.ravel(), found.inputs.ravel()])
    np.testing.assert_allclose(coefficients, mean, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.covariance, [[variance]], rtol=1e-5)


def test_a_regularised_regression_forgets_what_is_not_there():
    found = arx.regress_regularised([arx_series(), arx_series(200, seed=2)])
    np.testing.assert_allclose(found.outputs[:2].ravel(), [1.2, -0.5], atol=0.05)
    np.testing.assert_allclose(found.inputs[:2].ravel(), [0, 0.8], atol=0.03)
    assert np.abs(found.outputs[6:]).max() < 0.02
    np.testing.assert_allclose(found.covariance, [[0.01]], rtol=0.15)


def test_every_output_has_its_own_row_and_errors_may_be_correlated():
    rng = np.random.default_rng(0)
    errors = rng.multivariate_normal(np.zeros(2), [[0.04, 0.03], [0.03, 0.04]], size=1500)
    u, y = rng.normal(size=(1500, 2)), np.zeros((1500, 2))
    for t in range(1, 1500):
        y[t] = (
            np.array([[0.5, 0.2], [0.0, 0.7]]) @ y[t - 1]
            + np.array([[1.0, 0.0], [0.0, -2.0]]) @ u[t]
            + errors[t]
        )
    for found in (
        arx.regress([Series(y, u)], 1, 1),
        arx.regress_regularised([Series(y, u)], 6, 6),
    ):
        np.testing.assert_allclose(found.outputs[0], [[0.5, 0.2], [0.0, 0.7]], atol=0.03)
        np.testing.assert_allclose(found.inputs[0], [[1.0, 0.0], [0.0, -2.0]], atol=0.03)
        np.testing.assert_allclose(found.covariance, [[0.04, 0.03], [0.03, 0.04]], atol=0.005)


def test_missing_outputs_cost_a_regularised_regression_little():
    series = arx_series(600)
    y = series.y.copy()
    y[np.random.default_rng(1).random(600) < 0.05] = np.nan
    found = arx.regress_regularised([Series(y, series.u)], 6, 6)
    np.testing.assert_allclose(found.inputs[1].ravel(), [0.8], atol=0.08)
    assert np.isfinite(found.outputs).all()


def test_constant_and_duplicated_signals_are_no_trouble():
    series = arx_series(200)
    u = np.hstack([series.u, series.u, np.ones((200, 1))])
    y = np.hstack([series.y, series.y, np.full((200, 1), 3.0)])
    for found in (
        arx.regress([Series(y, u)], 2, 2),
        arx.regress_regularised([Series(y, u)]),
    ):
        np.testing.assert_allclose(found.inputs[1, 0, :2].sum(), 0.8, atol=0.05)
        assert np.linalg.eigvalsh(found.covariance).min() > 0
        assert all(np.isfinite(leaf).all() for leaf in found[:4])


def test_too_few_rows_are_explained():
    with pytest.raises(ValueError, match=r"needs \d+ rows"):
        arx.regress([arx_series(30)], 8, 8)
