"""Conditional sequential Monte Carlo: an update of a whole path x₀..x_T by particles.

    π(x₀:T) ∝ N(x₀; 0, I) Π_t M_{t+1}(x_{t+1} | x_t) G_{t+1}(x_t, x_{t+1})

N particles are propagated through time, one of which follows the current path, and a new path is
chosen among them. This leaves π invariant for any N ≥ 2 and any proposal (Andrieu, Doucet &
Holenstein 2010). A path traced back through its ancestors seldom differs from the current one at
early times. There are two remedies, both of which reweight the pair (x_t, x_{t+1}):

- `backward`: ancestors are redrawn from the last time to the first (Whiteley 2010);
- `ancestor`: the current path draws a new ancestor at each time of the forward pass (Lindsten,
  Jordan & Schön 2014).

Both weight x_t by M_{t+1}(x_{t+1} | x_t) G_{t+1}(x_t, x_{t+1}), which includes the potential
because it also depends on x_t.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.model.types import FeynmanKac

Ancestry = Literal["backward", "ancestor", "trace"]


class Proposal(NamedTuple):
    """x_{t+1} = mean + factor·ε for each particle, and the log weight that is known before the
    draw.
    """

    mean: Float[Array, "N Dx"]
    factor: Float[Array, "N Dx Dx"]
    log_ahead: Float[Array, " N"]


class Guide(NamedTuple):
    """A proposal and the weights that correct for it: M(x' | x) G(x, x') = q(x' | x)
    exp(log_ahead(x) + log_weight(x, x')).

    `propose(t, x)` returns q and `log_ahead`, by which ancestors are chosen; `log_weight(t, x,
    following)` returns the remaining log weight.
    """

    propose: Callable[[Array, Float[Array, "N Dx"]], Proposal]
    log_weight: Callable[[Array, Float[Array, "N Dx"], Float[Array, "N Dx"]], Float[Array, " N"]]


class GaussianEmission(NamedTuple):
    """y_t ~ N(C x_{t+1} + d, diag(variance)), observed where `present`; y is finite everywhere."""

    C: Float[Array, "Dy Dx"]
    d: Float[Array, " Dy"]
    variance: Float[Array, " Dy"]
    y: Float[Array, "T Dy"]
    present: Bool[Array, "T Dy"]


class Generation(NamedTuple):
    """The particles at one time, their weights, and the ancestors of the next generation."""

    particles: Float[Array, "N Dx"]
    log_weight: Float[Array, " N"]
    log_ahead: Float[Array, " N"]  # added to the weights before ancestors are chosen
    parents: Int[Array, " N"]


def bootstrap(form: FeynmanKac) -> Guide:
    """q = M, weighted by G: it needs only values of G, and degenerates if G is narrower than M."""

    def propose(t: Array, x: Float[Array, "N Dx"]) -> Proposal:
        mean, variance = form.moments(t, x)
        return Proposal(mean, _diagonal(jnp.sqrt(variance)), jnp.zeros_like(mean[:, 0]))

    return Guide(propose, form.log_potential)


def locally_optimal(form: FeynmanKac, emission: GaussianEmission) -> Guide:
    """q ∝ M·G, if G(x, x') is the density of y_t given x' times any function of x.

    Ancestors are then chosen by ∫ M G dx', which is known before the draw, and the particles need
    no further weights.
    """

    def propose(t: Array, x: Float[Array, "N Dx"]) -> Proposal:
        moments = form.moments(t, x)
        mean, factor, log_det = _condition(*moments, emission, t)
        # M·G / q is the same at every x': evaluate it at the mean of q, where log q = −½ Dx log 2π
        # − log det F
        log_ahead = log_transition(moments, mean) + form.log_potential(t, x, mean) + log_det
        return Proposal(mean, factor, log_ahead + 0.5 * x.shape[1] * jnp.log(2 * jnp.pi))

    def log_weight(
        t: Array, x: Float[Array, "N Dx"], following: Float[Array, "N Dx"]
    ) -> Float[Array, " N"]:
        return jnp.zeros_like(x[:, 0])

    return Guide(propose, log_weight)


def sweep(
    key: PRNGKeyArray,
    path: Float[Array, "T+1 Dx"],
    form: FeynmanKac,
    guide: Guide,
    num_particles: int,
    ancestry: Ancestry = "backward",
) -> tuple[Float[Array, "T+1 Dx"], Float[Array, ""]]:
    """Draw a new path given the current one: particles forward in time, then one path backward.

    Also return the estimate of log Z; as one particle follows the current path, the estimate of 1/Z
    is the unbiased one.
    """
    forward_key, backward_key = jax.random.split(key)
    generations, last = _forward(
        forward_key, path, form, guide, num_particles, ancestry == "ancestor"
    )
    moved = _choose(backward_key, generations, last, form, ancestry == "backward")
    return moved, _log_normaliser(generations, last)


def log_transition(
    moments: tuple[Float[Array, "N Dx"], Float[Array, "N Dx"]], following: Float[Array, "N Dx"]
) -> Float[Array, " N"]:
    """Return log M(x' | x) from the mean and variance of M."""
    return jnp.sum(log_normal(following, *moments), -1)


def _forward(
    key: PRNGKeyArray,
    path: Float[Array, "T+1 Dx"],
    form: FeynmanKac,
    guide: Guide,
    count: int,
    renew: bool,
) -> tuple[Generation, Generation]:
    """Return generations 0..T−1, stacked, and generation T.

    If `hold`, particle 0 follows the path, with new ancestors if `renew`.
    """
    start_key, noise_key, parent_key = jax.random.split(key, 3)
    steps, dim = path.shape[0] - 1, path.shape[1]
    start = jax.random.normal(start_key, (count, dim), path.dtype).at[0].set(path[0])
    noises = jax.random.normal(noise_key, (steps, count, dim), path.dtype)
    uniforms = jax.random.uniform(parent_key, (steps, count), path.dtype)

    def step(
        carry: tuple[Array, Array], inputs: tuple[Array, Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Generation]:
        (x, log_weight), (t, held, noise, uniform) = carry, inputs
        proposal = guide.propose(t, x)
        parents = _pick(log_weight + proposal.log_ahead, uniform)
        first = _pick(log_weight + _log_pair(form, t, x, held), uniform[:1])[0] if renew else 0
        parents = parents.at[0].set(first)
        following = proposal.mean[parents] + _apply(proposal.factor[parents], noise)
        following = following.at[0].set(held)
        generation = Generation(x, log_weight, proposal.log_ahead, parents)
        return (following, guide.log_weight(t, x[parents], following)), generation

    inputs = (jnp.arange(steps), path[1:], noises, uniforms)
    (x, log_weight), generations = jax.lax.scan(step, (start, jnp.zeros_like(start[:, 0])), inputs)
    return generations, Generation(x, log_weight, jnp.zeros_like(log_weight), jnp.arange(count))


def _log_normaliser(generations: Generation, last: Generation) -> Float[Array, ""]:
    """Return log Ẑ = Σ_t log N⁻¹Σ_n exp(log_weight + log_ahead)_tn over all generations.

    `log_ahead` of the last generation is zero.
    """
    totals = logsumexp(generations.log_weight + generations.log_ahead, -1)
    steps, count = generations.log_weight.shape
    return jnp.sum(totals) + logsumexp(last.log_weight) - (steps + 1) * jnp.log(count)


def _choose(
    key: PRNGKeyArray, generations: Generation, last: Generation, form: FeynmanKac, renew: bool
) -> Float[Array, "T+1 Dx"]:
    """Return one path from the last time to the first, along the stored ancestors or, if `renew`,
    along new ones.
    """
    steps = generations.parents.shape[0]
    uniforms = jax.random.uniform(key, (steps + 1, 1), last.particles.dtype)
    index = _pick(last.log_weight, uniforms[-1])[0]

    def step(
        carry: tuple[Array, Array], inputs: tuple[Array, Array, Generation]
    ) -> tuple[tuple[Array, Array], Float[Array, " Dx"]]:
        (index, following), (t, uniform, generation) = carry, inputs
        if renew:
            parent = _pick(
                generation.log_weight + _log_pair(form, t, generation.particles, following), uniform
            )[0]
        else:
            parent = generation.parents[index]
        return (parent, generation.particles[parent]), generation.particles[parent]

    end = last.particles[index]
    _, path = jax.lax.scan(
        step, (index, end), (jnp.arange(steps), uniforms[:-1], generations), reverse=True
    )
    return jnp.concatenate([path, end[None]])


def _log_pair(
    form: FeynmanKac, t: Array, x: Float[Array, "N Dx"], following: Float[Array, " Dx"]
) -> Float[Array, " N"]:
    """Return log M(x' | x) + log G(x, x') for every particle x and one x'."""
    repeated = jnp.broadcast_to(following[None], x.shape)
    return log_transition(form.moments(t, x), repeated) + form.log_potential(t, x, repeated)


def _pick(log_weight: Float[Array, " N"], uniform: Float[Array, " K"]) -> Int[Array, " K"]:
    """Draw K independent indices with probabilities ∝ exp(log_weight), by inversion."""
    cumulative = jnp.cumsum(jnp.exp(log_weight - jnp.max(log_weight)))
    index = jnp.searchsorted(
        cumulative, uniform * cumulative[-1], side="right", method="compare_all"
    )
    return jnp.minimum(index, log_weight.shape[0] - 1)


def _condition(
    mean: Float[Array, "N Dx"], variance: Float[Array, "N Dx"], emission: GaussianEmission, t: Array
) -> tuple[Float[Array, "N Dx"], Float[Array, "N Dx Dx"], Float[Array, " N"]]:
    """Condition N(mean, diag variance) on y_t: return its mean, a factor F of its covariance FFᵀ,
    and log det F.

    Outputs are processed one by one in square-root form (Potter 1963), for all particles at once
    and without a factorisation: with φ = Fᵀc and s = φᵀφ + r, the mean gains Fφ(y − c·mean − d)/s,
    and F ← F(I − φφᵀ/(s + √(r s))).
    """
    start = (mean, _diagonal(jnp.sqrt(variance)), 0.5 * jnp.sum(jnp.log(variance), -1))

    def update(
        carry: tuple[Array, Array, Array], output: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array, Array], None]:
        (mean, factor, log_det), (c, d, r, y, present) = carry, output
        phi = jnp.where(present, jnp.matmul(c, factor), 0.0)
        s = jnp.sum(phi**2, -1) + r
        gain = _apply(factor, phi)
        mean = mean + gain * ((y - jnp.matmul(mean, c) - d) / s)[:, None]
        factor = factor - gain[:, :, None] * (phi / (s + jnp.sqrt(r * s))[:, None])[:, None, :]
        return (mean, factor, log_det + 0.5 * jnp.log(r / s)), None

    outputs = (emission.C, emission.d, emission.variance, emission.y[t], emission.present[t])
    return jax.lax.scan(update, start, outputs)[0]


def _diagonal(rows: Float[Array, "N D"]) -> Float[Array, "N D D"]:
    return rows[:, :, None] * jnp.eye(rows.shape[1], dtype=rows.dtype)[None]


def _apply(matrices: Float[Array, "N D D"], vectors: Float[Array, "N D"]) -> Float[Array, "N D"]:
    return jnp.matmul(matrices, vectors[:, :, None])[:, :, 0]
