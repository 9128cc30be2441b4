"""Regression on lags: bound and predictions against scikit-learn, everything else against the parts
of the model.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

import gpssm
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.linear.arx import regress_regularised, to_state_space
from gpssm.methods import GPNARX
from gpssm.methods.gp_narx import (
    SLACK,
    SMOOTHNESS,
    LagRegression,
    as_model,
    as_regression,
    choose_smoothness,
    fit_regression,
    linear_part,
    predict,
    registers,
    residuals,
    simulation_error,
    weights_posterior,
)
from gpssm.methods.sparse_regression import NO_NOISE, choose_points, log_bound, with_constant
from gpssm.model.bases import JITTER
from gpssm.model.target import weights_given_states

HYPER = np.array([0.1, 0.2, -0.1, 0.4, -2.0])  # log k, log ℓ of three inputs, log σ²


def bent_series(length=160, seed=0, noise=0.05):
    """y_t = 0.6 y_{t−1} − 0.3 y_{t−2} + tanh(2 u_t) + 0.5 u_{t−1}² + noise."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=length), np.zeros(length)
    for t in range(2, length):
        y[t] = 0.6 * y[t - 1] - 0.3 * y[t - 2] + np.tanh(2 * u[t]) + 0.5 * u[t - 1] ** 2
        y[t] += noise * rng.normal()
    return Series(y, u)


