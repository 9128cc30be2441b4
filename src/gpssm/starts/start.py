"""Where a sampler may begin, by name, and what may be assumed of the process noise.

A start is a model with values for its parameters and a path of states for each series. The sampler stays in the mode it
starts in, so that starts are candidates, to be compared by the forecasts they lead to:

    em              the linear-Gaussian model with the greatest likelihood (subspace, then EM), and its smoothed states
    output-error    the linear model whose free run has the least squared error, and the states of that run
    ...+shooting    from either, the model whose free runs of long windows follow the series (`shooting.py`)

A linear model that explains the next step well may owe it to process noise, and forget slow states; one that explains
the free run needs controls that tell where the states are, which those of a closed loop do not.

The process noise has a *regime*:

    free            Q ~ InverseGamma(1, .001), nearly flat: what the transition cannot explain becomes noise
    small           √Q is held near a number s by a prior worth `WORTH` times the rows of the series: the transition
                    must explain everything but s a step, and the rest is observation noise
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.core.runtime import in_double_precision
from gpssm.data.series import Series
from gpssm.model.likelihoods import Likelihood, LinkedGaussian, MonotoneWiener, Wiener, make_likelihood
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma
from gpssm.starts.build import (
    LinearStart,
    Parts,
    build_model,
    curved_start,
    from_path,
    linear_start,
    output_error,
    pseudo_series,
    wiring_of,
)
from gpssm.starts.shooting import Aim, Shot, shoot_all

Noise = Literal["free", "small"]
SMALL = 0.003  # √Q of the regime "small", for states of unit scale
WORTH = 1.0
KERNEL_VARIANCE = 0.05  # that shooting begins with; build_model takes it from a noise that a free run does not have
AFTER_SHOOTING = 0.01  # √Q that the sampler begins with after shooting, if it is free
SOME_CLIPPED = 0.01  # share of the states at the wall that is worth a word


class Start(NamedTuple):
    """A model at the values to begin with, the states of each series, and what there is to say about them."""

    model: GPSSM
    states: list[Float[np.ndarray, "_ Dx"]]
    notes: tuple[str, ...] = ()


class Recipe(NamedTuple):
    """How a start is made: a linear fit, and whether shooting follows."""

    linear: Callable[[list[Series], int, str | Likelihood, Any], LinearStart]
    shooting: bool


class Task(NamedTuple):
    """What a start is to be made for: scaled series, random numbers, and the linear fit if there is one already."""

    series: list[Series]
    key: PRNGKeyArray
    linear: LinearStart | None = None


def make_start(
    name: str,
    series: list[Series],
    parts: Parts,
    key: PRNGKeyArray,
    fixed: Sequence[str] = (),
    linear: LinearStart | None = None,
) -> Start:
    """The start of this name for scaled series; see `make_starts`."""
    return make_starts(name, [Task(series, key, linear)], parts, fixed)[0]


@in_double_precision
def make_starts(
    name: str,
    tasks: Sequence[Task],
    parts: Parts,
    fixed: Sequence[str] = (),
    slack: Callable[[int], float] | None = None,
) -> list[Start]:
    """The starts of this name, one for each task, on as many cores as there are.

    :param fixed: leaves that shooting leaves as they are, by name or pattern.
    :param slack: how far a linear mean may stray from the linear fit to so many rows, where no shooting follows.
    """
    if name not in STARTS:
        raise KeyError(f"Unknown start {name!r}. Known: {', '.join(STARTS)}; or give a path of states a series.")
    recipe, shape = STARTS[name], (parts.state_dim, parts.likelihood, parts.wiring)
    fits = [recipe.linear(task.series, *shape) if task.linear is None else task.linear for task in tasks]
    if recipe.shooting:
        level = KERNEL_VARIANCE / 10 * jnp.eye(parts.state_dim)
        begin = [one._replace(linear=one.linear._replace(process_cov=level)) for one in fits]
    else:
        begin = [one._replace(slack=slack(len(one.z))) if slack else one for one in fits]
    models = [build_model(task.series, *parts, key=task.key, start=one) for task, one in zip(tasks, begin, strict=True)]
    starts = [Start(model, one.states) for model, one in zip(models, fits, strict=True)]
    if not recipe.shooting:
        return starts
    aims = [
        Aim(one.model.with_roles("fix", *fixed), one.states, task.series)
        for one, task in zip(starts, tasks, strict=True)
    ]
    wiring = wiring_of(parts.wiring, parts.state_dim, tasks[0].series)
    learned = jnp.asarray(True if wiring is None else wiring.learned)
    free = aims[0].model.free_leaves()
    return [_after_shooting(one, shot, free, learned) for one, shot in zip(starts, shoot_all(aims), strict=True)]


def _after_shooting(before: Start, shot: Shot, free: Collection[str], learned: Bool[Array, "..."]) -> Start:
    """The start with what shooting found of its free leaves, and some noise in the transitions that are learned."""
    noise = {"log_process_std": jnp.where(learned, jnp.log(AFTER_SHOOTING), before.model.log_process_std)}
    values = {name: leaf for name, leaf in shot.model.leaves().items() if name in free}
    notes = ()
    if shot.clipped > SOME_CLIPPED:
        notes = (
            f"{shot.clipped:.0%} of the states of the start's free runs stand at the wall: the start is a poor one. "
            "Try start='em', or a smaller state_dim.",
        )
    return Start(before.model.with_leaves(values | noise), shot.states, notes)


@in_double_precision
def output_error_start(
    series: list[Series], state_dim: int, likelihood: str | Likelihood = "gaussian", wiring: Any = None
) -> LinearStart:
    """The linear model whose free run, through the likelihood's link, has the least squared error."""
    width = series[0].output_dim
    chosen = make_likelihood(likelihood, jnp.zeros((width, state_dim)), jnp.zeros(width), jnp.ones(width))
    if isinstance(chosen, Wiener | MonotoneWiener) and wiring is None:
        return curved_start(series, state_dim, chosen)
    linked = isinstance(chosen, LinkedGaussian)
    outputs = series if linked else pseudo_series(series, chosen)
    link = chosen.link.forward if linked else _same
    found = output_error(outputs, state_dim, link, wiring)
    return from_path(found.linear, found.states, series)


def _same(predictor: Float[jax.Array, "N Dy"]) -> Float[jax.Array, "N Dy"]:
    return predictor


STARTS: dict[str, Recipe] = {
    "em": Recipe(linear_start, False),
    "output-error": Recipe(output_error_start, False),
    "em+shooting": Recipe(linear_start, True),
    "output-error+shooting": Recipe(output_error_start, True),
}


def with_noise(model: GPSSM, noise: Noise | float, rows: int) -> GPSSM:
    """The model in a regime of the process noise; a number is the s of "small"."""
    if noise == "free":
        return model
    if noise != "small" and (isinstance(noise, str) or not 0 < noise < np.inf):
        raise ValueError(f"noise must be 'free', 'small', 'auto' or a positive number, got {noise!r}.")
    level = SMALL if noise == "small" else float(noise)
    shape = 0.5 * WORTH * rows
    held = model.with_leaves({"log_process_std": jnp.full(model.state_dim, jnp.log(level))})
    # The mode of 1/Q is at 1/s² whatever the shape, to within one row.
    return held.with_priors({"log_process_std": InverseGamma(shape, shape * level**2)})
