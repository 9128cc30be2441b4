"""A user's own mean function: known physics, with the Gaussian process on what it misses."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float

from gpssm.means.base import Mean


class Function(Mean):
    """m(x, u) = function(x, u), for a function of one state (Dx,) and one control (Du,).

    The function may be an `equinox.Module`: its arrays are then leaves of the model: fix, optimise or sample.
    """

    function: Callable[[Float[Array, " Dx"], Float[Array, " Du"]], Float[Array, " Dx"]] = eqx.field()

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """The function at every row."""
        return jax.vmap(self.function)(x, u)
