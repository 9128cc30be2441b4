"""Filtering and prediction of new rows, and simulation of new experiments.

    condition    p(x_t | y_≤t, draw)                the state, to forecast from
    predict      p(y_t | y_≤t−steps, draw) some steps ahead, for each row of a series
    simulate     p(y_{k+1:k+H} | y_≤k, draw)        a new experiment, of which k rows are known

The weights and parameters of all draws stay fixed. The filters are in `filtering.py`, the paths in
`rollout.py`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from gpssm.core.arguments import check_arguments
from gpssm.core.messages import warn
from gpssm.core.runtime import check_memory, in_double_precision
from gpssm.core.text import as_tuple, check_whole, is_whole
from gpssm.data.clock import Clock
from gpssm.data.dataset import LOOKBACK
from gpssm.data.series import Series
from gpssm.model.likelihoods import Gaussian
from gpssm.posterior.draws import (
    CurrentState,
    FilterState,
    all_draws,
    each_model,
    merge_chains,
    past_inputs,
    split_chains,
    take_draws,
)
from gpssm.posterior.filtering import (
    Filtered,
    equal_particles,
    gaussian_state,
    joint_state,
    run_filter,
    run_predictions,
)
from gpssm.posterior.forecast import Forecast, check_paths, warn_of_paths, widened
from gpssm.posterior.rollout import BOUNDS, members_of, plan_paths

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior
    from gpssm.posterior.stack import Stack

NUM_PARTICLES = 64
FILTER = 2**32 - 3  # replaces the number of a draw, for the keys of a filter


@each_model
@check_arguments
@in_double_precision
def condition(
    posterior: "Posterior",
    series: Any,
    *,
    new_experiment: bool = False,
    num_particles: int | None = None,
    seed: int = 0,
    index: int = -1,
) -> "Posterior":
    """Return the posterior or stack after filtering new rows; functions and parameters stay fixed.

        later = posterior.condition(new_rows)
        later.forecast(u=future_inputs)

    A filter processes the rows, in constant time and memory per row. Passing rows in one call or in
    several gives the same result. With a linear-Gaussian emission, the state given the draw is
    approximated by a Gaussian, which is exact if the transition is linear.

    Parameters
    ----------
    series : Series, DataFrame or array
        Outputs and inputs in the user's units; columns are matched by name, or by position if they
        have no names. Missing outputs are ignored.
    new_experiment : bool
        Whether the rows are a new experiment with x₀ ~ N(0, I). Otherwise they follow the end of a
        training series, or the rows of earlier calls.
    num_particles : int, optional
        Particles per draw. By default, the state is represented by a Gaussian if the emission is
        linear-Gaussian, otherwise by 64 particles. Later calls use the choice of the first.
    seed : int
        Seed of the particles.
    index : int
        The training series that the rows follow.

    Returns
    -------
    Posterior
    """
    draws = all_draws(posterior)
    rows = posterior.dataset.align(series)
    number = resolve_particles(posterior, num_particles, new_experiment)
    before = begin(posterior, draws, rows, new_experiment, number, seed, index)
    scaled = posterior.dataset.encode(rows, before.past)
    state = filter_rows(posterior, draws, before.state, before.rows, scaled, seed).state
    return _with_current(posterior, before.after(rows, state))


@check_arguments
def condition_at(
    posterior: Any,
    series: Any,
    rows: Sequence[int],
    *,
    new_experiment: bool = False,
    num_particles: int | None = None,
    seed: int = 0,
    index: int = -1,
) -> Iterator[Any]:
    """Yield the posterior conditioned on the first r rows of a series for each r, in one pass.

        origins = range(0, 500, 10)
        for row, origin in zip(origins, condition_at(posterior, test, origins)):
            origin.forecast(30, test.u[row:])

    Parameters
    ----------
    posterior : Posterior or Stack
        The posterior before the series.
    series, new_experiment, num_particles, seed, index
        As in `condition`.
    rows : sequence of int
        Increasing numbers from 0 to the length of the series; equal distances compile only once.

    Yields
    ------
    Posterior or Stack
    """
    raw = posterior.dataset.align(series)
    posterior.dataset.encode(raw)  # raises for invalid values before the first row is filtered
    stops = as_tuple(rows)
    whole = bool(stops) and all(map(is_whole, stops))
    if not whole or stops != (*sorted(set(stops)),) or not 0 <= stops[0] <= stops[-1] <= len(raw):
        raise ValueError(
            f"rows must increase from 0 to at most {len(raw)}, the length of the series; "
            f"got {list(stops)}"
        )
    start = posterior.map_models(
        lambda model: _at_start(model, raw, new_experiment, num_particles, seed, index)
    )
    return extended(start, raw, stops, lambda current, part: current.condition(part, seed=seed))


def extended(
    posterior: Any, rows: Series, stops: Sequence[int], extend: Callable[[Any, Series], Any]
) -> Iterator[Any]:
    """Yield the posterior given the rows up to each stop, each from the one before.

    Parameters
    ----------
    posterior : Posterior or Stack
        The posterior before the first row.
    rows : Series
        Rows that follow its data.
    stops : sequence of int
        Row numbers, in increasing order.
    extend : callable
        Returns a posterior after new rows.

    Yields
    ------
    Posterior or Stack
    """
    for before, stop in pairwise([0, *stops]):
        if stop > before:
            posterior = extend(posterior, rows[before:stop])
        yield posterior


@check_arguments
@in_double_precision
def predict(
    posterior: "Posterior",
    series: Any,
    steps: int = 1,
    *,
    new_experiment: bool = False,
    num_paths: int = 1000,
    num_particles: int | None = None,
    seed: int = 0,
    noise: bool = True,
    index: int = -1,
    bounds: float | None = BOUNDS,
    calibrated: bool | None = None,
) -> Forecast:
    """Predict each row from its inputs and the outputs up to `steps` rows before.

        posterior.predict(test, steps=5).score(test)

    The first `steps` rows are predicted from the data before the series. The paths at a row are a
    sample from the predictive distribution of that row. A path does not connect rows into one
    future; use `forecast` or `simulate` for that. `diagnostics` has, for each row, the share of
    paths that left the known region within the `steps` before it.

    Parameters
    ----------
    series, new_experiment, num_particles, index
        As in `condition`.
    steps : int
        Steps ahead.
    num_paths, noise, bounds, calibrated
        As in `forecast`. Draws without a path are not filtered, so few paths take less time.
    seed : int
        Seed of particles and paths.

    Returns
    -------
    Forecast
    """
    raw = posterior.dataset.align(series)
    check_paths(num_paths, bounds, len(raw) * (raw.output_dim + posterior.model.state_dim))
    number = resolve_particles(posterior, num_particles, new_experiment)
    plan = plan_paths(posterior, num_paths, seed, bounds)
    before = begin(posterior, plan.draws, raw, new_experiment, number, seed, index)
    scaled = posterior.dataset.encode(raw, before.past)
    paths = run_predictions(
        plan,
        filter_keys(seed, plan.draws),
        before.state,
        scaled,
        jnp.asarray(before.rows),
        min(int(steps), len(raw)),
        noise,
    )
    result = Forecast.of_paths(
        paths,
        posterior,
        bounds,
        raw.u,
        scaled.u,
        start=before.rows,
        dt=raw.dt or posterior.dataset.experiments[index].dt,
        clock=before.clock,
    )
    warn_of_paths(result)
    ahead = np.minimum(1 + np.arange(len(raw)), steps)
    return widened(result, posterior.calibration, ahead, calibrated)


@check_arguments
def simulate(
    posterior: "Posterior | Stack",
    u: Any = None,
    warmup: Any = None,
    *,
    horizon: int | None = None,
    num_particles: int | None = None,
    num_paths: int = 1000,
    seed: int = 0,
    noise: bool = True,
    bounds: float | None = BOUNDS,
    calibrated: bool | None = None,
) -> Forecast:
    """Simulate a new experiment from its inputs and the first rows, `warmup`.

        posterior.simulate(test.u[50:], warmup=test[:50])

    Parameters
    ----------
    posterior : Posterior or Stack
        What simulates; for a stack the result is the mixture of its members' simulations.
    u : array, DataFrame or Series, optional
        Inputs after the warm-up.
    warmup : Series, DataFrame or array, optional
        The first rows of the experiment, outputs and inputs, from which its state is estimated. By
        default, the state starts at x₀ ~ N(0, I).
    horizon, num_paths, seed, noise, bounds, calibrated
        As in `forecast`.
    num_particles
        As in `condition`.

    Returns
    -------
    Forecast
    """
    if warmup is None:
        start = posterior.map_models(
            lambda model: _at_start(model, None, True, num_particles, seed, -1)
        )
    else:
        start = posterior.condition(
            warmup, new_experiment=True, num_particles=num_particles, seed=seed
        )
    return start.forecast(
        horizon,
        u,
        num_paths=num_paths,
        seed=seed,
        noise=noise,
        bounds=bounds,
        calibrated=calibrated,
    )


def _experiment_clock(
    posterior: "Posterior", rows: Series | None, new_experiment: bool, index: int, before: int
) -> Clock | None:
    """Return the clock of the experiment of the rows, from its first row on.

    Warn if the times of rows that should follow `before` others contradict this.
    """
    if new_experiment:
        return None if rows is None else rows.axis
    current = posterior.current
    clock = posterior.dataset.experiment(index).axis if current is None else current.clock
    complaint = clock and clock.complaint("the new rows", rows, before)
    if clock and not complaint:
        return clock
    if complaint:
        warn(
            complaint + "They are assumed to follow; pass new_experiment=True if they do not, or "
            "insert missing rows as NaN"
        )
    return None if rows is None or rows.clock is None else rows.clock.shifted(-before)


def resolve_particles(
    posterior: "Posterior", num_particles: int | None, new_experiment: bool
) -> int | None:
    """Return the number of particles per draw, None for a Gaussian; raise if it changes."""
    if num_particles is not None:
        check_whole("num_particles", num_particles, 2)
        entries = posterior.num_chains * posterior.num_draws * posterior.model.state_dim
        check_memory(f"num_particles={num_particles}", 8 * entries * int(num_particles))
    if posterior.current is None or new_experiment:
        gaussian = isinstance(posterior.model.likelihood, Gaussian)
        return num_particles if num_particles or gaussian else NUM_PARTICLES
    particles = posterior.current.state.particles
    number = None if particles is None else particles.shape[2]
    if num_particles not in (None, number):
        form = "a Gaussian stands" if number is None else f"{number} particles stand"
        raise ValueError(
            f"{form} for the state already, which cannot change; got {num_particles}: drop it"
        )
    return number


def begin(
    posterior: "Posterior",
    draws: Int[np.ndarray, " S"],
    rows: Series | None,
    new_experiment: bool,
    num_particles: int | None,
    seed: int,
    index: int,
    lookback: int = LOOKBACK,
) -> CurrentState:
    """Return the state of an experiment under these draws before new rows.

    A new experiment starts at x₀ ~ N(0, I). Otherwise the state is the one after earlier rows or,
    after the training series, the state of each draw `lookback` rows before its end, filtered
    through these rows:

        x_{T−lookback} ~ p(x_{T−lookback} | y_{1:T}, v),  x_T ~ p(x_T | x_{T−lookback}, y_{1:T}, v)

    This has the distribution of the last states for every lookback; with a longer lookback, more of
    its spread is within each draw.
    """
    number = 0
    if new_experiment:
        state = _initial_state(posterior, draws, num_particles, seed)
    elif posterior.current is not None:
        state = take_draws(posterior.current.state, draws)
        number = posterior.current.rows
    else:
        state = _last_state(posterior, draws, num_particles, seed, index, lookback)
        number = len(posterior.dataset.experiment(index))
    clock = _experiment_clock(posterior, rows, new_experiment, index, number)
    return CurrentState(state, number, clock, past_inputs(posterior, index, new_experiment))


def _initial_state(
    posterior: "Posterior", draws: Int[np.ndarray, " S"], num_particles: int | None, seed: int
) -> FilterState:
    """Return x₀ ~ N(0, I) of each draw."""
    dim = posterior.model.state_dim
    if num_particles is None:
        return gaussian_state(jnp.zeros((len(draws), dim)), 1.0)
    shape = (num_particles, dim)
    normal = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, FILTER), shape))
    return equal_particles(normal(filter_keys(seed, draws)), jnp.ones(len(draws)))


def _last_state(
    posterior: "Posterior",
    draws: Int[np.ndarray, " S"],
    num_particles: int | None,
    seed: int,
    index: int,
    lookback: int,
) -> FilterState:
    """Return the state at the end of a training series, filtered through its last rows."""
    dataset = posterior.dataset
    length = len(dataset.experiment(index))
    first = dataset.first_states[index] if dataset.first_states else 0
    before = max(length - lookback, first)
    x = jnp.asarray(merge_chains(posterior.draws.states[index])[draws, before - first])
    state = gaussian_state(x, 0.0)
    if num_particles is not None:
        state = equal_particles(jnp.repeat(x[:, None], num_particles, axis=1), state.surprise)
    if before == length:
        return state
    rows = dataset.scaled[index][before:]
    return filter_rows(posterior, draws, state, before, rows, seed).state


def filter_rows(
    posterior: "Posterior",
    draws: Int[np.ndarray, " S"],
    state: FilterState,
    before: int,
    rows: Series,
    seed: int,
    rates: Float[np.ndarray, " S"] | None = None,
) -> Filtered:
    """Filter scaled rows for these draws, from the state before them.

    With `rates`, the state includes the weights.
    """
    members, keys = members_of(posterior, draws), filter_keys(seed, draws)
    factors = None if rates is None else jnp.asarray(rates)
    return run_filter(members, keys, state, rows, jnp.asarray(before), factors)


@jax.jit
def filter_keys(seed: int, draws: Int[np.ndarray, " S"]) -> PRNGKeyArray:
    """Return a random key for the filter of each draw, different from those of forecasts."""
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), FILTER)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(draws))


@in_double_precision
def _at_start(
    posterior: "Posterior",
    rows: Series | None,
    new_experiment: bool,
    num_particles: int | None,
    seed: int,
    index: int,
) -> "Posterior":
    """Return the posterior before any of the new rows."""
    number = resolve_particles(posterior, num_particles, new_experiment)
    draws = all_draws(posterior)
    current = begin(posterior, draws, rows, new_experiment, number, seed, index)
    return _with_current(posterior, current)


def _with_current(posterior: "Posterior", current: CurrentState) -> "Posterior":
    """Return the posterior with a new state of all draws; learned weights are unchanged."""
    state = split_chains(current.state, posterior.draws)
    learned = posterior.learned
    if learned is not None:
        dim = posterior.model.state_dim
        mean, covariance = learned.state.mean[..., dim:], learned.state.covariance[..., dim:, dim:]
        joint = jax.tree.map(np.asarray, joint_state(state, mean, covariance))
        learned = learned._replace(state=joint)
    return dataclasses.replace(posterior, current=current._replace(state=state), learned=learned)
