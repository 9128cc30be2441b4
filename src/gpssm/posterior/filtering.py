"""Filters for all draws at once: where the state is, given new outputs and each draw as it was learned.

    x_{t+1} ~ N(m(z_t) + A(z_t) v, B(z_t) + Q),    y_t ~ p(y | x_{t+1}),    z_t = [x_t; u_t]

Weights v and parameters belong to a draw and stay. The state of a draw is a *cloud*: particles, or points that stand
for a Gaussian. Every random number comes from (seed, draw, row), so that a series may arrive in any pieces, one row at
a time too.

**Particles** are exact in the limit of many and take any likelihood. With a linear-Gaussian emission they are fully
adapted: chosen by p(y_t | x_t) and moved by p(x_{t+1} | x_t, y_t), both in closed form; otherwise they move by the
transition and are weighed by p(y_t | x_{t+1}).

**The Gaussian filter**, by cubature, is for linear-Gaussian emissions, and exact where the transition is linear:

    predict   m⁻ = mean_i f(p_i),   P⁻ = cov_i f(p_i) + diag mean_i (B + Q)(p_i)
    update    m = m⁻ + K (y − C m⁻ − d),   P = (I − K C) P⁻ (I − K C)ᵀ + K R Kᵀ,   K = P⁻Cᵀ (C P⁻ Cᵀ + R)⁻¹

The Gaussian N(m, P) is held as 2 Dx points p = m ± √Dx · (columns of P^½), which have its mean and covariance and are
those at which the next row needs f (Arasaratnam & Haykin 2009). Particles lose a state that outputs show late and
faintly, since nothing but chance keeps them near it; here the covariance remembers what is not known yet.

**Surprise.** A plant may drift away from what it was in training, and its outputs then miss their forecasts by more
than the model's noises allow. The Gaussian filter keeps count of that, over the last outputs or so:

    c_t = c_{t−1} + (e_t² / V_t − c_{t−1}) / MEMORY,   e_t = y_t − C m⁻ − d,   V_t = C P⁻ Cᵀ + R

is about 1 while the model holds. A forecast weighs the variances as learned against all of them times c_t, by the
likelihood of the errors under each and odds of 1 to `ODDS` beforehand:

    s = 1 + w (c_t − 1),   w / (1 − w) = exp(½ n (c_t − 1 − log c_t)) / ODDS   if c_t > 1, else s = 1

with n = 2 MEMORY − 1 the number of errors that an average with this memory is worth. Scaling all variances alike
(the variance learning of West & Harrison 1997, 10.8) leaves the gain K and so all means as they are. They are never
made smaller: calm is no proof of a better model.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal, root_semidefinite
from gpssm.core.runtime import jit
from gpssm.data.series import Series
from gpssm.inference import csmc
from gpssm.model.likelihoods import Gaussian, Likelihood, observed
from gpssm.model.types import FeynmanKac
from gpssm.posterior.rollout import (
    Box,
    Ensemble,
    Members,
    Paths,
    assemble,
    choose_particles,
    run_paths,
)

MEMORY = 30.0  # outputs over which misses are averaged; a forecast looks about as far ahead
ODDS = 20.0  # against a model that no longer holds
RESAMPLE_BELOW = 0.5  # effective particles, as a share of all


class CurrentStates(NamedTuple):
    """The `CurrentState` of S draws for compiled code: one axis in place of (chain, draw).

    The number of rows is an array, data too: the next row must not compile again.
    """

    particles: Float[Array, "S N Dx"]
    log_weights: Float[Array, "S N"]
    rows: Int[Array, ""]
    surprise: Float[Array, " S"]


class Filtered(NamedTuple):
    """What a filter found along T rows."""

    cloud: CurrentStates
    log_density: Float[Array, "S T"]  # log p(y_t | y_<t)
    means: Float[Array, "S T Dx"]  # E[x_{t+1} | y_≤t]


@jit
def run_filter(
    members: Members, keys: PRNGKeyArray, cloud: CurrentStates, series: Series, gaussian: bool
) -> Filtered:
    """The cloud after the rows of a scaled series, from the cloud before them; one key (S,) a draw."""
    ensemble = assemble(*members, series.input_dim)

    def step(
        cloud: CurrentStates, row: tuple[Array, Array]
    ) -> tuple[CurrentStates, tuple[Array, Array]]:
        cloud, log_density = advance(ensemble, keys, cloud, *row, gaussian)
        mean = jnp.sum(jnp.exp(cloud.log_weights)[:, :, None] * cloud.particles, 1)
        return cloud, (log_density, mean)

    cloud, (log_density, means) = jax.lax.scan(
        step, cloud, (jnp.asarray(series.u), jnp.asarray(series.y))
    )
    return Filtered(cloud, log_density.T, jnp.swapaxes(means, 0, 1))


@jit
def run_predictions(
    members: Members,
    keys: PRNGKeyArray,
    cloud: CurrentStates,
    series: Series,
    steps: int,
    path_keys: PRNGKeyArray,
    slots: Int[Array, " N"],
    box: Box | None,
    noise: bool,
    gaussian: bool,
) -> Paths:
    """Every row of a scaled series given those up to `steps` rows before it, from the cloud before the series.

    From each filtered cloud, paths are run `steps` rows ahead, of which the last is kept; the first `steps` rows come
    from the cloud at the start. `keys` is (S,) and `path_keys` (S, P); for `slots`, `box` and `noise` see `run_paths`.
    """
    ensemble = assemble(*members, series.input_dim)
    u, y = jnp.asarray(series.u), jnp.asarray(series.y)

    def ahead(cloud: CurrentStates, u: Float[Array, "H Du"]) -> Paths:
        now = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(path_keys, cloud.rows)
        scale = noise_scale(cloud.surprise)
        start = choose_particles(now, cloud.particles, cloud.log_weights, scale, gaussian)
        return run_paths(ensemble.scaled(scale), start, u, now, slots, box, noise)

    def step(cloud: CurrentStates, row: tuple[Array, Array]) -> tuple[CurrentStates, Paths]:
        window, outputs = row
        last = jax.tree.map(lambda leaf: leaf[-1], ahead(cloud, window))
        return advance(ensemble, keys, cloud, window[0], outputs, gaussian)[0], last

    origins = u.shape[0] - steps + 1
    windows = u[jnp.arange(origins)[:, None] + jnp.arange(steps)[None]]
    _, predicted = jax.lax.scan(step, cloud, (windows, y[:origins]))
    if steps == 1:
        return predicted
    return jax.tree.map(
        lambda *parts: jnp.concatenate(parts), ahead(cloud, u[: steps - 1]), predicted
    )


def advance(
    ensemble: Ensemble,
    keys: PRNGKeyArray,
    cloud: CurrentStates,
    u: Float[Array, " Du"],
    y: Float[Array, " Dy"],
    gaussian: bool,
) -> tuple[CurrentStates, Float[Array, " S"]]:
    """The cloud one row later, and log p(y_t | y_<t) of each draw."""
    if gaussian:
        moved, surprise, log_density = _advance_gaussian(
            ensemble, cloud.particles, cloud.surprise, u, y
        )
        return cloud._replace(particles=moved, surprise=surprise, rows=cloud.rows + 1), log_density
    count, number = cloud.log_weights.shape
    moments = ensemble.moments(cloud.particles, jnp.broadcast_to(u, (count, number, *u.shape)))

    def one(
        key: PRNGKeyArray, likelihood: Likelihood, mean: Array, variance: Array, log_weights: Array
    ) -> Any:
        return _move(
            jax.random.fold_in(key, cloud.rows),
            _guide(likelihood, mean, variance, y),
            mean,
            log_weights,
        )

    particles, log_weights, log_density = eqx.filter_vmap(one)(
        keys, ensemble.likelihood, moments.mean, moments.variance, cloud.log_weights
    )
    return CurrentStates(particles, log_weights, cloud.rows + 1, cloud.surprise), log_density


def _advance_gaussian(
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
    covariance = (
        jnp.matmul(gaps.mT, gaps) / cloud.shape[1]
        + noise[:, :, None] * jnp.eye(mean.shape[1])[None]
    )
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


def points(
    mean: Float[Array, "*S Dx"], covariance: Float[Array, "*S Dx Dx"]
) -> Float[Array, "*S 2Dx Dx"]:
    """2 Dx points with this mean and covariance."""
    spread = jnp.sqrt(mean.shape[-1]) * root_semidefinite(covariance).mT
    return mean[..., None, :] + jnp.concatenate([spread, -spread], -2)


@jax.jit
def noise_scale(surprise: Float[Array, " S"]) -> Float[Array, " S"]:
    """s, what the last outputs say the variances of a forecast should be multiplied by."""
    excess = jnp.maximum(surprise, 1.0) - 1
    log_odds = 0.5 * (2 * MEMORY - 1) * (excess - jnp.log1p(excess)) - jnp.log(ODDS)
    return 1 + jax.nn.sigmoid(log_odds) * excess


def _guide(
    likelihood: Likelihood,
    mean: Float[Array, "N Dx"],
    variance: Float[Array, "N Dx"],
    y: Float[Array, " Dy"],
) -> csmc.Guide:
    """The best proposal there is for one row, of which the moves' mean and variance are known already."""

    def log_potential(
        t: Array, x: Float[Array, "N Dx"], following: Float[Array, "N Dx"]
    ) -> Float[Array, " N"]:
        return likelihood.log_prob(following, jnp.broadcast_to(y, (following.shape[0], *y.shape)))

    form = FeynmanKac(lambda t, x: (mean, variance), log_potential)
    if not isinstance(likelihood, Gaussian):
        return csmc.bootstrap(form)
    noise = jnp.exp(2 * likelihood.log_std)
    return csmc.locally_optimal(
        form, csmc.GaussianEmission(likelihood.C, likelihood.d, noise, *observed(y[None]))
    )


