"""Starts by name, and the regimes of the process noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model, make_series, make_states
from gpssm.data.series import Series
from gpssm.linear import output_error
from gpssm.model.conditionals import process_noise_given
from gpssm.model.priors import InverseGamma
from gpssm.starts import shooting
from gpssm.starts import start as starts
from gpssm.starts.build import Parts, linear_start
from gpssm.starts.start import AFTER_SHOOTING, SMALL, STARTS, make_start, with_noise


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    monkeypatch.setattr(output_error, "NUM_STEPS", 100)
    monkeypatch.setattr(output_error, "NUM_STARTS", 4)
    monkeypatch.setattr(output_error, "NUM_LBFGS", 50)
    monkeypatch.setattr(starts, "shoot_all", lambda aims: [shooting.shoot(*aim, num_steps=20) for aim in aims])


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    u = np.repeat(rng.normal(size=9), 6)[:54, None]
    x, y = np.zeros(2), []
    for control in u[:, 0]:
        x = np.array([[0.9, 0.2], [-0.2, 0.9]]) @ np.tanh(x) + np.array([0.1, 0.4]) * control
        y.append(x[0])
    return [Series(np.array(y)[:, None] / np.std(y) + 0.01 * rng.normal(size=(54, 1)), u)]


PARTS = Parts(2, 8)


@pytest.mark.parametrize("name", STARTS)
def test_each_start_is_a_model_and_a_path_of_states(series, name):
    start = make_start(name, series, PARTS, jax.random.key(0))
    (path,) = start.states
    assert path.shape == (55, 2)
    assert np.isfinite(path).all()
    seen = start.model.likelihood.emission(jnp.asarray(path[1:]))
    assert np.sqrt(np.mean((seen - series[0].y) ** 2)) < 0.5
    if STARTS[name].shooting:
        np.testing.assert_allclose(np.exp(start.model.log_process_std), AFTER_SHOOTING)


def test_a_linear_fit_can_be_handed_over_and_fixed_leaves_stay(series):
    linear = linear_start(series, 2)
    start = make_start("em+shooting", series, PARTS, jax.random.key(0), ["kernel.*"], linear)
    again = make_start("em", series, PARTS, jax.random.key(0), linear=linear)
    assert again.states is linear.states
    np.testing.assert_allclose(start.model.kernel.log_lengthscale, again.model.kernel.log_lengthscale)
    assert not np.allclose(start.model.likelihood.C, again.model.likelihood.C)


def test_unknown_starts_are_named(series):
    with pytest.raises(KeyError, match="Known: em, output-error"):
        make_start("magic", series, PARTS, jax.random.key(0))


def test_small_noise_is_held_by_a_prior_worth_as_many_rows():
    model, series, states = make_model(), make_series(40), make_states(40)
    free, small = with_noise(model, "free", 40), with_noise(model, "small", 40)
    assert free is model
    np.testing.assert_allclose(np.exp(small.log_process_std), SMALL)
    prior = small.priors["log_process_std"]
    assert isinstance(prior, InverseGamma)
    # The prior adds 40 residuals of size s to those of the 40 rows.
    weights = jnp.zeros((2, model.basis.size))
    plain, held = (process_noise_given(one, states, weights, series) for one in (model, small))
    np.testing.assert_allclose(held.shape, 40.0)
    own = plain.scale - model.priors["log_process_std"].scale
    np.testing.assert_allclose(held.scale, own + 20 * SMALL**2)
    np.testing.assert_allclose(np.exp(with_noise(model, 0.1, 40).log_process_std), 0.1)


@pytest.mark.parametrize("noise", ["loud", 0.0, -1.0])
def test_a_regime_that_is_none_is_refused(noise):
    with pytest.raises(ValueError, match="noise must be"):
        with_noise(make_model(), noise, 40)
