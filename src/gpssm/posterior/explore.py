"""What a posterior says of the data and of the system, at every draw.

    smooth                            what happened in the training data: states, and outputs without their noise
    transition                        what was learned: f at any state and control, and where it has seen data
    derivatives                       its slopes, at any state and control
    unknown                           the unknown function inside of known physics
    relevance                         how much each state and control moves each transition, along the data

Averages over draws are averages over chains too, which may settle in different coordinates of the states. Where
`Posterior.diagnostics` shows that they did, look at one chain at a time.
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
from gpssm.posterior.rollout import Emission, emissions, path_keys

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

RELEVANCE_DRAWS, RELEVANCE_POINTS = 40, 200  # that are enough for a picture

Inputs = tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]  # states and controls, both scaled


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Smoothed(Forecast):
    """One training series as the posterior sees it: paths of its outputs (S, T, Dy), one of each of S draws.

    It has everything that a `Forecast` has. `states` (S, T+1, Dx) are x₀..x_T in scaled units, and `imputed` (T, Dy) is
    y with the mean output where it is missing. Chains may settle in different coordinates of the states: compare
    outputs across chains, not states.
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
    """States and outputs E[y_t | x_{t+1}] of each draw along training series `index`; y ~ p(y | x_{t+1}) with noise."""
    posterior.check_states("smooth")
    dataset, seed = posterior.dataset, check_seed(seed)
    series, states = dataset.experiment(index), merge_chains(posterior.draws.states[index])
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), np.arange(len(states)), len(series))
    leaves = {
        name: jnp.asarray(merge_chains(leaf)) for name, leaf in posterior.draws.leaves.items()
    }
    found = _emitted(posterior.model, leaves, keys, jnp.asarray(states[:, 1:]), noise)
    paths, moments, _ = found.in_units(dataset)
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
    """E[y_t | x_{t+1}] of each draw along training series `index`, in the user's units."""
    paths = smooth(posterior, index).paths
    return paths.reshape(posterior.num_chains, posterior.num_draws, *paths.shape[1:])


@jit
def _emitted(
    model: GPSSM,
    leaves: dict[str, Array],
    keys: PRNGKeyArray,
    x: Float[Array, "S T Dx"],
    noise: bool,
) -> Emission:
    likelihoods = eqx.filter_vmap(
        lambda values: model.with_leaves(values).likelihood, axis_size=x.shape[0]
    )(leaves)
    return emissions(likelihoods, keys, x, noise)


class TransitionEstimate(NamedTuple):
    """f at N inputs.

    Mean and standard deviation of what is known about it; `novelty`, the mean of B / k(z, z) over draws and states; and
    E[f | v] of each draw in `draws`.
    """

    mean: Float[np.ndarray, "N Dx"]
    std: Float[np.ndarray, "N Dx"]
    novelty: Float[np.ndarray, " N"]
    draws: Float[np.ndarray, "chain draw N Dx"]


class Derivatives(NamedTuple):
    """Derivatives at N inputs, each the mean over draws and the standard deviation over draws.

    `state` is ∂f/∂x and `control` ∂f/∂u for a unit of the user's u; `output` is ∂E[y]/∂x, y in the user's units.
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
    found = map_draws(
        _function_and_doubt, posterior.model, posterior.draws, _inputs(posterior, x, u)
    )
    mean, residual, share = np.moveaxis(found, 2, 0)
    std = np.sqrt(np.var(mean, axis=(0, 1)) + np.mean(residual, axis=(0, 1)))
    novelty = np.mean(share, axis=(0, 1, 3))
    return TransitionEstimate(np.mean(mean, axis=(0, 1)), std, novelty, mean)


def _function_and_doubt(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "3 N Dx"]:
    """m + A v, B and B / k(z, z)."""
    step = model.transition()(*inputs)
    residual = jnp.maximum(step.residual, 0.0)
    prior = model.kernel.diagonal(jnp.concatenate(inputs, -1))
    share = residual / jnp.maximum(prior, jnp.finfo(prior.dtype).tiny)
    return jnp.stack([step.given(draw.weights), residual.T, share.T])


@in_double_precision
def derivatives(posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any = None) -> Derivatives:
    """Derivatives of E[f | v] and of E[y | x] of each draw at states x in scaled units, controls u in the user's."""
    inputs, scaler, width = (
        _inputs(posterior, x, u),
        posterior.dataset.scaler,
        posterior.model.state_dim,
    )
    step = map_draws(_transition_slopes, posterior.model, posterior.draws, inputs)
    control = step[..., width:] / np.array(scaler.input_std)
    slopes = map_draws(_output_slopes, posterior.model, posterior.draws, inputs)
    output = slopes * np.array(scaler.output_std)[:, None]
    parts = (step[..., :width], control, output)
    return Derivatives(
        *(statistic(part, axis=(0, 1)) for part in parts for statistic in (np.mean, np.std))
    )


class UnknownEstimate(NamedTuple):
    """The unknown function h of a feature, at N values of it: mean and standard deviation, in the user's units."""

    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]


