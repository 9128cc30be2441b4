"""FFVD-P: particle Gibbs, weights given states and states given weights in turn.

    v | x      exact
    x | v      conditional sequential Monte Carlo, a whole path at once, for each series
    θ | x      the parameters' moves, with weights of their own that are thrown away

Two targets go by name, and they are not the same distribution:

- "posterior", the optimal q*(v, x): M = N(m + A v, Q) with the potential p(y | x') exp(−ΣB_d / 2Q_d);
- "predictive", the sparse model's own law, as the particle algorithm of Fan et al. (2023) propagates:
  M = N(m + A v, B + Q) with the potential p(y | x'). Noise of variance B is drawn afresh at each step, and
  P_d = I + Σ_t A_d(z_t)ᵀA_d(z_t) / (B_d(z_t) + Q_d).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.conditionals import draw_gaussian
from gpssm.likelihoods import Gaussian, observed
from gpssm.linalg import gram, solve_positive
from gpssm.methods.base import Config, Density, ParameterMoves, Parameters, States
from gpssm.model import GPSSM, Step
from gpssm.moves import csmc
from gpssm.series import Series
from gpssm.target import (
    feynman_kac,
    feynman_kac_predictive,
    log_boundary,
    log_collapsed,
    log_evidence,
    sum_over_time,
)
from gpssm.types import Draw, FeynmanKac, GaussianWeights, Info, Method, Statistics


@dataclass(frozen=True)
class ParticleGibbs(Config):
    """Settings of particle Gibbs.

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
        if not isinstance(self.num_particles, int) or self.num_particles < 2:
            raise ValueError(f"num_particles must be a whole number of at least 2, got {self.num_particles!r}.")
        if self.target not in TARGETS:
            raise ValueError(f"target is one of {', '.join(TARGETS)}, got {self.target!r}.")

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, started at these states."""
        moves = TARGETS[self.target].moves(model, self.num_warmup, self.learning_rate)
        start = Carry(tuple(map(jnp.asarray, states)), moves.init(), jnp.zeros((), int))

        def init(key: PRNGKeyArray, series: list[Series]) -> Carry:
            return start

        def step(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
            return _step(key, carry, series, moves, self)

        def draw(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Draw:
            weights = moves.draw_weights(key, carry.parameters, carry.states, series)
            return Draw(carry.states, weights, carry.parameters.leaves)

        return Method(init, step, draw)


class Carry(NamedTuple):
    """Where particle Gibbs stands; the weights are drawn at the start of each iteration."""

    states: States
    parameters: Parameters
    iteration: Int[Array, ""]


class PredictiveMoves(ParameterMoves):
    """The moves of the parameters when the target is predictive; Q has no exact conditional there and goes by HMC."""

    def density(self, states: States, series: list[Series]) -> Density:
        """The log density of the states as a function of the model, the weights integrated out."""
        return lambda model: log_collapsed_predictive(model, states, series)

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """v | x, exact."""
        return draw_gaussian(key, weights_given_states_predictive(self.apply(parameters), states, series))

    def conjugate(self) -> set[str]:
        """The sampled leaves that have an exact conditional: those of the emission."""
        return super().conjugate() - {"log_process_std"}


def log_collapsed_predictive(model: GPSSM, states: States, series: list[Series]) -> Float[Array, ""]:
    """log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d log N(r_d; 0, A_d A_dᵀ + diag(B_d + Q_d)): v integrated out."""
    count = sum(len(one) for one in series)
    statistics = _scaled_statistics(model, states, series)
    return log_boundary(model, states, series) + log_evidence(statistics, jnp.ones_like(statistics.square), count)


def weights_given_states_predictive(model: GPSSM, states: States, series: list[Series]) -> GaussianWeights:
    """v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹),  P_d = I + Σ_t AᵀA / (B + Q),  b_d = Σ_t Aᵀr / (B + Q)."""
    statistics = _scaled_statistics(model, states, series)
    precision = statistics.gram + jnp.eye(model.basis.size, dtype=statistics.gram.dtype)[None]
    return GaussianWeights(solve_positive(precision, statistics.cross), precision)


def _scaled_statistics(model: GPSSM, states: States, series: list[Series]) -> Statistics:
    """The sums over time with A and r divided by √(B + Q), so that their noise has unit variance.

    Σ log(B + Q), which that scaling adds to the log density, stands in the place of ΣB.
    """
    variance = model.process_variance

    def terms(step: Step, following: Float[Array, "N Dx"]) -> Statistics:
        spread = jnp.maximum(step.residual, 0.0) + variance[:, None]
        gain = step.gain / jnp.sqrt(spread)[:, :, None]
        error = (following - step.mean).T / jnp.sqrt(spread)
        cross = jnp.matmul(gain.mT, error[:, :, None])[:, :, 0]
        return Statistics(gram(gain), cross, jnp.sum(error**2, -1), jnp.sum(jnp.log(spread), -1))

    return sum_over_time(model, states, series, terms)


class Target(NamedTuple):
    """A target's three faces: the moves of the parameters, the density of the states, their law given the weights."""

    moves: type[ParameterMoves]
    log_collapsed: Callable[[GPSSM, States, list[Series]], Float[Array, ""]]
    form: Callable[[GPSSM, Float[Array, "Dx M"], Series], FeynmanKac]


