"""What must be set up before numbers are crunched: float64, and one BLAS thread.

XLA's LAPACK calls run many times slower when OpenBLAS spreads each small matrix over threads of its own, and a Gaussian
process in float32 loses its factorisations. Both are switched while a call lasts, and left as the user had them.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from threadpoolctl import threadpool_limits

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def numerical(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run a function in float64 and with one BLAS thread, whatever the global settings are."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with jax.enable_x64(True), threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return wrapped
