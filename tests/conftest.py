"""Test set-up: one BLAS thread and float64 before JAX starts, and a compilation cache shared by the workers."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of a test's time is compilation, and its arrays are small. The compiler's checks of its own passes, and the lines
# of Python that it notes beside each operation, take a tenth of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    " --xla_disable_hlo_passes=hlo-verifier"
    # Newer ones end the process over a flag that they do not know.
    + (" --xla_cpu_use_fusion_emitters=false" if version("jax").startswith("0.10.") else ""),
)
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Set here, not by `jax.config`, for the processes that tests start, too. Small programs, too: to load one takes a sixth
# of the time to compile it, and hundreds are the same from file to file.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".cache" / "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import pytest

from gpssm.core.runtime import max_maps, num_maps

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Tracing makes very many objects that live for a moment: to look through all that was imported each time is in vain.
gc.freeze()
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def _few_programs_in_memory():
    """Forget what files compiled: thousands of loaded programs use up a process's memory maps, and it dies.

    Only once they are many, since files share programs, and before they take gigabytes: with a quarter it was four.
    """
    yield
    if num_maps() > max_maps() / 8:
        jax.clear_caches()
        gc.collect()
