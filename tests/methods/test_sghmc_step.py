"""Stochastic-gradient HMC against its recursion in NumPy and the covariance it must have on a Gaussian."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from gpssm.methods.latents import SGHMCState, sghmc_step

DIM, DECAY, LENGTH = 10, 0.05, 30_000


def gaussian():
    """Mean and precision of a correlated Gaussian with scales from 0.1 to 3."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.1, 3.0, DIM)
    mixed = np.eye(DIM) + 0.3 * rng.normal(size=(DIM, DIM))
    correlation = mixed @ mixed.T
    diagonal = np.sqrt(np.diag(correlation))
    covariance = correlation / np.outer(diagonal, diagonal) * np.outer(scales, scales)
    return rng.normal(size=DIM), np.linalg.inv(covariance)


MEAN, PRECISION = gaussian()


def log_density(position):
    error = position - MEAN
    return -0.5 * error @ (jnp.asarray(PRECISION) @ error)


grad_fn = jax.value_and_grad(log_density)


@jax.jit
def warm_up(key, state, learning_rate):
    def one(state, key):
        return sghmc_step(key, state, grad_fn, learning_rate, DECAY, jnp.asarray(True)), None

    return jax.lax.scan(one, state, jax.random.split(key, 20_000))[0]


@jax.jit
def moments(key, state, learning_rate):
    """Mean and covariance of the positions of one long chain after burn-in, and its last state."""

    def one(carry, key):
        state, first, second = carry
        state = sghmc_step(key, state, grad_fn, learning_rate, DECAY, jnp.asarray(False))
        error = state.position - MEAN
        return (state, first + error, second + jnp.outer(error, error)), None

    zero = jnp.zeros(DIM), jnp.zeros((DIM, DIM))
    (state, first, second), _ = jax.lax.scan(one, (state, *zero), jax.random.split(key, LENGTH))
    return state, first / LENGTH, second / LENGTH


def stationary_covariance(V_hat, learning_rate):
    """Of the positions, exactly, for the linear recursion z' = F z + G ε of z = (θ − mean, p)."""
    scale = np.diag(learning_rate**2 / np.sqrt(V_hat))
    momentum = np.hstack([-scale @ PRECISION, (1 - DECAY) * np.eye(DIM)])
    noise = 2 * DECAY * scale
    transition = np.vstack([np.hstack([np.eye(DIM), np.zeros((DIM, DIM))]) + momentum, momentum])
    return solve_discrete_lyapunov(transition, np.block([[noise, noise], [noise, noise]]))[
        :DIM, :DIM
    ]


def test_matches_the_recursion():
    state = SGHMCState.start(jnp.asarray(np.random.default_rng(1).normal(size=DIM)))
    theta, p, V = (np.asarray(part) for part in state[:3])
    for number, burn_in in enumerate((True, True, True, False, False)):
        key = jax.random.key(number)
        noise = np.asarray(jax.random.normal(key, (DIM,)))
        gradient = PRECISION @ (theta - MEAN)
        value = -0.5 * gradient @ (theta - MEAN)
        if burn_in:
            r = (number + 2) ** -0.75
            V = (1 - r) * V + r * gradient**2
        step = 0.03**2 / np.sqrt(V)
        p = (1 - DECAY) * p - step * gradient + np.sqrt(2 * DECAY * step) * noise
        theta = theta + p
        state = sghmc_step(key, state, grad_fn, 0.03, DECAY, jnp.asarray(burn_in))
        for found, expected in zip(state, (theta, p, V, min(number + 1, 3), value), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10)
    kinetic = 0.5 * np.sum(p**2 / (0.03**2 / np.sqrt(V)))
    np.testing.assert_allclose(state.energy(0.03), kinetic - value, rtol=1e-10)


def test_burn_in_finds_the_scales_and_ends():
    start = SGHMCState.start(jnp.zeros(DIM))
    chains = jax.vmap(lambda key: warm_up(key, start, 0.1))(jax.random.split(jax.random.key(0), 32))
    # At stationarity the squared gradient averages to the diagonal of the precision.
    assert np.abs(np.log(chains.V_hat.mean(0) / np.diag(PRECISION))).max() < np.log(1.5)
    # Burn-in is no hotter than what follows: scales that follow the gradient give 1.7 times the variance.
    error = np.asarray(chains.position) - MEAN
    energy = np.einsum("ki,ij,kj->k", error, PRECISION, error)
    assert abs(energy.mean() - DIM) < 4.5 * energy.std(ddof=1) / np.sqrt(32)
    state = jax.tree.map(lambda part: part[0], chains)
    later, _, _ = moments(jax.random.key(1), state, 0.1)
    for name in ("num_averaged", "V_hat"):
        np.testing.assert_array_equal(getattr(later, name), getattr(state, name))
    assert not np.array_equal(later.position, state.position)


def test_scale_of_the_density_is_forgotten():
    """In units of θ that are c times larger, with averages in proportion, ε / √c gives the same chain."""
    state = warm_up(jax.random.key(0), SGHMCState.start(jnp.zeros(DIM)), 0.1)
    scale = 7.0
    scaled = state._replace(position=state.position / scale, momentum=state.momentum / scale)
    scaled = scaled._replace(V_hat=state.V_hat * scale**2)
    scaled_grad = jax.value_and_grad(lambda position: log_density(scale * position))
    for number in range(3):
        key = jax.random.key(number)
        state = sghmc_step(key, state, grad_fn, 0.1, DECAY, jnp.asarray(True))
        scaled = sghmc_step(
            key, scaled, scaled_grad, 0.1 / np.sqrt(scale), DECAY, jnp.asarray(True)
        )
    np.testing.assert_allclose(scale * scaled.position, state.position, rtol=1e-10)


def test_gaussian_moments_and_their_bias():
    """Means are right; covariances are those of the discretised motion, whose bias falls with the step squared."""
    excess = []
    for learning_rate in (0.4, 0.1):
        state = warm_up(jax.random.key(0), SGHMCState.start(jnp.zeros(DIM)), learning_rate)
        state = warm_up(jax.random.key(1), state, learning_rate)
        parts = []
        for number in range(16):
            state, first, second = moments(jax.random.key(number + 2), state, learning_rate)
            parts.append((first, second))
        first, second = (np.asarray(part) for part in zip(*parts, strict=True))
        error = first.std(0, ddof=1) / 4
        assert np.abs(first.mean(0) / error).max() < 4.5
        exact = stationary_covariance(np.asarray(state.V_hat), learning_rate)
        error = second.std(0, ddof=1) / 4
        assert np.abs((second.mean(0) - exact) / error).max() < 5.5
        truth = np.linalg.inv(PRECISION)
        excess.append(np.diag(second.mean(0)) / np.diag(truth) - 1)
    assert excess[0].max() > 0.1
    assert excess[1].max() < excess[0].max() / 4
    assert np.abs(excess[1]).max() < 0.05
