"""A Gaussian filter for all draws at once, by cubature: exact where the transition is linear.

    predict   m⁻ = mean_i f(p_i),   P⁻ = cov_i f(p_i) + diag mean_i (B + Q)(p_i)
    update    m = m⁻ + K (y − C m⁻ − d),   P = (I − K C) P⁻ (I − K C)ᵀ + K R Kᵀ,   K = P⁻Cᵀ (C P⁻ Cᵀ + R)⁻¹

The Gaussian N(m, P) is held as 2 Dx points p = m ± √Dx · (columns of P^½), which have its mean and covariance and are
those at which the next row needs f (Arasaratnam & Haykin 2009). Particles lose a state that outputs show late and
faintly, since nothing but chance keeps them near it; here the covariance remembers what is not known yet.

A plant may drift away from what it was in training, and its outputs then miss their forecasts by more than the model's
noises allow. The filter keeps count of that, over the last outputs or so:

    c_t = c_{t−1} + (e_t² / V_t − c_{t−1}) / MEMORY,   e_t = y_t − C m⁻ − d,   V_t = C P⁻ Cᵀ + R

is the *surprise*: about 1 while the model holds. A forecast weighs the variances as learned against all of them times
c_t, by the likelihood of the errors under each and odds of 1 to `ODDS` beforehand:

    s = 1 + w (c_t − 1),   w / (1 − w) = exp(½ n (c_t − 1 − log c_t)) / ODDS   if c_t > 1, else s = 1

with n = 2 MEMORY − 1 the number of errors that an average with this memory is worth. Scaling all variances alike
(the variance learning of West & Harrison 1997, 10.8) leaves the gain K and so all means as they are. They are never
made smaller: calm is no proof of a better model.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.ensemble import Ensemble
from gpssm.likelihoods import observed
from gpssm.linalg import log_normal, root_semidefinite

MEMORY = 30.0  # outputs over which misses are averaged; a forecast looks about as far ahead
ODDS = 20.0  # against a model that no longer holds


def points(mean: Float[Array, "*S Dx"], covariance: Float[Array, "*S Dx Dx"]) -> Float[Array, "*S 2Dx Dx"]:
    """2 Dx points with this mean and covariance."""
    spread = jnp.sqrt(mean.shape[-1]) * root_semidefinite(covariance).mT
    return mean[..., None, :] + jnp.concatenate([spread, -spread], -2)


def noise_scale(surprise: Float[Array, " S"]) -> Float[Array, " S"]:
    """s, what the last outputs say the variances of a forecast should be multiplied by."""
    excess = jnp.maximum(surprise, 1.0) - 1
    log_odds = 0.5 * (2 * MEMORY - 1) * (excess - jnp.log1p(excess)) - jnp.log(ODDS)
    return 1 + jax.nn.sigmoid(log_odds) * excess


def draw_states(keys: PRNGKeyArray, cloud: Float[Array, "S N Dx"], scale: Float[Array, " S"]) -> Float[Array, "S P Dx"]:
    """x ~ N(m, s P) for each key (S, P): m + √s Σ_i ε_i (p_i − m) / √N has the points' covariance, scaled."""
    mean = jnp.mean(cloud, 1, keepdims=True)
    gaps = jnp.sqrt(scale / cloud.shape[1])[:, None, None] * (cloud - mean)
    normal = jax.vmap(jax.vmap(lambda key: jax.random.normal(key, cloud.shape[1:2], cloud.dtype)))(keys)
    return mean + jnp.matmul(normal, gaps)


def advance(
    ensemble: Ensemble,
    cloud: Float[Array, "S N Dx"],
    surprise: Float[Array, " S"],
    u: Float[Array, " Du"],
    y: Float[Array, " Dy"],
) -> tuple[Float[Array, "S N Dx"], Float[Array, " S"], Float[Array, " S"]]:
    """The points one row later, the surprise there, and log p(y_t | y_<t) of each draw by the variances as learned."""
    moments = ensemble.moments(cloud, jnp.broadcast_to(u, (*cloud.shape[:2], *u.shape)))
    mean = jnp.mean(moments.mean, 1)
    gaps = moments.mean - mean[:, None]
    noise = jnp.mean(moments.variance, 1)
    covariance = jnp.matmul(gaps.mT, gaps) / cloud.shape[1] + noise[:, :, None] * jnp.eye(mean.shape[1])[None]
    mean, covariance, surprise, log_density = jax.vmap(_update, in_axes=(0, 0, 0, 0, None))(
        mean, covariance, surprise, ensemble.likelihood, observed(y)
    )
    return points(mean, covariance), surprise, log_density


def _update(
    mean: Float[Array, " Dx"],
    covariance: Float[Array, "Dx Dx"],
    surprise: Float[Array, ""],
    likelihood: Any,
    output: tuple[Float[Array, " Dy"], Bool[Array, " Dy"]],
) -> tuple[Float[Array, " Dx"], Float[Array, "Dx Dx"], Float[Array, ""], Float[Array, ""]]:
    """One output after the other, since their noises are independent; those that are missing change nothing.

    The likelihood is a `Gaussian`.
    """

    def one(carry: tuple[Array, ...], row: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        mean, covariance, surprise, log_density = carry
        c, d, noise, y, present = row
        across = covariance @ c
        variance = c @ across + noise
        gain = present * across / variance
        error = y - c @ mean - d
        keep = jnp.eye(len(c)) - jnp.outer(gain, c)
        covariance = keep @ covariance @ keep.T + noise * jnp.outer(gain, gain)
        surprise += present * (error**2 / variance - surprise) / MEMORY
        log_density += jnp.where(present, log_normal(error, 0.0, variance), 0.0)
        return (mean + gain * error, covariance, surprise, log_density), None

    noise = jnp.exp(2 * likelihood.log_std)
    start = (mean, covariance, surprise, jnp.zeros((), mean.dtype))
    rows = (likelihood.C, likelihood.d, noise, *output)
    (mean, covariance, surprise, log_density), _ = jax.lax.scan(one, start, rows)
    return mean, covariance, surprise, log_density
