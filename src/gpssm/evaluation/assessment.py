"""In-sample measures of a fit for the summary: noise, predictability and nonlinearity.

They are computed from a few draws and the longest training series. All are in sample: parameters
and functions were learned from the rows on which they are evaluated.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

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

LEAD = 10  # rows at the start of a series in which a filter converges


@dataclass(frozen=True)
class OutputSummary:
    """One output in the user's units.

    Noise levels are standard deviations: `noise` of the observation, `process_noise` of the effect
    on the output of one step's process noise. Errors are root mean squares on the same rows, of
    one-step predictions and over the steps of simulations; fits are 100 (1 − ‖y − ŷ‖ / ‖y − ȳ‖), in
    per cent. `half` and `most` are the steps after which the spread of a simulation reaches 50 and
    90 % of the spread of the data; None if it does not within the simulated steps.
    """

    name: str
    spread: float
    noise: float
    process_noise: float
    one_step_error: float
    simulation_error: float
    half: int | None
    most: int | None
    one_step_fit: float = np.nan
    simulation_fit: float = np.nan
    unit: str = ""

    @property
    def label(self) -> str:
        """The name with its unit, if it is known."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True)
class Assessment:
    """In-sample measures on the training rows.

    Parameters
    ----------
    outputs
        The measures of each output.
    horizon
        Number of steps of the simulations whose errors are given.
    widening
        Standard deviation of a simulation by step, in units of the outputs' spread.
    covered
        Share of the outputs inside the 90 % intervals of the simulations.
    nonlinear, nonlinear_change
        Shares of the variance of f(z), and of f(z) − x, at the training inputs, that the best
        linear map of z does not explain.
    novelty_tail
        Mean of B(z)/k(z, z) in the last tenth of the rows.
    left
        Share of simulations that left the known region.
    """

    outputs: tuple[OutputSummary, ...]
    horizon: int
    widening: Float[np.ndarray, "L Dy"]
    covered: float
    nonlinear: float
    nonlinear_change: float
    novelty_tail: float
    left: float


