"""What a posterior says of the data and of the system, at every draw.

    smooth                            the training data: states, and outputs without their noise
    transition                        f at any state and inputs, and where it rests on data
    derivatives                       its slopes, at any state and inputs
    unknown                           the unknown function inside of physics
    relevance                         how far each state and input moves each transition

Averages over draws are averages over chains too, which may settle in different coordinates of the
states. Where `Posterior.diagnostics` shows that they did, look at one chain at a time.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from gpssm.core.runtime import in_double_precision, jit
from gpssm.core.text import check_seed
from gpssm.data.columns import align_columns, to_columns, where_first
from gpssm.data.scaler import FAR
from gpssm.model.bases import FeaturePoints
from gpssm.model.kernels import Feature
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.draws import map_draws, merge_chains
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.rollout import Emission, Members, emissions, members_of, path_keys

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

RELEVANCE_DRAWS = 40  # draws and points that are enough for a picture
RELEVANCE_POINTS = 200

Inputs = tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]  # states and inputs, both scaled


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Smoothed(Forecast):
    """One training series as the posterior sees it: paths of its outputs (S, T, Dy), one per draw.

    It has everything that a `Forecast` has. Chains may settle in different coordinates of the
    states: compare outputs across chains, not states.

    Parameters
    ----------
    states
        x₀..x_T in scaled units.
    imputed
        y with the mean output where it is missing.
    """

    states: Float[np.ndarray, "S T+1 Dx"]
    imputed: Float[np.ndarray, "T Dy"]

    def __getitem__(self, rows: slice) -> Self:
        part = super().__getitem__(rows)
        first = part.start - self.start
        stop = first + part.horizon
        states = self.states[:, first : stop + 1]
        return replace(part, states=states, imputed=self.imputed[first:stop])

    @property
    def state_mean(self) -> Float[np.ndarray, "T+1 Dx"]:
        """The mean of the states over draws."""
        return np.mean(self.states, axis=0)

    @property
    def state_std(self) -> Float[np.ndarray, "T+1 Dx"]:
        """The standard deviation of the states over draws."""
        return np.std(self.states, axis=0)


@in_double_precision
def smooth(posterior: "Posterior", index: int = -1, noise: bool = False, seed: int = 0) -> Smoothed:
    """See `Posterior.smooth`."""
    posterior.check_states("smooth")
    seed = check_seed(seed)
    dataset = posterior.dataset
    series = dataset.experiment(index)
    states = merge_chains(posterior.draws.states[index])
    draws = np.arange(len(states))
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), draws, len(series))
    emission = _emit(members_of(posterior, draws), keys, jnp.asarray(states[:, 1:]), noise)
    paths, moments, _ = emission.in_units(dataset)
    return Smoothed(
        paths,
        series.outputs,
        0,
        series.u,
        series.inputs,
        series.dt,
        moments,
        clock=series.axis,
        units=series.units,
        scale=dataset.output_spread,
        states=states,
        imputed=np.where(np.isnan(series.y), np.mean(moments[0], axis=0), series.y),
    )


def outputs_of(posterior: "Posterior", index: int = -1) -> Float[np.ndarray, "chain draw T Dy"]:
    """Return E[y_t | x_{t+1}] of each draw along a training series, in the user's units."""
    paths = smooth(posterior, index).paths
    return paths.reshape(posterior.num_chains, posterior.num_draws, *paths.shape[1:])


@jit
def _emit(members: Members, keys: PRNGKeyArray, x: Float[Array, "S T Dx"], noise: bool) -> Emission:
    likelihoods = eqx.filter_vmap(
        lambda leaves: members.model.with_leaves(leaves).likelihood, axis_size=x.shape[0]
    )(members.leaves)
    return emissions(likelihoods, keys, x, noise)


class TransitionEstimate(NamedTuple):
    """f at N inputs.

    Parameters
    ----------
    mean, std
        Of what is known about f.
    novelty
        The mean of B / k(z, z) over draws and states.
    draws
        E[f | v] of each draw.
    """

    mean: Float[np.ndarray, "N Dx"]
    std: Float[np.ndarray, "N Dx"]
    novelty: Float[np.ndarray, " N"]
    draws: Float[np.ndarray, "chain draw N Dx"]


