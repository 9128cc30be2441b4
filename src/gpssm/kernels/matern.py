"""Matérn kernels of half-integer smoothness ν = 1/2, 3/2, 5/2."""

import abc
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.kernels.base import Stationary


def _distance(squared: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
    """√r² with a zero gradient at r = 0, where the root's own is infinite."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


class Matern(Stationary):
    """What the three orders share: their spectral law is a multivariate Student t, 2ν degrees of freedom."""

    @property
    @abc.abstractmethod
    def smoothness(self) -> float:
        """ν."""

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """S(ω) = σ² Πℓ_i · 2ᴰ π^{D/2} Γ(ν + D/2) (2ν)^ν / Γ(ν) · (2ν + Σ ℓ_i² ω_i²)^{−(ν + D/2)}."""
        nu, dim = self.smoothness, frequencies.shape[1]
        constant = (
            dim * math.log(2)
            + 0.5 * dim * math.log(math.pi)
            + math.lgamma(nu + 0.5 * dim)
            - math.lgamma(nu)
            + nu * math.log(2 * nu)
        )
        tail = jnp.log(2 * nu + jnp.matmul(jnp.exp(2 * self.log_lengthscale), frequencies.T**2))
        scale = self.log_variance + jnp.sum(self.log_lengthscale, -1) + constant
        return jnp.exp(scale[:, None] - (nu + 0.5 * dim) * tail)

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """ω = ε √(2ν / χ²_{2ν}),  ε ~ N(0, I)."""
        normal_key, gamma_key = jax.random.split(key)
        dtype = self.log_lengthscale.dtype
        chi_square = 2 * jax.random.gamma(gamma_key, self.smoothness, (num, 1), dtype)
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt(2 * self.smoothness / chi_square)


class Matern12(Matern):
    """k(z, z') = σ² exp(−r): continuous, rough functions."""

    @property
    def smoothness(self) -> float:
        """ν = 1/2."""
        return 0.5

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = exp(−r)."""
        return jnp.exp(-_distance(squared_distance))


class Matern32(Matern):
    """k(z, z') = σ² (1 + √3 r) exp(−√3 r): once differentiable functions."""

    @property
    def smoothness(self) -> float:
        """ν = 3/2."""
        return 1.5

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = (1 + s) exp(−s),  s = √3 r."""
        s = math.sqrt(3) * _distance(squared_distance)
        return (1 + s) * jnp.exp(-s)


class Matern52(Matern):
    """k(z, z') = σ² (1 + √5 r + 5r²/3) exp(−√5 r): twice differentiable functions."""

    @property
    def smoothness(self) -> float:
        """ν = 5/2."""
        return 2.5

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = (1 + s + s²/3) exp(−s),  s = √5 r."""
        s = math.sqrt(5) * _distance(squared_distance)
        return (1 + s + s**2 / 3) * jnp.exp(-s)
