"""The forecast as a function: the paths of `forecast`, and derivatives against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_series
from posteriors import make_posterior

H = 4


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


@pytest.fixture(scope="module")
def rollout(posterior):
    return posterior.rollout(9, seed=3, bounds=None)


U = np.random.default_rng(0).normal(size=(H, 1))


def test_equal_seeds_give_the_paths_of_a_forecast(posterior, rollout):
    wanted = posterior.forecast(u=U, num_paths=9, seed=3, bounds=None)
    np.testing.assert_allclose(rollout(rollout.start, U), wanted.paths, rtol=1e-9)
    boxed, quiet = posterior.rollout(9, bounds=1.0), posterior.rollout(9, noise=False)
    wanted = posterior.forecast(u=U, num_paths=9, bounds=1.0)
    assert wanted.diagnostics.share_left > 0
    np.testing.assert_allclose(boxed(boxed.start, U), wanted.paths, rtol=1e-9)
    np.testing.assert_allclose(
        quiet(quiet.start, U), posterior.forecast(u=U, num_paths=9, noise=False).paths, rtol=1e-9
    )


def test_after_new_rows_it_starts_from_where_they_lead(posterior, rollout):
    later = posterior.condition(make_series(6, seed=3))
    wanted = later.forecast(u=U, num_paths=9, seed=3, bounds=None)
    np.testing.assert_allclose(rollout(rollout.states_of(later), U), wanted.paths, rtol=1e-9)


def test_it_can_be_jitted_mapped_and_differentiated(rollout):
    def cost(u, start):
        return jnp.mean(jnp.square(rollout(start, u) - 0.5))

    with jax.enable_x64(True):
        value, slopes = jax.jit(jax.value_and_grad(cost))(jnp.asarray(U), rollout.start)
        several = jax.jit(jax.vmap(cost, (0, None)))
        size = 1e-5
        plans = np.concatenate([U + sign * size * np.eye(H)[:, :, None] for sign in (1, -1)])
        found = np.asarray(several(jnp.asarray(plans), rollout.start))
        forward = jax.jacfwd(cost)(jnp.asarray(U), rollout.start)
    differences = (found[:H] - found[H:]) / (2 * size)
    assert value == pytest.approx(np.mean((np.asarray(rollout(rollout.start, U)) - 0.5) ** 2))
    np.testing.assert_allclose(slopes[:, 0], differences, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(forward, slopes, rtol=1e-9, atol=1e-12)
    with jax.enable_x64(False), pytest.raises(TypeError, match=r"with jax\.enable_x64\(True\)"):
        jax.jit(cost)(jnp.asarray(U, jnp.float32), rollout.start)


def test_controls_of_another_shape_are_refused(rollout):
    with pytest.raises(
        ValueError, match=r"u must have shape \(H, 1\), one row per step; got \(4, 2\)"
    ):
        rollout(rollout.start, np.zeros((H, 2)))
