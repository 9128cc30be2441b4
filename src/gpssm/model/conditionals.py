"""Exact conditionals of the noises and of the linear-Gaussian emission given the states: the Gibbs
steps.

They are conjugate if the prior of the leaf is `InverseGamma` (noise variances) or `Normal` (C and
d), which are the defaults. The priors of C and d are independent of R, so the emission is drawn in
two steps: (C, d) given R, then R given (C, d). A prior tied to R would shrink C towards zero
whenever the noise is small.
"""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.core.linalg import inverse_root, solve_positive
from gpssm.data.padding import num_moves
from gpssm.data.series import as_list
from gpssm.model.likelihoods import Gaussian, observed
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal, Prior
from gpssm.model.target import pairs, transition_statistics
from gpssm.model.types import Data, GaussianWeights, States

P = TypeVar("P", bound=Prior)


def process_noise_given(
    model: GPSSM, states: States, weights: Float[Array, "Dx M"], series: Data
) -> InverseGamma:
    """Q_d | x, v ~ InverseGamma(a + T/2, b + ½ Σ_t (x_{t+1,d} − m_d − A_d·v_d)² + ½ Σ_t B_d(z_t)).

    The sum of squares is rᵀr − 2vᵀAᵀr + vᵀAᵀA v, computed from the same sums over time as the
    distribution of the weights.
    """
    prior = conjugate_prior(model, "log_process_std", InverseGamma)
    sums = transition_statistics(model, states, series)
    product = jnp.matmul(sums.gram, weights[:, :, None])[:, :, 0] - 2 * sums.cross
    square = jnp.maximum(sums.square + jnp.sum(weights * product, -1), 0.0)
    count = num_moves(as_list(series))
    scale = prior.scale + 0.5 * (square + sums.residual)
    return InverseGamma(jnp.broadcast_to(prior.shape + 0.5 * count, scale.shape), scale)


def emission_given_noise(model: GPSSM, states: States, series: Data) -> GaussianWeights:
    """[C_j, d_j] | R, x, y ~ N(Λ_j⁻¹ h_j, Λ_j⁻¹) over the rows where output j was observed:

    Λ_j = V_j⁻¹ + Σ_t [x; 1][x; 1]ᵀ / R_j,   h_j = V_j⁻¹ m_j + Σ_t [x; 1] y_tj / R_j.
    """
    likelihood = _gaussian(model)
    prior_mean, prior_std = _emission_prior(model, likelihood)
    features, y, present = _regression(states, series)
    weight = present / jnp.exp(2 * likelihood.log_std)[None]
    gram = jnp.einsum("tj,ta,tb->jab", weight, features, features)
    precision = gram + jax.vmap(jnp.diag)(prior_std**-2)
    right = jnp.matmul((weight * y).T, features) + prior_mean * prior_std**-2
    return GaussianWeights(solve_positive(precision, right), precision)


def noise_given_emission(model: GPSSM, states: States, series: Data) -> InverseGamma:
    """R_j | C, d, x, y ~ InverseGamma(a + n_j/2, b + ½ Σ_t (y_tj − C_j x_{t+1} − d_j)²) over the
    n_j observed rows.
    """
    likelihood, prior = _gaussian(model), conjugate_prior(model, "likelihood.log_std", InverseGamma)
    features, y, present = _regression(states, series)
    emission = jnp.concatenate([likelihood.C, likelihood.d[:, None]], -1)
    error = jnp.where(present, y - jnp.matmul(features, emission.T), 0.0)
    return InverseGamma(
        prior.shape + 0.5 * jnp.sum(present, 0), prior.scale + 0.5 * jnp.sum(error**2, 0)
    )


def draw_noise(key: PRNGKeyArray, conditional: InverseGamma) -> Float[Array, " D"]:
    """Draw log σ with σ² ~ InverseGamma(shape, scale)."""
    variate = gamma(key, conditional.shape.astype(conditional.scale.dtype))
    return 0.5 * (jnp.log(conditional.scale) - jnp.log(variate))


def draw_noises(
    key: PRNGKeyArray, conditionals: dict[str, InverseGamma]
) -> dict[str, Float[Array, " D"]]:
    """Draw log σ for several conditionals in one call, as gamma variates are slow to compile."""
    shape, unravel = ravel_pytree({name: law.shape for name, law in conditionals.items()})
    scale, _ = ravel_pytree({name: law.scale for name, law in conditionals.items()})
    return unravel(draw_noise(key, InverseGamma(shape, scale)))


