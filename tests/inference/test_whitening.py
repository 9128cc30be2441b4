"""The whitening coordinates: a bijection that makes a linear model's posterior exactly standard normal."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.core import linalg, loops
from gpssm.core.linalg import block_cholesky
from gpssm.data.padding import pad, pad_path
from gpssm.inference.whitening import (
    Coupling,
    between,
    first_order,
    linearise,
    unstack,
    whiten,
)
from gpssm.model.likelihoods import LINKS, Custom, LinkedGaussian, Poisson
from gpssm.model.target import log_collapsed, log_target, weights_given_states

LENGTHS = (7, 5)
RANK = 12


def problem(basis, missing=True):
    model = builders.make_model(basis)
    series = [builders.make_series(n, missing=missing, seed=i) for i, n in enumerate(LENGTHS)]
    states = jnp.concatenate(
        tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate(LENGTHS))
    )
    return model, series, states


make = eqx.filter_jit(lambda model, states, series: whiten(model, states, series, RANK))
at = eqx.filter_jit(lambda whitening, model: whitening.at(model))


@eqx.filter_jit
def curvature(model, coordinates, series):
    """−∇² log q* in ξ at the centre."""

    def log_density(position):
        return log_collapsed(model, unstack(coordinates.to_states(position), series), series)

    return -jax.hessian(log_density)(jnp.zeros(coordinates.centre.size))


def test_stacking_is_undone():
    _, series, states = problem("linear")
    assert [len(path) for path in unstack(states, series)] == [8, 6]
    np.testing.assert_array_equal(jnp.concatenate(unstack(states, series)), states)


@pytest.mark.parametrize("basis", ["stacked", "linear"])
def test_positions_and_states_are_one_to_one(basis):
    model, series, states = problem(basis)
    whitening = make(model, states, series)
    position = jnp.asarray(np.random.default_rng(0).normal(size=states.size))
    for noisier in (0.0, 2.0, -2.0):
        coordinates = at(whitening, with_noise(model, noisier))
        np.testing.assert_allclose(
            coordinates.to_position(coordinates.to_states(position)), position, atol=1e-9
        )
        np.testing.assert_allclose(
            coordinates.to_states(jnp.zeros(states.size)), states, atol=1e-12
        )


def test_states_that_pad_stand_alone():
    """Λ and the pull are those of the series' own states, beside N(0, I) for each that pads; W has none of these."""
    model, series, states = problem("stacked")
    padded = [pad(one) for one in series]
    path = jnp.concatenate(tuple(jnp.asarray(pad_path(one)) for one in unstack(states, series)))
    real = np.concatenate([np.arange(9) < 8, np.arange(9) < 6])

    @eqx.filter_jit
    def gaussian(states, series):
        linear = linearise(model, states, series)
        return linear.precision(model), linear.gradient(model)

    alone, pull = jax.tree.map(np.asarray, gaussian(states, series))
    found, found_pull = jax.tree.map(np.asarray, gaussian(path, padded))
    np.testing.assert_allclose(found.diagonal[real], alone.diagonal, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found_pull[real], pull, rtol=1e-10, atol=1e-10)
    assert np.all(found.diagonal[~real] == np.eye(2))
    inside = np.r_[np.arange(8) < 7, False, np.arange(8) < 5]
    np.testing.assert_allclose(
        found.lower[inside], np.delete(alone.lower, 7, 0), rtol=1e-10, atol=1e-10
    )
    assert np.all(found.lower[~inside] == 0)
    assert np.all(
        np.asarray(make(model, path, padded).directions).reshape(-1, *path.shape)[:, ~real] == 0
    )


def with_noise(model, louder):
    """The model with so much more of the log of the first state's noise, and half as much less of the others'."""
    return model.with_leaves(
        {"log_process_std": model.log_process_std + jnp.asarray([louder, -0.5 * louder])}
    )


@pytest.mark.parametrize("louder", [0.0, 1.5])
def test_linear_dynamics_are_whitened_exactly(louder):
    """With weights that cannot move, the posterior is Gaussian and −∇² log q* is the identity in ξ, at any noises."""
    model, series, states = problem("linear")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, -20.0)})
    whitening, model = make(model, states, series), with_noise(model, louder)
    np.testing.assert_allclose(
        curvature(model, at(whitening, model), series), np.eye(states.size), atol=2e-3
    )


def gains(model, series, states):
    """A along the path (Dx, N−1, M), zero from one series to the next."""
    pairs = zip(unstack(states, series), series, strict=True)
    parts = [
        jnp.moveaxis(model.transition()(path[:-1], jnp.asarray(one.u)).gain, 1, 0)
        for path, one in pairs
    ]
    return jnp.moveaxis(between(parts), 0, 1)


@eqx.filter_jit
def linear_parts(model, series, states):
    """The linear dynamics along the path, its gains, and Λ."""
    linear = linearise(model, states, series)
    return linear, gains(model, series, states), linear.precision(model)


@eqx.filter_jit
def slopes(coordinates):
    """∂x/∂ξ at the centre."""
    return jax.jacobian(coordinates.to_states)(jnp.zeros(coordinates.centre.size))


def gauss_newton(model, series, states):
    """Λ − Σ_d (A_dᵀD_d)ᵀ (Q_d I + A_dᵀA_d)⁻¹ (A_dᵀD_d) / Q_d, whole, with D x = F x_t − x_{t+1}."""
    linear, gain, precision = jax.tree.map(np.asarray, linear_parts(model, series, states))
    size, count = states.shape[1], len(states)
    whole = np.zeros((count, size, count, size))
    for t in range(count):
        whole[t, :, t] = precision.diagonal[t]
        if t:
            whole[t, :, t - 1] = precision.lower[t - 1]
            whole[t - 1, :, t] = precision.lower[t - 1].T
    whole = whole.reshape(states.size, states.size)
    for d, variance in enumerate(np.asarray(model.process_variance)):
        pulls = np.zeros((count - 1, count, size))
        for t in range(count - 1):
            pulls[t, t], pulls[t, t + 1, d] = linear.jacobian[t, d], -1
        cross = gain[d].T @ pulls.reshape(count - 1, -1)
        whole -= (
            cross.T
            @ np.linalg.solve(variance * np.eye(len(cross)) + gain[d].T @ gain[d], cross)
            / variance
        )
    return whole