class Derivatives(NamedTuple):
    """Derivatives at N inputs, each the mean over draws and the standard deviation over draws.

    Parameters
    ----------
    state, state_std
        ∂f/∂x.
    control, control_std
        ∂f/∂u, per unit of the user's u.
    output, output_std
        ∂E[y]/∂x, with y in the user's units.
    """

    state: Float[np.ndarray, "N Dx Dx"]
    state_std: Float[np.ndarray, "N Dx Dx"]
    control: Float[np.ndarray, "N Dx Du"]
    control_std: Float[np.ndarray, "N Dx Du"]
    output: Float[np.ndarray, "N Dy Dx"]
    output_std: Float[np.ndarray, "N Dy Dx"]


@in_double_precision
def transition(
    posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any = None
) -> TransitionEstimate:
    """The next state f(x, u), without process noise: of each draw, mean, std and novelty.

    Over draws, E f and Var f = Var(E[f | v]) + E[B].

    Parameters
    ----------
    posterior
        The posterior.
    x : array (N, Dx)
        States in the coordinates of `draws.states`.
    u : array (N, Du)
        Inputs in the user's units.
    """
    inputs = _inputs(posterior, x, u)
    values = map_draws(_transition_moments, posterior.model, posterior.draws, inputs)
    mean, residual, share = np.moveaxis(values, 2, 0)
    novelty = np.mean(share, axis=(0, 1, 3))
    return TransitionEstimate(*_total_moments(mean, residual), novelty, mean)


def _total_moments(
    mean: Float[np.ndarray, "chain draw *shape"], variance: Float[np.ndarray, "chain draw *shape"]
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Return mean and standard deviation over draws of what has these moments in each draw."""
    std = np.sqrt(np.var(mean, axis=(0, 1)) + np.mean(variance, axis=(0, 1)))
    return np.mean(mean, axis=(0, 1)), std


def _transition_moments(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "3 N Dx"]:
    """Return m + A v, B and B / k(z, z)."""
    step = model.transition()(*inputs)
    residual = jnp.maximum(step.residual, 0.0)
    prior = model.kernel.diagonal(jnp.concatenate(inputs, -1))
    share = residual / jnp.maximum(prior, jnp.finfo(prior.dtype).tiny)
    return jnp.stack([step.given(draw.weights), residual.T, share.T])


@in_double_precision
def derivatives(posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any = None) -> Derivatives:
    """Return derivatives of E[f | v] and of E[y | x]; see `Posterior.derivatives`."""
    inputs = _inputs(posterior, x, u)
    scaler = posterior.dataset.scaler
    dim = posterior.model.state_dim
    slopes = map_draws(_transition_slopes, posterior.model, posterior.draws, inputs)
    output_slopes = map_draws(_output_slopes, posterior.model, posterior.draws, inputs)
    parts = (
        slopes[..., :dim],
        slopes[..., dim:] / np.array(scaler.input_std),
        output_slopes * np.array(scaler.output_std)[:, None],
    )
    return Derivatives(
        *(statistic(part, axis=(0, 1)) for part in parts for statistic in (np.mean, np.std))
    )


class UnknownEstimate(NamedTuple):
    """Mean and standard deviation of the unknown function of a feature, in the user's units."""

    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]


@in_double_precision
def unknown(posterior: "Posterior", values: Float[ArrayLike, "N ..."]) -> UnknownEstimate:
    """Return E h and Var h = Var(E[h | v]) + E[B_h] over draws; see `Posterior.unknown`."""
    kernel = posterior.model.kernel
    basis = posterior.model.basis
    if not isinstance(kernel, Feature) or not isinstance(basis, FeaturePoints):
        raise TypeError(
            "this model has no unknown function of a feature: fit one with "
            "fit(physics=gpssm.Physics(...))."
        )
    features = np.asarray(values, float)
    points = jnp.asarray(features.reshape(features.shape[0] if features.ndim else 1, -1))
    if points.shape[1] != basis.locations.shape[1] or not np.isfinite(features).all():
        raise ValueError(
            f"values are finite, of shape (N, {basis.locations.shape[1]}); got {features.shape}."
        )
    moments = map_draws(_unknown_moments, posterior.model, posterior.draws, points)
    scale = kernel.state_scale[kernel.into]
    return UnknownEstimate(*(scale * part for part in _total_moments(*np.moveaxis(moments, 2, 0))))


