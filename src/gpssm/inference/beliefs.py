"""What particles know of weights that are integrated out: a Gaussian each, changed by rank one as its path grows.

A transition is a look at the weights, x'_d = mean_d + gain_d·v_d + N(0, spread_d). A particle that has made it knows
more of v, and one whose path loses it knows less; with v ~ N(μ, Σ), k = Σ·gain and q = gain·k + spread

    learn     Σ ← Σ − kkᵀ/q,   μ ← μ + k (x' − mean − gain·μ)/q
    forget    Σ ← Σ + kkᵀ/g,   μ ← μ − k (x' − mean − gain·μ)/g,   g = spread − gain·k

both O(M²), where a factorisation would be O(M³). Ancestor sampling asks how well a particle's past goes with a given
future F of transitions; its log density changes with the same numbers. For a transition τ that the past gains and a
transition φ that the future loses,

    log p(F∖φ | past, τ) = log p(F | past) + log p(τ | past, F) − log p(τ | past) − log p(φ | past, τ, F∖φ)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpssm.core.linalg import gram, inverse_root, log_normal


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
    """x'_nd ~ N(mean_nd, variance_nd) to particle n before it has looked, and cross = Cov(v_d, x'_nd) = k."""

    mean: Float[Array, "N Dx"]
    variance: Float[Array, "N Dx"]
    cross: Float[Array, "N Dx M"]

    def log_prob(self, following: Float[Array, "N Dx"]) -> Float[Array, " N"]:
        """log p(x' | what the particle knows)."""
        return jnp.sum(log_normal(following, self.mean, self.variance), -1)


class Lineage(NamedTuple):
    """What each particle knows from its past, what it would know with a given future too, and how well they agree."""

    past: WeightBelief
    whole: WeightBelief
    log_future: Float[Array, " N"]  # log p(future | past), up to a constant


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
    """N particles with no past, from p(v_d) ∝ exp(bᵀv − ½ vᵀPv) and the looks that their future holds."""
    scaled = future.gain / future.spread[:, :, None]
    error = following - future.mean
    # AᵀA/s and Aᵀr/s, a matrix product for each state
    seen = gram(jnp.moveaxis(future.gain / jnp.sqrt(future.spread)[:, :, None], 0, 1))
    heard = jnp.sum(scaled * error[:, :, None], 0)
    past, whole = (
        _belief(*one, count) for one in ((precision, linear), (precision + seen, linear + heard))
    )
    return Lineage(past, whole, jnp.zeros(count, linear.dtype))


def look_ahead(lineage: Lineage, look: Look) -> Outlook:
    """What each particle expects of its own next transition."""
    return Outlook(predict(lineage.past, look), predict(lineage.whole, look))


def predict(belief: WeightBelief, look: Look) -> Prediction:
    """x' ~ N(mean + gain·μ, gain·k + spread),  k = Σ·gain."""
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
    """The lineage of children that went to `following`, while `leaving`, one look that gave `value`, leaves the future.

    What a covariance gains and loses depends on the parent alone, so that it is worked out once for all children.
    """
    past, whole = jax.tree.map(lambda part: part[parents], outlook)
    known = _learn(lineage.whole, whole, parents, following)
    known, log_leaving = _forget(known, leaving, value)
    gained = whole.log_prob(following) - past.log_prob(following)
    log_future = lineage.log_future[parents] + gained - log_leaving
    return Lineage(_learn(lineage.past, past, parents, following), known, log_future)


def _belief(
    precision: Float[Array, "Dx M M"], linear: Float[Array, "Dx M"], count: int
) -> WeightBelief:
    """N(P⁻¹b, P⁻¹) for each of N particles."""
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
    """What children know that went to `following`; each has its parent's prediction, and `belief` is the parents'."""
    error = (following - prediction.mean) / prediction.variance
    mean = belief.mean[parents] + prediction.cross * error[:, :, None]
    return WeightBelief(
        mean, belief.covariance[parents] - _outer(prediction.cross, prediction.variance)
    )


def _forget(
    belief: WeightBelief, look: Look, value: Float[Array, "1 Dx"]
) -> tuple[WeightBelief, Float[Array, " N"]]:
    """What is known without a look that gave `value`, and the log density of that value given the rest.

    Without the look its prediction has variance spread²/g and misses `value` by (value − mean − gain·μ) spread/g.
    """
    prediction = predict(belief, look)
    room = 2 * look.spread - prediction.variance  # g = spread − gain·k
    error = value - prediction.mean
    mean = belief.mean - prediction.cross * (error / room)[:, :, None]
    log_density = 0.5 * jnp.log(room / (2 * jnp.pi * look.spread**2)) - 0.5 * error**2 / room
    return WeightBelief(mean, belief.covariance + _outer(prediction.cross, room)), jnp.sum(
        log_density, -1
    )


def _outer(
    vectors: Float[Array, "N Dx M"], scale: Float[Array, "N Dx"]
) -> Float[Array, "N Dx M M"]:
    """kkᵀ/q, symmetric to the last bit."""
    half = vectors / jnp.sqrt(scale)[:, :, None]
    return half[..., :, None] * half[..., None, :]
