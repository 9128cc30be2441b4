"""Hamiltonian Monte Carlo that solves the Gaussian part of the motion exactly.

The target is close to N(0, I) in the coordinates it is given in. With log π(ξ) = −½|ξ|² + φ(ξ), a step rotates (ξ, p)
by the angle ε, exact for the Gaussian part, between two half kicks by ε∇φ (a splitting after Shahbaba et al. 2014). The
error is that of φ alone, so the step does not shrink with the dimension when φ is small; with any φ the scheme is
reversible and preserves volume, and the accept step makes it exact.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

DIVERGENCE = 1000.0  # an energy error beyond this is no discretisation error any more
JITTER = 0.2  # relative spread of the step size, so that no trajectory length is resonant

LogDensity = Callable[[Float[Array, " n"]], Float[Array, ""]]


class Outcome(NamedTuple):
    """How a move went: where it ended, the log density there, and figures of the trajectory."""

    position: Float[Array, " n"]
    value: Float[Array, ""]
    acceptance: Float[Array, ""]
    divergent: Bool[Array, ""]
    energy: Float[Array, ""]


def move(
    key: PRNGKeyArray,
    position: Float[Array, " n"],
    log_density: LogDensity,
    step: Float[Array, ""],
    num_steps: int,
    free: Float[Array, " n"] | float = 1.0,
) -> Outcome:
    """Draw a momentum, follow the motion for `num_steps` steps of about `step` radians, accept or stay.

    Coordinates where `free` is 0, which must be 0 and without effect on the density, stay where they are.
    """
    momentum_key, jitter_key, accept_key = jax.random.split(key, 3)
    momentum = free * jax.random.normal(momentum_key, position.shape, position.dtype)
    angle = step * jax.random.uniform(jitter_key, minval=1 - JITTER, maxval=1 + JITTER)
    values, end, end_momentum = _trajectory(position, momentum, log_density, angle, num_steps)
    energy = 0.5 * jnp.sum(momentum**2) - values[0]
    change = energy - (0.5 * jnp.sum(end_momentum**2) - values[-1])
    change = jnp.where(jnp.isfinite(change), change, -jnp.inf)
    acceptance = jnp.exp(jnp.minimum(change, 0.0))
    accepted = jax.random.uniform(accept_key) < acceptance
    position, value = jnp.where(accepted, end, position), jnp.where(accepted, values[-1], values[0])
    return Outcome(position, value, acceptance, change < -DIVERGENCE, energy)


def _trajectory(
    position: Float[Array, " n"],
    momentum: Float[Array, " n"],
    log_density: LogDensity,
    angle: Float[Array, ""],
    num_steps: int,
) -> tuple[Float[Array, " L+1"], Float[Array, " n"], Float[Array, " n"]]:
    """The log density along the way, and position and momentum at its end.

    A round of the loop closes one step with a half kick and opens the next with another, both by one gradient: the
    gradient then stands in the program once, which halves the time to compile it. The first round closes nothing, and
    what the last one opens is not used.
    """
    cosine, sine = jnp.cos(angle), jnp.sin(angle)

    def turn(carry: tuple[Array, ...], is_first: Bool[Array, ""]) -> tuple[tuple[Array, ...], Float[Array, ""]]:
        position, momentum, *_ = carry
        value, slope = jax.value_and_grad(log_density)(position)
        kick = 0.5 * angle * (slope + position)  # ∇φ = ∇log π + ξ
        closed = momentum + jnp.where(is_first, 0.0, 1.0) * kick
        opened = closed + kick
        ahead = cosine * position + sine * opened, cosine * opened - sine * position
        return (*ahead, position, closed), value

    first = jnp.arange(num_steps + 1) == 0
    (_, _, end, end_momentum), values = jax.lax.scan(turn, (position, momentum, position, momentum), first)
    return values, end, end_momentum
