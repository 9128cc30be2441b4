"""`fic-pg` (Frigola, Lindsten, Schön & Rasmussen 2013): particle Gibbs with the transition function
integrated out.

    p(x₀:T, y) = p(x₀) Π_t p(y_t | x_{t+1})
                 Π_d N(x_{t+1,d}; m_d + A_d μ_{t,d}, A_d Σ_{t,d} A_dᵀ + B_d + Q_d)

where v_d | x₀:t ~ N(μ_{t,d}, Σ_{t,d}): the states are no longer Markov, and each particle carries
the distribution of the weights given its path. Under the fully independent conditional (FIC), f
given v is independent between steps, so that this distribution concerns M weights instead of t
function values and changes by rank one: a sweep costs O(N M² T). The conditioned path draws a new
ancestor at each time, with probabilities

    w_t^i p(x'_{t+1:T} | x₀:t^i),

a ratio of path evidences. It is the "predictive" target of `ffvd-p`, which draws v and x in turn
and therefore mixes slowly if they are strongly dependent. Parameters are updated by the path
evidence, log p(x₀:T, y), as in the other methods.

**Beliefs.** A transition is an observation of the weights, x'_d = mean_d + gain_d·v_d +
N(0, spread_d). Adding a transition to a path or removing one updates the belief about v. With v ~
N(μ, Σ), k = Σ·gain and q = gain·k + spread,

    learn     Σ ← Σ − kkᵀ/q,   μ ← μ + k (x' − mean − gain·μ)/q
    forget    Σ ← Σ + kkᵀ/g,   μ ← μ − k (x' − mean − gain·μ)/g,   g = spread − gain·k

both in O(M²), whereas a factorisation takes O(M³). Ancestor sampling needs the density of a given
future F of transitions given the past of a particle, which is updated from the same quantities. For
a transition τ added to the past and a transition φ removed from the future,

    log p(F∖φ | past, τ) = log p(F | past) + log p(τ | past, F) − log p(τ | past)
                           − log p(φ | past, τ, F∖φ)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import condition_gaussian, gram, inverse_root, log_normal, rank_one
from gpssm.data.series import Series
from gpssm.inference.parameters import Parameters
from gpssm.inference.settings import States
from gpssm.methods.particle_gibbs import (
    GibbsSampler,
    ParticleSettings,
    PredictiveMoves,
    guide,
    scaled_statistics,
)
from gpssm.model.model import GPSSM, Transition
from gpssm.model.target import output_potential
from gpssm.model.types import FeynmanKac


class FICSampler(GibbsSampler):
    """The iterations of `fic-pg`."""

    move_type = PredictiveMoves

    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Sweep through each series in turn, given the distribution of v under the paths of the
        others.
        """
        model = self.moves.apply(parameters)
        moved = list(states)
        sums = [
            scaled_statistics(model, (path,), [experiment])
            for path, experiment in zip(states, series, strict=True)
        ]
        prior = jnp.eye(model.basis.size, dtype=sums[0].gram.dtype)[None]
        for place, experiment in enumerate(series):
            precision = jnp.zeros_like(sums[0].gram) + prior
            linear = jnp.zeros_like(sums[0].cross)
            for other in sums[:place] + sums[place + 1 :]:
                precision = precision + other.gram
                linear = linear + other.cross
            moved[place] = sweep(
                jax.random.fold_in(key, place),
                model,
                moved[place],
                experiment,
                self.settings.num_particles,
                precision,
                linear,
            )
            sums[place] = scaled_statistics(model, (moved[place],), [experiment])
        return tuple(moved)


@dataclass(frozen=True)
class FICParticleGibbs(ParticleSettings):
    """Settings of `fic-pg`; `ParticleSettings` and `MethodSettings` document them.

    Sweeps are slow, so that the default is few iterations with larger steps of Adam.
    """

    sampler = FICSampler

    num_warmup: int = 120
    num_draws: int = 25
    learning_rate: float = 0.08
    num_particles: int = 16


class Look(NamedTuple):
    """x'_nd = mean_nd + gain_nd·v_d + N(0, spread_nd)."""

    mean: Float[Array, "N Dx"]
    gain: Float[Array, "N Dx M"]
    spread: Float[Array, "N Dx"]


class WeightBelief(NamedTuple):
    """v_d ~ N(mean_nd, covariance_nd) for particle n."""

    mean: Float[Array, "N Dx M"]
    covariance: Float[Array, "N Dx M M"]


