"""Hamiltonian Monte Carlo on log q*(x) in whitened coordinates, as used by `ffvd` and `quick`.

An iteration refreshes the coordinates if the schedule says so, updates the states, and then updates
everything else given the states. The coordinates (`whitening.py`) are computed for the current
noise levels. A few times in the warm-up, the model is linearised anew at the running mean of the
states; nothing adapts afterwards.
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