TARGETS = {
    "posterior": Target(ParameterMoves, log_collapsed, feynman_kac),
    "predictive": Target(PredictiveMoves, log_collapsed_predictive, feynman_kac_predictive),
}


def _step(
    key: PRNGKeyArray, carry: Carry, series: list[Series], moves: ParameterMoves, config: ParticleGibbs
) -> tuple[Carry, Info]:
    weights_key, states_key, parameters_key = jax.random.split(key, 3)
    weights = moves.draw_weights(weights_key, carry.parameters, carry.states, series)
    states = _move_states(states_key, moves.apply(carry.parameters), carry.states, weights, series, config)
    parameters = moves.update(parameters_key, carry.parameters, states, carry.iteration, series)
    value = TARGETS[config.target].log_collapsed(moves.apply(parameters), states, series)
    return Carry(states, parameters, carry.iteration + 1), _info(value, carry.states, states)


def _move_states(
    key: PRNGKeyArray,
    model: GPSSM,
    states: States,
    weights: Float[Array, "Dx M"],
    series: list[Series],
    config: ParticleGibbs,
) -> States:
    """x | v, one sweep of particles a series."""
    ancestry = "backward" if config.backward else "trace"
    moved = []
    for one_key, path, one in zip(jax.random.split(key, len(series)), states, series, strict=True):
        form = TARGETS[config.target].form(model, weights, one)
        moved.append(csmc.move(one_key, path, form, _guide(model, form, one), config.num_particles, ancestry))
    return tuple(moved)


def _guide(model: GPSSM, form: FeynmanKac, series: Series) -> csmc.Guide:
    """The locally optimal proposal where the emission is linear and Gaussian, the bootstrap elsewhere."""
    likelihood = model.likelihood
    if not isinstance(likelihood, Gaussian):
        return csmc.bootstrap(form)
    y, present = observed(jnp.asarray(series.y, likelihood.d.dtype))
    return csmc.locally_optimal(
        form, csmc.Emission(likelihood.C, likelihood.d, jnp.exp(2 * likelihood.log_std), y, present)
    )


def _info(log_target: Float[Array, ""], before: States, after: States) -> Info:
    """Every sweep is accepted: `acceptance` is the share of states that it changed."""
    changed = [jnp.any(new != old, -1) for new, old in zip(after, before, strict=True)]
    share = jnp.mean(jnp.concatenate(changed).astype(log_target.dtype))
    return Info(log_target, share, jnp.zeros((), bool), -log_target, jnp.zeros_like(log_target))
