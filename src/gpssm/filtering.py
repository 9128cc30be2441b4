"""Filters for all draws at once: where the state is, given new outputs and each draw as it was learned.

    x_{t+1} ~ N(m(z_t) + A(z_t) v, B(z_t) + Q),    y_t ~ p(y | x_{t+1}),    z_t = [x_t; u_t]

Weights v and parameters belong to a draw and stay. The filter is the Gaussian one of `cubature.py`, or of particles,
which are exact in the limit of many and take any likelihood. With a linear-Gaussian emission these are fully adapted:
chosen by p(y_t | x_t) and moved by p(x_{t+1} | x_t, y_t), both in closed form; otherwise they move by
the transition and weighed by p(y_t | x_{t+1}). Every random number comes from (seed, draw, row), so that a series may
arrive in any pieces, one row at a time too.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm import cubature
from gpssm.ensemble import Ensemble, assemble
from gpssm.likelihoods import Gaussian, Likelihood, observed
from gpssm.model import GPSSM
from gpssm.moves import csmc
from gpssm.rollout import Box, Paths, choose_particles, run_paths
from gpssm.series import Series
from gpssm.types import FeynmanKac

RESAMPLE_BELOW = 0.5  # effective particles, as a share of all


class Members(NamedTuple):
    """S draws with the model they belong to: each array of `weights` and `leaves` has a leading axis S."""

    model: GPSSM
    weights: Float[Array, "S Dx M"]
    leaves: dict[str, Array]


class FlatCloud(NamedTuple):
    """A `Cloud` with one axis S in place of (chain, draw), and the number of rows as an array."""

    particles: Float[Array, "S N Dx"]
    log_weights: Float[Array, "S N"]
    rows: Int[Array, ""]
    surprise: Float[Array, " S"]


class Filtered(NamedTuple):
    """What a filter found along T rows."""

    cloud: FlatCloud
    log_density: Float[Array, "S T"]  # log p(y_t | y_<t)
    means: Float[Array, "S T Dx"]  # E[x_{t+1} | y_≤t]


@eqx.filter_jit
def run_filter(members: Members, keys: PRNGKeyArray, cloud: FlatCloud, series: Series, gaussian: bool) -> Filtered:
    """The cloud after the rows of a scaled series, from the cloud before them; one key (S,) a draw."""
    ensemble = assemble(*members, series.input_dim)

    def step(cloud: FlatCloud, row: tuple[Array, Array]) -> tuple[FlatCloud, tuple[Array, Array]]:
        cloud, log_density = advance(ensemble, keys, cloud, *row, gaussian)
        return cloud, (log_density, _mean(cloud))

    cloud, (log_density, means) = jax.lax.scan(step, cloud, (jnp.asarray(series.u), jnp.asarray(series.y)))
    return Filtered(cloud, log_density.T, jnp.swapaxes(means, 0, 1))


@eqx.filter_jit
def run_predictions(
    members: Members,
    keys: PRNGKeyArray,
    cloud: FlatCloud,
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

    def ahead(cloud: FlatCloud, u: Float[Array, "H Du"]) -> Paths:
        now = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(path_keys, cloud.rows)
        scale = cubature.noise_scale(cloud.surprise)
        start = choose_particles(now, cloud.particles, cloud.log_weights, scale, gaussian)
        return run_paths(ensemble.scaled(scale), start, u, now, slots, box, noise)

    def step(cloud: FlatCloud, row: tuple[Array, Array]) -> tuple[FlatCloud, Paths]:
        window, outputs = row
        last = jax.tree.map(lambda leaf: leaf[-1], ahead(cloud, window))
        return advance(ensemble, keys, cloud, window[0], outputs, gaussian)[0], last

    origins = u.shape[0] - steps + 1
    windows = u[jnp.arange(origins)[:, None] + jnp.arange(steps)[None]]
    _, predicted = jax.lax.scan(step, cloud, (windows, y[:origins]))
    if steps == 1:
        return predicted
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), ahead(cloud, u[: steps - 1]), predicted)


def advance(
    ensemble: Ensemble,
    keys: PRNGKeyArray,
    cloud: FlatCloud,
    u: Float[Array, " Du"],
    y: Float[Array, " Dy"],
    gaussian: bool,
) -> tuple[FlatCloud, Float[Array, " S"]]:
    """The cloud one row later, and log p(y_t | y_<t) of each draw."""
    if gaussian:
        moved, surprise, log_density = cubature.advance(ensemble, cloud.particles, cloud.surprise, u, y)
        return cloud._replace(particles=moved, surprise=surprise, rows=cloud.rows + 1), log_density
    count, number = cloud.log_weights.shape
    moments = ensemble.moments(cloud.particles, jnp.broadcast_to(u, (count, number, *u.shape)))

    def one(key: PRNGKeyArray, likelihood: Likelihood, mean: Array, variance: Array, log_weights: Array) -> Any:
        return _move(jax.random.fold_in(key, cloud.rows), _guide(likelihood, mean, variance, y), mean, log_weights)

    particles, log_weights, log_density = eqx.filter_vmap(one)(
        keys, ensemble.likelihood, moments.mean, moments.variance, cloud.log_weights
    )
    return FlatCloud(particles, log_weights, cloud.rows + 1, cloud.surprise), log_density


def _guide(
    likelihood: Likelihood, mean: Float[Array, "N Dx"], variance: Float[Array, "N Dx"], y: Float[Array, " Dy"]
) -> csmc.Guide:
    """The best proposal there is for one row, of which the moves' mean and variance are known already."""

    def log_potential(t: Array, x: Float[Array, "N Dx"], following: Float[Array, "N Dx"]) -> Float[Array, " N"]:
        return likelihood.log_prob(following, jnp.broadcast_to(y, (following.shape[0], *y.shape)))

    form = FeynmanKac(lambda t, x: (mean, variance), log_potential)
    if not isinstance(likelihood, Gaussian):
        return csmc.bootstrap(form)
    noise = jnp.exp(2 * likelihood.log_std)
    return csmc.locally_optimal(form, csmc.Emission(likelihood.C, likelihood.d, noise, *observed(y[None])))


