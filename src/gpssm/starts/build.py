"""A model from data: parts chosen by name or given, started from a linear fit."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy.cluster.vq
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.runtime import in_double_precision, on_host
from gpssm.data.padding import pad
from gpssm.data.series import Series, as_list, check_trainable
from gpssm.linear.identification import fit_linear
from gpssm.linear.output_error import Emission, OutputErrorFit, fit_curved, fit_output_error
from gpssm.linear.state_space import LinearSSM, smoothed_moments
from gpssm.linear.wired import EXACT_STD, fit_wired, fit_wired_output_error
from gpssm.model.bases import (
    Apart,
    Basis,
    CommonPoints,
    Hilbert,
    InducingPoints,
    LinearFeatures,
    MixedPoints,
    RandomFourier,
    Stacked,
)
from gpssm.model.curves import KNOTS
from gpssm.model.kernels import Common, Kernel, Mixed, make_kernel
from gpssm.model.likelihoods import Likelihood, LinkedGaussian, MonotoneWiener, Wiener, make_likelihood
from gpssm.model.means import Curved, Function, Identity, LinearMap, Mean, Wired, Zero
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal
from gpssm.model.types import Data
from gpssm.model.wiring import Wiring, make_wiring

# The kernel at the start, for states and controls of unit scale. Its variance follows the process noise of the linear
# fit: the density pays for B/2Q at every step, so a large variance beside a small Q starts far from anywhere likely.
NOISE_RATIO, MOST_VARIANCE, LENGTHSCALE = 10.0, 0.1, 2.0
SLACK = 0.1  # prior standard deviation of a linear map's coefficients around the linear fit
BOX_MARGIN = 1.5  # half-width of the Hilbert basis's box, in half-ranges of the smoothed states
MOST_POINTS = 10_000  # that k-means looks at
# Of a wiring that is to be thinned out: linear weights begin as wide as they may have to be and are drawn to nothing,
# lengthscales to where an input has no effect.
SPARSE_SCALE, SPARSE_WEIGHTS, SPARSE_LENGTHS = 0.3, Normal(-4.0, 2.0), Normal(3.0, 1.5)


Part = TypeVar("Part")
Coupling = Literal["none", "shared", "lmc", "hammerstein", "hammerstein-monotone"]


class Parts(NamedTuple):
    """What a model is to be made of: the arguments of `build_model`."""

    state_dim: int = 4
    num_inducing: int = 50
    kernel: str | Kernel = "se"
    mean: str | Mean | Callable[[Array, Array], Array] = "linear"
    likelihood: str | Likelihood = "gaussian"
    basis: str | Basis = "inducing"
    wiring: Any = None
    coupling: Coupling = "none"
    rank: int | None = None


class LinearStart(NamedTuple):
    """What a linear fit offers to start from: its parameters, and the smoothed states of each series.

    `slack` is how far the coefficients of a linear mean may stray from the fit: their prior standard deviation.
    """

    linear: LinearSSM
    states: list[Float[np.ndarray, "_ Dx"]]
    z: Float[np.ndarray, "N Dz"]  # [x_t; u_t] over all transitions
    slack: float = SLACK
    static: Float[Array, "Dy K"] | None = None  # weights of a curve at the output

    @property
    def state_dim(self) -> int:
        """Dx."""
        return self.linear.offset.shape[0]


@in_double_precision
@on_host()
def linear_start(
    series: Data, state_dim: int, likelihood: str | Likelihood = "gaussian", wiring: Any = None
) -> LinearStart:
    """Fit a linear model to the outputs, on the scale of the likelihood's linear predictor, and smooth.

    Where a link has lost what the predictor was, as y = |η| has, linear dynamics are fitted to its free run instead,
    if there are controls to drive it. With a wiring the fit keeps it.
    """
    experiments = as_list(series)
    check_trainable(series)
    width = experiments[0].output_dim
    chosen = make_likelihood(likelihood, jnp.zeros((width, state_dim)), jnp.zeros(width), jnp.ones(width))
    if isinstance(chosen, LinkedGaussian) and not chosen.link.one_to_one and experiments[0].input_dim > 0:
        found = output_error(experiments, state_dim, chosen.link.forward, wiring)
        return from_path(found.linear, found.states, experiments)
    if isinstance(chosen, Wiener | MonotoneWiener) and experiments[0].input_dim > 0 and wiring is None:
        return curved_start(experiments, state_dim, chosen)
    pseudo = pseudo_series(experiments, chosen)
    if (known := wiring_of(wiring, state_dim, experiments)) is not None:
        found = fit_wired(pseudo, known, jax.random.key(0))
        return from_path(found.linear, found.states, pseudo)
    linear = fit_linear(pseudo, state_dim)
    padded = [pad(one) for one in pseudo]
    ends = np.cumsum([len(one) + 1 for one in padded])[:-1]
    paths = np.split(np.asarray(smoothed_moments(linear, padded)[0]), ends)
    return from_path(linear, [path[: len(one) + 1] for path, one in zip(paths, pseudo, strict=True)], pseudo)


def curved_start(series: list[Series], state_dim: int, likelihood: Wiener | MonotoneWiener) -> LinearStart:
    """Linear dynamics and a curve at the output, found together from their free run: no filter sees through a curve."""
    found, weights = fit_curved(series, state_dim, type(likelihood).curve, likelihood.weights, jax.random.key(0))
    return from_path(found.linear, found.states, series)._replace(static=weights)


def output_error(series: list[Series], state_dim: int, link: Emission, wiring: Any = None) -> OutputErrorFit:
    """The linear model whose free run through a link has the least squared error, among those of a wiring if any."""
    known = wiring_of(wiring, state_dim, series)
    if known is None:
        return fit_output_error(series, state_dim, link, jax.random.key(0))
    return fit_wired_output_error(series, known, link, jax.random.key(0))


def wiring_of(spec: Any, state_dim: int, series: list[Series]) -> Wiring | None:
    """The wiring that was asked for, of so many states and these series."""
    return make_wiring(spec, state_dim, series[0].input_dim, series[0].output_dim)


def pseudo_series(series: list[Series], likelihood: Likelihood) -> list[Series]:
    """The series with outputs on the scale of the likelihood's linear predictor."""
    return [Series(np.asarray(likelihood.pseudo_outputs(jnp.asarray(one.y))), one.u) for one in series]


