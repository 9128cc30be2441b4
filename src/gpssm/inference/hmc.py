"""Hamiltonian Monte Carlo that integrates the Gaussian part of the motion exactly.

The target is close to N(0, I) in its coordinates. With log π(ξ) = −½|ξ|² + φ(ξ), a step rotates (ξ,
p) by the angle ε, which is exact for the Gaussian part, between two half-steps of the momentum
along ε∇φ (the splitting of Shahbaba et al. 2014). The error depends only on φ, so that the step
size need not shrink with the dimension if φ is small. For any φ the integrator is reversible and
preserves volume, and the accept step makes the move exact.

`StepSize` finds the step at which moves have a wanted acceptance rate, by dual averaging (Nesterov
2009; Hoffman & Gelman 2014).
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.loops import choose, iterate
from gpssm.model.types import Info

LogDensity = Callable[[Float[Array, " n"]], Float[Array, ""]]


class StepSize(NamedTuple):
    """The step in use and its weighted average, both as logarithms, with what the recursion needs.

    It is centred a little above the first step, since a large step is the cheaper mistake.
    """

    log_step: Float[Array, ""]
    log_average: Float[Array, ""]
    centre: Float[Array, ""]
    error: Float[Array, ""]
    updates: Float[Array, ""]

    @classmethod
    def start(cls, step: Float[Array, ""] | float) -> Self:
        """Return the initial state for a step size."""
        log_step = jnp.log(jnp.asarray(step, float))
        zero = jnp.zeros_like(log_step)
        return cls(log_step, log_step, log_step + jnp.log(2.0), zero, zero)

    def size(self, adapting: Bool[Array, ""]) -> Float[Array, ""]:
        """Return the step of the next move: the latest while it adapts, then the average."""
        return jnp.exp(jnp.where(adapting, self.log_step, self.log_average))

    def update(
        self, acceptance: Float[Array, ""], target: float, adapting: Bool[Array, ""] | bool = True
    ) -> "StepSize":
        """Take one step of the recursion.

        H ← (1 − 1/(t + t₀)) H + (target − α)/(t + t₀),  log ε = μ − √t H / γ,  with γ = .2, how
        strongly steps are drawn to the centre, and t₀ = 10, by which the first updates count less.
        Early steps have weights that decay as t^−¾ in the average.

        Parameters
        ----------
        acceptance
            α, the acceptance probability of the latest move.
        target
            The target acceptance rate.
        adapting
            Where false the step size stays as it is.
        """
        count = self.updates + 1
        weight = 1 / (count + 10.0)
        error = (1 - weight) * self.error + weight * (target - acceptance)
        log_step = self.centre - jnp.sqrt(count) / 0.2 * error
        fade = count**-0.75
        log_average = fade * log_step + (1 - fade) * self.log_average
        moved = StepSize(log_step, log_average, self.centre, error, count)
        return choose(jnp.asarray(adapting), moved, self)


class TrajectoryEnd(NamedTuple):
    """The end of a trajectory, the log density at both ends, and the energy and its change.

    With H = ½|p|² − log π, the gain is H at the end minus H at the start, infinite if it is not a
    number. It is the error of the integrator, since the exact motion conserves H.
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
    """Draw a momentum and integrate a trajectory.

    Parameters
    ----------
    momentum_key, jitter_key
        Random keys.
    position
        ξ.
    log_density
        log π.
    step
        ε in radians, varied at random by up to a fifth to avoid resonant trajectory lengths.
    num_steps
        Number of steps of the trajectory, at least one.
    free
        1, or 0 for coordinates that do not move; these must be 0 and have no effect on log π.
    """
    momentum = free * jax.random.normal(momentum_key, position.shape, position.dtype)
    angle = step * jax.random.uniform(jitter_key, minval=0.8, maxval=1.2)
    cosine = jnp.cos(angle)
    sine = jnp.sin(angle)

    def close_step(index: Array, state: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        """Return log π, the momentum after the half-step that ends a step, and that half-step."""
        position, momentum = state
        value, slope = jax.value_and_grad(log_density)(position)
        kick = 0.5 * angle * (slope + position)  # ∇φ = ∇log π + ξ
        return value, (momentum + jnp.where(index == 0, 0.0, 1.0) * kick, kick)

    def open_step(
        _: Array, state: tuple[Array, Array], value: Array, closed: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Return position and momentum after another half-step and a rotation."""
        opened = closed[0] + closed[1]
        return cosine * state[0] + sine * opened, cosine * opened - sine * state[0]

    end = iterate(close_step, open_step, (position, momentum), num_steps)
    end_position, _ = end.state
    end_momentum, _ = end.auxiliary
    energy = 0.5 * jnp.sum(momentum**2) - end.first
    change = energy - (0.5 * jnp.sum(end_momentum**2) - end.last)
    gain = -jnp.where(jnp.isfinite(change), change, -jnp.inf)
    return TrajectoryEnd(end_position, end.first, end.last, energy, gain)


def move(
    key: PRNGKeyArray,
    position: Float[Array, " n"],
    log_density: LogDensity,
    step: Float[Array, ""],
    num_steps: Int[Array, ""] | int,
    free: Float[Array, " n"] | float = 1.0,
    divergence: float = 1000.0,
) -> tuple[Float[Array, " n"], Info]:
    """Propose the end of a trajectory and accept or reject it, which leaves π invariant.

    Parameters
    ----------
    key
        Random key.
    position, log_density, step, num_steps, free
        As in `propose`.
    divergence
        The energy error above which a trajectory counts as divergent.

    Returns
    -------
    position : array
        The new position.
    info : Info
        The log density at the new position, and diagnostics of the trajectory.
    """
    momentum_key, jitter_key, accept_key = jax.random.split(key, 3)
    end = propose(momentum_key, jitter_key, position, log_density, step, num_steps, free)
    acceptance = jnp.exp(jnp.minimum(-end.gain, 0.0))
    accepted = jax.random.uniform(accept_key) < acceptance
    position = jnp.where(accepted, end.position, position)
    value = jnp.where(accepted, end.after, end.before)
    gradients = jnp.asarray(num_steps + 1.0)
    return position, Info(value, acceptance, end.gain > divergence, end.energy, gradients)
