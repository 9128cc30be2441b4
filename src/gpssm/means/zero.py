"""The zero mean."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.means.base import Mean


class Zero(Mean):
    """m(x, u) = 0: without evidence the state returns to the origin."""

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """0."""
        return jnp.zeros_like(x)
