"""Simulated future paths of all draws, in parallel.

    x_{t+1} ~ N(m_s(z_t) + A_s(z_t) v_s, B_s(z_t) + Q_s),   y_t ~ p_s(y | x_{t+1})

with z_t = [x_t; u_t] is the model of draw s = 1..S, whose weights v and parameters are fixed along
a path; noise of variances B and Q is drawn independently at each step.

An `Ensemble` contains the factorised models of many draws, by which forecasts and filters propagate
states. Factorisations, such as L⁻¹ of the covariance of the inducing points, are computed once per
draw, or only once if the draws share kernel, basis and mean. Propagating the states then takes only
matrix products.

The random numbers of a path depend on the seed, the draw, the number of the path within the draw,
and the step, so that a longer forecast begins with the shorter one.

**Inputs outside the training range.** The posterior knows nothing of the response to such inputs,
but a linear mean extrapolates it with hardly any uncertainty. In a forecast, each path therefore
responds to a random multiple of the part of an input outside the training range [a, b],

    ũ_t = c_t + γ (u_t − c_t),   c_t = min(max(u_t, a), b),   γ ~ U(0, 2)

so that the response to the excess lies between zero (a saturated actuator) and twice the response
of the model, which is its average.

**Paths that leave the known region.** Far from the data a Gaussian process is uninformed about f,
and some draws are unstable there: a few divergent paths would make the mean and variance of a
forecast meaningless. The known region of a draw is a box around its training states, `bounds` times
as wide as their range in each coordinate. A path that leaves it is stopped, and the forecast at
step t is the distribution of y_t given that the path has stayed inside until t: a stopped path
continues as a copy of a randomly chosen path that is still inside, and of another if that one stops
as well. This corresponds to a prior that excludes unstable functions, applied step by step, so that
the forecast of step t does not depend on the horizon. The share of paths that left is reported with
the forecast.

Once more than half of the paths have left, the remaining ones no longer represent the model, and
copying them would make forecasts more certain the less is known. From then on, a path that leaves
restarts from a randomly chosen training state of its draw, as often as it leaves.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from gpssm.core.runtime import jit
from gpssm.data.dataset import Dataset
from gpssm.data.padding import padded_length
from gpssm.inference.settings import MethodSettings
from gpssm.model.likelihoods import Gaussian, GaussianNoise, Likelihood
from gpssm.model.model import GPSSM, Step
from gpssm.posterior.draws import merge_chains

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

BOUNDS = 3.0
START = 2**32 - 1  # replaces the number of a step, for random numbers of the start of a path
MANY = 0.5  # share of paths that may leave before they restart instead of becoming copies
NUM_ANEW = 128  # training states to restart from, at most, and one more for each series

Pair = tuple[Float[np.ndarray, "S T Dy"], Float[np.ndarray, "S T Dy"]]  # mean and variance


class Members(NamedTuple):
    """S draws, each array of `weights` and `leaves` with a leading axis S, and their model."""

    model: GPSSM
    weights: Float[Array, "S Dx M"]
    leaves: dict[str, Array]


def members_of(posterior: "Posterior", draws: Int[np.ndarray, " S"]) -> Members:
    """Return these draws, for compiled code."""
    _, weights, leaves = jax.tree.map(
        lambda leaf: jnp.asarray(merge_chains(leaf)[draws]), posterior.draws._replace(states=())
    )
    return Members(posterior.model, weights, leaves)


class Moments(NamedTuple):
    """Moments of the next states.

    `novelty` is the share of the prior variance of f that remains given the weights.
    """

    mean: Float[Array, "S P Dx"]
    variance: Float[Array, "S P Dx"]
    novelty: Float[Array, "S P"]


class Ensemble(eqx.Module):
    """S factorised draws, which propagate P states each; created by `assemble`.

    Parameters
    ----------
    transition
        The transition of each draw, or the shared transition.
    weights, process_variance
        Weights and process variances of each draw.
    likelihood
        The likelihood, with a leading axis S on every array.
    shared
        Whether all draws share one transition, without the axis S.
    """

    transition: Callable[
        [Float[Array, "1 Dx"], Float[Array, "1 Du"]], tuple[Step, Float[Array, "Dx 1"]]
    ]
    weights: Float[Array, "S Dx M"]
    process_variance: Float[Array, "S Dx"]
    likelihood: Likelihood
    shared: bool = eqx.field(static=True)

    def scaled(self, scale: Float[Array, " S"]) -> Self:
        """Return the draws with their noise variances, Q and a Gaussian R, scaled."""
        likelihood = self.likelihood
        if isinstance(likelihood, GaussianNoise):
            louder = likelihood.log_std + 0.5 * jnp.log(scale)[:, None]
            likelihood = dataclasses.replace(likelihood, log_std=louder)
        return dataclasses.replace(
            self, process_variance=self.process_variance * scale[:, None], likelihood=likelihood
        )

    def moments(self, x: Float[Array, "S P Dx"], u: Float[Array, "S P Du"]) -> Moments:
        """Return m + A v, B + Q, and the mean over d of B_d / k_d(z, z)."""

        def moments(fixed: tuple[Any, ...], x: Array, u: Array) -> Moments:
            transition, weights, noise = fixed
            step, prior = transition(x[None], u[None])
            residual = jnp.maximum(step.residual[:, 0], 0.0)
            novelty = jnp.mean(residual / jnp.maximum(prior[:, 0], jnp.finfo(prior.dtype).tiny))
            return Moments(step.given(weights)[0], residual + noise, novelty)

        axis = None if self.shared else eqx.if_array(0)
        each = eqx.filter_vmap(moments, in_axes=(None, 0, 0))
        every = eqx.filter_vmap(each, in_axes=((axis, 0, 0), 0, 0))
        return every((self.transition, self.weights, self.process_variance), x, u)


def is_shared(leaves: dict[str, Array]) -> bool:
    """Return whether all draws share one transition, apart from the weights."""
    return not any(name.startswith(("kernel.", "basis.", "mean.")) for name in leaves)


def assemble(
    model: GPSSM, weights: Float[Array, "S Dx M"], leaves: dict[str, Array], input_dim: int
) -> Ensemble:
    """Return the ensemble of S draws, whose weights and leaves have a leading axis S."""
    shared = is_shared(leaves)
    x, u = (
        jnp.zeros((1, width), model.log_process_std.dtype) for width in (model.state_dim, input_dim)
    )
    static: list[Any] = []  # the static part of a transition, which `lax.map` cannot return

    def transition(current: GPSSM) -> Any:
        move = current.transition()

        def step(
            x: Float[Array, "1 Dx"], u: Float[Array, "1 Du"]
        ) -> tuple[Step, Float[Array, "Dx 1"]]:
            return move(x, u), current.kernel.diagonal(jnp.concatenate([x, u], -1))

        # Convert factorisations to arguments of the function, so that draws can be stacked.
        return eqx.filter_closure_convert(step, x, u)

    def arrays(values: dict[str, Array]) -> Any:
        dynamic, rest = eqx.partition(transition(model.with_leaves(values)), eqx.is_array)
        static.append(rest)
        return dynamic

    def noises(values: dict[str, Array]) -> tuple[Array, Likelihood]:
        current = model.with_leaves(values)
        return current.process_variance, current.likelihood

    stacked = transition(model) if shared else eqx.combine(jax.lax.map(arrays, leaves), static[-1])
    variance, likelihood = eqx.filter_vmap(noises, axis_size=weights.shape[0])(leaves)
    return Ensemble(stacked, weights, variance, likelihood, shared)


def spread_paths(
    num_draws: int, num_paths: int
) -> tuple[Int[np.ndarray, " S"], int, Int[np.ndarray, " N"]]:
    """Spread N paths evenly over the draws: path i goes to draw ⌊i · draws / paths⌋.

    Returns
    -------
    draws
        Numbers of the S draws with paths.
    each
        P, the number of paths of each of them.
    slots
        Places of the N paths among the S·P.
    """
    chosen = np.arange(num_paths) * num_draws // num_paths
    draws, first, place, counts = np.unique(
        chosen, return_index=True, return_inverse=True, return_counts=True
    )
    each = int(counts.max())
    return draws, each, place * each + np.arange(num_paths) - first[place]


@functools.partial(jax.jit, static_argnames="each")
def path_keys(key: PRNGKeyArray, draws: Int[np.ndarray, " S"], each: int) -> PRNGKeyArray:
    """Return one key per path, (S, P), from the numbers of the draw and of the path within it."""
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    return fold(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(draws)), jnp.arange(each))


class Box(NamedTuple):
    """The range of the training states of each draw; paths may use `bounds` times this range.

    Parameters
    ----------
    middle, half_range
        The centre of the states, and half their range.
    bounds
        The width of the box relative to the range.
    states, num_states
        Some of the states, evenly spaced over the rows, padded to a constant R, and their number.
    """

    middle: Float[Array, "S Dx"]
    half_range: Float[Array, "S Dx"]
    bounds: Float[Array, ""]
    states: Float[Array, "S R Dx"]
    num_states: Int[Array, ""]

    def away(
        self, x: Float[Array, "S P Dx"], process_variance: Float[Array, "S Dx"]
    ) -> Float[Array, "S P"]:
        """Return the largest distance of states from the centre over coordinates, in
        half-ranges.
        """
        # Training states range over three process noises at least, to each side.
        reach = jnp.maximum(self.half_range, 3.0 * jnp.sqrt(process_variance))[:, None]
        return jnp.max(jnp.abs(x - self.middle[:, None]) / reach, -1)

    def grown(self, start: Float[Array, "S P Dx"], process_variance: Float[Array, "S Dx"]) -> Self:
        """Return a box widened to include the start of paths, if most start outside of it.

        If most draws agree, new data have moved the system there; if only a few do, their filters
        have lost track of the state.
        """
        distance = jnp.nanmedian(self.away(start, process_variance))
        return self._replace(bounds=self.bounds * jnp.maximum(distance, 1.0))


def training_box(posterior: "Posterior", draws: Int[np.ndarray, " S"], bounds: float) -> Box:
    """Return the box around the training states of each draw, over all series."""
    states = [merge_chains(path)[draws] for path in posterior.draws.states]
    low = np.min([path.min(1) for path in states], axis=0)
    high = np.max([path.max(1) for path in states], axis=0)
    every = -(-sum(path.shape[1] for path in states) // NUM_ANEW)
    restarts = np.concatenate([path[:, ::every] for path in states], axis=1)
    count = restarts.shape[1]
    padding = max(NUM_ANEW, padded_length(count)) - count
    return Box(
        middle=jnp.asarray((low + high) / 2),
        half_range=jnp.asarray((high - low) / 2),
        bounds=jnp.asarray(bounds, low.dtype),
        states=jnp.asarray(np.pad(restarts, ((0, 0), (0, padding), (0, 0)))),
        num_states=jnp.asarray(count),
    )


# The random stream of a path's response to inputs outside the training range, in place of a step.
GAIN_STREAM = 2**32 - 1


class PathPlan(NamedTuple):
    """The draws that N paths follow, and what the paths need besides their start.

    Parameters
    ----------
    draws
        Numbers of the S draws.
    members
        These draws.
    keys
        Keys of the P paths of each draw.
    slots
        Places of the N paths among the S·P.
    box
        The known region of each draw, if paths are stopped outside it.
    """

    draws: Int[np.ndarray, " S"]
    members: Members
    keys: PRNGKeyArray
    slots: Int[Array, " N"]
    box: Box | None


def plan_paths(posterior: "Posterior", num_paths: int, seed: int, bounds: float | None) -> PathPlan:
    """Spread paths over the draws of all chains.

    Parameters
    ----------
    posterior
        The posterior.
    num_paths
        N.
    seed
        Seed of the paths.
    bounds
        Width of the known region in multiples of the range of the training states; None for no
        such region.
    """
    draws, each, slots = spread_paths(posterior.num_chains * posterior.num_draws, num_paths)
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), draws, each)
    box = None if bounds is None else training_box(posterior, draws, bounds)
    return PathPlan(draws, members_of(posterior, draws), keys, jnp.asarray(slots), box)


class Emission(NamedTuple):
    """Outputs, and the moments of their distributions.

    Parameters
    ----------
    y
        The outputs.
    moments
        Mean and variance of the distribution from which they are drawn.
    moments_ahead
        Mean and variance given the previous state, for a smoother mixture over paths; equal to
        `moments` unless the emission is linear and Gaussian.
    """

    y: Float[Array, "*shape Dy"]
    moments: tuple[Float[Array, "*shape Dy"], Float[Array, "*shape Dy"]]
    moments_ahead: tuple[Float[Array, "*shape Dy"], Float[Array, "*shape Dy"]]

    def in_units(self, dataset: Dataset) -> tuple[np.ndarray, Pair, Pair]:
        """Return the outputs, `moments` and `moments_ahead` in the user's units."""

        def pair(mean: Array, variance: Array) -> Pair:
            return dataset.decode(mean), dataset.scaler.unscale_variance(variance)

        return dataset.decode(self.y), pair(*self.moments), pair(*self.moments_ahead)


