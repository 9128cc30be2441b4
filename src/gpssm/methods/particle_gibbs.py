"""Particle Gibbs: `ffvd-p`, and the common parts of the particle methods.

    x | θ      conditional SMC, a whole path at once (`csmc.py`), for each series
    θ | x      the updates of the parameters, with separate weights that are discarded

Particles are guided by the next output if it is linear and Gaussian in the state. `ffvd-p` first
draws the weights given the states, v | x, and then the states. There are two targets, which are
different distributions:

- "posterior", the optimal q*(v, x): M = N(m + A v, Q) with the potential
  p(y | x') exp(−ΣB_d / 2Q_d);
- "predictive", the distribution of the sparse model, from which `simulate` draws, as in the
particle algorithm of Fan et al. (2023): M = N(m + A v, B + Q) with the potential p(y | x'). Noise
of variance B is drawn independently at each step, the FIC approximation of the Gaussian process, so
that

      x_{t+1,d} | v_d ~ N(m_d + A_d·v_d, B_d + Q_d),   P_d = I + Σ_t A_dᵀA_d / (B_d + Q_d)

  `fic-pg` also has this target. If B = 0, both targets agree.
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import gram
from gpssm.data.series import Series
from gpssm.inference import csmc
from gpssm.inference.parameters import Density, ParameterMoves, Parameters, Sampler
from gpssm.inference.settings import MethodSettings, States, choice, whole
from gpssm.model.conditionals import draw_gaussian
from gpssm.model.likelihoods import Gaussian, observed
from gpssm.model.model import GPSSM, Step
from gpssm.model.target import (
    feynman_kac,
    feynman_kac_predictive,
    log_boundary,
    log_evidence,
    sum_over_time,
    weights_given,
)
from gpssm.model.types import Draw, FeynmanKac, GaussianWeights, Info, Method, Statistics


@dataclass(frozen=True)
class ParticleSettings(MethodSettings):
    """Settings of particle methods; `MethodSettings` has the others.

    Parameters
    ----------
    num_particles
        Number of particles in each sweep, including the current path.
    """

    num_particles: int = whole(20, least=2)


class GibbsCarry(NamedTuple):
    """The state of particle Gibbs."""

    states: States
    parameters: Parameters
    iteration: Int[Array, ""]


class GibbsSampler(Sampler):
    """States and parameters in turn; a subclass defines `move_states`."""

    @abc.abstractmethod
    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Return new states given the parameters."""

    def init(self, key: PRNGKeyArray, series: list[Series]) -> GibbsCarry:
        """Return the initial carry."""
        states = tuple(map(jnp.asarray, self.states))
        return GibbsCarry(states, self.moves.init(), jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: GibbsCarry, series: list[Series]
    ) -> tuple[GibbsCarry, Info]:
        """Update the states, then the parameters."""
        states_key, parameters_key = jax.random.split(key)
        states = self.move_states(states_key, carry.parameters, carry.states, series)
        parameters = self.moves.update(
            parameters_key, carry.parameters, states, carry.iteration, series
        )
        value = self.moves.density(states, series)(self.moves.apply(parameters))
        carry_after = GibbsCarry(states, parameters, carry.iteration + 1)
        return carry_after, sweep_info(value, carry.states, states)

    def draw(self, key: PRNGKeyArray, carry: GibbsCarry, series: list[Series]) -> Draw:
        """Return the current states and parameters, and a draw of the weights."""
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
        The current paths.
    series
        The scaled series.
    form
        Function that returns the distribution of the states of a series.
    num_particles, ancestry
        As in `csmc.sweep`.

    Returns
    -------
    states : tuple
        New paths.
    log_constant : scalar
        The estimate of log Z.
    """
    laws = [form(experiment) for experiment in series]
    sweeps = [
        csmc.sweep(key, path, law, guide(model, law, experiment), num_particles, ancestry)
        for key, path, law, experiment in zip(keys, states, laws, series, strict=True)
    ]
    paths, constants = zip(*sweeps, strict=True)
    return paths, sum(constants, jnp.zeros((), model.log_process_std.dtype))


def guide(model: GPSSM, form: FeynmanKac, series: Series) -> csmc.Guide:
    """Return the locally optimal proposal if the emission is linear and Gaussian.

    Otherwise return the bootstrap proposal.
    """
    likelihood = model.likelihood
    if not isinstance(likelihood, Gaussian):
        return csmc.bootstrap(form)
    y, present = observed(jnp.asarray(series.y, likelihood.d.dtype))
    variance = jnp.exp(2 * likelihood.log_std)
    emission = csmc.GaussianEmission(likelihood.C, likelihood.d, variance, y, present)
    return csmc.locally_optimal(form, emission)


def sweep_info(log_target: Float[Array, ""], before: States, after: States) -> Info:
    """Return the diagnostics of a sweep; `acceptance` is the share of states that it changed."""
    changed = [jnp.any(new != old, -1) for new, old in zip(after, before, strict=True)]
    share = jnp.mean(jnp.concatenate(changed).astype(log_target.dtype))
    return Info(log_target, share, jnp.zeros((), bool), -log_target, jnp.zeros_like(log_target))


class PredictiveMoves(ParameterMoves):
    """The updates of the parameters for the predictive target.

    Q has no exact conditional for this target and is updated by HMC.
    """

    def density(self, states: States, series: list[Series]) -> Density:
        """Return the log density of the states, weights integrated out, as a function of the
        model.
        """
        return lambda model: log_collapsed_predictive(model, states, series)

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """Draw v | x exactly."""
        return draw_gaussian(
            key, weights_given_states_predictive(self.apply(parameters), states, series)
        )

    def conjugate(self) -> set[str]:
        """Return the sampled leaves with an exact conditional, those of the emission."""
        return super().conjugate() - {"log_process_std"}


def log_collapsed_predictive(
    model: GPSSM, states: States, series: list[Series]
) -> Float[Array, ""]:
    """Return log p(x, y) = log p(x₀) + Σ_t log p(y_t | x_{t+1})
    + Σ_d log N(r_d; 0, A_d A_dᵀ + diag(B_d + Q_d)).
    """
    count = sum(len(experiment) for experiment in series)
    statistics = scaled_statistics(model, states, series)
    return log_boundary(model, states, series) + log_evidence(
        statistics, jnp.ones_like(statistics.square), count
    )


def weights_given_states_predictive(
    model: GPSSM, states: States, series: list[Series]
) -> GaussianWeights:
    """Return v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹), P_d = I + Σ_t AᵀA / (B + Q), b_d = Σ_t Aᵀr / (B +
    Q).
    """
    statistics = scaled_statistics(model, states, series)
    return weights_given(statistics, jnp.ones_like(statistics.square))


def scaled_statistics(model: GPSSM, states: States, series: list[Series]) -> Statistics:
    """Return the sums over time with A and r divided by √(B + Q), for noise of unit variance.

    Σ log(B + Q), which this scaling contributes to the log density, replaces ΣB.
    """
    variance = model.process_variance

    def terms(step: Step, following: Float[Array, "N Dx"]) -> Statistics:
        spread = jnp.maximum(step.residual, 0.0) + variance[:, None]
        gain = step.gain / jnp.sqrt(spread)[:, :, None]
        error = (following - step.mean).T / jnp.sqrt(spread)
        cross = jnp.matmul(gain.mT, error[:, :, None])[:, :, 0]
        return Statistics(gram(gain), cross, jnp.sum(error**2, -1), jnp.sum(jnp.log(spread), -1))

    return sum_over_time(model, states, series, terms)


class ParticleGibbsSampler(GibbsSampler):
    """The iterations of `ffvd-p` and `rrank`."""

    law: ClassVar[Any] = staticmethod(feynman_kac)
    ancestry: ClassVar[csmc.Ancestry] = "backward"

    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Draw the weights given the states, then the states by a sweep."""
        weights_key, states_key = jax.random.split(key)
        weights = self.moves.draw_weights(weights_key, parameters, states, series)
        model = self.moves.apply(parameters)
        form = functools.partial(self.law, model, weights)
        keys = jax.random.split(states_key, len(series))
        count = self.settings.num_particles
        return sweep_states(keys, model, states, series, form, count, self.ancestry)[0]


class PredictiveSampler(ParticleGibbsSampler):
    """The iterations of `ffvd-p` for the predictive target."""

    move_type = PredictiveMoves
    law = staticmethod(feynman_kac_predictive)


@dataclass(frozen=True)
class ParticleGibbs(ParticleSettings):
    """Particle Gibbs on the free-form posterior (Fan et al. 2023).

    `ParticleSettings` and `MethodSettings` have the other settings.

    Parameters
    ----------
    target
        "posterior" is q*; "predictive" replaces Q and the penalty exp(−B/2Q) by the variance B + Q,
        as the paper's particle algorithm does, and is a different distribution.
    """

    num_particles: int = 100
    target: str = choice("posterior", ("posterior", "predictive"))

    def build(self, model: GPSSM, states: States) -> Method:
        """Return the sampler of the target."""
        kind = ParticleGibbsSampler if self.target == "posterior" else PredictiveSampler
        return kind(self, model, states)
