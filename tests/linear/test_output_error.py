"""Linear dynamics behind an emission without an inverse are recovered from their simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.data.padding import pad
from gpssm.data.series import Series
from gpssm.linear.descent import Modes, fit_output_error, loss, simulate
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec


@pytest.fixture(scope="module")
def series():
    """y = |x₁| with a slow, well-driven oscillator behind it."""
    rng = np.random.default_rng(0)
    u = np.repeat(rng.normal(size=20), 6)[:, None]
    x, y = np.zeros(2), []
    for control in u[:, 0]:
        turned = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]]) @ x
        x = 0.9 * turned + np.array([0.5, 0.1]) * control
        y.append(abs(x[0]))
    return Series(np.array(y) + 0.01 * rng.normal(size=len(y)), u)


@pytest.fixture(scope="module")
def found(series):
    return fit_output_error([series], 2, jnp.abs, jax.random.key(0))


def test_the_simulation_explains_the_outputs(series, found):
    linear, (states,), *_ = found
    predicted = np.abs(states[1:] @ np.asarray(linear.C).T + np.asarray(linear.d))
    assert np.sqrt(np.mean((predicted - series.y) ** 2)) < 0.1 * series.y.std()
    assert abs(np.abs(np.linalg.eigvals(np.asarray(linear.transition))).max() - 0.9) < 0.02


def test_states_are_the_models_own_and_of_unit_scale(series, found):
    linear, (states,), *_ = found
    moved = (
        states[:-1] @ np.asarray(linear.transition).T + series.u @ np.asarray(linear.input_map).T
    )
    np.testing.assert_allclose(states[1:], moved + np.asarray(linear.offset), atol=1e-8)
    np.testing.assert_allclose(states.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(states.T), np.eye(2), atol=1e-8)


def test_padding_leaves_the_error_as_it_is(series):
    """The mean over all rows, missing or not, of a simulation by NumPy."""
    some = Series(np.where(np.arange(101) % 7, series.y[:101, 0], np.nan), series.u[:101])
    modes = Modes(
        jnp.array([2.0]), jnp.array([0.4]), jnp.zeros(0), jnp.ones((2, 1)), jnp.ones((1, 2)), jnp.zeros(1),
        jnp.full((1, 2), 0.3),
    )  # fmt: skip
    padded, x, errors = pad(some), np.full(2, 0.3), []
    assert len(padded) > 101
    for row in range(101):
        x = np.asarray(modes.transition()) @ x + some.u[row]
        errors.append((some.y[row, 0] - abs(x.sum())) ** 2 / 0.5)
    value = loss(modes, [padded], jnp.asarray([0.5]), jnp.abs)
    np.testing.assert_allclose(value, np.nansum(errors) / 101, rtol=1e-10)


def test_modes_make_a_stable_transition():
    modes = Modes(
        jnp.array([5.0]), jnp.array([0.4]), jnp.array([-3.0]), jnp.ones((3, 1)), jnp.ones((1, 3)), jnp.zeros(1),
        jnp.zeros((1, 3)),
    )  # fmt: skip
    eigenvalues = np.linalg.eigvals(np.asarray(modes.transition()))
    assert np.abs(eigenvalues).max() < 0.999
    np.testing.assert_allclose(sorted(np.angle(eigenvalues)), [-0.4, 0.4, np.pi])
    assert simulate(modes, jnp.ones(3), jnp.zeros((4, 1))).shape == (5, 3)


def test_models_with_such_an_emission_start_from_it(series, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "gpssm.linear.fit.fit_output_error",
        lambda *given: asked.append(given) or fit_output_error(*given),
    )
    monkeypatch.setattr("gpssm.linear.descent.NUM_STEPS", 5)
    linear_fit([series], Spec(state_dim=2, likelihood="softplus"))
    assert not asked
    assert linear_fit([series], Spec(state_dim=2, likelihood="abs")).state_dim == 2
    assert len(asked) == 1
