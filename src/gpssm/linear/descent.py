"""Linear models fitted by gradient descent, for emissions without an inverse and for wirings.

**Searches.** L-BFGS minimises a compiled function of a tree of parameters. Some thousands of rows
determine a linear model, but a system may stand still for a large part of a record. A long record
is therefore represented by excerpts spread evenly over it, and their optimum is the start of a
short search over all rows.

**Simulations.** An emission such as y = |η| loses the sign, which a linear fit to the outputs
requires. A simulation

    x_{t+1} = A x_t + B u_t,   ŷ_t = g(C x_{t+1} + d)

uses the outputs only for comparison: Σ|y − ŷ|² is minimised over stable A, from many random starts
since it has many local minima. The states must be determined by the inputs.

**Wirings.** In

    x_{t+1} = A x_t + B u_t + b + N(0, Q),   y_t = C x_{t+1} + d + N(0, diag(σ²))

A and B have zeros where nothing enters, rows of integrators and delays, and Q is diagonal; C has a
one for a state that is an output. Subspace identification and its rotations know nothing of this,
so coefficients are found by descent: the simulation's squared error from many random starts, where
there are inputs, and from the best of them the likelihood. In the end states are shifted and
scaled one by one, which keeps every zero.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.loops import descend
from gpssm.core.runtime import in_double_precision, jit, on_host
from gpssm.data.padding import num_moves, pad
from gpssm.data.series import Series, as_list
from gpssm.linear.state_space import (
    NOISE_FLOOR,
    PROCESS_FLOOR,
    RADIUS,
    LinearFit,
    LinearSSM,
    log_marginal,
    noise_floor,
    smoothed_moments,
)
from gpssm.model.likelihoods import observed
from gpssm.model.wiring import Wiring

ROWS, STRETCH, LEAST = (
    4096,
    1024,
    64,
)  # all rows of excerpts; most and fewest of one

Tree = TypeVar("Tree")
# Number of starts and steps of Adam, and of starts and steps of L-BFGS.
NUM_STARTS, NUM_STEPS, NUM_BEST, NUM_LBFGS = 32, 800, 3, 300
PROCESS_STD = 0.1  # initial √Q for sampling: a simulation has no process noise

Emission = Callable[[Float[Array, "N Dy"]], Float[Array, "N Dy"]]
EXACT_STD = 0.003  # √Q of a row that is known, for states of unit scale


def minimise(
    objective: Callable[..., Any], start: Tree, *arguments: Any, num_steps: int, **options: Any
) -> tuple[float, Tree]:
    """Return the minimum that L-BFGS finds from a start, and its location.

    Parameters
    ----------
    objective
        A compiled function of the flattened parameters, a tree of their shapes and the arguments,
        which returns its value and its gradient.
    start
        The parameters to start from.
    *arguments
        Further arguments of the objective.
    num_steps
        Maximum number of iterations.
    **options
        Options of SciPy's L-BFGS-B.
    """
    flat, unravel = ravel_pytree(start)

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(jnp.asarray(vector, flat.dtype), start, *arguments)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros_like(vector)  # makes the line search shorten the step
        return float(value), np.asarray(gradient, float)

    options = {"maxiter": num_steps} | options
    result = scipy.optimize.minimize(
        evaluate, np.asarray(flat), jac=True, method="L-BFGS-B", options=options
    )
    return float(result.fun), unravel(jnp.asarray(result.x, flat.dtype))


def stages(
    series: Series | Sequence[Series], steps: int
) -> list[tuple[list[Series], int, tuple[int, ...]]]:
    """Return the stages of a search: excerpts first if there are many rows, then all rows.

    The search over all rows has as many steps as cost the same as the search over excerpts.

    Returns
    -------
    For each stage the series, a number of steps, and which series begin where a record does.
    """
    whole = as_list(series)
    total = sum(len(item) for item in whole)
    if total <= ROWS:
        return [(whole, steps, tuple(range(len(whole))))]
    parts, first = [], []
    for item in whole:
        first.append(len(parts))
        share = ROWS * len(item) // total
        length = min(max(min(share, STRETCH), LEAST), len(item))
        begins = np.linspace(0, len(item) - length, max(1, share // length)).astype(int)
        parts += [item[begin : begin + length] for begin in begins]
    return [
        (parts, steps, tuple(first)),
        (whole, max(1, steps * ROWS // total), tuple(range(len(whole)))),
    ]


def identity(predictor: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
    """Return the predictor itself, as the emission of linear outputs."""
    return predictor


class Modes(NamedTuple):
    """A linear model in modal coordinates, for distinct eigenvalues."""

    logit: Float[Array, " K"]  # modulus of a pair of eigenvalues, RADIUS · sigmoid(logit)
    angle: Float[Array, " K"]
    real: Float[Array, " 0|1"]  # the odd eigenvalue, RADIUS · tanh(real), if Dx is odd
    input_map: Float[Array, "Dx Du"]
    C: Float[Array, "Dy Dx"]
    d: Float[Array, " Dy"]
    start: Float[Array, "num_series Dx"]
    weights: Float[Array, "Dy K"] | None = None  # of a curve at the output, fitted jointly

    def transition(self) -> Float[Array, "Dx Dx"]:
        """Return A, with a rotation and contraction for each pair of eigenvalues."""
        modulus = RADIUS * jax.nn.sigmoid(self.logit)
        cosine, sine = modulus * jnp.cos(self.angle), modulus * jnp.sin(self.angle)
        blocks = [jnp.array([[c, -s], [s, c]]) for c, s in zip(cosine, sine, strict=True)]
        return jax.scipy.linalg.block_diag(*blocks, *(RADIUS * jnp.tanh(self.real))[:, None, None])

    def forcing(self, u: Float[Array, "T Du"]) -> Float[Array, "T Dx"]:
        """Return B u."""
        return u @ self.input_map.T


@in_double_precision
@on_host()
def fit_output_error(
    series: list[Series],
    state_dim: int,
    emission: Callable[..., Array],
    key: PRNGKeyArray,
    weights: Float[Array, "Dy K"] | None = None,
) -> LinearFit:
    """Fit linear dynamics behind an emission by minimising the error of the simulation.

    Parameters
    ----------
    series
        Scaled series with inputs.
    state_dim
        Number of states.
    emission
        An elementwise function of C x + d and, if there are weights, of their array.
    key
        Random key of the starts.
    weights
        Array with the shape of the weights of a curve at the output, if there is one; they are
        fitted jointly.
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
    """Return noise, model and states of the best simulation from many random models.

    Parameters
    ----------
    begin
        Function that returns a random model, with the interface of `Modes`, for a key and a number
        of series.
    """
    scale = jnp.asarray(np.nanvar(np.concatenate([item.y for item in series]), 0))
    (excerpts, steps, first), *later_stages = stages(series, NUM_LBFGS)
    padded = _padded(excerpts)
    starts = jax.vmap(lambda item: begin(item, len(excerpts)))(jax.random.split(key, NUM_STARTS))
    result, losses = _descend(starts, padded, scale, emission, NUM_STEPS)
    losses = np.asarray(losses)
    best = np.argsort(np.where(np.isfinite(losses), losses, np.inf))[:NUM_BEST]
    candidates = [jax.tree.map(lambda leaf, at=at: leaf[at], result) for at in best]
    polished = [
        minimise(_value_and_slope, modes, padded, scale, emission, num_steps=steps)
        for modes in candidates
    ]
    error, modes = min(polished, key=lambda fit: fit[0])
    for records, steps, _ in later_stages:
        modes = eqx.tree_at(lambda item: item.start, modes, modes.start[np.asarray(first)])
        padded = _padded(records)
        error, modes = minimise(_value_and_slope, modes, padded, scale, emission, num_steps=steps)
    states = [
        np.asarray(run)[: len(item) + 1]
        for run, item in zip(_simulations(modes, padded), series, strict=True)
    ]
    return np.sqrt(np.maximum(error, NOISE_FLOOR**2) * np.asarray(scale)), modes, states


