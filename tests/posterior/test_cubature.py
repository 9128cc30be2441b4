"""The Gaussian filter: the Kalman filter where the transition is linear, near the truth where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from test_filtering import keys, linear_members, on_a_grid, scalar_model

from builders import make_series
from gpssm.core.linalg import root_semidefinite
from gpssm.data.series import Series
from gpssm.model.likelihoods import Gaussian
from gpssm.posterior.filtering import MEMORY, ODDS, FlatState, Members, noise_scale, points, run_filter
from gpssm.posterior.rollout import draw_states
from kalman import kalman, linear_model


def gaussian_start(draws, dim):
    cloud = jnp.broadcast_to(points(jnp.zeros(dim), jnp.eye(dim)), (draws, 2 * dim, dim))
    return FlatState(cloud, jnp.full((draws, 2 * dim), -jnp.log(2 * dim)), jnp.asarray(0), jnp.ones(draws))


def test_points_have_the_mean_and_the_covariance():
    rng = np.random.default_rng(0)
    mean, root = rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 3))
    found = np.asarray(points(jnp.asarray(mean), jnp.asarray(root @ root.swapaxes(1, 2))))
    np.testing.assert_allclose(found.mean(1), mean, atol=1e-12)
    gaps = found - mean[:, None]
    np.testing.assert_allclose(gaps.swapaxes(1, 2) @ gaps / 6, root @ root.swapaxes(1, 2), atol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 3, 4])
def test_a_root_of_what_may_be_flat(rank):
    factor = np.random.default_rng(rank).normal(size=(5, 4, rank))
    matrix = factor @ factor.swapaxes(1, 2)
    root = np.asarray(root_semidefinite(jnp.asarray(matrix)))
    np.testing.assert_allclose(root @ root.swapaxes(1, 2), matrix, atol=1e-7)
    np.testing.assert_array_equal(root, np.tril(root))


def test_states_are_drawn_from_the_gaussian():
    mean, covariance = jnp.array([[1.0, -2.0]]), jnp.array([[[2.0, 0.6], [0.6, 0.5]]])
    found = draw_states(jax.random.split(jax.random.key(0), (1, 40_000)), points(mean, covariance), jnp.array([3.0]))[0]
    np.testing.assert_allclose(found.mean(0), mean[0], atol=4 * np.sqrt(6 / 40_000))
    np.testing.assert_allclose(np.cov(found.T), 3 * covariance[0], atol=4 * 6 * np.sqrt(2 / 40_000))


def test_it_is_the_kalman_filter_of_a_linear_model():
    series = make_series(20, missing=True)
    exact = kalman(linear_model(), series)
    found = run_filter(linear_members(2), keys(2), gaussian_start(2, 2), series, True)
    for draw in range(2):
        np.testing.assert_allclose(found.means[draw], exact.means, atol=1e-9)
        np.testing.assert_allclose(found.log_density[draw], exact.log_density, atol=1e-9)
        np.testing.assert_allclose(np.cov(found.cloud.particles[draw].T, bias=True), exact.covariances[-1], atol=1e-9)


def test_surprise_counts_how_far_outputs_miss():
    series = make_series(20, missing=True)
    series = Series(np.column_stack([3 * series.y[:, 0], np.full(20, np.nan)]), series.u)
    found, surprise = run_filter(linear_members(1), keys(1), gaussian_start(1, 2), series, True), 1.0
    for distance, y in zip(kalman(linear_model(), series).distance, series.y[:, 0], strict=True):
        surprise += (distance - surprise) / MEMORY if np.isfinite(y) else 0.0
    np.testing.assert_allclose(found.cloud.surprise, surprise)


def test_variances_are_scaled_by_the_odds_that_the_model_no_longer_holds():
    """The likelihoods of n errors with mean square c, under variance 1 and c, from their densities."""
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
    found = run_filter(Members(model, jnp.zeros((1, 2, 4)), {}), keys(1), gaussian_start(1, 2), series, True)
    np.testing.assert_allclose(found.means[0], exact.means, rtol=1e-6, atol=1e-8)


def test_a_curved_transition_is_followed_closely():
    model = scalar_model(Gaussian)
    weights = 0.5 * jnp.asarray(np.random.default_rng(2).normal(size=(3, 1, model.basis.size)))
    series = make_series(12, output_dim=1, missing=True)
    found = run_filter(Members(model, weights, {}), keys(3), gaussian_start(3, 1), series, True)
    for draw in range(3):
        means, log_density = on_a_grid(model, weights[draw], series)
        spread = np.std(means)
        assert np.sqrt(np.mean((found.means[draw, :, 0] - means) ** 2)) < 0.1 * spread
        assert abs(np.sum(found.log_density[draw]) - np.sum(log_density)) < 0.5
