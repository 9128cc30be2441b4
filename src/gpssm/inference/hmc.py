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
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

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


class TrajectoryEnd(NamedTuple):
    """The far end of a trajectory, the log density at both ends, the energy and what it gained.

    With H = ½|p|² − log π the gain is H at the end less H at the start, infinite where it is not a
    number: the error of the integrator, since the motion itself conserves H.
    """

    position: Float[Array, " n"]
    before: Float[Array, ""]
    after: Float[Array, ""]
    energy: Float[Array, ""]
    gain: Float[Array, ""]


def propose(
    momentum_key: PRNGKeyArray,
    jitter_key: PRNGKeyArray,
    position: Float[Array, " n"],
    log_density: LogDensity,
    step: Float[Array, ""],
    num_steps: Int[Array, ""] | int,
    free: Float[Array, " n"] | float = 1.0,
) -> TrajectoryEnd:
    """Draw a momentum and follow the motion for `num_steps` steps of about `step` radians.

    Coordinates where `free` is 0, which must be 0 and without effect on the density, stay where they are.
    """
    momentum = free * jax.random.normal(momentum_key, position.shape, position.dtype)
    angle = step * jax.random.uniform(jitter_key, minval=1 - JITTER, maxval=1 + JITTER)
    before, after, end, end_momentum = _trajectory(
        position, momentum, log_density, angle, num_steps
    )
    energy = 0.5 * jnp.sum(momentum**2) - before
    change = energy - (0.5 * jnp.sum(end_momentum**2) - after)
    return TrajectoryEnd(
        end, before, after, energy, -jnp.where(jnp.isfinite(change), change, -jnp.inf)
    )


def move(
    key: PRNGKeyArray,
    position: Float[Array, " n"],
    log_density: LogDensity,
    step: Float[Array, ""],
    num_steps: Int[Array, ""] | int,
    free: Float[Array, " n"] | float = 1.0,
) -> Outcome:
    """Propose the end of a trajectory, and accept it or stay, which leaves the law invariant."""
    momentum_key, jitter_key, accept_key = jax.random.split(key, 3)
    end = propose(momentum_key, jitter_key, position, log_density, step, num_steps, free)
    acceptance = jnp.exp(jnp.minimum(-end.gain, 0.0))
    accepted = jax.random.uniform(accept_key) < acceptance
    position, value = (
        jnp.where(accepted, end.position, position),
        jnp.where(accepted, end.after, end.before),
    )
    return Outcome(position, value, acceptance, end.gain > DIVERGENCE, end.energy)


def _trajectory(
    position: Float[Array, " n"],
    momentum: Float[Array, " n"],
    log_density: LogDensity,
    angle: Float[Array, ""],
    num_steps: Int[Array, ""] | int,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " n"], Float[Array, " n"]]:
    """The log density at both ends, and position and momentum at the far one.

    A round of the loop closes one step with a half kick and opens the next with another, both by one gradient: the
    gradient then stands in the program once, which halves the time to compile it. The first round closes nothing, and
    what the last one opens is not used.
    """
    cosine, sine = jnp.cos(angle), jnp.sin(angle)

    def turn(index: Int[Array, ""], carry: tuple[Array, ...]) -> tuple[Array, ...]:
        position, momentum, before, *_ = carry
        value, slope = jax.value_and_grad(log_density)(position)
        kick = 0.5 * angle * (slope + position)  # ∇φ = ∇log π + ξ
        closed = momentum + jnp.where(index == 0, 0.0, 1.0) * kick
        opened = closed + kick
        ahead = cosine * position + sine * opened, cosine * opened - sine * position
        return (*ahead, jnp.where(index == 0, value, before), value, position, closed)

    nothing = jnp.zeros((), position.dtype)
    begin = (position, momentum, nothing, nothing, position, momentum)
    return jax.lax.fori_loop(0, num_steps + 1, turn, begin)[2:]