def _padded(series: list[Series]) -> list[Series]:
    """Return the padded series, so that different lengths share a program."""
    return [jax.tree.map(jnp.asarray, pad(item)) for item in series]


def loss(
    modes: Modes, series: list[Series], scale: Float[Array, " Dy"], emission: Callable[..., Array]
) -> Float[Array, ""]:
    """Return the mean of (y − ŷ)² / scale, plus a penalty on large weights of a curve.

    Missing entries count as zero.
    """
    errors = []
    curve = () if modes.weights is None else (modes.weights,)
    for index, item in enumerate(series):
        y, present = observed(jnp.asarray(item.y))
        states = simulate(modes, modes.start[index], jnp.asarray(item.u))
        predicted = emission(states[1:] @ modes.C.T + modes.d[None], *curve)
        errors.append(jnp.where(present, (y - predicted) ** 2 / scale[None], 0.0))
    count = num_moves(series) * scale.size
    cost = sum(1e-4 * jnp.sum(weights**2) for weights in curve)
    return jnp.sum(jnp.concatenate(errors)) / count + cost


def simulate(
    modes: Modes, start: Float[Array, " Dx"], u: Float[Array, "T Du"]
) -> Float[Array, "T+1 Dx"]:
    """Simulate x_{t+1} = A x_t + B u_t from x₀ = start."""
    transition, forcing = modes.transition(), modes.forcing(u)

    def move(x: Array, push: Array) -> tuple[Array, Array]:
        following = transition @ x + push
        return following, following

    return jnp.concatenate([start[None], jax.lax.scan(move, start, forcing)[1]])


