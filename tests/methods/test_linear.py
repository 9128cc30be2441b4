"""The linear baselines: regression against scikit-learn, states against the Kalman smoother, selection by BIC."""

import functools

import jax
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from gpssm.core.linalg import selected_inverse
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.linear.state_space import smooth
from gpssm.methods import ARX, LGSSM, METHODS
from gpssm.methods.linear import as_linear, regress, select_orders, to_state_space
from linear_systems import arx_series, forecast_moments

BASELINES = {"arx": ARX(), "lgssm": LGSSM(order=2), "last": METHODS["last"], "mean": METHODS["mean"]}
# The linear fit takes longest, and has tests of its own.
NAMES = ["arx", pytest.param("lgssm", marks=pytest.mark.slow), "last", "mean"]


@functools.cache
def fitted(name):
    return fit(arx_series(), method=BASELINES[name], num_chains=2, num_draws=200, progress=False)


def test_the_regression_is_least_squares():
    rng = np.random.default_rng(1)
    series = [Series(rng.normal(size=(length, 2)), rng.normal(size=(length, 1))) for length in (60, 45)]
    found = regress(series, 2, 3, 4)
    rows, targets = [], []
    for one in series:
        for t in range(4, len(one)):
            rows.append(np.concatenate([one.y[t - 1], one.y[t - 2], one.u[t], one.u[t - 1], one.u[t - 2]]))
            targets.append(one.y[t])
    reference = LinearRegression().fit(rows, targets)
    np.testing.assert_allclose(np.hstack([*found.outputs, *found.inputs]), reference.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.offset, reference.intercept_, rtol=1e-5, atol=1e-9)


def test_the_state_space_form_is_the_regression():
    rng = np.random.default_rng(2)
    series = Series(rng.normal(size=(50, 2)), rng.normal(size=(50, 2)))
    found = regress([series], 3, 3, 3)
    linear = jax.tree.map(np.asarray, to_state_space(found))
    y, u = series.y, series.u
    t = 20
    x = np.concatenate([y[t - 1], y[t - 2], y[t - 3], u[t - 1], u[t - 2]])
    expected = found.offset + sum(found.outputs[i] @ y[t - 1 - i] for i in range(3))
    expected = expected + sum(found.inputs[j] @ u[t - j] for j in range(3))
    following = linear.transition @ x + linear.control @ u[t] + linear.offset
    np.testing.assert_allclose(following[:2], expected, rtol=1e-10)
    np.testing.assert_allclose(following[2:], np.concatenate([y[t - 1], y[t - 2], u[t], u[t - 1]]))


def test_orders_and_coefficients_are_found():
    assert select_orders([arx_series()], 10) == (2, 2)
    found = regress([arx_series()], 2, 2, 2)
    np.testing.assert_allclose(found.outputs.ravel(), [1.2, -0.5], atol=0.02)
    np.testing.assert_allclose(found.inputs.ravel(), [0, 0.8], atol=0.02)
    np.testing.assert_allclose(found.variance, 0.01, rtol=0.25)


def test_missing_outputs_are_left_out_of_the_regression():
    whole = arx_series()
    y = whole.y.copy()
    y[50:60] = np.nan
    found = regress([Series(y, whole.u)], 2, 2, 2)
    apart = regress([whole[:50], whole[60:]], 2, 2, 2)
    np.testing.assert_allclose(found.outputs, apart.outputs, rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_draws_from_the_smoother(name):
    posterior = fitted(name)
    smoothed = smooth(as_linear(posterior.model), posterior.dataset.scaled[0])
    variance = np.diagonal(np.asarray(selected_inverse(smoothed.factor).diagonal), axis1=1, axis2=2)
    states = posterior.draws.states[0].reshape(400, *smoothed.mean.shape)
    error = (states.mean(0) - smoothed.mean) / np.sqrt(variance / 400)
    assert np.abs(error).max() < 5.5
    assert np.sqrt(np.mean(error**2)) == pytest.approx(1, abs=0.25)
    np.testing.assert_allclose(states.var(0).mean() / variance.mean(), 1, rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_forecasts_have_the_exact_moments(name):
    posterior = fitted(name)
    u = np.random.default_rng(3).normal(size=(10, 1))
    linear = as_linear(posterior.model)
    smoothed = smooth(linear, posterior.dataset.scaled[0])
    last = selected_inverse(smoothed.factor).diagonal[-1]
    mean, variance = forecast_moments(linear, smoothed.mean[-1], last, posterior.dataset.scaler.scale_inputs(u))
    expected = posterior.dataset.scaler.unscale_mean(np.asarray(mean))
    spread = np.sqrt(posterior.dataset.scaler.unscale_variance(np.asarray(variance)))
    found = posterior.forecast(10, u, num_paths=4000, bounds=None)
    assert np.abs((found.mean - expected) / spread).max() < 4.5 / np.sqrt(4000)
    np.testing.assert_allclose(found.std, spread, rtol=0.06)


def test_a_random_walk_and_an_average():
    series = arx_series()
    walk, average = (as_linear(fitted(name).model) for name in ("last", "mean"))
    step = np.mean(np.diff(series.y[:, 0]) ** 2) / series.y.var()
    np.testing.assert_allclose(walk.process_cov, [[step]], rtol=1e-8)
    np.testing.assert_allclose(average.C, [[1.0]], rtol=1e-8)
    np.testing.assert_allclose(fitted("mean").forecast(5, series.u[:5]).mean, series.y.mean(), atol=0.2)


def test_settings():
    assert fitted("arx").model.state_dim == 3
    assert ARX(orders=(1, 1)).linear([arx_series()]).transition.shape == (1, 1)
    assert not any(METHODS[name].learns for name in BASELINES)


def test_without_controls_and_with_two_outputs():
    rng = np.random.default_rng(4)
    series = Series(np.cumsum(rng.normal(size=(80, 2)), 0))
    for method in ("arx", "mean"):
        found = fit(series, method=method, num_chains=1, num_draws=20, progress=False)
        assert np.isfinite(found.forecast(3).paths).all()


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="Gaussian outputs"):
        fit(arx_series(60), method="arx", likelihood="poisson", progress=False)
    with pytest.raises(ValueError, match=r"needs \d+ rows"):
        fit(arx_series(30), method=ARX(orders=(8, 8)), progress=False)