@pytest.mark.parametrize("louder", [0.0, 0.7, -0.7])
def test_soft_directions_are_found_and_corrected(louder):
    """Loose weights soften some directions: all are brought back to unit curvature, at other noises most of the way."""
    model, series, states = problem("linear")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, 1.0)})
    whitening, model = make(model, states, series), with_noise(model, louder)
    precision = gauss_newton(model, series, states)
    coordinates = at(whitening, model)
    plain = coordinates._replace(stretch=jnp.zeros_like(coordinates.stretch))

    def spectrum(coordinates):
        map_ = np.asarray(slopes(coordinates)).reshape(states.size, -1)
        return np.linalg.eigvalsh(map_.T @ precision @ map_)

    before, after = spectrum(plain), spectrum(coordinates)
    assert before.min() < 0.2
    assert np.abs(np.log(after)).max() < (
        0.05 if louder == 0 else 0.5 * np.abs(np.log(before)).max()
    )


def test_the_coupling_is_the_cross_derivative_of_states_and_weights():
    """Λ − UUᵀ has the Gauss–Newton blocks of the joint density, which are exact when f is linear in x."""
    model, series, states = problem("linear", missing=False)

    @eqx.filter_jit
    def derivatives(model, states, series):
        weights = weights_given_states(model, unstack(states, series), series)

        def joint(x):
            return log_target(model, unstack(x, series), weights.mean, series)

        return jax.grad(joint)(states), jax.hessian(joint)(states)

    linear, _, found = linear_parts(model, series, states)
    slope, bend = derivatives(model, states, series)
    precision = -np.asarray(bend).reshape(states.size, -1)
    size = states.shape[1]
    for i in range(len(states)):
        block = precision[size * i : size * (i + 1)]
        np.testing.assert_allclose(
            found.diagonal[i], block[:, size * i : size * (i + 1)], atol=1e-8
        )
        if i:
            np.testing.assert_allclose(
                found.lower[i - 1], block[:, size * (i - 1) : size * i], atol=1e-8
            )
    assert np.isfinite(block_cholesky(found).diagonal).all()
    np.testing.assert_allclose(linear.gradient(model), slope, atol=1e-8)


@pytest.mark.parametrize("chunk", [512, 2])
def test_products_of_the_coupling_are_those_with_the_gain(chunk, monkeypatch):
    """Also where rows are taken in chunks: AᵀD x, and its transpose, with D x = F x_t − x_{t+1}."""
    monkeypatch.setattr(loops, "CHUNK", chunk)
    model, series, states = problem("stacked")
    rng = np.random.default_rng(1)

    @eqx.filter_jit
    def products(model, states, series, columns, weights):
        jacobian = linearise(model, states, series).jacobian
        u, moves = [jnp.asarray(one.u) for one in series], [jnp.ones(len(one)) for one in series]
        coupling = Coupling(model, (states[:-1], between(u), between(moves)), jacobian)
        return (
            jacobian,
            gains(model, series, states),
            coupling.cross(columns),
            coupling.transposed(weights),
        )

    columns, weights = (
        rng.normal(size=(*states.shape, 3)),
        rng.normal(size=(2, model.basis.size, 3)),
    )
    jacobian, gain, cross, transposed = map(
        np.asarray, products(model, states, series, columns, weights)
    )
    errors = np.einsum("tij,tjr->tir", jacobian, columns[:-1]) - columns[1:]
    expected = np.einsum("dtm,tdr->dmr", gain, errors)
    np.testing.assert_allclose(cross, expected, rtol=1e-9, atol=1e-11)
    there = np.sum(expected * weights)  # wᵀ(AᵀD x) = (DᵀA w)ᵀx
    np.testing.assert_allclose(np.sum(transposed * columns), there, rtol=1e-9)


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
            first_order(one, jnp.zeros((2, model.basis.size)), states, series)
            .precision(one)
            .diagonal
            for one in (
                eqx.tree_at(lambda m: m.likelihood, model, part) for part in (likelihood, without)
            )
        )
        emits = np.concatenate([np.r_[0.0, np.ones(n)] for n in LENGTHS])
        expected = np.einsum("t,jk,tj,jl->tkl", emits, C, weight, C)
        np.testing.assert_allclose(found - none, expected, atol=1e-9)


@pytest.mark.parametrize("dense", [4096, 0], ids=["dense", "associative"])
def test_what_a_gpu_does_at_once_is_what_a_cpu_does_in_turn(monkeypatch, dense):
    model, series, states = problem("stacked")
    expected = make(model, states, series).at(model)
    monkeypatch.setattr(linalg, "on_cpu", lambda: False)
    monkeypatch.setattr(linalg, "DENSE", dense)
    found = eqx.filter_jit(lambda *z: whiten(*z, RANK).at(z[0]))(model, states, series)
    assert (found.dense is None) == (dense == 0)
    position = jnp.asarray(np.random.default_rng(0).normal(size=states.size))
    np.testing.assert_allclose(found.to_states(position), expected.to_states(position), atol=1e-9)
    np.testing.assert_allclose(
        found.to_position(states + 0.1), expected.to_position(states + 0.1), atol=1e-9
    )