class Prediction(NamedTuple):
    """x'_nd ~ N(mean_nd, variance_nd) for particle n, and cross = Cov(v_d, x'_nd) = k."""

    mean: Float[Array, "N Dx"]
    variance: Float[Array, "N Dx"]
    cross: Float[Array, "N Dx M"]

    def log_prob(self, following: Float[Array, "N Dx"]) -> Float[Array, " N"]:
        """Return log p(x' | path of the particle)."""
        return jnp.sum(log_normal(following, self.mean, self.variance), -1)


class Lineage(NamedTuple):
    """The beliefs of each particle given its past, and given its past and a given future.

    `log_future` is log p(future | past), up to a constant.
    """

    past: WeightBelief
    whole: WeightBelief
    log_future: Float[Array, " N"]


# Predictions of the next transition given the past, and given the past and the future.
Outlook = tuple[Prediction, Prediction]


def begin(
    precision: Float[Array, "Dx M M"],
    linear: Float[Array, "Dx M"],
    future: Look,
    following: Float[Array, "T Dx"],
    count: int,
) -> Lineage:
    """Return N particles with no past.

    Parameters
    ----------
    precision, linear
        P and b of the prior p(v_d) ∝ exp(bᵀv − ½ vᵀPv).
    future, following
        The transitions of the future, and their values.
    count
        N.
    """
    scaled = future.gain / future.spread[:, :, None]
    error = following - future.mean
    # AᵀA/s and Aᵀr/s by one matrix product per state
    future_precision = gram(jnp.moveaxis(future.gain / jnp.sqrt(future.spread)[:, :, None], 0, 1))
    future_linear = jnp.sum(scaled * error[:, :, None], 0)
    past = _belief(precision, linear, count)
    whole = _belief(precision + future_precision, linear + future_linear, count)
    return Lineage(past, whole, jnp.zeros(count, linear.dtype))


def look_ahead(lineage: Lineage, look: Look) -> Outlook:
    """Return the predictions of the next transition of each particle."""
    return predict(lineage.past, look), predict(lineage.whole, look)


def predict(belief: WeightBelief, look: Look) -> Prediction:
    """Return x' ~ N(mean + gain·μ, gain·k + spread),  k = Σ·gain."""
    cross = jnp.matmul(belief.covariance, look.gain[..., None])[..., 0]
    mean = look.mean + jnp.sum(look.gain * belief.mean, -1)
    return Prediction(mean, jnp.sum(look.gain * cross, -1) + look.spread, cross)


def advance(
    lineage: Lineage,
    outlook: Outlook,
    parents: Int[Array, " N"],
    following: Float[Array, "N Dx"],
    leaving: Look,
    value: Float[Array, "1 Dx"],
) -> Lineage:
    """Return the lineage of children one step later.

    Parameters
    ----------
    lineage, outlook
        Lineage and predictions of the parents.
    parents
        Index of the parent of each child.
    following
        The states of the children.
    leaving, value
        The transition to remove from the future, and its value.
    """
    past, whole = jax.tree.map(lambda part: part[parents], outlook)
    joint, log_leaving = _forget(_learn(lineage.whole, whole, parents, following), leaving, value)
    gained = whole.log_prob(following) - past.log_prob(following)
    log_future = lineage.log_future[parents] + gained - log_leaving
    return Lineage(_learn(lineage.past, past, parents, following), joint, log_future)


def _belief(
    precision: Float[Array, "Dx M M"], linear: Float[Array, "Dx M"], count: int
) -> WeightBelief:
    """Return N(P⁻¹b, P⁻¹) for each of N particles."""
    covariance = gram(inverse_root(precision))
    mean = jnp.matmul(covariance, linear[:, :, None])[:, :, 0]
    return jax.tree.map(
        lambda part: jnp.broadcast_to(part[None], (count, *part.shape)),
        WeightBelief(mean, covariance),
    )


def _learn(
    belief: WeightBelief,
    prediction: Prediction,
    parents: Int[Array, " N"],
    following: Float[Array, "N Dx"],
) -> WeightBelief:
    """Return the beliefs of the children from the beliefs and predictions of the parents."""
    mean, covariance = (part[parents] for part in belief)
    error = following - prediction.mean
    return WeightBelief(
        *condition_gaussian(mean, covariance, prediction.cross, prediction.variance, error)
    )


