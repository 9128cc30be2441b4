"""`rrank`, the reduced-rank sampler of Svensson, Solin, Särkkä & Schön (2016): Gibbs sampling with
a basis without residual.

    θ | x          random-walk Metropolis on the kernel's leaves, weights and Q integrated out
    Q | x, θ       exact, the weights integrated out
    v | x, Q, θ    exact
    x | v, Q, θ    particle Gibbs with ancestor sampling, a whole path at once, for each series

f = m + A v with B = 0: the weights of a Hilbert-space basis determine the function. Their prior is
scaled by the noise, v_d | Q_d ~ N(0, (Q_d / Q°_d) I), with Q° the process noise of the initial
model, so that weights and noise can be drawn jointly: from a matrix-normal inverse-Wishart
distribution in the paper and, since Q is diagonal here, from one normal-inverse-gamma distribution
for each state dimension. If Q is fixed, Q = Q°, the prior is that of all other methods.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import inverse_root
from gpssm.data.series import Series
from gpssm.inference.hmc import StepSize
from gpssm.inference.parameters import Density, ParameterMoves, Parameters
from gpssm.inference.settings import Assumptions, States
from gpssm.methods.particle_gibbs import GibbsSampler, ParticleSettings, sweep_states
from gpssm.model.bases import Hilbert, LinearFeatures, RandomFourier, parts_of
from gpssm.model.conditionals import conjugate_prior, draw_gaussian, draw_noise
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Prior
from gpssm.model.target import feynman_kac, log_boundary, transition_statistics
from gpssm.model.types import GaussianWeights
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

NOISE = "log_process_std"


@dataclass(frozen=True)
class ReducedRank(ParticleSettings):
    """Settings of `rrank`; `ParticleSettings` and `MethodSettings` document them.

    Leaves with the role "optimise" are sampled.
    """

    assumptions: ClassVar[Assumptions | None] = Assumptions(
        True, True, True, "draws from p(x, v | y), no residual"
    )

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

    def build(self, model: GPSSM, states: States) -> "ReducedRankSampler":
        """Return the method for a model, started at these states."""
        for part in parts_of(model.basis):
            if not isinstance(part, Hilbert | RandomFourier | LinearFeatures):
                raise ValueError(
                    "`rrank` needs a basis without residual, 'hilbert', 'fourier' or 'linear': "
                    f"got {type(part).__name__}."
                )
        moves = RankMoves(self.adopt(model), self.num_warmup, self.learning_rate)
        return ReducedRankSampler(self, moves, states)


class ReducedRankSampler(GibbsSampler):
    """The iterations of `rrank`."""

    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Draw the weights given the states, then sweep with ancestor sampling."""
        keys = jax.random.split(key, 1 + len(series))
        weights = self.moves.draw_weights(keys[0], parameters, states, series)
        model = self.moves.apply(parameters)
        form = functools.partial(feynman_kac, model, weights)
        count = self.settings.num_particles
        return sweep_states(keys[1:], model, states, series, form, count, "ancestor")[0]


class CollapsedRegression(NamedTuple):
    """What the states say of one row of weights and its noise, P = Q°I + AᵀA:

    v | x, Q ~ N(mean, Q P⁻¹),   r | Q ~ N(0, Q (I + AAᵀ/Q°)), with
    `residual` = rᵀ(I + AAᵀ/Q°)⁻¹r.
    """

    mean: Float[Array, "Dx M"]
    precision: Float[Array, "Dx M M"]
    residual: Float[Array, " Dx"]
    log_det: Float[Array, " Dx"]  # of I + AAᵀ/Q°


