"""`vgpssm`: free-form q(x) q(v) with independent states and weights (Frigola, Chen & Rasmussen
2014).

    ELBO = −KL[q(v) ‖ p(v)] + H[q(x)] + E log p(x₀)
         + Σ_t E[ log p(y_t | x_{t+1}) + log N(x_{t+1}; m + A μ, Q)
                  − ½ Σ_d (B_d + A_d Σ_d A_dᵀ) / Q_d ]

Given q(x) the best q(v_d) is N(μ_d, Σ_d) with Σ_d⁻¹ = I + E[A_dᵀA_d] / Q_d and Σ_d⁻¹μ_d =
E[A_dᵀr_d] / Q_d. Given q(v) the best q(x) is the distribution of the states of an auxiliary model
with transitions N(m + A μ, Q) and the potential p(y_t | x_{t+1}) exp(−½ Σ_d (B_d + A_d Σ_d
A_dᵀ)(z_t) / Q_d): particle sweeps draw from it. With Z its normalising constant, the ELBO at
that q(x) is log Z − KL[q(v) ‖ p(v)].

Here backward sampling replaces the fixed-lag smoother of the paper, and one path per sweep enters
the damped averages of the natural parameters. All leaves that are not fixed are learned as point
estimates, by Adam on the ELBO and their priors at that path; the paper learns none.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import inverse_root, solve_positive
from gpssm.core.loops import descend
from gpssm.core.runtime import in_step
from gpssm.data.series import Series
from gpssm.inference.parameters import Sampler, annealed_adam
from gpssm.inference.settings import States
from gpssm.methods.particle_gibbs import ParticleSettings, sweep_info, sweep_states
from gpssm.model.conditionals import draw_gaussian
from gpssm.model.model import GPSSM, Step
from gpssm.model.target import (
    log_boundary,
    path_measure,
    transition_statistics,
    weight_precision,
    weights_given_states,
)
from gpssm.model.types import Draw, FeynmanKac, GaussianWeights, Info, Statistics


class Natural(NamedTuple):
    """The natural parameters of q(v_d): Σ_d⁻¹μ_d and Σ_d⁻¹."""

    linear: Float[Array, "Dx M"]
    precision: Float[Array, "Dx M M"]

    def weights(self) -> GaussianWeights:
        """Return q(v) by its mean and precision."""
        return GaussianWeights(solve_positive(self.precision, self.linear), self.precision)


class VGPSSMCarry(NamedTuple):
    """A path of each series, q(v), the free leaves, and the state of Adam."""

    states: States
    natural: Natural
    leaves: dict[str, Array]
    adam: Any
    iteration: Int[Array, ""]


class VGPSSMSampler(Sampler):
    """The iterations of `vgpssm`."""

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam for the leaves, over the iterations in which they are learned."""
        return annealed_adam(self.settings.learning_rate, self.settings.num_shared(self.model))

    def init(self, key: PRNGKeyArray, series: list[Series]) -> VGPSSMCarry:
        """Return the carry with the leaves of the model, and v given the states."""
        states = tuple(map(jnp.asarray, self.states))
        leaves = self.model.free_leaves()
        mean, precision = weights_given_states(self.model, states, series)
        natural = Natural(jnp.matmul(precision, mean[:, :, None])[:, :, 0], precision)
        return VGPSSMCarry(states, natural, leaves, self.optimiser.init(leaves), jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: VGPSSMCarry, series: list[Series]
    ) -> tuple[VGPSSMCarry, Info]:
        """Draw paths from the best q(x), then update q(v) and the leaves."""
        model = self.model.with_leaves(carry.leaves)
        weights = carry.natural.weights()
        form = functools.partial(auxiliary, model, weights)
        keys = jax.random.split(key, len(series))
        count = self.settings.num_particles
        states, log_constant = sweep_states(keys, model, carry.states, series, form, count)
        info = sweep_info(log_constant - divergence(weights), carry.states, states)
        after = carry._replace(states=states, iteration=carry.iteration + 1)
        learning = carry.iteration < self.settings.num_shared(self.model)
        return jax.lax.cond(
            in_step(learning), lambda: self.learn(after, weights, series), lambda: after
        ), info

    def draw(self, key: PRNGKeyArray, carry: VGPSSMCarry, series: list[Series]) -> Draw:
        """Return the current states, and weights from q(v)."""
        return Draw(carry.states, draw_gaussian(key, carry.natural.weights()), carry.leaves)

    def learn(
        self, carry: VGPSSMCarry, weights: GaussianWeights, series: list[Series]
    ) -> VGPSSMCarry:
        """Take a natural-gradient step of q(v), and an Adam step of the leaves at the old q(v)."""
        count = sum(len(experiment) for experiment in series)

        def loss(leaves: dict[str, Array]) -> tuple[Float[Array, ""], Natural]:
            model = self.model.with_leaves(leaves)
            statistics = transition_statistics(model, carry.states, series)
            variance = model.process_variance
            value = expected_transition(statistics, weights, variance, count)
            value = value + log_boundary(model, carry.states, series) + model.log_prior()
            return -value / count, best_weights(statistics, variance)

        leaves, adam, best = descend(self.optimiser, loss, carry.leaves, carry.adam)
        size = damping(carry.iteration)
        natural = jax.tree.map(lambda old, new: old + size * (new - old), carry.natural, best)
        return carry._replace(natural=natural, leaves=leaves, adam=adam)