@in_double_precision
def unknown(posterior: "Posterior", values: Float[ArrayLike, "N ..."]) -> UnknownEstimate:
    """E h and Var h = Var(E[h | v]) + E[B_h] over draws, of a model with physics (`gpssm.Physics`)."""
    kernel, basis = posterior.model.kernel, posterior.model.basis
    if not isinstance(kernel, Feature) or not isinstance(basis, FeaturePoints):
        raise TypeError(
            "this model has no unknown function of a feature: fit one with fit(physics=gpssm.Physics(...))."
        )
    given = np.asarray(values, float)
    at = jnp.asarray(given.reshape(given.shape[0] if given.ndim else 1, -1))
    if at.shape[1] != basis.locations.shape[1] or not np.isfinite(given).all():
        raise ValueError(
            f"values are finite, of shape (N, {basis.locations.shape[1]}); got {given.shape}."
        )
    mean, variance = np.moveaxis(map_draws(_unknown, posterior.model, posterior.draws, at), 2, 0)
    scale = kernel.state_scale[kernel.into]
    std = np.sqrt(np.var(mean, axis=(0, 1)) + np.mean(variance, axis=(0, 1)))
    return UnknownEstimate(scale * np.mean(mean, axis=(0, 1)), scale * std)


def _unknown(model: GPSSM, draw: Draw, values: Float[Array, "N P"]) -> Float[Array, "2 N"]:
    assert isinstance(model.kernel, Feature)
    assert isinstance(model.basis, FeaturePoints)
    return jnp.stack(model.basis.unknown(model.kernel, draw.weights, values))


class Relevance(NamedTuple):
    """How far an input z_j of one standard deviation moves the next state x_d, in its own, along the data.

    r_dj = √mean_t (∂f_d/∂z_j)² · std(z_j) / std(x_d): the mean over draws, and their standard deviation. It is zero, to
    the last digit, for what a wiring keeps out. `columns` names the inputs.
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
    few, width = posterior.thinned(RELEVANCE_DRAWS), posterior.model.state_dim
    x = np.concatenate(
        [np.mean(np.asarray(path), axis=(0, 1))[:-1] for path in posterior.draws.states]
    )
    u = np.concatenate([np.asarray(one.u) for one in posterior.dataset.scaled])
    every = -(-len(x) // RELEVANCE_POINTS)
    slopes = map_draws(
        _transition_slopes, few.model, few.draws, (jnp.asarray(x[::every]), jnp.asarray(u[::every]))
    )
    spread = np.concatenate([x.std(0), u.std(0)])
    moved = np.sqrt(np.mean(slopes**2, axis=2)) * spread / np.maximum(spread[:width, None], 1e-12)
    names = (*(f"x{number + 1}" for number in range(width)), *posterior.dataset.inputs)
    return Relevance(np.mean(moved, axis=(0, 1)), np.std(moved, axis=(0, 1)), names)


def _transition_slopes(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "N Dx Dz"]:
    move = model.transition()

    def following(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> Float[Array, " Dx"]:
        return move(x[None], u[None]).given(draw.weights)[0]

    return jnp.concatenate(jax.vmap(jax.jacfwd(following, (0, 1)))(*inputs), -1)


def _output_slopes(model: GPSSM, _: Draw, inputs: Inputs) -> Float[Array, "N Dy Dx"]:
    return jax.vmap(jax.jacfwd(lambda x: model.likelihood.moments(x[None])[0][0]))(inputs[0])


def _inputs(posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any) -> Inputs:
    """States and scaled controls as arrays of N rows each; a single state and its control may be one-dimensional."""
    states, names = _states(posterior, x), posterior.dataset.inputs
    if u is None:
        u = np.zeros((len(states), 0))
    controls = align_columns(np.atleast_2d(u) if np.ndim(x) == 1 else u, names, "u")
    if len(controls) != len(states):
        raise ValueError(
            f"u must have a row for each of the {len(states)} states; got {len(controls)}"
        )
    if not np.isfinite(controls).all():
        raise ValueError(
            f"{where_first(~np.isfinite(controls), names)} of u is NaN or infinite: give a number"
        )
    return jnp.asarray(states), jnp.asarray(posterior.dataset.encode_inputs(controls))


def _states(posterior: "Posterior", x: Float[ArrayLike, "N Dx"]) -> Float[np.ndarray, "N Dx"]:
    """States as an array of N rows; a single one may be one-dimensional."""
    states, _ = to_columns(x, None, "x")
    states = states.T if np.ndim(x) == 1 else states
    if not states.size or states.shape[1] != posterior.model.state_dim:
        raise ValueError(
            f"x must have shape (N, {posterior.model.state_dim}), one state a row; got {states.shape}"
        )
    if not (np.abs(states) < FAR).all():
        raise ValueError(
            f"x must be finite, and where there could be states; got {states[~(np.abs(states) < FAR)][0]}"
        )
    return states
