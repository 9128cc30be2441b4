"""Learning from rows as they come: a filter over state and weights together, in constant time and memory a row.

    x_{t+1} = m(z_t) + A(z_t) v_t + N(0, B(z_t) + Q),   y_t ~ p(y | x_{t+1}),   z_t = [x_t; u_t]

Noises, kernel and emission belong to a draw and stay. Given its states in training the weights are Gaussian, exactly:
N(P⁻¹b, P⁻¹), as in `model/target.py`; that is where v starts.

**Forgetting.** With λ = 1 the weights are constants that become known better and better. With λ < 1 they drift: from
row to row their covariance is divided by λ, so that what was learned n rows ago counts λⁿ (the discount of West &
Harrison 1997, 6.3). No weight becomes less certain than it was before any data, N(0, 1): where the plant does not go
for long, the division stops there, and nothing winds up.

How fast a plant drifts is not known either, and its training rows may hold no sign of it; nor do the errors of the next
row tell which memory forecasts best thirty rows ahead, where models are not quite right. So with "auto" the memory
1/(1 − λ) is one more thing that draws differ in. It is for ever, as long as the longest training series, half as long,
and so on down to a sixteenth: the widest range of these with which forecasts inside that series, after its first third,
have a CRPS at most `PREMIUM` above the best. To forget where nothing drifts costs accuracy, but little where many draws
remember; not to forget where something does costs more.

**The filter** holds [x; v] as one Gaussian under each draw. Given x the transition is linear in v, so that only x needs
points: x_i = x̄ ± √Dx · (columns of S), SSᵀ = Cov(x), as in `filtering.py`. With W = S⁻¹ Cov(x, v), the weights at x_i
have the mean v_i = v̄ ± √Dx · (rows of W) and the covariance V = Cov(v) − WᵀW, and with g_i = m(x_i) + A(x_i) v_i

    predict   E[x'] = mean g_i,   Cov(x') = cov g_i + mean A_i V A_iᵀ + diag mean (B_i + Q)
              Cov(x', v) = cov(g_i, v_i) + mean A_i V
    update    by each output in turn, with y_i = E[y | x_i] and q = var y_i + mean Var(y | x_i):
              k = cov([x_i; v_i], y_i) / q,   [x̄; v̄] += k (y − mean y_i),   Cov −= q k kᵀ

It is exact where the model is linear: Kalman's filter where v is known, recursive least squares where x is. Where v is
known it is the Gaussian filter of `filtering.py` too.

A row costs Dx²M² of each draw. The result has weights drawn anew from what is known of them, one set a draw, and the
state given those: it forecasts, conditions and saves as any posterior does. They are the weights of some rows ahead,
for which a forecast needs them: what drifts is less certain there. Where the last outputs were a surprise
(`filtering.py`), all variances of a forecast are scaled alike; that of the weights is, as they are drawn.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import (
    cholesky,
    gram,
    inverse_lower,
    inverse_root,
    log_normal,
    root_semidefinite,
)
from gpssm.core.metrics import fair_crps
from gpssm.core.runtime import check_memory, in_double_precision, jit
from gpssm.core.text import check_seed, check_whole, is_real
from gpssm.data.clock import Clock
from gpssm.data.dataset import LOOKBACK
from gpssm.data.series import Series
from gpssm.model.likelihoods import Gaussian, Likelihood, observed
from gpssm.model.model import Transition
from gpssm.model.target import weights_given_states
from gpssm.posterior.conditioning import FILTER, NUM_PARTICLES, experiment_clock, filter_keys
from gpssm.posterior.draws import CurrentState, Learned, batch_size, merge_chains
from gpssm.posterior.filtering import MEMORY, noise_scale, points
from gpssm.posterior.rollout import Members, is_shared, members_of
from gpssm.posterior.validation import FORGETTING, rolling_forecasts

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

MAX_DRAWS = 100
MEMORIES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of the longest training series
SEEN = (
    1 / 3
)  # share of the longest training series that "auto" starts from; the rest is what it compares by
AHEAD = 15  # rows: half of what a forecast looks ahead
PREMIUM = 0.1  # of CRPS in training, that forgetting may cost; forecasts of rows not fitted to lose much less
FAR = 1.5  # times the best CRPS, from which on nothing faster is tried
JITTER = 1e-12  # of the weights' covariance, relative to its mean diagonal, when they are drawn


class Belief(NamedTuple):
    """[x; v] ~ N of S draws, as in `Learned`, and the surprise of the last outputs, as in `filtering.py`."""

    state: Float[Array, "S Dx"]
    state_covariance: Float[Array, "S Dx Dx"]
    cross: Float[Array, "S Dx N"]
    weights: Float[Array, "S Dx M"]
    covariance: Float[Array, "S N N"]
    surprise: Float[Array, " S"]


class LearnedRows(NamedTuple):
    """What is believed after T rows, and along them."""

    belief: Belief
    log_density: Float[Array, "S T"]  # log p(y_t | y_<t)
    states: Float[Array, "S T Dx"]  # E[x_{t+1} | y_≤t]


@in_double_precision
def learn(
    posterior: "Posterior",
    series: Any,
    *,
    forgetting: float | Sequence[float] | Literal["auto"] | None = None,
    new_experiment: bool = False,
    max_draws: int = MAX_DRAWS,
    seed: int = 0,
    index: int = -1,
) -> "Posterior":
    """The posterior of state and weights after new rows, in constant time a row; parameters stay as learned.

        now = posterior.learn(new_rows)
        now.forecast(u=future_inputs)

    Where `condition` finds the state alone and `update` samples anew, this goes on learning the function, with all
    that was known of it before. Rows give the same result in one call or in many. Missing outputs are left out.

    :param series: outputs and controls in the user's units; columns go by name, or by position where they have none.
    :param forgetting: λ, what a row counts one row later, for plants that drift: 1 for those that do not, .99 to
        remember a hundred rows or so; several, over which the draws are spread; "auto" for all that cost little in the
        training rows. Later calls keep to the first one's, and it is 1 if never given.
    :param new_experiment: whether the state starts afresh, x₀ ~ N(0, I); otherwise the rows follow the end of training
        series `index`, or the rows of earlier calls.
    :param max_draws: to go on with, evenly spaced: each holds a covariance of all weights.
    """
    seed, given = check_seed(seed), posterior.dataset.align(series)
    _check(posterior, forgetting, max_draws)
    if posterior.num_chains * posterior.num_draws > max_draws:
        posterior = posterior.thinned(max_draws)
    clock = experiment_clock(posterior, given, new_experiment, index)
    past = posterior.past_inputs(index, new_experiment)
    rows = posterior.dataset.encode(given, past)
    draws = np.arange(posterior.num_chains * posterior.num_draws)
    if isinstance(forgetting, str):
        forgetting = choose_forgetting(posterior)
    if forgetting is None and posterior.learned is not None:
        rates = merge_chains(posterior.learned.rates)
    else:
        several = np.resize(
            np.asarray(1.0 if forgetting is None else forgetting, float), len(draws)
        )
        rates = np.random.default_rng(seed).permutation(
            several
        )  # at random, or every so many draws would be alike
    members, (belief, before) = (
        members_of(posterior, draws),
        _begin(posterior, new_experiment, index, rates),
    )
    found = run_learning(members, belief, rows, jnp.asarray(rates))
    belief = found.belief
    drawn = _draw(belief, jnp.asarray(rates), filter_keys(seed, draws), _is_gaussian(posterior))
    past = np.concatenate([past, given.u])[len(given) :]
    return _with_belief(posterior, belief, drawn, rates, before + len(rows), len(rows), clock, past)


def choose_forgetting(posterior: "Posterior") -> tuple[float, ...]:
    """The widest range of λ that costs little in the training rows; 1 where they cannot tell."""
    scores = score_forgetting(posterior)
    allowed = [
        several
        for several, score in scores.items()
        if score <= (1 + PREMIUM) * min(scores.values()) < np.inf
    ]
    return max(allowed, key=lambda several: (len(several), -scores[several]), default=(1.0,))


@in_double_precision
def score_forgetting(posterior: "Posterior") -> dict[tuple[float, ...], float]:
    """The mean CRPS, in standard deviations of the outputs, of forecasts inside the longest training series.

    From each draw's state after the first third, and the weights given its states up to there, rows are learned with
    each λ, and `ORIGINS` forecasts made on the way. The scores are those of the paths of neighbouring λ together. What
    is far from the best is not followed by what forgets faster still.
    """
    dataset = posterior.dataset
    index = int(np.argmax([len(item) for item in dataset.experiments]))
    raw = dataset.experiments[index]
    before = int(SEEN * len(raw))
    if len(raw) - before < 2:
        return {(1.0,): 0.0}
    scheme = FORGETTING.within(len(raw) - before)
    origins = scheme.origins(len(raw), before)
    fewer = dataclasses.replace(posterior.thinned(FORGETTING.num_draws), calibration=None)
    start = _at_training(fewer, index, before)
    deviations: dict[float, list[np.ndarray]] = {}
    scores: dict[tuple[float, ...], float] = {}
    for rate in (1.0, *(1 - 1 / max(share * len(raw), 2.0) for share in MEMORIES)):
        learned = _learned_in_training(fewer, start, index, origins, rate)
        deviations[rate] = [
            (one.forecast.paths - one.rows.y) / one.forecast.scale
            for one in rolling_forecasts(learned, raw, origins, scheme)
        ]
        for first in range(len(deviations)):
            several = tuple(deviations)[first:]
            pooled = [
                fair_crps(np.concatenate(one))
                for one in zip(*(deviations[rate] for rate in several), strict=True)
            ]
            scores[several] = float(np.nanmean(pooled)) if np.isfinite(pooled).any() else np.inf
        if scores[(rate,)] > FAR * min(scores.values()):
            break
    return scores


def _learned_in_training(
    posterior: "Posterior",
    belief: Belief,
    index: int,
    origins: range,
    rate: float,
) -> Iterator["Posterior"]:
    """The posterior at each of these rows of a training series, from the belief at the first."""
    dataset = posterior.dataset
    series = dataset.scaled[index]
    draws = np.arange(posterior.num_chains * posterior.num_draws)
    members = members_of(posterior, draws)
    forgetting = jnp.asarray(rate)
    rates = np.full(len(draws), rate)
    for before, origin in pairwise([origins[0], *origins]):
        if origin > before:
            belief = run_learning(members, belief, series[before:origin], forgetting).belief
        drawn = _draw(belief, forgetting, filter_keys(0, draws), _is_gaussian(posterior))
        past = dataset.past_inputs(index, origin)
        yield _with_belief(posterior, belief, drawn, rates, origin, 0, None, past)


@jit
def run_learning(
    members: Members, belief: Belief, series: Series, forgetting: Float[Array, "*S"]
) -> LearnedRows:
    """What is believed after the rows of a scaled series, and what was along them; one λ for all draws, or one each.

    One draw after the other on a CPU: its covariance stays in the cache along the rows.
    """
    model, shared = members.model, is_shared(members.leaves)
    common = model.transition() if shared else None
    seen = observed(jnp.asarray(series.y))
    rows = (jnp.asarray(series.u), seen.y, seen.present)

    def one(given: tuple[Belief, dict[str, Array], Array]) -> LearnedRows:
        start, leaves, rate = given
        current = model.with_leaves(leaves)
        transition = current.transition() if common is None else common

        def step(
            belief: Belief, row: tuple[Array, Array, Array]
        ) -> tuple[Belief, tuple[Array, Array]]:
            ahead = predict(transition, current.process_variance, forget(belief, rate), row[0])
            found, log_density = update(current.likelihood, ahead, *row[1:])
            # A draw that has gone astray must not become one of no numbers.
            sound = jnp.isfinite(found.state).all() & jnp.isfinite(jnp.trace(found.covariance))
            found = jax.tree.map(lambda new, old: jnp.where(sound, new, old), found, belief)
            return found, (log_density, found.state)

        found, along = jax.lax.scan(step, start, rows)
        return LearnedRows(found, *along)

    rates = jnp.broadcast_to(forgetting, belief.surprise.shape)
    return jax.lax.map(one, (belief, members.leaves, rates), batch_size=batch_size())


def forget(belief: Belief, forgetting: Float[Array, ""]) -> Belief:
    """Cov(v) ← D Cov(v) D and Cov(x, v) ← Cov(x, v) D, of one draw: D = λ^{−½}, or less where that passes the prior."""
    least = jnp.maximum(jnp.diagonal(belief.covariance), jnp.finfo(belief.covariance.dtype).tiny)
    grown = jnp.maximum(jnp.minimum(1 / jnp.sqrt(forgetting), 1 / jnp.sqrt(least)), 1.0)
    covariance = grown[:, None] * belief.covariance * grown[None]
    return belief._replace(cross=belief.cross * grown[None], covariance=covariance)


def predict(
    transition: Transition,
    process_variance: Float[Array, " Dx"],
    belief: Belief,
    u: Float[Array, " Du"],
) -> Belief:
    """[x_t; v] → [x_{t+1}; v], of one draw."""
    x, shifts, rest = _points(belief)
    step = transition(x, jnp.broadcast_to(u, (len(x), *u.shape)))
    gain = jnp.swapaxes(step.gain, 0, 1)
    moved = step.mean + jnp.sum(
        gain * (belief.weights[None] + shifts.reshape(-1, *belief.weights.shape)), -1
    )
    mean = jnp.mean(moved, 0)
    gaps = moved - mean[None]
    # A_i V, and A_i V A_iᵀ
    known = jnp.matmul(step.gain, rest.reshape(*belief.weights.shape, -1))
    open_ = jnp.sum(
        known.reshape(*known.shape[:2], *belief.weights.shape) * gain[None], (1, 3)
    ) / len(x)
    noise = process_variance + jnp.mean(jnp.maximum(step.residual, 0.0), 1)
    covariance = gram(gaps) / len(x) + 0.5 * (open_ + open_.T) + jnp.diag(noise)
    cross = jnp.matmul(gaps.T, shifts) / len(x) + jnp.mean(known, 1)
    return belief._replace(state=mean, state_covariance=covariance, cross=cross)


def update(
    likelihood: Likelihood, belief: Belief, y: Float[Array, " Dy"], present: Float[Array, " Dy"]
) -> tuple[Belief, Float[Array, ""]]:
    """[x; v] given the outputs of a row, one after the other, and their log density; those missing change nothing."""

    def one(
        carry: tuple[Belief, Array], output: tuple[Array, Array, Array]
    ) -> tuple[tuple[Belief, Array], None]:
        (belief, log_density), (place, value, there) = carry, output
        x, shifts, _ = _points(belief)
        means, variances = (moment[:, place] for moment in likelihood.moments(x))
        expected = jnp.mean(means)
        gaps = (means - expected) / len(x)
        variance = jnp.sum(gaps * (means - expected)) + jnp.mean(variances)
        across, known = jnp.matmul(gaps, x - belief.state[None]), jnp.matmul(gaps, shifts)
        error, weight = value - expected, there / variance
        found = belief._replace(
            state=belief.state + weight * error * across,
            state_covariance=belief.state_covariance - weight * jnp.outer(across, across),
            cross=belief.cross - weight * jnp.outer(across, known),
            weights=belief.weights + weight * error * known.reshape(belief.weights.shape),
            covariance=belief.covariance - weight * jnp.outer(known, known),
            surprise=belief.surprise + there * (error**2 / variance - belief.surprise) / MEMORY,
        )
        return (found, log_density + jnp.where(there, log_normal(error, 0.0, variance), 0.0)), None

    start = (belief, jnp.zeros((), belief.state.dtype))
    return jax.lax.scan(one, start, (jnp.arange(len(y)), y, present))[0]


def _points(
    belief: Belief,
) -> tuple[Float[Array, "2Dx Dx"], Float[Array, "2Dx N"], Float[Array, "N N"]]:
    """The points x_i of the state, what the weights at each are away from their mean, v_i − v̄, and V."""
    root = root_semidefinite(belief.state_covariance)
    rows = []  # of W = S⁻¹ Cov(x, v), from the first on; none where the state has no extent
    for place in range(len(root)):
        rest = belief.cross[place] - sum(
            (root[place, before] * rows[before] for before in range(place)), jnp.zeros(())
        )
        pivot = root[place, place]
        rows.append(jnp.where(pivot > 0, rest / jnp.where(pivot > 0, pivot, 1.0), 0.0))
    slopes = jnp.stack(rows)
    spread = jnp.sqrt(float(len(root)))
    x = belief.state[None] + spread * jnp.concatenate([root.T, -root.T])
    return x, spread * jnp.concatenate([slopes, -slopes]), belief.covariance - gram(slopes)


class Drawn(NamedTuple):
    """Weights from what is known of them, and the cloud of the state given those (`filtering.py`)."""

    weights: Float[Array, "S Dx M"]
    particles: Float[Array, "S P Dx"]


@jit
def _draw(
    belief: Belief, forgetting: Float[Array, "*S"], keys: PRNGKeyArray, gaussian: bool
) -> Drawn:
    """v ~ N(v̄, s LLᵀ), AHEAD rows from now, and x | v ~ N(x̄ + √s G ε, Cov(x) − GGᵀ): v = v̄ + √s L ε, G = Cov(x, v) L⁻ᵀ.

    The cloud's own covariance is scaled by s when a forecast starts from it.
    """

    def one(given: tuple[Belief, Array, PRNGKeyArray]) -> Drawn:
        belief, key = forget(given[0], given[1] ** AHEAD), given[2]
        factor = cholesky(belief.covariance, jitter=JITTER)
        noise_key, state_key = jax.random.split(jax.random.fold_in(key, FILTER))
        noise = jnp.sqrt(noise_scale(belief.surprise)) * jax.random.normal(
            noise_key, (len(factor),)
        )
        weights = belief.weights + (factor @ noise).reshape(belief.weights.shape)
        gain = jnp.matmul(belief.cross, inverse_lower(factor).T)
        mean, covariance = belief.state + gain @ noise, belief.state_covariance - gain @ gain.T
        if gaussian:
            return Drawn(weights, points(mean, covariance))
        normal = jax.random.normal(state_key, (NUM_PARTICLES, len(mean)))
        return Drawn(weights, mean[None] + jnp.matmul(normal, root_semidefinite(covariance).T))

    return jax.lax.map(one, (belief, jnp.broadcast_to(forgetting, belief.surprise.shape), keys))


def _begin(
    posterior: "Posterior", new_experiment: bool, index: int, rates: Float[np.ndarray, " S"]
) -> tuple[Belief, int]:
    """What is believed before the new rows, and how many rows of their experiment came before.

    After the training series that is what its last rows leave of each draw's state before them, as in `condition`, and
    of the weights given the states up to there.
    """
    held, current = posterior.learned, posterior.current
    members = members_of(posterior, np.arange(posterior.num_chains * posterior.num_draws))
    count, dim = len(members.weights), posterior.model.state_dim
    if current is None and held is None and not new_experiment:
        series = posterior.dataset.scaled[index]
        before = max(len(posterior.dataset.experiment(index)) - LOOKBACK, 0)
        belief = _at_training(posterior, index, before)
        return run_learning(members, belief, series[before:], jnp.asarray(rates)).belief, len(
            series
        )
    if held is None:
        belief = _at_training(posterior, None, 0)
    else:
        state, covariance, cross, weights, known = (
            jnp.asarray(merge_chains(part)) for part in held[:5]
        )
        belief = Belief(state, covariance, cross, weights, known, jnp.ones(count))
    if new_experiment:
        rows, state, covariance = (
            0,
            jnp.zeros((count, dim)),
            jnp.broadcast_to(jnp.eye(dim), (count, dim, dim)),
        )
    elif current is None:
        last = merge_chains(posterior.draws.states[index])[:, -1]
        rows, state, covariance = (
            len(posterior.dataset.scaled[index]),
            jnp.asarray(last),
            jnp.zeros((count, dim, dim)),
        )
    else:
        rows, belief = (
            current.rows,
            belief._replace(surprise=jnp.asarray(merge_chains(current.surprise))),
        )
        if held is not None and held.follows:
            return belief, rows
        particles, shares = (
            merge_chains(current.particles),
            np.exp(merge_chains(current.log_weights))[..., None],
        )
        state = jnp.asarray(np.sum(shares * particles, 1))
        gaps = particles - np.asarray(state)[:, None]
        covariance = jnp.asarray(np.matmul(np.swapaxes(gaps, 1, 2), shares * gaps))
    return belief._replace(
        state=state, state_covariance=covariance, cross=jnp.zeros_like(belief.cross)
    ), rows


def _at_training(posterior: "Posterior", index: int | None, before: int) -> Belief:
    """Each draw's own state at row `before` of training series `index`, and its weights given all states but later
    ones of that series; at the end of all where there is no index.
    """
    series = posterior.dataset.scaled
    number = range(len(series))
    chosen = None if index is None else number[index]
    stops = [before if one == chosen else len(series[one]) for one in number]
    kept = [one for one in number if stops[one] > 0]
    paths = [jnp.asarray(merge_chains(path)) for path in posterior.draws.states]
    states = [paths[one][:, : stops[one] + 1] for one in kept]
    members = members_of(posterior, np.arange(posterior.num_chains * posterior.num_draws))
    weights, covariance = _weights(members, states, [series[one][: stops[one]] for one in kept])
    count, dim, size = len(weights), posterior.model.state_dim, covariance.shape[-1]
    at = jnp.zeros((count, dim)) if chosen is None else paths[chosen][:, before]
    nothing = jnp.zeros((count, dim, dim))
    return Belief(at, nothing, jnp.zeros((count, dim, size)), weights, covariance, jnp.ones(count))


@jit
def _weights(
    members: Members, states: list[Float[Array, "S _ Dx"]], series: list[Series]
) -> tuple[Float[Array, "S Dx M"], Float[Array, "S N N"]]:
    """v | x ~ N(P⁻¹b, P⁻¹) of each draw, with the covariance of all states' weights; the prior where there is no x."""
    count, size = members.weights.shape[1:]
    if not states:
        nothing, whole = jnp.zeros_like(members.weights), jnp.eye(count * size)
        return nothing, jnp.broadcast_to(whole, (len(nothing), *whole.shape))

    def one(given: tuple[list[Array], dict[str, Array]]) -> tuple[Array, Array]:
        paths, leaves = given
        found = weights_given_states(members.model.with_leaves(leaves), paths, series)
        blocks = gram(inverse_root(found.precision))
        whole, at = jnp.zeros((count, size, count, size)), jnp.arange(count)
        return found.mean, whole.at[at, :, at, :].set(blocks).reshape(count * size, -1)

    return jax.lax.map(one, (states, members.leaves), batch_size=batch_size())