def from_path(linear: LinearSSM, states: list[Float[np.ndarray, "_ Dx"]], series: list[Series]) -> LinearStart:
    """A linear model with its states of each series."""
    z = np.concatenate([np.hstack([path[:-1], one.u]) for path, one in zip(states, series, strict=True)])
    return LinearStart(linear, states, z)


@in_double_precision
def build_model(
    series: Data,
    state_dim: int = 4,
    num_inducing: int = 50,
    kernel: str | Kernel = "se",
    mean: str | Mean | Callable[[Array, Array], Array] = "linear",
    likelihood: str | Likelihood = "gaussian",
    basis: str | Basis = "inducing",
    wiring: Any = None,
    coupling: Coupling = "none",
    rank: int | None = None,
    key: PRNGKeyArray | None = None,
    start: LinearStart | None = None,
) -> GPSSM:
    """A model of one series or several, in their own units: scale them first (`Scaler`).

    A linear-Gaussian model is fitted to the series; it gives the emission, the process noise, the inducing locations
    and the centre of the linear mean.

    :param kernel: a name from `gpssm.kernels.KERNELS`, names joined by + and *, or a kernel.
    :param mean: "linear" (a linear map, Gaussian around the fit and marginalised), "linear-fixed" (the fit itself),
        "identity", "zero", a function (x, u) → x, or a `Mean`.
    :param likelihood: a name from `gpssm.likelihoods.LIKELIHOODS`, or a likelihood.
    :param basis: "inducing", "hilbert", "fourier", "linear" (no Gaussian process), or a basis.
    :param wiring: which state and control enters which transition: a boolean matrix (Dx, Dx+Du), a `Wiring`, or a name:
        "cascade", "chain", "second-order", "delay-3" (`gpssm.model.wiring`). It holds for kernel, mean and linear
        weights; a mean function of your own is left as it is.
    :param coupling: of the transition functions. "none": each has its own kernel. "shared": one kernel, but for a scale
        each, and one factorisation for all. "lmc": f = W g with `rank` latent functions g, fewer than states.
        "hammerstein": f is linear in states, and in a function g_j(u_j) of each control: f = A x + B g(u).
        "hammerstein-monotone": the same with curves that rise, or fall, everywhere (`gpssm.model.curves`).
    :param key: for what is drawn at random (cluster starts, Fourier frequencies).
    :param start: the linear fit to start from, if there is one already.
    """
    _check_sizes(state_dim, num_inducing)
    key = jax.random.key(0) if key is None else key
    known = wiring_of(wiring, state_dim, as_list(series))
    start = linear_start(series, state_dim, likelihood, known) if start is None else start
    if start.state_dim != state_dim:
        raise ValueError(f"The start has a linear model with {start.state_dim} states; state_dim={state_dim} asked.")
    if coupling != "none" or rank is not None:
        _check_coupling(coupling, rank, state_dim, start.z.shape[1], kernel, mean, basis, known)
    if known is not None and (basis == "hilbert" or isinstance(basis, Hilbert)):
        raise ValueError("a Hilbert basis sees all of its box and takes no wiring: take 'inducing' or 'fourier'.")
    curved, linear = coupling == "hammerstein-monotone", start.linear
    covariance = _build_kernel(kernel, coupling, rank, known, start, key)
    weights = _build_basis(basis, covariance, mean == "linear", curved, start, num_inducing, key)
    centre = _make_mean(mean, linear) if known is None else _wire_mean(mean, linear, known)
    if curved and isinstance(centre, LinearMap):
        centre = Curved(centre, jnp.zeros((linear.control.shape[1], KNOTS - 1)))
    seen = make_likelihood(likelihood, linear.C, linear.d, linear.noise_std)
    if start.static is not None and isinstance(seen, Wiener | MonotoneWiener):
        seen = dataclasses.replace(seen, weights=start.static)
    model = GPSSM.create(
        covariance,
        weights if known is None else _wire_weights(weights, known),
        centre,
        seen,
        jnp.asarray(np.sqrt(np.diagonal(linear.process_cov))),
    )
    if curved:
        # What the slopes cannot say is how much of g enters which state.
        free = {"mean.weights": Normal(0.0, 1.0), "mean.inner.control": Normal(linear.control, 0.5)}
        model = model.with_roles("optimise", *free).with_priors(free)
    model = _free_scales(model)
    if known is not None:
        model = _hold_known(model, known, sum(len(one) for one in as_list(series)))
    _check_shapes(model, as_list(series)[0])
    return model


