"""Step sizes that reach a wanted acceptance rate, by dual averaging (Nesterov 2009; Hoffman & Gelman 2014)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

SHRINKAGE, DELAY, DECAY = 0.2, 10.0, 0.75


class StepSize(NamedTuple):
    """The step in use and its weighted average, both as logarithms, with what the recursion remembers."""

    log_step: Float[Array, ""]
    log_average: Float[Array, ""]
    centre: Float[Array, ""]
    error: Float[Array, ""]
    updates: Float[Array, ""]

    def size(self, adapting: Bool[Array, ""]) -> Float[Array, ""]:
        """The step of the next move: the latest while it adapts, the average ever after."""
        return jnp.exp(jnp.where(adapting, self.log_step, self.log_average))


def start(step: Float[Array, ""] | float) -> StepSize:
    """Begin at a step size; the recursion is centred a little above it, since a large step is the cheaper mistake."""
    log_step = jnp.log(jnp.asarray(step, float))
    zero = jnp.zeros_like(log_step)
    return StepSize(log_step, log_step, log_step + jnp.log(2.0), zero, zero)


def update(
    state: StepSize,
    acceptance: Float[Array, ""],
    target: float,
    adapting: Bool[Array, ""] | bool = True,
) -> StepSize:
    """One step of the recursion: H ← (1 − 1/(t + t₀)) H + (target − α)/(t + t₀),  log ε = μ − √t H / γ.

    Where it no longer adapts the state stays as it is.
    """
    count = state.updates + 1
    weight = 1 / (count + DELAY)
    error = (1 - weight) * state.error + weight * (target - acceptance)
    log_step = state.centre - jnp.sqrt(count) / SHRINKAGE * error
    fade = count**-DECAY
    moved = StepSize(
        log_step, fade * log_step + (1 - fade) * state.log_average, state.centre, error, count
    )
    return jax.tree.map(lambda new, old: jnp.where(adapting, new, old), moved, state)
