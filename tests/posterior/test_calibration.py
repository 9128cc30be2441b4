"""Forecasts are calibrated if the model is true: intervals have their nominal coverage at every
step.

Each series has a function of its own, drawn from the prior, and a posterior that holds it as its only draw: what is
left to be wrong about is the state, found by filtering, and everything that happens after.
"""

import equinox as eqx
import jax
import numpy as np
import pytest

from builders import make_model, make_series
from gpssm.core.metrics import coverage
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from posteriors import make_posterior

LENGTH, HORIZON, LEVELS = 40, 20, (0.5, 0.8, 0.9)
simulate = eqx.filter_jit(lambda model, key, u: model.simulate(key, u))
SCALER = Scaler((3.0,), (2.0,), (0.5,), (4.0,))
# The inputs are drawn without regard to the few rows of the training data.
OUTSIDE = pytest.mark.filterwarnings("ignore:Input u outside its training range")


def simulated(model, seed):
    """A posterior that knows the truth, the rows it may see and the rows it must forecast."""
    key, control_key = jax.random.split(jax.random.key(seed))
    u = jax.random.normal(control_key, (LENGTH + HORIZON, 1))
    truth = simulate(model, key, u)
    series = Series(
        SCALER.unscale_mean(truth.y), np.asarray(u) * SCALER.input_std[0] + SCALER.input_mean[0]
    )
    posterior = make_posterior(
        model,
        [make_series(LENGTH, output_dim=1)],
        weights=np.asarray(truth.weights)[None, None],
        leaves={},
        scaler=SCALER,
        states=[np.asarray(truth.states[: LENGTH + 1])[None, None]],
        chains=1,
        draws=1,
    )
    return posterior, series[:LENGTH], series[LENGTH:]


def coverages(count, num_particles):
    """Whether each output was covered, (series, level, step)."""
    model = make_model(output_dim=1)
    found = []
    for seed in range(count):
        posterior, seen, ahead = simulated(model, seed)
        informed = posterior.condition(
            seen, new_experiment=True, num_particles=num_particles, seed=seed
        )
        forecast = informed.forecast(HORIZON, ahead.u, num_paths=400, seed=seed)
        found.append([coverage(forecast.paths, ahead.y, level, by_step=True) for level in LEVELS])
    return np.array(found)


def assert_calibrated(found):
    """At every step the share lies within Monte-Carlo error of the level, and so does the average over steps."""
    levels, count = np.array(LEVELS)[:, None], len(found)
    error = np.sqrt(levels * (1 - levels) / count)
    assert np.abs((found.mean(0) - levels) / error).max() < 4
    # Steps of one series are alike: the error of their average is that between series.
    averages = found.mean(2)
    scores = (averages.mean(0) - levels[:, 0]) / (averages.std(0) / np.sqrt(count))
    assert np.abs(scores).max() < 3.5


@OUTSIDE
def test_intervals_cover_as_often_as_they_say():
    assert_calibrated(coverages(40, None))


@OUTSIDE
@pytest.mark.slow
@pytest.mark.parametrize("num_particles", [None, 200])
def test_intervals_cover_as_often_as_they_say_over_many_series(num_particles):
    assert_calibrated(coverages(200, num_particles))


def test_intervals_that_are_too_narrow_are_found_out():
    covered = (
        np.random.default_rng(0).random((40, 3, HORIZON)) < np.array([0.35, 0.65, 0.78])[:, None]
    )
    with pytest.raises(AssertionError):
        assert_calibrated(covered.astype(float))
