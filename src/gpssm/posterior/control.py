"""The forecast as a function to optimise over: a pure function of where the state is and of the controls to come.

    (x_T of S draws with P paths each, u_{1:H}) ↦ y_{1:H} of N paths

Every random number is fixed beforehand: equal seeds give `forecast`'s own paths, and two plans are compared under the
same noises. It can be jitted, mapped and differentiated with respect to controls and states, which is what model
predictive control asks for.
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
from gpssm.posterior.draws import merge_chains
from gpssm.posterior.filtering import noise_scale
from gpssm.posterior.forecast import check_paths, start_states
from gpssm.posterior.rollout import (
    BOUNDS,
    Box,
    Ensemble,
    assemble,
    members_of,
    path_keys,
    plan,
    run_paths,
    training_box,
)

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior


class StateEnsemble(NamedTuple):
    """Where P paths of each of S draws are, in the draws' coordinates, and what their noise variances are times.

    `past` are the last controls before, in the user's units, as many as the longest delay.
    """

    states: Float[Array, "S P Dx"]
    scale: Float[Array, " S"]
    past: Float[Array, "K Du"]


class Rollout(eqx.Module):
    """A forecast as a function of states and inputs: `rollout(states, u)` gives paths (N, H, Dy) in the user's units.

        rollout = posterior.rollout(num_paths=100)
        value = jax.jit(lambda u: jnp.mean((rollout(rollout.start, u) - target) ** 2))
        jax.grad(value)(u)

    `start` is where the posterior was when it was made, and `states_of(posterior)` where one is after `condition`. All
    is in float64: transformations of it belong inside `with jax.enable_x64(True):`, or after
    `jax.config.update("jax_enable_x64", True)`.
    """

    start: StateEnsemble
    ensemble: Ensemble
    keys: PRNGKeyArray
    slots: Int[Array, " N"]
    box: Box | None
    output_scale: tuple[Float[Array, " Dy"], Float[Array, " Dy"]]  # mean and standard deviation
    input_scale: tuple[Float[Array, " Du"], Float[Array, " Du"]]
    draws: tuple[int, ...] = eqx.field(static=True)
    index: int = eqx.field(static=True)
    delay: tuple[int, ...] = eqx.field(static=True)
    noise: bool = eqx.field(static=True)

    def __call__(self, start: StateEnsemble, u: Float[Array, "H Du"]) -> Float[Array, "N H Dy"]:
        """Outputs of the paths from these states under these controls; pure, and the same each time."""
        if isinstance(u, jax.core.Tracer) and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise TypeError(
                "a rollout computes in float64, and what is traced here has 32 bits: work inside "
                '`with jax.enable_x64(True):`, or call jax.config.update("jax_enable_x64", True) first'
            )
        with jax.enable_x64(True):
            mean, std = self.input_scale
            controls = jnp.asarray(u, mean.dtype)
            if controls.ndim != 2 or controls.shape[1] != len(mean):
                raise ValueError(
                    f"u must have shape (H, {len(mean)}), a row a step; got {controls.shape}"
                )
            scaled = (arriving(controls, self.delay, start.past) - mean[None]) / std[None]
            ensemble = self.ensemble.scaled(start.scale)
            found = run_paths(
                ensemble, start.states, scaled, self.keys, self.slots, self.box, self.noise
            )
            mean, std = self.output_scale
            return jnp.swapaxes(found.emission.y, 0, 1) * std[None, None] + mean[None, None]

    def states_of(self, posterior: "Posterior") -> StateEnsemble:
        """Where the paths start under a posterior with the same draws, after `condition` for instance."""
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

    What `calibrate` found is not applied.

    Parameters
    ----------
    posterior
        The posterior.
    num_paths, seed, noise, index, bounds
        As in `forecast`.
    """
    scaler, seed = posterior.dataset.scaler, check_seed(seed)
    check_paths(num_paths, bounds, 1)
    check_flag("noise", noise)
    draws, each, slots = plan(posterior.num_chains * posterior.num_draws, num_paths)
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), draws, each)
    members = members_of(posterior, draws)
    ensemble = eqx.filter_jit(assemble)(*members, posterior.dataset.experiment(index).input_dim)
    return Rollout(
        _states(posterior, draws, keys, index),
        ensemble,
        keys,
        jnp.asarray(slots),
        None if bounds is None else training_box(posterior, draws, bounds),
        (jnp.asarray(scaler.output_mean), jnp.asarray(scaler.output_std)),
        (jnp.asarray(scaler.input_mean), jnp.asarray(scaler.input_std)),
        tuple(draws.tolist()),
        index,
        posterior.dataset.delay,
        noise,
    )


@in_double_precision
def _states(
    posterior: "Posterior", draws: np.ndarray, keys: PRNGKeyArray, index: int
) -> StateEnsemble:
    surprise = (
        np.ones(len(draws))
        if posterior.current is None
        else merge_chains(posterior.current.surprise)[draws]
    )
    scale = noise_scale(jnp.asarray(surprise))
    past = jnp.asarray(posterior.past_inputs(index))
    return StateEnsemble(start_states(posterior, index, draws, keys, scale), scale, past)