def _with_belief(
    posterior: "Posterior",
    belief: Belief,
    drawn: Drawn,
    rates: Float[np.ndarray, " S"],
    rows: int,
    new: int,
    clock: Clock | None,
    past: Float[np.ndarray, "K Du"],
) -> "Posterior":
    """The posterior with weights and state as drawn, and what is believed kept beside them."""
    axes = (posterior.num_chains, posterior.num_draws)

    def split(part: Array) -> np.ndarray:
        return np.asarray(part).reshape(*axes, *part.shape[1:])

    state, covariance, cross, weights, known, surprise = map(split, belief)
    held = posterior.learned
    before = 0 if held is None else held.rows
    fastest = float(rates.min())
    learned = Learned(
        state, covariance, cross, weights, known, rates.reshape(axes), fastest, new + before
    )
    gaussian, number = _is_gaussian(posterior), drawn.particles.shape[1]
    equal = np.full((*axes, number), -np.log(number))
    current = CurrentState(split(drawn.particles), equal, rows, gaussian, surprise, clock, past)
    draws = posterior.draws._replace(weights=split(drawn.weights))
    return dataclasses.replace(posterior, draws=draws, current=current, learned=learned)


def _is_gaussian(posterior: "Posterior") -> bool:
    """Whether the state's cloud is a Gaussian, as in `condition`."""
    return isinstance(posterior.model.likelihood, Gaussian)


def _check(posterior: "Posterior", forgetting: Any, max_draws: Any) -> None:
    """Refuse at once what cannot be."""
    check_whole("max_draws", max_draws, 1)
    if not posterior.learns:
        raise ValueError(
            f"{posterior.spec.method_name!r} has no weights to learn: fit with basis='linear' for a linear model that "
            "learns"
        )
    auto = isinstance(forgetting, str) and forgetting == "auto"
    several = forgetting if isinstance(forgetting, list | tuple) else [forgetting]
    if not (
        forgetting is None
        or auto
        or (several and all(is_real(one) and 0 < one <= 1 for one in several))
    ):
        raise ValueError(
            f"forgetting must be a number above 0 and at most 1, several, or 'auto'; got {forgetting!r}"
        )
    size = posterior.model.state_dim + int(np.prod(posterior.model.weights_shape))
    many = min(int(max_draws), posterior.num_chains * posterior.num_draws)
    check_memory(f"learning {size} numbers under {many} draws", 3 * 8 * many * size**2)
