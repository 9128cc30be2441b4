"""Figures of a summary: how noisy, predictable and nonlinear what was learned is along the training data.

A few draws, and the longest training series, are enough for that. Everything is in sample: parameters and functions
have seen the rows that they are judged on.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.metrics import fit_percent
from gpssm.core.runtime import in_double_precision
from gpssm.data.scaler import output_spread
from gpssm.data.series import Series
from gpssm.posterior.conditioning import filter_keys, resolve_particles
from gpssm.posterior.draws import FilterState, merge_chains
from gpssm.posterior.filtering import advance, cloud, point_state
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.rollout import (
    BOUNDS,
    Box,
    Ensemble,
    Members,
    assemble,
    members_of,
    training_box,
)
from gpssm.posterior.validation import TRAINING

PARTICLES = 16
TAIL, LEAD = (
    40,
    10,
)  # rows at the end that are predicted one step ahead, after the lead, in which the filter settles
ROWS = 400  # at most at which f is looked at
GAUSSIAN_90 = 1.645  # standard deviations to each side that hold 90 % of a Gaussian
TINY = 1e-12  # of the states' variance, near one: below it there are only rounding errors


class TrainingRuns(NamedTuple):
    """Free runs of S draws from O rows on: E[y | x], the variance of y given x, and which paths were still there."""

    mean: Float[Array, "L S O Dy"]
    variance: Float[Array, "L S O Dy"]
    alive: Bool[Array, "L S O"]


class Measured(NamedTuple):
    """What one pass over draws and rows gives, in scaled units."""

    f: Float[Array, "S N Dx"]
    novelty: Float[Array, "S N"]
    noise: Float[Array, " Dy"]  # mean variance of y given x
    process: Float[Array, " Dy"]  # mean variance that the process noise of one step adds to y
    ahead: Float[Array, "T Dy"]  # E[y_t | y_<t]
    runs: TrainingRuns


class Assessment(NamedTuple):
    """Figures in the user's units, an entry an output, and shares.

    `spread` is the standard deviation of the outputs. Errors are root mean squares: `one_step` over the last rows, each
    given those before it, and `free_run` over the next `horizon` steps from states along the series. `widening` (L, Dy)
    is the standard deviation of a free run by step, in units of `spread`, and `covered` the share of the outputs in the
    90 % interval that a Gaussian would have. The fits are those of the same rows in per cent, as `metrics.fit_percent`
    has them. `nonlinear` and `nonlinear_change` are the shares of the variance of f(z),
    and of f(z) − x, at the training inputs, that the best linear map of z leaves. `novelty_tail` is the mean of
    B(z)/k(z, z) in the last tenth of them. `left` is the share of free runs that left the region the model knows.
    """

    spread: Float[np.ndarray, " Dy"]
    noise_std: Float[np.ndarray, " Dy"]
    process_std: Float[np.ndarray, " Dy"]
    one_step: Float[np.ndarray, " Dy"]
    free_run: Float[np.ndarray, " Dy"]
    horizon: int
    widening: Float[np.ndarray, "L Dy"]
    covered: float
    one_step_fit: Float[np.ndarray, " Dy"]
    free_run_fit: Float[np.ndarray, " Dy"]
    nonlinear: float
    nonlinear_change: float
    novelty_tail: float
    left: float


@in_double_precision
def assess(posterior: Posterior, seed: int = 0) -> Assessment:
    """The figures of the longest training series."""
    posterior = posterior.with_states()
    fewer = posterior.thinned(TRAINING.num_draws)
    index = int(np.argmax([len(item) for item in posterior.dataset.scaled]))
    series, states = posterior.dataset.scaled[index], merge_chains(fewer.draws.states[index])
    # Rows at which f is looked at, those of the free runs (L, O), a column each, and the one where the filter starts.
    rows = np.unique(np.linspace(0, len(series) - 1, ROWS).astype(int))
    length = min(TRAINING.horizon, len(series) // 2)
    origins = np.unique(np.linspace(0, len(series) - length, TRAINING.most_origins).astype(int))
    runs = origins + np.arange(length)[:, None]
    before = max(len(series) - TAIL - LEAD, 0)

    draws, starts = np.arange(len(states)), states[:, runs[0]]
    gaussian = resolve_particles(fewer, None, new_experiment=True) is None
    state = point_state(jnp.asarray(states[:, before]), None if gaussian else PARTICLES)
    measured = _measure(
        members_of(fewer, draws),
        filter_keys(seed, draws),
        (jnp.asarray(states[:, rows]), jnp.asarray(series.u[rows])),
        (state, series[before:], jnp.asarray(before)),
        (jnp.asarray(starts), jnp.asarray(series.u[runs])),
        jnp.asarray(np.random.default_rng(seed).normal(size=(len(runs), *starts.shape))),
        training_box(fewer, draws, BOUNDS),
    )
    found: Measured = jax.tree.map(np.asarray, measured)

    # Mean and variance of y over the draws whose path is still there; over all where none is.
    there = np.where(found.runs.alive.any(1, keepdims=True), found.runs.alive, True)[..., None]
    mean = np.mean(found.runs.mean, axis=1, where=there)
    variance = np.var(found.runs.mean, axis=1, where=there) + np.mean(
        found.runs.variance, axis=1, where=there
    )
    horizon, tail = min(HORIZON, len(runs)), min(TAIL, len(series) - before)
    errors = series.y[runs] - mean
    inside = (np.abs(errors) <= GAUSSIAN_90 * np.sqrt(variance))[:horizon][
        ~np.isnan(errors[:horizon])
    ]
    scale = np.array(posterior.dataset.scaler.output_std)
    spread = output_spread(posterior.dataset.scaled)
    return Assessment(
        spread=scale * spread,
        noise_std=scale * np.sqrt(found.noise),
        process_std=scale * np.sqrt(found.process),
        one_step=scale * _root_mean_square((series.y[before:] - found.ahead)[-tail:]),
        free_run=scale * _root_mean_square(errors[:horizon]),
        horizon=horizon,
        widening=np.sqrt(np.mean(variance, axis=1)) / spread,
        covered=float(np.mean(inside)) if inside.size else float("nan"),
        one_step_fit=_fits(np.asarray(found.ahead)[-tail:], series.y[before:][-tail:]),
        free_run_fit=_fits(mean[:horizon], series.y[runs][:horizon]),
        **_nonlinearity(np.asarray(found.f), states[:, rows], series.u[rows]),
        novelty_tail=float(np.mean(found.novelty[:, -max(len(rows) // 10, 1) :])),
        left=float(np.mean(~found.runs.alive[-1])),
    )


def _run(
    ensemble: Ensemble,
    start: Float[Array, "S O Dx"],
    u: Float[Array, "L O Du"],
    noises: Array,
    box: Box,
) -> TrainingRuns:
    """Free runs from each start, with process noise; one that leaves the box stays where it was."""

    box = box.grown(start, ensemble.process_variance)

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[Any, TrainingRuns]:
        (x, alive), (control, noise) = carry, inputs
        now = ensemble.moments(x, jnp.broadcast_to(control, (x.shape[0], *control.shape)))
        following = now.mean + jnp.sqrt(now.variance) * noise
        alive &= box.away(following, ensemble.process_variance) <= box.bounds
        x = jnp.where(alive[..., None], following, x)
        return (x, alive), TrainingRuns(*_emit(ensemble, x), alive)

    return jax.lax.scan(step, (start, jnp.ones(start.shape[:2], bool)), (u, noises))[1]


def _predict(
    ensemble: Ensemble,
    keys: PRNGKeyArray,
    state: FilterState,
    series: Series,
    first: Int[Array, ""],
) -> Float[Array, "T Dy"]:
    """E[y_t | y_<t] for each row, averaged over draws: the filter's cloud moved one step and shown."""

    def step(state: FilterState, inputs: tuple[Array, ...]) -> tuple[FilterState, Array]:
        row, u, y = inputs
        particles, log_weights = cloud(state)
        moved = ensemble.moments(
            particles, jnp.broadcast_to(u, (*log_weights.shape, *u.shape))
        ).mean
        shown = jnp.exp(log_weights)[..., None] * _emit(ensemble, moved)[0]
        state, _ = advance(ensemble, keys, state, row, u, y)
        return state, jnp.mean(jnp.sum(shown, axis=1), axis=0)

    rows = (first + jnp.arange(len(series)), jnp.asarray(series.u), jnp.asarray(series.y))
    return jax.lax.scan(step, state, rows)[1]


