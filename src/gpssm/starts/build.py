"""A model from data: parts chosen by name or given, started from a linear fit."""

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy.cluster.vq
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.runtime import in_double_precision
from gpssm.linear.descent import EXACT_STD
from gpssm.linear.state_space import LinearFit, LinearSSM
from gpssm.model.bases import (
    Basis,
    BlockDiagonal,
    CoregionalisedPoints,
    Hilbert,
    InducingPoints,
    LinearFeatures,
    RandomFourier,
    Stacked,
)
from gpssm.model.kernels import Coregionalised, Kernel, Masked, make_kernel
from gpssm.model.likelihoods import KNOTS, Gaussian, Wiener, make_likelihood
from gpssm.model.means import Curved, Identity, LinearMap, Mean, Wired, Zero
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal
from gpssm.model.wiring import Wiring, make_wiring

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

LENGTHSCALE = 2.0  # of the kernel at the start, for states and inputs of unit scale
SLACK = 0.1  # prior standard deviation of a linear map's coefficients around the linear fit
BOX_MARGIN = 1.5  # half-width of the Hilbert basis's box, in half-ranges of the smoothed states
OUTPUT_MAP = (
    "likelihood.C",
    "likelihood.d",
)  # fixed unless learned: the coordinates of the states are free
NOISES = ("log_process_std", "likelihood.log_std")

Coupling = Literal["none", "shared", "lmc", "hammerstein", "hammerstein-monotone"]


class Start(NamedTuple):
    """Where a sampler begins: a model, and the states of each series.

    Parameters
    ----------
    model
        The model, at the parameters to begin with.
    states
        States (T+1, Dx) of each scaled series.
    notes
        What a user should know about the start.
    """

    model: GPSSM
    states: list[Float[np.ndarray, "_ Dx"]]
    notes: tuple[str, ...] = ()


@in_double_precision
def build(spec: "Spec", linear: LinearFit, key: PRNGKeyArray, slack: float = SLACK) -> Start:
    """The model that a spec describes, started from a linear fit.

    The fit gives the emission, the process noise, the inducing locations and the centre of the
    linear mean.

    Parameters
    ----------
    spec
        What is asked for, with sizes that are numbers.
    linear
        The fit, for scaled series.
    key
        For what is drawn at random: cluster starts, Fourier frequencies.
    slack
        How far the coefficients of a linear mean may stray from the fit: their prior standard
        deviation.
    """
    state_dim, dim = linear.state_dim, linear.z.shape[1]
    num_outputs = linear.model.C.shape[0]
    if state_dim != spec.state_dim:
        raise ValueError(
            f"The start has a linear model with {state_dim} states, but "
            f"state_dim={spec.state_dim} was requested."
        )
    wiring = make_wiring(spec.wiring, state_dim, dim - state_dim, num_outputs)
    if spec.coupling != "none" or spec.rank is not None:
        _check_coupling(spec, state_dim, dim, wiring)
    if wiring is not None and (spec.basis == "hilbert" or isinstance(spec.basis, Hilbert)):
        raise ValueError("the Hilbert basis does not support wiring: use 'inducing' or 'fourier'.")
    kernel = _build_kernel(spec, wiring, linear, key)
    basis = _build_basis(spec, kernel, linear, slack, key)
    likelihood = make_likelihood(
        spec.likelihood, linear.model.C, linear.model.d, linear.model.noise_std
    )
    if linear.curve is not None and isinstance(likelihood, Wiener):
        likelihood = dataclasses.replace(likelihood, weights=linear.curve)
    model = GPSSM.create(
        kernel,
        basis if wiring is None else _wire_weights(basis, wiring),
        _build_mean(spec, linear.model, wiring),
        likelihood,
        jnp.asarray(np.sqrt(np.diagonal(linear.model.process_cov))),
    )
    if isinstance(model.mean, Curved):
        # What the slopes cannot say is how much of g enters which state.
        free = {
            "mean.weights": Normal(0.0, 1.0),
            "mean.inner.input_map": Normal(linear.model.input_map, 0.5),
        }
        model = model.with_roles("optimise", *free).with_priors(free)
    model = _free_scales(model)
    if wiring is not None:
        model = _hold_known(model, wiring, len(linear.z))
    _check_shapes(model, dim - state_dim, num_outputs)
    return Start(model, linear.states)


