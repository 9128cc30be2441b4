"""`ffvd-p`: particle Gibbs, weights given states and states given weights in turn.

    v | x      exact
    x | v      conditional sequential Monte Carlo, a whole path at once, for each series
    θ | x      the parameters' moves, with weights of their own that are thrown away

Two targets go by name, and they are not the same distribution:

- "posterior", the optimal q*(v, x): M = N(m + A v, Q) with the potential p(y | x') exp(−ΣB_d / 2Q_d);
- "predictive", the sparse model's own law, as the particle algorithm of Fan et al. (2023) propagates:
  M = N(m + A v, B + Q) with the potential p(y | x'). Noise of variance B is drawn afresh at each step, and
  P_d = I + Σ_t A_d(z_t)ᵀA_d(z_t) / (B_d(z_t) + Q_d).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import States
from gpssm.methods.particle_gibbs import ParticleSettings, build_gibbs, sweep_states
from gpssm.methods.predictive_target import PredictiveMoves
from gpssm.model.model import GPSSM
from gpssm.model.target import feynman_kac, feynman_kac_predictive
from gpssm.model.types import FeynmanKac, Method


@dataclass(frozen=True)
class ParticleGibbs(ParticleSettings):
    """Settings of `ffvd-p`.

    :param num_particles: particles in each sweep, the present path among them.
    :param target: "posterior" is q*; "predictive" replaces Q and the penalty exp(−B/2Q) by the variance B + Q, as the
        paper's particle algorithm does, and is a different distribution.
    :param backward: choose parents afresh backward in time; without it early states hardly ever move.
    """

    num_particles: int = 100
    target: str = "posterior"
    backward: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in TARGETS:
            raise ValueError(f"target is one of {', '.join(TARGETS)}, got {self.target!r}.")

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, started at these states."""
        target = TARGETS[self.target]
        moves = target.moves(model, self.num_warmup, self.learning_rate)
        ancestry = "backward" if self.backward else "trace"

        def move_states(
            key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
        ) -> States:
            weights_key, states_key = jax.random.split(key)
            weights, now = (
                moves.draw_weights(weights_key, parameters, states, series),
                moves.apply(parameters),
            )
            keys = jax.random.split(states_key, len(series))
            form = functools.partial(target.form, now, weights)
            return sweep_states(keys, now, states, series, form, self.num_particles, ancestry)[0]

        return build_gibbs(moves, states, move_states)


class Target(NamedTuple):
    """A target's two faces: the moves of the parameters, and the law of the states given the weights."""

    moves: type[ParameterMoves]
    form: Callable[[GPSSM, Float[Array, "Dx M"], Series], FeynmanKac]


TARGETS = {
    "posterior": Target(ParameterMoves, feynman_kac),
    "predictive": Target(PredictiveMoves, feynman_kac_predictive),
}
