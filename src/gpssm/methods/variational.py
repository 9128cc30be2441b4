"""What the variational methods share: a rollout, its evidence lower bound, the optimiser, and draws
from q.

    q(v), q(x), θ ← Adam( ELBO + log p(θ) )
    ELBO = Σ { E[ Σ_t log p(y_t | x_{t+1}) − Σ_t KL_t ] − KL[q(x₀) ‖ N(0, I)] } − KL[q(v) ‖ N(0, I)]

Paths are drawn by reparameterisation, x_{t+1} = mean + variance^½ ε, and the methods differ in two
choices only. First, the law of f(z_t) in q: given weights that are drawn once a path
(`conditional`), or with the weights integrated out at each step (`marginal`). Second, the
*conditioner*: what it makes of f, and anything that is free or comes from a net, is the law of
x_{t+1} and its KL_t. Series, or pieces cut from them, run side by side in one scan, which factors
nothing.

Everything is learned together in the warm-up, once for all chains; the draws after it are
independent. A leaf of the model is learned unless its role is "fix": the roles "optimise" and
"sample" both give the value at the maximum, as a variational method has no conditional to draw
noises from.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.linalg import cholesky, inverse_root
from gpssm.core.loops import descend
from gpssm.core.runtime import in_step
from gpssm.data.series import Series
from gpssm.inference.parameters import Sampler, annealed_adam
from gpssm.inference.settings import MethodSettings, States, whole
from gpssm.model.likelihoods import observed
from gpssm.model.model import GPSSM, Step
from gpssm.model.target import weights_given_states
from gpssm.model.types import Draw, Info

# Mean and variance of f_d(z_n) in q.
FunctionMoments = tuple[Float[Array, "N Dx"], Float[Array, "N Dx"]]
Function = Callable[[Step], FunctionMoments]
# Mean and variance of q(x_{t+1} | x_t), and the divergence KL_t of each dimension.
Conditional = tuple[Float[Array, "N Dx"], Float[Array, "N Dx"], Float[Array, "N Dx"]]
# (parameters of this step, f(z_t), Q as a row) → the law of x_{t+1}
Conditioner = Callable[[Any, FunctionMoments, Float[Array, "1 Dx"]], Conditional]


class WeightLaw(NamedTuple):
    """q(v_d) = N(mean_d, L_d L_dᵀ).

    `raw` contains the strict lower triangle of L_d and the logarithms of its diagonal.
    """

    mean: Float[Array, "Dx M"]
    raw: Float[Array, "Dx M M"]

    @property
    def factor(self) -> Float[Array, "Dx M M"]:
        """L_d."""
        return _with_diagonal(self.raw, jnp.exp(_diagonal(self.raw)))

    def divergence(self) -> Float[Array, ""]:
        """KL[q(v) ‖ N(0, I)] = ½ Σ_d { tr L_d L_dᵀ + |mean_d|² − M } − Σ log diag L_d."""
        half_log_det = jnp.sum(_diagonal(self.raw))
        return (
            0.5 * (jnp.sum(self.factor**2) + jnp.sum(self.mean**2) - self.mean.size) - half_log_det
        )

    def draw(self, key: PRNGKeyArray, count: int) -> Float[Array, "Dx count M"]:
        """Return `count` draws of mean + L ε."""
        noise = jax.random.normal(
            key, (self.mean.shape[0], count, self.mean.shape[1]), self.mean.dtype
        )
        return self.mean[:, None, :] + jnp.matmul(noise, self.factor.mT)


class StartLaw(NamedTuple):
    """q(x₀) = N(mean, exp(2 log_std)) of each of P pieces."""

    mean: Float[Array, "P Dx"]
    log_std: Float[Array, "P Dx"]

    def divergence(self) -> Float[Array, " P"]:
        """KL[q(x₀) ‖ N(0, I)] = ½ Σ { σ² + mean² − 1 } − Σ log σ."""
        return jnp.sum(0.5 * (jnp.exp(2 * self.log_std) + self.mean**2 - 1) - self.log_std, -1)

    def draw(self, key: PRNGKeyArray, count: int) -> Float[Array, "N Dx"]:
        """Return `count` consecutive draws for each piece, N = P · count."""
        mean, std = (jnp.repeat(part, count, 0) for part in (self.mean, jnp.exp(self.log_std)))
        return mean + std * jax.random.normal(key, mean.shape, mean.dtype)


def marginal(law: WeightLaw) -> Function:
    """f ~ N(m + A·mean, B + A L Lᵀ Aᵀ): the weights integrated out at each step."""
    factor = law.factor

    def moments(step: Step) -> FunctionMoments:
        spread = jnp.sum(jnp.matmul(step.gain, factor) ** 2, -1)
        return step.given(law.mean), (jnp.maximum(step.residual, 0.0) + spread).T

    return moments


def conditional(weights: Float[Array, "Dx N M"]) -> Function:
    """f ~ N(m + A·v_n, B), with separate weights for each of N paths."""

    def moments(step: Step) -> FunctionMoments:
        mean = step.mean + jnp.sum(step.gain * weights, -1).T
        return mean, jnp.maximum(step.residual, 0.0).T

    return moments


def divergence_given_function(
    gap: Float[Array, "N Dx"],
    slope: Float[Array, "N Dx"] | float,
    noise: Float[Array, "N Dx"],
    spread: Float[Array, "N Dx"],
    variance: Float[Array, "1 Dx"],
) -> Float[Array, "N Dx"]:
    """E_f KL[ N(F f + g, S) ‖ N(f, Q) ] = ½ { (S + gap² + (F − 1)² spread) / Q − 1 + log Q/S },

    for f ~ N(f̄, spread), with gap = (F − 1) f̄ + g the mean of x_{t+1} minus that of f. If x_{t+1}
    does not depend on f, F = 0 and `noise` S is the total variance of x_{t+1}.
    """
    return 0.5 * (
        (noise + gap**2 + (slope - 1) ** 2 * spread) / variance - 1 + jnp.log(variance / noise)
    )


class Pieces(NamedTuple):
    """Start and end (exclusive) of pieces of at most `length` rows in the concatenated rows of all
    series.

    Each row belongs to `cover` pieces.
    """

    first: Int[np.ndarray, " K"]
    end: Int[np.ndarray, " K"]
    length: int
    cover: int


def cut(lengths: list[int], window: int | None) -> Pieces:
    """Divide all series into pieces of `window` rows, counted from their ends.

    None keeps whole series.
    """
    size = max(lengths) if window is None else min(window, max(lengths))
    ends = np.cumsum(lengths)
    parts = [
        (max(end - (count + 1) * size, end - rows), end - count * size)
        for end, rows in zip(ends, lengths, strict=True)
        for count in reversed(range(-(-rows // size)))
    ]
    first, end = np.array(parts).T
    return Pieces(first, end, size, 1)


def windows(lengths: list[int], window: int | None) -> Pieces:
    """Return every window of `window` rows, including those that extend beyond a series, or whole
    series.

    Every row is therefore in equally many windows, and a uniformly chosen window gives unbiased
    sums over all rows.
    """
    if window is None or window >= max(lengths):
        return cut(lengths, None)
    parts = []
    for end, rows in zip(np.cumsum(lengths), lengths, strict=True):
        begin = np.arange(end - rows + 1 - window, end)
        parts.append((np.maximum(begin, end - rows), np.minimum(begin + window, end)))
    first, end = np.concatenate(parts, 1)
    return Pieces(first, end, window, window)


class Batch(NamedTuple):
    """P pieces of at most W rows, stacked.

    In rows beyond the end of a piece, y is NaN and `inside` is False.
    """

    y: Float[Array, "W P Dy"]
    u: Float[Array, "W P Du"]
    inside: Bool[Array, "W P"]
    weight: float  # factor from a sum over the batch to a sum over all rows


def take(series: list[Series], pieces: Pieces, chosen: Int[Array, " P"] | None = None) -> Batch:
    """Return the chosen pieces, or all of them."""
    index = jnp.arange(len(pieces.first)) if chosen is None else chosen
    first, end = jnp.asarray(pieces.first)[index], jnp.asarray(pieces.end)[index]
    rows = first[None] + jnp.arange(pieces.length)[:, None]
    inside = rows < end[None]
    rows = jnp.where(inside, rows, first[None])
    columns = ([experiment.y for experiment in series], [experiment.u for experiment in series])
    y, u = (jnp.concatenate([jnp.asarray(part) for part in parts])[rows] for parts in columns)
    weight = len(pieces.first) / (pieces.cover * len(index))
    return Batch(jnp.where(inside[:, :, None], y, jnp.nan), u, inside, weight)


def join(
    states: Float[Array, "W+1 K Dx"], pieces: Pieces, lengths: list[int]
) -> tuple[Float[Array, "_ Dx"], ...]:
    """Return one path per series from those of its pieces: the states of their outputs, and the
    first x₀.
    """
    paths, ends = [], np.cumsum(lengths)
    for end, rows in zip(ends, lengths, strict=True):
        index = np.flatnonzero((pieces.first >= end - rows) & (pieces.end <= end))
        parts = [states[1 : pieces.end[k] - pieces.first[k] + 1, k] for k in index]
        paths.append(jnp.concatenate([states[:1, index[0]], *parts]))
    return tuple(paths)


def roll(
    key: PRNGKeyArray,
    model: GPSSM,
    function: Function,
    conditioner: Conditioner,
    start: Float[Array, "N Dx"],
    u: Float[Array, "W P Du"],
    parameters: Any = None,
) -> tuple[Float[Array, "W+1 N Dx"], Float[Array, "W N"]]:
    """x_{t+1} = mean + variance^½ ε from q(x_{t+1} | x_t), step by step.

    `parameters` of the conditioner have leading axes (W, P), None if it needs none; it sees them a
    row for each of N paths.

    Returns
    -------
    states : array
        Paths of N = P · count states, those of a piece next to each other.
    divergence : array
        KL_t, summed over dimensions.
    """
    transition, variance = model.transition(), model.process_variance[None]
    noises = jax.random.normal(key, (u.shape[0], *start.shape), start.dtype)
    count = start.shape[0] // u.shape[1]
    inputs = jax.tree.map(
        lambda part: jnp.repeat(part, count, 1), (u.astype(start.dtype), parameters)
    )

    def move(x: Float[Array, "N Dx"], row: Any) -> tuple[Array, tuple[Array, Array]]:
        (u, parameters), noise = row
        mean, spread, divergence = conditioner(parameters, function(transition(x, u)), variance)
        following = mean + jnp.sqrt(spread) * noise
        return following, (following, jnp.sum(divergence, -1))

    _, (states, divergence) = jax.lax.scan(move, start, (inputs, noises))
    return jnp.concatenate([start[None], states]), divergence


def path_bound(
    model: GPSSM,
    states: Float[Array, "W+1 N Dx"],
    divergence: Float[Array, "W N"],
    start: StartLaw,
    batch: Batch,
) -> Float[Array, ""]:
    """weight · Σ over the batch of { E[ Σ_t log p(y_t | x_{t+1}) − Σ_t KL_t ] − KL[q(x₀) ‖ N(0, I)]
    }, from the paths and KL_t of `roll`.
    """
    count = divergence.shape[1] // batch.inside.shape[1]
    y, inside = (jnp.repeat(part, count, 1) for part in (batch.y, batch.inside))
    flat = states[1:].reshape(-1, model.state_dim)
    log_density = model.likelihood.log_prob(flat, y.reshape(-1, y.shape[-1]).astype(flat.dtype))
    steps = jnp.sum(log_density) - jnp.sum(jnp.where(inside, divergence, 0.0))
    return batch.weight * (steps / count - jnp.sum(start.divergence()))


@dataclass(frozen=True)
class VariationalSettings(MethodSettings):
    """Settings of a variational method; `MethodSettings` has the others.

    Parameters
    ----------
    num_warmup
        Number of steps of the optimiser.
    learning_rate
        Initial step size of Adam, which decays to zero over the warm-up along a half cosine.
    num_samples
        Number of paths for each estimate of the bound.
    """

    num_warmup: int = 1000
    num_draws: int = 250
    learning_rate: float = 0.01
    num_samples: int = whole(16)

    def num_shared(self, model: GPSSM) -> int:
        """Return the whole warm-up, as q is learned once for all chains."""
        return self.num_warmup


class Guess(NamedTuple):
    """The learned variables: the leaves that are not fixed, q(v) relative to its start, and the
    parameters of q(x).
    """

    leaves: dict[str, Array]
    weights: WeightLaw
    paths: Any


class VariationalCarry(NamedTuple):
    """The state of the optimiser.

    `anchor` is the initial q(v), and `bound` the last finite estimate.
    """

    guess: Guess
    anchor: WeightLaw
    adam: Any
    bound: Float[Array, ""]
    iteration: Int[Array, ""]


class VariationalPosterior(NamedTuple):
    """The model with learned leaves, q(v), and the parameters of q(x)."""

    model: GPSSM
    weights: WeightLaw
    paths: Any


class VariationalSampler(Sampler):
    """The iterations of a variational method, started from q(v) = p(v | x) at some states.

    A subclass defines q(x): its `paths`, a pytree of what it needs, the `bound` and `draw_states`.
    """

    @abc.abstractmethod
    def paths(self, key: PRNGKeyArray, series: list[Series]) -> Any:
        """Return the initial parameters of q(x)."""

    @abc.abstractmethod
    def bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series], iteration: Array
    ) -> Float[Array, ""]:
        """Return an estimate of the ELBO."""

    @abc.abstractmethod
    def draw_states(
        self,
        key: PRNGKeyArray,
        q: VariationalPosterior,
        v: Float[Array, "Dx M"],
        series: list[Series],
    ) -> States:
        """Return a draw of x from q(x | v)."""

    @property
    def lengths(self) -> list[int]:
        """The number of rows of each series."""
        return [len(path) - 1 for path in self.states]

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam with clipped gradients, ignoring those that are not finite.

        The gradient per row of data has a norm below ten unless a path diverges.
        """
        adam = annealed_adam(self.settings.learning_rate, self.settings.num_warmup)
        clipped = optax.chain(optax.clip_by_global_norm(10.0), adam)
        return optax.apply_if_finite(clipped, max_consecutive_errors=1_000_000)

    def init(self, key: PRNGKeyArray, series: list[Series]) -> VariationalCarry:
        """Return the initial carry."""
        anchor = weights_at(self.model, self.states, series)
        relative = jax.tree.map(jnp.zeros_like, anchor)
        guess = Guess(self.model.free_leaves(), relative, self.paths(key, series))
        worst = jnp.asarray(-jnp.inf)
        return VariationalCarry(
            guess, anchor, self.optimiser.init(guess), worst, jnp.zeros((), int)
        )

    def step(
        self, key: PRNGKeyArray, carry: VariationalCarry, series: list[Series]
    ) -> tuple[VariationalCarry, Info]:
        """Take a step of the optimiser in the warm-up, and none afterwards."""
        learning = carry.iteration < self.settings.num_warmup
        carry = jax.lax.cond(
            in_step(learning), lambda: self.climb(key, carry, series), lambda: carry
        )
        unit = jnp.ones_like(carry.bound)
        cost = learning.astype(carry.bound.dtype)
        info = Info(carry.bound, unit, jnp.zeros((), bool), -carry.bound, cost)
        return carry._replace(iteration=carry.iteration + 1), info

    def climb(
        self, key: PRNGKeyArray, carry: VariationalCarry, series: list[Series]
    ) -> VariationalCarry:
        """Take a gradient step on the bound plus the log prior of the leaves, per row."""
        rows = sum(self.lengths)

        def loss(guess: Guess) -> tuple[Float[Array, ""], Float[Array, ""]]:
            q = self.posterior(guess, carry.anchor)
            bound = self.bound(key, q, series, carry.iteration)
            return -(bound + q.model.log_prior()) / rows, bound

        guess, adam, bound = descend(self.optimiser, loss, carry.guess, carry.adam)
        bound = jnp.where(jnp.isfinite(bound), bound, carry.bound)
        return carry._replace(guess=guess, adam=adam, bound=bound)

    def draw(self, key: PRNGKeyArray, carry: VariationalCarry, series: list[Series]) -> Draw:
        """Return weights from q(v), and states given them."""
        weights_key, states_key = jax.random.split(key)
        q = self.posterior(carry.guess, carry.anchor)
        weights = q.weights.draw(weights_key, 1)[:, 0]
        states = self.draw_states(states_key, q, weights, series)
        return Draw(states, weights, carry.guess.leaves)

    @property
    def pieces(self) -> Pieces:
        """The pieces of the series of which `batch` consists, by default whole series."""
        return cut(self.lengths, None)

    def batch(self, series: list[Series]) -> Batch:
        """Return the stacked pieces."""
        return take(series, self.pieces)

    def join(self, states: Float[Array, "W+1 K Dx"]) -> States:
        """Return one path per series from those of `batch`."""
        return join(states, self.pieces, self.lengths)

    def posterior(self, guess: Guess, anchor: WeightLaw) -> VariationalPosterior:
        """Return q with the learned variables."""
        model = self.model.with_leaves(guess.leaves)
        return VariationalPosterior(model, placed(anchor, guess.weights), guess.paths)


