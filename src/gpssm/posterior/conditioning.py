"""Posteriors and new data: where the state is after some rows, and what comes next along them.

    condition    p(x_t | y_≤t, draw)                where the state is, to forecast from
    predict      p(y_t | y_≤t−steps, draw)          some steps ahead, all along a series
    simulate     p(y_{k+1:k+H} | y_≤k, draw)        through a new experiment, of which k rows are seen

Weights and parameters of every draw stay as they were learned; the filters of `filtering.py` and the paths of
`rollout.py` do the rest.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from gpssm.core.runtime import check_memory, in_double_precision
from gpssm.core.text import check_seed, check_whole
from gpssm.data.clock import Clock
from gpssm.data.dataset import LOOKBACK
from gpssm.data.series import Series
from gpssm.model.likelihoods import Gaussian
from gpssm.posterior.draws import CurrentState, merge_chains
from gpssm.posterior.filtering import CurrentStates, Filtered, points, run_filter, run_predictions
from gpssm.posterior.forecast import Forecast, check_paths, forecast, warn_of_paths, widened
from gpssm.posterior.rollout import BOUNDS, members_of, path_keys, plan, training_box

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

NUM_PARTICLES = 64
FILTER = 2**32 - 3  # in place of a draw's number, for the keys of a filter


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
    """The posterior of the state after new rows, with functions and parameters as they were learned.

        later = posterior.condition(new_rows)
        later.forecast(u=future_inputs)

    Rows go through a filter, in constant time and memory each, however many came before, and give the same result in
    one call or in many. Missing outputs are left out. With a linear-Gaussian emission the state is taken to be Gaussian
    given the draw, which is exact where the transition is linear (`filtering.py`); `num_particles` asks for particles.

    :param series: outputs and controls in the user's units; columns go by name, or by position where they have none.
    :param new_experiment: whether the state starts afresh, x₀ ~ N(0, I); otherwise the rows follow the end of training
        series `index`, or the rows of earlier calls.
    :param num_particles: particles a draw; by default none with a linear-Gaussian emission, and 64 with others. Later
        rows keep to the first's.
    """
    seed, given = check_seed(seed), posterior.dataset.align(series)
    clock = experiment_clock(posterior, given, new_experiment, index)
    past = posterior.past_inputs(index, new_experiment)
    rows = posterior.dataset.encode(given, past)
    draws = np.arange(posterior.num_chains * posterior.num_draws)
    gaussian = takes_gaussian(posterior, num_particles, new_experiment)
    cloud = begin(posterior, draws, new_experiment, num_particles, seed, index)
    cloud = filter_rows(posterior, draws, cloud, rows, seed, gaussian).cloud
    return _with_cloud(
        posterior, cloud, gaussian, clock, np.concatenate([past, given.u])[len(given) :]
    )


def condition_at(
    posterior: "Posterior",
    series: Any,
    rows: Sequence[int],
    *,
    new_experiment: bool = False,
    num_particles: int | None = None,
    seed: int = 0,
    index: int = -1,
) -> Iterator["Posterior"]:
    """`condition` on the first r rows of a series for each r in `rows`, one after the other, in one pass over it.

        origins = range(0, 500, 10)
        for row, origin in zip(origins, posterior.condition_at(test, origins)):
            origin.forecast(30, test.u[row:])

    :param rows: numbers that increase, from 0 to the length of the series; equal distances compile once.
    """
    given = posterior.dataset.align(series)
    stops: list[Any] = (
        list(rows) if isinstance(rows, Iterable) and getattr(rows, "ndim", 1) else [rows]
    )
    for row in stops:
        check_whole("each of rows", row, 0)
    posterior.dataset.encode(
        given
    )  # what cannot be scaled is refused before the first row is asked for
    if stops != sorted(set(stops)) or not stops or stops[0] < 0 or stops[-1] > len(given):
        raise ValueError(
            f"rows must increase and lie between 0 and {len(given)}, the series' length; got {stops}"
        )
    first = at_start(posterior, new_experiment, num_particles, seed, index, given)

    def passing(current: "Posterior") -> Iterator["Posterior"]:
        for before, row in zip([0, *stops], stops, strict=False):
            current = condition(current, given[before:row], seed=seed) if row > before else current
            yield current

    return passing(first)


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
    """Each row y_t of a series given its controls and the outputs up to y_{t−steps}: `steps` ahead, all along it.

        posterior.predict(test, steps=5).score(test)

    The first `steps` rows are predicted from what was known before the series. The paths at a row are a sample of that
    row's law; along the rows they are not one future, for which there are `forecast` and `simulate`. What paths left
    in the `steps` before a row is in `diagnostics`, row by row.

    :param series, new_experiment, num_particles, index: as in `condition`.
    :param num_paths, noise, bounds, calibrated: as in `forecast`. Draws without a path are not
        filtered: few paths are quick.
    """
    check_whole("steps", steps, 1)
    steps = int(steps)
    seed, given = check_seed(seed), posterior.dataset.align(series)
    check_paths(num_paths, bounds, len(given) * (given.output_dim + posterior.model.state_dim))
    draws, each, slots = plan(posterior.num_chains * posterior.num_draws, num_paths)
    cloud = begin(posterior, draws, new_experiment, num_particles, seed, index)
    encoded = posterior.dataset.encode(given, posterior.past_inputs(index, new_experiment))
    found = run_predictions(
        members_of(posterior, draws),
        filter_keys(seed, draws),
        cloud,
        encoded,
        min(steps, len(given)),
        path_keys(jax.random.key(seed, impl="threefry2x32"), draws, each),
        jnp.asarray(slots),
        None if bounds is None else training_box(posterior, draws, bounds),
        noise,
        takes_gaussian(posterior, num_particles, new_experiment),
    )
    result = Forecast.of_paths(
        found,
        posterior,
        bounds,
        given.u,
        encoded.u,
        start=int(cloud.rows),
        dt=given.dt or posterior.dataset.experiments[index].dt,
        clock=experiment_clock(posterior, given, new_experiment, index),
    )
    warn_of_paths(result)
    ahead = np.minimum(1 + np.arange(len(given)), steps)
    return widened(result, posterior.calibration, ahead, calibrated)


def simulate(
    posterior: "Posterior",
    u: Any = None,
    warmup: Any = None,
    *,
    horizon: int | None = None,
    num_particles: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Forecast:
    """A free run of a new experiment under the controls u: no output is seen but those of `warmup`.

        posterior.simulate(test.u[50:], warmup=test[:50])

    :param u, horizon: controls after the warm-up, and number of steps, as in `forecast`.
    :param warmup: the experiment's first rows, outputs and controls, to find its state by; without any the state starts
        at x₀ ~ N(0, I).
    :param settings: further ones of `forecast`: num_paths, noise, bounds, calibrated.
    """
    if warmup is None:
        start = at_start(posterior, True, num_particles, seed)
    else:
        start = condition(
            posterior, warmup, new_experiment=True, num_particles=num_particles, seed=seed
        )
    return forecast(start, horizon, u, seed=seed, **settings)


@in_double_precision
def at_start(
    posterior: "Posterior",
    new_experiment: bool,
    num_particles: int | None,
    seed: int,
    index: int = -1,
    following: Series | None = None,
) -> "Posterior":
    """The same draws, with the cloud before any new row; the rows that will follow it say when they are."""
    clock = experiment_clock(posterior, following, new_experiment, index)
    draws, seed = np.arange(posterior.num_chains * posterior.num_draws), check_seed(seed)
    gaussian = takes_gaussian(posterior, num_particles, new_experiment)
    cloud = begin(posterior, draws, new_experiment, num_particles, seed, index)
    return _with_cloud(
        posterior, cloud, gaussian, clock, posterior.past_inputs(index, new_experiment)
    )


def experiment_clock(
    posterior: "Posterior", rows: Series | None, new_experiment: bool, index: int
) -> Clock | None:
    """The time of the experiment that the rows belong to, from its first row on.

    Rows that should follow others, and by their own dates do not, are warned about.
    """
    own = None if rows is None else rows.clock
    if new_experiment:
        return None if rows is None else rows.axis
    current, before = posterior.current, posterior.dataset.experiment(index)
    clock, known = (before.axis, len(before)) if current is None else (current.clock, current.rows)
    if clock is None:
        return own and own.shifted(-known)
    if said := clock.complaint("the new rows", rows, known):
        words = "They are taken to follow; give new_experiment=True if they do not, or put missing rows in as NaN"
        warnings.warn(said + words, stacklevel=4)
        return own and own.shifted(-known)
    return clock


def takes_gaussian(posterior: "Posterior", num_particles: int | None, new_experiment: bool) -> bool:
    """Whether the state is held as a Gaussian: as the cloud there is, or if no particles are asked for or needed."""
    if posterior.current is not None and not new_experiment:
        return posterior.current.gaussian
    return num_particles is None and isinstance(posterior.model.likelihood, Gaussian)


def begin(
    posterior: "Posterior",
    draws: Int[np.ndarray, " S"],
    new_experiment: bool,
    num_particles: int | None,
    seed: int,
    index: int,
    lookback: int = LOOKBACK,
) -> CurrentStates:
    """The cloud of these draws before any of the rows to come.

    A new experiment starts at x₀ ~ N(0, I). Otherwise the cloud is what earlier rows left; or, after the training
    series, what its last `lookback` rows leave of each draw's state before them:

        x_{T−lookback} ~ p(x_{T−lookback} | y_{1:T}, v),  x_T ~ p(x_T | x_{T−lookback}, y_{1:T}, v)

    has the law of the last states, whatever the lookback, and more of it within each draw the further it goes back.
    """
    _check_number(posterior, num_particles, new_experiment)
    length = len(posterior.dataset.experiment(index))
    if posterior.current is not None and not new_experiment:
        held = posterior.current
        flat = (
            jnp.asarray(merge_chains(part)[draws])
            for part in (held.particles, held.log_weights, held.surprise)
        )
        particles, log_weights, surprise = flat
        return CurrentStates(particles, log_weights, jnp.asarray(held.rows), surprise)
    gaussian, dim = (
        takes_gaussian(posterior, num_particles, new_experiment),
        posterior.model.state_dim,
    )
    number = 2 * dim if gaussian else int(num_particles or NUM_PARTICLES)
    first = posterior.dataset.first_states[index] if posterior.dataset.first_states else 0
    before = 0 if new_experiment else max(length - lookback, first)
    if not new_experiment:
        states = merge_chains(posterior.draws.states[index])[draws, before - first]
        particles = jnp.asarray(np.repeat(states[:, None], number, axis=1))
    elif gaussian:
        particles = jnp.broadcast_to(
            points(jnp.zeros(dim), jnp.eye(dim)), (len(draws), number, dim)
        )
    else:
        normal = jax.vmap(
            lambda key: jax.random.normal(jax.random.fold_in(key, FILTER), (number, dim))
        )
        particles = normal(filter_keys(seed, draws))
    equal = jnp.full((len(draws), number), -np.log(number))
    cloud = CurrentStates(particles, equal, jnp.asarray(before), jnp.ones(len(draws)))
    if new_experiment or before == length:
        return cloud
    return filter_rows(
        posterior, draws, cloud, posterior.dataset.scaled[index][before:], seed, gaussian
    ).cloud


def filter_rows(
    posterior: "Posterior",
    draws: Int[np.ndarray, " S"],
    cloud: CurrentStates,
    rows: Series,
    seed: int,
    gaussian: bool,
) -> Filtered:
    """The filter of these draws along scaled rows, from the cloud before them."""
    return run_filter(members_of(posterior, draws), filter_keys(seed, draws), cloud, rows, gaussian)


@jax.jit
def filter_keys(seed: int, draws: Int[np.ndarray, " S"]) -> PRNGKeyArray:
    """A key for the filter of each draw, by its number; no forecast of the same seed has them."""
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), FILTER)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(draws))


def _check_number(posterior: "Posterior", num_particles: int | None, new_experiment: bool) -> None:
    if num_particles is None:
        return
    check_whole("num_particles", num_particles, 2)
    entries = posterior.num_chains * posterior.num_draws * posterior.model.state_dim
    check_memory(f"num_particles={num_particles}", 8 * entries * int(num_particles))
    cloud = None if new_experiment else posterior.current
    held = cloud and cloud.log_weights.shape[-1]
    if cloud and (cloud.gaussian or held != num_particles):
        what = "a Gaussian stands" if cloud.gaussian else f"{held} particles stand"
        raise ValueError(
            f"{what} for the state already, and will for later rows; got {num_particles}: drop it"
        )


def _with_cloud(
    posterior: "Posterior",
    cloud: CurrentStates,
    gaussian: bool,
    clock: Clock | None,
    past: Float[np.ndarray, "K Du"],
) -> "Posterior":
    """The same draws, with the state where the cloud is, after these controls."""
    axes = (posterior.num_chains, posterior.num_draws)
    particles, log_weights, surprise = (
        np.asarray(part).reshape(*axes, *part.shape[1:])
        for part in (cloud.particles, cloud.log_weights, cloud.surprise)
    )
    current = CurrentState(particles, log_weights, int(cloud.rows), gaussian, surprise, clock, past)
    learned = posterior.learned and posterior.learned._replace(follows=False)
    return dataclasses.replace(posterior, current=current, learned=learned)
