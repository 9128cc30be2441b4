"""Mixing of chains: R-hat and effective draws of all identified quantities, and effective draws per
second.

    OPENBLAS_NUM_THREADS=1 GPSSM_DATA=... taskset -c 0 python benchmarks/mixing.py [--sets furnace,dryer] [--start em]
    ... benchmarks/mixing.py --sets furnace,actuator --nuts

Fits have default settings and use the training halves. The table shows the worst of each group;
noise levels of single states depend on the coordinates of the states. `--nuts` adds `ffvd-nuts`,
NUTS on plain states, with fewer draws, and the ratio of effective draws per second. On one core
these are CPU seconds.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import warnings
from typing import Any

import gpssm


def measure(name: str, **settings: Any) -> dict[str, float]:
    """Effective draws for each second, by group, after a line of what they are made of."""
    train, _ = gpssm.datasets.load(name).split(0.5)
    found = gpssm.fit(train, seed=0, progress=False, **settings)
    rows, seconds = [row for row in found.diagnostics().rows if row.number], found.seconds.run
    print(
        f"{name}, {found.method}: {found.num_chains} x {found.num_draws} draws, {seconds:.0f} s of running"
    )
    for row in rows:
        rate = row.ess_bulk / seconds
        print(
            f"    {row.name:40}R-hat {row.rhat:6.3f}  effective {row.ess_bulk:6.0f}  a second {rate:8.3f}"
        )
    return {row.name: row.ess_bulk / seconds for row in rows}


def main() -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default="actuator,ballbeam,drive,dryer,flutter,furnace")
    parser.add_argument("--start", default="auto")
    parser.add_argument("--nuts", action="store_true")
    parser.add_argument("--draws", type=int, default=100, help="of each of the two chains of NUTS")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of convergence, which is what is measured
    for name in arguments.sets.split(","):
        ours = measure(name, method="ffvd", start=arguments.start)
        if arguments.nuts:
            nuts = gpssm.methods.FFVDNUTS(num_warmup=2 * arguments.draws, num_draws=arguments.draws)
            theirs = measure(name, method=nuts, start=arguments.start, num_chains=2)
            ratios = ", ".join(
                f"{group} {ours[group] / rate:.1f}"
                for group, rate in theirs.items()
                if group in ours
            )
            print(f"    times as many a second: {ratios}", flush=True)


if __name__ == "__main__":
    main()
