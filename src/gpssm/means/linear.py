"""The linear mean."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.means.base import Mean


class LinearMap(Mean):
    """m(x, u) = A x + B u + b.

    With `LinearFeatures` in the basis it is the centre of the prior on a linear map that is marginalised
    exactly; alone it is a fixed map, or one to optimise.
    """

    transition: Float[Array, "Dx Dx"]
    control: Float[Array, "Dx Du"]
    offset: Float[Array, " Dx"]

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """A x + B u + b."""
        return jnp.matmul(x, self.transition.T) + jnp.matmul(u, self.control.T) + self.offset[None]
