"""A Gaussian filter for all draws at once, by cubature: exact where the transition is linear.

    predict   m⁻ = mean_i f(p_i),   P⁻ = cov_i f(p_i) + diag mean_i (B + Q)(p_i)
    update    m = m⁻ + K (y − C m⁻ − d),   P = (I − K C) P⁻ (I − K C)ᵀ + K R Kᵀ,   K = P⁻Cᵀ (C P⁻ Cᵀ + R)⁻¹

The Gaussian N(m, P) is held as 2 Dx points p = m ± √Dx · (columns of P^½), which have its mean and covariance and are
those at which the next row needs f (Arasaratnam & Haykin 2009). Particles lose a state that outputs show late and
faintly, since nothing but chance keeps them near it; here the covariance remembers what is not known yet.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.ensemble import Ensemble
from gpssm.likelihoods import observed
from gpssm.linalg import log_normal, root_semidefinite


def points(mean: Float[Array, "*S Dx"], covariance: Float[Array, "*S Dx Dx"]) -> Float[Array, "*S 2Dx Dx"]:
    """2 Dx points with this mean and covariance."""
    spread = jnp.sqrt(mean.shape[-1]) * root_semidefinite(covariance).mT
    return mean[..., None, :] + jnp.concatenate([spread, -spread], -2)


def draw_states(keys: PRNGKeyArray, cloud: Float[Array, "S N Dx"]) -> Float[Array, "S P Dx"]:
    """x ~ N(m, P) for each key (S, P): m + Σ_i ε_i (p_i − m) / √N has the points' covariance."""
    mean = jnp.mean(cloud, 1, keepdims=True)
    gaps = (cloud - mean) / jnp.sqrt(cloud.shape[1])
    normal = jax.vmap(jax.vmap(lambda key: jax.random.normal(key, cloud.shape[1:2], cloud.dtype)))(keys)
    return mean + jnp.matmul(normal, gaps)


def advance(
    ensemble: Ensemble, cloud: Float[Array, "S N Dx"], u: Float[Array, " Du"], y: Float[Array, " Dy"]
) -> tuple[Float[Array, "S N Dx"], Float[Array, " S"]]:
    """The points one row later, and log p(y_t | y_<t) of each draw."""
    moments = ensemble.moments(cloud, jnp.broadcast_to(u, (*cloud.shape[:2], *u.shape)))
    mean = jnp.mean(moments.mean, 1)
    gaps = moments.mean - mean[:, None]
    noise = jnp.mean(moments.variance, 1)
    covariance = jnp.matmul(gaps.mT, gaps) / cloud.shape[1] + noise[:, :, None] * jnp.eye(mean.shape[1])[None]
    mean, covariance, log_density = jax.vmap(_update, in_axes=(0, 0, 0, None))(
        mean, covariance, ensemble.likelihood, observed(y)
    )
    return points(mean, covariance), log_density


def _update(
    mean: Float[Array, " Dx"],
    covariance: Float[Array, "Dx Dx"],
    likelihood: Any,
    output: tuple[Float[Array, " Dy"], Bool[Array, " Dy"]],
) -> tuple[Float[Array, " Dx"], Float[Array, "Dx Dx"], Float[Array, ""]]:
    """One output after the other, since their noises are independent; those that are missing change nothing.

    The likelihood is a `Gaussian`.
    """

    def one(carry: tuple[Array, Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array, Array], None]:
        mean, covariance, log_density = carry
        c, d, noise, y, present = row
        across = covariance @ c
        variance = c @ across + noise
        gain = present * across / variance
        expected = c @ mean + d
        keep = jnp.eye(len(c)) - jnp.outer(gain, c)
        covariance = keep @ covariance @ keep.T + noise * jnp.outer(gain, gain)
        log_density += jnp.where(present, log_normal(y, expected, variance), 0.0)
        return (mean + gain * (y - expected), covariance, log_density), None

    noise = jnp.exp(2 * likelihood.log_std)
    start = (mean, covariance, jnp.zeros((), mean.dtype))
    return jax.lax.scan(one, start, (likelihood.C, likelihood.d, noise, *output))[0]
