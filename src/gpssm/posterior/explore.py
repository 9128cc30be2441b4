"""Estimates of smoothed outputs and of the learned functions, for every draw.

    smooth                            the training data: states, and outputs without their noise
    transition                        f at any state and inputs, and where data support it
    unknown                           the unknown function in known physics

Averages over draws are also averages over chains, which may use different coordinates of the
states. If `Posterior.diagnostics` shows that they do, use one chain at a time.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from gpssm.core.arguments import checked
from gpssm.core.runtime import in_double_precision, jit
from gpssm.data.columns import align_columns, to_columns
from gpssm.data.scaler import FAR
from gpssm.model.bases import FeaturePoints
from gpssm.model.kernels import Feature
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.draws import check_states, map_draws, merge_chains
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.rollout import Emission, Members, emissions, members_of, path_keys

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

Inputs = tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]  # scaled states and inputs


@checked
@in_double_precision
def smooth(posterior: "Posterior", index: int = -1, noise: bool = False, seed: int = 0) -> Forecast:
    """Return the smoothed outputs of a training series: paths (S, T, Dy), one per draw.

        posterior.smooth().interval(0.9)

    Parameters
    ----------
    posterior
        The posterior, with the states of all rows.
    index
        The number of the training series.
    noise
        Whether to add observation noise to the outputs.
    seed
        Seed of the noise.
    """
    check_states(posterior, "smooth")
    dataset = posterior.dataset
    series = dataset.experiment(index)
    states = merge_chains(posterior.draws.states[index])
    draws = np.arange(len(states))
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), draws, len(series))
    emission = _emit(members_of(posterior, draws), keys, jnp.asarray(states[:, 1:]), noise)
    paths, moments, _ = emission.in_units(dataset)
    return Forecast(
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
    )


def outputs_of(posterior: "Posterior", index: int = -1) -> Float[np.ndarray, "chain draw T Dy"]:
    """Return E[y_t | x_{t+1}] for each draw of a training series, in the user's units."""
    paths = smooth(posterior, index).paths
    return paths.reshape(posterior.num_chains, posterior.num_draws, *paths.shape[1:])


@jit
def _emit(members: Members, keys: PRNGKeyArray, x: Float[Array, "S T Dx"], noise: bool) -> Emission:
    likelihoods = eqx.filter_vmap(
        lambda leaves: members.model.with_leaves(leaves).likelihood, axis_size=x.shape[0]
    )(members.leaves)
    return emissions(likelihoods, keys, x, noise)


class FunctionEstimate(NamedTuple):
    """A learned function at N inputs.

    Parameters
    ----------
    mean, std
        Posterior mean and standard deviation.
    novelty
        For a transition, the mean of B / k(z, z) over draws and states; empty for other functions.
    draws
        Its mean under each draw, E[f | v].
    """

    mean: Float[np.ndarray, "N ..."]
    std: Float[np.ndarray, "N ..."]
    novelty: Float[np.ndarray, " N"]
    draws: Float[np.ndarray, "chain draw N ..."]

    @classmethod
    def of(
        cls,
        mean: Float[np.ndarray, "chain draw N ..."],
        variance: Float[np.ndarray, "chain draw N ..."],
        novelty: Float[np.ndarray, " N"],
    ) -> Self:
        """Return the estimate from means and variances under each draw."""
        std = np.sqrt(np.var(mean, axis=(0, 1)) + np.mean(variance, axis=(0, 1)))
        return cls(np.mean(mean, axis=(0, 1)), std, novelty, mean)


@in_double_precision
def transition(
    posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any = None
) -> FunctionEstimate:
    """Return the next state f(x, u) without process noise: draws, mean, std and novelty.

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
    mean, residual, share = map_draws(_transition_moments, posterior.model, posterior.draws, inputs)
    return FunctionEstimate.of(mean, residual, np.mean(share, axis=(0, 1, 3)))


def _transition_moments(model: GPSSM, draw: Draw, inputs: Inputs) -> tuple[Array, Array, Array]:
    """Return m + A v, B and B / k(z, z)."""
    step = model.transition()(*inputs)
    residual = jnp.maximum(step.residual, 0.0)
    prior = model.kernel.diagonal(jnp.concatenate(inputs, -1))
    share = residual / jnp.maximum(prior, jnp.finfo(prior.dtype).tiny)
    return step.given(draw.weights), residual.T, share.T


@in_double_precision
def unknown(posterior: "Posterior", values: Float[ArrayLike, "N ..."]) -> FunctionEstimate:
    """Return the unknown function in the physics: E h, and Var h = Var(E[h | v]) + E[B_h].

        gpssm.analysis.unknown(posterior, speeds).mean

    Parameters
    ----------
    posterior
        A fit with `physics=gpssm.Physics(...)`.
    values : array (N, ...)
        Values of the feature, the argument of the function, in the user's units.
    """
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
            f"values must be finite, of shape (N, {basis.locations.shape[1]}); got "
            f"{features.shape}."
        )
    mean, variance = map_draws(_unknown_moments, posterior.model, posterior.draws, points)
    scale = kernel.state_scale[kernel.into]
    return jax.tree.map(lambda part: scale * part, FunctionEstimate.of(mean, variance, np.zeros(0)))


def _unknown_moments(
    model: GPSSM, draw: Draw, values: Float[Array, "N P"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    assert isinstance(model.kernel, Feature)
    assert isinstance(model.basis, FeaturePoints)
    return model.basis.unknown(model.kernel, draw.weights, values)


def _inputs(posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any) -> Inputs:
    """Return states and scaled inputs; a single pair may be one-dimensional."""
    states = to_columns(x, None, "x")[0]
    single = np.ndim(x) == 1
    states = states.T if single else states
    dim = posterior.model.state_dim
    if not states.size or states.shape[1] != dim:
        raise ValueError(f"x must have shape (N, {dim}), one state per row; got {states.shape}")
    if not (np.abs(states) < FAR).all():
        raise ValueError(f"x must be finite and in a plausible range; got {x!r}")
    if u is None:
        u = np.zeros((len(states), 0))
    u = align_columns(np.atleast_2d(u) if single else u, posterior.dataset.inputs, "u")
    if len(u) != len(states):
        raise ValueError(f"u must have one row for each of the {len(states)} states; got {len(u)}")
    if not np.isfinite(u).all():
        raise ValueError("u must be finite: it has NaN or infinite values")
    return jnp.asarray(states), jnp.asarray(posterior.dataset.encode_inputs(u))
