"""`ffvd`, the default: HMC on the collapsed free-form posterior, in coordinates that make it nearly standard normal.

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d log ∫ (transitions | v_d) N(v_d; 0, I) dv_d

Weights are integrated out, so only states are moved, and drawn exactly given the states whenever they are needed. An
iteration is a move of the states (`hmc.py`) in whitened coordinates (`whitening.py`), then the parameters' moves
without weights (`parameters.py`), and as many rounds as the noises need of what holds weights: these are drawn, then
noises and emission from their conditionals, noises and states move together (`noise_moves.py`), and the first states
jump between their modes (`first_states.py`). In warm-up the whitening is refreshed a few times at the running mean of
the states, since both states and parameters settle; the step size adapts in between. Nothing adapts afterwards, but the
coordinates are always those of the present noises.

The sampler takes its density from the moves of the parameters, so that `exact` has it too, with another density.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.core.runtime import in_step, on_cpu
from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.inference import dual_averaging, first_states, hmc, noise_moves
from gpssm.inference.dual_averaging import StepSize
from gpssm.inference.noise_moves import Walk
from gpssm.inference.parameters import ParameterMoves, Parameters, rate_for
from gpssm.inference.settings import MethodSettings, States, pilot_length
from gpssm.inference.whitening import Whitening, moving, stack, unstack, whiten
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info, Method
from gpssm.starts.build import SLACK

REFRESHES = (
    0.1,
    0.25,
    0.5,
    0.7,
)  # as shares of the warm-up; the last one when parameters are no longer learned
# One more at the mean of a chain's own states, if so many iterations are left for the step to adapt to it.
LATE, LEFT = 0.85, 30
FIRST_STEP = 0.1
SLACK_OF_ROWS = 1.5  # times the rows: .003 for 500 of them
# Where the pilot ends chains part, to places so many times as wide as the coordinates take the posterior for: from one
# point on they would agree whether they have settled or not.
SPREAD = 1.2
# The curvature along a path differs from that at the centre: a share of the moves takes a small step, so that a chain
# gets out of places where the adapted step is too large.
CAUTION, SMALL = 0.2, 0.25
# Radians of the longest trajectory. Lengths are spread evenly below it, so that none is in step with any direction: of
# where it began ξ keeps sin(ωa)/(ωa) on average along a direction 1/ω as wide as the coordinates take it for. A fixed
# length of a radians keeps cos(ωa), in turns with either sign. The lengths follow the golden ratio, the same in all
# chains, which a GPU runs side by side.
ANGLE, GOLDEN = 5.0, 0.6180339887498949
# On a CPU a trajectory has fewer steps where steps times rows would be more than so many, but ten of them always.
STEPS_TIMES_ROWS, FEWEST = 200_000, 10

# The model whose log q*(x) the coordinates follow, from the present model at a path. It may be another than that of the
# density: coordinates change how fast chains mix, not what they draw from.
Metric = Callable[[GPSSM, States, list[Series]], GPSSM]


@dataclass(frozen=True)
class FFVD(MethodSettings):
    """Settings of `ffvd`.

    :param num_leapfrog: steps of one trajectory at most; it ends at five radians or before, if these reach it. On a CPU
        there are fewer beyond 5000 rows, and ten from 20 000 on.
    :param rank: soft directions that the coordinates are stretched along.
    :param target_acceptance: what the step size aims at.
    :param learning_rate: as for all methods, of 500 rows and more; it is larger for fewer (`parameters.rate_for`).
    """

    compares: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    num_warmup: int = 400
    num_draws: int = 250
    thin: int = 2
    num_leapfrog: int = 40
    rank: int = 80
    target_acceptance: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("num_leapfrog", self.num_leapfrog, 1)
        check_whole("rank", self.rank, 1)
        if not 0 < self.target_acceptance < 1:
            raise ValueError(
                f"target_acceptance must lie between 0 and 1, got {self.target_acceptance}."
            )

    def slack(self, rows: int) -> float:
        """Prior standard deviation of a linear mean around the linear fit, given the number of rows.

        One that is free soon leaves what free runs need, and learns the next step; of few rows the fit knows little.
        """
        return min(SLACK, SLACK_OF_ROWS / rows)

    def most_steps(self, rows: int) -> int:
        """The largest number of steps of a trajectory, given the number of rows."""
        return (
            min(self.num_leapfrog, max(FEWEST, STEPS_TIMES_ROWS // rows))
            if on_cpu()
            else self.num_leapfrog
        )

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, started at these states."""
        return build_hmc(
            self,
            ParameterMoves(model, self.num_warmup, rate_for(self.learning_rate, states)),
            states,
        )


class FFVDCarry(NamedTuple):
    """What the next iteration needs. `mean` is that of the `seen` paths since the last refresh of the whitening.

    `weights` are those that the last moves of the states had: with them they are one draw from q*(v, x). There are none
    where weights cannot be held.
    """

    states: Float[Array, "N Dx"]
    weights: Float[Array, "Dx M"] | None
    parameters: Parameters
    whitening: Whitening
    step: StepSize
    walk: Walk
    mean: Float[Array, "N Dx"]
    seen: Float[Array, ""]
    iteration: Array


class Held(NamedTuple):
    """What changes in the rounds of an iteration that hold the weights."""

    weights: Float[Array, "Dx M"] | None
    parameters: Parameters
    states: Float[Array, "N Dx"]
    walk: Walk


