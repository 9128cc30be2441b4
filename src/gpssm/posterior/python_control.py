"""Models for python-control: linear ones around a point, and the nonlinear mean model."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scipy.linalg

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_installed
from gpssm.posterior.mean_model import mean_model

if TYPE_CHECKING:
    from gpssm.posterior.linearisation import Linearisation
    from gpssm.posterior.posterior import Posterior


def linear_systems(linear: "Linearisation", each: bool) -> Any:
    """See `Linearisation.to_control`."""
    check_installed("to_control", "control", "control")
    import control

    signals = {"inputs": list(linear.inputs), "outputs": list(linear.outputs)}
    dt = linear.dt or True
    delay = linear.delay or (0,) * len(linear.inputs)
    # A shift register for each input, of as many states as it has rows of delay.
    shift = [np.eye(rows, k=-1) for rows in delay]
    enter = [np.eye(rows, 1) for rows in delay]
    leave = [np.eye(rows)[-1:] if rows else np.zeros((1, 0)) for rows in delay]
    blocks = [scipy.linalg.block_diag(*parts) for parts in (shift, enter, leave)]
    late = control.ss(*blocks, np.diag(np.array(delay) == 0).astype(float), dt)
    draws = range(len(linear.A)) if each else [linear.central]
    systems = [
        control.ss(
            control.ss(linear.A[s], linear.B[s], linear.C[s], linear.D[s], dt) * late,
            name=f"draw_{s}",
            **signals,
        )
        for s in draws
    ]
    return systems if each else systems[0]


@in_double_precision
def to_control(posterior: "Posterior", num_draws: int = 20) -> Any:
    """Return the mean model as an `nlsys` of python-control.

        plant = posterior.to_control()
        control.input_output_response(plant, times, u.T, posterior.mean_state())

    Parameters
    ----------
    posterior
        The posterior.
    num_draws
        The output is the mean over at most so many draws, one per chain at least; the state holds
        those of all of them.
    """
    check_installed("to_control", "control", "control")
    import control

    model = mean_model(posterior, num_draws)
    step = in_double_precision(jax.jit(model.step))
    return control.nlsys(
        lambda t, x, u, params: np.asarray(step(x, np.atleast_1d(u))[0]),
        lambda t, x, u, params: np.asarray(step(x, np.atleast_1d(u))[1]),
        inputs=list(model.series.inputs),
        outputs=list(model.series.outputs),
        states=len(model.start),
        dt=model.series.dt or True,
        name="gpssm",
    )
