"""The linear baselines as posteriors: regression against scikit-learn, states and forecasts against exact moments."""

import functools

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.linear import kalman
from gpssm.linear.arx import regress, to_state_space
from gpssm.linear.council import council
from gpssm.methods import ARX, LGSSM, METHODS
from gpssm.methods.linear import EXACT, as_linear, with_diagonal_noise
from linear_systems import arx_series, forecast_moments

NAMES = ("arx", "arx-reg", "lgssm", "last", "mean")


@functools.cache
def fitted(name):
    return fit(arx_series(), method=name, num_chains=2, num_draws=200, progress=False)


def linear_of(posterior):
    """The model in NumPy."""
    return as_linear(posterior.model)


def test_the_regression_is_least_squares():
    rng = np.random.default_rng(1)
    series = [
        Series(rng.normal(size=(length, 2)), rng.normal(size=(length, 1))) for length in (60, 45)
    ]
    found = regress(series, 2, 3, 4)
    rows, targets = [], []
    for one in series:
        for t in range(4, len(one)):
            rows.append(
                np.concatenate([one.y[t - 1], one.y[t - 2], one.u[t], one.u[t - 1], one.u[t - 2]])
            )
            targets.append(one.y[t])
    reference = LinearRegression().fit(rows, targets)
    np.testing.assert_allclose(
        np.hstack([*found.outputs, *found.inputs]), reference.coef_, rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(found.offset, reference.intercept_, rtol=1e-5, atol=1e-9)


def test_the_state_space_form_is_the_regression():
    rng = np.random.default_rng(2)
    series = Series(rng.normal(size=(50, 2)), rng.normal(size=(50, 2)))
    found = regress([series], 3, 3, 3)
    linear = to_state_space(found)
    y, u = series.y, series.u
    t = 20
    x = np.concatenate([y[t - 1], y[t - 2], y[t - 3], u[t - 1], u[t - 2]])
    expected = found.offset + sum(found.outputs[i] @ y[t - 1 - i] for i in range(3))
    expected = expected + sum(found.inputs[j] @ u[t - j] for j in range(3))
    following = linear.transition @ x + linear.input_map @ u[t] + linear.offset
    np.testing.assert_allclose(following[:2], expected, rtol=1e-10)
    np.testing.assert_allclose(following[2:], np.concatenate([y[t - 1], y[t - 2], u[t], u[t - 1]]))


def test_missing_outputs_are_left_out_of_the_regression():
    whole = arx_series()
    y = whole.y.copy()
    y[50:60] = np.nan
    found = regress([Series(y, whole.u)], 2, 2, 2)
    apart = regress([whole[:50], whole[60:]], 2, 2, 2)
    np.testing.assert_allclose(found.outputs, apart.outputs, rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_what_the_outputs_say(name):
    """Nothing is missing, so that all but the first states are known."""
    posterior = fitted(name)
    linear = linear_of(posterior)
    filtered = kalman.filter_states(kalman.stack([linear]), posterior.dataset.scaled[0])
    states = posterior.draws.states[0].reshape(400, *filtered.means.shape[1:])
    np.testing.assert_allclose(
        states[:, 60:], np.broadcast_to(filtered.means[0, 60:], states[:, 60:].shape), atol=1e-4
    )
    log_density = kalman.log_density(kalman.stack([linear]), list(posterior.dataset.scaled))
    np.testing.assert_allclose(posterior.info.log_target, log_density[0], rtol=1e-6)


def test_missing_last_outputs_leave_the_state_open():
    """Draws of the last state have the moments of the filter."""
    whole = arx_series()
    y = whole.y.copy()
    y[-5:] = np.nan
    posterior = fit(Series(y, whole.u), method="arx", num_chains=2, num_draws=1000, progress=False)
    filtered = kalman.filter_states(
        kalman.stack([linear_of(posterior)]), posterior.dataset.scaled[0]
    )
    last = posterior.draws.states[0][:, :, -1].reshape(2000, -1)
    covariance = filtered.covariances[0, filtered.group[-1]]
    std = np.sqrt(np.diagonal(covariance))[:2]
    assert np.abs((last.mean(0)[:2] - filtered.means[0, -1, :2]) / std).max() < 5 / np.sqrt(2000)
    np.testing.assert_allclose(np.cov(last.T)[:2, :2], covariance[:2, :2], rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_forecasts_have_the_exact_moments(name):
    posterior = fitted(name)
    u = np.random.default_rng(3).normal(size=(10, 1))
    linear = linear_of(posterior)
    filtered = kalman.filter_states(kalman.stack([linear]), posterior.dataset.scaled[0])
    last = filtered.covariances[0, filtered.group[-1]]
    mean, variance = forecast_moments(
        linear, filtered.means[0, -1], last, posterior.dataset.scaler.scale_inputs(u)
    )
    expected = posterior.dataset.scaler.unscale_mean(mean)
    spread = np.sqrt(posterior.dataset.scaler.unscale_variance(variance))
    found = posterior.forecast(10, u, num_paths=4000, bounds=None)
    assert np.abs((found.mean - expected) / spread).max() < 4.5 / np.sqrt(4000)
    np.testing.assert_allclose(found.std, spread, rtol=0.06)


def test_forecasts_are_those_of_the_council():
    """Rotated coordinates and noises in place of none change nothing that can be seen."""
    posterior, u = fitted("lgssm"), np.zeros((30, 1))
    found = council(list(posterior.dataset.scaled), members=("ss",))
    best = kalman.stack([found.models[found.best]])
    filtered = kalman.filter_states(best, posterior.dataset.scaled[0])
    series, ends = posterior.dataset.scaled[0], np.array([len(posterior.dataset.scaled[0])])
    scaled = posterior.dataset.scaler.scale_inputs(u)
    mean, covariance = kalman.forecast(best, filtered, np.concatenate([series.u, scaled]), ends, 30)
    forecast = posterior.forecast(30, u, num_paths=4000)
    std = np.sqrt(posterior.dataset.scaler.unscale_variance(covariance[0, 0, :, 0]))
    gap = (forecast.mean - posterior.dataset.scaler.unscale_mean(mean[0, 0])) / std
    assert np.abs(gap).max() < 4.5 / np.sqrt(4000)
    np.testing.assert_allclose(forecast.std, std, rtol=0.06)


def test_rotated_noise_is_the_same_model():
    rng = np.random.default_rng(0)
    y = rng.multivariate_normal(np.zeros(2), [[1.0, 0.6], [0.6, 1.0]], size=80)
    series = Series(y, rng.normal(size=(80, 1)))
    plain = to_state_space(regress([series], 2, 1))
    rotated = with_diagonal_noise(plain)
    assert np.diagonal(rotated.process_cov).min() == pytest.approx(EXACT**2)
    np.testing.assert_array_equal(rotated.process_cov, np.diag(np.diagonal(rotated.process_cov)))
    both = kalman.stack([plain, rotated])
    np.testing.assert_allclose(*kalman.log_density(both, [series]), rtol=1e-6)


def test_a_random_walk_and_an_average():
    series = arx_series()
    walk, average = (linear_of(fitted(name)) for name in ("last", "mean"))
    step = np.mean(np.diff(series.y[:, 0]) ** 2) / series.y.var()
    np.testing.assert_allclose(walk.process_cov, [[step]], rtol=1e-8)
    np.testing.assert_allclose(average.C, [[1.0]], rtol=1e-8)
    np.testing.assert_allclose(
        fitted("mean").forecast(5, series.u[:5]).mean, series.y.mean(), atol=0.2
    )


def test_settings():
    assert fitted("arx").model.state_dim == 3
    assert ARX(orders=(1, 1)).linear([arx_series()]).transition.shape == (1, 1)
    assert LGSSM(order=3).linear([arx_series()]).transition.shape == (4, 4)
    assert not any(METHODS[name].learns for name in NAMES)


def test_without_controls_and_with_two_outputs():
    rng = np.random.default_rng(4)
    series = Series(np.cumsum(rng.normal(size=(80, 2)), 0))
    for method in NAMES:
        found = fit(series, method=method, num_chains=1, num_draws=20, progress=False)
        assert np.isfinite(found.forecast(3).paths).all()


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="supports only likelihood='gaussian'"):
        fit(arx_series(60), method="arx", likelihood="poisson", progress=False)
    with pytest.raises(ValueError, match=r"needs \d+ rows"):
        fit(arx_series(30), method=ARX(orders=(8, 8)), progress=False)
