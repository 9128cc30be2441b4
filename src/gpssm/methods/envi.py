"""`envi` (Lin, Sun, Yin & Thiéry 2024): the states given the function by an ensemble Kalman filter.

    q(v) = N(mean, L Lᵀ),   q(x | v) ≈ p(x | v, y) by N filtered ensemble members x⁽ⁿ⁾
    ELBO = E_q(v) Σ_t log N(y_t; ȳ_t, V_t + R) − Σ KL[q(x₀) ‖ p(x₀)] − KL[q(v) ‖ p(v)]

ȳ_t and V_t are the mean and covariance of E[y_t | x⁽ⁿ⁾] over the members before y_t. Only the
distribution of x₀ is learned; given v, a row is processed by

    predict   x⁽ⁿ⁾ ~ N(m + A v, B + Q)
    update    x⁽ⁿ⁾ += Cov(x, ŷ_j) (y_j + R_j^½ ε⁽ⁿ⁾ − ŷ_j⁽ⁿ⁾) / (Var ŷ_j + R_j)  for each output j,

ŷ_j = E[y_j | x], with covariances over the members. The bound is differentiated through the filter
with fixed random numbers. It is a bound in the limit of many members if everything is linear given
v. Draws are smoothed backwards, x_t += Cov(x_t, x⁻_{t+1}) Cov(x⁻_{t+1})⁻¹ (x_{t+1} − x⁻_{t+1}) for
every member, x⁻ before its update and Cov over the ensemble (Raanes 2016); one member serves as the
draw.

Deviations from the paper: all members of a filter share one v, so that the sum is a bound on the
evidence; model and q(v) start from a linear fit, and q(x₀) from its first states without a network;
whole series are used instead of windows. The released code continues from the mean of the members
after every update; here the members remain distinct.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import inverse_root, log_normal
from gpssm.data.series import Series
from gpssm.inference.settings import States, whole
from gpssm.methods.variational import (
    Batch,
    StartLaw,
    VariationalPosterior,
    VariationalSampler,
    VariationalSettings,
    conditional,
)
from gpssm.model.likelihoods import Likelihood, observed
from gpssm.model.model import GPSSM

# The members of G ensembles after each row, before the first one as well; before the update by each
# row; and log p(y_t | y_<t) of each ensemble.
Ensembles = tuple[Float[Array, "T+1 G N Dx"], Float[Array, "T G N Dx"], Float[Array, "T G"]]


class EnVISampler(VariationalSampler):
    """The bound and the draws of `envi`; `paths` are q(x₀) of each series."""

    def paths(self, key: PRNGKeyArray, series: list[Series]) -> StartLaw:
        """Return q(x₀) around the first states, with a standard deviation of .1."""
        first = jnp.stack([path[0] for path in self.states])
        return StartLaw(first, jnp.full_like(first, jnp.log(0.1)))

    def bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series], iteration: Array
    ) -> Float[Array, ""]:
        """Return the bound from some draws of the function."""
        weights_key, filter_key = jax.random.split(key)
        weights = q.weights.draw(weights_key, self.settings.num_samples)
        _, _, log_density = self.filter(filter_key, q, weights, series)
        divergence = jnp.sum(q.paths.divergence()) + q.weights.divergence()
        return jnp.sum(log_density) / self.settings.num_samples - divergence

    def draw_states(
        self,
        key: PRNGKeyArray,
        q: VariationalPosterior,
        v: Float[Array, "Dx M"],
        series: list[Series],
    ) -> States:
        """Return one path for each series, that of a smoothed member."""
        updated, predicted, _ = self.filter(key, q, v[:, None], series)
        return self.join(smooth(updated, predicted)[:, :, 0])

    def filter(
        self,
        key: PRNGKeyArray,
        q: VariationalPosterior,
        weights: Float[Array, "Dx S M"],
        series: list[Series],
    ) -> Ensembles:
        """Return an ensemble for each series and function, with those of a series consecutive."""
        start_key, path_key = jax.random.split(key)
        count = weights.shape[1]
        members = self.settings.num_members
        start = q.paths.draw(start_key, count * members)
        shape = (len(series) * count, members, start.shape[1])
        weights = jnp.tile(weights, (1, len(series), 1))
        batch = self.batch(series)
        return filter_ensembles(path_key, q.model, weights, start.reshape(shape), batch)


@dataclass(frozen=True)
class EnVI(VariationalSettings):
    """Settings of `envi`; `VariationalSettings` and `MethodSettings` have the others.

    Parameters
    ----------
    num_samples
        Number of draws of the function for each estimate of the bound, each with its ensemble.
    num_members
        Number of members of an ensemble.
    """

    sampler = EnVISampler

    num_warmup: int = 500
    num_draws: int = 100
    num_samples: int = whole(2)
    num_members: int = whole(50, least=2)


def filter_ensembles(
    key: PRNGKeyArray,
    model: GPSSM,
    weights: Float[Array, "Dx G M"],
    start: Float[Array, "G N Dx"],
    batch: Batch,
) -> Ensembles:
    """Filter ensembles over the rows of a batch.

    Parameters
    ----------
    key
        Random key.
    model
        The model.
    weights
        v of each ensemble.
    start
        Members of x₀.
    batch
        The batch of pieces; G is a multiple of their number.
    """
    transition = model.transition()
    function = conditional(jnp.repeat(weights, start.shape[1], 1))
    process_key, output_key = jax.random.split(key)
    rows = batch.y.shape[0]
    y, u = (jnp.repeat(part, len(start) // part.shape[1], 1) for part in (batch.y, batch.u))
    noises = jax.random.normal(process_key, (rows, *start.shape), start.dtype)
    shape = (rows, *start.shape[:2], y.shape[2])
    output_noises = jax.random.normal(output_key, shape, start.dtype)
    output_noises = output_noises - jnp.mean(output_noises, 2, keepdims=True)

    # Intermediate results are recomputed for the gradient: storing them takes megabytes per row.
    @jax.checkpoint
    def move(x: Float[Array, "G N Dx"], row: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        y, u, noise, output_noise = row
        inputs = jnp.repeat(u.astype(x.dtype), x.shape[1], 0)
        mean, variance = function(transition(x.reshape(-1, x.shape[2]), inputs))
        std = jnp.sqrt(variance + model.process_variance[None])
        predicted = mean.reshape(x.shape) + std.reshape(x.shape) * noise
        updated, log_density = update(model.likelihood, predicted, y.astype(x.dtype), output_noise)
        return updated, (updated, predicted, log_density)

    along = (y, u, noises, output_noises)
    _, (updated, predicted, log_density) = jax.lax.scan(move, start, along)
    return jnp.concatenate([start[None], updated]), predicted, log_density


def update(
    likelihood: Likelihood,
    x: Float[Array, "G N Dx"],
    y: Float[Array, "G Dy"],
    noise: Float[Array, "G N Dy"],
) -> tuple[Float[Array, "G N Dx"], Float[Array, " G"]]:
    """Return the members given one row of outputs, and the log density of the row.

        x⁽ⁿ⁾ += Cov(x, ŷ_j) (y_j + R_j^½ ε⁽ⁿ⁾ − ŷ_j⁽ⁿ⁾) / (Var ŷ_j + R_j),   ŷ_j = E[y_j | x]

    for each output j in turn; R_j is the mean of Var(y_j | x), and the other outputs are updated
    like the states. Missing outputs have no effect.

    Parameters
    ----------
    likelihood
        p(y | x).
    x
        The members.
    y
        The outputs.
    noise
        ε, with mean zero over the members.
    """
    moments = likelihood.moments(x.reshape(-1, x.shape[2]))
    outputs, variances = (part.reshape(noise.shape) for part in moments)
    value, present = observed(y)
    total = jnp.zeros(len(x), x.dtype)
    joint = jnp.concatenate([x, outputs], -1)
    for place in range(y.shape[1]):
        column = joint[:, :, x.shape[2] + place]
        mean = jnp.mean(column, 1)
        deviation = column - mean[:, None]
        variance = jnp.mean(variances[:, :, place], 1)
        spread = jnp.sum(deviation**2, 1) / (x.shape[1] - 1) + variance
        cross = jnp.matmul(deviation[:, None], joint)[:, 0] / (x.shape[1] - 1)
        gain = jnp.where(present[:, place], 1 / spread, 0.0)[:, None] * cross
        perturbed = value[:, None, place] + jnp.sqrt(variance)[:, None] * noise[:, :, place]
        joint = joint + (perturbed - column)[:, :, None] * gain[:, None]
        log_density = log_normal(value[:, place], mean, spread)
        total = total + jnp.where(present[:, place], log_density, 0.0)
    return joint[:, :, : x.shape[2]], total


def smooth(
    updated: Float[Array, "T+1 G N Dx"], predicted: Float[Array, "T G N Dx"]
) -> Float[Array, "T+1 G N Dx"]:
    """Return the members given all rows, from those after each row and before it.

    x_t⁽ⁿ⁾ += Cov(x_t, x⁻_{t+1}) Cov(x⁻_{t+1})⁻¹ (x_{t+1}⁽ⁿ⁾ − x⁻_{t+1}⁽ⁿ⁾), from the last row on.
    """

    def back(
        following: Float[Array, "G N Dx"], row: tuple[Array, Array]
    ) -> tuple[Array, Float[Array, "G N Dx"]]:
        updated, predicted = row
        deviation = predicted - jnp.mean(predicted, 1, keepdims=True)
        # Members may be fewer than the states.
        root = inverse_root(jnp.matmul(deviation.mT, deviation), jitter=1e-6)
        change = jnp.matmul(jnp.matmul(following - predicted, root.mT), root)
        cross = jnp.matmul(deviation.mT, updated)
        smoothed = updated + jnp.matmul(change, cross)
        return smoothed, smoothed

    rows = (updated[:-1], predicted)
    _, smoothed = jax.lax.scan(back, updated[-1], rows, reverse=True)
    return jnp.concatenate([smoothed, updated[-1:]])
