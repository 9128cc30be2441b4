"""Test set-up: one BLAS thread and float64 before JAX starts, and a compilation cache shared by the workers."""

import gc
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of a test's time is compilation, and its arrays are small.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Set here for the processes that tests start, too.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".cache" / "jax"))

import jax
import pytest

from gpssm.methods.ffvd import FFVD

CACHE = os.environ["JAX_COMPILATION_CACHE_DIR"]

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
# Comparing starts takes longer than all else in a fit: those who test it name the starts to compare.
FFVD.compares = False


@pytest.fixture(scope="module", autouse=True)
def _few_programs_in_memory():
    """Forget what a file compiled: thousands of loaded programs use up a process's memory maps, and it dies."""
    yield
    jax.clear_caches()
    gc.collect()