@jit
def _simulations(modes: Modes, series: list[Series]) -> list[Float[Array, "_ Dx"]]:
    """Return the simulated states of every series."""
    return [
        simulate(modes, modes.start[index], jnp.asarray(item.u))
        for index, item in enumerate(series)
    ]


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _random(
    key: PRNGKeyArray, num_series: int, state_dim: int, input_dim: int, width: int
) -> Modes:
    """Slow to fast modes, inputs and outputs in any direction."""
    keys, pairs = jax.random.split(key, 6), state_dim // 2
    return Modes(
        logit=jax.random.uniform(keys[0], (pairs,), minval=0.5, maxval=4.0),
        angle=jax.random.uniform(keys[1], (pairs,), minval=0.0, maxval=0.5 * jnp.pi),
        real=jax.random.uniform(keys[2], (state_dim % 2,), minval=0.5, maxval=2.0),
        input_map=0.3 * jax.random.normal(keys[3], (state_dim, input_dim)),
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
    """Run Adam from all starts in parallel, and return the final loss of each."""
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps)),
    )

    def run(modes: Any) -> tuple[Modes, Array]:
        def step(
            carry: tuple[Modes, optax.OptState], _: None
        ) -> tuple[tuple[Modes, optax.OptState], None]:
            modes, state, _ = descend(
                optimiser, lambda modes: (loss(modes, series, scale, emission), None), *carry
            )
            return (modes, state), None

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
    """Return the model with x' = M(x − m), such that simulated states have mean 0 and
    covariance I.
    """
    transition, modes = jax.tree.map(np.asarray, (jax.jit(Modes.transition)(modes), modes))
    all_states = np.concatenate(states)
    mean, covariance = all_states.mean(0), np.atleast_2d(np.cov(all_states.T))
    variances, vectors = np.linalg.eigh(covariance)
    spread = np.sqrt(np.maximum(variances, 1e-8 * variances.max()))
    matrix, inverse = (vectors / spread).T, vectors * spread
    parts = (
        matrix @ transition @ inverse,
        matrix @ modes.input_map,
        matrix @ (transition @ mean - mean),
        modes.C @ inverse,
        modes.d + modes.C @ mean,
        PROCESS_STD**2 * np.eye(len(mean)),
        noise,
    )
    linear = LinearSSM(*(jnp.asarray(part) for part in parts))
    return LinearFit.of(linear, [(path - mean) @ matrix.T for path in states], series)


