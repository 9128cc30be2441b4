"""Filters for all draws at once: the state, and optionally the weights, given new outputs.

    x_{t+1} ~ N(m(z_t) + A(z_t) v, B(z_t) + Q),    y_t ~ p(y | x_{t+1}),    z_t = [x_t; u_t]

Noise levels, kernel and emission of a draw are fixed. Random numbers depend on (seed, draw, row),
so that results do not depend on how rows are divided between calls.

**The Gaussian filter** represents [x; v], or x given the weights of the draw, by one Gaussian for
each draw. The transition is linear in v, so that only x requires cubature points (Arasaratnam &
Haykin 2009): x_i = x̄ ± √Dx · (columns of S), SSᵀ = Cov(x). With W = S⁻¹ Cov(x, v), the weights at
x_i have the mean v_i = v̄ ± √Dx · (rows of W) and the covariance V = Cov(v) − WᵀW. With g_i =
m(x_i) + A(x_i) v_i,

    predict   E[x'] = mean g_i,   Cov(x') = cov g_i + mean A_i V A_iᵀ + diag mean (B_i + Q)
              Cov(x', v) = cov(g_i, v_i) + mean A_i V
    update    by each output in turn, with q = Var(y), e = y − E[y] and k = Cov([x; v], y):
              [x̄; v̄] += k e / q,   Cov −= kkᵀ / q

Moments of y are exact for a linear-Gaussian emission; otherwise they are moments over the points,
y_i = E[y | x_i] and q = var y_i + mean Var(y | x_i). The filter is exact for linear models: it is
the Kalman filter if v is known, and recursive least squares if x is known. Unlike particles, which
lose track of a state that affects the outputs late and weakly, the covariance retains the
uncertainty about it.

**Forgetting.** With λ = 1 the weights are constants that become increasingly certain. With λ < 1
they drift: the covariance is divided by λ at each row, so that a row has weight λⁿ after n further
rows (the discount of West & Harrison 1997, 6.3). No weight becomes less certain than its prior N(0,
1): if the system is not excited for long, the division stops there.

**Surprise.** If the system drifts, errors of predictions become larger than their variances imply.
The Gaussian filter tracks their ratio over recent outputs:

    c_t = c_{t−1} + (e_t² / q_t − c_{t−1}) / MEMORY

which is about 1 while the model is valid. Forecasts average over unchanged variances and variances
multiplied by c_t, by the likelihood of the errors under each and prior odds of 1 to `ODDS`:

    s = 1 + w (c_t − 1),   w / (1 − w) = exp(½ n (c_t − 1 − log c_t)) / ODDS   if c_t > 1, else 1

with n = 2 MEMORY − 1, the effective number of errors in this average. Scaling all variances by one
factor (the variance learning of West & Harrison 1997, 10.8) does not change the gains and means.
Variances are never reduced, as small errors do not prove that the model has improved.

**The particle filter** represents x only, and is exact for every likelihood in the limit of many
particles. With a linear-Gaussian emission it is fully adapted: particles are selected by p(y_t |
x_t) and propagated by p(x_{t+1} | x_t, y_t), both in closed form. Otherwise they are propagated by
the transition and weighted by p(y_t | x_{t+1}).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import condition_gaussian, cubature_points, gram, log_normal
from gpssm.core.runtime import jit
from gpssm.data.series import Series
from gpssm.inference import csmc
from gpssm.model.likelihoods import Gaussian, observed
from gpssm.model.types import FeynmanKac
from gpssm.posterior.draws import CurrentState, FilterState, batch_size, take_draws
from gpssm.posterior.rollout import (
    Ensemble,
    Members,
    PathPlan,
    Paths,
    assemble,
    choose_particles,
    run_paths,
)

MEMORY = 30.0  # outputs over which errors are averaged, about the horizon of forecasts
ODDS = 20.0  # against a model that no longer holds


class Filtered(NamedTuple):
    """The result of filtering T rows of a series.

    Parameters
    ----------
    state
        The state after the last row.
    log_density
        log p(y_t | y_<t).
    means
        E[x_{t+1} | y_≤t].
    """

    state: FilterState
    log_density: Float[Array, "S T"]
    means: Float[Array, "S T Dx"]


@jax.jit
def gaussian_state(mean: Float[Array, "S Dx"], variance: float) -> FilterState:
    """Return x ~ N(mean, variance · I) for each draw."""
    covariance = variance * jnp.eye(mean.shape[1])
    return FilterState(
        mean, jnp.broadcast_to(covariance, (*mean.shape, mean.shape[1])), jnp.ones(len(mean))
    )


def particle_state(
    particles: Float[Array, "*S P Dx"],
    log_weights: Float[Array, "*S P"],
    surprise: Float[Array, "*S"],
) -> FilterState:
    """Return the filter state of weighted particles."""
    weights = jnp.exp(log_weights)[..., None]
    mean = jnp.sum(weights * particles, -2)
    deviations = particles - mean[..., None, :]
    covariance = jnp.matmul(deviations.mT, weights * deviations)
    return FilterState(mean, covariance, surprise, particles, log_weights)


def equal_particles(particles: Float[Array, "S P Dx"], surprise: Float[Array, " S"]) -> FilterState:
    """Return the filter state of particles with equal weights."""
    log_weights = jnp.full(particles.shape[:2], -np.log(particles.shape[1]))
    return particle_state(particles, log_weights, surprise)


def joint_state(
    state: FilterState,
    weights: Float[Array, "*S N"],
    covariance: Float[Array, "*S N N"],
    cross: Float[Array, "*S Dx N"] | float = 0.0,
) -> FilterState:
    """Return [x; v] with the moments of the state for x, those of the weights, and Cov(x, v)."""
    cross = jnp.broadcast_to(cross, (*state.mean.shape, weights.shape[-1]))
    mean = jnp.concatenate([state.mean, weights], -1)
    blocks = [[state.covariance, cross], [cross.mT, covariance]]
    return FilterState(mean, jnp.block(blocks), state.surprise)


def cloud(state: FilterState) -> tuple[Float[Array, "S P Dx"], Float[Array, "S P"]]:
    """Return particles and log weights; for a Gaussian, its cubature points with equal weights."""
    if state.particles is not None and state.log_weights is not None:
        return state.particles, state.log_weights
    points = cubature_points(state.mean, state.covariance, state.mean.shape[1])
    return points, jnp.full(points.shape[:2], -np.log(points.shape[1]))


@jax.jit
def draw_start(
    keys: PRNGKeyArray, state: FilterState, scale: Float[Array, " S"]
) -> Float[Array, "S P Dx"]:
    """Return a state for the path of each key (S, P); the covariance of a Gaussian is scaled."""
    return choose_particles(keys, *cloud(state), scale, state.particles is None)


@jit
def run_filter(
    members: Members,
    keys: PRNGKeyArray,
    state: FilterState,
    series: Series,
    row: Int[Array, ""] | None = None,
    rates: Float[Array, " S"] | None = None,
) -> Filtered:
    """Filter the rows of a scaled series.

    Parameters
    ----------
    members
        The draws.
    keys
        A random key for the particles of each draw (S,).
    state
        The state before the rows, including the weights if there are `rates`.
    row
        Number of the first row, for random numbers.
    rates
        λ of each draw. On a CPU draws are processed one after the other, so that the covariance of
        the weights stays in the cache.
    """
    numbers = jnp.arange(len(series)) + (0 if row is None else row)
    rows = (numbers, jnp.asarray(series.u), jnp.asarray(series.y))

    def filter_draw(
        draw: Ensemble, key: PRNGKeyArray, state: FilterState, rate: Array | None
    ) -> tuple[FilterState, Any]:
        def step(state: FilterState, row: tuple[Array, ...]) -> tuple[FilterState, Any]:
            state, log_density = _advance_draw(draw, key, state, *row, rate=rate)
            return state, (log_density, state.mean[: members.model.state_dim])

        return jax.lax.scan(step, state, rows)

    ensemble = assemble(*members, series.input_dim)
    serial = rates is not None
    state, along = _each_draw(filter_draw, ensemble, keys, state, rates, serial=serial)
    return Filtered(state, *along)


@jit
def run_predictions(
    plan: PathPlan,
    keys: PRNGKeyArray,
    state: FilterState,
    series: Series,
    row: Int[Array, ""],
    steps: int,
    noise: bool,
) -> Paths:
    """Predict every row of a scaled series from the rows up to `steps` before it.

    From each filtered state, paths are run `steps` rows ahead, of which the last row counts; the
    first `steps` rows are predicted from the state at the start.

    Parameters
    ----------
    plan
        The draws and their paths.
    keys, state, series, row
        As in `run_filter`.
    steps
        At most the number of rows.
    noise
        As in `run_paths`.
    """
    ensemble = assemble(*plan.members, series.input_dim)
    u = jnp.asarray(series.u)

    def ahead(state: FilterState, row: Array, u: Float[Array, "H Du"]) -> Paths:
        row_keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(plan.keys, row)
        scale = noise_scale(state.surprise)
        start = draw_start(row_keys, state, scale)
        scaled = ensemble.scaled(scale)
        return run_paths(scaled, start, u, row_keys, plan.slots, plan.box, noise)

    def step(state: FilterState, inputs: tuple[Array, ...]) -> tuple[FilterState, Paths]:
        row, window, y = inputs
        last = jax.tree.map(lambda leaf: leaf[-1], ahead(state, row, window))
        following, _ = _each_draw(
            lambda draw, key, state: _advance_draw(draw, key, state, row, window[0], y),
            ensemble,
            keys,
            state,
        )
        return following, last

    origins = jnp.arange(len(series) - steps + 1)
    windows = u[origins[:, None] + jnp.arange(steps)[None]]
    inputs = (row + origins, windows, jnp.asarray(series.y)[: len(origins)])
    _, predicted = jax.lax.scan(step, state, inputs)
    if steps == 1:
        return predicted
    first = ahead(state, row, u[: steps - 1])
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), first, predicted)


def _each_draw(
    function: Callable[..., Any], ensemble: Ensemble, *args: Any, serial: bool = False
) -> Any:
    """Return `function(draw, *args)` for every draw, an ensemble without the axis of draws."""
    varying = dataclasses.replace(ensemble, transition=None) if ensemble.shared else ensemble
    arrays, static = eqx.partition((varying, args), eqx.is_array)

    def call(arrays: Any) -> Any:
        draw, args = eqx.combine(arrays, static)
        if ensemble.shared:
            draw = dataclasses.replace(draw, transition=ensemble.transition)
        return function(draw, *args)

    if serial:
        return jax.lax.map(call, arrays, batch_size=batch_size())
    return jax.vmap(call)(arrays)


def _advance_draw(
    draw: Ensemble,
    key: PRNGKeyArray,
    state: FilterState,
    row: Int[Array, ""],
    u: Float[Array, " Du"],
    y: Float[Array, " Dy"],
    rate: Float[Array, ""] | None = None,
) -> tuple[FilterState, Float[Array, ""]]:
    """Return the state of one draw one row later, and log p(y_t | y_<t).

    Parameters
    ----------
    draw
        The ensemble of one draw, without the axis of draws.
    key
        Random key of the draw.
    state
        The state before the row, including the weights if there is a rate.
    row, u, y
        Number, inputs and outputs of the row.
    rate
        λ.
    """
    if state.particles is not None:
        return _advance_particles(draw, jax.random.fold_in(key, row), state, u, y)
    before = state if rate is None else forget(state, rate, len(draw.process_variance))
    following, log_density = _update(draw, _predict(draw, before, u), y)
    if rate is None:
        return following, log_density
    # A draw that has diverged must not lose the distribution of its weights.
    finite = jnp.isfinite(following.mean).all() & jnp.isfinite(jnp.trace(following.covariance))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), following, state), log_density


def _step(
    draw: Ensemble, x: Float[Array, "P Dx"], u: Float[Array, " Du"]
) -> tuple[Float[Array, "P Dx"], Float[Array, "P Dx M"], Float[Array, "P Dx"]]:
    """Return m, A and B + Q for each of these states."""
    step = jax.vmap(lambda x: draw.transition(x[None], u[None])[0])(x)
    variance = jnp.maximum(step.residual[:, :, 0], 0.0) + draw.process_variance[None]
    return step.mean[:, 0], step.gain[:, :, 0], variance


def forget(state: FilterState, rate: Float[Array, ""], dim: int) -> FilterState:
    """Return [x; v] with the covariance of v divided by λ, but not above the prior."""
    variance = jnp.maximum(jnp.diagonal(state.covariance), jnp.finfo(rate.dtype).tiny)
    growth = jnp.maximum(jnp.minimum(1 / jnp.sqrt(rate), 1 / jnp.sqrt(variance)), 1.0)
    growth = growth.at[:dim].set(1.0)
    return state._replace(covariance=growth[:, None] * state.covariance * growth[None])


def _predict(draw: Ensemble, state: FilterState, u: Float[Array, " Du"]) -> FilterState:
    """Return [x_{t+1}; v] from [x_t; v] under one draw, or x_{t+1} from x_t."""
    dim = len(draw.process_variance)
    points = cubature_points(state.mean, state.covariance, dim)
    mean, gain, variance = _step(draw, points[:, :dim], u)
    count = len(points)
    shape = draw.weights.shape
    learned = len(state.mean) > dim
    weights = points[:, dim:].reshape(count, *shape) if learned else draw.weights[None]
    values = mean + jnp.sum(gain * weights, -1)
    mean = jnp.mean(values, 0)
    deviations = values - mean[None]
    covariance = gram(deviations) / count + jnp.diag(jnp.mean(variance, 0))
    if not learned:
        return state._replace(mean=mean, covariance=covariance)
    shifts = points[:, dim:] - state.mean[None, dim:]
    rest = state.covariance[dim:, dim:] - gram(shifts[:dim]) / dim
    # A_i V and A_i V A_iᵀ
    reach = jnp.matmul(jnp.swapaxes(gain, 0, 1), rest.reshape(*shape, -1))
    spread = jnp.sum(reach.reshape(dim, count, *shape) * gain[None], (1, 3)) / count
    x = FilterState(mean, covariance + 0.5 * (spread + spread.T), state.surprise)
    cross = jnp.matmul(deviations.T, shifts) / count + jnp.mean(reach, 1)
    return joint_state(x, state.mean[dim:], state.covariance[dim:, dim:], cross)


def _update(
    draw: Ensemble, state: FilterState, y: Float[Array, " Dy"]
) -> tuple[FilterState, Float[Array, ""]]:
    """Return the state of one draw given the outputs of a row, and the log density of the row.

    Outputs have independent noise and are processed one by one. Missing outputs have no effect.
    """

    def condition(
        carry: tuple[FilterState, Array], output: tuple[Array, ...]
    ) -> tuple[tuple[FilterState, Array], None]:
        state, log_density = carry
        place, y, present = output
        expected, variance, cross = _output_moments(draw, state, place)
        error = y - expected
        mean, covariance = condition_gaussian(
            state.mean, state.covariance, present * cross, variance, error
        )
        change = present * (error**2 / variance - state.surprise) / MEMORY
        log_density += jnp.where(present, log_normal(error, 0.0, variance), 0.0)
        return (FilterState(mean, covariance, state.surprise + change), log_density), None

    outputs = (jnp.arange(len(y)), *observed(y))
    return jax.lax.scan(condition, (state, jnp.zeros((), state.mean.dtype)), outputs)[0]


def _output_moments(
    draw: Ensemble, state: FilterState, place: Int[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " D"]]:
    """Return E[y], Var(y) and Cov([x; v], y) for the output number `place`."""
    dim = len(draw.process_variance)
    likelihood = draw.likelihood
    if isinstance(likelihood, Gaussian):
        row = likelihood.C[place]
        cross = state.covariance[:, :dim] @ row
        variance = row @ cross[:dim] + jnp.exp(2 * likelihood.log_std[place])
        return row @ state.mean[:dim] + likelihood.d[place], variance, cross
    points = cubature_points(state.mean, state.covariance, dim)
    means, variances = (moment[:, place] for moment in likelihood.moments(points[:, :dim]))
    expected = jnp.mean(means)
    deviations = (means - expected) / len(points)
    variance = jnp.sum(deviations * (means - expected)) + jnp.mean(variances)
    return expected, variance, deviations @ (points - state.mean[None])


@jax.jit
def noise_scale(surprise: Float[Array, " S"]) -> Float[Array, " S"]:
    """Return s, by which the variances of a forecast are multiplied."""
    excess = jnp.maximum(surprise, 1.0) - 1
    log_odds = 0.5 * (2 * MEMORY - 1) * (excess - jnp.log1p(excess)) - jnp.log(ODDS)
    return 1 + jax.nn.sigmoid(log_odds) * excess


def forecast_scale(
    current: CurrentState | None, draws: Int[np.ndarray, " S"]
) -> Float[Array, " S"]:
    """Return s for these draws; 1 before any new row."""
    if current is None:
        return jnp.ones(len(draws))
    return noise_scale(take_draws(current.state.surprise, draws))


def _advance_particles(
    draw: Ensemble,
    key: PRNGKeyArray,
    state: FilterState,
    u: Float[Array, " Du"],
    y: Float[Array, " Dy"],
) -> tuple[FilterState, Float[Array, ""]]:
    """Propagate the particles of one draw by the best available proposal."""
    assert state.particles is not None
    assert state.log_weights is not None
    mean, gain, variance = _step(draw, state.particles, u)
    mean += jnp.sum(gain * draw.weights[None], -1)
    likelihood = draw.likelihood

    def log_potential(t: Array, x: Array, following: Float[Array, "P Dx"]) -> Float[Array, " P"]:
        return likelihood.log_prob(following, jnp.broadcast_to(y, (following.shape[0], *y.shape)))

    form = FeynmanKac(lambda t, x: (mean, variance), log_potential)
    guide = csmc.bootstrap(form)
    if isinstance(likelihood, Gaussian):
        noise = jnp.exp(2 * likelihood.log_std)
        emission = csmc.GaussianEmission(likelihood.C, likelihood.d, noise, *observed(y[None]))
        guide = csmc.locally_optimal(form, emission)
    choice_key, noise_key = jax.random.split(key)
    time = jnp.asarray(0)
    proposal = guide.propose(time, mean)
    log_weights, log_ahead = _normalise(state.log_weights + proposal.log_ahead)
    parents, log_weights = _resample(choice_key, log_weights)
    noise = jax.random.normal(noise_key, mean.shape, mean.dtype)
    particles = (
        proposal.mean[parents] + jnp.matmul(proposal.factor[parents], noise[:, :, None])[:, :, 0]
    )
    log_weights, log_rest = _normalise(log_weights + guide.log_weight(time, mean, particles))
    return particle_state(particles, log_weights, state.surprise), log_ahead + log_rest


def _normalise(log_weights: Float[Array, " P"]) -> tuple[Float[Array, " P"], Float[Array, ""]]:
    """Return normalised log weights, and the log of their previous sum.

    The latter is −∞ if no particle explains the output. Such a draw continues with equal weights:
    it may recover, and must not affect other draws.
    """
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    total = logsumexp(log_weights)
    equal = jnp.full_like(log_weights, -jnp.log(log_weights.shape[0]))
    return jnp.where(jnp.isfinite(total), log_weights - total, equal), total


def _resample(
    key: PRNGKeyArray, log_weights: Float[Array, " P"]
) -> tuple[Int[Array, " P"], Float[Array, " P"]]:
    """Return parents and log weights, resampled where fewer than half are effective, 1/Σw².

    Systematic resampling: particle i is chosen P·w_i times, rounded up or down, with the right
    mean.
    """
    number = log_weights.shape[0]
    few = jnp.exp(-logsumexp(2 * log_weights)) < 0.5 * number
    cumulative = jnp.cumsum(jnp.exp(log_weights))
    levels = (jnp.arange(number) + jax.random.uniform(key, dtype=log_weights.dtype)) / number
    chosen = jnp.searchsorted(cumulative, levels * cumulative[-1], side="right")
    parents = jnp.where(few, jnp.minimum(chosen, number - 1), jnp.arange(number))
    return parents, jnp.where(few, -jnp.log(number), log_weights)
