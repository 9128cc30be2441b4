"""What the methods that move states by particles share: settings, sweeps through several series, and Gibbs.

    x | θ      a sweep of particles, a whole path at once (`inference/csmc.py`, `inference/beliefs.py`)
    θ | x      the parameters' moves, with weights of their own that are thrown away

Particles are guided by the output ahead of them where it is linear and Gaussian in the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.inference import csmc
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import MethodSettings, States
from gpssm.model.likelihoods import Gaussian, observed
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, FeynmanKac, Info, Method

MoveStates = Callable[[PRNGKeyArray, Parameters, States, list[Series]], States]


@dataclass(frozen=True)
class ParticleSettings(MethodSettings):
    """Settings of a method that moves states by particles.

    :param num_particles: particles in each sweep, the present path among them.
    """

    num_particles: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("num_particles", self.num_particles, 2)


class GibbsCarry(NamedTuple):
    """Where particle Gibbs stands."""

    states: States
    parameters: Parameters
    iteration: Int[Array, ""]


def build_gibbs(moves: ParameterMoves, start: States, move_states: MoveStates) -> Method:
    """States by `move_states(key, parameters, states, series)` and parameters by their moves in turn."""
    begin = GibbsCarry(tuple(map(jnp.asarray, start)), moves.init(), jnp.zeros((), int))

    def init(key: PRNGKeyArray, series: list[Series]) -> GibbsCarry:
        return begin

    def step(key: PRNGKeyArray, carry: GibbsCarry, series: list[Series]) -> tuple[GibbsCarry, Info]:
        states_key, parameters_key = jax.random.split(key)
        states = move_states(states_key, carry.parameters, carry.states, series)
        parameters = moves.update(parameters_key, carry.parameters, states, carry.iteration, series)
        value = moves.density(states, series)(moves.apply(parameters))
        return GibbsCarry(states, parameters, carry.iteration + 1), info(
            value, carry.states, states
        )

    def draw(key: PRNGKeyArray, carry: GibbsCarry, series: list[Series]) -> Draw:
        weights = moves.draw_weights(key, carry.parameters, carry.states, series)
        return Draw(carry.states, weights, carry.parameters.leaves)

    return Method(init, step, draw)


def sweep_states(
    keys: PRNGKeyArray,
    model: GPSSM,
    states: States,
    series: list[Series],
    form: Callable[[Series], FeynmanKac],
    num_particles: int,
    ancestry: csmc.Ancestry = "backward",
) -> tuple[States, Float[Array, ""]]:
    """A sweep of particles for each series, with a key each: new paths, and log Z as the sweeps see it."""
    moved, total = [], jnp.zeros((), model.log_process_std.dtype)
    for key, path, one in zip(keys, states, series, strict=True):
        law = form(one)
        path, log_constant = csmc.sweep(
            key, path, law, guide(model, law, one), num_particles, ancestry
        )
        moved.append(path)
        total = total + log_constant
    return tuple(moved), total


def guide(model: GPSSM, form: FeynmanKac, series: Series) -> csmc.Guide:
    """The locally optimal proposal where the emission is linear and Gaussian, the bootstrap elsewhere."""
    likelihood = model.likelihood
    if not isinstance(likelihood, Gaussian):
        return csmc.bootstrap(form)
    y, present = observed(jnp.asarray(series.y, likelihood.d.dtype))
    return csmc.locally_optimal(
        form,
        csmc.GaussianEmission(
            likelihood.C, likelihood.d, jnp.exp(2 * likelihood.log_std), y, present
        ),
    )


def info(log_target: Float[Array, ""], before: States, after: States) -> Info:
    """Every sweep is accepted: `acceptance` is the share of states that it changed."""
    changed = [jnp.any(new != old, -1) for new, old in zip(after, before, strict=True)]
    share = jnp.mean(jnp.concatenate(changed).astype(log_target.dtype))
    return Info(log_target, share, jnp.zeros((), bool), -log_target, jnp.zeros_like(log_target))
