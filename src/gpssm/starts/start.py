"""Starts of samplers by name, and regimes of the process noise.

A sampler remains in the mode of its start. Starts are therefore compared by their forecasts:

    em              the linear-Gaussian model with the greatest likelihood, and its smoothed states
    output-error    the linear model whose simulation has the least squared error, and its states
    ...+shooting    from either, the model fitted to simulations of long windows

A linear model may predict the next step well by means of process noise and neglect slow states. A
model fitted to simulations requires inputs that determine the states, unlike those of closed loops.

The process noise has a *regime*:

    free            Q ~ InverseGamma(1, .001), nearly flat: deviations from the transition become
                    process noise
    small           √Q is held near a number s by a prior with the weight of the rows: deviations
                    from the transition become observation noise
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
AFTER_SHOOTING = 0.01  # initial √Q of the sampler after shooting, if it is free


class StartMethod(NamedTuple):
    """A kind of start: a linear fit, and whether shooting follows."""

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
    """Return the named start for each of several linear fits, computed in parallel.

    Parameters
    ----------
    name
        A name from `STARTS`.
    spec
        The specification; shooting does not change its `fixed` parameters.
    series
        Scaled series of each fit.
    fits
        The linear fits.
    keys
        Random key of each fit.
    slack
        Function from a number of rows to the prior standard deviation of a linear mean around the
        linear fit, if no shooting follows.
    """
    if not STARTS[name].shooting:
        pairs = zip(fits, keys, strict=True)
        return [build(spec, fit, key, slack(len(fit.z))) for fit, key in pairs]
    # Shooting starts with a kernel variance of .05; `build` derives it from the process noise,
    # which a simulation does not have.
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
    """Return the start with the leaves fitted by shooting, and with process noise in learned
    transitions.
    """
    learned = jnp.asarray(True if spec.wiring is None else spec.wiring.learned)
    noise = jnp.where(learned, jnp.log(AFTER_SHOOTING), start.model.log_process_std)
    free = held.model.free_leaves()
    values = {name: leaf for name, leaf in shot.start.model.leaves().items() if name in free}
    notes = ()
    if shot.clipped > 0.01:
        notes = (
            f"{shot.clipped:.0%} of the simulated states of the start diverge, so the "
            "start is poor. Try start='em', or a smaller state_dim.",
        )
    model = start.model.with_leaves(values | {"log_process_std": noise})
    return Start(model, shot.start.states, notes)


def with_noise(start: Start, noise: NoiseRegime | float) -> Start:
    """Return the start in a regime of the process noise; a number is the s of "small"."""
    if noise == "free":
        return start
    if noise != "small" and (isinstance(noise, str) or not 0 < noise < np.inf):
        raise ValueError(
            f"noise must be 'free', 'small', 'auto' or a positive number, got {noise!r}."
        )
    rows = sum(len(path) - 1 for path in start.states)
    level = SMALL if noise == "small" else float(noise)
    log_std = jnp.full(start.model.state_dim, jnp.log(level))
    # The mode of 1/Q is at 1/s² for any shape, up to one row.
    prior = InverseGamma(0.5 * rows, 0.5 * rows * level**2)
    model = start.model.with_leaves({"log_process_std": log_std})
    return start._replace(model=model.with_priors({"log_process_std": prior}))