class WiredModel(eqx.Module):
    """A linear model with a wiring; entries that the wiring excludes have no effect."""

    coefficients: Float[Array, "Dx Dz+1"]
    log_sums: Float[Array, " integrators"]  # log c
    emission: Float[Array, "Dy Dx+1"]
    log_process_std: Float[Array, " Dx"]
    log_noise_std: Float[Array, " Dy"]
    start: Float[Array, "num_series Dx"]
    wiring: Wiring = eqx.field(static=True)
    weights: ClassVar[None] = None  # there is no curve at the output

    @classmethod
    def random(
        cls, key: PRNGKeyArray, wiring: Wiring, num_outputs: int, num_series: int
    ) -> "WiredModel":
        """Return a random model whose states decay at different rates, with inputs in any
        direction.
        """
        keys, states = jax.random.split(key, 4), wiring.state_dim
        pace = jax.random.uniform(keys[0], (states,), minval=0.5, maxval=0.99)
        coefficients = 0.1 * jax.random.normal(keys[1], (states, states + wiring.input_dim + 1))
        return cls(
            coefficients.at[:, :states].add(jnp.diag(pace)).at[:, -1].set(0.0),
            jnp.log(
                jax.random.uniform(keys[2], (len(wiring.integrators),), minval=0.02, maxval=0.5)
            ),
            0.5 * jax.random.normal(keys[3], (num_outputs, states + 1)),
            jnp.full(states, jnp.log(PROCESS_STD)),
            jnp.full(num_outputs, jnp.log(0.3)),
            jnp.zeros((num_series, states)),
            wiring,
        )

    def rows(self) -> Float[Array, "Dx Dz+1"]:
        """Return [A B b]."""
        wiring = self.wiring
        free = jnp.asarray([(*row, any(row)) for row in wiring.mask])
        rows = jnp.where(free, self.coefficients, 0.0)
        for (row, column), log_sum in zip(wiring.integrators, self.log_sums, strict=True):
            rows = rows.at[row, row].set(1.0).at[row, column].set(jnp.exp(log_sum))
            rows = rows.at[row, -1].set(self.coefficients[row, -1])
        for row, column in wiring.delays:
            rows = rows.at[row, column].set(1.0)
        return rows

    def transition(self) -> Float[Array, "Dx Dx"]:
        """Return A."""
        return self.rows()[:, : self.wiring.state_dim]

    def forcing(self, u: Float[Array, "T Du"]) -> Float[Array, "T Dx"]:
        """Return B u + b."""
        rest = self.rows()[:, self.wiring.state_dim :]
        return u @ rest[:, :-1].T + rest[:, -1][None]

    def outputs(self) -> Float[Array, "Dy Dx+1"]:
        """Return [C d]."""
        emission = self.emission
        for state, output in self.wiring.measured:
            emission = emission.at[output].set(0.0).at[output, state].set(1.0)
        return emission

    @property
    def C(self) -> Float[Array, "Dy Dx"]:
        """The output map."""
        return self.outputs()[:, :-1]

    @property
    def d(self) -> Float[Array, " Dy"]:
        """The offset of the output map."""
        return self.outputs()[:, -1]

    def linear(self) -> LinearSSM:
        """Return the state-space model with these coefficients."""
        rows, states = self.rows(), self.wiring.state_dim
        noise = jnp.where(
            jnp.asarray(self.wiring.learned), jnp.exp(2 * self.log_process_std), EXACT_STD**2
        )
        parts = (rows[:, :states], rows[:, states:-1], rows[:, -1], self.C, self.d)
        return LinearSSM(*parts, jnp.diag(noise + PROCESS_FLOOR), jnp.exp(self.log_noise_std))


@in_double_precision
@on_host()
def fit_wired(series: list[Series], wiring: Wiring, key: PRNGKeyArray) -> LinearFit:
    """Fit the linear model of maximum likelihood with this wiring; return it with smoothed
    states.
    """
    outputs = series[0].output_dim
    if wiring.input_dim:
        starts = [_wired_simulations(series, wiring, identity, key)[1]]
    else:
        starts = [
            WiredModel.random(item, wiring, outputs, len(series))
            for item in jax.random.split(key, 6)
        ]
    arrays = [jax.tree.map(jnp.asarray, item) for item in series]
    floor = noise_floor(np.concatenate([item.y for item in series]))
    fits = [
        minimise(_likelihood_and_gradient, start, arrays, floor, num_steps=200, maxcor=30)
        for start in starts
    ]
    linear = min(fits, key=lambda fit: fit[0])[1].linear()
    linear = linear._replace(noise_std=jnp.maximum(linear.noise_std, floor))
    states, spread = map(np.asarray, smoothed_moments(linear, arrays))
    ends = np.cumsum([len(item) + 1 for item in series])[:-1]
    uncertainty = np.diagonal(spread, axis1=1, axis2=2).mean(0)
    return _in_unit_scale(linear, np.split(states, ends), wiring, uncertainty, series)


