"""`igpssm` (Eleftheriadis et al. 2017): q(x) is a Gauss–Markov chain from a recurrent network over
the data.

    q(x, v) = q(v) q(x₀) Π_t N(x_{t+1}; F_t x_t + g_t, S_t)
    ELBO = E Σ_t log p(y_t | x_{t+1})
         + E Σ_t { log N(x_{t+1}; m + A·mean, Q) − ½ tr Q⁻¹(B + A L Lᵀ Aᵀ) }
         + Σ_t H[q(x_{t+1} | x_t)] − KL[q(x₀) ‖ p(x₀)] − KL[q(v) ‖ p(v)]

(F_t, g_t, S_t) are outputs of the network, with diagonal F and S. The network consists of gated
recurrent units over (y, u) in both directions of time: at row t, they have together read all rows
and determine the step x_t → x_{t+1}. The backward unit at the first row determines q(x₀). As the
chain does not depend on f, it is drawn first, and f is then evaluated at all rows at once, so that
whole series cost less than windows in a scan.

Deviations from the paper: q starts at the states s of a linear fit, g_t = s_{t+1} − F_t s_t +
network; |F| < 1, so that no path diverges; and the expectation over x_{t+1} given x_t is computed
exactly.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.settings import States, whole
from gpssm.methods.variational import (
    Batch,
    StartLaw,
    VariationalPosterior,
    VariationalSampler,
    VariationalSettings,
    WeightLaw,
    divergence_given_function,
    marginal,
    path_bound,
    readable,
)
from gpssm.model.model import GPSSM


class IGPSSMSampler(VariationalSampler):
    """The bound and the draws of `igpssm`; `paths` are the recognition net."""

    def paths(self, key: PRNGKeyArray, series: list[Series]) -> "Recogniser":
        """Return a network for which q(x) is initially centred at the states."""
        width = readable(self.model, self.batch(series)).shape[-1]
        return Recogniser.start(key, width, self.settings.hidden, self.model.log_process_std)

    def law(self, q: VariationalPosterior, batch: Batch) -> "ChainLaw":
        """Return q(x)."""
        return q.paths(readable(q.model, batch), batch.inside, pad(self.states))

    def bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series], iteration: Array
    ) -> Float[Array, ""]:
        """Return the bound from whole series."""
        batch = self.batch(series)
        count = self.settings.num_samples
        return chain_bound(key, q.model, q.weights, self.law(q, batch), batch, count)

    def draw_states(
        self,
        key: PRNGKeyArray,
        q: VariationalPosterior,
        v: Float[Array, "Dx M"],
        series: list[Series],
    ) -> States:
        """Return a path of the chain, which does not depend on the weights."""
        return self.join(draw_chain(key, self.law(q, self.batch(series)), 1))


@dataclass(frozen=True)
class IGPSSM(VariationalSettings):
    """Settings of `igpssm`; `VariationalSettings` and `MethodSettings` have the others.

    Parameters
    ----------
    hidden
        Number of units of the network in each direction of time.
    """

    sampler = IGPSSMSampler

    num_warmup: int = 2000
    learning_rate: float = 0.02
    num_samples: int = 2
    hidden: int = whole(32)


class ChainLaw(NamedTuple):
    """q(x) of P series: x₀ from `start`, then x_{t+1} ~ N(slope_t x_t + offset_t, exp(2
    log_std_t)).
    """

    start: StartLaw
    slope: Float[Array, "W P Dx"]
    offset: Float[Array, "W P Dx"]
    log_std: Float[Array, "W P Dx"]

    def repeat(self, count: int) -> tuple[Float[Array, "W N Dx"], ...]:
        """Return slope, offset and standard deviation for `count` paths of each series."""
        return tuple(
            jnp.repeat(part, count, 1) for part in (self.slope, self.offset, jnp.exp(self.log_std))
        )


def draw_chain(key: PRNGKeyArray, law: ChainLaw, count: int) -> Float[Array, "W+1 N Dx"]:
    """Return `count` consecutive paths for each series."""
    start_key, path_key = jax.random.split(key)
    first, (slope, offset, std) = law.start.draw(start_key, count), law.repeat(count)
    shocks = offset + std * jax.random.normal(path_key, std.shape, std.dtype)

    def move(x: Float[Array, "N Dx"], row: tuple[Array, Array]) -> tuple[Array, Array]:
        following = row[0] * x + row[1]
        return following, following

    return jnp.concatenate([first[None], jax.lax.scan(move, first, (slope, shocks))[1]])


def chain_bound(
    key: PRNGKeyArray, model: GPSSM, weights: WeightLaw, law: ChainLaw, batch: Batch, count: int
) -> Float[Array, ""]:
    """Return an unbiased estimate of the ELBO from `count` paths of each series."""
    states, (slope, offset, std) = draw_chain(key, law, count), law.repeat(count)
    x, u = states[:-1], jnp.repeat(batch.u.astype(states.dtype), count, 1)
    mean, variance = marginal(weights)(model.transition()(_rows(x), _rows(u)))
    gap = _rows(slope * x + offset) - mean
    terms = divergence_given_function(
        gap, 0.0, _rows(std**2), variance, model.process_variance[None]
    )
    divergence = jnp.sum(terms, -1).reshape(x.shape[:2])
    return path_bound(model, states, divergence, law.start, batch) - weights.divergence()


class Recogniser(eqx.Module):
    """The network: cells forward and backward in time, and linear maps that are initially zero."""

    cells: eqx.nn.GRUCell  # its arrays have a leading axis, forward and backward
    step_map: Float[Array, "2H 3Dx"]
    step_bias: Float[Array, " 3Dx"]
    start_map: Float[Array, "H 2Dx"]
    start_bias: Float[Array, " 2Dx"]

    @classmethod
    def start(
        cls, key: PRNGKeyArray, width: int, hidden: int, log_process_std: Float[Array, " Dx"]
    ) -> Self:
        """Return a network with F = 0, √S a fifth of √Q, and q(x₀) of standard deviation .1."""
        dtype = log_process_std.dtype
        zeros = jnp.zeros_like(log_process_std)
        make = eqx.filter_vmap(lambda key: eqx.nn.GRUCell(width, hidden, dtype=dtype, key=key))
        return cls(
            make(jax.random.split(key)),
            jnp.zeros((2 * hidden, 3 * zeros.size), dtype),
            jnp.concatenate([zeros, zeros, log_process_std + np.log(0.2)]),
            jnp.zeros((hidden, 2 * zeros.size), dtype),
            jnp.concatenate([zeros, zeros + np.log(0.1)]),
        )

    def __call__(
        self,
        features: Float[Array, "W P C"],
        inside: Bool[Array, "W P"],
        around: Float[Array, "W+1 P Dx"],
    ) -> ChainLaw:
        """Return q(x) of P series: g_t = around_{t+1} − F_t around_t + network, and similarly for
        x₀.
        """
        hidden = self.read(features, inside)
        slope, shift, log_std = jnp.split(_affine(hidden, self.step_map, self.step_bias), 3, -1)
        backward = hidden[:1, :, hidden.shape[-1] // 2 :]
        mean, start_log_std = jnp.split(
            _affine(backward, self.start_map, self.start_bias)[0], 2, -1
        )
        slope = jnp.tanh(slope)
        offset = around[1:] - slope * around[:-1] + shift
        return ChainLaw(StartLaw(around[0] + mean, start_log_std), slope, offset, log_std)

    def read(
        self, features: Float[Array, "W P C"], inside: Bool[Array, "W P"]
    ) -> Float[Array, "W P 2H"]:
        """Return the hidden states of the forward cell after each row and of the backward cell
        before it.

        Padding rows have no effect.
        """

        def advance(hidden: Float[Array, "2 P H"], row: tuple[Array, Array]) -> tuple[Array, Array]:
            moved = eqx.filter_vmap(lambda cell, rows, old: jax.vmap(cell)(rows, old))(
                self.cells, row[0], hidden
            )
            hidden = jnp.where(row[1][:, :, None], moved, hidden)
            return hidden, hidden

        both = (jnp.stack([features, features[::-1]], 1), jnp.stack([inside, inside[::-1]], 1))
        zeros = jnp.zeros((2, features.shape[1], self.start_map.shape[0]), features.dtype)
        outputs = jax.lax.scan(advance, zeros, both)[1]
        return jnp.concatenate([outputs[:, 0], outputs[::-1, 1]], -1)


def pad(states: States) -> Float[Array, "W+1 P Dx"]:
    """Stack paths of unequal length, with zeros beyond their ends."""
    longest = max(len(path) for path in states)
    return jnp.stack([jnp.pad(path, ((0, longest - len(path)), (0, 0))) for path in states], 1)


def _rows(values: Float[Array, "W N D"]) -> Float[Array, "_ D"]:
    return values.reshape(values.shape[0] * values.shape[1], values.shape[2])


def _affine(
    rows: Float[Array, "W P H"], matrix: Float[Array, "H K"], bias: Float[Array, " K"]
) -> Array:
    return jnp.matmul(rows, matrix) + bias[None, None]