# The emission, arrays (H, N, Dy), and at each of H steps the share of the paths that had left by
# then and the novelty of where the living were.
Paths = tuple[Emission, Float[Array, " H"], Float[Array, " H"]]


def split_inputs(
    posterior: "Posterior", u: Float[np.ndarray, "H Du"]
) -> tuple[Float[np.ndarray, "H Du"], Float[np.ndarray, "H Du"]]:
    """Split encoded inputs into the part within the training range and the uncertain excess.

    Linear models and known equations extrapolate by assumption, and a posterior that has learned
    from new rows has no training range: all of an input is then certain.
    """
    limits = np.array(list(posterior.dataset.input_range.values())).reshape(-1, 2)
    spec = posterior.spec
    linear = isinstance(spec.method, MethodSettings) and spec.method.extrapolates
    if linear or spec.physics is not None or posterior.learned is not None or not len(limits):
        return u, np.zeros_like(u)
    low, high = np.sort(posterior.dataset.encode_inputs(limits.T), axis=0)
    within = np.clip(u, low, high)
    return within, u - within


@jit
def simulate_paths(
    plan: PathPlan,
    scale: Float[Array, " S"],
    start: Float[Array, "S P Dx"],
    u: Float[Array, "H Du"],
    excess: Float[Array, "H Du"],
    noise: bool,
) -> Paths:
    """Simulate paths of these draws with scaled noise by the compiled `run_paths`."""
    ensemble = assemble(*plan.members, u.shape[1]).scaled(scale)
    return run_paths(ensemble, start, u, plan.keys, plan.slots, plan.box, noise, excess)