@in_double_precision
@on_host()
def fit_wired_output_error(
    series: list[Series], wiring: Wiring, emission: Callable[[Array], Array], key: PRNGKeyArray
) -> LinearFit:
    """Fit the linear model with this wiring and the least squared error of its simulation."""
    noise, model, paths = _wired_simulations(series, wiring, emission, key)
    result = _in_unit_scale(model.linear(), paths, wiring, np.zeros(wiring.state_dim), series)
    process_cov = jnp.diag(jnp.where(jnp.asarray(wiring.learned), PROCESS_STD, EXACT_STD) ** 2)
    return result._replace(
        model=result.model._replace(noise_std=jnp.asarray(noise), process_cov=process_cov)
    )


def _wired_simulations(
    series: list[Series], wiring: Wiring, emission: Callable[[Array], Array], key: PRNGKeyArray
) -> tuple[np.ndarray, WiredModel, list[np.ndarray]]:
    """Return noise, model and states of the best simulation."""

    def begin(key: PRNGKeyArray, num_series: int) -> WiredModel:
        return WiredModel.random(key, wiring, series[0].output_dim, num_series)

    noise, model, paths = fit_from_starts(series, begin, emission, key)
    assert isinstance(model, WiredModel)
    return (
        noise,
        eqx.tree_at(lambda item: item.log_noise_std, model, jnp.log(jnp.asarray(noise))),
        paths,
    )


@jit
@jax.value_and_grad
def _likelihood_and_gradient(
    vector: Float[Array, " p"],
    like: WiredModel,
    series: list[Series],
    floor: Float[Array, " Dy"],
    doublings: int = 8,
) -> Float[Array, ""]:
    """Return −log p(y) plus a weak prior on the coefficients and a penalty for unstable A.

    A^n with n = 2^`doublings` may grow in proportion to n, as that of an integrator does, but not
    exponentially.
    """
    linear = ravel_pytree(like)[1](vector).linear()
    linear = linear._replace(noise_std=jnp.sqrt(linear.noise_std**2 + floor**2))
    power = linear.transition
    for _ in range(doublings):
        power = power @ power
    size = 0.5 * jnp.log(jnp.sum(power**2) + 1e-12)
    excess = jnp.maximum(size - jnp.log(10.0 * 2.0**doublings), 0.0)
    return -log_marginal(linear, series) + 0.5 * 1e-2 * jnp.sum(vector**2) + 100 * excess**2


def _in_unit_scale(
    linear: LinearSSM,
    states: list[np.ndarray],
    wiring: Wiring,
    uncertainty: Float[np.ndarray, " Dx"],
    series: list[Series],
) -> LinearFit:
    """Return the model with x' = (x − m) / s, such that each state has mean 0 and variance 1.

    A state that is an output stays as it is, as does one that holds an input, and one that holds
    another state has that one's m and s.
    """
    all_states = np.concatenate(states)
    middle, scale = all_states.mean(0), np.sqrt(all_states.var(0) + uncertainty)
    scale = np.where(scale > 1e-6, scale, 1.0)
    held = dict(wiring.delays)
    fixed = {state for state, _ in wiring.measured}
    for row in range(wiring.state_dim):
        source = row
        while source in held and source not in fixed:
            source = held[source]
        free = source < wiring.state_dim and source not in fixed
        middle[row], scale[row] = (middle[source], scale[source]) if free else (0.0, 1.0)
    A, B, b = (np.asarray(part) for part in (linear.transition, linear.input_map, linear.offset))
    variance = np.maximum(np.diag(np.asarray(linear.process_cov)) / scale**2, PROCESS_FLOOR)
    scaled = linear._replace(
        transition=A * scale[None] / scale[:, None],
        input_map=B / scale[:, None],
        offset=(A @ middle + b - middle) / scale,
        C=np.asarray(linear.C) * scale[None],
        d=np.asarray(linear.d) + np.asarray(linear.C) @ middle,
        process_cov=np.diag(np.where(wiring.learned, variance, EXACT_STD**2)),
    )
    paths = [(path - middle) / scale for path in states]
    return LinearFit.of(LinearSSM(*map(jnp.asarray, scaled)), paths, series)
