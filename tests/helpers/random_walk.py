"""A minimal method for tests of the loop: a random walk on the states, and exact draws of
everything else.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.core.loops import choose
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import MethodSettings
from gpssm.model.target import log_collapsed
from gpssm.model.types import Draw, Info, Method


class Carry(NamedTuple):
    states: tuple
    parameters: Parameters
    iteration: jax.Array


@dataclass(frozen=True)
class RandomWalk(MethodSettings):
    """x' = x + size · ε, accepted or not."""

    num_warmup: int = 6
    num_draws: int = 10
    size: float = 0.05

    def build(self, model, states):
        moves = ParameterMoves(model, self.num_warmup, self.learning_rate)
        return RandomWalkSampler(self, moves, states)


@dataclass(frozen=True)
class RandomWalkSampler(Method):
    settings: RandomWalk
    moves: ParameterMoves
    start: tuple

    def init(self, key, series):
        noise = 0.1 * jax.random.normal(key, self.start[0].shape)
        states = (self.start[0] + noise, *self.start[1:])
        return Carry(states, self.moves.init(), jnp.zeros((), int))

    def step(self, key, carry, series):
        keys = jax.random.split(key, 3)
        model = self.moves.apply(carry.parameters)
        proposal = jax.tree.map(
            lambda x: x + self.settings.size * jax.random.normal(keys[0], x.shape), carry.states
        )
        values = [log_collapsed(model, x, series) for x in (carry.states, proposal)]
        acceptance = jnp.exp(jnp.minimum(values[1] - values[0], 0.0))
        accepted = jax.random.uniform(keys[1]) < acceptance
        states = choose(accepted, proposal, carry.states)
        parameters = self.moves.update(keys[2], carry.parameters, states, carry.iteration, series)
        value = jnp.where(accepted, *values[::-1])
        info = Info(value, acceptance, jnp.asarray(False), -value, jnp.asarray(1.0))
        return Carry(states, parameters, carry.iteration + 1), info

    def draw(self, key, carry, series):
        weights = self.moves.draw_weights(key, carry.parameters, carry.states, series)
        return Draw(carry.states, weights, carry.parameters.leaves)


@dataclass(frozen=True)
class PaddedWalk(RandomWalk):
    """The same on padded series, whose draws of the actual rows are equal up to rounding."""

    pads: ClassVar[bool] = True


def small_series(length: int = 20) -> Series:
    """A noisy first-order response to a random control, in units far from 0 and 1."""
    rng = np.random.default_rng(4)
    u, x, y = rng.normal(size=length), 0.0, []
    for control in u:
        x = 0.7 * x + 0.5 * control + 0.1 * rng.normal()
        y.append(50 + 4 * x + 0.4 * rng.normal())
    return Series(y, 3 + 2 * u)


def small_fit(method: MethodSettings | None = None, **settings):
    """`fit` with the size that the tests compile."""
    settings = dict(state_dim=1, num_inducing=4, num_chains=2, chunk=5, progress=False) | settings
    return fit(small_series(), method=RandomWalk() if method is None else method, **settings)
