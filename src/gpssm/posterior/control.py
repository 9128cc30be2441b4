"""The forecast as a pure function of the current states and future inputs, for optimisation.

    (x_T of S draws with P paths each, u_{1:H}) ↦ y_{1:H} of N paths

All random numbers are fixed in advance: with equal seeds, the paths are those of `forecast`, and
plans are compared under the same noise. The function can be compiled, vectorised and differentiated
with respect to inputs and states, as needed for model predictive control.
"""

from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_flag, check_seed
from gpssm.data.delays import arriving
from gpssm.posterior.draws import past_inputs
from gpssm.posterior.filtering import forecast_scale
from gpssm.posterior.forecast import check_paths, start_states
from gpssm.posterior.rollout import (
    BOUNDS,
    Box,
    Ensemble,
    assemble,
    plan_paths,
    run_paths,
)

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior


class StateEnsemble(NamedTuple):
    """The states from which P paths of each of S draws start.

    Parameters
    ----------
    states
        States in the coordinates of the draws.
    scale
        Factor of the noise variances of each draw.
    past
        The previous inputs in the user's units, as many rows as the longest delay.
    """

    states: Float[Array, "S P Dx"]
    scale: Float[Array, " S"]
    past: Float[Array, "K Du"]


class Rollout(eqx.Module):
    """A forecast as a function: `rollout(states, u)` returns paths (N, H, Dy) in the user's units.

        rollout = posterior.rollout(num_paths=100)
        value = jax.jit(lambda u: jnp.mean((rollout(rollout.start, u) - target) ** 2))
        jax.grad(value)(u)

    All computations use float64: use it inside `with jax.enable_x64(True):`, or after
    `jax.config.update("jax_enable_x64", True)`.

    Parameters
    ----------
    start
        The states when the rollout was created; `states_of(posterior)` returns the states after
        `condition`.
    ensemble, keys, slots, box, noise
        As in `run_paths`.
    output_scale, input_scale
        Mean and standard deviation of each column.
    draws
        Numbers of the draws.
    index
        The training series that the paths follow.
    delay
        Delay of each input in rows.
    """

    start: StateEnsemble
    ensemble: Ensemble
    keys: PRNGKeyArray
    slots: Int[Array, " N"]
    box: Box | None
    output_scale: tuple[Float[Array, " Dy"], Float[Array, " Dy"]]
    input_scale: tuple[Float[Array, " Du"], Float[Array, " Du"]]
    draws: tuple[int, ...] = eqx.field(static=True)
    index: int = eqx.field(static=True)
    delay: tuple[int, ...] = eqx.field(static=True)
    noise: bool = eqx.field(static=True)

    def __call__(self, start: StateEnsemble, u: Float[Array, "H Du"]) -> Float[Array, "N H Dy"]:
        """Return the outputs of the paths from these states with these inputs.

        Parameters
        ----------
        start
            States to start from.
        u
            Inputs in the user's units, one row per step.
        """
        traced = isinstance(u, jax.core.Tracer)  # type: ignore[attr-defined]
        if traced and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise TypeError(
                "a rollout computes in float64, but the arguments have 32 bits: work inside "
                '`with jax.enable_x64(True):`, or call jax.config.update("jax_enable_x64", '
                "True) first"
            )
        with jax.enable_x64(True):
            mean, std = self.input_scale
            inputs = jnp.asarray(u, mean.dtype)
            if inputs.ndim != 2 or inputs.shape[1] != len(mean):
                raise ValueError(
                    f"u must have shape (H, {len(mean)}), one row per step; got {inputs.shape}"
                )
            scaled = (arriving(inputs, self.delay, start.past) - mean[None]) / std[None]
            ensemble = self.ensemble.scaled(start.scale)
            emission, *_ = run_paths(
                ensemble, start.states, scaled, self.keys, self.slots, self.box, self.noise
            )
            mean, std = self.output_scale
            return jnp.swapaxes(emission.y, 0, 1) * std[None, None] + mean[None, None]

    def states_of(self, posterior: "Posterior") -> StateEnsemble:
        """Return the start states of a posterior with the same draws.

        Parameters
        ----------
        posterior : Posterior
            The posterior of the rollout, or the same posterior after `condition`.
        """
        return _states(posterior, np.array(self.draws), self.keys, self.index)


@in_double_precision
def rollout(
    posterior: "Posterior",
    num_paths: int = 100,
    *,
    seed: int = 0,
    noise: bool = True,
    index: int = -1,
    bounds: float | None = BOUNDS,
) -> Rollout:
    """Return the forecast as a pure JAX function of states and inputs, to optimise over.

        rollout = posterior.rollout(50)
        paths = rollout(rollout.start, u)  # (50, H, Dy), the paths of `forecast` with this seed

    The calibration of the posterior is not applied.

    Parameters
    ----------
    posterior
        The posterior.
    num_paths, seed, noise, index, bounds
        As in `forecast`.
    """
    seed = check_seed(seed)
    check_paths(num_paths, bounds, 1)
    check_flag("noise", noise)
    dataset = posterior.dataset
    scaler = dataset.scaler
    plan = plan_paths(posterior, num_paths, seed, bounds)
    return Rollout(
        start=_states(posterior, plan.draws, plan.keys, index),
        ensemble=eqx.filter_jit(assemble)(*plan.members, dataset.experiment(index).input_dim),
        keys=plan.keys,
        slots=plan.slots,
        box=plan.box,
        output_scale=(jnp.asarray(scaler.output_mean), jnp.asarray(scaler.output_std)),
        input_scale=(jnp.asarray(scaler.input_mean), jnp.asarray(scaler.input_std)),
        draws=tuple(plan.draws.tolist()),
        index=index,
        delay=dataset.delay,
        noise=noise,
    )


@in_double_precision
def _states(
    posterior: "Posterior", draws: Int[np.ndarray, " S"], keys: PRNGKeyArray, index: int
) -> StateEnsemble:
    scale = forecast_scale(posterior.current, draws)
    past = jnp.asarray(past_inputs(posterior, index))
    return StateEnsemble(start_states(posterior, index, draws, keys, scale), scale, past)
