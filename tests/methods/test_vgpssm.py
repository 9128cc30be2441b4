"""VGPSSM against quadrature over short series, Kalman smoothing, and the identities of its bound."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import builders
from gpssm.core.linalg import selected_inverse
from gpssm.linear.state_space import LinearSSM, log_marginal, smooth
from gpssm.methods import vgpssm
from gpssm.methods.vgpssm import VGPSSM
from gpssm.model.target import transition_statistics, weights_given_states
from gpssm.model.types import GaussianWeights
from two_steps import TwoSteps

LIMIT = 4.5  # standard errors


@pytest.fixture(scope="module")
def quadrature():
    return TwoSteps()


@functools.partial(jax.jit, static_argnames="count")
def estimate(model, weights, series, seed, count):
    """Independent estimates of log Z − KL[q(v) ‖ p(v)], of which exp is unbiased, by 100 particles
    of a bootstrap filter of the auxiliary model."""
    form = vgpssm.auxiliary(model, weights, series)

    def log_normaliser(key):
        def step(x, row):
            t, key = row
            noise_key, parent_key = jax.random.split(key)
            mean, variance = form.moments(t, x)
            moved = mean + jnp.sqrt(variance) * jax.random.normal(noise_key, x.shape)
            log_weight = form.log_potential(t, x, moved)
            parents = jax.random.categorical(parent_key, log_weight, shape=(len(x),))
            return moved[parents], jax.scipy.special.logsumexp(log_weight) - jnp.log(len(x))

        start_key, path_key = jax.random.split(key)
        start = jax.random.normal(start_key, (100, model.state_dim))
        rows = jnp.arange(len(series)), jax.random.split(path_key, len(series))
        return jnp.sum(jax.lax.scan(step, start, rows)[1])

    keys = jax.random.split(jax.random.key(seed), count)
    return jax.lax.map(log_normaliser, keys, batch_size=50) - vgpssm.divergence(weights)


def gaussian(mean, cov):
    return GaussianWeights(jnp.asarray(mean)[None], jnp.linalg.inv(jnp.asarray(cov))[None])


def test_bound_is_unbiased_in_the_particles_and_orders_as_theory_says(quadrature):
    mean, cov = quadrature.best
    found = quadrature.bound(mean, cov)
    assert (
        quadrature.bound(np.array([0.4, -0.2]), np.diag([0.3, 0.6])) < found < quadrature.free_form
    )
    assert quadrature.free_form < quadrature.exact
    for shift in (np.array([0.05, 0.0]), np.array([0.0, -0.05])):
        assert quadrature.bound(mean + shift, cov) < found > quadrature.bound(mean - shift, cov)
    for scale in (0.9, 1.1):
        assert quadrature.bound(mean, scale * cov) < found
    values = estimate(quadrature.model, gaussian(mean, cov), quadrature.series, 0, 2000)
    ratios = np.exp(np.asarray(values) - found)
    assert abs(ratios.mean() - 1) < LIMIT * ratios.std() / np.sqrt(len(ratios))
    assert ratios.std() < 0.5


def run(method, series, count, seed=0):
    """Carries and figures of `count` iterations."""

    @jax.jit
    def go(key):
        def step(carry, key):
            carry, info = method.step(key, carry, series)
            return carry, (carry.states[0], info)

        return jax.lax.scan(step, method.init(key, series), jax.random.split(key, count))

    return go(jax.random.key(seed))


def test_learning_ends_at_the_best_weights(quadrature):
    """On average over independent runs, each of which ends in the noise of its own paths."""
    config = VGPSSM(num_warmup=1200, num_particles=8)
    method, series = config.build(quadrature.model, (jnp.zeros((3, 1)),)), [quadrature.series]

    @jax.jit
    def learn(keys):
        def step(carries, iteration):
            moved = jax.vmap(
                lambda carry, key: method.step(jax.random.fold_in(key, iteration), carry, series)
            )
            return moved(carries, keys)

        start = jax.tree.map(
            lambda leaf: jnp.stack([leaf] * len(keys)), method.init(keys[0], series)
        )
        return jax.lax.scan(step, start, jnp.arange(config.num_shared(quadrature.model)))

    carries, info = learn(jax.random.split(jax.random.key(0), 100))
    mean, cov = quadrature.best
    precision = np.asarray(carries.natural.precision[:, 0])
    np.testing.assert_allclose(precision.mean(0), np.linalg.inv(cov), atol=0.02)
    np.testing.assert_allclose(
        carries.natural.linear[:, 0].mean(0), np.linalg.solve(cov, mean), atol=0.02
    )
    np.testing.assert_allclose(
        np.mean(info.log_target[600:]), quadrature.bound(mean, cov), atol=0.1
    )


def linear_problem(length=5):
    """A linear transition with certain weights: the auxiliary model is linear and Gaussian."""
    model = builders.make_model("linear").with_roles("fix", "*")
    mean = np.random.default_rng(7).normal(size=(2, 4))
    linear = builders.linear_given(model, mean)
    weights = GaussianWeights(jnp.asarray(mean), 1e10 * jnp.broadcast_to(jnp.eye(4), (2, 4, 4)))
    return model, weights, builders.make_series(length, missing=True), linear


def test_certain_weights_give_the_kalman_smoother_and_evidence():
    model, weights, series, linear = linear_problem()
    method = VGPSSM(num_warmup=0, num_particles=10).build(model, (jnp.zeros((6, 2)),))
    carry = jax.jit(method.init)(jax.random.key(0), [series])
    linear_term = jnp.einsum("dij,dj->di", weights.precision, weights.mean)
    fixed = carry._replace(natural=vgpssm.Natural(linear_term, weights.precision))
    after, (paths, _) = run(
        SimpleNamespace(init=lambda key, series: fixed, step=method.step), [series], 4000
    )
    for leaf, before in zip(after.natural, fixed.natural, strict=True):
        np.testing.assert_array_equal(leaf, before)
    posterior = smooth(linear, series)
    error = np.asarray(paths) - np.asarray(posterior.mean)
    products = np.einsum("std,ste->stde", error, error) - np.asarray(
        jax.jit(selected_inverse)(posterior.factor).diagonal
    )
    for values in (error, products):
        means = values.reshape(100, 40, -1).mean(1)
        assert np.abs(means.mean(0) / (means.std(0, ddof=1) / 10)).max() < LIMIT
    found = np.asarray(estimate(model, weights, series, 1, 1000))
    ratios = np.exp(found + float(vgpssm.divergence(weights)) - float(log_marginal(linear, series)))
    assert abs(ratios.mean() - 1) < LIMIT * ratios.std() / np.sqrt(len(ratios))


def test_the_bound_is_the_evidence_when_weights_do_not_matter():
    """With no prior variance q(v) = p(v) is the posterior, and the bound is tight."""
    model, _, series, _ = linear_problem()
    model = model.with_leaves({"basis.log_scale": jnp.full((2, 4), -20.0)})
    prior = GaussianWeights(jnp.zeros((2, 4)), jnp.broadcast_to(jnp.eye(4), (2, 4, 4)))
    parts = (
        model.mean.transition,
        model.mean.input_map,
        model.mean.offset,
        model.likelihood.C,
        model.likelihood.d,
    )
    linear = LinearSSM(*parts, jnp.diag(model.process_variance), jnp.exp(model.likelihood.log_std))
    ratios = np.exp(
        np.asarray(estimate(model, prior, series, 2, 1000)) - log_marginal(linear, series)
    )
    assert abs(ratios.mean() - 1) < LIMIT * ratios.std() / np.sqrt(len(ratios))


@pytest.fixture(scope="module")
def several():
    """Two series of unequal length with missing outputs, and states of each."""
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 4))]
    states = tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate((5, 4)))
    return (
        builders.make_model("stacked").with_roles("sample", "log_process_std", "likelihood.*"),
        series,
        states,
    )


@jax.jit
def bound_given_states(natural, statistics, variance):
    """The part of the bound that depends on q(v), its two terms apart, for nine transitions."""
    weights = natural.weights()
    return vgpssm.expected_transition(statistics, weights, variance, 9), vgpssm.divergence(weights)


def test_best_weights_are_a_stationary_point_of_dense_formulas(several):
    model, series, states = several
    variance = model.process_variance
    x, following = (
        np.concatenate([path[part] for path in states])
        for part in (slice(None, -1), slice(1, None))
    )
    u = jnp.asarray(np.concatenate([one.u for one in series]))
    statistics, exact, step = jax.jit(
        lambda: (
            transition_statistics(model, states, series),
            weights_given_states(model, states, series),
            model.transition()(jnp.asarray(x), u),
        )
    )()
    best = vgpssm.best_weights(statistics, variance)
    np.testing.assert_allclose(best.weights().mean, exact.mean, rtol=1e-9)
    expected, divergence = bound_given_states(best, statistics, variance)

    cov, gain = np.linalg.inv(np.asarray(best.precision)), np.asarray(step.gain)
    mean = np.asarray(step.mean) + np.einsum("dnm,dm->nd", gain, exact.mean)
    spread = np.einsum("dnm,dmk,dnk->d", gain, cov, gain) + np.asarray(step.residual).sum(1)
    density = norm.logpdf(following, mean, np.sqrt(variance)).sum()
    np.testing.assert_allclose(
        expected, density - (spread / (2 * np.asarray(variance))).sum(), rtol=1e-9
    )
    laws = [multivariate_normal(m, c) for m, c in zip(exact.mean, cov, strict=True)]
    samples = [one.rvs(20_000, random_state=seed) for seed, one in enumerate(laws)]
    gaps = sum(one.logpdf(v) - norm.logpdf(v).sum(-1) for one, v in zip(laws, samples, strict=True))
    assert abs(float(divergence) - gaps.mean()) < LIMIT * gaps.std() / np.sqrt(len(gaps))

    def bound(natural):
        return jnp.subtract(*bound_given_states(natural, statistics, variance))

    slope = jax.jit(jax.grad(bound))(best)
    np.testing.assert_allclose(slope.linear, 0.0, atol=1e-9)
    np.testing.assert_allclose(slope.precision, 0.0, atol=1e-9)
    direction = np.random.default_rng(0).normal(size=best.linear.shape)
    for size in (-0.1, 0.1):
        assert bound(best._replace(linear=best.linear + size * direction)) < expected - divergence
        assert bound(best._replace(precision=best.precision * (1 + size))) < expected - divergence


@pytest.mark.slow
def test_iterations_learn_everything_that_is_free_and_then_stop(several):
    model, series, states = several
    config = VGPSSM(num_warmup=10, num_particles=20)
    assert [
        dataclasses.replace(config, num_warmup=count).num_shared(model) for count in (0, 10, 30)
    ] == [0, 9, 27]
    method = config.build(model, states)
    carry = jax.jit(method.init)(jax.random.key(0), series)
    step = jax.jit(method.step)
    moved, info = step(jax.random.key(1), carry, series)
    assert info.acceptance > 0.5
    assert np.isfinite(info.log_target)
    free = {name for name, role in model.roles if role != "fix"}
    assert set(moved.leaves) == free
    for name, leaf in carry.leaves.items():
        assert np.all(moved.leaves[name] != leaf), name
    assert np.any(moved.natural.linear != carry.natural.linear)
    still, _ = step(
        jax.random.key(2), moved._replace(iteration=jnp.asarray(config.num_shared(model))), series
    )
    same = jax.tree.map(
        np.array_equal, (still.natural, still.leaves), (moved.natural, moved.leaves)
    )
    assert all(jax.tree.leaves(same))
    assert np.any(still.states[1] != moved.states[1])
    draw = jax.jit(method.draw)(jax.random.key(2), moved, series)
    assert draw.weights.shape == (2, model.basis.size)
    assert [path.shape for path in draw.states] == [(6, 2), (5, 2)]
