"""L-BFGS over trees of parameters, with an objective that is compiled once."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

Tree = TypeVar("Tree")
FAR = 1e300  # the objective where it is not finite: the line search turns back


def minimise(
    objective: Callable[..., Any], start: Tree, *arguments: Any, num_steps: int, **options: Any
) -> tuple[float, Tree]:
    """The least value that L-BFGS finds from a start on, and where it is.

    Parameters
    ----------
    objective
        A compiled function of the flattened parameters, of a tree of their shapes and of the
        arguments, that returns its value and its gradient.
    start
        The parameters to start from.
    *arguments
        Passed on to the objective.
    num_steps
        Iterations, at most.
    **options
        Those of scipy's L-BFGS-B.
    """
    flat, unravel = ravel_pytree(start)

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(jnp.asarray(vector, flat.dtype), start, *arguments)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return FAR, np.zeros_like(vector)
        return float(value), np.asarray(gradient, float)

    options = {"maxiter": num_steps} | options
    result = scipy.optimize.minimize(
        evaluate, np.asarray(flat), jac=True, method="L-BFGS-B", options=options
    )
    return float(result.fun), unravel(jnp.asarray(result.x, flat.dtype))
