"""What the variational methods share beside their bound: settings, the optimiser, and draws from q.

    q(v), q(x), θ ← Adam( ELBO + log p(θ) )

Everything is learned together in the warm-up, once for all chains; the draws after it are independent. A leaf of the
model is learned unless its role is "fix": the roles "optimise" and "sample" both give the value at the maximum, as a
variational method has no conditional to draw noises from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.likelihoods import observed
from gpssm.linalg import cholesky, inverse_lower
from gpssm.methods.base import Config, States
from gpssm.methods.base_rollout import Batch, WeightLaw
from gpssm.model import GPSSM
from gpssm.series import Series
from gpssm.target import weights_given_states
from gpssm.types import Draw, Info, Method

LARGEST_GRADIENT = 10.0  # norm of the gradient for one row of data; a path that ran away gives more
MOST_FAILURES = 1_000_000  # steps in a row with a gradient that is not finite, each of them left out


@dataclass(frozen=True)
class Variational(Config):
    """Settings of a variational method; `Config` has the others.

    :param num_warmup: steps of the optimiser.
    :param learning_rate: Adam's first step size; it falls to zero along the warm-up, as half a cosine.
    :param num_samples: paths drawn for each estimate of the bound.
    """

    num_warmup: int = 1000
    num_draws: int = 250
    learning_rate: float = 0.01
    num_samples: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.num_samples, int) or self.num_samples < 1:
            raise ValueError(f"num_samples must be a whole number of at least 1, got {self.num_samples!r}.")

    def num_shared(self, model: GPSSM) -> int:
        """All of the warm-up: q is found once."""
        return self.num_warmup


class Guess(NamedTuple):
    """All that is learned: the leaves that are not fixed, q(v) relative to its start, and what q(x) needs."""

    leaves: dict[str, Array]
    weights: WeightLaw
    paths: Any


class Carry(NamedTuple):
    """Where the optimiser stands; `anchor` is q(v) at the start, `bound` the latest estimate that was finite."""

    guess: Guess
    anchor: WeightLaw
    adam: Any
    bound: Float[Array, ""]
    iteration: Int[Array, ""]


class Family(NamedTuple):
    """What a method defines, `paths` being a pytree of its own with all that it needs for q(x).

    `start(key, model, series)` gives the first of them; `bound(key, model, weights, paths, series, iteration)` an
    estimate of the ELBO; `states(key, model, weights, v, paths, series)` draws x from q(x | v), v of shape (Dx, M).
    """

    start: Callable[[PRNGKeyArray, GPSSM, list[Series]], Any]
    bound: Callable[[PRNGKeyArray, GPSSM, WeightLaw, Any, list[Series], Array], Float[Array, ""]]
    states: Callable[[PRNGKeyArray, GPSSM, WeightLaw, Float[Array, "Dx M"], Any, list[Series]], States]


def build_variational(config: Variational, model: GPSSM, states: States, family: Family) -> Method:
    """The three functions of a variational method, started from q(v) = p(v | x) at these states."""
    optimiser = optax.apply_if_finite(
        optax.chain(
            optax.clip_by_global_norm(LARGEST_GRADIENT),
            optax.adam(optax.cosine_decay_schedule(config.learning_rate, max(config.num_warmup, 1))),
        ),
        MOST_FAILURES,
    )
    free = model.free_leaves()

    def init(key: PRNGKeyArray, series: list[Series]) -> Carry:
        anchor = weights_at(model, states, series)
        guess = Guess(free, jax.tree.map(jnp.zeros_like, anchor), family.start(key, model, series))
        return Carry(guess, anchor, optimiser.init(guess), jnp.asarray(-jnp.inf), jnp.zeros((), int))

    def climb(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Carry:
        rows = sum(len(one) for one in series)

        def loss(guess: Guess) -> tuple[Float[Array, ""], Float[Array, ""]]:
            now = model.with_leaves(guess.leaves)
            law = placed(carry.anchor, guess.weights)
            bound = family.bound(key, now, law, guess.paths, series, carry.iteration)
            return -(bound + now.log_prior()) / rows, bound

        gradient, bound = jax.grad(loss, has_aux=True)(carry.guess)
        updates, adam = optimiser.update(gradient, carry.adam)
        guess = jax.tree.map(jnp.add, carry.guess, updates)
        return carry._replace(guess=guess, adam=adam, bound=jnp.where(jnp.isfinite(bound), bound, carry.bound))

    def step(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        learning = carry.iteration < config.num_warmup
        carry = jax.lax.cond(learning, lambda now: climb(key, now, series), lambda now: now, carry)
        one, cost = jnp.ones_like(carry.bound), learning.astype(carry.bound.dtype)
        info = Info(carry.bound, one, jnp.zeros((), bool), -carry.bound, cost)
        return carry._replace(iteration=carry.iteration + 1), info

    def draw(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Draw:
        weights_key, states_key = jax.random.split(key)
        leaves, relative, paths = carry.guess
        law = placed(carry.anchor, relative)
        weights = law.draw(weights_key, 1)[:, 0]
        drawn = family.states(states_key, model.with_leaves(leaves), law, weights, paths, series)
        return Draw(drawn, weights, leaves)

    return Method(init, step, draw)


def readable(model: GPSSM, batch: Batch) -> Float[Array, "W P C"]:
    """What a net sees of each row: outputs on the predictor's scale, which of them are there, and controls."""
    rows = batch.y.reshape(batch.y.shape[0] * batch.y.shape[1], batch.y.shape[2])
    y, present = observed(model.likelihood.pseudo_outputs(rows))
    parts = [part.reshape(batch.y.shape) for part in (y, present.astype(y.dtype))]
    return jnp.concatenate([*parts, jnp.where(batch.inside[:, :, None], batch.u, 0.0).astype(y.dtype)], -1)


def weights_at(model: GPSSM, states: States, series: list[Series]) -> WeightLaw:
    """p(v | x) = N(P⁻¹b, P⁻¹) at these states, as the start of q(v)."""
    found = weights_given_states(model, states, series)
    inverse = inverse_lower(cholesky(found.precision, jitter=0.0))
    factor = cholesky(jnp.matmul(inverse.mT, inverse))
    return WeightLaw(found.mean, _with_diagonal(factor, jnp.log(_diagonal(factor))))


def placed(anchor: WeightLaw, relative: WeightLaw) -> WeightLaw:
    """The law of v = mean₀ + L₀ w, where w has the relative law and mean₀, L₀ are those of the anchor.

    Steps of one size in w suit weights that the data tell precisely and weights that they do not.
    """
    root = anchor.factor
    mean = anchor.mean + jnp.matmul(root, relative.mean[:, :, None])[:, :, 0]
    logarithms = _diagonal(anchor.raw) + _diagonal(relative.raw)
    return WeightLaw(mean, _with_diagonal(jnp.matmul(root, relative.factor), logarithms))


def _diagonal(matrices: Float[Array, "Dx M M"]) -> Float[Array, "Dx M"]:
    return jnp.diagonal(matrices, axis1=1, axis2=2)


def _with_diagonal(lower: Float[Array, "Dx M M"], diagonal: Float[Array, "Dx M"]) -> Float[Array, "Dx M M"]:
    """The strict lower triangle, with another diagonal."""
    return jnp.tril(lower, -1) + jnp.eye(lower.shape[-1], dtype=lower.dtype)[None] * diagonal[:, None, :]
