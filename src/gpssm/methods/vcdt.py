"""`vcdt` (Ialongo et al. 2019) and its factorised form: conditioners with free parameters F, g, S
at every step.

    q(x, v) = q(v) q(x₀) Π_t q(x_{t+1} | ·)
    ELBO = Σ_t E log p(y_t | x_{t+1}) − Σ_t KL_t − KL[q(x₀) ‖ p(x₀)] − KL[q(v) ‖ p(v)]

F and S are diagonal. In `vcdt` states depend on the weights, which are drawn once per path: x_{t+1}
depends on f | v ~ N(f̄, B) with f̄ = m + A v,

    x_{t+1} | f ~ N(F_t f + g_t, S_t)
    KL_t = E_f KL[ N(F f + g, S) ‖ N(f, Q) ]
         = ½ { (S + ((F − 1) f̄ + g)² + (F − 1)² B) / Q − 1 + log Q/S }.

In `vcdt-factorised` the weights are integrated out at each step, f ~ N(f̄, Var f) with f̄ = m +
A·mean and Var f = B + A L Lᵀ Aᵀ: x_{t+1} has the same distribution, with V = S + F² Var f, but in
KL_t the f is independent of it, so that states and weights are independent,

    x_{t+1} ~ N(F_t f̄ + g_t, V_t)
    KL_t = E_f KL[ N(F f̄ + g, V) ‖ N(f, Q) ]
         = ½ { (V + ((F − 1) f̄ + g)² + Var f) / Q − 1 + log Q/V }.

For known weights, q(x_{t+1} | x_t) is the same. In the first part of its warm-up, `vcdt` maximises
the factorised bound, which has the same parameters. Deviations from the paper: all quantities start
from a linear fit, and F, g and S from its smoothing distribution instead of F = 1, g = 0, S = Q.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import BlockTridiagonal, block_cholesky
from gpssm.core.runtime import in_step
from gpssm.data.series import Series
from gpssm.inference.settings import real
from gpssm.inference.whitening import linearise, unstack
from gpssm.methods.variational import (
    Batch,
    Conditional,
    Function,
    FunctionMoments,
    RolloutSampler,
    StartLaw,
    VariationalPosterior,
    VariationalSettings,
    conditional,
    divergence_given_function,
    marginal,
)
from gpssm.model.target import weights_given_states


class Law(NamedTuple):
    """q(x_{t+1} | f) for T steps of P series; entries beyond the end of a series have no effect.

    F f + g is parameterised as F (f − function) + state + std · shift, so that a change of F does
    not move the mean path, and one step size suits states of any uncertainty.

    Parameters
    ----------
    slope, shift, log_std
        F_t, the scaled shift of the mean from its initial value, and log S_t^½.
    function, state, std
        f and x_{t+1} on the initial path, and the initial S_t^½; they are constant.
    """

    slope: Float[Array, "T P Dx"]
    shift: Float[Array, "T P Dx"]
    log_std: Float[Array, "T P Dx"]
    function: Float[Array, "T P Dx"]
    state: Float[Array, "T P Dx"]
    std: Float[Array, "T P Dx"]


def conditioned(parameters: Law, f: FunctionMoments, variance: Float[Array, "1 Dx"]) -> Conditional:
    """Return x_{t+1} ~ N(F f + g, S) for f ~ N(f̄, B):  KL_t = E_f KL[ N(F f + g, S) ‖ N(f, Q)
    ].
    """
    slope, shift, log_std, function, state, std = parameters
    f_mean, f_variance = f
    mean = slope * (f_mean - function) + state + std * shift
    noise = jnp.exp(2 * log_std)
    divergence = divergence_given_function(mean - f_mean, slope, noise, f_variance, variance)
    return mean, noise + slope**2 * f_variance, divergence


def independent(parameters: Law, f: FunctionMoments, variance: Float[Array, "1 Dx"]) -> Conditional:
    """Return x_{t+1} ~ N(F f̄ + g, V) with V = S + F² Var f:  KL_t = E_f KL[ N(F f̄ + g, V) ‖ N(f,
    Q) ].
    """
    mean, spread, _ = conditioned(parameters, f, variance)
    return mean, spread, divergence_given_function(mean - f[0], 0.0, spread, f[1], variance)


class VCDTFactorisedSampler(RolloutSampler):
    """The bound and the draws of `vcdt-factorised`; `paths` are q(x₀) and the law of the steps."""

    conditioner = staticmethod(independent)

    def paths(self, key: PRNGKeyArray, series: list[Series]) -> tuple[StartLaw, Law]:
        """Return the distribution of x_{t+1} given x_t and all later outputs, linearised at the
        start.

        Its precision is K_t = Q⁻¹ + the information of later rows, computed by eliminating states
        from the last one backwards. The best diagonal approximation is S = 1 / diag K and F = S /
        Q, and g is chosen such that the mean path is the initial states.
        """
        model = self.model
        path = jnp.concatenate(self.states)
        precision = linearise(model, path, series).precision(model)
        backward = BlockTridiagonal(precision.diagonal[::-1], precision.lower[::-1].mT)
        information = jnp.sum(block_cholesky(backward).diagonal[::-1] ** 2, -1)
        weights = weights_given_states(model, self.states, series).mean
        transition = model.transition()
        variance = model.process_variance[None]
        starts, steps = [], []
        for path, experiment, diagonal in zip(
            self.states, series, unstack(information, series), strict=True
        ):
            function = transition(path[:-1], jnp.asarray(experiment.u, path.dtype)).given(weights)
            std = diagonal[1:] ** -0.5
            rows = (std**2 / variance, jnp.zeros_like(std), jnp.log(std), function, path[1:], std)
            padding = ((0, max(self.lengths) - len(experiment)), (0, 0))
            steps.append([jnp.pad(part, padding) for part in rows])
            starts.append((path[0], -0.5 * jnp.log(diagonal[0])))
        parts = [jnp.stack(part, 1) for part in zip(*steps, strict=True)]
        start = StartLaw(*(jnp.stack(part) for part in zip(*starts, strict=True)))
        return start, Law(*parts)

    def law(self, q: VariationalPosterior, batch: Batch) -> tuple[StartLaw, Law]:
        """Return q(x₀) and the law of the steps, whose anchor is constant."""
        start, law = q.paths
        return start, Law(*law[:3], *map(jax.lax.stop_gradient, law[3:]))

    def function(self, q: VariationalPosterior, v: Float[Array, "Dx M"]) -> Function:
        """Return the function with the weights integrated out at each step."""
        return marginal(q.weights)


@dataclass(frozen=True)
class VCDTFactorised(VariationalSettings):
    """The factorised start of `vcdt`: its conditioners, with the weights integrated out."""

    sampler = VCDTFactorisedSampler

    num_warmup: int = 600
    learning_rate: float = 0.03


class VCDTSampler(VCDTFactorisedSampler):
    """The bound and the draws of `vcdt`."""

    function = RolloutSampler.function

    def bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series], iteration: Array
    ) -> Float[Array, ""]:
        """Return the factorised bound at first, then the bound with weights drawn once per path."""
        early = iteration < self.settings.factorised * self.settings.num_warmup
        return jax.lax.cond(
            in_step(early),
            lambda: super(VCDTSampler, self).bound(key, q, series, iteration),
            lambda: self.coupled_bound(key, q, series),
        )

    def coupled_bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series]
    ) -> Float[Array, ""]:
        """Return the bound with weights drawn once per sample, shared by all series."""
        weights_key, path_key = jax.random.split(key)
        v = q.weights.draw(weights_key, self.settings.num_samples)
        function = conditional(jnp.tile(v, (1, len(series), 1)))
        keys = jax.random.split(path_key)
        return self.estimate(keys, q, function, conditioned, self.batch(series))


@dataclass(frozen=True)
class VCDT(VCDTFactorised):
    """States that depend on the weights, by conditioners of free parameters at every step.

    Ialongo et al. (2019). `VariationalSettings` and `MethodSettings` have the other settings.

    Parameters
    ----------
    factorised
        The share of the warm-up that the factorised model has.
    """

    sampler = VCDTSampler

    factorised: float = real(0.3, lambda value: 0 <= value <= 1, "a share of the warm-up, 0 to 1")