def hold(
    key: PRNGKeyArray,
    moves: ParameterMoves,
    begin: Held,
    centre: Float[Array, "N Dx"],
    series: list[Series],
    adapting: Bool[Array, ""],
    parted: Bool[Array, ""],
) -> Held:
    """As many rounds as the noises need of what holds the weights: these are drawn, then noises and emission, noises
    and states move together, and the first states jump."""
    moves = moves._replace(
        model=moves.apply(begin.parameters).prepared()
    )  # the kernel stays as it is

    def turn(index: Array, now: Held) -> Held:
        keys, paths = (
            jax.random.split(jax.random.fold_in(key, index), 3),
            unstack(now.states, series),
        )
        weights = moves.draw_weights(keys[0], now.parameters, paths, series)
        given = (
            moves,
            now.parameters,
            weights,
            now.states,
            now.walk,
            centre,
            series,
            adapting,
            parted,
        )
        parameters, states, walk = noise_moves.walk(keys[1], *given)
        states = first_states.jump(keys[2], moves.apply(parameters), weights, states, series)
        return Held(weights, parameters, states, walk)

    return jax.lax.fori_loop(0, begin.walk.num_rounds(len(begin.states), parted), turn, begin)


def build_hmc(
    settings: FFVD,
    moves: ParameterMoves,
    start: States,
    metric: Metric = lambda model, states, series: model,
) -> Method:
    """The three functions of a method that samples `moves.density` over the states, started at these states."""
    shares = (*REFRESHES, LATE) if (1 - LATE) * settings.num_warmup >= LEFT else REFRESHES
    refreshes = jnp.asarray(np.unique([0, *(int(share * settings.num_warmup) for share in shares)]))
    num_shared = pilot_length(settings.num_warmup)

    def whitening_at(parameters: Parameters, centre: Array, series: list[Series]) -> Whitening:
        model = metric(moves.apply(parameters), unstack(centre, series), series)
        return whiten(model, centre, series, settings.rank)

    def init(key: PRNGKeyArray, series: list[Series]) -> FFVDCarry:
        states, parameters = stack(tuple(jnp.asarray(path) for path in start)), moves.init()
        # The first iteration makes the first whitening, so that there is one place in the program for all of them.
        shapes = jax.eval_shape(lambda: whitening_at(parameters, states, series))
        whitening = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        step = dual_averaging.start(FIRST_STEP)
        walk = noise_moves.start(moves)
        weights = (
            None if moves.joint is None else jnp.zeros(moves.model.weights_shape, states.dtype)
        )
        return FFVDCarry(
            states,
            weights,
            parameters,
            whitening,
            step,
            walk,
            states,
            jnp.zeros(()),
            jnp.asarray(0),
        )

    def refresh(carry: FFVDCarry, series: list[Series]) -> FFVDCarry:
        whitening = whitening_at(carry.parameters, carry.mean, series)
        step = dual_averaging.start(jnp.exp(carry.step.log_average))
        return carry._replace(
            whitening=whitening, step=step, mean=jnp.zeros_like(carry.mean), seen=jnp.zeros(())
        )

    def step(key: PRNGKeyArray, carry: FFVDCarry, series: list[Series]) -> tuple[FFVDCarry, Info]:
        size_key, part_key, move_key, parameter_key, round_key = jax.random.split(key, 5)
        due = jnp.any(carry.iteration == refreshes) & ((carry.seen > 0) | (carry.iteration == 0))
        carry = jax.lax.cond(in_step(due), lambda c: refresh(c, series), lambda c: c, carry)
        current, adapting = (
            moves.apply(carry.parameters).prepared(),
            carry.iteration < settings.num_warmup,
        )
        coordinates = carry.whitening.at(current)
        free = moving(carry.states, series)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            return moves.density(unstack(coordinates.to_states(free * position), series), series)(
                current
            )

        size, angle = carry.step.size(adapting), ANGLE * (GOLDEN * carry.iteration % 1.0)
        num_steps = jnp.clip(
            jnp.ceil(angle / size), 1, settings.most_steps(len(carry.states))
        ).astype(int)
        cautious = ~adapting & (jax.random.uniform(size_key) < CAUTION)
        size = jnp.where(cautious, SMALL, 1.0) * size
        position = coordinates.to_position(carry.states)
        if settings.num_warmup:
            parting = carry.iteration == num_shared
            position = jnp.where(
                parting, SPREAD * jax.random.normal(part_key, position.shape), position
            )
        outcome = hmc.move(move_key, free * position, log_density, size, num_steps, free)
        states = coordinates.to_states(outcome.position)
        paths, weights, walk = unstack(states, series), None, carry.walk
        if moves.joint is None:
            parameters = moves.update(
                parameter_key, carry.parameters, paths, carry.iteration, series
            )
        else:
            parameters = moves.update_collapsed(
                parameter_key, carry.parameters, paths, carry.iteration, series
            )
            begin, parted = (
                Held(carry.weights, parameters, states, walk),
                carry.iteration >= num_shared,
            )
            centre = carry.whitening.linear.centre
            weights, parameters, states, walk = hold(
                round_key, moves, begin, centre, series, adapting, parted
            )
        gradients = jnp.asarray(num_steps + 1.0)
        info = Info(outcome.value, outcome.acceptance, outcome.divergent, outcome.energy, gradients)
        count = carry.seen + adapting
        return carry._replace(
            states=states,
            weights=weights,
            parameters=parameters,
            step=dual_averaging.update(
                carry.step, outcome.acceptance, settings.target_acceptance, adapting
            ),
            walk=walk,
            mean=carry.mean + jnp.where(adapting, (states - carry.mean) / count, 0.0),
            seen=count,
            iteration=carry.iteration + 1,
        ), info

    def draw(key: PRNGKeyArray, carry: FFVDCarry, series: list[Series]) -> Draw:
        paths = unstack(carry.states, series)
        drawn = (
            moves.draw_weights(key, carry.parameters, paths, series)
            if carry.weights is None
            else carry.weights
        )
        return Draw(paths, drawn, carry.parameters.leaves)

    return Method(init, step, draw)
