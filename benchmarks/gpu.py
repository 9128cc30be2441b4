"""Seconds of a fit on the device that JAX finds: a short series with few and many chains, and a long one.

    GPSSM_DATA=... python benchmarks/gpu.py [--chains 4 64] [--rows 50000]

Furnace is fitted twice with defaults from the start `em`, so that the second fit shows the time
without compilation. `--rows` adds a fit to this number of rows of `wiener-hammerstein`, with six
states, 100 inducing points, four chains and all defaults, whose simulation is scored on 1000 rows
of its test record.
"""

import argparse
import resource
import time
import warnings
from typing import Any

import jax
import numpy as np

import gpssm
from gpssm.data.series import Series


def timed(train: Series, **settings: Any) -> gpssm.Posterior:
    """A fit, and a line with its seconds and the memory it took."""
    began = time.perf_counter()
    posterior = gpssm.fit(train, start="em", progress=False, **settings)
    parts = posterior.seconds
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    total = time.perf_counter() - began
    seconds = f"all {total:.1f} s: setup {parts.setup:.1f} compile {parts.compile:.1f} run {parts.run:.1f}"
    where = f"{jax.default_backend()}, {len(train)} rows, {posterior.num_chains} chains"
    print(f"{where}: {seconds}; device {peak:.1f} GB, host {host:.1f} GB", flush=True)
    return posterior


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chains", type=int, nargs="*", default=[4, 64])
    parser.add_argument("--rows", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of convergence, which is not what is measured
    train, test = gpssm.datasets.load("furnace").split(0.5)
    for chains in arguments.chains:
        for seed in (0, 1):
            posterior = timed(train, num_chains=chains, seed=seed)
        for _ in range(2):
            began = time.perf_counter()
            posterior.forecast(len(test), test.u)
            print(f"forecast of {len(test)} rows: {time.perf_counter() - began:.2f} s", flush=True)
    if arguments.rows:
        train, test = gpssm.datasets.load_records("wiener-hammerstein")
        posterior = timed(train[: arguments.rows], state_dim=6, num_inducing=100)
        known = test.window
        free = posterior.simulate(test.u[known : known + 1000], warmup=test[:known])
        error = float(np.sqrt(np.mean((free.mean - test.y[known : known + 1000]) ** 2)))
        print(f"simulation of 1000 rows of the test record: RMSE {1000 * error:.2f} mV")


if __name__ == "__main__":
    main()
