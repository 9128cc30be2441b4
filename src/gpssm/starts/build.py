"""Models built from named parts or objects, initialised by a linear fit."""

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

LENGTHSCALE = 2.0  # initial lengthscale, for states and inputs of unit scale
SLACK = 0.1  # prior standard deviation of linear coefficients around the linear fit
BOX_MARGIN = 1.5  # half-width of the Hilbert box, in half-ranges of the smoothed states
OUTPUT_MAP = (
    "likelihood.C",
    "likelihood.d",
)  # fixed by default, as the coordinates of the states are arbitrary
NOISES = ("log_process_std", "likelihood.log_std")

Coupling = Literal["none", "shared", "lmc", "hammerstein", "hammerstein-monotone"]


class Start(NamedTuple):
    """The start of a sampler: a model, and the states of each series.

    Parameters
    ----------
    model
        The model with initial parameters.
    states
        States (T+1, Dx) of each scaled series.
    notes
        Messages to the user about the start.
    """

    model: GPSSM
    states: list[Float[np.ndarray, "_ Dx"]]
    notes: tuple[str, ...] = ()


@in_double_precision
def build(spec: "Spec", linear: LinearFit, key: PRNGKeyArray, slack: float = SLACK) -> Start:
    """Build the model of a spec, initialised by a linear fit.

    The fit determines the emission, the process noise, the inducing locations and the centre of the
    linear mean.

    Parameters
    ----------
    spec
        The specification, with resolved sizes.
    linear
        The linear fit to scaled series.
    key
        Random key for the clusters of inducing points and for Fourier frequencies.
    slack
        Prior standard deviation of the coefficients of a linear mean around the fit.
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
        # The linear coefficients determine how much of g enters each state.
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
    """Return the kernel of all transition functions, with coupling and wiring."""
    state_dim, dim = linear.state_dim, linear.z.shape[1]
    # Every step is penalised by B/2Q: with a large variance and a small Q, the start would be very
    # unlikely.
    variance = np.minimum(10.0 * np.diagonal(linear.model.process_cov), 0.1)
    coupled = _couple(spec, linear, variance, key)
    kernel = make_kernel(coupled, state_dim, dim, variance, LENGTHSCALE)
    if wiring is None:
        return kernel
    if isinstance(kernel, Coregionalised):
        return _mask_shared(kernel, wiring)
    return Masked(kernel, wiring.mask)


def _mask_shared(kernel: Coregionalised, wiring: Wiring) -> Coregionalised:
    """Return a shared kernel with a wiring, in which all learned transitions have the same
    arguments.
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
    """Return the basis of the Gaussian process, with shared points if the kernel is shared, and of
    a linear mean.
    """
    state_dim, dim = linear.state_dim, linear.z.shape[1]
    if spec.coupling == "hammerstein-monotone":
        # The inputs enter only through the curves.
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
    """Return the model in which W of a coupled kernel is learned instead of the variances."""
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
            f"coupling={coupling!r} does not support "
            f"{'sparse wiring' if coupling == 'shared' else 'wiring'}: use "
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
    """Return the kernel for all dimensions; its variance is one, and W or the scales set the
    variances.
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
        # Random directions scaled to each dimension: it is unknown which functions are shared.
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
    """Return the basis with linear weights only for entries of the wiring, which the kernel
    respects itself.
    """
    if isinstance(basis, Stacked):
        return Stacked(tuple(_wire_weights(part, wiring) for part in basis.parts))
    return (
        dataclasses.replace(basis, mask=wiring.mask) if isinstance(basis, LinearFeatures) else basis
    )


def _hold_known(model: GPSSM, wiring: Wiring, rows: int) -> GPSSM:
    """Return the model with negligible process noise in known rows, by a prior with the weight of
    the data.

    A known output map remains fixed.
    """
    learned, prior = jnp.asarray(wiring.learned), model.priors["log_process_std"]
    if not all(wiring.learned) and isinstance(prior, InverseGamma):
        shape = jnp.where(learned, prior.shape, 0.5 * rows)
        scale = jnp.where(learned, prior.scale, 0.5 * rows * EXACT_STD**2)
        noise = jnp.where(learned, model.log_process_std, jnp.log(EXACT_STD))
        model = model.with_leaves({"log_process_std": noise})
        model = model.with_priors({"log_process_std": InverseGamma(shape, scale)})
    if wiring.sparse:
        # The priors shrink scales of linear weights, initially wide, to zero, and lengthscales to
        # values where an input has no effect.
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
    """Return the centres of `num` clusters of rows z = [x; u] by k-means.

    They minimise Σ_n min_j |z_n − Z_j|² locally, with columns scaled to unit variance, from a
    k-means++ start; beyond 10 000 rows, a random subset is used. The centres are distinct: if there
    are too few distinct rows, copies displaced by about a tenth of a standard deviation are added.
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
    """Raise if the shapes of the parts are inconsistent, with a message that names them."""
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
    """Return the model with the roles of its parameters set by the spec and its method.

    Parameters
    ----------
    model
        The model with its initial roles.
    spec
        The specification, of which `hyper`, `fixed`, `learn` and the method are used.
    inherited
        Whether kernel, basis and mean come from a prior and remain fixed.
    """
    method = spec.settings
    if not method.learns or spec.hyper == "fix":
        if spec.learn:
            raise ValueError(
                f"hyper='fix' learns no parameters, which contradicts learn={tuple(spec.learn)!r}: "
                "drop one of them."
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