def _forget(
    belief: WeightBelief, look: Look, value: Float[Array, "1 Dx"]
) -> tuple[WeightBelief, Float[Array, " N"]]:
    """Return the belief without one transition, and the log density of its value given the others.

    The prediction of the value then has variance spread²/g and error (value − mean − gain·μ)
    spread/g.
    """
    prediction = predict(belief, look)
    room = 2 * look.spread - prediction.variance  # g = spread − gain·k
    error = value - prediction.mean
    mean = belief.mean - prediction.cross * (error / room)[:, :, None]
    covariance = belief.covariance + rank_one(prediction.cross, room)
    log_density = 0.5 * jnp.log(room / (2 * jnp.pi * look.spread**2)) - 0.5 * error**2 / room
    return WeightBelief(mean, covariance), jnp.sum(log_density, -1)


def sweep(
    key: PRNGKeyArray,
    model: GPSSM,
    path: Float[Array, "T+1 Dx"],
    series: Series,
    count: int,
    precision: Float[Array, "Dx M M"],
    linear: Float[Array, "Dx M"],
) -> Float[Array, "T+1 Dx"]:
    """Draw a new path given the current one, the weights integrated out under p(v_d) ∝ exp(bᵀv − ½
    vᵀPv).

    Particle 0 follows the current path and draws new ancestors.
    """
    start_key, inputs_key, end_key = jax.random.split(key, 3)
    transition = model.transition()
    u = jnp.asarray(series.u, path.dtype)
    log_output = output_potential(model, series)
    later = jax.tree.map(lambda part: jnp.roll(part, -1, 0), _look(model, transition, path[:-1], u))
    # There is no transition after the last: an observation without gain has no effect.
    future, values = later._replace(gain=later.gain.at[-1].set(0.0)), jnp.roll(path[1:], -1, 0)
    lineage = begin(precision, linear, future, values, count)
    start = jax.random.normal(start_key, (count, path.shape[1]), path.dtype).at[0].set(path[0])

    def step(
        carry: tuple[Array, Array, Lineage], row: tuple[Any, ...]
    ) -> tuple[tuple[Array, Array, Lineage], tuple[Array, Array]]:
        x, log_weight, lineage = carry
        # `leaving` and `value` are the transition to remove from the future of the current path.
        time, noise, gumbel, held, leaving, value = row
        look = _look(model, transition, x, jnp.broadcast_to(u[time][None], (count, u.shape[1])))
        outlook = look_ahead(lineage, look)
        expected, informed = outlook
        # One step of the particles, from what each of them expects of it.
        form = FeynmanKac(lambda t, x: (expected.mean, expected.variance), log_output)
        law = guide(model, form, series)
        proposal = law.propose(time, x)
        # w_t^i p(x'_{t+1:T} | x₀:t^i)
        log_ancestor = log_weight + lineage.log_future + informed.log_prob(held[None])
        scores = (log_weight + proposal.log_ahead)[None] + gumbel
        parents = jnp.argmax(scores.at[0].set(log_ancestor + gumbel[0]), -1)
        shock = jnp.matmul(proposal.factor[parents], noise[:, :, None])[:, :, 0]
        following = (proposal.mean[parents] + shock).at[0].set(held)
        lineage = advance(lineage, outlook, parents, following, leaving, value)
        log_weight = law.log_weight(time, x[parents], following)
        return (following, log_weight, lineage), (following, parents)

    noise_key, parent_key = jax.random.split(inputs_key)
    steps, dim = values.shape
    rows = (
        jnp.arange(steps),
        jax.random.normal(noise_key, (steps, count, dim), path.dtype),
        jax.random.gumbel(parent_key, (steps, count, count), path.dtype),
        path[1:],
        jax.tree.map(lambda part: part[:, None], future),
        values[:, None],
    )
    (_, log_weight, _), generations = jax.lax.scan(
        step, (start, jnp.zeros_like(start[:, 0]), lineage), rows
    )
    return _trace(jax.random.categorical(end_key, log_weight), start, generations)


def _trace(
    index: Int[Array, ""], start: Float[Array, "N Dx"], generations: tuple[Array, Array]
) -> Float[Array, "T+1 Dx"]:
    """Return the path of one particle of the last generation, traced back through its ancestors.

    Generations contain the particles and the indices of their ancestors.
    """

    def back(index: Array, generation: tuple[Array, Array]) -> tuple[Array, Float[Array, " Dx"]]:
        particles, parents = generation
        return parents[index], particles[index]

    first, path = jax.lax.scan(back, index, generations, reverse=True)
    return jnp.concatenate([start[first][None], path])


def _look(
    model: GPSSM, transition: Transition, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]
) -> Look:
    """Return the transitions from x as observations of the weights: mean m, gain A, spread B +
    Q.
    """
    step = transition(x, u)
    spread = jnp.maximum(step.residual.T, 0.0) + model.process_variance[None]
    return Look(step.mean, jnp.moveaxis(step.gain, 0, 1), spread)
