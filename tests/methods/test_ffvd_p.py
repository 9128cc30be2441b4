"""Particle Gibbs against quadrature over short series, and the predictive target against dense formulas."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, poisson

import builders
from gpssm.data.series import Series
from gpssm.methods import ParticleGibbs
from gpssm.methods.particle_gibbs import (
    log_collapsed_predictive,
    weights_given_states_predictive,
)
from gpssm.model.likelihoods import Poisson

LIMIT = 4.5  # standard errors


def small_model(likelihood="gaussian"):
    """One state, a rough transition that two inducing points leave uncertain, and two steps."""
    model = builders.make_model("inducing", state_dim=1, input_dim=0, output_dim=1, num=2)
    leaves = {
        "kernel.log_variance": jnp.array([-0.5]),
        "kernel.log_lengthscale": jnp.array([[-0.5]]),
    }
    model = model.with_leaves(leaves).with_roles("fix", "*")
    if likelihood == "gaussian":
        return model, builders.make_series(2, 0, 1)
    counts = Poisson(C=model.likelihood.C, d=model.likelihood.d)
    return eqx.tree_at(lambda m: m.likelihood, model, counts), Series(np.array([[2.0], [0.0]]))


def log_emission(model, x, y):
    predictor = float(model.likelihood.C[0, 0]) * x + float(model.likelihood.d[0])
    if isinstance(model.likelihood, Poisson):
        return poisson.logpmf(y, np.exp(predictor))
    return norm.logpdf(y, predictor, np.exp(float(model.likelihood.log_std[0])))


def quadrature(model, series, target):
    """E[x_t] and E[x_t²], t = 0, 1, 2, over a cube, with the weights integrated out: r ~ N(0, A Aᵀ + noise)."""
    grid = np.linspace(-5, 5, 121)
    step = model.transition()(jnp.asarray(grid)[:, None], jnp.zeros((121, 0)))
    mean, gain, residual = (
        np.asarray(step.mean)[:, 0],
        np.asarray(step.gain)[0],
        np.asarray(step.residual)[0],
    )
    variance = np.exp(2 * float(model.log_process_std[0]))
    noise = variance + (residual if target == "predictive" else 0 * residual)
    penalty = residual / (2 * variance) if target == "posterior" else 0 * residual
    # Axes are x₀, x₁, x₂; the two errors have covariance [[a, c], [c, b]].
    first, second = (grid[None] - mean[:, None])[:, :, None], (grid[None] - mean[:, None])[None]
    own = np.sum(gain**2, -1) + noise
    a, b, c = own[:, None, None], own[None, :, None], (gain @ gain.T)[:, :, None]
    det = a * b - c**2
    value = -0.5 * (np.log(det) + (b * first**2 - 2 * c * first * second + a * second**2) / det)
    value = (
        value + norm.logpdf(grid)[:, None, None] - penalty[:, None, None] - penalty[None, :, None]
    )
    value = value + log_emission(model, grid, series.y[0, 0])[None, :, None]
    value = value + log_emission(model, grid, series.y[1, 0])[None, None, :]
    mass = np.exp(value - value.max())
    mass /= mass.sum()
    single = [mass.sum((1, 2)), mass.sum((0, 2)), mass.sum((0, 1))]
    return np.array([one @ grid for one in single]), np.array([one @ grid**2 for one in single])


def batch_scores(values, expected, batches=100):
    """How far averages over time lie from the truth, in standard errors between batches."""
    means = values.reshape(batches, -1, *values.shape[1:]).mean(1)
    return (means.mean(0) - expected) / (means.std(0, ddof=1) / np.sqrt(batches))


@pytest.mark.parametrize(
    ("target", "likelihood", "num_particles"),
    [("posterior", "gaussian", 5), ("predictive", "gaussian", 5), ("posterior", "poisson", 20)],
)
def test_states_match_quadrature(target, likelihood, num_particles):
    model, series = small_model(likelihood)
    method = ParticleGibbs(num_warmup=0, num_particles=num_particles, target=target).build(
        model, (jnp.zeros((3, 1)),)
    )

    @jax.jit
    def run(key):
        def step(carry, key):
            carry, info = method.step(key, carry, [series])
            return carry, (carry.states[0][:, 0], info)

        return jax.lax.scan(step, method.init(key, [series]), jax.random.split(key, 12_000))[1]

    states, info = run(jax.random.key(0))
    first, second = quadrature(model, series, target)
    assert np.abs(batch_scores(np.asarray(states), first)).max() < LIMIT
    assert np.abs(batch_scores(np.asarray(states) ** 2, second)).max() < LIMIT
    assert np.all(np.asarray(info.acceptance) >= 0)
    assert 0.5 < np.mean(info.acceptance) < 1
    assert not np.any(info.divergent)
    np.testing.assert_array_equal(info.energy, -info.log_target)


def test_predictive_conditional_and_collapsed_density_match_numpy():
    """Dense: r_d ~ N(0, A_d A_dᵀ + diag(B_d + Q_d)), and log p(x, y) = log p(v, x, y) − log p(v | x) at any v."""
    model = builders.make_model("stacked")
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 4))]
    states = tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate((5, 4)))
    x, following = (
        np.concatenate([path[part] for path in states])
        for part in (slice(None, -1), slice(1, None))
    )
    step = model.transition()(
        jnp.asarray(x), jnp.asarray(np.concatenate([one.u for one in series]))
    )
    error = following - np.asarray(step.mean)
    gain, spread = (
        np.asarray(step.gain),
        np.asarray(step.residual + model.process_variance[:, None]),
    )
    fitted = following @ np.asarray(model.likelihood.C).T + np.asarray(model.likelihood.d)
    outputs = norm.logpdf(
        np.concatenate([one.y for one in series]),
        fitted,
        np.exp(np.asarray(model.likelihood.log_std)),
    )
    boundary = np.nansum(outputs) + sum(norm.logpdf(path[0]).sum() for path in states)
    collapsed = float(eqx.filter_jit(log_collapsed_predictive)(model, states, series))
    covariances = [gain[d] @ gain[d].T + np.diag(spread[d]) for d in range(2)]
    dense = sum(multivariate_normal.logpdf(error[:, d], cov=covariances[d]) for d in range(2))
    np.testing.assert_allclose(collapsed, boundary + dense, rtol=1e-9)
    found = eqx.filter_jit(weights_given_states_predictive)(model, states, series)
    weights = np.random.default_rng(1).normal(size=found.mean.shape)
    joint = boundary + norm.logpdf(weights).sum()
    joint += sum(
        norm.logpdf(error[:, d], gain[d] @ weights[d], np.sqrt(spread[d])).sum() for d in range(2)
    )
    rows = zip(weights, found.mean, found.precision, strict=True)
    conditional = sum(
        multivariate_normal.logpdf(v, mean, np.linalg.inv(precision)) for v, mean, precision in rows
    )
    np.testing.assert_allclose(joint - conditional, collapsed, rtol=1e-9)


@pytest.mark.slow
def test_one_iteration_moves_states_and_every_free_leaf():
    """With the predictive target Q has no exact draw: every kind of move of the parameters has its turn."""
    model = builders.make_model("stacked").with_roles("sample", "log_process_std", "likelihood.*")
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 4))]
    states = tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate((5, 4)))
    method = ParticleGibbs(num_warmup=10, num_particles=20, target="predictive").build(
        model, states
    )
    carry = method.init(jax.random.key(0), series)
    moved, info = jax.jit(method.step)(jax.random.key(1), carry, series)
    changed = [
        np.any(np.asarray(new != old), -1)
        for new, old in zip(moved.states, carry.states, strict=True)
    ]
    np.testing.assert_allclose(info.acceptance, np.concatenate(changed).mean())
    assert info.acceptance > 0.5
    for name, leaf in carry.parameters.leaves.items():
        assert np.all(moved.parameters.leaves[name] != leaf), name
    draw = jax.jit(method.draw)(jax.random.key(2), moved, series)
    assert draw.weights.shape == (2, model.basis.size)
    assert [path.shape for path in draw.states] == [(6, 2), (5, 2)]
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, carry)
    assert moved.iteration == 1
