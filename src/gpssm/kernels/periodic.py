"""The periodic kernel."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.kernels.base import Stationary


class Periodic(Stationary):
    """k(z, z') = σ² exp(−2 Σ_i sin²(π (z_i − z'_i) / p) / ℓ_i²): functions that repeat with period p.

    Every coordinate on a circle, w = [cos(2πz/p), sin(2πz/p)] / ℓ, makes it a squared exponential in w.
    """

    log_period: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ(r²) = exp(−½ r²) on the circles."""
        return jnp.exp(-0.5 * squared_distance)

    def scaled(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N 2*Dz"]:
        """Every coordinate on its circle of radius 1/ℓ."""
        angle = 2 * jnp.pi * z * jnp.exp(-self.log_period)
        inverse = jnp.exp(-self.log_lengthscale)[:, None, :]
        return jnp.concatenate([jnp.cos(angle)[None] * inverse, jnp.sin(angle)[None] * inverse], -1)
