"""`ffvd-p`: particle Gibbs, weights given states and states given weights in turn.

    v | x      exact
    x | v      conditional sequential Monte Carlo, a whole path at once, for each series
    θ | x      the parameters' moves, with weights of their own that are thrown away

Two targets go by name, and they are not the same distribution:

- "posterior", the optimal q*(v, x): M = N(m + A v, Q) with the potential
  p(y | x') exp(−ΣB_d / 2Q_d);
- "predictive", the sparse model's own law, as the particle algorithm of Fan et al. (2023) has it:
  M = N(m + A v, B + Q) with the potential p(y | x'). Noise of variance B is drawn afresh at each
  step, and P_d = I + Σ_t A_d(z_t)ᵀA_d(z_t) / (B_d(z_t) + Q_d).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import States, choice
from gpssm.methods.particle_gibbs import GibbsSampler, ParticleSettings, sweep_states
from gpssm.methods.predictive_target import PredictiveMoves
from gpssm.model.model import GPSSM
from gpssm.model.target import feynman_kac, feynman_kac_predictive
from gpssm.model.types import FeynmanKac


class Target(NamedTuple):
    """The moves of the parameters, and the law of the states given the weights."""

    moves: type[ParameterMoves]
    form: Callable[[GPSSM, Float[Array, "Dx M"], Series], FeynmanKac]


TARGETS = {
    "posterior": Target(ParameterMoves, feynman_kac),
    "predictive": Target(PredictiveMoves, feynman_kac_predictive),
}


@dataclass(frozen=True)
class ParticleGibbs(ParticleSettings):
    """Settings of `ffvd-p`; `ParticleSettings` and `MethodSettings` have the others.

    Parameters
    ----------
    target
        "posterior" is q*; "predictive" replaces Q and the penalty exp(−B/2Q) by the variance B + Q,
        as the paper's particle algorithm does, and is a different distribution.
    backward
        Whether parents are chosen afresh backward in time; without it early states hardly ever
        move.
    """

    num_particles: int = 100
    target: str = choice("posterior", TARGETS)
    backward: bool = True

    def build(self, model: GPSSM, states: States) -> "ParticleGibbsSampler":
        """Return the method for a model, started at these states."""
        moves = TARGETS[self.target].moves(model, self.num_warmup, self.learning_rate)
        return ParticleGibbsSampler(self, moves, states)


class ParticleGibbsSampler(GibbsSampler):
    """The iterations of `ffvd-p`."""

    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Draw the weights given the states, then sweep."""
        weights_key, states_key = jax.random.split(key)
        weights = self.moves.draw_weights(weights_key, parameters, states, series)
        model = self.moves.apply(parameters)
        form = functools.partial(TARGETS[self.settings.target].form, model, weights)
        ancestry = "backward" if self.settings.backward else "trace"
        return sweep_states(
            jax.random.split(states_key, len(series)),
            model,
            states,
            series,
            form,
            self.settings.num_particles,
            ancestry,
        )[0]