def _build_kernel(
    spec: "Spec", wiring: Wiring | None, linear: LinearFit, key: PRNGKeyArray
) -> Kernel:
    """The kernel of all transition functions: coupled, and seeing what the wiring lets it."""
    state_dim, dim = linear.state_dim, linear.z.shape[1]
    # The density pays for B/2Q at every step: a large variance beside a small Q would start far
    # from anywhere likely.
    variance = np.minimum(10.0 * np.diagonal(linear.model.process_cov), 0.1)
    coupled = _couple(spec, linear, variance, key)
    kernel = make_kernel(coupled, state_dim, dim, variance, LENGTHSCALE)
    if wiring is None:
        return kernel
    if isinstance(kernel, Coregionalised):
        return _mask_shared(kernel, wiring)
    return Masked(kernel, wiring.mask)


def _mask_shared(kernel: Coregionalised, wiring: Wiring) -> Coregionalised:
    """A kernel of all dimensions with a wiring: the same inputs must enter every learned
    transition.
    """
    rows = {row for row in wiring.mask if any(row)}
    if len(rows) != 1:
        raise ValueError(
            "coupling='shared' uses one kernel, but the wiring has different arguments for "
            "different transitions: use coupling='none', or the same arguments for all learned "
            "transitions."
        )
    silent = None if all(wiring.learned) else tuple(not learned for learned in wiring.learned)
    return dataclasses.replace(kernel, inner=Masked(kernel.inner, tuple(rows)), silent=silent)


def _build_basis(
    spec: "Spec", kernel: Kernel, linear: LinearFit, slack: float, key: PRNGKeyArray
) -> Basis:
    """The weights' basis: the Gaussian process's, its points shared where the kernel is, and that
    of a linear mean.
    """
    state_dim, dim = linear.state_dim, linear.z.shape[1]
    if spec.coupling == "hammerstein-monotone":
        # The curves say all of the inputs.
        sees = tuple(tuple(column < state_dim for column in range(dim)) for _ in range(state_dim))
        return LinearFeatures.build(state_dim, dim, slack, sees)
    linear_part = LinearFeatures.build(state_dim, dim, slack)
    if spec.basis == "linear":
        return linear_part
    if isinstance(spec.basis, Basis):
        chosen = spec.basis
    else:
        chosen = _make_basis(spec.basis, kernel, linear.z, spec.num_inducing, key)
    if isinstance(chosen, InducingPoints) and isinstance(kernel, Coregionalised):
        chosen = CoregionalisedPoints(chosen, kernel.mixing.shape[1], spec.coupling != "shared")
    if spec.mean == "linear":
        beside = BlockDiagonal(linear_part, state_dim) if chosen.shared else linear_part
        chosen = Stacked((chosen, beside))
    return chosen


def _free_scales(model: GPSSM) -> GPSSM:
    """The model with W of a coupled kernel to be learned in place of the variances."""
    if not isinstance(model.kernel, Coregionalised):
        return model
    priors = {"kernel.mixing": Normal(-1.5, 1.0) if model.kernel.positive else Normal(0, 0.3)}
    fixed = [
        name
        for name in model.leaves()
        if name.startswith("kernel.") and name.endswith("log_variance")
    ]
    return model.with_roles("fix", *fixed).with_roles("optimise", *priors).with_priors(priors)


def _check_coupling(spec: "Spec", state_dim: int, dim: int, wiring: Wiring | None) -> None:
    coupling, rank = spec.coupling, spec.rank
    if coupling not in get_args(Coupling):
        raise KeyError(f"Unknown coupling {coupling!r}. Known: {', '.join(get_args(Coupling))}.")
    if coupling != "lmc":
        if rank is not None:
            raise ValueError(
                "rank is the number of latent functions of coupling='lmc'; coupling is "
                f"{coupling!r}."
            )
    elif (
        isinstance(rank, bool)
        or not isinstance(rank, int | np.integer)
        or not 1 <= rank <= state_dim
    ):
        raise ValueError(
            "rank, the number of latent functions of coupling='lmc', must lie between 1 and the "
            f"number of states, {state_dim}; got rank={rank!r}."
        )
    if coupling.startswith("hammerstein") and dim == state_dim:
        raise ValueError(f"coupling={coupling!r} needs inputs, but the data have none.")
    if wiring is not None and (coupling != "shared" or wiring.sparse):
        raise ValueError(
            f"coupling={coupling!r} takes no "
            f"wiring{' that is to be found' if coupling == 'shared' else ''}: use "
            "coupling='none', or 'shared' with the same arguments for all learned transitions."
        )
    if spec.basis != "inducing" or not isinstance(spec.kernel, str):
        raise ValueError(f"coupling={coupling!r} needs inducing points and a kernel by name.")
    if coupling == "hammerstein-monotone" and spec.mean != "linear":
        raise ValueError(
            f"coupling={coupling!r} is linear except for its curves: leave mean at 'linear'."
        )