def run_paths(
    ensemble: Ensemble,
    start: Float[Array, "S P Dx"],
    u: Float[Array, "H Du"],
    keys: PRNGKeyArray,
    slots: Int[Array, " N"],
    box: Box | None,
    noise: bool,
    excess: Float[Array, "H Du"] | None = None,
) -> Paths:
    """Run P paths of each of S draws for H steps and show those in `slots`.

    A path responds to u plus a random multiple of the excess.

    Those that left have stand-ins. Without a box no path is stopped, and the share that left is
    the share that is not finite.
    """
    noise_variance = ensemble.process_variance
    excess = jnp.zeros_like(u) if excess is None else excess
    gains = _each(lambda key: jax.random.uniform(jax.random.fold_in(key, GAIN_STREAM)), keys)
    gains = 2 * gains[..., None]
    box = None if box is None else box.grown(start, noise_variance)

    def shown(values: Shaped[Array, "S P ..."]) -> Shaped[Array, "N ..."]:
        return values.reshape(-1, *values.shape[2:])[slots]

    def inside(x: Float[Array, "S P Dx"]) -> Bool[Array, "S P"]:
        finite = jnp.isfinite(x).all(-1)
        return finite if box is None else finite & (box.away(x, noise_variance) <= box.bounds)

    def advance(
        carry: Any, inputs: tuple[Array, Array, Array]
    ) -> tuple[Any, tuple[Emission, Array, Array]]:
        x, alive, stayed, source = carry
        number, u, excess = inputs
        step_keys = _each(lambda key: jax.random.split(jax.random.fold_in(key, number), 3), keys)
        acting = u[None, None] + gains * excess[None, None]
        moments = ensemble.moments(x, acting)
        normal = _each(lambda key: jax.random.normal(key, x.shape[2:], x.dtype), step_keys[..., 0])
        following = moments.mean + jnp.sqrt(moments.variance) * normal
        novelty = jnp.where(shown(alive), shown(moments.novelty), 0.0)
        novelty = jnp.sum(novelty) / jnp.sum(shown(alive))
        alive = alive & inside(following)
        stayed = stayed & alive
        share_left = jnp.mean(~shown(stayed), dtype=x.dtype)
        lots = _each(jax.random.uniform, step_keys[..., 2])
        if box is not None:
            begin = (~alive & (share_left > MANY))[..., None]
            rows = jnp.floor(lots * box.num_states).astype(int)
            anew = jnp.take_along_axis(box.states, rows[..., None], axis=1)
            anew = jnp.where(begin, anew, x)
            following = jnp.where(alive[..., None], following, anew)
            moments = moments._replace(
                mean=jnp.where(begin, anew, moments.mean),
                variance=jnp.where(begin, 0.0, moments.variance),
            )
            alive = alive | begin[..., 0]
        emitted = emissions(ensemble.likelihood, step_keys[..., 1], following, noise)
        emitted = jax.tree.map(shown, look_ahead(ensemble.likelihood, emitted, moments))
        if box is not None:
            source = stand_in(source, shown(alive), shown(lots))
            emitted = jax.tree.map(lambda leaf: leaf[source], emitted)
        return (following, alive, stayed, source), (emitted, share_left, novelty)

    alive = inside(start)
    carry = (start, alive, alive, jnp.arange(slots.shape[0]))
    return jax.lax.scan(advance, carry, (jnp.arange(u.shape[0]), u, excess))[1]