def rows_of(length=40, seed=0):
    """Regressors, and a function of them with noise."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(length, 3))
    return z, np.sin(2 * z[:, 0]) + 0.1 * rng.normal(size=length)


def process_of(hyper, slack):
    """The same prior for scikit-learn."""
    smooth = ConstantKernel(np.exp(hyper[0])) * RBF(np.exp(hyper[1:-1]))
    linear = ConstantKernel(slack**2) * DotProduct(1.0)
    kernel = smooth + linear + WhiteKernel(np.exp(hyper[-1]))
    return GaussianProcessRegressor(kernel, optimizer=None, alpha=JITTER * np.exp(hyper[0]))


@functools.cache
def fitted():
    return fit(
        bent_series(), method=GPNARX(orders=(2, 2), num_draws=100), num_chains=2, progress=False
    )


def test_with_a_point_at_each_row_the_bound_is_the_evidence():
    z, error = rows_of()
    value, _ = log_bound(HYPER, z, z, error, 0.7 * with_constant(z))
    reference = process_of(HYPER, 0.7).fit(z, error)
    assert value == pytest.approx(reference.log_marginal_likelihood_value_, abs=1e-3)


def test_with_fewer_points_it_is_below():
    z, error = rows_of()
    values = [log_bound(HYPER, z[:m], z, error, with_constant(z))[0] for m in (5, 10, 20, 40)]
    assert np.all(np.diff(values) > 0)


@pytest.mark.parametrize("size", [12, 40])
def test_the_slope_of_the_bound(size):
    z, error = rows_of()

    def value(hyper):
        return log_bound(hyper, z[:size], z, error, 0.7 * with_constant(z))

    numeric = scipy.optimize.approx_fprime(HYPER, lambda hyper: value(hyper)[0], 1e-6)
    np.testing.assert_allclose(value(HYPER)[1], numeric, rtol=1e-4, atol=1e-4)


def test_inducing_points_are_where_the_process_is_least_known():
    """The first pivots by dense conditional variances; where points stop, nothing is open."""
    z, _ = rows_of(25)
    wide = np.array([0.0, 3.0, 3.0, 3.0, -2.0])
    hyper = np.stack([HYPER, [0.5, 0.0, 0.3, 0.2, -4.0]])
    processes = [process_of(row, 1e-9) for row in hyper]
    chosen = choose_points(hyper, z, 6)
    for step in range(1, 6):
        total = np.zeros(len(z))
        for row, process in zip(hyper, processes, strict=True):
            left = process.kernel.k1.k1
            cross = left(z, chosen[:step])
            known = np.sum(cross * np.linalg.solve(left(chosen[:step]), cross.T).T, 1)
            total += (np.exp(row[0]) - known) * np.exp(-row[-1])
        np.testing.assert_array_equal(chosen[step], z[np.argmax(total)])
    assert len(choose_points(wide[None], z, 25)) < 25


def test_predictions_are_those_of_dense_regression():
    """With points for most rows: mean and variance at new inputs, through the model in JAX."""
    posterior = fitted()
    regression = as_regression(posterior.model)
    scaled = posterior.dataset.scaled
    z, error = residuals(regression.linear, scaled)
    new = np.random.default_rng(1).normal(size=(7, z.shape[1]))
    reference = process_of(regression.hyper[0], regression.slack[0]).fit(z, error[:, 0])
    mean, std = reference.predict(new, return_std=True)
    step = posterior.model.transition()(jnp.asarray(new[:, :3]), jnp.asarray(new[:, 3:]))
    weights = weights_posterior(regression, z, error)
    gain = np.asarray(step.gain[0])
    expected = np.asarray(step.mean)[:, 0] + gain @ weights.mean[0]
    spread = np.sum((gain @ weights.root[0]) ** 2, 1) + np.asarray(step.residual[0])
    noise = np.exp(regression.hyper[0, -1])
    np.testing.assert_allclose(
        expected, linear_part(regression.linear, new)[:, 0] + mean, atol=0.1 * std.min()
    )
    np.testing.assert_allclose(spread + noise, std**2, rtol=0.05)
    np.testing.assert_allclose(predict(regression, weights.mean, new)[:, 0], expected, rtol=1e-6)


def test_weights_have_the_law_of_the_collapsed_target():
    """The states that are known are the path; P⁻¹b and P⁻¹ are those of every other method."""
    whole = bent_series()
    regression = fit_regression([whole], (2, 2), 20, SMOOTHNESS[0])
    z, error = residuals(regression.linear, [whole])
    path = registers(regression.linear, whole)[2:]
    model = as_model(regression)
    expected = weights_given_states(model, [jnp.asarray(path)], [whole[2:]])
    posterior = weights_posterior(regression, z, error)
    np.testing.assert_allclose(posterior.mean[0], expected.mean[0], rtol=1e-4, atol=1e-6)
    covariance = posterior.root[0] @ posterior.root[0].T
    np.testing.assert_allclose(
        covariance @ np.asarray(expected.precision[0]), np.eye(len(covariance)), atol=1e-4
    )
    draws = fitted().draws.weights
    assert not draws[..., 1:, :].any()


def test_the_model_holds_the_regression():
    regression = fit_regression([bent_series()], (2, 3), 15, SMOOTHNESS[0])
    again = as_regression(as_model(regression))
    for name in ("points", "hyper", "slack"):
        np.testing.assert_allclose(
            getattr(again, name), getattr(regression, name), rtol=1e-6, atol=1e-12
        )
    np.testing.assert_array_equal(again.linear.transition, regression.linear.transition)


def test_states_are_the_lags():
    posterior = fitted()
    scaled = posterior.dataset.scaled[0]
    states = posterior.draws.states[0]
    lags = np.column_stack([scaled.y[1:-1], scaled.y[:-2], scaled.u[1:-1]])
    np.testing.assert_allclose(
        states[:, :, 2:-1], np.broadcast_to(lags, (2, 100, 158, 3)), atol=1e-5
    )
    linear = as_regression(posterior.model).linear
    np.testing.assert_array_equal(registers(linear, scaled)[2:-1], lags)
    assert np.isnan(registers(linear, scaled)[:2]).any(1).all()


def test_a_forecast_of_one_row_is_the_predictive():
    """Paths are Gaussian given the function, and functions are: mean and variance add up."""
    posterior = fitted()
    regression = as_regression(posterior.model)
    z, error = residuals(regression.linear, posterior.dataset.scaled)
    scaler = posterior.dataset.scaler
    u = np.array([[0.7]])
    last = np.concatenate([posterior.draws.states[0][0, 0, -1], scaler.scale_inputs(u)[0]])
    dense = process_of(regression.hyper[0], regression.slack[0]).fit(z, error[:, 0])
    mean, std = dense.predict(last[None], return_std=True)
    mean = mean + linear_part(regression.linear, last[None])[:, 0]
    forecast = posterior.forecast(1, u, num_paths=4000)
    spread = np.sqrt(scaler.unscale_variance(std[:, None] ** 2))
    gap = (forecast.mean - scaler.unscale_mean(mean[:, None])) / spread
    assert np.abs(gap).max() < 0.15  # of 200 draws of the function
    np.testing.assert_allclose(forecast.std, spread, rtol=0.1)


def test_it_forecasts_what_is_bent_better_than_a_line():
    train, test = bent_series(360).split(160)
    curved, line = (
        fit(train, method=method, num_chains=2, progress=False) for method in ("gp-narx", "arx")
    )
    rest = test[100:]
    forecasts = [model.condition(test[:100]).forecast(u=rest.u) for model in (curved, line)]
    scores = [forecast.score(rest)["crps"] for forecast in forecasts]
    assert scores[0] < 0.5 * scores[1]
    low, high = forecasts[0].interval(0.9)
    assert 0.75 < np.mean((rest.y > low) & (rest.y < high)) <= 1.0


def test_gaps_are_drawn_and_the_end_by_the_process():
    """Gaps have no draws alike; the row after the last output has the law of a forecast."""
    whole = bent_series()
    y = whole.y.copy()
    y[60] = np.nan
    y[-2:] = np.nan
    method = GPNARX(orders=(2, 2), num_draws=300)
    posterior = fit(Series(y, whole.u), method=method, num_chains=2, progress=False)
    states = posterior.draws.states[0].reshape(600, -1, 3)
    assert states[:, 61, 0].std() > 0.01
    assert states[:, 30:60].std(0).max() < 1e-5
    short = fit(Series(y[:-2], whole.u[:-2]), method=method, num_chains=2, progress=False)
    forecast = short.forecast(2, whole.u[-2:], num_paths=4000)
    outputs = posterior.dataset.scaler.unscale_mean(states[:, -2:, :1])
    np.testing.assert_allclose(outputs.mean(0), forecast.mean, atol=5 * forecast.std.max() / 24)
    np.testing.assert_allclose(outputs.std(0), forecast.std, rtol=0.15)


def test_rows_before_a_gap_are_left_out():
    whole = bent_series(60)
    linear = to_state_space(regress_regularised([whole], 2, 2))
    y = whole.y.copy()
    y[30] = np.nan
    z, error = residuals(linear, [Series(y, whole.u)])
    everything = residuals(linear, [whole])
    keep = ~np.isin(np.arange(2, 60), [30, 31, 32])
    np.testing.assert_array_equal(z, everything[0][keep])
    np.testing.assert_allclose(error, everything[1][keep], atol=1e-12)


def test_simulations_of_held_out_rows():
    """The error by hand, from one origin; what simulates better is taken."""
    whole = bent_series()
    train, test = whole[:120], whole[120:140]
    regression = fit_regression([train], (2, 2), 30, SMOOTHNESS[0])
    z, error = residuals(regression.linear, [train])
    mean = weights_posterior(regression, z, error).mean
    squares = []
    for origin in range(2, 20, 5):
        before, last, u = test.y[origin - 2, 0], test.y[origin - 1, 0], test.u[:, 0]
        for row in range(origin, 20):
            new = predict(regression, mean, np.array([[last, before, u[row - 1], u[row]]]))[0, 0]
            squares.append((new - test.y[row, 0]) ** 2)
            before, last = last, new
    expected = np.sqrt(np.mean(squares) + NO_NOISE**2)
    assert simulation_error(regression, [train], [test]) == pytest.approx(expected)
    assert choose_smoothness([whole], (2, 2), 30) in SMOOTHNESS
    assert choose_smoothness([whole[:4]], (2, 2), 30) == SMOOTHNESS[0]  # too few rows to tell


def test_two_outputs_share_their_lags():
    """Without inputs, in two series; each output is regressed on both."""
    rng = np.random.default_rng(0)
    series = []
    for length in (80, 50):
        y = np.zeros((length, 2))
        for t in range(1, length):
            y[t] = [np.sin(2 * y[t - 1, 1]), 0.8 * y[t - 1, 0]] + 0.1 * rng.normal(size=2)
        series.append(Series(y))
    posterior = fit(series, method=GPNARX(orders=(1, 1)), num_chains=2, progress=False)
    regression = as_regression(posterior.model)
    assert isinstance(regression, LagRegression)
    assert regression.hyper.shape == (2, 4)
    lengthscales = regression.hyper[0, 1:-1]
    assert lengthscales[1] < lengthscales[0]
    np.testing.assert_allclose(
        regression.slack / SLACK,
        np.sqrt(
            np.diagonal(
                fit_regression(
                    posterior.dataset.scaled, (1, 1), 9, SMOOTHNESS[0]
                ).linear.process_cov
            )
        ),
    )
    assert np.isfinite(posterior.forecast(5).paths).all()


def test_mistakes_are_explained():
    for settings, words in (
        ({"likelihood": "poisson"}, "supports only likelihood='gaussian', got 'poisson'"),
        ({"kernel": "matern52"}, "supports only kernel='se', got 'matern52'"),
        ({"wiring": "cascade", "state_dim": 2}, "supports only wiring"),
    ):
        with pytest.raises(ValueError, match=words):
            fit(bent_series(60), method="gp-narx", progress=False, **settings)
    sparse = bent_series(60)
    y = np.where(np.arange(60)[:, None] % 2, np.nan, sparse.y)
    with pytest.raises(ValueError, match="no such row"):
        gpssm.fit(Series(y, sparse.u), method=GPNARX(orders=(2, 1)), progress=False)