def _unknown_moments(model: GPSSM, draw: Draw, values: Float[Array, "N P"]) -> Float[Array, "2 N"]:
    assert isinstance(model.kernel, Feature)
    assert isinstance(model.basis, FeaturePoints)
    return jnp.stack(model.basis.unknown(model.kernel, draw.weights, values))


class Relevance(NamedTuple):
    """How far an input z_j of one standard deviation moves the next state x_d, in its own.

        r_dj = √mean_t (∂f_d/∂z_j)² · std(z_j) / std(x_d)

    It is zero, to the last digit, for what a wiring keeps out.

    Parameters
    ----------
    mean, std
        Over draws.
    columns
        Names of the inputs.
    """

    mean: Float[np.ndarray, "Dx Dz"]
    std: Float[np.ndarray, "Dx Dz"]
    columns: tuple[str, ...]


@in_double_precision
def relevance(posterior: "Posterior") -> Relevance:
    """How much each state and control moves each transition along the data.

    `gpssm.plots.plot_wiring` draws it.
    """
    posterior = posterior.with_states()
    few = posterior.thinned(RELEVANCE_DRAWS)
    dim = posterior.model.state_dim
    means = [np.mean(np.asarray(path), axis=(0, 1))[:-1] for path in posterior.draws.states]
    x = np.concatenate(means)
    u = np.concatenate([np.asarray(series.u) for series in posterior.dataset.scaled])
    every = -(-len(x) // RELEVANCE_POINTS)
    inputs = (jnp.asarray(x[::every]), jnp.asarray(u[::every]))
    slopes = map_draws(_transition_slopes, few.model, few.draws, inputs)
    spread = np.concatenate([x.std(0), u.std(0)])
    moved = np.sqrt(np.mean(slopes**2, axis=2)) * spread / np.maximum(spread[:dim, None], 1e-12)
    columns = (*(f"x{number + 1}" for number in range(dim)), *posterior.dataset.inputs)
    return Relevance(np.mean(moved, axis=(0, 1)), np.std(moved, axis=(0, 1)), columns)


def _transition_slopes(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "N Dx Dz"]:
    move = model.transition()
    jacobian = jax.jacfwd(lambda x, u: move(x[None], u[None]).given(draw.weights)[0], (0, 1))
    return jnp.concatenate(jax.vmap(jacobian)(*inputs), -1)


def _output_slopes(model: GPSSM, _: Draw, inputs: Inputs) -> Float[Array, "N Dy Dx"]:
    return jax.vmap(jax.jacfwd(lambda x: model.likelihood.moments(x[None])[0][0]))(inputs[0])


def _inputs(posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any) -> Inputs:
    """Return states and scaled inputs, of which a single pair may be one-dimensional."""
    states, _ = to_columns(x, None, "x")
    single = np.ndim(x) == 1
    states = states.T if single else states
    dim = posterior.model.state_dim
    if not states.size or states.shape[1] != dim:
        raise ValueError(f"x must have shape (N, {dim}), one state a row; got {states.shape}")
    far = ~(np.abs(states) < FAR)
    if far.any():
        raise ValueError(f"x must be finite, and where there could be states; got {states[far][0]}")
    names = posterior.dataset.inputs
    if u is None:
        u = np.zeros((len(states), 0))
    u = align_columns(np.atleast_2d(u) if single else u, names, "u")
    if len(u) != len(states):
        raise ValueError(f"u must have a row for each of the {len(states)} states; got {len(u)}")
    if not np.isfinite(u).all():
        raise ValueError(
            f"{where_first(~np.isfinite(u), names)} of u is NaN or infinite: give a number"
        )
    return jnp.asarray(states), jnp.asarray(posterior.dataset.encode_inputs(u))
