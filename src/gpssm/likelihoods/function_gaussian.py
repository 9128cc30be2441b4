"""Gaussian noise around a user's own emission function of the state."""

from collections.abc import Callable
from typing import ClassVar, Literal

import jax
from jaxtyping import Array, Float

from gpssm.likelihoods.base import GaussianNoise


class FunctionGaussian(GaussianNoise):
    """y ~ N(function(x), R), the function from one state (Dx,) to one output row (Dy,) in the data's units.

    The function may be an `equinox.Module`: its arrays are then leaves of the model: fix, optimise or sample.
    """

    scaling: ClassVar[Literal["standard", "scale", "none"]] = "none"
    function: Callable[[Float[Array, " Dx"]], Float[Array, " Dy"]]

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """The function at every row."""
        return jax.vmap(self.function)(x)
