"""The runtime environment: float64, BLAS threads, cores, and compiled programs.

LAPACK calls of XLA are many times slower if OpenBLAS uses several threads for each small matrix,
and factorisations of Gaussian processes fail in float32. Both settings are changed during a call
and restored afterwards.

Compiled programs are reused for calls with equal shapes and settings in this process and, from a
folder on disk, in later ones. A process with many different shapes releases its programs before it
reaches the system's limit on memory maps.
"""

import contextlib
import ctypes
import functools
import gc
import hashlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import platformdirs
from jaxtyping import Array, Bool
from threadpoolctl import ThreadpoolController

from gpssm.core.forks import check_threads

THREADS = "GPSSM_THREADS"  # environment variable for the number of chains that may run in parallel

CACHE = "GPSSM_CACHE"  # environment variable for the folder of compiled programs, or "off"
# Short vectors take 10 % less time to compile than long ones, and up to 3 % longer to run. XLA's
# old emitters of fused loops compile in half the time of the new ones, with equal run times. From
# JAX 0.11 on, only the new ones exist.
OPTIONS: dict[str, Any] = {
    "xla_cpu_prefer_vector_width": 128,
    **({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}),
    # On a GPU, autotuning of products takes 2.5 times as long as everything else, and these
    # products are too small for it to matter.
    "xla_gpu_autotune_level": 0,
    # Products are too small for several threads: with one, a fit on two cores takes a tenth less.
    "xla_cpu_multi_thread_eigen": False,
}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Item = TypeVar("Item")


def in_double_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run a function in float64 and with one BLAS thread, whatever the global settings are."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        check_threads()
        keep_programs()
        release_programs()
        with jax.enable_x64(True), _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return wrapped


@functools.cache
def _libraries() -> ThreadpoolController:
    """Return the BLAS libraries of NumPy and SciPy, searched once as this takes milliseconds."""
    import scipy.linalg  # noqa: F401, loads SciPy's BLAS

    return ThreadpoolController()


def check_memory(what: str, size: int) -> None:
    """Raise if a computation needs more bytes than the machine has, which would kill the
    process.
    """
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise MemoryError(
            f"{what} would take {size // 10**9} GB, but the machine has {memory // 10**9}: use "
            "fewer"
        )


# `equinox.filter_jit` for all programs that take long to compile: arrays are arguments, everything
# else is static. Equinox passes the option on, but its type does not include it.
_filter_jit: Callable[..., Any] = eqx.filter_jit
jit: Callable[..., Any] = functools.partial(_filter_jit, compiler_options=OPTIONS)
# The same for programs with a short run time: they take less than half as long to compile, and 1.3
# to 1.5 times as long to run.
jit_for_once: Callable[..., Any] = functools.partial(
    _filter_jit, compiler_options=OPTIONS | {"xla_backend_optimization_level": 0}
)


@functools.cache
def keep_programs() -> None:
    """Make JAX cache compiled programs in the folder GPSSM_CACHE, or in the user's cache.

    Programs are specific to a processor: each kind has a separate folder, since home folders may be
    shared.
    """
    cache = os.environ.get(CACHE) or platformdirs.user_cache_dir("gpssm")
    if cache == "off" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else []
    flags = [line for line in lines if line.startswith("flags")]
    features = " ".join([platform.machine(), platform.processor(), *flags[:1]])
    kind = hashlib.sha256(features.encode()).hexdigest()[:8]
    folder = Path(cache) / f"jax-{jax.__version__}-{kind}"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Programs that compile in less than a twentieth of a second are not worth a file.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def release_programs(share: float = 0.25, interval: float = 5.0) -> None:
    """Let go of all programs if they take up much of the memory maps that the system grants.

    Each program takes hundreds of them, and a process that runs out of them dies.

    Parameters
    ----------
    share
        Share of the memory maps that may be in use. Of the usual 65530 a quarter goes with some two
        gigabytes of programs.
    interval
        Seconds between two looks at them.
    """
    global _last_look
    seconds = time.monotonic()
    if seconds < _last_look + interval:
        return
    _last_look = seconds
    if num_maps() > share * max_maps():
        jax.clear_caches()
        gc.collect()
        # Only systems that count memory maps reach this line. With glibc, freed memory stays with
        # the process until it is trimmed.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


_last_look = -math.inf


def num_maps() -> int:
    """Return the number of memory maps of this process; 0 if unknown."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


def max_maps() -> int:
    """Return the maximum number of memory maps of a process."""
    limit = Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 65530


def num_threads() -> int:
    """Return how many chains run in parallel on a CPU: GPSSM_THREADS, or the available cores."""
    threads = os.environ.get(THREADS, "")
    if not threads and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    if not threads:
        return os.cpu_count() or 1
    if not threads.isdigit() or int(threads) < 1:
        raise ValueError(f"{THREADS} must be a whole number of at least 1; it is {threads!r}")
    return int(threads)


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the function of every item, computed in threads, for work that is done by XLA."""

    def in_float64(item: Item) -> Result:
        with jax.enable_x64(True):  # threads do not inherit it
            return function(item)

    if len(items) < 2:
        return [in_float64(item) for item in items]
    with ThreadPoolExecutor(min(len(items), num_threads())) as pool:
        return list(pool.map(in_float64, items))


def on_cpu() -> bool:
    """Return whether programs run on a CPU, where loops are cheap."""
    device = jax.config.values["jax_default_device"]
    return (
        jax.default_backend() if device is None else getattr(device, "platform", device)
    ) == "cpu"


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Run on the CPU: a long loop of small products takes a hundred times as long on a GPU."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


@jax.custom_batching.custom_vmap
def in_step(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """Return a flag that is the same in all chains of a batch.

    Otherwise, batched chains would evaluate both branches of a condition at every iteration.
    """
    return flag


@in_step.def_vmap
def _any_of_them(
    axis_size: int, in_batched: list[bool], flag: Bool[Array, " chains"]
) -> tuple[Bool[Array, ""], bool]:
    return jnp.any(flag), False
