"""Starts by name, and the regimes of the process noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model, make_series, make_states
from gpssm.data.series import Series
from gpssm.linear import descent
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec
from gpssm.model.conditionals import process_noise_given
from gpssm.model.priors import InverseGamma
from gpssm.starts import shooting
from gpssm.starts import start as starts
from gpssm.starts.build import Start
from gpssm.starts.start import AFTER_SHOOTING, SMALL, STARTS, make_starts, with_noise


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    monkeypatch.setattr(descent, "NUM_STEPS", 100)
    monkeypatch.setattr(descent, "NUM_STARTS", 4)
    monkeypatch.setattr(descent, "NUM_LBFGS", 50)
    monkeypatch.setattr(
        starts,
        "shoot_all",
        lambda *pair: [shooting.shoot(*one, num_steps=20) for one in zip(*pair, strict=True)],
    )


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    u = np.repeat(rng.normal(size=9), 6)[:54, None]
    x, y = np.zeros(2), []
    for control in u[:, 0]:
        x = np.array([[0.9, 0.2], [-0.2, 0.9]]) @ np.tanh(x) + np.array([0.1, 0.4]) * control
        y.append(x[0])
    return [Series(np.array(y)[:, None] / np.std(y) + 0.01 * rng.normal(size=(54, 1)), u)]


SPEC = Spec(state_dim=2, num_inducing=8, likelihood="gaussian")


def make_start(name, series, spec=SPEC, linear=None):
    linear = STARTS[name].linear(series, spec) if linear is None else linear
    (start,) = make_starts(name, spec, [series], [linear], [jax.random.key(0)])
    return start


@pytest.mark.parametrize("name", STARTS)
def test_each_start_is_a_model_and_a_path_of_states(series, name):
    start = make_start(name, series)
    (path,) = start.states
    assert path.shape == (55, 2)
    assert np.isfinite(path).all()
    seen = start.model.likelihood.emission(jnp.asarray(path[1:]))
    assert np.sqrt(np.mean((seen - series[0].y) ** 2)) < 0.5
    if STARTS[name].shooting:
        np.testing.assert_allclose(np.exp(start.model.log_process_std), AFTER_SHOOTING)


def test_a_linear_fit_can_be_handed_over_and_fixed_leaves_stay(series):
    linear = linear_fit(series, Spec(state_dim=2))
    start = make_start("em+shooting", series, SPEC.replace(fixed=["kernel.*"]), linear)
    again = make_start("em", series, linear=linear)
    assert again.states is linear.states
    np.testing.assert_allclose(
        start.model.kernel.log_lengthscale, again.model.kernel.log_lengthscale
    )
    assert not np.allclose(start.model.likelihood.C, again.model.likelihood.C)


def test_unknown_starts_are_named():
    with pytest.raises(KeyError, match="Known: auto, em, output-error"):
        Spec(start="magic")


def test_small_noise_is_held_by_a_prior_worth_as_many_rows():
    model, series, states = make_model(), make_series(40), make_states(40)
    start = Start(model, [states])
    assert with_noise(start, "free") is start
    small = with_noise(start, "small").model
    np.testing.assert_allclose(np.exp(small.log_process_std), SMALL)
    prior = small.priors["log_process_std"]
    assert isinstance(prior, InverseGamma)
    # The prior adds 40 residuals of size s to those of the 40 rows.
    weights = jnp.zeros((2, model.basis.size))
    plain, held = (process_noise_given(one, states, weights, series) for one in (model, small))
    np.testing.assert_allclose(held.shape, 40.0)
    own = plain.scale - model.priors["log_process_std"].scale
    np.testing.assert_allclose(held.scale, own + 20 * SMALL**2)
    np.testing.assert_allclose(np.exp(with_noise(start, 0.1).model.log_process_std), 0.1)


@pytest.mark.parametrize("noise", ["loud", 0.0, -1.0])
def test_a_regime_that_is_none_is_refused(noise):
    with pytest.raises(ValueError, match="noise must be"):
        with_noise(Start(make_model(), [make_states(40)]), noise)