def _build_kernel(
    spec: str | Kernel,
    coupling: Coupling,
    rank: int | None,
    wiring: Wiring | None,
    start: LinearStart,
    key: PRNGKeyArray,
) -> Kernel:
    """The kernel of all transition functions: coupled, and seeing what the wiring lets it."""
    state_dim, dim = start.state_dim, start.z.shape[1]
    variance = np.minimum(NOISE_RATIO * np.diagonal(start.linear.process_cov), MOST_VARIANCE)
    coupled = _couple(coupling, rank, spec, state_dim, start, variance, key)
    kernel = make_kernel(coupled, state_dim, dim, variance, LENGTHSCALE)
    return kernel if wiring is None else kernel.wired(wiring.mask)


def _build_basis(
    spec: str | Basis, kernel: Kernel, linear: bool, curved: bool, start: LinearStart, num: int, key: PRNGKeyArray
) -> Basis:
    """The weights' basis: the Gaussian process's, its points shared where the kernel is, and that of a linear mean."""
    state_dim, dim = start.state_dim, start.z.shape[1]
    if curved:
        # The curves say all of the controls.
        sees = tuple(tuple(column < state_dim for column in range(dim)) for _ in range(state_dim))
        return LinearFeatures.build(state_dim, dim, start.slack, sees)
    chosen = spec if isinstance(spec, Basis) else _look_up("basis", spec, _BASES)(kernel, start, num, key)
    if isinstance(chosen, InducingPoints) and isinstance(kernel, Common):
        chosen = CommonPoints(chosen)
    if isinstance(chosen, InducingPoints) and isinstance(kernel, Mixed):
        chosen = MixedPoints(chosen, kernel.mixing.shape[1])
    if linear and spec != "linear":
        linear_part = LinearFeatures.build(state_dim, dim, start.slack)
        chosen = Stacked((chosen, Apart(linear_part, state_dim) if chosen.shared else linear_part))
    return chosen


def _free_scales(model: GPSSM) -> GPSSM:
    """The model with the scales of a coupled kernel, s or W, to be learned in place of the variance; else as it is."""
    if isinstance(model.kernel, Common):
        own = {"kernel.log_scale": Normal(-1.5, 1.0)}
    elif isinstance(model.kernel, Mixed):
        own = {"kernel.mixing": Normal(0, 0.3)}
    else:
        return model
    fixed = [name for name in model.leaves() if name.startswith("kernel.") and name.endswith("log_variance")]
    return model.with_roles("fix", *fixed).with_roles("optimise", *own).with_priors(own)


