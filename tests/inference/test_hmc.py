"""The HMC move and its step sizes against densities whose moments are known."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import dblquad

from gpssm.inference import hmc
from gpssm.inference.hmc import StepSize


def chain(log_density, start, step, num_steps, num_draws, seed=0):
    def iterate(position, key):
        position, info = hmc.move(key, position, log_density, step, num_steps)
        return position, (position, info)

    keys = jax.random.split(jax.random.key(seed), num_draws)
    return jax.jit(lambda: jax.lax.scan(iterate, start, keys))()[1]


def batch_error(values, batches=40):
    """Mean and Monte-Carlo standard error by batch means."""
    means = (
        values[: len(values) // batches * batches].reshape(batches, -1, *values.shape[1:]).mean(1)
    )
    return values.mean(0), means.std(0, ddof=1) / np.sqrt(batches)


def test_standard_normal_is_moved_without_error():
    positions, info = chain(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(300), jnp.asarray(0.7), 3, 200)
    np.testing.assert_allclose(info.acceptance, 1.0, rtol=1e-10)
    mean, error = batch_error(np.asarray(positions)[:, :5])
    assert np.all(np.abs(mean) < 4.5 * error)


def test_non_gaussian_density_has_its_moments():
    """A bent ridge, against quadrature."""

    def log_density(x):
        return -0.5 * x[0] ** 2 - 0.5 * (x[1] - 0.6 * x[0] ** 2) ** 2 / 0.3 - 0.1 * x[0] ** 4

    def moment(function):
        def integrand(b, a):
            return function(a, b) * np.exp(log_density((a, b)))

        return dblquad(integrand, -5, 5, -6, 12, epsabs=1e-8)[0]

    mass = moment(lambda a, b: 1.0)
    expected = [
        moment(f) / mass
        for f in (lambda a, b: a, lambda a, b: b, lambda a, b: a * a, lambda a, b: b * b)
    ]
    positions, info = chain(log_density, jnp.zeros(2), jnp.asarray(0.35), 6, 20_000)
    a, b = np.asarray(positions).T
    mean, error = batch_error(np.stack([a, b, a**2, b**2], 1))
    assert 0.5 < float(jnp.mean(info.acceptance)) < 1.0
    assert np.all(np.abs(mean - expected) < 4.5 * error)


def test_a_wall_counts_as_divergence_and_is_not_crossed():
    def log_density(x):
        return jnp.where(x[0] > 1.0, -jnp.inf, -0.5 * jnp.sum(x**2))

    positions, info = chain(log_density, jnp.zeros(2), jnp.asarray(0.5), 4, 500)
    assert np.asarray(positions)[:, 0].max() <= 1.0
    assert bool(jnp.any(info.divergent))


def test_dual_averaging_reaches_its_target():
    """On a density with one stiff direction the adapted step gives the wanted acceptance."""
    scale = jnp.asarray([1.0, 30.0])

    def log_density(x):
        return -0.5 * jnp.sum(scale * x**2)

    def iterate(carry, key):
        position, step = carry
        position, info = hmc.move(key, position, log_density, jnp.exp(step.log_step), 5)
        step = step.update(info.acceptance, 0.8)
        return (position, step), info.acceptance

    start = (jnp.zeros(2), StepSize.start(1.0))
    keys = jax.random.split(jax.random.key(1), 1500)
    (position, step), _ = jax.jit(lambda: jax.lax.scan(iterate, start, keys))()
    _, info = chain(log_density, position, jnp.exp(step.log_average), 5, 2000, seed=2)
    mean, error = batch_error(np.asarray(info.acceptance))
    assert abs(mean - 0.8) < 0.06 + 4 * error
