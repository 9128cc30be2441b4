"""Step sizes adapted to a target acceptance rate by dual averaging.

Nesterov (2009); Hoffman & Gelman (2014).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpssm.core.loops import choose


class StepSize(NamedTuple):
    """The current log step size, its weighted average, and the state of the recursion."""

    log_step: Float[Array, ""]
    log_average: Float[Array, ""]
    centre: Float[Array, ""]
    error: Float[Array, ""]
    updates: Float[Array, ""]

    def size(self, adapting: Bool[Array, ""]) -> Float[Array, ""]:
        """Return the step size of the next move: the current one while adapting, then the
        average.
        """
        return jnp.exp(jnp.where(adapting, self.log_step, self.log_average))


def start(step: Float[Array, ""] | float) -> StepSize:
    """Return the initial state for a step size.

    The recursion is centred slightly above it, since large steps are the cheaper mistake.
    """
    log_step = jnp.log(jnp.asarray(step, float))
    zero = jnp.zeros_like(log_step)
    return StepSize(log_step, log_step, log_step + jnp.log(2.0), zero, zero)


def update(
    state: StepSize,
    acceptance: Float[Array, ""],
    target: float,
    adapting: Bool[Array, ""] | bool = True,
) -> StepSize:
    """Take one step of the recursion.

    H ← (1 − 1/(t + t₀)) H + (target − α)/(t + t₀),  log ε = μ − √t H / γ,  with γ = .2, which
    controls the pull towards the centre, and t₀ = 10, which damps the first updates. The weights of
    the average decay as t^−¾.

    Parameters
    ----------
    state
        The state before.
    acceptance
        α, the acceptance probability of the latest move.
    target
        The target acceptance rate.
    adapting
        If false, the state is returned unchanged.
    """
    count = state.updates + 1
    weight = 1 / (count + 10.0)
    error = (1 - weight) * state.error + weight * (target - acceptance)
    log_step = state.centre - jnp.sqrt(count) / 0.2 * error
    fade = count**-0.75
    log_average = fade * log_step + (1 - fade) * state.log_average
    moved = StepSize(log_step, log_average, state.centre, error, count)
    return choose(jnp.asarray(adapting), moved, state)
