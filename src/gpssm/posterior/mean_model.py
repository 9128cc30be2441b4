"""The mean of a model's forecasts without noise, as one deterministic state-space system.

    x_{t+1,s} = m_s(z_t) + A_s(z_t) v_s,   ŷ_t = mean over s of E[y | x_{t+1,s}],   s = 1..S

Its state is one flat vector: the states of all S draws, then the inputs of the last K rows where
inputs act up to K rows later. Inputs and outputs are in the user's units.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.model.model import GPSSM
from gpssm.posterior.draws import merge_chains, past_inputs
from gpssm.posterior.rollout import members_of

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

State = Float[Array, " N"]
Step = Callable[[State, Float[Array, " Du"]], tuple[State, Float[Array, " Dy"]]]


class MeanModel(NamedTuple):
    """A deterministic state-space system in the user's units.

    Parameters
    ----------
    step
        A pure JAX function, (state, inputs) → (next state, outputs).
    start
        The state to start from.
    series
        A series with the names and the sampling time.
    """

    step: Step
    start: Float[np.ndarray, " N"]
    series: Series


def mean_step(model: GPSSM, weights: Float[Array, "Dx M"]) -> Step:
    """Return (x, u) ↦ (f(x, u), E[y | f(x, u)]) with f = m + A v of one draw, in scaled units."""
    function = model.function(weights)

    def step(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> tuple[Array, Array]:
        following = function(x[None], u[None])
        return following[0], model.likelihood.moments(following)[0][0]

    return step


def mean_state(posterior: "Posterior", num_draws: int = 20) -> Float[np.ndarray, " N"]:
    """Return where the state of the mean model is now: of `to_control`, `to_casadi`, `export`.

    Parameters
    ----------
    posterior
        The posterior.
    num_draws
        As for these.
    """
    check_whole("num_draws", num_draws, 1)
    thinned = posterior.thinned(max(num_draws, posterior.num_chains))
    if thinned.current is None:
        states = merge_chains(thinned.draws.states[-1])[:, -1]
    else:
        states = merge_chains(thinned.current.state.mean)
    past = past_inputs(posterior)
    # What nobody knows of the inputs before the first row is taken as their mean.
    past = np.where(np.isnan(past), np.array(posterior.dataset.scaler.input_mean), past)
    return np.concatenate([states.ravel(), past.ravel()])


@in_double_precision
def mean_model(posterior: "Posterior", num_draws: int) -> MeanModel:
    """Return the mean model of at most `num_draws` draws, one per chain at least."""
    start = mean_state(posterior, num_draws)
    thinned = posterior.thinned(max(num_draws, posterior.num_chains))
    shape = (thinned.num_chains * thinned.num_draws, posterior.model.state_dim)
    model, weights, leaves = members_of(thinned, np.arange(shape[0]))
    series, scaler = posterior.dataset.experiments[-1], posterior.dataset.scaler
    delay = posterior.dataset.delay or (0,) * series.input_dim

    def member(leaves: dict[str, Array], weights: Float[Array, "Dx M"]) -> Step:
        step = mean_step(model.with_leaves(leaves), weights)
        x, u = jnp.zeros(model.state_dim), jnp.zeros(series.input_dim)
        return eqx.filter_closure_convert(step, x, u)

    members = eqx.filter_jit(eqx.filter_vmap(member, axis_size=shape[0]))(leaves, weights)
    every = eqx.filter_vmap(lambda step, x, u: step(x, u), in_axes=(eqx.if_array(0), 0, None))

    def step(state: State, u: Float[Array, " Du"]) -> tuple[State, Float[Array, " Dy"]]:
        size = shape[0] * shape[1]
        x = state[:size]
        before = state[size:]
        window = jnp.concatenate([before.reshape(max(delay, default=0), len(delay)), u[None]])
        acting = [window[len(window) - 1 - lag, column] for column, lag in enumerate(delay)]
        scaled = (jnp.array(acting) - jnp.array(scaler.input_mean)) / jnp.array(scaler.input_std)
        following, y = every(members, x.reshape(shape), scaled)
        outputs = jnp.mean(y, axis=0) * jnp.array(scaler.output_std)
        outputs = outputs + jnp.array(scaler.output_mean)
        return jnp.concatenate([following.ravel(), window[1:].ravel()]), outputs

    return MeanModel(step, start, series)
