"""Filters against the Kalman filter for linear transitions, integrals on a grid for others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from builders import make_model, make_series
from gpssm.core.linalg import (
    condition_gaussian,
    cubature_points,
    log_normal,
    root_semidefinite,
)
from gpssm.data.series import Series
from gpssm.model.likelihoods import Gaussian, Poisson
from gpssm.posterior.filtering import (
    MEMORY,
    ODDS,
    equal_particles,
    gaussian_state,
    noise_scale,
    run_filter,
)
from gpssm.posterior.rollout import Members, draw_states
from kalman import kalman, linear_model

GRID = np.linspace(-7, 7, 501)


def keys(draws):
    return jax.random.split(jax.random.key(0), draws)


def start(draws, particles, dim):
    x = jax.random.normal(jax.random.key(1), (draws, particles, dim))
    return equal_particles(x, jnp.ones(draws))


def run(members, state, series, row=0):
    return run_filter(members, keys(len(state.mean)), state, series, jnp.asarray(row))


def linear_members(draws):
    return Members(linear_model(), jnp.zeros((draws, 2, 4)), {})


@pytest.fixture(scope="module")
def series():
    return make_series(20, missing=True)


@pytest.fixture(scope="module")
def filtered(series):
    return run(linear_members(2), start(2, 3000, 2), series)


def test_moments_and_evidence_are_the_kalman_filters(series, filtered):
    exact = kalman(linear_model(), series)
    state = filtered.state
    for draw in range(2):
        np.testing.assert_allclose(filtered.means[draw], exact.means, atol=0.035)
        cov = np.cov(state.particles[draw].T, aweights=np.exp(state.log_weights[draw]), ddof=0)
        np.testing.assert_allclose(state.covariance[draw], cov, rtol=1e-9)
        np.testing.assert_allclose(cov, exact.covariances[-1], atol=0.015)
        np.testing.assert_allclose(filtered.log_density[draw], exact.log_density, atol=0.12)
        assert abs(np.sum(filtered.log_density[draw]) - exact.log_density.sum()) < 0.2
    np.testing.assert_allclose(np.exp(state.log_weights).sum(1), 1)


def test_a_row_without_outputs_says_nothing(series, filtered):
    np.testing.assert_allclose(filtered.log_density[:, len(series) // 2], 0, atol=1e-12)


def test_rows_in_pieces_give_the_same_cloud(series, filtered):
    members, state = linear_members(2), start(2, 3000, 2)
    for first, stop in ((0, 1), (1, 2), (2, 3), (3, 20)):
        state = run(members, state, series[first:stop], first).state
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), state, filtered.state
    )


def scalar_model(likelihood):
    """A strongly curved f of one state, with a residual far from the inducing points."""
    model = make_model("inducing", 1, 1, 1).with_leaves(
        {"kernel.log_lengthscale": jnp.zeros((1, 2))}
    )
    parts = (jnp.array([[0.8]]), jnp.array([0.1]), jnp.array([0.2]))
    # A likelihood of another class has leaves of other names, so the model is made again around it.
    return type(model).create(
        model.kernel,
        model.basis,
        model.mean,
        likelihood.build(*parts),
        jnp.exp(model.log_process_std),
    )


def on_a_grid(model, weights, series, points=GRID):
    """p(x_{t+1} | y_≤t) and p(y_t | y_<t) by sums over a fine grid."""
    log_p, step, found = log_normal(points, 0.0, 1.0), model.transition(), []
    for y, control in zip(series.y, series.u, strict=True):
        now = step(jnp.asarray(points)[:, None], jnp.broadcast_to(control, (len(points), 1)))
        variance = jnp.maximum(now.residual[0], 0) + model.process_variance
        pairs = log_normal(jnp.asarray(points)[:, None], now.given(weights).T, variance[None])
        log_p = logsumexp(np.asarray(pairs) + log_p[None], axis=1) + np.log(points[1] - points[0])
        log_p = log_p + model.likelihood.log_prob(
            jnp.asarray(points)[:, None], jnp.tile(y, (len(points), 1))
        )
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
    series = type(series)(
        np.round(np.exp(series.y)) if likelihood is Poisson else series.y, series.u
    )
    found = run(Members(model, weights, noises), start(3, 8000, 1), series)
    for draw in range(3):
        one = model.with_leaves({"log_process_std": noises["log_process_std"][draw]})
        means, log_density = on_a_grid(one, weights[draw], series)
        np.testing.assert_allclose(found.means[draw, :, 0], means, atol=0.03)
        np.testing.assert_allclose(found.log_density[draw], log_density, atol=0.04)


def test_a_draw_that_has_run_away_leaves_the_others_alone(series, filtered):
    state = start(2, 3000, 2)
    lost = state._replace(particles=state.particles.at[0].set(jnp.inf))
    found = run(linear_members(2), lost, series)
    assert np.all(np.asarray(found.log_density[0, :2]) == -np.inf)
    np.testing.assert_array_equal(found.means[1], filtered.means[1])
    np.testing.assert_allclose(np.exp(found.state.log_weights).sum(1), 1)


def gaussian_start(draws, dim):
    return gaussian_state(jnp.zeros((draws, dim)), 1.0)


def test_points_have_the_mean_and_the_covariance():
    rng = np.random.default_rng(0)
    mean, root = rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 3))
    covariance = root @ root.mT
    points = np.asarray(cubature_points(jnp.asarray(mean), jnp.asarray(covariance), 3))
    np.testing.assert_allclose(points.mean(1), mean, atol=1e-12)
    deviations = points - mean[:, None]
    np.testing.assert_allclose(deviations.mT @ deviations / 6, covariance, atol=1e-12)
    # Of the first two coordinates, with the third at its mean given these.
    points = np.asarray(cubature_points(jnp.asarray(mean), jnp.asarray(covariance), 2))
    deviations = points - mean[:, None]
    np.testing.assert_allclose(
        (deviations.mT @ deviations / 4)[:, :2], covariance[:, :2], atol=1e-12
    )
    slopes = np.linalg.solve(covariance[:, :2, :2], covariance[:, :2, 2:])
    np.testing.assert_allclose(deviations[:, :, 2:], deviations[:, :, :2] @ slopes, atol=1e-9)


def test_conditioning_on_one_output_is_that_of_the_dense_gaussian():
    rng = np.random.default_rng(1)
    root, output = rng.normal(size=(4, 3, 3)), rng.normal(size=(4, 3))
    mean, error = rng.normal(size=(4, 3)), rng.normal(size=4)
    covariance = root @ root.mT
    cross = np.einsum("sij,sj->si", covariance, output)
    variance = np.einsum("si,si->s", cross, output) + 0.3
    found = condition_gaussian(*map(jnp.asarray, (mean, covariance, cross, variance, error)))
    precision = np.linalg.inv(covariance) + output[:, :, None] * output[:, None] / 0.3
    exact = np.linalg.inv(precision)
    shift = np.einsum("sij,sj->si", exact, output) * (error / 0.3)[:, None]
    np.testing.assert_allclose(found[1], exact, atol=1e-9)
    np.testing.assert_allclose(found[0], mean + shift, atol=1e-9)
    np.testing.assert_array_equal(found[1], found[1].mT)


@pytest.mark.parametrize("rank", [0, 1, 3, 4])
def test_a_root_of_what_may_be_flat(rank):
    factor = np.random.default_rng(rank).normal(size=(5, 4, rank))
    matrix = factor @ factor.swapaxes(1, 2)
    root = np.asarray(root_semidefinite(jnp.asarray(matrix)))
    np.testing.assert_allclose(root @ root.swapaxes(1, 2), matrix, atol=1e-7)
    np.testing.assert_array_equal(root, np.tril(root))


def test_states_are_drawn_from_the_gaussian():
    mean, covariance = jnp.array([[1.0, -2.0]]), jnp.array([[[2.0, 0.6], [0.6, 0.5]]])
    found = draw_states(
        jax.random.split(jax.random.key(0), (1, 40_000)),
        cubature_points(mean, covariance, 2),
        jnp.array([3.0]),
    )[0]
    np.testing.assert_allclose(found.mean(0), mean[0], atol=4 * np.sqrt(6 / 40_000))
    np.testing.assert_allclose(np.cov(found.T), 3 * covariance[0], atol=4 * 6 * np.sqrt(2 / 40_000))


def test_it_is_the_kalman_filter_of_a_linear_model():
    series = make_series(20, missing=True)
    exact = kalman(linear_model(), series)
    found = run(linear_members(2), gaussian_start(2, 2), series)
    for draw in range(2):
        np.testing.assert_allclose(found.means[draw], exact.means, atol=1e-9)
        np.testing.assert_allclose(found.log_density[draw], exact.log_density, atol=1e-9)
        np.testing.assert_allclose(found.state.covariance[draw], exact.covariances[-1], atol=1e-9)


def test_surprise_counts_how_far_outputs_miss():
    series = make_series(20, missing=True)
    series = Series(np.column_stack([3 * series.y[:, 0], np.full(20, np.nan)]), series.u)
    found = run(linear_members(1), gaussian_start(1, 2), series)
    surprise = 1.0
    for distance, y in zip(kalman(linear_model(), series).distance, series.y[:, 0], strict=True):
        surprise += (distance - surprise) / MEMORY if np.isfinite(y) else 0.0
    np.testing.assert_allclose(found.state.surprise, surprise)


def test_variances_are_scaled_by_the_odds_that_the_model_no_longer_holds():
    """The likelihoods of n errors with mean square c under variances 1 and c."""
    n = int(2 * MEMORY - 1)
    for c in (1.2, 2.0, 9.0):
        errors = np.sqrt(c) * np.ones(n)
        ratio = np.exp(np.sum(norm.logpdf(errors, scale=np.sqrt(c)) - norm.logpdf(errors))) / ODDS
        np.testing.assert_allclose(noise_scale(jnp.array([c])), 1 + ratio / (1 + ratio) * (c - 1))
    np.testing.assert_array_equal(noise_scale(jnp.array([0.2, 1.0])), 1)


def test_a_state_that_outputs_show_late_and_faintly_is_not_lost():
    """An oscillator near instability, seen through its first state alone: particles lose it."""
    model = linear_model(
        **{
            "mean.transition": jnp.array([[0.99, 0.3], [-0.3, 0.99]]) / np.hypot(0.99, 0.3) * 0.999,
            "likelihood.C": jnp.array([[1.0, 0.0], [1.0, 0.0]]),
            "log_process_std": jnp.log(jnp.array([1e-3, 1e-3])),
        }
    )
    series = make_series(200)
    exact = kalman(model, series)
    found = run(Members(model, jnp.zeros((1, 2, 4)), {}), gaussian_start(1, 2), series)
    np.testing.assert_allclose(found.means[0], exact.means, rtol=1e-6, atol=1e-8)


def test_a_curved_transition_is_followed_closely():
    model = scalar_model(Gaussian)
    weights = 0.5 * jnp.asarray(np.random.default_rng(2).normal(size=(3, 1, model.basis.size)))
    series = make_series(12, output_dim=1, missing=True)
    found = run(Members(model, weights, {}), gaussian_start(3, 1), series)
    for draw in range(3):
        means, log_density = on_a_grid(model, weights[draw], series)
        spread = np.std(means)
        assert np.sqrt(np.mean((found.means[draw, :, 0] - means) ** 2)) < 0.1 * spread
        assert abs(np.sum(found.log_density[draw]) - np.sum(log_density)) < 0.5
