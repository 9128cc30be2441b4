"""Searches for the parameters of a linear model: L-BFGS, and excerpts of long records.

What a linear model has of a record is known from some thousands of its rows; which ones is not,
since a machine may stand still for a long time. So the excerpts are stretches that are spread
evenly over it, and what is found from them is where a short search over all rows begins.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

from gpssm.data.series import Series, as_list

ROWS, STRETCH, LEAST = 4096, 1024, 64  # of all excerpts together, and of each at most and at least

Tree = TypeVar("Tree")


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
            return 1e300, np.zeros_like(vector)  # the line search turns back
        return float(value), np.asarray(gradient, float)

    options = {"maxiter": num_steps} | options
    result = scipy.optimize.minimize(
        evaluate, np.asarray(flat), jac=True, method="L-BFGS-B", options=options
    )
    return float(result.fun), unravel(jnp.asarray(result.x, flat.dtype))


class Stage(NamedTuple):
    """Series to search through, a number of steps, and which series begin where a record does."""

    series: list[Series]
    steps: int
    first: tuple[int, ...]


def stages(series: Series | Sequence[Series], steps: int) -> list[Stage]:
    """What to search through: excerpts first, where all rows are many, and then all of them.

    The search through all rows has as many steps as cost what those through the excerpts did.
    """
    whole = as_list(series)
    total = sum(len(item) for item in whole)
    if total <= ROWS:
        return [Stage(whole, steps, tuple(range(len(whole))))]
    parts, first = [], []
    for item in whole:
        first.append(len(parts))
        share = ROWS * len(item) // total
        length = min(max(min(share, STRETCH), LEAST), len(item))
        begins = np.linspace(0, len(item) - length, max(1, share // length)).astype(int)
        parts += [item[begin : begin + length] for begin in begins]
    return [
        Stage(parts, steps, tuple(first)),
        Stage(whole, max(1, steps * ROWS // total), tuple(range(len(whole)))),
    ]
