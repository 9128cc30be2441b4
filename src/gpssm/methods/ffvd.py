"""`ffvd`: HMC on the collapsed free-form posterior, in whitened coordinates.

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1})
                + Σ_d log ∫ (transitions | v_d) N(v_d; 0, I) dv_d

Weights are integrated out, so only states are moved; weights are drawn exactly given the states
whenever they are needed. An iteration moves the states (`hmc.py`) in coordinates in which they are
nearly standard normal (`whitening.py`), and then the parameters without weights (`parameters.py`).
Rounds of moves given the weights follow, depending on how slowly the noise levels mix: weights are
drawn, noise levels and emission are drawn from their conditionals, noise levels and states move
together (`noise_moves.py`), and the first states can jump between modes.

The density comes from the moves of the parameters, so that `exact` can use the same sampler with
another density.

An iteration first refreshes the coordinates if the schedule says so: they are computed for the
current noise levels and, a few times in the warm-up, the model is linearised anew at the running
mean of the states. Nothing adapts after the warm-up. `quick` shares all of this.
"""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.core.runtime import in_step, on_cpu
from gpssm.data.series import Series
from gpssm.inference import hmc, noise_moves
from gpssm.inference.hmc import LogDensity, StepSize
from gpssm.inference.noise_moves import ChainState, Phase, Walk
from gpssm.inference.parameters import Parameters, Sampler
from gpssm.inference.settings import MethodSettings, States, pilot_length, share, whole
from gpssm.inference.whitening import Coordinates, Whitening, moving, unstack, whiten
from gpssm.model.conditionals import normal
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.starts.build import SLACK


class HMCSettings(MethodSettings):
    """Settings of `ffvd`, `quick` and `ffvd-nuts`, which start from the same model."""

    def slack(self, rows: int) -> float:
        """Return the prior standard deviation of a linear mean around a linear fit to this many
        rows.

        With a wide prior, the linear mean soon fits one-step predictions at the expense of
        simulations; with few rows, the linear fit is uncertain. It is .003 for 500 rows.
        """
        return min(SLACK, 1.5 / rows)

    def rate(self, states: States) -> float:
        """Return the initial step size of Adam, which is up to 3⅓ times as large for few rows,
        where the kernel starts further from its optimum.

        Beyond 500 rows, large steps bring no gain and move a kernel that was fitted by shooting
        away from values that simulations need.
        """
        rows = sum(len(path) - 1 for path in states)
        return self.learning_rate * min(max(500 / rows, 1.0), 10 / 3)


@dataclass(frozen=True)
class WhitenedSettings(HMCSettings):
    """Settings of both `ffvd` and `quick`; `MethodSettings` has the others.

    Parameters
    ----------
    num_leapfrog
        Maximum number of leapfrog steps of a trajectory.
    rank
        Number of soft directions along which the coordinates are stretched.
    """

    compares: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    num_leapfrog: int = whole(40)
    rank: int = whole(80)


@dataclass(frozen=True)
class Schedule:
    """When a sampler refreshes its coordinates, and how long its trajectories are.

    Parameters
    ----------
    angle
        Length of a trajectory in radians.
    first_step
        Initial step size in radians.
    longest_step
        Maximum step size in radians.
    spread
        Overdispersion of the chains after the pilot, relative to the whitened posterior: chains
        that start at one point would agree even before they converge.
    late_iterations
        Number of warm-up iterations that must remain for a late refresh of the coordinates.
    """

    angle: float
    first_step: float
    longest_step: float = math.inf
    spread: float = 1.0
    late_iterations: float = math.inf

    def iterations(self, num_warmup: int) -> np.ndarray:
        """Return the iterations that begin with a refresh, including the first.

        The others follow at fixed shares of the warm-up, up to the end of parameter learning. A
        late refresh, at the mean states of the chain itself, follows if enough iterations remain
        for the step size to adapt.
        """
        shares = [0, 0.1, 0.25, 0.5, 0.7]
        if (1 - 0.85) * num_warmup >= self.late_iterations:
            shares.append(0.85)
        return np.unique([int(share * num_warmup) for share in shares])


