"""Hamiltonian Monte Carlo on log q*(x) in whitened coordinates: what `ffvd` and `quick` share.

An iteration refreshes the coordinates if it is time to, moves the states, then moves everything
else given the states. The coordinates (`whitening.py`) are those of the present noises. They are
linearised at the running mean of the states a few times in warm-up, since states and parameters
settle; nothing adapts afterwards.
"""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.runtime import in_step
from gpssm.data.series import Series
from gpssm.inference import noise_moves
from gpssm.inference.hmc import LogDensity, StepSize
from gpssm.inference.noise_moves import ChainState, Phase, Walk
from gpssm.inference.parameters import Parameters, Sampler
from gpssm.inference.settings import MethodSettings, States, pilot_length, whole
from gpssm.inference.whitening import Coordinates, Whitening, moving, unstack, whiten
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.starts.build import SLACK


def slack_of(rows: int) -> float:
    """Return the prior standard deviation of a linear mean around the linear fit to so many rows.

    One that is free soon leaves what simulations need, and learns the next step; of few rows the
    fit knows little. It is .003 for 500 rows.
    """
    return min(SLACK, 1.5 / rows)


@dataclass(frozen=True)
class WhitenedSettings(MethodSettings):
    """Settings that `ffvd` and `quick` share; `MethodSettings` has the others.

    Parameters
    ----------
    num_leapfrog
        Steps of one trajectory at most.
    rank
        Soft directions that the coordinates are stretched along.
    """

    compares: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    num_leapfrog: int = whole(40)
    rank: int = whole(80)

    def slack(self, rows: int) -> float:
        """Return that of the free-form posterior."""
        return slack_of(rows)


@dataclass(frozen=True)
class Schedule:
    """When a sampler refreshes its coordinates, and how long its trajectories are.

    Parameters
    ----------
    angle
        Radians of a trajectory.
    first_step
        Radians of a step before anything is adapted.
    longest_step
        Radians of a step at most.
    spread
        Where the pilot ends chains part, to places so many times as wide as the coordinates take
        the posterior for: from one point on they would agree whether they have settled or not.
    late_iterations
        Iterations that have to be left of the warm-up for a late refresh of the coordinates.
    """

    angle: float
    first_step: float
    longest_step: float = math.inf
    spread: float = 1.0
    late_iterations: float = math.inf

    def iterations(self, num_warmup: int) -> np.ndarray:
        """Return the iterations that begin with a refresh, the first one among them.

        The others come after shares of the warm-up, the last when parameters are no longer learned;
        and late, at the mean of a chain's own states, if enough iterations are left for the step to
        adapt to it.
        """
        shares = [0, 0.1, 0.25, 0.5, 0.7]
        if (1 - 0.85) * num_warmup >= self.late_iterations:
            shares.append(0.85)
        return np.unique([int(share * num_warmup) for share in shares])


class Carry(NamedTuple):
    """What the next iteration needs.

    Parameters
    ----------
    states, weights, parameters, walk
        As of `noise_moves.ChainState`: with these weights the states are one draw from q*(v, x).
    whitening
        What the coordinates are made of.
    step
        The step size of the trajectories.
    mean, num_averaged
        The mean of the states since the last refresh, and the number of paths in it.
    iteration
        The number of iterations done.
    bias, acceptance
        Of the latest exact moves, where the method makes such moves to see how large its bias is.
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
    """The target in the coordinates of an iteration: log π(ξ), and where the chain is.

    `free` is 1, or 0 for coordinates of states that pad.
    """

    coordinates: Coordinates
    log_density: LogDensity
    position: Float[Array, " n"]
    free: Float[Array, " n"]


@dataclass(frozen=True)
class WhitenedSampler(Sampler):
    """The iterations of a method; a subclass defines `step`.

    Parameters
    ----------
    settings
        The settings of the method: `num_warmup` and `rank` are used here.
    moves
        The moves of the parameters, whose `density` is the target.
    start
        The states to start from.
    schedule
        When the coordinates are refreshed, and the sizes of steps.
    """

    schedule: Schedule

    def init(self, key: PRNGKeyArray, series: list[Series]) -> Carry:
        """Return the carry at the start, whose coordinates the first iteration computes.

        So the program contains the whitening in one place.
        """
        states = jnp.concatenate([jnp.asarray(path) for path in self.start])
        parameters = self.moves.init()
        shapes = jax.eval_shape(lambda: self.whitening(parameters, states, series))
        return Carry(
            states=states,
            weights=jnp.zeros(self.moves.model.weights_shape, states.dtype),
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
        """Return the present states, weights and parameters."""
        return Draw(unstack(carry.states, series), carry.weights, carry.parameters.leaves)

    def metric(self, model: GPSSM, states: States, series: list[Series]) -> GPSSM:
        """Return the model whose log q*(x) the coordinates follow.

        It may be another than that of the density: coordinates change how fast chains mix, not what
        they draw from.
        """
        return model

    def whitening(
        self, parameters: Parameters, centre: Float[Array, "N Dx"], series: list[Series]
    ) -> Whitening:
        """Return the whitening at a path."""
        model = self.metric(self.moves.apply(parameters), unstack(centre, series), series)
        return whiten(model, centre, series, self.settings.rank)

    def phase(self, carry: Carry) -> Phase:
        """Return where in the run an iteration is."""
        num_warmup = self.settings.num_warmup
        return Phase(carry.iteration < num_warmup, carry.iteration >= pilot_length(num_warmup))

    def refresh(self, carry: Carry, series: list[Series]) -> Carry:
        """Return the carry with coordinates at the mean of the states, if it is time to."""
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
        """Return the target in the present coordinates, and the position; chains part in it."""
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
            What has moved.
        acceptance, aim
            The statistic that the step size is adapted by, and what it aims at.
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
