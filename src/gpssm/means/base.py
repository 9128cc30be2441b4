"""Mean functions m(x, u) of the transition: what the dynamics do before anything is learned."""

import abc

import equinox as eqx
from jaxtyping import Array, Float


class Mean(eqx.Module):
    """m(x, u), the prior mean of the next state."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """m at N states and controls."""