def _move(
    key: PRNGKeyArray,
    guide: csmc.Guide,
    mean: Float[Array, "N Dx"],
    log_weights: Float[Array, " N"],
) -> tuple[Float[Array, "N Dx"], Float[Array, " N"], Float[Array, ""]]:
    """Choose parents by what is known ahead, move them, weigh the rest: the particles, their weights, log p(y_t)."""
    choice_key, noise_key = jax.random.split(key)
    now = jnp.asarray(0)
    proposal = guide.propose(now, mean)
    log_weights, ahead = _normalise(log_weights + proposal.log_ahead)
    parents, log_weights = _renew(choice_key, log_weights)
    noise = jax.random.normal(noise_key, mean.shape, mean.dtype)
    moved = (
        proposal.mean[parents] + jnp.matmul(proposal.factor[parents], noise[:, :, None])[:, :, 0]
    )
    log_weights, rest = _normalise(log_weights + guide.log_weight(now, mean, moved))
    return moved, log_weights, ahead + rest


def _normalise(log_weights: Float[Array, " N"]) -> tuple[Float[Array, " N"], Float[Array, ""]]:
    """Weights that add up to 1, and the log of what they added up to: −∞ where no particle explains the output.

    Such a draw goes on with equal weights: it may come back, and must not spoil the others.
    """
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    total = logsumexp(log_weights)
    equal = jnp.full_like(log_weights, -jnp.log(log_weights.shape[0]))
    return jnp.where(jnp.isfinite(total), log_weights - total, equal), total


def _renew(
    key: PRNGKeyArray, log_weights: Float[Array, " N"]
) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Parents and weights of the next particles: resampled if few effective ones, 1/Σw², are left, else as they are.

    Systematic resampling: particle i is chosen N·w_i times, rounded up or down, with the right mean.
    """
    number = log_weights.shape[0]
    few = jnp.exp(-logsumexp(2 * log_weights)) < RESAMPLE_BELOW * number
    cumulative = jnp.cumsum(jnp.exp(log_weights))
    places = (jnp.arange(number) + jax.random.uniform(key, dtype=log_weights.dtype)) / number
    found = jnp.searchsorted(cumulative, places * cumulative[-1], side="right")
    parents = jnp.where(few, jnp.minimum(found, number - 1), jnp.arange(number))
    return parents, jnp.where(few, -jnp.log(number), log_weights)