class RankMoves(ParameterMoves):
    """The moves of the parameters given the states. `model` is the model at the start and has Q°.

    `Parameters.memory` has the size of the walks.
    """

    def init(self) -> Parameters:
        """The model's own values to start from."""
        return ParameterMoves.init(self)._replace(memory=StepSize.start(0.2))

    def update(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        iteration: Array,
        series: list[Series],
    ) -> Parameters:
        """θ | x, then Q | x, θ, then the other leaves given both, as in every sampler."""
        walk_key, noise_key, other_key = jax.random.split(key, 3)
        parameters = self.walk(walk_key, parameters, states, iteration, series)
        parameters = self.draw_process_noise(noise_key, parameters, states, series)
        others = self._replace(model=self.model.with_roles("fix", NOISE, *self.walked()))
        return ParameterMoves.update(others, other_key, parameters, states, iteration, series)

    def density(self, states: States, series: list[Series]) -> Density:
        """The log density of the states as a function of the model.

        Weights, and Q unless fixed, are integrated out.
        """
        return lambda model: (
            log_boundary(model, states, series) + jnp.sum(self.log_rows(model, states, series))
        )

    def log_rows(self, model: GPSSM, states: States, series: list[Series]) -> Float[Array, " Dx"]:
        """log p(r_d) for each d: r_d ~ N(0, Q_d (I + A_d A_dᵀ/Q°_d)), with Q_d ~ InverseGamma(a, b)
        integrated out:

        Γ(a + N/2) / Γ(a) · b^a / (b + rest/2)^(a + N/2) · (2π)^(−N/2) det(I + AAᵀ/Q°)^(−½).
        """
        regression = self.regress(model, states, series)
        count = sum(len(experiment) for experiment in series)
        common = -0.5 * (regression.log_det + count * jnp.log(2 * jnp.pi))
        if NOISE not in self.model.leaves("sample"):
            variance = model.process_variance
            return common - 0.5 * (count * jnp.log(variance) + regression.residual / variance)
        noise = self.noise_given(regression, series)
        prior = conjugate_prior(self.model, NOISE, InverseGamma)
        gone = prior.shape * jnp.log(prior.scale) - noise.shape * jnp.log(noise.scale)
        return common + gammaln(noise.shape) - gammaln(prior.shape) + gone

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """v_d | x, Q ~ N(P_d⁻¹A_dᵀr_d, Q_d P_d⁻¹), exact."""
        model = self.apply(parameters)
        regression = self.regress(model, states, series)
        precision = regression.precision / model.process_variance[:, None, None]
        return draw_gaussian(key, GaussianWeights(regression.mean, precision))

    def draw_process_noise(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Parameters:
        """Q_d | x ~ InverseGamma(a + N/2, b + rest_d/2), the weights integrated out, unless Q is
        fixed.
        """
        if NOISE not in self.model.leaves("sample"):
            return parameters
        noise = self.noise_given(self.regress(self.apply(parameters), states, series), series)
        return parameters._replace(leaves=parameters.leaves | {NOISE: draw_noise(key, noise)})

    def walk(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        iteration: Array,
        series: list[Series],
    ) -> Parameters:
        """Make five Metropolis steps of the kernel's leaves, in log space.

        State dimensions are independent and are accepted separately.
        """
        names = self.walked()
        if not names:
            return parameters
        adapting = iteration < self.num_warmup
        size = parameters.memory.size(adapting)

        def value(leaves: dict[str, Array]) -> Float[Array, " Dx"]:
            rows = self.log_rows(self.model.with_leaves(parameters.leaves | leaves), states, series)
            return rows + sum(
                _log_prior_rows(self.model.priors[name], leaves[name]) for name in names
            )

        def step(
            state: tuple[dict[str, Array], Array], key: PRNGKeyArray
        ) -> tuple[tuple[dict[str, Array], Array], Array]:
            leaves, before = state
            accept_key, *keys = jax.random.split(key, 1 + len(names))
            moved = {
                name: leaves[name]
                + size * jax.random.normal(part_key, leaves[name].shape, leaves[name].dtype)
                for name, part_key in zip(names, keys, strict=True)
            }
            after = value(moved)
            probability = jnp.exp(
                jnp.minimum(jnp.where(jnp.isnan(after), -jnp.inf, after) - before, 0.0)
            )
            accepted = jax.random.uniform(accept_key, before.shape, before.dtype) < probability

            def choose(
                new: Float[Array, "Dx ..."], old: Float[Array, "Dx ..."]
            ) -> Float[Array, "Dx ..."]:
                return jnp.where(accepted.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

            return jax.tree.map(choose, (moved, after), (leaves, before)), jnp.mean(probability)

        start = {name: parameters.leaves[name] for name in names}
        keys = jax.random.split(key, 5)
        (leaves, _), acceptance = jax.lax.scan(step, (start, value(start)), keys)
        memory = parameters.memory.update(jnp.mean(acceptance), 0.3, adapting)
        return parameters._replace(leaves=parameters.leaves | leaves, memory=memory)

    def walked(self) -> list[str]:
        """The sampled leaves of the kernel, which have a row for each state dimension."""
        rows = self.model.state_dim
        sampled = self.model.leaves("sample").items()
        return [
            name
            for name, leaf in sampled
            if name.startswith("kernel.") and leaf.shape[:1] == (rows,)
        ]

    def regress(self, model: GPSSM, states: States, series: list[Series]) -> CollapsedRegression:
        """The regression of x_{t+1} − m on the gain A, over all transitions."""
        unit = self.model.process_variance  # Q°
        sums = transition_statistics(model, states, series)
        size = sums.gram.shape[-1]
        precision = sums.gram + unit[:, None, None] * jnp.eye(size, dtype=sums.gram.dtype)[None]
        inverse = inverse_root(precision)
        # rᵀ(I + AAᵀ/Q°)⁻¹r = rᵀr − |L⁻¹Aᵀr|²,  P = LLᵀ
        whitened = jnp.matmul(inverse, sums.cross[:, :, None])
        mean = jnp.matmul(inverse.mT, whitened)[:, :, 0]
        residual = sums.square - jnp.sum(whitened**2, (1, 2))
        log_root = jnp.sum(jnp.log(jnp.diagonal(inverse, axis1=-2, axis2=-1)), -1)
        log_det = -2 * log_root - size * jnp.log(unit)
        return CollapsedRegression(mean, precision, residual, log_det)

    def noise_given(self, regression: CollapsedRegression, series: list[Series]) -> InverseGamma:
        """Q_d | x, the weights integrated out."""
        prior = conjugate_prior(self.model, NOISE, InverseGamma)
        count = sum(len(experiment) for experiment in series)
        shape = jnp.broadcast_to(prior.shape + 0.5 * count, regression.residual.shape)
        return InverseGamma(shape, prior.scale + 0.5 * regression.residual)


def _log_prior_rows(prior: Prior, leaf: Float[Array, "Dx ..."]) -> Float[Array, " Dx"]:
    """Return the log density of each row of a leaf."""
    rows = jax.tree.map(lambda value: jnp.broadcast_to(value, leaf.shape), prior)
    return jax.vmap(lambda prior, row: prior.log_prob(row))(rows, leaf)