def _move(
    key: PRNGKeyArray, guide: csmc.Guide, mean: Float[Array, "N Dx"], log_weights: Float[Array, " N"]
) -> tuple[Float[Array, "N Dx"], Float[Array, " N"], Float[Array, ""]]:
    """Choose parents by what is known ahead, move them, weigh the rest: the particles, their weights, log p(y_t)."""
    choice_key, noise_key = jax.random.split(key)
    now = jnp.asarray(0)
    proposal = guide.propose(now, mean)
    log_weights, ahead = _normalise(log_weights + proposal.log_ahead)
    parents, log_weights = _renew(choice_key, log_weights)
    noise = jax.random.normal(noise_key, mean.shape, mean.dtype)
    moved = proposal.mean[parents] + jnp.matmul(proposal.factor[parents], noise[:, :, None])[:, :, 0]
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


def _renew(key: PRNGKeyArray, log_weights: Float[Array, " N"]) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Parents and weights of the next particles: resampled if few effective ones, 1/Σw², are left, else as they are."""
    number = log_weights.shape[0]
    few = jnp.exp(-logsumexp(2 * log_weights)) < RESAMPLE_BELOW * number
    parents = jnp.where(few, _choose(key, log_weights, number), jnp.arange(number))
    return parents, jnp.where(few, -jnp.log(number), log_weights)


def _choose(key: PRNGKeyArray, log_weights: Float[Array, " N"], number: int) -> Int[Array, " number"]:
    """Systematic resampling: particle i is chosen number·w_i times, rounded up or down, with the right mean."""
    cumulative = jnp.cumsum(jnp.exp(log_weights))
    points = (jnp.arange(number) + jax.random.uniform(key, dtype=log_weights.dtype)) / number
    found = jnp.searchsorted(cumulative, points * cumulative[-1], side="right")
    return jnp.minimum(found, log_weights.shape[0] - 1)


def _mean(cloud: FlatCloud) -> Float[Array, "S Dx"]:
    return jnp.sum(jnp.exp(cloud.log_weights)[:, :, None] * cloud.particles, 1)