class RolloutSampler(VariationalSampler):
    """A variational method whose q(x) is rolled out step by step given the function.

    A subclass defines its `paths`, the `law` of a batch, and the `conditioner` of a step.
    """

    conditioner: ClassVar[Any]  # a `Conditioner`

    @abc.abstractmethod
    def law(self, q: VariationalPosterior, batch: Batch) -> tuple[StartLaw, Any]:
        """Return q(x₀) of each piece, and the parameters of the steps."""

    def function(self, q: VariationalPosterior, v: Float[Array, "Dx M"]) -> Function:
        """Return the function along which a path is drawn, by default that of the weights."""
        return conditional(v[:, None, :])

    def bound(
        self, key: PRNGKeyArray, q: VariationalPosterior, series: list[Series], iteration: Array
    ) -> Float[Array, ""]:
        """Return the bound with the weights integrated out at each step."""
        keys, batch = jax.random.split(key), self.batch(series)
        return self.estimate(keys, q, marginal(q.weights), self.conditioner, batch)

    def estimate(
        self,
        keys: PRNGKeyArray,
        q: VariationalPosterior,
        function: Function,
        conditioner: Conditioner,
        batch: Batch,
    ) -> Float[Array, ""]:
        """Return the bound from some paths of each piece."""
        start, paths = self.roll(keys, q, function, conditioner, batch, self.settings.num_samples)
        return path_bound(q.model, *paths, start, batch) - q.weights.divergence()

    def roll(
        self,
        keys: PRNGKeyArray,
        q: VariationalPosterior,
        function: Function,
        conditioner: Conditioner,
        batch: Batch,
        count: int,
    ) -> tuple[StartLaw, tuple[Float[Array, "W+1 N Dx"], Float[Array, "W N"]]]:
        """Return q(x₀), and `count` paths of each piece with KL_t, from two random keys."""
        start, parameters = self.law(q, batch)
        first = start.draw(keys[0], count)
        return start, roll(keys[1], q.model, function, conditioner, first, batch.u, parameters)

    def draw_states(
        self,
        key: PRNGKeyArray,
        q: VariationalPosterior,
        v: Float[Array, "Dx M"],
        series: list[Series],
    ) -> States:
        """Return one path for each series; its pieces have separate x₀."""
        keys, batch = jax.random.split(key), self.batch(series)
        _, (states, _) = self.roll(keys, q, self.function(q, v), self.conditioner, batch, 1)
        return self.join(states)


