"""What must be set up before numbers are crunched: float64, one BLAS thread, and as many cores as one may have.

XLA's LAPACK calls run many times slower when OpenBLAS spreads each small matrix over threads of its own, and a Gaussian
process in float32 loses its factorisations. Both are switched while a call lasts, and left as the user had them.
"""

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from threadpoolctl import threadpool_limits

THREADS = "GPSSM_THREADS"  # the environment variable that says how many chains may run at once

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_double_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run a function in float64 and with one BLAS thread, whatever the global settings are."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with jax.enable_x64(True), threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return wrapped


def check_memory(what: str, size: int) -> None:
    """Refuse to make what would take more bytes than the machine has: systems promise more, and then kill."""
    if hasattr(os, "sysconf") and size > (there := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise MemoryError(f"{what} would take {size // 10**9} GB, and the machine has {there // 10**9}: ask for fewer")


def num_threads() -> int:
    """How many chains run at once on a CPU: GPSSM_THREADS if it is set, or else the cores this process may use."""
    given = os.environ.get(THREADS, "")
    if not given:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"{THREADS} must be a whole number of at least 1; it is {given!r}")
    return int(given)