# Optimising what runs once would take longer than it could save. Equinox passes the option on, but has no type for it.
@eqx.filter_jit(compiler_options={"xla_backend_optimization_level": 0})  # pyright: ignore[reportCallIssue]
def _measure(
    members: Members,
    keys: PRNGKeyArray,
    inputs: tuple[Float[Array, "S N Dx"], Float[Array, "N Du"]],
    tail: tuple[FilterState, Series, Int[Array, ""]],
    starts: tuple[Float[Array, "S O Dx"], Float[Array, "L O Du"]],
    noises: Float[Array, "L S O Dx"],
    box: Box,
) -> Measured:
    x, u = inputs
    ensemble = assemble(*members, u.shape[1])
    now = ensemble.moments(x, jnp.broadcast_to(u, (x.shape[0], *u.shape)))
    reach = jnp.sqrt(ensemble.process_variance)[:, :, None] * jnp.eye(x.shape[2])[None]

    def effect(along: Float[Array, "S Dx"]) -> Float[Array, "S N Dy"]:
        ends = (_emit(ensemble, x + sign * along[:, None])[0] for sign in (1, -1))
        return jnp.square(jnp.subtract(*ends) / 2)

    process = sum((effect(reach[:, d]) for d in range(x.shape[2])), jnp.zeros(()))
    noise = _emit(ensemble, x)[1]
    return Measured(
        now.mean,
        now.novelty,
        jnp.mean(noise, axis=(0, 1)),
        jnp.mean(process, axis=(0, 1)),
        _predict(ensemble, keys, *tail),
        _run(ensemble, *starts, noises, box),
    )