def _check_coupling(
    coupling: Any, rank: Any, state_dim: int, dim: int, kernel: Any, mean: Any, basis: Any, wiring: Wiring | None
) -> None:
    if coupling not in get_args(Coupling):
        raise KeyError(f"Unknown coupling {coupling!r}. Known: {', '.join(get_args(Coupling))}.")
    if coupling != "lmc":
        if rank is not None:
            raise ValueError(f"rank is the number of latent functions of coupling='lmc'; coupling is {coupling!r}.")
    elif isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 1 <= rank <= state_dim:
        raise ValueError(
            f"coupling='lmc' mixes rank latent functions, from 1 to as many as there are states, {state_dim}; got "
            f"rank={rank!r}."
        )
    if coupling.startswith("hammerstein") and dim == state_dim:
        raise ValueError(f"coupling={coupling!r} is a function of the controls: the data have none.")
    if wiring is not None and (coupling != "shared" or wiring.sparse):
        raise ValueError(
            f"coupling={coupling!r} takes no wiring{' that is to be found' if coupling == 'shared' else ''}: take "
            "coupling='none', or 'shared' with a wiring that lets the same inputs enter every transition to learn."
        )
    if basis != "inducing" or not isinstance(kernel, str):
        raise ValueError(f"coupling={coupling!r} takes inducing points and a kernel by name.")
    if coupling == "hammerstein-monotone" and mean != "linear":
        raise ValueError(f"coupling={coupling!r} is linear but for its curves: leave mean at 'linear'.")


def _couple(
    coupling: Coupling,
    rank: int | None,
    name: str | Kernel,
    state_dim: int,
    start: LinearStart,
    variance: Float[np.ndarray, " Dx"],
    key: PRNGKeyArray,
) -> str | Kernel:
    """The kernel for all dimensions: variances are those of W or of the scales, the kernel's own stays at one."""
    dim, amplitude = start.z.shape[1], jnp.asarray(np.sqrt(variance))
    if coupling == "shared":
        return Common(make_kernel(name, 1, dim, 1.0, LENGTHSCALE), jnp.log(amplitude))
    if coupling == "hammerstein":
        controls = dim - state_dim
        sees = tuple(tuple(column == state_dim + row for column in range(dim)) for row in range(controls))
        pushes = amplitude[:, None] * jnp.sign(start.linear.control + 1e-9)
        return Mixed(make_kernel(name, controls, dim, 1.0, 1.0).wired(sees), pushes)
    if coupling == "lmc" and rank is not None:
        # Rows of random directions with the size that each dimension has: nothing says which functions are shared.
        directions = jax.random.normal(jax.random.fold_in(key, 1), (state_dim, rank))
        directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
        return Mixed(make_kernel(name, rank, dim, 1.0, LENGTHSCALE), amplitude[:, None] * directions)
    return name


def _make_mean(spec: str | Mean | Callable[[Array, Array], Array], linear: LinearSSM) -> Mean:
    if isinstance(spec, Mean):
        return spec
    if callable(spec):
        return Function(spec)
    fitted = LinearMap(linear.transition, linear.control, linear.offset)
    known: dict[str, Mean] = {
        "linear": fitted,
        "linear-fixed": fitted,
        "identity": Identity(),
        "zero": Zero(),
    }
    return _look_up("mean", spec, known)


def _wire_mean(spec: str | Mean | Callable[[Array, Array], Array], linear: LinearSSM, wiring: Wiring) -> Mean:
    """The mean with what a wiring knows; a function of the user's own sees all, since it says itself what it uses."""
    known = jnp.concatenate([linear.transition, linear.control, linear.offset[:, None]], -1)
    own = isinstance(spec, Mean) or not isinstance(spec, str)
    everything = tuple((learned,) * len(wiring.enters[0]) for learned in wiring.learned)
    silent = jnp.asarray(wiring.learned)[:, None]
    # What is to be thinned out shrinks to a state that stays where it is, not to the linear fit.
    inner = _make_mean("identity" if wiring.sparse and spec == "linear" else spec, linear)
    return Wired(inner, jnp.where(silent, 0.0, known), everything if own else wiring.mask)


def _wire_weights(basis: Basis, wiring: Wiring) -> Basis:
    """The basis with linear weights for what enters alone; the kernel sees to the rest."""
    if isinstance(basis, Stacked):
        return Stacked(tuple(_wire_weights(part, wiring) for part in basis.parts))
    return dataclasses.replace(basis, wiring=wiring.mask) if isinstance(basis, LinearFeatures) else basis


