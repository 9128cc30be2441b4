"""Figures of a summary: how noisy, predictable and nonlinear the training data look to the model.

A few draws, and the longest training series, are enough for that. Everything is in sample:
parameters and functions have seen the rows that they are judged on.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gpssm.core.metrics import fit_percent, rmse
from gpssm.core.runtime import in_double_precision
from gpssm.data.scaler import output_spread
from gpssm.evaluation.residuals import ROWS, Residuals, find_residuals
from gpssm.posterior.draws import merge_chains, stored_rows
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
from gpssm.posterior.stack import draws_outputs
from gpssm.posterior.validation import TRAINING

LEAD = 10  # rows at the beginning of a series in which a filter settles
POINTS = 400  # rows at which f is looked at, at most
GAUSSIAN_90 = 1.645  # standard deviations to each side that hold 90 % of a Gaussian
TINY = 1e-12  # of the states' variance, near one: below it there are only rounding errors


class TrainingRuns(NamedTuple):
    """Free runs of S draws from O rows on: moments of y given x, and whether paths were there."""

    mean: Float[Array, "L S O Dy"]
    variance: Float[Array, "L S O Dy"]
    alive: Bool[Array, "L S O"]


class Measured(NamedTuple):
    """What one pass over draws and rows gives, in scaled units."""

    f: Float[Array, "S N Dx"]
    novelty: Float[Array, "S N"]
    noise: Float[Array, " Dy"]  # mean variance of y given x
    process: Float[Array, " Dy"]  # mean variance that the process noise of one step adds to y
    runs: TrainingRuns


class Assessment(NamedTuple):
    """Figures in the user's units, one entry per output, and shares.

    Parameters
    ----------
    spread
        Standard deviation of the outputs.
    noise_std, process_std
        Observation noise, and what the process noise of one step does to the outputs.
    one_step, free_run
        Root mean square errors on the same rows: each given all rows before it, and over the
        `horizon` steps from states along the series.
    horizon
        Steps of the free runs whose errors are given.
    widening
        Standard deviation of a free run by step, in units of `spread`.
    covered
        Share of the outputs in the 90 % interval that a Gaussian would have.
    one_step_fit, free_run_fit
        The errors as `metrics.fit_percent` has them.
    nonlinear, nonlinear_change
        Shares of the variance of f(z), and of f(z) − x, at the training inputs, that the best
        linear map of z leaves.
    novelty_tail
        Mean of B(z)/k(z, z) in the last tenth of the rows.
    left
        Share of free runs that left the region the model knows.
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


