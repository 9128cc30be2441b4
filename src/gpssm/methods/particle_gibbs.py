"""What the methods that move states by particles share: settings, sweeps and Gibbs.

    x | θ      a sweep of particles, a whole path at once (`csmc.py`, `beliefs.py`)
    θ | x      the parameters' moves, with weights of their own that are thrown away

Particles are guided by the output ahead of them where it is linear and Gaussian in the state.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference import csmc
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import MethodSettings, States, whole
from gpssm.model.likelihoods import Gaussian, observed
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, FeynmanKac, Info, Method


@dataclass(frozen=True)
class ParticleSettings(MethodSettings):
    """Settings of a method that moves states by particles; `MethodSettings` has the others.

    Parameters
    ----------
    num_particles
        Particles in each sweep, the present path among them.
    """

    num_particles: int = whole(20, least=2)


class GibbsCarry(NamedTuple):
    """Where particle Gibbs stands."""

    states: States
    parameters: Parameters
    iteration: Int[Array, ""]


@dataclass(frozen=True)
class GibbsSampler(Method):
    """States and parameters in turn; a subclass defines `move_states`.

    Parameters
    ----------
    settings
        The settings of the method.
    moves
        The moves of the parameters.
    start
        The states to start from.
    """

    settings: Any
    moves: ParameterMoves
    start: States

    @abc.abstractmethod
    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Return new states given the parameters."""

    def init(self, key: PRNGKeyArray, series: list[Series]) -> GibbsCarry:
        """Return the carry at the start."""
        states = tuple(map(jnp.asarray, self.start))
        return GibbsCarry(states, self.moves.init(), jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: GibbsCarry, series: list[Series]
    ) -> tuple[GibbsCarry, Info]:
        """Move the states, then the parameters."""
        states_key, parameters_key = jax.random.split(key)
        states = self.move_states(states_key, carry.parameters, carry.states, series)
        parameters = self.moves.update(
            parameters_key, carry.parameters, states, carry.iteration, series
        )
        value = self.moves.density(states, series)(self.moves.apply(parameters))
        carry_after = GibbsCarry(states, parameters, carry.iteration + 1)
        return carry_after, sweep_info(value, carry.states, states)

    def draw(self, key: PRNGKeyArray, carry: GibbsCarry, series: list[Series]) -> Draw:
        """Return the present states and parameters, and a draw of the weights."""
        weights = self.moves.draw_weights(key, carry.parameters, carry.states, series)
        return Draw(carry.states, weights, carry.parameters.leaves)


def sweep_states(
    keys: PRNGKeyArray,
    model: GPSSM,
    states: States,
    series: list[Series],
    form: Callable[[Series], FeynmanKac],
    num_particles: int,
    ancestry: csmc.Ancestry = "backward",
) -> tuple[States, Float[Array, ""]]:
    """Sweep particles through each series.

    Parameters
    ----------
    keys
        A random key for each series.
    model
        The model.
    states
        The present paths.
    series
        The scaled series.
    form
        The law of a series' states.
    num_particles, ancestry
        As of `csmc.sweep`.

    Returns
    -------
    states : tuple
        New paths.
    log_constant : scalar
        log Z as the sweeps estimate it.
    """
    laws = [form(experiment) for experiment in series]
    sweeps = [
        csmc.sweep(key, path, law, guide(model, law, experiment), num_particles, ancestry)
        for key, path, law, experiment in zip(keys, states, laws, series, strict=True)
    ]
    paths, constants = zip(*sweeps, strict=True)
    return paths, sum(constants, jnp.zeros((), model.log_process_std.dtype))


def guide(model: GPSSM, form: FeynmanKac, series: Series) -> csmc.Guide:
    """Return the locally optimal proposal where the emission is linear and Gaussian.

    Elsewhere it is the bootstrap proposal.
    """
    likelihood = model.likelihood
    if not isinstance(likelihood, Gaussian):
        return csmc.bootstrap(form)
    y, present = observed(jnp.asarray(series.y, likelihood.d.dtype))
    variance = jnp.exp(2 * likelihood.log_std)
    emission = csmc.GaussianEmission(likelihood.C, likelihood.d, variance, y, present)
    return csmc.locally_optimal(form, emission)


def sweep_info(log_target: Float[Array, ""], before: States, after: States) -> Info:
    """Return the figures of a sweep: `acceptance` is the share of states that it changed."""
    changed = [jnp.any(new != old, -1) for new, old in zip(after, before, strict=True)]
    share = jnp.mean(jnp.concatenate(changed).astype(log_target.dtype))
    return Info(log_target, share, jnp.zeros((), bool), -log_target, jnp.zeros_like(log_target))
