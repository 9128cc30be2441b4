"""`rrank`, the reduced-rank sampler of Svensson, Solin, Särkkä & Schön (2016): Gibbs sampling with
a basis without residual.

    Q | x, θ       exact, the weights integrated out
    v | x, Q, θ    exact
    θ | x, Q       HMC, the weights integrated out
    x | v, Q, θ    particle Gibbs with ancestor sampling, a whole path at once, for each series

f = m + A v with B = 0: the weights of a Hilbert-space basis determine the function. Their prior is
scaled by the noise, v_d | Q_d ~ N(0, (Q_d / Q°_d) I), with Q° the process noise of the initial
model, so that weights and noise can be drawn jointly: from a matrix-normal inverse-Wishart
distribution in the paper and, since Q is diagonal here, from one normal-inverse-gamma distribution
for each state dimension. If Q is fixed, Q = Q°, the prior is that of all other methods.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import log_gaussian_integral
from gpssm.data.series import Series
from gpssm.inference.parameters import Density, ParameterMoves, Parameters
from gpssm.inference.settings import States
from gpssm.methods.particle_gibbs import ParticleGibbsSampler, ParticleSettings
from gpssm.model.bases import Hilbert, LinearFeatures, RandomFourier, parts_of
from gpssm.model.conditionals import conjugate_prior, draw_gaussian, draw_noise
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma
from gpssm.model.target import log_boundary, transition_statistics, weights_given
from gpssm.model.types import GaussianWeights, Method
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

NOISE = "log_process_std"


class RankMoves(ParameterMoves):
    """The moves of the parameters given the states. `model` is the initial model and has Q°."""

    def update(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        iteration: Array,
        series: list[Series],
    ) -> Parameters:
        """Draw Q | x, then the other parameters given Q as in every sampler."""
        noise_key, other_key = jax.random.split(key)
        if NOISE in self.model.leaves("sample"):
            noise = draw_noise(noise_key, self.process_noise_given(parameters, states, series))
            parameters = parameters._replace(leaves=parameters.leaves | {NOISE: noise})
        others = self._replace(model=self.model.with_roles("fix", NOISE))
        return ParameterMoves.update(others, other_key, parameters, states, iteration, series)

    def density(self, states: States, series: list[Series]) -> Density:
        """Return log p(x, y) as a function of the model: r_d ~ N(0, Q_d (I + A_d A_dᵀ/Q°_d))."""

        def log_density(model: GPSSM) -> Float[Array, ""]:
            weights, residual = self.regress(model, states, series)
            variance = model.process_variance
            noise = sum(map(len, series)) * jnp.log(2 * jnp.pi * variance) + residual / variance
            # −½ log det P_d
            volume = log_gaussian_integral(weights.precision, jnp.zeros_like(weights.mean))
            return log_boundary(model, states, series) + jnp.sum(volume - 0.5 * noise)

        return log_density

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """Draw v_d | x, Q ~ N(P_d⁻¹b_d, (Q_d/Q°_d) P_d⁻¹)."""
        model = self.apply(parameters)
        weights, _ = self.regress(model, states, series)
        scale = model.process_variance / self.model.process_variance
        return draw_gaussian(
            key, weights._replace(precision=weights.precision / scale[:, None, None])
        )

    def process_noise_given(
        self, parameters: Parameters, states: States, series: list[Series]
    ) -> InverseGamma:
        """Return Q_d | x ~ InverseGamma(a + N/2, b + residual_d/2), the weights integrated out."""
        prior = conjugate_prior(self.model, NOISE, InverseGamma)
        _, residual = self.regress(self.apply(parameters), states, series)
        shape = jnp.broadcast_to(prior.shape + 0.5 * sum(map(len, series)), residual.shape)
        return InverseGamma(shape, prior.scale + 0.5 * residual)

    def regress(
        self, model: GPSSM, states: States, series: list[Series]
    ) -> tuple[GaussianWeights, Float[Array, " Dx"]]:
        """Return the weights given the states at Q = Q°, and rᵀ(I + AAᵀ/Q°)⁻¹r of each state."""
        sums = transition_statistics(model, states, series)
        weights = weights_given(sums, self.model.process_variance)
        return weights, sums.square - jnp.sum(sums.cross * weights.mean, -1)


class ReducedRankSampler(ParticleGibbsSampler):
    """The iterations of `rrank`."""

    move_type = RankMoves
    ancestry = "ancestor"


@dataclass(frozen=True)
class ReducedRank(ParticleSettings):
    """Settings of `rrank`; `ParticleSettings` and `MethodSettings` document them.

    Leaves with the role "optimise" are sampled.
    """

    sampler = ReducedRankSampler

    num_warmup: int = 150
    num_draws: int = 100
    thin: int = 2
    num_particles: int = 15

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the model with `num_inducing` functions of a Hilbert-space basis instead of
        inducing points.
        """
        return super().prepare(
            series, spec.replace(basis="hilbert") if spec.basis == "inducing" else spec, key
        )

    def adopt(self, model: GPSSM) -> GPSSM:
        """Return the model in which the optimised leaves are sampled instead."""
        return model.with_roles("sample", *model.leaves("optimise"))

    def num_shared(self, model: GPSSM) -> int:
        """Return 0, since nothing is optimised."""
        return 0

    def build(self, model: GPSSM, states: States) -> Method:
        """Return the method for a model with a basis without residual."""
        for part in parts_of(model.basis):
            if not isinstance(part, Hilbert | RandomFourier | LinearFeatures):
                raise ValueError(
                    "`rrank` needs a basis without residual, 'hilbert', 'fourier' or 'linear': "
                    f"got {type(part).__name__}."
                )
        return super().build(self.adopt(model), states)
