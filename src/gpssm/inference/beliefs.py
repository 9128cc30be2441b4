"""What particles know of weights that are integrated out: a Gaussian each, changed by rank one.

A transition is an observation of the weights, x'_d = mean_d + gain_d·v_d + N(0, spread_d). A
particle whose path gains it knows more of v, and one whose path loses it knows less. With
v ~ N(μ, Σ), k = Σ·gain and q = gain·k + spread,

    learn     Σ ← Σ − kkᵀ/q,   μ ← μ + k (x' − mean − gain·μ)/q
    forget    Σ ← Σ + kkᵀ/g,   μ ← μ − k (x' − mean − gain·μ)/g,   g = spread − gain·k

both O(M²), where a factorisation would be O(M³). Ancestor sampling needs the density of a given
future F of transitions given a particle's past; its logarithm changes with the same numbers. For a
transition τ that the past gains and a transition φ that the future loses,

    log p(F∖φ | past, τ) = log p(F | past) + log p(τ | past, F) − log p(τ | past)
                           − log p(φ | past, τ, F∖φ)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpssm.core.linalg import condition_gaussian, gram, inverse_root, log_normal, rank_one


class Look(NamedTuple):
    """x'_nd = mean_nd + gain_nd·v_d + N(0, spread_nd)."""

    mean: Float[Array, "N Dx"]
    gain: Float[Array, "N Dx M"]
    spread: Float[Array, "N Dx"]


class WeightBelief(NamedTuple):
    """v_d ~ N(mean_nd, covariance_nd) to particle n."""

    mean: Float[Array, "N Dx M"]
    covariance: Float[Array, "N Dx M M"]


class Prediction(NamedTuple):
    """x'_nd ~ N(mean_nd, variance_nd) to particle n, and cross = Cov(v_d, x'_nd) = k."""

    mean: Float[Array, "N Dx"]
    variance: Float[Array, "N Dx"]
    cross: Float[Array, "N Dx M"]

    def log_prob(self, following: Float[Array, "N Dx"]) -> Float[Array, " N"]:
        """Return log p(x' | what the particle knows)."""
        return jnp.sum(log_normal(following, self.mean, self.variance), -1)


class Lineage(NamedTuple):
    """What each particle knows from its past, and what with a given future too.

    `log_future` is log p(future | past), up to a constant.
    """

    past: WeightBelief
    whole: WeightBelief
    log_future: Float[Array, " N"]


class Outlook(NamedTuple):
    """What each particle expects of its next transition, from its past and from the whole."""

    past: Prediction
    whole: Prediction


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
        The transitions that the future holds, and their values.
    count
        N.
    """
    scaled = future.gain / future.spread[:, :, None]
    error = following - future.mean
    # AᵀA/s and Aᵀr/s, a matrix product for each state
    future_precision = gram(jnp.moveaxis(future.gain / jnp.sqrt(future.spread)[:, :, None], 0, 1))
    future_linear = jnp.sum(scaled * error[:, :, None], 0)
    past = _belief(precision, linear, count)
    whole = _belief(precision + future_precision, linear + future_linear, count)
    return Lineage(past, whole, jnp.zeros(count, linear.dtype))


def look_ahead(lineage: Lineage, look: Look) -> Outlook:
    """Return what each particle expects of its own next transition."""
    return Outlook(predict(lineage.past, look), predict(lineage.whole, look))


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
        Of the parents.
    parents
        Number of the parent of each child.
    following
        The states of the children.
    leaving, value
        The transition that leaves the future, and its value.
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
    """Return what children know, from the belief of the parents and the prediction of each."""
    mean, covariance = (part[parents] for part in belief)
    error = following - prediction.mean
    return WeightBelief(
        *condition_gaussian(mean, covariance, prediction.cross, prediction.variance, error)
    )


def _forget(
    belief: WeightBelief, look: Look, value: Float[Array, "1 Dx"]
) -> tuple[WeightBelief, Float[Array, " N"]]:
    """Return the belief without a transition, and the log density of its value given the rest.

    Its prediction then has the variance spread²/g and misses the value by
    (value − mean − gain·μ) spread/g.
    """
    prediction = predict(belief, look)
    room = 2 * look.spread - prediction.variance  # g = spread − gain·k
    error = value - prediction.mean
    mean = belief.mean - prediction.cross * (error / room)[:, :, None]
    covariance = belief.covariance + rank_one(prediction.cross, room)
    log_density = 0.5 * jnp.log(room / (2 * jnp.pi * look.spread**2)) - 0.5 * error**2 / room
    return WeightBelief(mean, covariance), jnp.sum(log_density, -1)
