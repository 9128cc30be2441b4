"""The whitening coordinates: a bijection that makes a linear model's posterior exactly standard normal."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.core import linalg
from gpssm.core.linalg import block_cholesky
from gpssm.data.series import Series
from gpssm.methods.whitening import _couple, first_order, linearise, stack, unstack, whiten
from gpssm.model.likelihoods import LINKS, Custom, LinkedGaussian, Poisson
from gpssm.model.target import log_collapsed, log_target, weights_given_states

LENGTHS = (7, 5)
RANK = 12


def problem(basis, missing=True):
    model = builders.make_model(basis)
    series = [builders.make_series(n, missing=missing, seed=i) for i, n in enumerate(LENGTHS)]
    states = stack(tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate(LENGTHS)))
    return model, series, states


make = eqx.filter_jit(
    lambda model, states, series: whiten(jax.random.key(0), model, states, states[None], series, RANK)
)


@eqx.filter_jit
def curvature(model, whitening, series):
    """−∇² log q* in ξ at the centre."""

    def log_density(position):
        return log_collapsed(model, unstack(whitening.to_states(position), series), series)

    return -jax.hessian(log_density)(jnp.zeros(whitening.centre.size))


def test_stacking_is_undone():
    _, series, states = problem("linear")
    assert [len(path) for path in unstack(states, series)] == [8, 6]
    np.testing.assert_array_equal(stack(unstack(states, series)), states)


@pytest.mark.parametrize("basis", ["stacked", "linear"])
def test_positions_and_states_are_one_to_one(basis):
    model, series, states = problem(basis)
    whitening = make(model, states, series)
    position = jnp.asarray(np.random.default_rng(0).normal(size=states.size))
    np.testing.assert_allclose(whitening.to_position(whitening.to_states(position)), position, atol=1e-9)
    np.testing.assert_allclose(whitening.to_states(jnp.zeros(states.size)), states, atol=1e-12)


def test_linear_dynamics_are_whitened_exactly():
    """With weights that cannot move, the posterior is Gaussian and −∇² log q* is the identity in ξ."""
    model, series, states = problem("linear")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, -20.0)})
    np.testing.assert_allclose(curvature(model, make(model, states, series), series), np.eye(states.size), atol=1e-6)


def test_soft_directions_are_found_and_corrected():
    """Loose weights soften some directions; the measured correction brings them back to unit curvature."""
    model, _, _ = problem("linear")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, 1.0)})
    controls = np.random.default_rng(0).normal(size=(40, 1))
    truth = eqx.filter_jit(model.simulate)(jax.random.key(1), jnp.asarray(controls), jnp.zeros((2, model.basis.size)))
    series = [Series(np.asarray(truth.y), controls)]
    whitening = make(model, truth.states, series)
    plain = whitening._replace(stretch=jnp.zeros_like(whitening.stretch))
    before = np.linalg.eigvalsh(curvature(model, plain, series))
    after = np.linalg.eigvalsh(curvature(model, whitening, series))
    spread_before, spread_after = (np.sum(np.log(np.abs(values)) ** 2) for values in (before, after))
    assert np.abs(before).min() < 0.2
    assert spread_after < 0.4 * spread_before, (spread_before, spread_after)


def test_the_coupling_is_the_cross_derivative_of_states_and_weights():
    """Λ − UUᵀ has the Gauss–Newton blocks of the joint density, which are exact when f is linear in x."""
    model, series, states = problem("linear", missing=False)
    weights = weights_given_states(model, unstack(states, series), series)
    linear, gain = eqx.filter_jit(linearise)(model, states, series)
    found = linear.precision(model)
    joint = jax.jit(
        jax.hessian(lambda x: log_target(model, unstack(x.reshape(states.shape), series), weights.mean, series))
    )
    precision = -np.asarray(joint(jnp.ravel(states)))
    size = states.shape[1]
    for i in range(len(states)):
        block = precision[size * i : size * (i + 1)]
        np.testing.assert_allclose(found.diagonal[i], block[:, size * i : size * (i + 1)], atol=1e-8)
        if i:
            np.testing.assert_allclose(found.lower[i - 1], block[:, size * (i - 1) : size * i], atol=1e-8)
    assert np.isfinite(_couple(linear.jacobian, gain, weights.mean)).all()
    assert np.isfinite(block_cholesky(found).diagonal).all()
    slope = jax.grad(lambda x: log_target(model, unstack(x, series), weights.mean, series))(states)
    np.testing.assert_allclose(linear.pull(model), slope, atol=1e-8)


def test_information_of_other_likelihoods():
    """What outputs add to Λ: Fisher's information, and nothing where a likelihood cannot tell its moments."""
    model, series, states = problem("linear", missing=False)
    C, d = model.likelihood.C, model.likelihood.d
    rate = np.exp(states @ C.T + d[None])
    without = Custom(function=lambda x, y: -jnp.abs(y - x))
    for likelihood, weight in (
        (Poisson(C=C, d=d), rate),
        (LinkedGaussian(C=C, d=d, log_std=jnp.zeros(2), link=LINKS["abs"]), np.ones_like(rate)),
    ):
        found, none = (
            first_order(one, jnp.zeros((2, model.basis.size)), states, series).precision(one).diagonal
            for one in (eqx.tree_at(lambda m: m.likelihood, model, part) for part in (likelihood, without))
        )
        emits = np.concatenate([np.r_[0.0, np.ones(n)] for n in LENGTHS])
        expected = np.einsum("t,jk,tj,jl->tkl", emits, C, weight, C)
        np.testing.assert_allclose(found - none, expected, atol=1e-9)


@pytest.mark.parametrize("dense", [4096, 0], ids=["dense", "associative"])
def test_what_a_gpu_does_at_once_is_what_a_cpu_does_in_turn(monkeypatch, dense):
    model, series, states = problem("stacked")
    expected = make(model, states, series)
    monkeypatch.setattr(linalg, "on_cpu", lambda: False)
    monkeypatch.setattr(linalg, "DENSE", dense)
    found = eqx.filter_jit(lambda *z: whiten(jax.random.key(0), *z, RANK))(model, states, states[None], series)
    assert (found.dense is None) == (dense == 0)
    position = jnp.asarray(np.random.default_rng(0).normal(size=states.size))
    np.testing.assert_allclose(found.to_states(position), expected.to_states(position), atol=1e-9)
    np.testing.assert_allclose(found.to_position(states + 0.1), expected.to_position(states + 0.1), atol=1e-9)