@dataclass(frozen=True)
class VGPSSM(ParticleSettings):
    """Settings of `vgpssm`; `ParticleSettings` and `MethodSettings` document them."""

    sampler = VGPSSMSampler

    num_warmup: int = 500
    num_draws: int = 100
    thin: int = 1
    num_particles: int = 25

    def num_shared(self, model: GPSSM) -> int:
        """Return the number of iterations that learn q(v), which all chains share.

        In the last tenth of the warm-up, chains run separately.
        """
        return self.num_warmup - self.num_warmup // 10


def damping(iteration: Int[Array, ""]) -> Float[Array, ""]:
    """Return the natural-gradient step ρ at iteration k = 1, 2, ...: .8 up to k = 20, then .4 ·
    20/k.

    The averages thus forget early paths.
    """
    return jnp.where(iteration <= 20, 0.8, 0.4 * 20 / jnp.maximum(iteration, 1))


def best_weights(statistics: Statistics, variance: Float[Array, " Dx"]) -> Natural:
    """Return the best q(v): Σ_d⁻¹ = I + E[A_dᵀA_d] / Q_d and Σ_d⁻¹μ_d = E[A_dᵀr_d] / Q_d."""
    return Natural(statistics.cross / variance[:, None], weight_precision(statistics, variance))


def expected_transition(
    statistics: Statistics, weights: GaussianWeights, variance: Float[Array, " Dx"], count: int
) -> Float[Array, ""]:
    """Σ_t { log N(x_{t+1}; m + A μ, Q) − ½ Σ_d (B_d + A_d Σ_d A_dᵀ) / Q_d } from the sums over
    `count` transitions.
    """
    root = _root(weights)
    second = jnp.matmul(root, root.mT) + weights.mean[:, :, None] * weights.mean[:, None, :]
    error = statistics.square - 2 * jnp.sum(statistics.cross * weights.mean, -1)
    error = error + jnp.sum(statistics.gram * second, (-2, -1)) + statistics.residual
    return -0.5 * jnp.sum(count * jnp.log(2 * jnp.pi * variance) + error / variance)


def divergence(weights: GaussianWeights) -> Float[Array, ""]:
    """Return KL[q(v) ‖ N(0, I)] = ½ Σ_d { tr Σ_d + |μ_d|² − M − log det Σ_d }."""
    root = _root(weights)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)))
    return 0.5 * (jnp.sum(root**2) + jnp.sum(weights.mean**2) - weights.mean.size - log_det)


def auxiliary(model: GPSSM, weights: GaussianWeights, series: Series) -> FeynmanKac:
    """Return the model whose states have the best q(x) given q(v), for particles.

    M_{t+1} = N(m + A μ, Q) and
    G_{t+1} = p(y_t | x_{t+1}) exp(−½ Σ_d (B_d + A_d Σ_d A_dᵀ)(z_t) / Q_d).
    """
    variance = model.process_variance
    root = _root(weights)

    def penalty(step: Step) -> Float[Array, " N"]:
        spread = step.residual + jnp.sum(jnp.matmul(step.gain, root) ** 2, -1)
        return jnp.sum(spread / (2 * variance[:, None]), 0)

    return path_measure(
        model, series, lambda step: (step.given(weights.mean), variance[None]), penalty
    )


def _root(weights: GaussianWeights) -> Float[Array, "Dx M M"]:
    """Return L⁻ᵀ with Σ_d⁻¹ = LLᵀ, so that Σ_d = L⁻ᵀL⁻¹."""
    return inverse_root(weights.precision).mT
