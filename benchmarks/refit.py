"""Online learning compared with fitting again, on the test half of a benchmark: errors, coverage
and seconds.

    OPENBLAS_NUM_THREADS=1 python benchmarks/refit.py dryer [ballbeam ...] [--origins 100,200] [--seed 0] [--start em]

The training half is fitted once. Before each origin of the test half, the posterior processes the
rows since the last origin in four ways: `condition` (only the state), `learn`, `update` (new chains
from the old draws) and `fit` (to all rows so far). From there, 30 steps are forecast. Scores are
means over origins; seconds are the total time before all forecasts, including compilation, since a
fit to more rows is another program.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import time
import warnings
from typing import Any

import numpy as np

import gpssm

HORIZON, DRAWS = 30, 100
FIGURES = ("rmse", "crps", "coverage_90")


def follow(
    way: str, first: gpssm.Posterior, data: gpssm.Series, origins: list[int], how: dict[str, Any]
) -> None:
    """Go along the origins, and print a line."""
    train, test = data.split(len(data) // 2)
    now, known, seconds, found = first, 0, 0.0, []
    for origin in origins:
        began = time.perf_counter()
        if way == "condition":
            now = first.thinned(DRAWS).condition(test[:origin])
        elif way == "learn":
            now = now.learn(
                test[known:origin], forgetting=None if known else "auto", max_draws=DRAWS
            )
        elif way == "update":
            now = now.update(test[known:origin], progress=False)
        else:
            now = gpssm.fit(data[: len(train) + origin], **how)
        seconds, known = seconds + time.perf_counter() - began, origin
        rows = test[origin : origin + HORIZON]
        found.append(now.forecast(HORIZON, rows.u, seed=origin).score(rows))
    means = (np.mean([one[name] for one in found]) for name in FIGURES)
    print(
        f"{way:<12}" + "".join(f"{mean:>10.4f}" for mean in means) + f"{seconds:>10.0f}", flush=True
    )


def main() -> None:
    """Fit, and go along in each way."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="Learning against fitting again.")
    parser.add_argument("datasets", nargs="+")
    parser.add_argument(
        "--origins", default="100,200", help="rows of the test half to forecast from"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--start", default="em", help="of all fits; auto compares starts every time"
    )
    options = parser.parse_args()
    how = {
        "start": options.start,
        "num_chains": 2,
        "num_draws": 250,
        "seed": options.seed,
        "progress": False,
    }
    for name in options.datasets:
        data = gpssm.datasets.load(name)
        began = time.perf_counter()
        first = gpssm.fit(data[: len(data) // 2], **how)
        print(f"{name}: the first fit took {time.perf_counter() - began:.0f} s")
        print(f"{'':<12}" + "".join(f"{figure:>10}" for figure in (*FIGURES, "seconds")))
        for way in ("condition", "learn", "update", "fit"):
            follow(way, first, data, [int(row) for row in options.origins.split(",")], how)


if __name__ == "__main__":
    main()
