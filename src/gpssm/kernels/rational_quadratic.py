"""The rational-quadratic kernel."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.kernels.base import Stationary


class RationalQuadratic(Stationary):
    """k(z, z') = σ² (1 + r² / 2α)^{−α}: a scale mixture of squared exponentials."""

    log_mixture: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = (1 + r² / 2α)^{−α}."""
        alpha = jnp.exp(self.log_mixture)
        return jnp.exp(-alpha * jnp.log1p(squared_distance / (2 * alpha)))

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """ω = ε √τ with τ ~ Gamma(α, rate α), ε ~ N(0, I), at the current α."""
        normal_key, gamma_key = jax.random.split(key)
        alpha, dtype = jnp.exp(self.log_mixture), self.log_lengthscale.dtype
        precision = jax.random.gamma(gamma_key, alpha, (num, 1), dtype) / alpha
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt(precision)