class Carry(NamedTuple):
    """The state of the sampler between iterations.

    Parameters
    ----------
    states, weights, parameters, walk
        As in `noise_moves.ChainState`; weights and states are a joint draw from q*(v, x).
    whitening
        The quantities from which the coordinates are computed.
    step
        The step size of the trajectories.
    mean, num_averaged
        The mean of the states since the last refresh, and the number of paths in it.
    iteration
        The number of iterations done.
    bias, acceptance
        Results of the last exact moves, for methods that use them to measure their bias.
    """

    states: Float[Array, "N Dx"]
    weights: Float[Array, "Dx M"]
    parameters: Parameters
    walk: Walk
    whitening: Whitening
    step: StepSize
    mean: Float[Array, "N Dx"]
    num_averaged: Float[Array, ""]
    iteration: Array
    bias: Float[Array, ""]
    acceptance: Float[Array, ""]


class WhitenedTarget(NamedTuple):
    """The target log π(ξ) in the coordinates of an iteration, and the position of the chain.

    `free` is 1, or 0 for the coordinates of padding states.
    """

    coordinates: Coordinates
    log_density: LogDensity
    position: Float[Array, " n"]
    free: Float[Array, " n"]


class WhitenedSampler(Sampler):
    """The iterations of a method; a subclass defines `step` and its `schedule`.

    The `density` of its moves is the target.
    """

    schedule: ClassVar[Schedule]

    def init(self, key: PRNGKeyArray, series: list[Series]) -> Carry:
        """Return the initial carry, whose coordinates the first iteration computes.

        The compiled program therefore contains the whitening only once.
        """
        states = jnp.concatenate([jnp.asarray(path) for path in self.states])
        parameters = self.moves.init()
        shapes = jax.eval_shape(lambda: self.whitening(parameters, states, series))
        return Carry(
            states=states,
            weights=jnp.zeros(self.model.weights_shape, states.dtype),
            parameters=parameters,
            walk=noise_moves.start(self.moves),
            whitening=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
            step=StepSize.start(self.schedule.first_step),
            mean=states,
            num_averaged=jnp.zeros(()),
            iteration=jnp.asarray(0),
            bias=jnp.zeros(()),
            acceptance=jnp.ones(()),
        )

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        """Run one iteration."""

    def draw(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Draw:
        """Return the current states, weights and parameters."""
        return Draw(unstack(carry.states, series), carry.weights, carry.parameters.leaves)

    def metric(self, model: GPSSM, states: States, series: list[Series]) -> GPSSM:
        """Return the model for which the coordinates are computed.

        It may differ from the model of the density: coordinates affect how fast chains mix, not the
        distribution that they draw from.
        """
        return model

    def whitening(
        self, parameters: Parameters, centre: Float[Array, "N Dx"], series: list[Series]
    ) -> Whitening:
        """Return the whitening at a path."""
        model = self.metric(self.moves.apply(parameters), unstack(centre, series), series)
        return whiten(model, centre, series, self.settings.rank)

    def phase(self, carry: Carry) -> Phase:
        """Return the phase of the run to which an iteration belongs."""
        num_warmup = self.settings.num_warmup
        return Phase(carry.iteration < num_warmup, carry.iteration >= pilot_length(num_warmup))

    def refresh(self, carry: Carry, series: list[Series]) -> Carry:
        """Return the carry, with coordinates refreshed at the mean of the states if one is due."""
        due = jnp.any(carry.iteration == self.schedule.iterations(self.settings.num_warmup))

        def refreshed() -> Carry:
            average = jnp.minimum(jnp.exp(carry.step.log_average), self.schedule.longest_step)
            return carry._replace(
                whitening=self.whitening(carry.parameters, carry.mean, series),
                step=StepSize.start(average),
                mean=jnp.zeros_like(carry.mean),
                num_averaged=jnp.zeros(()),
            )

        return jax.lax.cond(in_step(due), refreshed, lambda: carry)

    def target(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> WhitenedTarget:
        """Return the target in the current coordinates, and the position, dispersed after the
        pilot.
        """
        model = self.moves.apply(carry.parameters).prepared()
        coordinates = carry.whitening.at(model)
        free = moving(carry.states, series)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            states = unstack(coordinates.to_states(free * position), series)
            return self.moves.density(states, series)(model)

        position = coordinates.to_position(carry.states)
        if self.settings.num_warmup:
            parting = carry.iteration == pilot_length(self.settings.num_warmup)
            elsewhere = self.schedule.spread * jax.random.normal(key, position.shape)
            position = jnp.where(parting, elsewhere, position)
        return WhitenedTarget(coordinates, log_density, free * position, free)

    def advance(
        self, carry: Carry, state: ChainState, acceptance: Float[Array, ""], aim: float
    ) -> Carry:
        """Return the carry after an iteration.

        Parameters
        ----------
        carry
            The carry before.
        state
            The updated variables of the chain.
        acceptance, aim
            The acceptance statistic to which the step size adapts, and its target.
        """
        adapting = self.phase(carry).adapting
        number = carry.num_averaged + adapting
        change = (state.states - carry.mean) / number
        return carry._replace(
            **state._asdict(),
            step=carry.step.update(acceptance, aim, adapting),
            mean=carry.mean + jnp.where(adapting, change, 0.0),
            num_averaged=number,
            iteration=carry.iteration + 1,
        )


class FFVDSampler(WhitenedSampler):
    """The iterations of `ffvd`."""

    schedule = Schedule(angle=5.0, first_step=0.1, spread=1.2, late_iterations=30)

    def step(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        """Move the states along a trajectory, then everything else given the states."""
        size_key, part_key, move_key, parameter_key, round_key = jax.random.split(key, 5)
        carry = self.refresh(carry, series)
        target = self.target(part_key, carry, series)
        size, num_steps = self.trajectory(size_key, carry)
        position, info = hmc.move(
            move_key, target.position, target.log_density, size, num_steps, target.free
        )
        states = target.coordinates.to_states(position)
        state = ChainState(states, carry.weights, carry.parameters, carry.walk)
        state = self.update(parameter_key, round_key, carry, state, series)
        aim = self.settings.target_acceptance
        return self.advance(carry, state, info.acceptance, aim), info

    def trajectory(
        self, key: PRNGKeyArray, carry: Carry
    ) -> tuple[Float[Array, ""], Int[Array, ""]]:
        """Return the step size and the number of steps of a trajectory.

        Lengths are spread evenly between zero and the longest, a, to avoid resonances: along a
        direction of width 1/ω, ξ keeps on average sin(ωa)/(ωa) of its value, whereas a fixed length
        a would keep cos(ωa). The lengths follow the golden ratio and are the same in all chains,
        which a GPU runs in parallel.

        The curvature varies along a path: a fifth of the moves use a quarter of the step size, so
        that a chain can leave regions where the adapted step size is too large.
        """
        adapting = self.phase(carry).adapting
        size = carry.step.size(adapting)
        angle = self.schedule.angle * (0.6180339887498949 * carry.iteration % 1.0)
        most = self.settings.most_steps(len(carry.states))
        num_steps = jnp.clip(jnp.ceil(angle / size), 1, most).astype(int)
        cautious = ~adapting & (jax.random.uniform(key) < 0.2)
        return jnp.where(cautious, 0.25, 1.0) * size, num_steps

    def update(
        self,
        parameter_key: PRNGKeyArray,
        round_key: PRNGKeyArray,
        carry: Carry,
        state: ChainState,
        series: list[Series],
    ) -> ChainState:
        """Move the parameters without weights, then make as many rounds as the noise levels need.

        A round draws the weights, moves everything that depends on them, and lets the first states
        jump.
        """
        parameters = self.moves.update_collapsed(
            parameter_key, state.parameters, unstack(state.states, series), carry.iteration, series
        )
        state = state._replace(parameters=parameters)
        # The kernel does not change.
        moves = self.moves._replace(model=self.moves.apply(parameters).prepared())
        phase = self.phase(carry)
        centre = carry.whitening.linear.centre

        def run_round(index: Array, state: ChainState) -> ChainState:
            weights_key, noise_key, jump_key = jax.random.split(
                jax.random.fold_in(round_key, index), 3
            )
            state = noise_moves.update(weights_key, noise_key, moves, state, centre, series, phase)
            model = moves.apply(state.parameters)
            states = jump_first_states(jump_key, model, state.weights, state.states, series)
            return state._replace(states=states)

        num_rounds = state.walk.num_rounds(len(state.states), phase.parted)
        return jax.lax.fori_loop(0, num_rounds, run_round, state)


@dataclass(frozen=True)
class FFVD(WhitenedSettings):
    """Settings of `ffvd`; `WhitenedSettings` and `MethodSettings` have the others.

    The length of a trajectory is at most five radians or `num_leapfrog` steps. On a CPU, the number
    of steps decreases beyond 5000 rows, to ten from 20 000 rows on.

    Parameters
    ----------
    target_acceptance
        Target of the mean acceptance probability for the step size.
    """

    sampler = FFVDSampler

    num_warmup: int = 400
    num_draws: int = 250
    thin: int = 2
    target_acceptance: float = share(0.7)

    def most_steps(self, rows: int) -> int:
        """Return the largest number of steps of a trajectory, given the number of rows."""
        return min(self.num_leapfrog, max(10, 200_000 // rows)) if on_cpu() else self.num_leapfrog


def jump_first_states(
    key: PRNGKeyArray,
    model: GPSSM,
    weights: Float[Array, "Dx M"],
    states: Float[Array, "N Dx"],
    series: list[Series],
    num_candidates: int = 50,
) -> Float[Array, "N Dx"]:
    """Return the states of all series with x₀ resampled given all other states and the weights.

    Jumps can cross between modes of x₀, unlike gradient-based moves. x₀ emits no output, so every x
    with f(x) ≈ x₁ is plausible, and there may be several. Given the weights and x₁,

        q*(x₀ | x₁, v) ∝ N(x₀; 0, I) w(x₀),
        w(x) = Π_d N(x₁,d; m_d(z) + A_d(z)·v_d, Q_d) exp(−B_d(z) / 2Q_d)

    Candidates are drawn from N(0, I), the current x₀ is added, and one of them is selected with
    probability ∝ w. This leaves the distribution invariant for any number of candidates: it is the
    first generation of conditional SMC (`inference/csmc.py`). If w is narrow in many dimensions,
    the current x₀ is usually selected again.
    """
    candidates_key, choice_key = jax.random.split(key)
    first = np.cumsum([0, *(len(rows) + 1 for rows in series[:-1])])
    count, dim = len(series), states.shape[1]
    candidates = normal(candidates_key, (count, num_candidates, dim), states.dtype)
    candidates = candidates.at[:, 0].set(states[first])
    u = jnp.stack([jnp.asarray(rows.u[0], states.dtype) for rows in series])
    step = model.transition()(candidates.reshape(-1, dim), jnp.repeat(u, num_candidates, 0))
    arrived, variance = jnp.repeat(states[first + 1], num_candidates, 0), model.process_variance
    likely = jnp.sum(log_normal(arrived, step.given(weights), variance[None]), -1)
    log_weight = likely - jnp.sum(step.residual / (2 * variance[:, None]), 0)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    # The maximum of log w plus Gumbel noise selects a candidate with probability ∝ w.
    noisy = log_weight + jax.random.gumbel(choice_key, log_weight.shape, states.dtype)
    chosen = jnp.argmax(noisy.reshape(count, num_candidates), 1)
    return states.at[first].set(candidates[np.arange(count), chosen])
