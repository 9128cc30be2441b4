"""`quick`: the free-form posterior in seconds, by short trajectories without an accept step.

In the coordinates ξ of `inference/whitening.py` the collapsed target is nearly N(0, I). The energy
H = ½|p|² − log π(ξ) that a trajectory gains by its finite steps is a sum over n coordinates, and an
accept step sees the sum: its step must shrink as n grows, although the law of each coordinate has
no need of that. Without an accept step, a direction of curvature ω² has the stationary variance

    1/ω̃²    with    ω̃² = 1 + 2a cot ε − a²,    a = ε(ω² − 1)/2

instead of 1/ω², at a step of ε radians. Where ω = 1 there is no error at all. Over trajectories of
about a quarter turn E[(ΔH)²]/n is about the mean square of the relative error of these variances
(within a factor of two for ω² from a quarter to two), and the step size is adapted to that.

An iteration moves the states by one trajectory, the kernel by a step of Adam, draws the weights and
the noises from their conditionals, and moves noises and states together with an accept step
(`noise_moves.py`). The noises feel a bias of the states many times over, since each is drawn given
the other; that joint move, which is exact, is what keeps it small.

**What the missing accept step costs** is measured a few times while drawing. From the draw of the
moment, trajectories of much smaller steps with an accept step go on for a while, at the same
parameters, and are thrown away. They leave the exact posterior invariant, so that on average

    bias = 2 (log π(after) − log π(before)) / n

is the relative error of the variances, averaged over all coordinates: `Info.bias`. The share of
these moves that was accepted is `Info.acceptance`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.runtime import in_step
from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.inference import dual_averaging, hmc, noise_moves
from gpssm.inference.dual_averaging import StepSize
from gpssm.inference.noise_moves import Walk
from gpssm.inference.parameters import ParameterMoves, Parameters, rate_for
from gpssm.inference.settings import Assumptions, MethodSettings, States, pilot_length
from gpssm.inference.whitening import Whitening, moving, stack, unstack, whiten
from gpssm.methods.ffvd import FFVD, REFRESHES
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info, Method

# Radians of a trajectory: about a quarter turn, after which a standard normal coordinate has
# forgotten where it was, and where the energy error of a direction is as large as it gets. After
# half a turn it has vanished, whatever the bias.
ANGLE = 1.6
FIRST_STEP = 0.4  # radians
# A few stiff directions do not show in the mean error of all; longer steps than this would be
# unstable where the curvature is six times what the coordinates take it for.
LONGEST_STEP = 0.7
# The mean of 1 / (1 + z²) for z ~ N(0, 1): the controller's statistic where the energy error of a
# trajectory has the variance that is aimed at.
ON_TARGET = 0.6557
WALK = 1  # joint moves of noises and states in an iteration
# A trajectory that gains more energy than so many of its standard deviations is discarded.
OUTLIER = 10.0
# The exact moves by which the bias is judged: how often in the draws of a chain, how many moves in
# a row, the radians of each, and their step as a share of the adapted one.
JUDGED, EXACT_MOVES, EXACT_ANGLE, EXACT_STEP = 4, 3, 1.0, 0.25


@dataclass(frozen=True)
class Quick(MethodSettings):
    """Settings of `quick`.

    Parameters
    ----------
    num_warmup
        Iterations that adapt and are thrown away, two thirds of them once for all chains.
    num_draws
        Draws kept in each chain.
    thin
        Iterations for each draw kept.
    learning_rate
        Adam's first step size; see `MethodSettings`.
    energy_error
        Variance of the energy error of a trajectory, per coordinate, that the step size aims at:
        its root is about the relative error of the variances of the states.
    num_leapfrog
        Steps of a trajectory at most.
    rank
        Soft directions that the coordinates are stretched along.
    """

    compares: ClassVar[bool] = True
    pads: ClassVar[bool] = True
    judges_bias: ClassVar[bool] = True
    assumptions: ClassVar[Assumptions | None] = Assumptions(
        True, True, True, "draws from q*(x, v), without an accept step for the states"
    )

    num_warmup: int = 150
    num_draws: int = 50
    thin: int = 1
    energy_error: float = 1e-3
    num_leapfrog: int = 10
    rank: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("num_leapfrog", self.num_leapfrog, 1)
        check_whole("rank", self.rank, 1)
        if not self.energy_error > 0:
            raise ValueError(f"energy_error must be positive, got {self.energy_error!r}.")

    def slack(self, rows: int) -> float:
        """Return that of `ffvd`: the model is the same."""
        return FFVD().slack(rows)

    def build(self, model: GPSSM, states: States) -> Method:
        """Return the three functions of the method for a model, started at these states."""
        rate = rate_for(self.learning_rate, states)
        return build_quick(self, ParameterMoves(model, self.num_warmup, rate), states)


class Carry(NamedTuple):
    """What the next iteration needs.

    `mean` is the mean of the `num_averaged` paths since the last refresh of the whitening; `bias` and
    `acceptance` are those of the latest exact moves.
    """

    states: Float[Array, "N Dx"]
    weights: Float[Array, "Dx M"]
    parameters: Parameters
    whitening: Whitening
    step: StepSize
    walk: Walk
    mean: Float[Array, "N Dx"]
    num_averaged: Float[Array, ""]
    bias: Float[Array, ""]
    acceptance: Float[Array, ""]
    iteration: Array


class Moves(NamedTuple):
    """One trajectory without an accept step, and the exact moves after it.

    `drawn` is where the trajectory ended and `value` the log density there, `gain` the energy it
    gained from `energy` on. `position` is where the latest move ended, `rise` what the log density
    has risen by in exact moves, and `accepted` their number that was accepted.
    """

    drawn: Float[Array, " n"]
    value: Float[Array, ""]
    gain: Float[Array, ""]
    energy: Float[Array, ""]
    position: Float[Array, " n"]
    rise: Float[Array, ""]
    accepted: Float[Array, ""]


def build_quick(settings: Quick, moves: ParameterMoves, start: States) -> Method:
    """The three functions of the method."""
    refreshes = jnp.asarray(
        np.unique([0, *(int(share * settings.num_warmup) for share in REFRESHES)])
    )
    num_shared = pilot_length(settings.num_warmup)
    interval = max(1, settings.num_draws * settings.thin // JUDGED)

    def init(key: PRNGKeyArray, series: list[Series]) -> Carry:
        states = stack(tuple(jnp.asarray(path) for path in start))
        parameters = moves.init()
        # The first iteration computes the first whitening, so that the program contains it once.
        shapes = jax.eval_shape(
            lambda: whiten(moves.apply(parameters), states, series, settings.rank)
        )
        return Carry(
            states=states,
            weights=jnp.zeros(moves.model.weights_shape, states.dtype),
            parameters=parameters,
            whitening=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
            step=dual_averaging.start(FIRST_STEP),
            walk=noise_moves.start(moves),
            mean=states,
            num_averaged=jnp.zeros(()),
            bias=jnp.zeros(()),
            acceptance=jnp.ones(()),
            iteration=jnp.asarray(0),
        )

    def refresh(carry: Carry, series: list[Series]) -> Carry:
        average = jnp.minimum(jnp.exp(carry.step.log_average), LONGEST_STEP)
        return carry._replace(
            whitening=whiten(moves.apply(carry.parameters), carry.mean, series, settings.rank),
            step=dual_averaging.start(average),
            mean=jnp.zeros_like(carry.mean),
            num_averaged=jnp.zeros(()),
        )

    def step(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        part_key, move_key, kernel_key, weights_key, noise_key = jax.random.split(key, 5)
        due = jnp.any(carry.iteration == refreshes)
        carry = jax.lax.cond(in_step(due), lambda c: refresh(c, series), lambda c: c, carry)
        adapting = carry.iteration < settings.num_warmup
        current = moves.apply(carry.parameters).prepared()
        coordinates = carry.whitening.at(current)
        free = moving(carry.states, series)
        size = jnp.sum(free)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            return moves.density(unstack(coordinates.to_states(free * position), series), series)(
                current
            )

        position = coordinates.to_position(carry.states)
        if settings.num_warmup:
            # Chains that begin where the pilot ended would agree whether they have settled or not.
            parting = carry.iteration == num_shared
            position = jnp.where(parting, jax.random.normal(part_key, position.shape), position)
        angle = jnp.minimum(carry.step.size(adapting), LONGEST_STEP)
        num_steps = jnp.clip(jnp.round(ANGLE / angle), 1, settings.num_leapfrog).astype(int)
        num_exact_steps = jnp.ceil(EXACT_ANGLE / (EXACT_STEP * angle)).astype(int)
        judged = ~adapting & ((carry.iteration - settings.num_warmup) % interval == 0)
        num_exact = jnp.where(in_step(judged), EXACT_MOVES, 0)
        limit = OUTLIER * (1 + jnp.sqrt(size * settings.energy_error))

        def move(index: Array, made: Moves) -> Moves:
            """Move without an accept step first, then with one: both are the same program."""
            exact = index > 0
            keys = jax.random.split(jax.random.fold_in(move_key, index), 3)
            end = hmc.propose(
                *(keys[0], keys[1], made.position, log_density),
                jnp.where(exact, EXACT_STEP, 1.0) * angle,
                jnp.where(exact, num_exact_steps, num_steps),
                free,
            )
            accepted = end.gain < jnp.where(exact, -jnp.log(jax.random.uniform(keys[2])), limit)
            position = jnp.where(accepted, end.position, made.position)
            value = jnp.where(accepted, end.after, end.before)
            first = Moves(position, value, end.gain, end.energy, position, made.rise, made.accepted)
            following = made._replace(
                position=position,
                rise=made.rise + value - end.before,
                accepted=made.accepted + accepted,
            )
            return jax.tree.map(lambda new, old: jnp.where(exact, new, old), following, first)

        begin = free * position
        zero = jnp.zeros((), begin.dtype)
        made = jax.lax.fori_loop(
            0, 1 + num_exact, move, Moves(begin, zero, zero, zero, begin, zero, zero)
        )
        states = coordinates.to_states(made.drawn)
        paths = unstack(states, series)
        parameters = moves.update_collapsed(
            kernel_key, carry.parameters, paths, carry.iteration, series
        )
        held = moves._replace(model=moves.apply(parameters).prepared())  # the kernel stays as it is
        weights = held.draw_weights(weights_key, parameters, paths, series)
        parameters, states, walk = noise_moves.walk(
            *(
                noise_key,
                held,
                parameters,
                weights,
                states,
                carry.walk,
                carry.whitening.linear.centre,
            ),
            *(series, adapting, carry.iteration >= num_shared, WALK),
        )
        bias = jnp.where(judged, 2 * made.rise / size, carry.bias)
        acceptance = jnp.where(judged, made.accepted / EXACT_MOVES, carry.acceptance)
        statistic = 1 / (1 + made.gain**2 / (size * settings.energy_error))
        number = carry.num_averaged + adapting
        carry = Carry(
            states=states,
            weights=weights,
            parameters=parameters,
            whitening=carry.whitening,
            step=dual_averaging.update(carry.step, statistic, ON_TARGET, adapting),
            walk=walk,
            mean=carry.mean + jnp.where(adapting, (states - carry.mean) / number, 0.0),
            num_averaged=number,
            bias=bias,
            acceptance=acceptance,
            iteration=carry.iteration + 1,
        )
        gradients = 1.0 + num_steps + num_exact * (1.0 + num_exact_steps)
        discarded = ~(made.gain < limit)
        return carry, Info(made.value, acceptance, discarded, made.energy, gradients, bias)

    def draw(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Draw:
        return Draw(unstack(carry.states, series), carry.weights, carry.parameters.leaves)

    return Method(init, step, draw)
