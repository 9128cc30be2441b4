"""The identity mean."""

from jaxtyping import Array, Float

from gpssm.means.base import Mean


class Identity(Mean):
    """m(x, u) = x: without evidence the state stays where it is."""

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """x."""
        return x