def readable(model: GPSSM, batch: Batch) -> Float[Array, "W P C"]:
    """What a net sees of each row: outputs on the predictor's scale, which of them are there, and
    inputs.
    """
    rows = batch.y.reshape(batch.y.shape[0] * batch.y.shape[1], batch.y.shape[2])
    y, present = observed(model.likelihood.pseudo_outputs(rows))
    parts = [part.reshape(batch.y.shape) for part in (y, present.astype(y.dtype))]
    return jnp.concatenate(
        [*parts, jnp.where(batch.inside[:, :, None], batch.u, 0.0).astype(y.dtype)], -1
    )


def weights_at(model: GPSSM, states: States, series: list[Series]) -> WeightLaw:
    """Return p(v | x) = N(P⁻¹b, P⁻¹) at these states, as the initial q(v)."""
    mean, precision = weights_given_states(model, states, series)
    inverse = inverse_root(precision)
    factor = cholesky(jnp.matmul(inverse.mT, inverse))
    return WeightLaw(mean, _with_diagonal(factor, jnp.log(_diagonal(factor))))


def placed(anchor: WeightLaw, relative: WeightLaw) -> WeightLaw:
    """Return the distribution of v = mean₀ + L₀ w, where w has the relative distribution and mean₀,
    L₀ are those of the anchor.

    One step size in w suits both weights that the data determine precisely and weights that they do
    not.
    """
    root = anchor.factor
    mean = anchor.mean + jnp.matmul(root, relative.mean[:, :, None])[:, :, 0]
    logarithms = _diagonal(anchor.raw) + _diagonal(relative.raw)
    return WeightLaw(mean, _with_diagonal(jnp.matmul(root, relative.factor), logarithms))


def _diagonal(matrices: Float[Array, "Dx M M"]) -> Float[Array, "Dx M"]:
    return jnp.diagonal(matrices, axis1=1, axis2=2)


def _with_diagonal(
    lower: Float[Array, "Dx M M"], diagonal: Float[Array, "Dx M"]
) -> Float[Array, "Dx M M"]:
    """Return the strict lower triangle with another diagonal."""
    return (
        jnp.tril(lower, -1)
        + jnp.eye(lower.shape[-1], dtype=lower.dtype)[None] * diagonal[:, None, :]
    )