def _couple(
    spec: "Spec", linear: LinearFit, variance: Float[np.ndarray, " Dx"], key: PRNGKeyArray
) -> str | Kernel:
    """The kernel for all dimensions: variances are those of W or of the scales, the kernel's own
    stays at one.
    """
    state_dim, dim = linear.state_dim, linear.z.shape[1]
    amplitude = jnp.asarray(np.sqrt(variance))
    if spec.coupling == "shared":
        inner = make_kernel(spec.kernel, 1, dim, 1.0, LENGTHSCALE)
        return Coregionalised(inner, jnp.log(amplitude)[:, None], positive=True)
    if spec.coupling == "hammerstein":
        inputs = dim - state_dim
        sees = tuple(
            tuple(column == state_dim + row for column in range(dim)) for row in range(inputs)
        )
        mixing = amplitude[:, None] * jnp.sign(linear.model.input_map + 1e-9)
        inner = Masked(make_kernel(spec.kernel, inputs, dim, 1.0, 1.0), sees)
        return Coregionalised(inner, mixing)
    if spec.coupling == "lmc" and spec.rank is not None:
        # Rows of random directions with the size that each dimension has: nothing says which
        # functions are shared.
        directions = jax.random.normal(jax.random.fold_in(key, 1), (state_dim, spec.rank))
        directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
        return Coregionalised(
            make_kernel(spec.kernel, spec.rank, dim, 1.0, LENGTHSCALE),
            amplitude[:, None] * directions,
        )
    return spec.kernel


def _build_mean(spec: "Spec", linear: LinearSSM, wiring: Wiring | None) -> Mean:
    """The mean function, with a curve of each input or with what a wiring knows."""
    mean: Any = spec.mean  # `Spec` has made a `Mean` of a function
    if wiring is not None and wiring.sparse and mean == "linear":
        # What is to be thinned out shrinks to a state that stays where it is, not to the linear
        # fit.
        mean = "identity"
    if mean in ("linear", "linear-fixed"):
        mean = LinearMap(linear.transition, linear.input_map, linear.offset)
    elif isinstance(mean, str):
        mean = {"identity": Identity(), "zero": Zero()}[mean]
    if spec.coupling == "hammerstein-monotone":
        return Curved(mean, jnp.zeros((linear.input_map.shape[1], KNOTS - 1)))
    if wiring is None:
        return mean
    mask = wiring.mask
    if not isinstance(spec.mean, str):
        # A function of the user's own sees all, since it says itself what it uses.
        mask = tuple((learned,) * len(wiring.enters[0]) for learned in wiring.learned)
    exact = jnp.concatenate([linear.transition, linear.input_map, linear.offset[:, None]], -1)
    return Wired(mean, jnp.where(jnp.asarray(wiring.learned)[:, None], 0.0, exact), mask)


def _wire_weights(basis: Basis, wiring: Wiring) -> Basis:
    """The basis with linear weights for what enters alone; the kernel sees to the rest."""
    if isinstance(basis, Stacked):
        return Stacked(tuple(_wire_weights(part, wiring) for part in basis.parts))
    return (
        dataclasses.replace(basis, mask=wiring.mask) if isinstance(basis, LinearFeatures) else basis
    )


def _hold_known(model: GPSSM, wiring: Wiring, rows: int) -> GPSSM:
    """No noise to speak of in the rows that are known, by a prior worth the data.

    An output map that is known stays.
    """
    learned, prior = jnp.asarray(wiring.learned), model.priors["log_process_std"]
    if not all(wiring.learned) and isinstance(prior, InverseGamma):
        shape = jnp.where(learned, prior.shape, 0.5 * rows)
        scale = jnp.where(learned, prior.scale, 0.5 * rows * EXACT_STD**2)
        noise = jnp.where(learned, model.log_process_std, jnp.log(EXACT_STD))
        model = model.with_leaves({"log_process_std": noise})
        model = model.with_priors({"log_process_std": InverseGamma(shape, scale)})
    if wiring.sparse:
        # Linear weights begin as wide as they may have to be and are drawn to nothing, lengthscales
        # to where an input has no effect.
        leaves = model.leaves()
        scales = [name for name in leaves if name.endswith("log_scale")]
        model = model.with_leaves(
            {name: jnp.full(leaves[name].shape, jnp.log(0.3)) for name in scales}
        )
        lengthscales = [name for name in leaves if name.endswith("log_lengthscale")]
        priors = dict.fromkeys(scales, Normal(-4.0, 2.0))
        priors |= dict.fromkeys(lengthscales, Normal(3.0, 1.5))
        model = model.with_roles("optimise", *scales).with_priors(priors)
    output_map = [name for name in OUTPUT_MAP if name in model.leaves()]
    return model.with_roles("fix", *output_map) if wiring.measured and output_map else model