def free_run_rows(length: int) -> Int[np.ndarray, "L O"]:
    """The rows of the free runs along a series of this length, one column per origin."""
    length = min(length, ROWS)
    steps = min(TRAINING.horizon, length // 2)
    origins = np.unique(np.linspace(0, length - steps, TRAINING.most_origins).astype(int))
    return origins + np.arange(steps)[:, None]


@in_double_precision
def assess(posterior: Posterior, residuals: Residuals | None = None, seed: int = 0) -> Assessment:
    """The figures of the longest training series.

    Parameters
    ----------
    posterior
        The fit.
    residuals
        Its residuals along that series, if they were computed already.
    seed
        Seed of the free runs.
    """
    posterior = stored_rows(posterior)
    dataset = posterior.dataset
    fewer = posterior.thinned(TRAINING.num_draws)
    index = int(np.argmax([len(item) for item in dataset.scaled]))
    series = dataset.scaled[index]
    y = dataset.experiments[index].y
    states = merge_chains(fewer.draws.states[index])
    points = np.unique(np.linspace(0, len(series) - 1, POINTS).astype(int))
    runs = free_run_rows(len(series))
    draws = np.arange(len(states))
    starts = states[:, runs[0]]
    measured = _measure(
        members_of(fewer, draws),
        (jnp.asarray(states[:, points]), jnp.asarray(series.u[points])),
        (jnp.asarray(starts), jnp.asarray(series.u[runs])),
        jnp.asarray(np.random.default_rng(seed).normal(size=(len(runs), *starts.shape))),
        training_box(fewer, draws, BOUNDS),
    )
    measured: Measured = jax.tree.map(np.asarray, measured)
    # Mean and variance of y over the draws whose path is still there; over all where none is.
    alive = measured.runs.alive
    there = np.where(alive.any(1, keepdims=True), alive, True)[..., None]
    mean = np.mean(measured.runs.mean, axis=1, where=there)
    variance = np.var(measured.runs.mean, axis=1, where=there)
    variance = variance + np.mean(measured.runs.variance, axis=1, where=there)
    horizon = min(HORIZON, len(runs))
    distance = (np.abs(series.y[runs] - mean) / np.sqrt(variance))[:horizon]
    observed = ~np.isnan(distance)
    # Both kinds of errors are those of the same rows, in which a filter has settled.
    rows = runs[:horizon]
    settled = rows >= min(LEAD, len(series) // 4)
    predicted = np.full(y.shape, np.nan)
    # Where only the states of the last rows are stored, the series is shorter than it was.
    whole = residuals is not None and len(residuals.predicted) == min(len(y), ROWS)
    if not whole and draws_outputs(posterior):
        residuals = find_residuals(posterior, index)
    if residuals is not None and draws_outputs(posterior):
        predicted[: len(residuals.predicted)] = residuals.predicted
    simulated = dataset.decode(mean[:horizon])[settled]
    actual = y[rows][settled]
    one_step, one_step_fit = _errors(predicted[rows][settled], actual)
    free_run, free_run_fit = _errors(simulated, actual)
    scale = np.array(dataset.scaler.output_std)
    spread = output_spread(dataset.scaled)
    return Assessment(
        spread=scale * spread,
        noise_std=scale * np.sqrt(measured.noise),
        process_std=scale * np.sqrt(measured.process),
        one_step=one_step,
        free_run=free_run,
        horizon=horizon,
        widening=np.sqrt(np.mean(variance, axis=1)) / spread,
        covered=float(np.mean(distance[observed] <= GAUSSIAN_90)) if observed.any() else np.nan,
        one_step_fit=one_step_fit,
        free_run_fit=free_run_fit,
        **_nonlinearity(np.asarray(measured.f), states[:, points], series.u[points]),
        novelty_tail=float(np.mean(measured.novelty[:, -max(len(points) // 10, 1) :])),
        left=float(np.mean(~alive[-1])),
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
        (x, alive), (row, noise) = carry, inputs
        moments = ensemble.moments(x, jnp.broadcast_to(row, (x.shape[0], *row.shape)))
        following = moments.mean + jnp.sqrt(moments.variance) * noise
        alive &= box.away(following, ensemble.process_variance) <= box.bounds
        x = jnp.where(alive[..., None], following, x)
        return (x, alive), TrainingRuns(*_emit(ensemble, x), alive)

    return jax.lax.scan(step, (start, jnp.ones(start.shape[:2], bool)), (u, noises))[1]


# Optimising what runs once would take longer than it could save. Equinox passes the option on, but
# has no type for it.
@eqx.filter_jit(
    compiler_options={"xla_backend_optimization_level": 0}  # pyright: ignore[reportCallIssue]
)
def _measure(
    members: Members,
    inputs: tuple[Float[Array, "S N Dx"], Float[Array, "N Du"]],
    starts: tuple[Float[Array, "S O Dx"], Float[Array, "L O Du"]],
    noises: Float[Array, "L S O Dx"],
    box: Box,
) -> Measured:
    x, u = inputs
    ensemble = assemble(*members, u.shape[1])
    moments = ensemble.moments(x, jnp.broadcast_to(u, (x.shape[0], *u.shape)))
    reach = jnp.sqrt(ensemble.process_variance)[:, :, None] * jnp.eye(x.shape[2])[None]

    def effect(along: Float[Array, "S Dx"]) -> Float[Array, "S N Dy"]:
        ends = (_emit(ensemble, x + sign * along[:, None])[0] for sign in (1, -1))
        return jnp.square(jnp.subtract(*ends) / 2)

    process = sum((effect(reach[:, d]) for d in range(x.shape[2])), jnp.zeros(()))
    noise = _emit(ensemble, x)[1]
    return Measured(
        moments.mean,
        moments.novelty,
        jnp.mean(noise, axis=(0, 1)),
        jnp.mean(process, axis=(0, 1)),
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
    """What least squares on [x; u; 1] leave, as shares of the variances of f and of f − x."""
    rest, total, change = 0.0, TINY, TINY
    for values, states in zip(f, x, strict=True):
        features = np.hstack([states, u, np.ones((len(u), 1))])
        weights = np.linalg.lstsq(features, values, rcond=None)[0]
        rest += np.var(values - features @ weights, axis=0).sum()
        total += np.var(values, axis=0).sum()
        change += np.var(values - states, axis=0).sum()
    return {"nonlinear": float(rest / total), "nonlinear_change": float(rest / change)}


def _errors(
    mean: Float[np.ndarray, "N Dy"], y: Float[np.ndarray, "N Dy"]
) -> tuple[Float[np.ndarray, " Dy"], Float[np.ndarray, " Dy"]]:
    """Root mean square error and fit of each output; NaN where nothing can be compared."""
    errors = []
    for guess, actual in zip(mean.T, y.T, strict=True):
        both = np.isfinite(guess - actual)
        pair = (guess[both], actual[both])
        errors.append((rmse(*pair), fit_percent(*pair)) if both.any() else (np.nan, np.nan))
    return tuple(np.array(errors, float).T)  # pyright: ignore[reportReturnType]
