"""Compilation of a fit: seconds and programs of a first fit, and of a second one in the same
process.

    OPENBLAS_NUM_THREADS=1 GPSSM_DATA=... taskset -c 0 python benchmarks/compile.py [--set furnace] [--start em]

Programs are not cached on disk here (GPSSM_CACHE=off). On one core, seconds of compilation are CPU
seconds.
"""

import os

os.environ["GPSSM_CACHE"] = "off"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import time
import warnings

import jax

import gpssm
from gpssm.core.runtime import num_maps

STAGES = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}


def main() -> None:
    """Print a line for each of two fits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", default="furnace")
    parser.add_argument("--start", default="auto")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of convergence: few draws are enough here
    train, _ = gpssm.datasets.load(arguments.set).split(0.5)
    fit = gpssm.fit  # imported now: that is not compilation
    seen: dict[str, list[float]] = {}
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: seen.setdefault(event.rsplit("/", 1)[-1], []).append(seconds)
    )
    for seed in (0, 1):
        seen.clear()
        began = time.process_time()
        fit(train, start=arguments.start, num_chains=2, num_draws=50, progress=False, seed=seed)
        stages = "  ".join(
            f"{name} {sum(seen.get(event, [])):.1f}" for event, name in STAGES.items()
        )
        programs = len(seen.get("backend_compile_duration", []))
        print(
            f"fit {seed + 1}: CPU {time.process_time() - began:.1f} s, of these {stages}; "
            f"{programs} programs, {num_maps()} memory maps",
            flush=True,
        )


if __name__ == "__main__":
    main()
