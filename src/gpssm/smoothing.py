"""What happened in the training data: states, and outputs without their noise, at every draw."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.fitted import Fitted
from gpssm.forecast import Forecast
from gpssm.model import GPSSM
from gpssm.rollout import Emission, emissions, flatten, in_user_units, path_keys, pick_series
from gpssm.runtime import numerical


@dataclass(frozen=True, eq=False)
class Smoothed:
    """One training series as the posterior sees it, S draws.

    `outputs` has the paths (S, T, Dy) of the outputs in the user's units, with everything a `Forecast` offers; `states`
    (S, T+1, Dx) are x₀..x_T in scaled units, and `imputed` (T, Dy) is y with the mean output where it is missing.
    Chains may settle in different coordinates of the states: compare outputs across chains, not states.
    """

    outputs: Forecast
    states: Float[np.ndarray, "S T+1 Dx"]
    imputed: Float[np.ndarray, "T Dy"]

    @property
    def state_mean(self) -> Float[np.ndarray, "T+1 Dx"]:
        """The mean of the states over draws."""
        return np.mean(self.states, axis=0)

    @property
    def state_std(self) -> Float[np.ndarray, "T+1 Dx"]:
        """The standard deviation of the states over draws."""
        return np.std(self.states, axis=0)


@numerical
def smooth(fitted: Fitted, index: int = 0, noise: bool = False, seed: int = 0) -> Smoothed:
    """States and outputs E[y_t | x_{t+1}] of each draw along training series `index`; y ~ p(y | x_{t+1}) with noise."""
    series, states = pick_series(fitted, index), flatten(fitted.draws.states[index])
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), np.arange(len(states)), len(series))
    leaves = {name: jnp.asarray(flatten(leaf)) for name, leaf in fitted.draws.leaves.items()}
    found = _emitted(fitted.model, leaves, keys, jnp.asarray(states[:, 1:]), noise)
    paths, moments, _ = in_user_units(fitted.scaler, found)
    outputs = Forecast(paths, series.outputs, 0, series.u, series.inputs, series.dt, moments)
    return Smoothed(outputs, states, np.where(np.isnan(series.y), np.mean(moments[0], axis=0), series.y))


def outputs_of(fitted: Fitted, index: int = 0) -> Float[np.ndarray, "chain draw T Dy"]:
    """E[y_t | x_{t+1}] of each draw along training series `index`, in the user's units."""
    paths = smooth(fitted, index).outputs.paths
    return paths.reshape(fitted.num_chains, fitted.num_draws, *paths.shape[1:])


@eqx.filter_jit
def _emitted(
    model: GPSSM, leaves: dict[str, Array], keys: PRNGKeyArray, x: Float[Array, "S T Dx"], noise: bool
) -> Emission:
    likelihoods = eqx.filter_vmap(lambda values: model.with_leaves(values).likelihood, axis_size=x.shape[0])(leaves)
    return emissions(likelihoods, keys, x, noise)
