"""What is set up before computing: float64, one BLAS thread, cores, and compiled programs.

XLA's LAPACK calls run many times slower when OpenBLAS spreads each small matrix over threads of its
own, and a Gaussian process in float32 loses its factorisations. Both are switched while a call
lasts, and left as the user had them.

A compiled program serves all calls with equal shapes and settings in this process, and, from a
folder on disk, in later ones. A process that meets ever new shapes lets go of its programs before
the system's limit on memory maps is reached.
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

THREADS = "GPSSM_THREADS"  # the environment variable that says how many chains may run at once

CACHE = "GPSSM_CACHE"  # the folder to keep compiled programs in, or "off"
# Short vectors compile in nine tenths of the time of long ones, and run up to 3 % longer; XLA's old
# way to write fused loops compiles in half the time of the new one, and they run no slower. From
# JAX 0.11 on there is only the new one.
OPTIONS: dict[str, Any] = {
    "xla_cpu_prefer_vector_width": 128,
    **({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}),
    # On a GPU XLA tries ways to make each product, which takes 2.5 times as long as all the rest,
    # and these are too small for it to matter.
    "xla_gpu_autotune_level": 0,
    # Products are too small to be shared out among threads: on two cores a fit takes a tenth less
    # without.
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
    """The BLAS of NumPy and SciPy, looked for once: it takes milliseconds."""
    import scipy.linalg  # noqa: F401, so that its own is among them

    return ThreadpoolController()


def check_memory(what: str, size: int) -> None:
    """Refuse what would take more bytes than the machine has: systems promise more, then kill."""
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise MemoryError(
            f"{what} would take {size // 10**9} GB, but the machine has {memory // 10**9}: use "
            "fewer"
        )


# `equinox.filter_jit` for all programs that take long to compile: arrays are arguments, everything
# else is fixed. Equinox passes the option on, but has no type for it.
_filter_jit: Callable[..., Any] = eqx.filter_jit
jit: Callable[..., Any] = functools.partial(_filter_jit, compiler_options=OPTIONS)
# The same for programs that run for a moment: they take less than half as long to compile, and run
# 1.3 to 1.5 times as long.
jit_for_once: Callable[..., Any] = functools.partial(
    _filter_jit, compiler_options=OPTIONS | {"xla_backend_optimization_level": 0}
)


@functools.cache
def keep_programs() -> None:
    """Have JAX keep compiled programs in the folder GPSSM_CACHE, or where the user keeps them.

    Programs are made for one processor: each kind has a separate folder, since home folders are
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
    # A twentieth of a second of compilation is worth a file.
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
        # Only systems that count memory maps come here. With glibc, freed memory stays with the
        # process until it is asked to return it.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


_last_look = -math.inf


def num_maps() -> int:
    """The memory maps of this process; 0 where the system does not tell."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


def max_maps() -> int:
    """How many of them a process may have."""
    limit = Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 65530


def num_threads() -> int:
    """How many chains run at once on a CPU: GPSSM_THREADS, or the cores this process may use."""
    threads = os.environ.get(THREADS, "")
    if not threads and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    if not threads:
        return os.cpu_count() or 1
    if not threads.isdigit() or int(threads) < 1:
        raise ValueError(f"{THREADS} must be a whole number of at least 1; it is {threads!r}")
    return int(threads)


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The function of every item, on all cores; for work that is XLA's, not Python's."""

    def in_float64(item: Item) -> Result:
        with jax.enable_x64(True):  # threads do not inherit it
            return function(item)

    if len(items) < 2:
        return [in_float64(item) for item in items]
    with ThreadPoolExecutor(min(len(items), num_threads())) as pool:
        return list(pool.map(in_float64, items))


def on_cpu() -> bool:
    """Whether programs run on a CPU, where loops are cheap."""
    device = jax.config.values["jax_default_device"]
    return (
        jax.default_backend() if device is None else getattr(device, "platform", device)
    ) == "cpu"


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Run on the CPU: one long loop of small products takes a GPU a hundred times as long."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


@jax.custom_batching.custom_vmap
def in_step(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """A flag that all chains raise at the same iteration.

    Chains run at once would otherwise go both ways of a condition on it at every iteration, and
    choose afterwards.
    """
    return flag


@in_step.def_vmap
def _any_of_them(
    axis_size: int, in_batched: list[bool], flag: Bool[Array, " chains"]
) -> tuple[Bool[Array, ""], bool]:
    return jnp.any(flag), False
