"""The squared-exponential (RBF, Gaussian) kernel."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.kernels.base import Stationary


class SquaredExponential(Stationary):
    """k(z, z') = σ² exp(−½ r²): infinitely smooth functions."""

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ(r²) = exp(−½ r²)."""
        return jnp.exp(-0.5 * squared_distance)

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """S(ω) = σ² Π_i √(2π) ℓ_i exp(−½ ℓ_i² ω_i²)."""
        exponent = -0.5 * jnp.matmul(jnp.exp(2 * self.log_lengthscale), frequencies.T**2)
        log_scale = jnp.sum(self.log_lengthscale + 0.5 * jnp.log(2 * jnp.pi), -1)
        return jnp.exp((self.log_variance + log_scale)[:, None] + exponent)

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """ω ~ N(0, I)."""
        return jax.random.normal(key, (num, dim), self.log_lengthscale.dtype)
