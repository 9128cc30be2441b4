"""`prssm` (Doerr et al. 2018): the states follow the prior dynamics, and a network infers x₀ from
the data.

    q(x, v) = q(v) q(x₀ | y, u) Π_t p(x_{t+1} | x_t),   x_{t+1} ~ N(m + A·mean, B + A L Lᵀ Aᵀ + Q)
    ELBO = Σ_t E log p(y_t | x_{t+1}) − KL[q(x₀) ‖ p(x₀)] − KL[q(v) ‖ p(v)]

f is drawn from its marginal at every step, as in the paper. The weights are thus drawn anew at each
step, so that this is strictly a bound only for a single step or known weights. Both the bound and
draws use sub-trajectories of the series, each with x₀ from a small convolutional network over its
first rows and the same prior.

Deviations from the paper: model, q(v) and the linear part of the network start from a linear fit.
Unlike in the released code, noise is scaled by its standard deviation, and the likelihood is a mean
over particles.
"""

from dataclasses import dataclass
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import solve_positive
from gpssm.data.series import Series
from gpssm.inference.settings import whole
from gpssm.methods.variational import (
    Batch,
    Conditional,
    FunctionMoments,
    Pieces,
    RolloutSampler,
    StartLaw,
    VariationalPosterior,
    VariationalSettings,
    cut,
    marginal,
    readable,
    take,
    windows,
)
from gpssm.model.model import GPSSM

LOOK = 16  # rows that the recognition network reads


def follow_prior(
    parameters: None, f: FunctionMoments, variance: Float[Array, "1 Dx"]
) -> Conditional:
    """Return x_{t+1} ~ N(f̄, Var f + Q), the prior dynamics, with KL_t = 0."""
    mean, spread = f
    return mean, spread + variance, jnp.zeros_like(mean)


class PRSSMSampler(RolloutSampler):
    """The bound and the draws of `prssm`; `paths` is the recognition network."""

    conditioner = staticmethod(follow_prior)

    @property
    def pieces(self) -> Pieces:
        """The sub-trajectories of a draw."""
        return cut(self.lengths, self.settings.window)

    @property
    def every(self) -> Pieces:
        """The sub-trajectories from which the bound samples."""
        return windows(self.lengths, self.settings.window)

    def paths(self, key: PRNGKeyArray, series: list[Series]) -> "Recognition":
        """Return the network fitted to the initial states."""
        look = windows(self.lengths, min(LOOK, self.every.length))
        features = recognisable(self.model, take(series, look))
        first = jnp.concatenate([path[:-1] for path in self.states])[look.first]
        return Recognition.start(key, features, first)

    def law(self, q: VariationalPosterior, batch: Batch) -> tuple[StartLaw, None]:
        """Return q(x₀) given the first rows of each piece."""
        return q.paths(recognisable(q.model, batch)), None

    def bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series], iteration: Array
    ) -> Float[Array, ""]:
        """Return the bound from randomly chosen sub-trajectories."""
        keys = jax.random.split(key, 3)
        every = self.every
        chosen = None
        if every.cover > 1:
            shape = (self.settings.batch,)
            chosen = jax.random.randint(keys[0], shape, 0, len(every.first))
        batch = take(series, every, chosen)
        return self.estimate(keys[1:], q, marginal(q.weights), follow_prior, batch)


@dataclass(frozen=True)
class PRSSM(VariationalSettings):
    """Settings of `prssm`; `VariationalSettings` and `MethodSettings` have the others.

    Parameters
    ----------
    window
        Number of rows of a sub-trajectory; None for whole series.
    batch
        Number of sub-trajectories for each estimate of the bound.
    """

    sampler = PRSSMSampler

    num_warmup: int = 600
    learning_rate: float = 0.03
    window: int | None = whole(50, none="for whole series")
    batch: int = whole(10)


def recognisable(model: GPSSM, batch: Batch) -> Float[Array, "P C look"]:
    """Return the features of the network: the first rows of each piece, with time as the last
    axis.
    """
    first = batch._replace(y=batch.y[:LOOK], u=batch.u[:LOOK], inside=batch.inside[:LOOK])
    return jnp.transpose(readable(model, first), (1, 2, 0))


class Recognition(eqx.Module):
    """q(x₀ | first rows) = N(W h + net(h), σ(h)²): a linear map, and two convolutions that are
    initially zero.
    """

    linear: Float[Array, "F Dx"]
    log_std: Float[Array, " Dx"]
    first: eqx.nn.Conv1d
    second: eqx.nn.Conv1d
    head: Float[Array, "_ 2Dx"]

    @classmethod
    def start(
        cls,
        key: PRNGKeyArray,
        features: Float[Array, "N C look"],
        states: Float[Array, "N Dx"],
        channels: int = 16,
    ) -> Self:
        """Fit the linear part by ridge regression of the target states on the features of the
        following rows.
        """
        flat = _flatten(features)
        square = jnp.matmul(flat.T, flat) + 0.01 * jnp.eye(flat.shape[1], dtype=flat.dtype)
        solve = jax.lax.map(
            lambda column: solve_positive(square, column), jnp.matmul(flat.T, states).T
        )
        error = jnp.sqrt(jnp.mean((states - jnp.matmul(flat, solve.T)) ** 2, 0))
        first, second = (
            eqx.nn.Conv1d(
                width,
                channels,
                min(5, features.shape[2]),
                padding="SAME",
                key=key,
                dtype=flat.dtype,
            )
            for width, key in zip((features.shape[1], channels), jax.random.split(key), strict=True)
        )
        head = jnp.zeros((channels * features.shape[2], 2 * states.shape[1]), flat.dtype)
        return cls(solve.T, jnp.log(jnp.maximum(error, 0.01)), first, second, head)

    def __call__(self, features: Float[Array, "P C look"]) -> StartLaw:
        """Return q(x₀) of each piece."""
        hidden: Any = jax.vmap(lambda row: jnp.tanh(self.second(jnp.tanh(self.first(row)))))(
            features
        )
        mean, log_std = jnp.split(
            jnp.matmul(hidden.reshape(len(features), -1), self.head), 2, axis=-1
        )
        return StartLaw(
            mean + jnp.matmul(_flatten(features), self.linear), log_std + self.log_std[None]
        )


def _flatten(features: Float[Array, "N C look"]) -> Float[Array, "N F"]:
    ones = jnp.ones((features.shape[0], 1), features.dtype)
    return jnp.concatenate([features.reshape(features.shape[0], -1), ones], -1)
