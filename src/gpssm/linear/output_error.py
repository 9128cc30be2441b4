"""Linear dynamics behind an emission without an inverse: free-run least squares from many starts.

    x_{t+1} = A x_t + B u_t,   ŷ_t = g(C x_{t+1} + d)

An emission such as y = |η| has lost the sign that a linear fit of the outputs would need, so no
filter can be started from it. A free run has no use for the outputs but to be compared with them:
Σ|y − ŷ|² is minimised over stable A, from many random starts since it has many minima. The controls
must tell where the states are.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.runtime import in_double_precision, jit, on_host
from gpssm.data.padding import num_moves, pad
from gpssm.data.series import Series
from gpssm.linear.search import minimise, stages
from gpssm.linear.state_space import NOISE_FLOOR, RADIUS, LinearFit, LinearSSM
from gpssm.model.likelihoods import observed

# Adam's starts and steps, those that L-BFGS goes on from, and its steps.
NUM_STARTS, NUM_STEPS, NUM_BEST, NUM_LBFGS = 32, 800, 3, 300
PROCESS_STD = 0.1  # to begin sampling with, for states of unit scale: a free run has none

Emission = Callable[[Float[Array, "N Dy"]], Float[Array, "N Dy"]]


def identity(predictor: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
    """The emission of outputs that are the linear predictor."""
    return predictor


class Modes(NamedTuple):
    """A linear model in the coordinates of its modes, for distinct eigenvalues."""

    logit: Float[Array, " K"]  # modulus of a pair of eigenvalues, RADIUS · sigmoid(logit)
    angle: Float[Array, " K"]
    real: Float[Array, " 0|1"]  # the odd eigenvalue, RADIUS · tanh(real), if Dx is odd
    control: Float[Array, "Dx Du"]
    C: Float[Array, "Dy Dx"]
    d: Float[Array, " Dy"]
    start: Float[Array, "num_series Dx"]
    weights: Float[Array, "Dy K"] | None = None  # of a curve at the output, found with the rest

    def transition(self) -> Float[Array, "Dx Dx"]:
        """A, with a rotation and contraction for each pair of eigenvalues."""
        modulus = RADIUS * jax.nn.sigmoid(self.logit)
        cosine, sine = modulus * jnp.cos(self.angle), modulus * jnp.sin(self.angle)
        blocks = [jnp.array([[c, -s], [s, c]]) for c, s in zip(cosine, sine, strict=True)]
        return jax.scipy.linalg.block_diag(*blocks, *(RADIUS * jnp.tanh(self.real))[:, None, None])

    def pushes(self, u: Float[Array, "T Du"]) -> Float[Array, "T Dx"]:
        """B u."""
        return u @ self.control.T


@in_double_precision
@on_host()
def fit_output_error(
    series: list[Series],
    state_dim: int,
    emission: Callable[..., Array],
    key: PRNGKeyArray,
    weights: Float[Array, "Dy K"] | None = None,
) -> LinearFit:
    """The best free-run fit of linear dynamics seen through an emission.

    Parameters
    ----------
    series
        Scaled series with inputs.
    state_dim
        Number of states.
    emission
        A function of each entry of C x + d; with weights, of their array too.
    key
        Of the random starts.
    weights
        An array like those of a curve at the output, if it has any: they are found with the rest.
    """
    sizes = (state_dim, series[0].input_dim, series[0].output_dim)

    def begin(key: PRNGKeyArray, num_series: int) -> Modes:
        if weights is None:
            return _random(key, num_series, *sizes)
        modes_key, key = jax.random.split(key)
        modes = _random(modes_key, num_series, *sizes)
        return modes._replace(weights=jax.random.normal(key, weights.shape))

    noise, modes, states = fit_from_starts(series, begin, emission, key)
    return _normalise(modes, states, noise, series)._replace(curve=modes.weights)


def fit_from_starts(
    series: list[Series],
    begin: Callable[[PRNGKeyArray, int], Any],
    emission: Emission,
    key: PRNGKeyArray,
) -> tuple[Float[np.ndarray, " Dy"], Any, list[Float[np.ndarray, "_ Dx"]]]:
    """The noise, the model and the states of the best free run, of many that begin at random.

    :param begin: a model of so many series for a key, with all that `Modes` has for a free run.
    """
    scale = jnp.asarray(np.nanvar(np.concatenate([item.y for item in series]), 0))
    few, *after = stages(series, NUM_LBFGS)
    padded = _padded(few.series)
    starts = jax.vmap(lambda item: begin(item, len(few.series)))(jax.random.split(key, NUM_STARTS))
    result, losses = _descend(starts, padded, scale, emission, NUM_STEPS)
    losses = np.asarray(losses)
    best = np.argsort(np.where(np.isfinite(losses), losses, np.inf))[:NUM_BEST]
    candidates = [jax.tree.map(lambda leaf, at=at: leaf[at], result) for at in best]
    polished = [
        minimise(_value_and_slope, modes, padded, scale, emission, num_steps=few.steps)
        for modes in candidates
    ]
    error, modes = min(polished, key=lambda fit: fit[0])
    for stage in after:
        modes = eqx.tree_at(lambda item: item.start, modes, modes.start[np.asarray(few.first)])
        padded = _padded(stage.series)
        error, modes = minimise(
            _value_and_slope, modes, padded, scale, emission, num_steps=stage.steps
        )
    states = [
        np.asarray(run)[: len(item) + 1]
        for run, item in zip(_free_runs(modes, padded), series, strict=True)
    ]
    return np.sqrt(np.maximum(error, NOISE_FLOOR**2) * np.asarray(scale)), modes, states


def _padded(series: list[Series]) -> list[Series]:
    """The series padded, so that many lengths share a program."""
    return [jax.tree.map(jnp.asarray, pad(item)) for item in series]


def loss(
    modes: Modes, series: list[Series], scale: Float[Array, " Dy"], emission: Callable[..., Array]
) -> Float[Array, ""]:
    """The mean of (y − ŷ)² / scale, and what large weights of a curve cost.

    Missing entries count as zero.
    """
    errors = []
    curve = () if modes.weights is None else (modes.weights,)
    for index, item in enumerate(series):
        y, present = observed(jnp.asarray(item.y))
        states = free_run(modes, modes.start[index], jnp.asarray(item.u))
        predicted = emission(states[1:] @ modes.C.T + modes.d[None], *curve)
        errors.append(jnp.where(present, (y - predicted) ** 2 / scale[None], 0.0))
    count = num_moves(series) * scale.size
    cost = sum(1e-4 * jnp.sum(weights**2) for weights in curve)
    return jnp.sum(jnp.concatenate(errors)) / count + cost


def free_run(
    modes: Modes, start: Float[Array, " Dx"], u: Float[Array, "T Du"]
) -> Float[Array, "T+1 Dx"]:
    """x_{t+1} = A x_t + B u_t from x₀ = start."""
    transition, pushes = modes.transition(), modes.pushes(u)

    def move(x: Array, push: Array) -> tuple[Array, Array]:
        following = transition @ x + push
        return following, following

    return jnp.concatenate([start[None], jax.lax.scan(move, start, pushes)[1]])


@jit
def _free_runs(modes: Modes, series: list[Series]) -> list[Float[Array, "_ Dx"]]:
    """The states of every series."""
    return [
        free_run(modes, modes.start[index], jnp.asarray(item.u))
        for index, item in enumerate(series)
    ]


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _random(key: PRNGKeyArray, num_series: int, state_dim: int, controls: int, width: int) -> Modes:
    """Slow to fast modes, controls and outputs in any direction."""
    keys, pairs = jax.random.split(key, 6), state_dim // 2
    return Modes(
        logit=jax.random.uniform(keys[0], (pairs,), minval=0.5, maxval=4.0),
        angle=jax.random.uniform(keys[1], (pairs,), minval=0.0, maxval=0.5 * jnp.pi),
        real=jax.random.uniform(keys[2], (state_dim % 2,), minval=0.5, maxval=2.0),
        control=0.3 * jax.random.normal(keys[3], (state_dim, controls)),
        C=0.3 * jax.random.normal(keys[4], (width, state_dim)),
        d=jax.random.normal(keys[5], (width,)),
        start=jnp.zeros((num_series, state_dim)),
    )


@jit
def _descend(
    starts: Modes,
    series: list[Series],
    scale: Float[Array, " Dy"],
    emission: Emission,
    num_steps: int,
    learning_rate: float = 0.03,
) -> tuple[Modes, Float[Array, " n"]]:
    """Adam from all starts side by side, and the loss at the end of each."""
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps)),
    )

    def run(modes: Any) -> tuple[Modes, Array]:
        def step(
            carry: tuple[Modes, optax.OptState], _: None
        ) -> tuple[tuple[Modes, optax.OptState], None]:
            modes, state = carry
            slope = jax.grad(loss)(modes, series, scale, emission)
            updates, state = optimiser.update(slope, state)
            return (jax.tree.map(jnp.add, modes, updates), state), None

        (modes, _), _ = jax.lax.scan(step, (modes, optimiser.init(modes)), None, length=num_steps)
        return modes, loss(modes, series, scale, emission)

    return jax.vmap(run)(starts)


@jit
@jax.value_and_grad
def _value_and_slope(
    vector: Float[Array, " p"],
    like: Modes,
    series: list[Series],
    scale: Float[Array, " Dy"],
    emission: Emission,
) -> Float[Array, ""]:
    return loss(ravel_pytree(like)[1](vector), series, scale, emission)


def _normalise(
    modes: Modes, states: list[np.ndarray], noise: np.ndarray, series: list[Series]
) -> LinearFit:
    """The model with x' = M(x − m), so that simulated states have mean 0 and covariance I."""
    transition, modes = jax.tree.map(np.asarray, (jax.jit(Modes.transition)(modes), modes))
    everything = np.concatenate(states)
    mean, covariance = everything.mean(0), np.atleast_2d(np.cov(everything.T))
    variances, vectors = np.linalg.eigh(covariance)
    spread = np.sqrt(np.maximum(variances, 1e-8 * variances.max()))
    matrix, inverse = (vectors / spread).T, vectors * spread
    parts = (
        matrix @ transition @ inverse,
        matrix @ modes.control,
        matrix @ (transition @ mean - mean),
        modes.C @ inverse,
        modes.d + modes.C @ mean,
        PROCESS_STD**2 * np.eye(len(mean)),
        noise,
    )
    linear = LinearSSM(*(jnp.asarray(part) for part in parts))
    return LinearFit.of(linear, [(path - mean) @ matrix.T for path in states], series)
