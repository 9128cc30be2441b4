"""The neural-network (arc-sine) kernel: non-stationary."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.kernels.base import DotProduct


class NeuralNetwork(DotProduct):
    """k(z, z') = σ² (2/π) asin( 2 s(z,z') / √((1 + 2 s(z,z)) (1 + 2 s(z',z'))) ).

    Here s(z,z') = 1 + Σ_i z_i z'_i / ℓ_i². A network with infinitely many error-function units
    (Williams 1998): varies near the origin, saturates far away, so forecasts that leave the data flatten out
    instead of returning to the mean.
    """

    def shape(
        self, cross: Float[Array, "Dx N M"], left: Float[Array, "Dx N _"], right: Float[Array, "Dx _ M"]
    ) -> Float[Array, "Dx N M"]:
        """h = (2/π) asin(2 s / √((1 + 2 s_left)(1 + 2 s_right)))."""
        sine = 2 * cross / jnp.sqrt((1 + 2 * left) * (1 + 2 * right))
        # Far from the origin the sine rounds to one, where the slope of asin is infinite.
        limit = 1 - jnp.finfo(sine.dtype).eps
        return (2 / jnp.pi) * jnp.arcsin(jnp.clip(sine, -limit, limit))