def _emit(
    ensemble: Ensemble, x: Float[Array, "S N Dx"]
) -> tuple[Float[Array, "S N Dy"], Float[Array, "S N Dy"]]:
    """Mean and variance of y given x, under each draw's likelihood."""
    return eqx.filter_vmap(lambda likelihood, x: likelihood.moments(x))(ensemble.likelihood, x)


def _nonlinearity(
    f: Float[np.ndarray, "S N Dx"], x: Float[np.ndarray, "S N Dx"], u: Float[np.ndarray, "N Du"]
) -> dict[str, float]:
    """What least squares on [x; u; 1] leave of f, as a share of its variance and of that of f − x."""
    left, total, change = 0.0, TINY, TINY
    for values, states in zip(f, x, strict=True):
        features = np.hstack([states, u, np.ones((len(u), 1))])
        fit = np.linalg.lstsq(features, values, rcond=None)[0]
        left += np.var(values - features @ fit, axis=0).sum()
        total += np.var(values, axis=0).sum()
        change += np.var(values - states, axis=0).sum()
    return {"nonlinear": float(left / total), "nonlinear_change": float(left / change)}


def _fits(
    mean: Float[np.ndarray, "*batch Dy"], y: Float[np.ndarray, "*batch Dy"]
) -> Float[np.ndarray, " Dy"]:
    """The fit of each output; NaN where nothing was observed."""
    pairs = zip(mean.reshape(-1, mean.shape[-1]).T, y.reshape(-1, y.shape[-1]).T, strict=True)
    return np.array(
        [np.nan if np.isnan(seen).all() else fit_percent(guess, seen) for guess, seen in pairs]
    )


def _root_mean_square(errors: Float[np.ndarray, "*batch Dy"]) -> Float[np.ndarray, " Dy"]:
    flat = errors.reshape(-1, errors.shape[-1])
    count = np.maximum(np.sum(~np.isnan(flat), axis=0), 1)
    return np.sqrt(np.nansum(flat**2, axis=0) / count)
