"""Priors against scipy.stats, by quadrature and by Kolmogorov–Smirnov tests of their draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpssm.model.priors import InverseGamma, Normal, default_prior

VALUES = np.array([[-1.2, 0.3, 0.9], [0.0, -0.4, 2.0]])
MEANS, STDS = np.array([0.5, -1.0, 2.0]), np.array([0.2, 1.0, 3.0])


@pytest.mark.parametrize(("shape", "scale"), [(1.0, 0.001), (3.5, 2.0)])
def test_inverse_gamma_is_scipys_times_the_jacobian(shape, scale):
    """p(log σ) = p(σ²) · 2σ²."""
    variance = np.exp(2 * VALUES)
    expected = stats.invgamma.logpdf(variance, shape, scale=scale) + np.log(2 * variance)
    np.testing.assert_allclose(
        InverseGamma(shape, scale).log_prob(jnp.asarray(VALUES)), expected.sum()
    )


@pytest.mark.parametrize(
    "prior", [InverseGamma(1.0, 0.001), InverseGamma(3.5, 2.0), Normal(0.4, 1.3)]
)
def test_density_integrates_to_one(prior):
    grid = jnp.linspace(-15.0, 20.0, 20_001)
    density = np.exp(jax.vmap(prior.log_prob)(grid))
    np.testing.assert_allclose(np.trapezoid(density, grid), 1.0, rtol=1e-8)


def test_normal_is_scipys():
    value = jnp.asarray(VALUES)
    np.testing.assert_allclose(
        Normal(0.3, 2.0).log_prob(value), stats.norm.logpdf(VALUES, 0.3, 2.0).sum()
    )
    entrywise = Normal(np.tile(MEANS, (2, 1)), np.tile(STDS, (2, 1)))
    np.testing.assert_allclose(
        entrywise.log_prob(value), stats.norm.logpdf(VALUES, MEANS, STDS).sum()
    )


@pytest.mark.parametrize(("shape", "scale"), [(1.0, 0.001), (3.5, 2.0)])
def test_inverse_gamma_draws_follow_the_density(shape, scale):
    draws = np.asarray(InverseGamma(shape, scale).sample(jax.random.key(0), (5000, 2)))
    assert draws.shape == (5000, 2)
    assert (
        stats.kstest(np.exp(2 * draws.ravel()), stats.invgamma(shape, scale=scale).cdf).pvalue
        > 1e-3
    )
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / np.sqrt(5000)


def test_normal_draws_follow_the_density():
    draws = np.asarray(
        Normal(np.tile(MEANS, (4000, 1)), STDS[None]).sample(jax.random.key(1), (4000, 3))
    )
    for column, mean, std in zip(draws.T, MEANS, STDS, strict=True):
        assert stats.kstest(column, stats.norm(mean, std).cdf).pvalue > 1e-3
    assert Normal(0.0, 1.0).sample(jax.random.key(2), ()).shape == ()


def test_defaults_go_by_the_last_part_of_the_name():
    value = jnp.array([0.3, -2.0])
    for name in ("log_process_std", "likelihood.log_std"):
        assert isinstance(default_prior(name), InverseGamma)
    for name in ("kernel.log_lengthscale", "kernel.left.log_lengthscale"):
        np.testing.assert_allclose(
            default_prior(name).log_prob(value), Normal(1.0, 1.0).log_prob(value)
        )
    np.testing.assert_allclose(
        default_prior("mean.function.gravity").log_prob(value), stats.norm.logpdf(value).sum()
    )


@pytest.mark.parametrize("prior", [InverseGamma(1.0, 0.001), Normal(0.4, 1.3)])
def test_the_density_has_the_dtype_of_the_leaf(prior):
    assert prior.log_prob(jnp.zeros(3, jnp.float32)).dtype == jnp.float32
    assert prior.log_prob(jnp.zeros(3, jnp.float64)).dtype == jnp.float64
