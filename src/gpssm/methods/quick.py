"""`quick`: the free-form posterior in seconds, by short trajectories without an accept step.

In the coordinates ξ of `inference/whitening.py`, the collapsed target is nearly N(0, I). The
discretisation error of the energy H = ½|p|² − log π(ξ) along a trajectory is a sum over n
coordinates, and an accept step depends on the sum: its step size must shrink as n grows, although
the marginals of the coordinates do not require this. Without an accept step, a direction of
curvature ω² has the stationary variance

    1/ω̃²    with    ω̃² = 1 + 2a cot ε − a²,    a = ε(ω² − 1)/2

instead of 1/ω², for steps of ε radians. For ω = 1 there is no error. For trajectories of about a
quarter turn, E[(ΔH)²]/n is approximately the mean square relative error of these variances (within
a factor of two for ω² from a quarter to two), and the step size is adapted to it.

An iteration moves the states by one trajectory, the kernel by a step of Adam, draws the weights and
the noises from their conditionals, and moves noises and states together with an accept step
(`noise_moves.py`). Alternating draws of states and noise levels amplify a bias of the states; the
joint move, which is exact, keeps it small.

**The bias** from the missing accept step is measured a few times during sampling. From the current
draw, some trajectories with much smaller steps and an accept step are run at the same parameters,
and discarded. They leave the exact posterior invariant, so on average

    bias = 2 (log π(after) − log π(before)) / n

is the relative error of the variances, averaged over all coordinates: `Info.bias`. The acceptance
rate of these moves is `Info.acceptance`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.loops import choose
from gpssm.core.runtime import in_step
from gpssm.data.series import Series
from gpssm.inference import hmc, noise_moves
from gpssm.inference.noise_moves import ChainState
from gpssm.inference.settings import positive
from gpssm.inference.whitening import unstack
from gpssm.methods.ffvd import (
    Carry,
    Schedule,
    WhitenedSampler,
    WhitenedSettings,
    WhitenedTarget,
)
from gpssm.model.types import Info

# The mean of 1 / (1 + z²) for z ~ N(0, 1): the adaptation statistic when the energy error of a
# trajectory has its target variance.
ON_TARGET = 0.6557
# A trajectory whose energy error exceeds this many standard deviations is discarded.
OUTLIER = 10.0
# The exact moves that measure the bias: how often in the draws of a chain, how many in a row, the
# radians of each, and their step relative to the adapted one.
JUDGED = 4
EXACT_MOVES = 3
EXACT_ANGLE = 1.0
EXACT_STEP = 0.25


class Trajectories(NamedTuple):
    """One trajectory without an accept step, and the exact moves after it.

    Parameters
    ----------
    end, value
        The end of the trajectory, and its log density.
    gain, energy
        The energy error of the trajectory, and the initial energy.
    position
        The position after the last move.
    rise, accepted
        The increase of the log density in exact moves, and the number of accepted moves.
    """

    end: Float[Array, " n"]
    value: Float[Array, ""]
    gain: Float[Array, ""]
    energy: Float[Array, ""]
    position: Float[Array, " n"]
    rise: Float[Array, ""]
    accepted: Float[Array, ""]


class QuickSampler(WhitenedSampler):
    """The iterations of `quick`."""

    # A trajectory is about a quarter turn, after which a standard normal coordinate is independent
    # of its start and the energy error of a direction is largest. After half a turn, the error
    # vanishes whatever the bias. A few stiff directions hardly affect the mean error; steps longer
    # than .7 would be unstable if the curvature is six times that of the coordinates.
    schedule = Schedule(angle=1.6, first_step=0.4, longest_step=0.7)

    def step(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        """Move the states along a trajectory, then everything else given the states."""
        part_key, move_key, kernel_key, weights_key, noise_key = jax.random.split(key, 5)
        carry = self.refresh(carry, series)
        phase = self.phase(carry)
        target = self.target(part_key, carry, series)
        size = jnp.sum(target.free)
        limit = OUTLIER * (1 + jnp.sqrt(size * self.settings.energy_error))
        angle = jnp.minimum(carry.step.size(phase.adapting), self.schedule.longest_step)
        num_steps = jnp.clip(jnp.round(self.schedule.angle / angle), 1, self.settings.num_leapfrog)
        num_steps = jnp.stack([num_steps, jnp.ceil(EXACT_ANGLE / (EXACT_STEP * angle))]).astype(int)
        judged = self.judged(carry)
        num_exact = jnp.where(in_step(judged), EXACT_MOVES, 0)
        moved = self.move(move_key, target, angle, num_steps, num_exact, limit)

        states = target.coordinates.to_states(moved.end)
        parameters = self.moves.update_collapsed(
            kernel_key, carry.parameters, unstack(states, series), carry.iteration, series
        )
        # The kernel does not change.
        moves = self.moves._replace(model=self.moves.apply(parameters).prepared())
        state = ChainState(states, carry.weights, parameters, carry.walk)
        centre = carry.whitening.linear.centre
        state = noise_moves.update(weights_key, noise_key, moves, state, centre, series, phase, 1)

        bias = jnp.where(judged, 2 * moved.rise / size, carry.bias)
        acceptance = jnp.where(judged, moved.accepted / EXACT_MOVES, carry.acceptance)
        statistic = 1 / (1 + moved.gain**2 / (size * self.settings.energy_error))
        gradients = 1.0 + num_steps[0] + num_exact * (1.0 + num_steps[1])
        discarded = ~(moved.gain < limit)
        info = Info(moved.value, acceptance, discarded, moved.energy, gradients, bias)
        carry = self.advance(carry, state, statistic, ON_TARGET)
        return carry._replace(bias=bias, acceptance=acceptance), info

    def judged(self, carry: Carry) -> Array:
        """Return whether exact moves follow the trajectory of this iteration."""
        interval = max(1, self.settings.num_draws * self.settings.thin // JUDGED)
        since = carry.iteration - self.settings.num_warmup
        return (since >= 0) & (since % interval == 0)

    def move(
        self,
        key: PRNGKeyArray,
        target: WhitenedTarget,
        angle: Float[Array, ""],
        num_steps: Int[Array, " 2"],
        num_exact: Int[Array, ""],
        limit: Float[Array, ""],
    ) -> Trajectories:
        """Move once without an accept step, then some times with one, in the same program.

        Parameters
        ----------
        key
            Random key.
        target
            The target and the position.
        angle
            Radians of a step.
        num_steps
            Number of steps of the first trajectory, and of each exact one.
        num_exact
            Number of exact moves.
        limit
            The energy error above which the first trajectory is discarded.
        """

        def follow(index: Array, before: Trajectories) -> Trajectories:
            exact = index > 0
            momentum_key, jitter_key, accept_key = jax.random.split(
                jax.random.fold_in(key, index), 3
            )
            end = hmc.propose(
                momentum_key,
                jitter_key,
                before.position,
                target.log_density,
                jnp.where(exact, EXACT_STEP, 1.0) * angle,
                jnp.where(exact, num_steps[1], num_steps[0]),
                target.free,
            )
            threshold = jnp.where(exact, -jnp.log(jax.random.uniform(accept_key)), limit)
            accepted = end.gain < threshold
            position = jnp.where(accepted, end.position, before.position)
            value = jnp.where(accepted, end.after, end.before)
            first = Trajectories(
                position, value, end.gain, end.energy, position, before.rise, before.accepted
            )
            following = before._replace(
                position=position,
                rise=before.rise + value - end.before,
                accepted=before.accepted + accepted,
            )
            return choose(exact, following, first)

        zero = jnp.zeros((), target.position.dtype)
        start = Trajectories(target.position, zero, zero, zero, target.position, zero, zero)
        return jax.lax.fori_loop(0, 1 + num_exact, follow, start)


@dataclass(frozen=True)
class Quick(WhitenedSettings):
    """Settings of `quick`; `WhitenedSettings` and `MethodSettings` have the others.

    Parameters
    ----------
    energy_error
        Target variance of a trajectory's energy error per coordinate, to which the step size is
        adapted; its root is about the relative error of the variances of the states.
    """

    judges_bias: ClassVar[bool] = True
    sampler = QuickSampler

    num_warmup: int = 150
    num_draws: int = 50
    thin: int = 1
    num_leapfrog: int = 10
    energy_error: float = positive(1e-3)
