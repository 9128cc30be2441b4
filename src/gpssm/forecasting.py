"""From a posterior to a forecast: which draws to run, from where, with which controls, and back to the user's units."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.alignment import future_inputs
from gpssm.cubature import noise_scale
from gpssm.fitted import Fitted
from gpssm.forecast import MANY, Forecast, ForecastDiagnostics
from gpssm.rollout import (
    BOUNDS,
    choose_particles,
    flatten,
    in_user_units,
    path_keys,
    pick_series,
    plan,
    simulate_paths,
    training_box,
)
from gpssm.runtime import numerical

BLOCK = 32  # steps: horizons are rounded up to it, so that most of them are one program; the rest is not looked at


@numerical
def forecast(
    fitted: Fitted,
    horizon: int | None = None,
    u: Any = None,
    *,
    num_paths: int = 1000,
    seed: int = 0,
    noise: bool = True,
    index: int = -1,
    bounds: float | None = BOUNDS,
) -> Forecast:
    """The forecast from the end of training series `index`, as `Posterior.forecast` says."""
    series = pick_series(fitted, index)
    if num_paths < 1 or (bounds is not None and not bounds > 0):
        raise ValueError(f"num_paths must be 1 or more, and bounds positive or None; got {num_paths} and {bounds}")
    controls = future_inputs(u, series.inputs, horizon)
    draws, each, slots = plan(fitted.num_chains * fitted.num_draws, num_paths)
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), draws, each)
    _, weights, leaves = jax.tree.map(lambda leaf: jnp.asarray(flatten(leaf)[draws]), fitted.draws)
    surprise = np.ones(len(draws)) if fitted.cloud is None else flatten(fitted.cloud.surprise)[draws]
    scale = noise_scale(jnp.asarray(surprise))
    found = simulate_paths(
        fitted.model,
        weights,
        leaves,
        scale,
        start_states(fitted, index, draws, keys, scale),
        jnp.asarray(np.pad(fitted.scaler.scale_inputs(controls), ((0, -len(controls) % BLOCK), (0, 0)), mode="edge")),
        keys,
        jnp.asarray(slots),
        None if bounds is None else training_box(fitted, draws, bounds),
        noise,
    )
    found = jax.tree.map(lambda part: part[: len(controls)], found)
    paths, moments, ahead = in_user_units(
        fitted.scaler, jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), found.emission)
    )
    diagnostics = ForecastDiagnostics(np.asarray(found.left), np.asarray(found.novelty), bounds is not None)
    if diagnostics.share_left > MANY:
        warnings.warn(" ".join(diagnostics.notes), stacklevel=4)
    return Forecast(
        paths=paths,
        outputs=series.outputs,
        start=len(series) if fitted.cloud is None else fitted.cloud.rows,
        u=controls,
        inputs=series.inputs,
        dt=series.dt,
        moments=moments,
        moments_ahead=ahead,
        diagnostics=diagnostics,
    )


def start_states(
    fitted: Fitted, index: int, draws: Int[np.ndarray, " S"], keys: PRNGKeyArray, scale: Float[Array, " S"]
) -> Float[Array, "S P Dx"]:
    """Where the paths with these keys (S, P) start: a particle of their draw's cloud, chosen by weight.

    A Gaussian cloud's variances are scaled. Without a cloud it is the draw's last state of training series `index`.
    """
    if fitted.cloud is None:
        last = flatten(fitted.draws.states[index])[draws, -1]
        return jnp.repeat(jnp.asarray(last)[:, None], keys.shape[1], axis=1)
    particles, log_weights = (jnp.asarray(flatten(part)[draws]) for part in fitted.cloud[:2])
    return choose_particles(keys, particles, log_weights, scale, fitted.cloud.gaussian)