def _each(function: Callable[[PRNGKeyArray], Array], keys: PRNGKeyArray) -> Array:
    """Apply a function to each of the keys (S, P)."""
    return jax.vmap(jax.vmap(function))(keys)


def emissions(
    likelihood: Likelihood, keys: PRNGKeyArray, x: Float[Array, "S N Dx"], noise: bool
) -> Emission:
    """Draw y ~ p(y | x), or return the mean, under the likelihood of each draw, with one key per
    state.

    Every array of the likelihood has a leading axis S.
    """

    def emit(likelihood: Likelihood, keys: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Emission:
        mean, variance = likelihood.moments(x)
        y = jax.vmap(lambda key, x: likelihood.sample(key, x[None])[0])(keys, x) if noise else mean
        return Emission(y, (mean, variance), (mean, variance))

    return eqx.filter_vmap(emit)(likelihood, keys, x)


def look_ahead(likelihood: Likelihood, emission: Emission, moments: Moments) -> Emission:
    """Return the emission with the moments of y given the previous state, if it is Gaussian.

    C E[x'] + d   and   C Var[x'] Cᵀ + R
    """
    if not isinstance(likelihood, Gaussian):
        return emission

    def predict(
        likelihood: Gaussian, moments: Moments
    ) -> tuple[Float[Array, "P Dy"], Float[Array, "P Dy"]]:
        mean, noise = likelihood.moments(moments.mean)
        return mean, jnp.matmul(moments.variance, jnp.square(likelihood.C).T) + noise

    return emission._replace(moments_ahead=eqx.filter_vmap(predict)(likelihood, moments))


def stand_in(
    source: Int[Array, " N"], alive: Bool[Array, " N"], lots: Float[Array, " N"]
) -> Int[Array, " N"]:
    """Return the path that each path copies: itself while inside, then the previous choice, then a
    random one.

    Lots are uniform on [0, 1). If no path is inside, the result is meaningless.
    """
    living = jnp.cumsum(alive)
    chosen = jnp.searchsorted(living, jnp.floor(lots * living[-1]).astype(living.dtype) + 1)
    return jnp.where(alive, jnp.arange(alive.shape[0]), jnp.where(alive[source], source, chosen))


@functools.partial(jax.jit, static_argnames="gaussian")
def choose_particles(
    keys: PRNGKeyArray,
    particles: Float[Array, "S N Dx"],
    log_weights: Float[Array, "S N"],
    scale: Float[Array, " S"],
    gaussian: bool,
) -> Float[Array, "S P Dx"]:
    """Draw a particle by weight, or from the Gaussian of the cloud, for each path with a key (S,
    P).
    """
    if gaussian:
        starts = _each(lambda key: jax.random.fold_in(key, START), keys)
        return draw_states(starts, particles, scale)

    def choose(
        key: PRNGKeyArray, particles: Float[Array, "N Dx"], weights: Float[Array, " N"]
    ) -> Float[Array, " Dx"]:
        return particles[jax.random.categorical(jax.random.fold_in(key, START), weights)]

    return jax.vmap(jax.vmap(choose, (0, None, None)))(keys, particles, log_weights)


def draw_states(
    keys: PRNGKeyArray, cloud: Float[Array, "S N Dx"], scale: Float[Array, " S"]
) -> Float[Array, "S P Dx"]:
    """Draw x ~ N(m, s P) for each key (S, P), with the mean m and covariance P of the points.

    It is m + √s Σ_i ε_i (p_i − m) / √N with ε ~ N(0, I).
    """
    mean = jnp.mean(cloud, 1, keepdims=True)
    gaps = jnp.sqrt(scale / cloud.shape[1])[:, None, None] * (cloud - mean)
    normal = _each(lambda key: jax.random.normal(key, cloud.shape[1:2], cloud.dtype), keys)
    return mean + jnp.matmul(normal, gaps)