def draw_gaussian(key: PRNGKeyArray, conditional: GaussianWeights) -> Float[Array, "D M"]:
    """Draw mean + L⁻ᵀε for each row, with precision = LLᵀ."""
    inverse = inverse_root(conditional.precision)
    noise = normal(key, conditional.mean.shape, conditional.mean.dtype)
    return conditional.mean + jnp.matmul(inverse.mT, noise[:, :, None])[:, :, 0]


def _regression(
    states: States, series: Data
) -> tuple[Float[Array, "N Dx+1"], Float[Array, "N Dy"], Float[Array, "N Dy"]]:
    """Return [x; 1], y with zeros for missing entries, and the mask of observed entries."""
    paths = [
        (path[1:], *observed(jnp.asarray(rows.y, path.dtype)))
        for path, rows in pairs(states, series)
    ]
    x, y, present = map(jnp.concatenate, zip(*paths, strict=True))
    features = jnp.concatenate([x, jnp.ones((x.shape[0], 1), x.dtype)], -1)
    return features, y, present.astype(x.dtype)


def _emission_prior(
    model: GPSSM, likelihood: Gaussian
) -> tuple[Float[Array, "Dy Dx+1"], Float[Array, "Dy Dx+1"]]:
    """Return the mean and standard deviation of [C, d] under the priors of the model."""
    C, d = (conjugate_prior(model, name, Normal) for name in ("likelihood.C", "likelihood.d"))
    wide, tall = likelihood.C.shape, (*likelihood.d.shape, 1)

    def join(left: Array, right: Array) -> Array:
        column = jnp.broadcast_to(jnp.broadcast_to(right, likelihood.d.shape)[:, None], tall)
        return jnp.concatenate([jnp.broadcast_to(left, wide), column], -1)

    return join(C.mean, d.mean), join(C.std, d.std)


def _gaussian(model: GPSSM) -> Gaussian:
    if not isinstance(model.likelihood, Gaussian):
        raise TypeError(
            "Only a linear-Gaussian emission can be drawn exactly, not "
            f"{type(model.likelihood).__name__}."
        )
    return model.likelihood


def conjugate_prior(model: GPSSM, name: str, kind: type[P]) -> P:
    """Return the prior of a leaf if it is conjugate; otherwise raise an error."""
    prior = model.priors[name]
    if not isinstance(prior, kind):
        raise TypeError(
            f"The exact draw of {name} needs a prior of type {kind.__name__}, got "
            f"{type(prior).__name__}: replace it with model.with_priors, or give the leaf the role "
            "'optimise' or 'fix'."
        )
    return prior


def normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, "..."]:
    """Draw independent N(0, 1) variates as one row."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def gamma(key: PRNGKeyArray, shape: Float[Array, " n"]) -> Float[Array, " n"]:
    """Draw Gamma(α, 1) for all α > 0 by rejection in one loop (Marsaglia & Tsang 2000).

    With d = α + ⅔, v = (1 + z / √(9d))³ and z ~ N(0, 1), accepted if v > 0 and log u < ½z² + d (1 −
    v + log v), d v is Gamma(α + 1), and u^{1/α} times that is Gamma(α). At most one in twenty is
    rejected.
    """
    d = shape + 2 / 3

    def propose(
        state: tuple[PRNGKeyArray, Bool[Array, " n"], Array],
    ) -> tuple[PRNGKeyArray, Array, Array]:
        key, rejected, v = state
        key, normal_key, uniform_key = jax.random.split(key, 3)
        z = jax.random.normal(normal_key, shape.shape, shape.dtype)
        v = jnp.where(rejected, (1 + z / jnp.sqrt(9 * d)) ** 3, v)
        log_u = jnp.log(jax.random.uniform(uniform_key, shape.shape, shape.dtype))
        return key, rejected & ((v <= 0) | (log_u >= 0.5 * z**2 + d * (1 - v + jnp.log(v)))), v

    begin = (key, jnp.ones(shape.shape, bool), jnp.ones_like(shape))
    key, _, v = jax.lax.while_loop(lambda state: jnp.any(state[1]), propose, begin)
    u = 1 - jax.random.uniform(key, shape.shape, shape.dtype)  # never zero
    return d * v * u ** (1 / shape)
