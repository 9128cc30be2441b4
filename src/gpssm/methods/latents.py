"""What `ffvd-m`, `ffvd-c-m` and `ffvd-nuts` share: states, and weights or not, as one vector."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import States
from gpssm.model.types import Draw, Method


class Latents(NamedTuple):
    """All that a sampler moves at once; the weights are None where they are integrated out."""

    states: States
    weights: Float[Array, "Dx M"] | None
    leaves: dict[str, Array]


@dataclass(frozen=True)
class LatentSampler(Method):
    """A sampler of one vector of latents; its carry has a `position` and `parameters`.

    Parameters
    ----------
    settings
        The settings of the method.
    moves
        The moves of the parameters.
    start
        The states to start from.
    collapsed
        Whether the weights are integrated out.
    moves_leaves
        Whether leaves with the role "sample" are part of the vector.
    """

    settings: Any
    moves: ParameterMoves
    start: States
    collapsed: bool
    moves_leaves: bool

    def pack(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, " n"]:
        """Return the vector of these states, a draw of the weights, and the model's leaves."""
        weights = None
        if not self.collapsed:
            weights = self.moves.draw_weights(key, parameters, states, series)
        return ravel_pytree(Latents(states, weights, self.leaves))[0]

    def unpack(self, position: Float[Array, " n"]) -> Latents:
        """Return the latents that a vector stands for."""
        model = self.moves.model
        weights = None
        if not self.collapsed:
            shape = (model.state_dim, model.basis.size)
            weights = jnp.zeros(shape, model.log_process_std.dtype)
        return ravel_pytree(Latents(self.start, weights, self.leaves))[1](position)

    @property
    def leaves(self) -> dict[str, Array]:
        """The leaves in the vector, at their values in the model."""
        return self.moves.model.leaves("sample") if self.moves_leaves else {}

    def draw(self, key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
        """Return the present latents; weights that are integrated out are drawn."""
        states, weights, _ = self.unpack(carry.position)
        if weights is None:
            weights = self.moves.draw_weights(key, carry.parameters, states, series)
        return Draw(states, weights, carry.parameters.leaves)
