"""New rows change what was learned: by a filter of the weights, or by sampling again.

    learn     p(x_t, v | y_≤t, parameters)    state and function, in constant time per row
    update    p(x, v, parameters | y)         everything, by the sampler of the fit

**Learning.** Given the training states of a draw, the distribution of its weights is exactly
Gaussian, N(P⁻¹b, P⁻¹), as in `model/target.py`; this is the initial distribution of v. From there,
the filter of `filtering.py` tracks [x; v] as one Gaussian for each draw, at a cost of Dx²M² per row
and draw. In the resulting posterior, each draw has newly sampled weights and the state given these
weights, so it forecasts, conditions and saves like any posterior. The weights are sampled for some
rows ahead, as a forecast needs them; weights that drift are less certain there. If the last outputs
were surprising, all variances of a forecast are scaled by the same factor, including the variance
from which the weights are sampled.

**Speed of forgetting.** The speed of a future drift is unknown, and the training rows may show no
sign of it. If the model is only approximately right, one-step errors do not tell which memory
forecasts best thirty rows ahead either. With "auto", the memory 1/(1 − λ) therefore differs between
draws. The candidates are an infinite memory, the length of the longest training series, half of it,
and so on down to a sixteenth. Draws are spread over the widest range of these for which forecasts
inside that series, after its first third, have a CRPS at most `PREMIUM` above the best. If nothing
drifts, forgetting costs accuracy, but little if many draws have a long memory; if something drifts,
not forgetting costs more.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.arguments import check_arguments
from gpssm.core.linalg import cholesky, gram, inverse_lower, inverse_root, root_semidefinite
from gpssm.core.messages import warn
from gpssm.core.metrics import fair_crps
from gpssm.core.runtime import check_memory, in_double_precision, jit
from gpssm.core.text import is_real
from gpssm.data.dataset import LOOKBACK
from gpssm.data.series import Series
from gpssm.inference.progress import Mode, check_progress
from gpssm.inference.runner import Runtime, run_chains
from gpssm.inference.settings import MethodSettings
from gpssm.methods import METHODS
from gpssm.model.likelihoods import Gaussian
from gpssm.model.model import GPSSM
from gpssm.model.target import weights_given_states
from gpssm.model.types import Draw
from gpssm.posterior.conditioning import (
    FILTER,
    NUM_PARTICLES,
    begin,
    condition,
    extended,
    filter_keys,
    filter_rows,
)
from gpssm.posterior.diagnostics import with_notes
from gpssm.posterior.draws import (
    CurrentState,
    FilterState,
    Forecasting,
    Learned,
    Seconds,
    absorb_common,
    all_draws,
    check_states,
    differ_in_model,
    map_draws,
    merge_chains,
    model_of,
    split_chains,
    take_draws,
)
from gpssm.posterior.filtering import (
    equal_particles,
    forget,
    gaussian_state,
    joint_state,
    noise_scale,
)
from gpssm.posterior.validation import FORGETTING, rolling_forecasts
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

Forgetting = float | Sequence[float] | Literal["auto"] | None
Relearn = Literal["weights", "all"] | None
P = ParamSpec("P")

MAX_DRAWS = 100
AHEAD = 15  # rows: half of what a forecast looks ahead
# Share of the CRPS in training that forgetting may cost; forecasts of later rows lose much less.
PREMIUM = 0.1


def each_learner(
    function: Callable[Concatenate["Posterior", P], "Posterior"],
) -> Callable[Concatenate[Forecasting, P], Forecasting]:
    """Decorate a function that learns from new rows: given a stack, every member learns.

    Members without a learned transition, such as linear models, are conditioned instead.
    """

    @functools.wraps(function)
    def learn_each(forecaster: Any, /, *args: P.args, **options: P.kwargs) -> Any:
        def change(model: "Posterior") -> "Posterior":
            if model.learns or model is forecaster:
                return function(model, *args, **options)
            series = args[0] if args else options["series"]
            shared = ("new_experiment", "seed", "index")
            kept: dict[str, Any] = {
                name: options[name] for name in shared if options.get(name) is not None
            }
            return condition(model, series, **kept)

        return forecaster.map_models(change)

    return learn_each


@each_learner
@check_arguments
@in_double_precision
def learn(
    posterior: "Posterior",
    series: Any,
    *,
    forgetting: Forgetting = None,
    new_experiment: bool = False,
    max_draws: int = MAX_DRAWS,
    seed: int = 0,
    index: int = -1,
) -> "Posterior":
    """Return the posterior after learning from new rows; parameters stay fixed.

        later = posterior.learn(new_rows)
        later.forecast(u=future_inputs)

    `condition` updates only the state and `update` samples again; `learn` updates the state and the
    function, in constant time per row. Passing rows in one call or in several gives the same
    result.

    Parameters
    ----------
    series : Series, DataFrame or array
        Outputs and inputs in the user's units; columns are matched by name, or by position if they
        have no names. Missing outputs are ignored.
    forgetting : float, sequence of float or "auto", optional
        λ, the factor per row by which the weight of past rows decreases: 1 for systems that do not
        drift, 0.99 for a memory of about a hundred rows. With several factors, the draws are spread
        over them; "auto" uses all factors that cost little accuracy in the training rows. Later
        calls use the factors of the first call; the default is 1.
    new_experiment : bool
        Whether the rows are a new experiment with x₀ ~ N(0, I). Otherwise they follow the end of a
        training series, or the rows of earlier calls.
    max_draws : int
        Number of draws to continue with, evenly spaced; each stores a covariance of all weights.
    seed : int
        Seed of the weights.
    index : int
        The training series that the rows follow.

    Returns
    -------
    Posterior
    """
    check_states(posterior, "learn")
    rows = posterior.dataset.align(series)
    _check(posterior, forgetting, max_draws)
    if posterior.num_chains * posterior.num_draws > max_draws:
        posterior = posterior.thinned(max_draws)
    if isinstance(forgetting, str):
        forgetting = choose_forgetting(posterior)
    draws = all_draws(posterior)
    learned = posterior.learned
    if forgetting is None and learned is not None:
        rates = merge_chains(learned.rates)
    else:
        # In random order: draws at equal distances along a chain would be alike.
        factors = np.asarray(1.0 if forgetting is None else forgetting, float)
        rates = np.random.default_rng(seed).permutation(np.resize(factors, len(draws)))
    before = begin(posterior, draws, rows, new_experiment, None, 0, index, lookback=0)
    state = _with_weights(posterior, before.state, new_experiment, index, rates)
    scaled = posterior.dataset.encode(rows, before.past)
    state = filter_rows(posterior, draws, state, 0, scaled, 0, rates).state
    num_learned = (learned.rows if learned else 0) + len(rows)
    return _with_learned(posterior, before.after(rows, state), rates, num_learned, seed)


def choose_forgetting(posterior: "Posterior") -> tuple[float, ...]:
    """Return the widest range of λ that costs little in the training rows; 1 if there are too few
    rows."""
    scores = score_forgetting(posterior)
    limit = (1 + PREMIUM) * min(scores.values())
    allowed = [rates for rates, score in scores.items() if score <= limit < np.inf]
    return max(allowed, key=lambda rates: (len(rates), -scores[rates]), default=(1.0,))


@in_double_precision
def score_forgetting(posterior: "Posterior") -> dict[tuple[float, ...], float]:
    """Return the mean CRPS of forecasts inside the longest training series for ranges of λ.

    The CRPS is in standard deviations of the outputs. Starting from the state of each draw after
    the first third, and from its weights given the states up to there, rows are learned with each
    λ, with forecasts at intervals. Each score is for the joint paths of neighbouring λ. The search
    ends at the first λ that is far from the best.
    """
    dataset = posterior.dataset
    index = int(np.argmax([len(item) for item in dataset.experiments]))
    raw = dataset.experiments[index]
    before = int(1 / 3 * len(raw))
    if len(raw) - before < 2:
        return {(1.0,): 0.0}
    scheme = FORGETTING.within(len(raw) - before)
    origins = scheme.origins(len(raw), before)
    fewer = dataclasses.replace(posterior.thinned(FORGETTING.num_draws), calibration=None)
    state = _training_state(fewer, index, before)
    past = dataset.past_inputs(index, before)
    stops = [origin - before for origin in origins]
    deviations: dict[float, list[np.ndarray]] = {}
    scores: dict[tuple[float, ...], float] = {}
    memories = (max(len(raw) / 2**halvings, 2.0) for halvings in range(5))
    for rate in (1.0, *(1 - 1 / memory for memory in memories)):
        start = _with_learned(fewer, CurrentState(state, before, None, past), rate, 0)
        posteriors = extended(start, raw[before:], stops, lambda item, rows: item.learn(rows))
        deviations[rate] = [
            (item.forecast.paths - item.rows.y) / item.forecast.scale
            for item in rolling_forecasts(posteriors, raw, origins, scheme)
        ]
        for first in range(len(deviations)):
            rates = tuple(deviations)[first:]
            by_origin = zip(*(deviations[rate] for rate in rates), strict=True)
            crps = [fair_crps(np.concatenate(paths)) for paths in by_origin]
            scores[rates] = float(np.nanmean(crps)) if np.isfinite(crps).any() else np.inf
        if scores[(rate,)] > 1.5 * min(scores.values()):
            break  # forgetting faster is worse still
    return scores


def _with_weights(
    posterior: "Posterior",
    state: FilterState,
    new_experiment: bool,
    index: int,
    rates: Float[np.ndarray, " S"],
) -> FilterState:
    """Return [x; v] before new rows, from the state x before them.

    After the training series, the state is filtered through the last rows, as in `condition`, and
    the weights are those given the states before these rows.
    """
    learned = posterior.learned
    draws = all_draws(posterior)
    if learned is not None and (posterior.current is None or new_experiment):
        dim = posterior.model.state_dim
        joint = take_draws(learned.state, draws)
        return joint_state(state, joint.mean[:, dim:], joint.covariance[:, dim:, dim:])
    if learned is not None:
        return take_draws(learned.state, draws)
    if posterior.current is None and not new_experiment:
        rows = posterior.dataset.scaled[index]
        before = max(len(rows) - LOOKBACK, 0)
        state = _training_state(posterior, index, before)
        return filter_rows(posterior, draws, state, 0, rows[before:], 0, rates).state
    return joint_state(state, *_training_weights(posterior))


def _training_state(posterior: "Posterior", index: int, before: int) -> FilterState:
    """Return the state of each draw at a training row, and its weights given the past."""
    x = jnp.asarray(merge_chains(posterior.draws.states[index])[:, before])
    return joint_state(gaussian_state(x, 0.0), *_training_weights(posterior, index, before))


def _training_weights(
    posterior: "Posterior", index: int | None = None, before: int = 0
) -> tuple[Float[Array, "S N"], Float[Array, "S N N"]]:
    """Return the moments of v | x ~ N(P⁻¹b, P⁻¹) of each draw.

    Parameters
    ----------
    index
        For this series, only the states up to the row `before` are used; for the others, all.
    """
    scaled = posterior.dataset.scaled
    stops = [len(rows) for rows in scaled]
    if index is not None:
        stops[index] = before
    parts = [place for place, stop in enumerate(stops) if stop]
    states = (posterior.draws.states[place][:, :, : stops[place] + 1] for place in parts)
    draws = posterior.draws._replace(states=tuple(states))
    series = [scaled[place][: stops[place]] for place in parts]
    mean, blocks = map(merge_chains, map_draws(_weight_moments, posterior.model, draws, series))
    count, dim, size = mean.shape
    covariance = np.zeros((count, dim, size, dim, size))
    diagonal = np.arange(dim)
    covariance[:, diagonal, :, diagonal] = np.swapaxes(blocks, 0, 1)
    shape = (count, dim * size, dim * size)
    return jnp.asarray(mean.reshape(shape[:2])), jnp.asarray(covariance.reshape(shape))


def _weight_moments(
    model: GPSSM, draw: Draw, series: list[Series]
) -> tuple[Float[Array, "Dx M"], Float[Array, "Dx M M"]]:
    """Return P⁻¹b and P⁻¹, or 0 and I if there are no rows."""
    if not series:
        dim, size = draw.weights.shape
        return jnp.zeros((dim, size)), jnp.broadcast_to(jnp.eye(size), (dim, size, size))
    weights = weights_given_states(model, list(draw.states), series)
    return weights.mean, gram(inverse_root(weights.precision))


@jit
def draw_weights(
    state: FilterState,
    rates: Float[Array, " S"],
    keys: PRNGKeyArray,
    dim: int,
    num_particles: int | None,
) -> tuple[Float[Array, "S N"], FilterState]:
    """Sample weights for AHEAD rows ahead, and return them with the state given them.

        v = v̄ + √s L ε,   x | v ~ N(x̄ + √s G ε, Cov(x) − GGᵀ),   LLᵀ = Cov(v),  G = Cov(x, v) L⁻ᵀ

    The covariance of the state itself is scaled by s when a forecast starts from it.
    """

    def draw(inputs: tuple[FilterState, Array, PRNGKeyArray]) -> tuple[Array, ...]:
        state, rate, key = inputs
        covariance = forget(state, rate**AHEAD, dim).covariance
        factor = cholesky(covariance[dim:, dim:], jitter=1e-12)
        noise_key, state_key = jax.random.split(jax.random.fold_in(key, FILTER))
        scale = jnp.sqrt(noise_scale(state.surprise))
        noise = scale * jax.random.normal(noise_key, (len(factor),))
        gain = jnp.matmul(covariance[:dim, dim:], inverse_lower(factor).T)
        mean = state.mean[:dim] + gain @ noise
        conditional = covariance[:dim, :dim] - gain @ gain.T
        normal = jax.random.normal(state_key, (num_particles or 0, dim))
        particles = mean[None] + jnp.matmul(normal, root_semidefinite(conditional).T)
        return state.mean[dim:] + factor @ noise, mean, conditional, particles

    weights, mean, covariance, particles = jax.lax.map(draw, (state, rates, keys))
    if num_particles is None:
        return weights, FilterState(mean, covariance, state.surprise)
    return weights, equal_particles(particles, state.surprise)


def _with_learned(
    posterior: "Posterior",
    current: CurrentState,
    rates: float | Float[np.ndarray, " S"],
    num_learned: int,
    seed: int = 0,
) -> "Posterior":
    """Return the posterior with weights and states sampled from [x; v], the current state."""
    number = None if isinstance(posterior.model.likelihood, Gaussian) else NUM_PARTICLES
    rates = np.full(len(current.state.mean), rates)
    keys = filter_keys(seed, np.arange(len(rates)))
    drawn = draw_weights(current.state, jnp.asarray(rates), keys, posterior.model.state_dim, number)
    joint, rates, weights, state = split_chains((current.state, rates, *drawn), posterior.draws)
    return dataclasses.replace(
        posterior,
        draws=posterior.draws._replace(weights=weights.reshape(posterior.draws.weights.shape)),
        current=current._replace(state=state),
        learned=Learned(joint, rates, num_learned),
    )


def _check(posterior: "Posterior", forgetting: Any, max_draws: Any) -> None:
    """Raise for settings that `learn` does not support."""
    if not posterior.learns:
        raise ValueError(
            f"{posterior.spec.method_name!r} has no weights to learn: fit with basis='linear' for "
            "a linear model that learns"
        )
    rates = forgetting if isinstance(forgetting, list | tuple) else [forgetting]
    valid = rates and all(is_real(rate) and 0 < rate <= 1 for rate in rates)
    if not (forgetting is None or valid or (isinstance(forgetting, str) and forgetting == "auto")):
        raise ValueError(
            "forgetting must be a number above 0 and at most 1, several such numbers, or 'auto'; "
            f"got {forgetting!r}"
        )
    size = posterior.model.state_dim + int(np.prod(posterior.model.weights_shape))
    count = min(int(max_draws), posterior.num_chains * posterior.num_draws)
    check_memory(f"learning {size} numbers under {count} draws", 3 * 8 * count * size**2)


def extend(
    posterior: Forecasting,
    series: Any,
    relearn: Relearn = None,
    *,
    new_experiment: bool = False,
    seed: int | None = None,
    index: int = -1,
) -> Forecasting:
    """Return the posterior or stack after new rows; the weights of a stack do not change.

        later = posterior.extend(new_rows, "weights")

    Parameters
    ----------
    series : Series, DataFrame or array
        New rows, as in `condition`.
    relearn : {"weights", "all"}, optional
        What to update besides the state. None: nothing, as in `condition`; "weights": the function,
        as in `learn`; "all": states, weights and noise levels are sampled again, as in `update`.
        These methods have further options.
    new_experiment, seed, index
        As in these methods.

    Returns
    -------
    Posterior or Stack
    """
    verbs: dict[Any, Callable[..., Any]] = {None: condition, "weights": learn, "all": update}
    if not isinstance(relearn, str | None) or relearn not in verbs:
        raise ValueError(f"relearn must be None, 'weights' or 'all'; got {relearn!r}")
    options: dict[str, Any] = {} if seed is None else {"seed": seed}
    return verbs[relearn](posterior, series, new_experiment=new_experiment, index=index, **options)


@each_learner
@check_arguments
@in_double_precision
def update(
    posterior: "Posterior",
    series: Any,
    *,
    new_experiment: bool = False,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    seed: int | None = None,
    progress: Mode = False,
    index: int = -1,
) -> "Posterior":
    """Sample again, given the old data and new rows, starting from the old draws.

        posterior = posterior.update(new_rows)

    The method, its settings and the scaling are those of the fit.

    Parameters
    ----------
    series : Series, DataFrame or array
        New rows, as in `condition`.
    new_experiment : bool
        Whether the rows are a new training series; otherwise they are appended to one.
    num_warmup : int, optional
        By default half of the number of the fit.
    num_draws : int, optional
        By default the number of the fit.
    seed : int, optional
        By default the last seed plus 1.
    progress
        As in `fit`.
    index : int
        The training series that the rows are appended to.

    Returns
    -------
    Posterior
    """
    check_states(posterior, "update")
    if posterior.current is not None and not new_experiment:
        raise ValueError(
            "this posterior has been conditioned on rows that it has not learned from: update "
            "the posterior before `condition`, with all rows since its training data"
        )
    seed = posterior.seed + 1 if seed is None else seed
    check_progress(progress)
    method = _shortened(posterior, num_warmup, num_draws)
    old = posterior.dataset
    dataset = old.extend(old.align(series), None if new_experiment else index)
    first = 0 if new_experiment else len(old.experiments[index])
    rows = dataset.scaled[-1 if new_experiment else index][first:]
    starts = _starts(posterior, rows, new_experiment, seed, index)
    runtime = Runtime(num_chains=posterior.num_chains, seed=seed, progress=progress)
    sample = run_chains(method, starts, list(dataset.scaled), runtime)
    model, draws = absorb_common([start.model for start in starts], sample.draws)
    updated = dataclasses.replace(
        posterior,
        model=model,
        draws=draws,
        info=sample.info,
        warmup=sample.warmup,
        dataset=dataset,
        seconds=Seconds(0.0, sample.compile_seconds, sample.run_seconds),
        seed=seed,
        current=None,
        learned=None,
    )
    updated = with_notes(updated, sample.notes)
    for note in updated.notes:
        warn(note)
    return updated


def _starts(
    posterior: "Posterior", rows: Series, new_experiment: bool, seed: int, index: int
) -> list[Start]:
    """Return the starts of an update: the last draw of the chain with the likeliest states, or of
    each chain where chains have separate models."""
    best = int(np.argmax(np.mean(posterior.info.log_target, 1)))
    chains = range(posterior.num_chains) if differ_in_model(posterior) else [best]
    return [
        Start(
            model_of(posterior, chain, -1),
            extend_states(posterior, chain, rows, new_experiment, seed, index),
        )
        for chain in chains
    ]


def _shortened(
    posterior: "Posterior", num_warmup: int | None, num_draws: int | None
) -> MethodSettings:
    """Return the settings of the run, derived from the fit, so that updates halve them once."""
    spec = posterior.spec
    if not isinstance(spec.method, MethodSettings):
        raise ValueError(
            f"update needs the method of the fit, one of {', '.join(METHODS)}; this was "
            f"{spec.method_name!r}"
        )
    if not spec.settings.learns:
        raise ValueError(
            f"{spec.method_name!r} cannot be updated: fit it again to the old and new data"
        )
    num_warmup = spec.settings.num_warmup // 2 if num_warmup is None else num_warmup
    return spec.replace(num_warmup=num_warmup, num_draws=num_draws).settings


def extend_states(
    posterior: "Posterior", chain: int, rows: Series, new_experiment: bool, seed: int, index: int
) -> list[Float[np.ndarray, "_ Dx"]]:
    """Return the states of the chain's last draw, followed by filtered means for new rows."""
    paths = [np.asarray(path[chain, -1]) for path in posterior.draws.states]
    draw = np.array([(chain + 1) * posterior.num_draws - 1])
    alone = dataclasses.replace(posterior, current=None)
    # Many particles, as all chains start from this path.
    start = begin(alone, draw, None, new_experiment, 256, seed, index, lookback=0)
    means = np.asarray(filter_rows(alone, draw, start.state, start.rows, rows, seed).means[0])
    if new_experiment:
        return [*paths, np.concatenate([np.zeros_like(means[:1]), means])]
    paths[index] = np.concatenate([paths[index], means])
    return paths