def _make_basis(
    name: str, kernel: Kernel, z: Float[np.ndarray, "N Dz"], num: int, key: PRNGKeyArray
) -> Basis:
    """The basis of this name with `num` weights, for states and inputs like the rows z."""
    if name == "inducing":
        return InducingPoints(inducing_locations(z, num, int(jax.random.bits(key, dtype="uint32"))))
    if name == "fourier":
        return RandomFourier.build(kernel, num, z.shape[1], key)
    low, high = z.min(0), z.max(0)
    half_width = BOX_MARGIN * np.maximum(0.5 * (high - low), 1.0)
    return Hilbert.build(jnp.asarray(0.5 * (low + high)), jnp.asarray(half_width), num)


def inducing_locations(
    z: Float[np.ndarray, "N Dz"], num: int, seed: int = 0
) -> Float[Array, "num Dz"]:
    """Centres of `num` clusters of the rows z = [x.

    U] by k-means, with every column at unit variance meanwhile.

    They minimise Σ_n min_j |z_n − Z_j|² locally, from a k-means++ start; of more than 10 000
    rows a random choice is used. No two are equal: where there are fewer distinct points, copies
    moved by about a tenth of a standard deviation fill up.
    """
    generator = np.random.default_rng(seed)
    centre, scale = z.mean(axis=0), z.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    points = np.unique((z - centre) / scale, axis=0)
    if len(points) > num:
        points = generator.permutation(points)[:10_000]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty cluster keeps its last centre
            points = np.unique(
                scipy.cluster.vq.kmeans2(points, num, minit="++", rng=generator)[0], axis=0
            )
    copies = generator.choice(points, num - len(points))
    moved = copies + 0.1 * generator.normal(size=copies.shape)
    return jnp.asarray(np.concatenate([points, moved]) * scale + centre)


def _check_shapes(model: GPSSM, input_dim: int, output_dim: int) -> None:
    """Run the model's shapes through one step, so that parts that do not fit are caught here and
    named.
    """
    x, u = jnp.zeros((1, model.state_dim)), jnp.zeros((1, input_dim))
    try:
        step = jax.eval_shape(lambda: model.transition()(x, u))
        entries = jax.eval_shape(
            lambda: model.likelihood.log_density(x, jnp.zeros((1, output_dim)))
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"The parts of the model do not fit together: {error}. With "
            f"state_dim={model.state_dim} and {input_dim} inputs, kernel and basis need arguments "
            f"of dimension {x.shape[1] + u.shape[1]}."
        ) from error
    expected = {"mean": (1, model.state_dim), "gain": (model.state_dim, 1, model.basis.size)}
    shapes = {"mean": step.mean.shape, "gain": step.gain.shape, "log density": entries.shape}
    for name, shape in (expected | {"log density": (1, output_dim)}).items():
        if shapes[name] != shape:
            raise ValueError(
                f"The model's {name} has shape {shapes[name]} at one state; expected {shape}."
            )


def assign_roles(model: GPSSM, spec: "Spec", inherited: bool = False) -> GPSSM:
    """The model with every parameter fixed, optimised or sampled, as the spec and its method say.

    Parameters
    ----------
    model
        The model, with the roles that it was built with.
    spec
        Its `hyper`, `fixed`, `learn` and method are used.
    inherited
        Whether kernel, basis and mean are those of a prior, and stay.
    """
    method = spec.settings
    if not method.learns or spec.hyper == "fix":
        if spec.learn:
            raise ValueError(
                f"hyper='fix' learns no parameters, but learn={tuple(spec.learn)!r} names some: "
                "drop one."
            )
        model = model.with_roles("fix", "*")
    else:
        free = {name for name, role in model.roles if role != "fix"}.difference(OUTPUT_MAP)
        model = model.with_roles("fix", "*").with_roles(spec.hyper, *free, *spec.learn)
        if spec.hyper == "optimise":
            model = model.with_roles(
                "sample", *(name for name in NOISES if _is_conjugate(model, name))
            )
        model = model.with_roles("fix", *spec.fixed)
    if inherited:
        decided = ("kernel.", "basis.", "mean.")
        model = model.with_roles(
            "fix", *(name for name in model.leaves() if name.startswith(decided))
        )
    return method.adopt(model)


def _is_conjugate(model: GPSSM, name: str) -> bool:
    exact = name == "log_process_std" or isinstance(model.likelihood, Gaussian)
    return exact and isinstance(model.priors[name], InverseGamma)