def _hold_known(model: GPSSM, wiring: Wiring, rows: int) -> GPSSM:
    """No noise to speak of in the rows that are known, by a prior worth the data; an output map that is known stays."""
    learned, prior = jnp.asarray(wiring.learned), model.priors["log_process_std"]
    if not all(wiring.learned) and isinstance(prior, InverseGamma):
        shape = jnp.where(learned, prior.shape, 0.5 * rows)
        scale = jnp.where(learned, prior.scale, 0.5 * rows * EXACT_STD**2)
        noise = jnp.where(learned, model.log_process_std, jnp.log(EXACT_STD))
        model = model.with_leaves({"log_process_std": noise})
        model = model.with_priors({"log_process_std": InverseGamma(shape, scale)})
    if wiring.sparse:
        scales = [name for name in model.leaves() if name.endswith("log_scale")]
        lengthscales = [name for name in model.leaves() if name.endswith("log_lengthscale")]
        wide = {name: jnp.full(model.leaves()[name].shape, jnp.log(SPARSE_SCALE)) for name in scales}
        model = model.with_leaves(wide).with_roles("optimise", *scales)
        model = model.with_priors(dict.fromkeys(scales, SPARSE_WEIGHTS) | dict.fromkeys(lengthscales, SPARSE_LENGTHS))
    output_map = [name for name in ("likelihood.C", "likelihood.d") if name in model.leaves()]
    return model.with_roles("fix", *output_map) if wiring.measured and output_map else model


def _inducing(kernel: Kernel, start: LinearStart, num: int, key: PRNGKeyArray) -> Basis:
    return InducingPoints(inducing_locations(start.z, num, int(jax.random.bits(key, dtype="uint32"))))


def _hilbert(kernel: Kernel, start: LinearStart, num: int, key: PRNGKeyArray) -> Basis:
    low, high = start.z.min(0), start.z.max(0)
    half_width = BOX_MARGIN * np.maximum(0.5 * (high - low), 1.0)
    return Hilbert.build(jnp.asarray(0.5 * (low + high)), jnp.asarray(half_width), num)


def _fourier(kernel: Kernel, start: LinearStart, num: int, key: PRNGKeyArray) -> Basis:
    return RandomFourier.build(kernel, num, start.z.shape[1], key)


def _linear(kernel: Kernel, start: LinearStart, num: int, key: PRNGKeyArray) -> Basis:
    return LinearFeatures.build(start.state_dim, start.z.shape[1], start.slack)


_BASES = {"inducing": _inducing, "hilbert": _hilbert, "fourier": _fourier, "linear": _linear}


def inducing_locations(z: Float[np.ndarray, "N Dz"], num: int, seed: int = 0) -> Float[Array, "num Dz"]:
    """Centres of `num` clusters of the rows z = [x; u] by k-means, with every column at unit variance meanwhile.

    They minimise Σ_n min_j |z_n − Z_j|² locally, from a k-means++ start; of more than MOST_POINTS rows a random
    choice is used. No two are equal: where there are fewer distinct points, copies moved by about a tenth of a
    standard deviation fill up.
    """
    generator = np.random.default_rng(seed)
    centre, scale = z.mean(axis=0), z.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    found = np.unique((z - centre) / scale, axis=0)
    if len(found) > num:
        found = generator.permutation(found)[:MOST_POINTS]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty cluster keeps its last centre
            found = np.unique(scipy.cluster.vq.kmeans2(found, num, minit="++", rng=generator)[0], axis=0)
    copies = generator.choice(found, num - len(found))
    moved = copies + 0.1 * generator.normal(size=copies.shape)
    return jnp.asarray(np.concatenate([found, moved]) * scale + centre)


def _look_up(what: str, name: str, known: Mapping[str, Part]) -> Part:
    if name not in known:
        raise KeyError(f"Unknown {what} {name!r}. Known: {', '.join(known)}; or pass one of your own.")
    return known[name]


def _check_sizes(state_dim: int, num_inducing: int) -> None:
    for name, value in (("state_dim", state_dim), ("num_inducing", num_inducing)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")


def _check_shapes(model: GPSSM, series: Series) -> None:
    """Run the model's shapes through one step, so that parts that do not fit are caught here and named."""
    x, u = jnp.zeros((1, model.state_dim)), jnp.zeros((1, series.input_dim))
    try:
        step = jax.eval_shape(lambda: model.transition()(x, u))
        entries = jax.eval_shape(lambda: model.likelihood.log_density(x, jnp.zeros((1, series.output_dim))))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The parts of the model do not fit together: {error}. With state_dim={model.state_dim} and "
            f"{series.input_dim} controls, kernel and basis take inputs of dimension {x.shape[1] + u.shape[1]}."
        ) from error
    expected = {"mean": (1, model.state_dim), "gain": (model.state_dim, 1, model.basis.size)}
    found = {"mean": step.mean.shape, "gain": step.gain.shape, "log density": entries.shape}
    for name, shape in (expected | {"log density": (1, series.output_dim)}).items():
        if found[name] != shape:
            raise ValueError(f"The model's {name} has shape {found[name]} at one state; expected {shape}.")