def simulation_rows(length: int) -> Int[np.ndarray, "L O"]:
    """Return the rows of simulations along a series of this length, one column per origin."""
    length = min(length, ROWS)
    steps = min(TRAINING.horizon, length // 2)
    origins = np.unique(np.linspace(0, length - steps, TRAINING.most_origins).astype(int))
    return origins + np.arange(steps)[:, None]


@in_double_precision
def assess(posterior: Posterior, residuals: Residuals | None = None, seed: int = 0) -> Assessment:
    """Compute the measures on the longest training series.

    Parameters
    ----------
    posterior
        The fit.
    residuals
        Its residuals along that series, if they have been computed.
    seed
        Seed of the simulations.
    """
    posterior = stored_rows(posterior)
    dataset = posterior.dataset
    fewer = posterior.thinned(TRAINING.num_draws)
    index = int(np.argmax([len(item) for item in dataset.scaled]))
    series = dataset.scaled[index]
    y = dataset.experiments[index].y
    states = merge_chains(fewer.draws.states[index])
    points = np.unique(np.linspace(0, len(series) - 1, 400).astype(int))
    runs = simulation_rows(len(series))
    draws = np.arange(len(states))
    starts = states[:, runs[0]]
    measured = _measure(
        members_of(fewer, draws),
        (jnp.asarray(states[:, points]), jnp.asarray(series.u[points])),
        (jnp.asarray(starts), jnp.asarray(series.u[runs])),
        jnp.asarray(np.random.default_rng(seed).normal(size=(len(runs), *starts.shape))),
        training_box(fewer, draws, BOUNDS),
    )
    f, novelty, noise, process, (means, variances, alive) = jax.tree.map(np.asarray, measured)
    # Mean and variance of y over the draws whose path is still there; over all where none is.
    there = np.where(alive.any(1, keepdims=True), alive, True)[..., None]
    mean = np.mean(means, axis=1, where=there)
    variance = np.var(means, axis=1, where=there) + np.mean(variances, axis=1, where=there)
    horizon = min(HORIZON, len(runs))
    distance = (np.abs(series.y[runs] - mean) / np.sqrt(variance))[:horizon]
    observed = ~np.isnan(distance)
    # Both kinds of errors are those of the same rows, in which a filter has settled.
    rows = runs[:horizon]
    settled = rows >= min(LEAD, len(series) // 4)
    predicted = _predicted(posterior, residuals, index)[rows][settled]
    one_step, one_step_fit = _errors(predicted, y[rows][settled])
    simulated = dataset.decode(mean[:horizon])[settled]
    simulation, simulation_fit = _errors(simulated, y[rows][settled])
    scale = np.array(dataset.scaler.output_std)
    spread = output_spread(dataset.scaled)
    widening = np.sqrt(np.mean(variance, axis=1)) / spread
    columns = (
        scale * spread,
        scale * np.sqrt(noise),
        scale * np.sqrt(process),
        one_step,
        simulation,
    )
    return Assessment(
        outputs=tuple(
            OutputSummary(
                name,
                *(float(column[j]) for column in columns),
                half=steps_until(widening[:, j], 0.5),
                most=steps_until(widening[:, j], 0.9),
                one_step_fit=float(one_step_fit[j]),
                simulation_fit=float(simulation_fit[j]),
                unit=dataset.units.get(name, ""),
            )
            for j, name in enumerate(dataset.outputs)
        ),
        horizon=horizon,
        widening=widening,
        covered=float(np.mean(distance[observed] <= 1.645)) if observed.any() else np.nan,
        **nonlinearity(f, states[:, points], series.u[points]),
        novelty_tail=float(np.mean(novelty[:, -max(len(points) // 10, 1) :])),
        left=float(np.mean(~alive[-1])),
    )


def _predicted(
    posterior: Posterior, residuals: Residuals | None, index: int
) -> Float[np.ndarray, "T Dy"]:
    """Return one-step predictions along a training series; NaN beyond the rows of the residuals."""
    y = posterior.dataset.experiments[index].y
    predicted = np.full(y.shape, np.nan)
    if draws_outputs(posterior):
        # Where only the states of the last rows are stored, the series is shorter than it was.
        if residuals is None or len(residuals.predicted) != min(len(y), ROWS):
            residuals = find_residuals(posterior, index)
        predicted[: len(residuals.predicted)] = residuals.predicted
    return predicted


def steps_until(widening: Float[np.ndarray, " L"], share: float) -> int | None:
    """Return the step at which a simulation reaches a share of the spread; None if there is
    none."""
    reached = np.flatnonzero(widening >= share)
    return int(reached[0]) + 1 if len(reached) else None


def _run(
    ensemble: Ensemble,
    start: Float[Array, "S O Dx"],
    u: Float[Array, "L O Du"],
    noises: Array,
    box: Box,
) -> tuple[Array, Array, Array]:
    """Simulate from each start with process noise; a path that leaves the box stays where it was.

    Returns
    -------
    mean, variance : array (L, S, O, Dy)
        Moments of y given x.
    alive : array (L, S, O)
        Whether paths are still in the box.
    """
    box = box.grown(start, ensemble.process_variance)

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[Any, Any]:
        (x, alive), (row, noise) = carry, inputs
        moments = ensemble.moments(x, jnp.broadcast_to(row, (x.shape[0], *row.shape)))
        following = moments.mean + jnp.sqrt(moments.variance) * noise
        alive &= box.away(following, ensemble.process_variance) <= box.bounds
        x = jnp.where(alive[..., None], following, x)
        return (x, alive), (*_emit(ensemble, x), alive)

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
) -> tuple[Any, ...]:
    """Compute all quantities in one pass over draws and rows, in scaled units.

    Returns
    -------
    f : array (S, N, Dx)
        The function at the inputs.
    novelty : array (S, N)
        B(z)/k(z, z) there.
    noise, process : array (Dy,)
        Mean variances of y given x, and of the contribution of one step's process noise to y.
    runs : tuple of arrays
        Simulations from the starts.
    """
    x, u = inputs
    ensemble = assemble(*members, u.shape[1])
    moments = ensemble.moments(x, jnp.broadcast_to(u, (x.shape[0], *u.shape)))
    reach = jnp.sqrt(ensemble.process_variance)[:, :, None] * jnp.eye(x.shape[2])[None]

    def effect(along: Float[Array, "S Dx"]) -> Float[Array, "S N Dy"]:
        ends = (_emit(ensemble, x + sign * along[:, None])[0] for sign in (1, -1))
        return jnp.square(jnp.subtract(*ends) / 2)

    process = sum((effect(reach[:, d]) for d in range(x.shape[2])), jnp.zeros(()))
    noise = _emit(ensemble, x)[1]
    variances = (jnp.mean(variance, axis=(0, 1)) for variance in (noise, process))
    return moments.mean, moments.novelty, *variances, _run(ensemble, *starts, noises, box)


def _emit(
    ensemble: Ensemble, x: Float[Array, "S N Dx"]
) -> tuple[Float[Array, "S N Dy"], Float[Array, "S N Dy"]]:
    """Return the mean and variance of y given x, by the likelihood of each draw."""
    return eqx.filter_vmap(lambda likelihood, x: likelihood.moments(x))(ensemble.likelihood, x)


def nonlinearity(
    f: Float[np.ndarray, "S N Dx"], x: Float[np.ndarray, "S N Dx"], u: Float[np.ndarray, "N Du"]
) -> dict[str, float]:
    """Return the shares of the variances of f and of f − x that [x; u; 1] does not explain
    linearly."""
    rest = 0.0
    # Below it there are only rounding errors: the states' variance is near one.
    total = change = 1e-12
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
    """Return the root mean square error and fit of each output; NaN if there are no rows to
    compare."""
    errors = []
    for guess, actual in zip(mean.T, y.T, strict=True):
        both = np.isfinite(guess - actual)
        pair = (guess[both], actual[both])
        errors.append((rmse(*pair), fit_percent(*pair)) if both.any() else (np.nan, np.nan))
    return tuple(np.array(errors, float).T)  # pyright: ignore[reportReturnType]
