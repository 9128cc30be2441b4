"""EnVI: its filter and smoother against those of Kalman, its bound, and a fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import builders
import gpssm
import kalman
from gpssm.data.series import Series
from gpssm.linear.state_space import log_marginal, smooth
from gpssm.methods.envi import EnVI, filter_ensembles
from gpssm.methods.envi import smooth as smooth_members
from gpssm.methods.linear import as_linear
from gpssm.methods.variational import (
    StartLaw,
    VariationalPosterior,
    WeightLaw,
    cut,
    take,
    weights_at,
)
from gpssm.model.bases import InducingPoints
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Poisson
from gpssm.model.means import Identity
from gpssm.model.model import GPSSM

LENGTHS = (8, 5)


@pytest.fixture(scope="module")
def linear():
    """A linear-Gaussian model with fixed weights, two series with missing outputs, and a filter."""
    model = kalman.linear_model()
    series = [builders.make_series(n, missing=True, seed=n) for n in LENGTHS]
    batch = take(series, cut(list(LENGTHS), None))

    def run(key, members, repeats=1):
        """Ensembles from x₀ ~ N(0, I), so many of each series, and their smoothed members."""
        start_key, path_key = jax.random.split(key)
        start = jax.random.normal(start_key, (2 * repeats, members, 2))
        weights = jnp.zeros((2, 2 * repeats, 4))
        ensembles = filter_ensembles(path_key, model, weights, start, batch)
        return ensembles, smooth_members(*ensembles[:2])

    return model, series, jax.jit(run, static_argnums=(1, 2))


def test_the_filter_becomes_kalmans_as_the_ensemble_grows(linear):
    """Log densities, means and covariances; the error falls as the root of the number of members."""
    model, series, run = linear
    errors = []
    for members in (100, 10_000):
        (filtered, _, log_density), _ = run(jax.random.key(0), members, 4)
        deviations = []
        for place, item in enumerate(series):
            exact = kalman.kalman(model, item)
            mine = slice(4 * place, 4 * place + 4)
            updated = np.asarray(filtered[1 : len(item) + 1, mine])
            spread = np.sqrt(np.diagonal(exact.covariances, axis1=1, axis2=2))[:, None]
            gap = (updated.mean(2) - exact.means[:, None]) / spread
            density = np.asarray(log_density[: len(item), mine])
            deviations += [gap.ravel(), (density - exact.log_density[:, None]).ravel()]
            if members == 10_000:
                centred = updated - updated.mean(2, keepdims=True)
                covariance = np.einsum("tgni,tgnj->tij", centred, centred) / (4 * (members - 1))
                np.testing.assert_allclose(covariance, exact.covariances, atol=0.01)
            assert not np.any(log_density[len(item) :, mine])
        errors.append(np.sqrt(np.mean(np.concatenate(deviations) ** 2)))
    assert errors[1] < 0.02
    assert 5 < errors[0] / errors[1] < 20


def test_smoothed_members_have_the_law_of_the_smoother(linear):
    model, series, run = linear
    _, smoothed = run(jax.random.key(1), 10_000)
    for place, item in enumerate(series):
        exact = smooth(as_linear(model), item)
        paths = np.asarray(smoothed[: len(item) + 1, place])
        deviation = paths - np.asarray(exact.mean)[:, None]
        inverse = np.linalg.inv(dense(exact.factor))
        covariance = inverse.T @ inverse
        spread = np.sqrt(np.diagonal(covariance)).reshape(-1, 2)
        np.testing.assert_allclose(deviation.mean(1) / spread, 0.0, atol=0.06)
        flat = deviation.transpose(1, 0, 2).reshape(len(paths[0]), -1)
        scale = spread.ravel()[:, None] * spread.ravel()
        np.testing.assert_allclose(np.cov(flat.T) / scale, covariance / scale, atol=0.06)


def dense(factor):
    """L of the smoother's precision as a matrix."""
    diagonal, lower = np.asarray(factor.diagonal), np.asarray(factor.lower)
    size = len(diagonal)
    matrix = np.zeros((size, 2, size, 2))
    for row in range(size):
        matrix[row, :, row] = diagonal[row]
        if row:
            matrix[row, :, row - 1] = lower[row - 1]
    return matrix.reshape(2 * size, 2 * size)


def test_the_bound_is_the_evidence_where_the_weights_are_certain(linear):
    """With q(v) the prior of weights that change nothing, and q(x₀) = p(x₀)."""
    model, series, _ = linear
    model = model.with_leaves({"basis.log_scale": jnp.full((2, 4), -20.0)})
    method = EnVI(num_members=10_000, num_samples=1).build(
        model, tuple(jnp.zeros((n + 1, 2)) for n in LENGTHS)
    )
    law = WeightLaw(jnp.zeros((2, 4)), jnp.zeros((2, 4, 4)))
    first = StartLaw(jnp.zeros((2, 2)), jnp.zeros((2, 2)))
    q = VariationalPosterior(model, law, first)
    keys = jax.random.split(jax.random.key(0), 20)
    bounds = jax.jit(lambda: jax.lax.map(lambda key: method.bound(key, q, series, 0), keys))()
    evidence = sum(float(log_marginal(as_linear(model), item)) for item in series)
    error = np.std(bounds) / np.sqrt(20)
    assert abs(np.mean(bounds) - evidence) < 4 * error
    assert error < 0.03


