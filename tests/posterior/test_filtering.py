"""The particle filter against the Kalman filter, and against integrals on a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from builders import make_model, make_series
from gpssm.core.linalg import log_normal
from gpssm.model.likelihoods import Gaussian, Poisson
from gpssm.posterior.filtering import FlatState, Members, run_filter
from kalman import kalman, linear_model

GRID = np.linspace(-7, 7, 1401)


def keys(draws):
    return jax.random.split(jax.random.key(0), draws)


def start(draws, particles, dim):
    x = jax.random.normal(jax.random.key(1), (draws, particles, dim))
    return FlatState(x, jnp.full((draws, particles), -jnp.log(particles)), jnp.asarray(0), jnp.ones(draws))


def linear_members(draws):
    return Members(linear_model(), jnp.zeros((draws, 2, 4)), {})


@pytest.fixture(scope="module")
def series():
    return make_series(20, missing=True)


@pytest.fixture(scope="module")
def filtered(series):
    return run_filter(linear_members(2), keys(2), start(2, 4000, 2), series, False)


def test_moments_and_evidence_are_the_kalman_filters(series, filtered):
    exact = kalman(linear_model(), series)
    cloud = filtered.cloud
    for draw in range(2):
        np.testing.assert_allclose(filtered.means[draw], exact.means, atol=0.035)
        cov = np.cov(cloud.particles[draw].T, aweights=np.exp(cloud.log_weights[draw]))
        np.testing.assert_allclose(cov, exact.covariances[-1], atol=0.015)
        np.testing.assert_allclose(filtered.log_density[draw], exact.log_density, atol=0.12)
        assert abs(np.sum(filtered.log_density[draw]) - exact.log_density.sum()) < 0.2
    np.testing.assert_allclose(np.exp(cloud.log_weights).sum(1), 1)
    assert cloud.rows == 20


def test_a_row_without_outputs_says_nothing(series, filtered):
    np.testing.assert_allclose(filtered.log_density[:, len(series) // 2], 0, atol=1e-12)


def test_rows_in_pieces_give_the_same_cloud(series, filtered):
    members, cloud = linear_members(2), start(2, 4000, 2)
    for rows in (series[:1], series[1:2], series[2:11], series[11:]):
        cloud = run_filter(members, keys(2), cloud, rows, False).cloud
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), cloud, filtered.cloud)


def scalar_model(likelihood):
    """A strongly curved f of one state, with a residual: half the prior variance away from the inducing points."""
    model = make_model("inducing", 1, 1, 1).with_leaves({"kernel.log_lengthscale": jnp.zeros((1, 2))})
    parts = (jnp.array([[0.8]]), jnp.array([0.1]), jnp.array([0.2]))
    # A likelihood of another class has leaves of other names, so the model is made again around it.
    return type(model).create(
        model.kernel, model.basis, model.mean, likelihood.build(*parts), jnp.exp(model.log_process_std)
    )


def on_a_grid(model, weights, series, points=GRID):
    """p(x_{t+1} | y_≤t) and p(y_t | y_<t) by sums over a fine grid."""
    log_p, step, found = log_normal(points, 0.0, 1.0), model.transition(), []
    for y, control in zip(series.y, series.u, strict=True):
        now = step(jnp.asarray(points)[:, None], jnp.broadcast_to(control, (len(points), 1)))
        variance = jnp.maximum(now.residual[0], 0) + model.process_variance
        pairs = log_normal(jnp.asarray(points)[:, None], now.given(weights).T, variance[None])
        log_p = logsumexp(np.asarray(pairs) + log_p[None], axis=1) + np.log(points[1] - points[0])
        log_p = log_p + model.likelihood.log_prob(jnp.asarray(points)[:, None], jnp.tile(y, (len(points), 1)))
        log_density = logsumexp(log_p) + np.log(points[1] - points[0])
        log_p = log_p - log_density
        found.append((np.sum(points * np.exp(log_p)) * (points[1] - points[0]), log_density))
    return map(np.array, zip(*found, strict=True))


@pytest.mark.parametrize("likelihood", [Gaussian, Poisson])
def test_nonlinear_transitions_agree_with_integrals_on_a_grid(likelihood):
    model = scalar_model(likelihood)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(3, 1, model.basis.size)))
    noises = {"log_process_std": model.log_process_std[None] + jnp.array([[0.0], [0.5], [1.0]])}
    series = make_series(12, output_dim=1, missing=True)
    series = type(series)(np.round(np.exp(series.y)) if likelihood is Poisson else series.y, series.u)
    found = run_filter(Members(model, weights, noises), keys(3), start(3, 20_000, 1), series, False)
    for draw in range(3):
        one = model.with_leaves({"log_process_std": noises["log_process_std"][draw]})
        means, log_density = on_a_grid(one, weights[draw], series)
        np.testing.assert_allclose(found.means[draw, :, 0], means, atol=0.03)
        np.testing.assert_allclose(found.log_density[draw], log_density, atol=0.04)


def test_a_draw_that_has_run_away_leaves_the_others_alone(series, filtered):
    cloud = start(2, 4000, 2)
    lost = cloud._replace(particles=cloud.particles.at[0].set(jnp.inf))
    found = run_filter(linear_members(2), keys(2), lost, series, False)
    assert np.all(np.asarray(found.log_density[0, :2]) == -np.inf)
    np.testing.assert_array_equal(found.means[1], filtered.means[1])
    np.testing.assert_allclose(np.exp(found.cloud.log_weights).sum(1), 1)
