"""Where a sampler may begin, by name, and what may be assumed of the process noise.

The sampler stays in the mode it starts in, so starts are candidates, to be compared by the
forecasts they lead to:

    em              the linear-Gaussian model with the greatest likelihood, and its smoothed states
    output-error    the linear model whose simulation has the least squared error, and its states
    ...+shooting    from either, the model whose simulations of long windows follow the series

A linear model that explains the next step well may owe it to process noise, and forget slow
states; one that explains the simulation needs inputs that tell where the states are, which those
of a closed loop do not.

The process noise has a *regime*:

    free            Q ~ InverseGamma(1, .001), nearly flat: what the transition cannot explain
                    becomes noise
    small           √Q is held near a number s by a prior worth as much as the rows: the transition
                    must explain everything but s a step, and the rest is observation noise
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gpssm.core.runtime import in_double_precision
from gpssm.data.series import Series
from gpssm.linear.fit import linear_fit, output_error_fit
from gpssm.linear.state_space import LinearFit
from gpssm.model.priors import InverseGamma
from gpssm.starts.build import SLACK, Start, build
from gpssm.starts.shooting import Shot, shoot_all

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

NoiseRegime = Literal["free", "small"]
SMALL = 0.003  # √Q of the regime "small", for states of unit scale
AFTER_SHOOTING = 0.01  # √Q that the sampler begins with after shooting, if it is free


class StartMethod(NamedTuple):
    """How a start is made: a linear fit, and whether shooting follows."""

    linear: Callable[[list[Series], "Spec"], LinearFit]
    shooting: bool


STARTS: dict[str, StartMethod] = {
    "em": StartMethod(linear_fit, False),
    "output-error": StartMethod(output_error_fit, False),
    "em+shooting": StartMethod(linear_fit, True),
    "output-error+shooting": StartMethod(output_error_fit, True),
}


@in_double_precision
def make_starts(
    name: str,
    spec: "Spec",
    series: Sequence[list[Series]],
    fits: Sequence[LinearFit],
    keys: Sequence[PRNGKeyArray],
    slack: Callable[[int], float] = lambda rows: SLACK,
) -> list[Start]:
    """The starts of this name from several linear fits, on as many cores as there are.

    Parameters
    ----------
    name
        Of `STARTS`.
    spec
        What is asked for; shooting leaves its `fixed` parameters as they are.
    series
        Scaled series, for each fit.
    fits
        The linear fit of each.
    keys
        Random numbers of each.
    slack
        How far a linear mean may stray from the linear fit to so many rows, where no shooting
        follows.
    """
    if not STARTS[name].shooting:
        pairs = zip(fits, keys, strict=True)
        return [build(spec, fit, key, slack(len(fit.z))) for fit, key in pairs]
    # Shooting begins with a kernel's variance of .05; `build` takes it from a noise that a
    # simulation does not have.
    level = 0.05 / 10 * jnp.eye(spec.state_dim)
    quiet = [fit._replace(model=fit.model._replace(process_cov=level)) for fit in fits]
    starts = [build(spec, fit, key) for fit, key in zip(quiet, keys, strict=True)]
    held = [start._replace(model=start.model.with_roles("fix", *spec.fixed)) for start in starts]
    shots = shoot_all(held, series)
    return [
        _after_shooting(spec, start, free, shot)
        for start, free, shot in zip(starts, held, shots, strict=True)
    ]


def _after_shooting(spec: "Spec", start: Start, held: Start, shot: Shot) -> Start:
    """The start with the leaves that shooting learned, and some noise where transitions are
    learned.
    """
    learned = jnp.asarray(True if spec.wiring is None else spec.wiring.learned)
    noise = jnp.where(learned, jnp.log(AFTER_SHOOTING), start.model.log_process_std)
    free = held.model.free_leaves()
    values = {name: leaf for name, leaf in shot.start.model.leaves().items() if name in free}
    notes = ()
    if shot.clipped > 0.01:
        notes = (
            f"{shot.clipped:.0%} of the simulated states of the start are at the limit, so the "
            "start is poor. Try start='em', or a smaller state_dim.",
        )
    model = start.model.with_leaves(values | {"log_process_std": noise})
    return Start(model, shot.start.states, notes)


def with_noise(start: Start, noise: NoiseRegime | float) -> Start:
    """The start in a regime of the process noise; a number is the s of "small"."""
    if noise == "free":
        return start
    if noise != "small" and (isinstance(noise, str) or not 0 < noise < np.inf):
        raise ValueError(
            f"noise must be 'free', 'small', 'auto' or a positive number, got {noise!r}."
        )
    rows = sum(len(path) - 1 for path in start.states)
    level = SMALL if noise == "small" else float(noise)
    log_std = jnp.full(start.model.state_dim, jnp.log(level))
    # The mode of 1/Q is at 1/s² whatever the shape, to within one row.
    prior = InverseGamma(0.5 * rows, 0.5 * rows * level**2)
    model = start.model.with_leaves({"log_process_std": log_std})
    return start._replace(model=model.with_priors({"log_process_std": prior}))