def test_the_bound_is_below_the_evidence_of_uncertain_weights():
    """One row, whose evidence is Gaussian in all of (v, x₀) where x₀ is known."""
    model = builders.make_model("inducing")
    series = [builders.make_series(1)]
    states = (jnp.asarray(builders.make_states(1)),)
    method = EnVI(num_members=500, num_samples=200).build(model, states)
    first = StartLaw(jnp.full((1, 2), 0.3), jnp.full((1, 2), -12.0))

    @jax.jit
    def evaluate(key):
        law = weights_at(model, states, series)
        bound = method.bound(key, VariationalPosterior(model, law, first), series, 0)
        step = model.transition()(first.mean, series[0].u)
        return bound + first.divergence()[0], step

    bound, step = evaluate(jax.random.key(0))
    C, R = np.asarray(model.likelihood.C), np.exp(2 * np.asarray(model.likelihood.log_std))
    mean = np.asarray(step.mean[0]) @ C.T + np.asarray(model.likelihood.d)
    prior = np.sum(np.asarray(step.gain[:, 0]) ** 2, 1) + np.asarray(step.residual[:, 0])
    spread = C @ np.diag(prior + np.asarray(model.process_variance)) @ C.T + np.diag(R)
    error = series[0].y[0] - mean
    evidence = -0.5 * (
        np.linalg.slogdet(2 * np.pi * spread)[1] + error @ np.linalg.solve(spread, error)
    )
    assert evidence - 5 < float(bound) < evidence - 0.1


def test_gradients_match_finite_differences():
    """Of the bound in leaves, q(v) and q(x₀), with common random numbers."""
    model = builders.make_model("inducing")
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 3))]
    states = tuple(jnp.asarray(builders.make_states(n)) for n in (5, 3))
    method = EnVI(num_members=4, num_samples=2).build(model, states)
    rng = np.random.default_rng(0)
    law = WeightLaw(
        jnp.asarray(rng.normal(size=(2, 6))), jnp.asarray(0.3 * rng.normal(size=(2, 6, 6)))
    )
    first = StartLaw(*jnp.asarray(0.3 * rng.normal(size=(2, 2, 2))))
    flat, unravel = ravel_pytree((model.leaves(), law, first))
    direction = rng.normal(size=flat.size)

    @jax.jit
    @jax.value_and_grad
    def bound(flat):
        leaves, law, first = unravel(flat)
        q = VariationalPosterior(model.with_leaves(leaves), law, first)
        return method.bound(jax.random.key(1), q, series, 0)

    step = 1e-5
    ahead, behind = (float(bound(flat + sign * step * direction)[0]) for sign in (1, -1))
    slope = (ahead - behind) / (2 * step)
    assert float(bound(flat)[1] @ direction) == pytest.approx(slope, rel=1e-5)


def test_counts_and_gaps():
    """Poisson outputs through their moments: finite bounds, and draws of the right shapes."""
    rng = np.random.default_rng(0)
    y = rng.poisson(3.0, size=(8, 1)).astype(float)
    y[4:6] = np.nan
    series = [Series(y), Series(y[:5])]
    model = GPSSM.create(
        SquaredExponential(jnp.asarray([-1.0]), jnp.zeros((1, 1))),
        InducingPoints(jnp.linspace(-2.0, 2.0, 4)[:, None]),
        Identity(),
        Poisson(C=jnp.asarray([[0.5]]), d=jnp.ones(1)),
        jnp.asarray([0.3]),
    )
    states = tuple(jnp.asarray(builders.make_states(n, 1)) for n in LENGTHS)
    method = EnVI(num_warmup=6, num_members=5, num_samples=2).build(model, states)

    @jax.jit
    def run(key):
        def step(carry, key):
            carry, info = method.step(key, carry, series)
            return carry, info.log_target

        carry, bounds = jax.lax.scan(step, method.init(key, series), jax.random.split(key, 7))
        return bounds, method.draw(key, carry, series)

    bounds, draw = run(jax.random.key(1))
    assert np.isfinite(bounds).all()
    assert bounds[5] == bounds[6]
    assert [path.shape for path in draw.states] == [(9, 1), (6, 1)]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(draw))


def test_a_fit_beats_the_mean_and_the_last_value():
    """A bent transition: the bound rises, and 30 steps are forecast with half the error of both."""
    rng = np.random.default_rng(0)
    u = rng.normal(size=(150, 1))
    x, outputs = 0.0, []
    for control in u[:, 0]:
        x = 0.8 * np.tanh(2 * x) + 0.5 * control
        outputs.append(x)
    y = np.array(outputs)[:, None] + 0.05 * rng.normal(size=(150, 1))
    posterior = gpssm.fit(
        Series(y[:120], u[:120]),
        method=EnVI(num_warmup=200, num_draws=20, num_members=20),
        state_dim=1,
        num_inducing=8,
        num_chains=2,
        progress=False,
    )
    bound = posterior.warmup.log_target[0]
    assert np.mean(bound[-30:]) > np.mean(bound[:30])
    assert np.all(np.std(posterior.draws.weights, (0, 1)) > 0)
    error = np.asarray(posterior.forecast(30, u[120:]).mean) - y[120:]
    for naive in (y[:120].mean(), y[119]):
        assert np.sqrt(np.mean(error**2)) < 0.5 * np.sqrt(np.mean((y[120:] - naive) ** 2))
