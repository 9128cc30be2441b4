"""Seconds of a default fit: to the first nonlinear answer and to the last, cold and warm.

    OPENBLAS_NUM_THREADS=1 GPSSM_DATA=... python benchmarks/default.py [exchanger ...] \
        [--against FOLDER]

Every fit is a process of its own. The first one of a checkout finds no compiled programs (cold),
the second one finds all of them on disk (warm). `--against` names another checkout of this
repository, whose fits run in between, so that the ratio of CPU seconds is taken in one run.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]


def timed_fit(data: Path) -> dict[str, Any]:
    """Seconds of the default fit to a saved record, in this process."""
    import gpssm

    warnings.simplefilter("ignore")
    arrays = np.load(data)
    series = gpssm.Series(arrays["y"], arrays["u"] if arrays["u"].size else None)
    answers: list[float] = []
    options: dict[str, Any] = {"progress": False}
    start = time.perf_counter()
    cpu = time.process_time()
    if hasattr(gpssm, "linear_models"):  # checkouts without the ladder have one answer only

        def note(posterior: object) -> None:
            answers.append(time.perf_counter() - start)

        options["callback"] = note
    posterior = gpssm.fit(series, **options)
    answers.append(time.perf_counter() - start)
    seconds = time.process_time() - cpu
    forecast_start = time.perf_counter()
    posterior.forecast(30, None if series.u is None else series.u[:30])
    return {
        "answers": answers,
        "cpu": seconds,
        "forecast": time.perf_counter() - forecast_start,
    }


def fit_apart(tree: Path, data: Path, cache: Path) -> dict[str, Any]:
    """Seconds of the default fit in a process that imports the library from a checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "GPSSM_CACHE": str(cache),
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--child", str(data)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Print one line per data set, checkout and state of the cache."""
    parser = argparse.ArgumentParser(description="Seconds of a default fit.")
    parser.add_argument("datasets", nargs="*", default=["exchanger"])
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(timed_fit(arguments.child)))
        return
    from gpssm.bench.problems import load_problem

    trees = [HERE] + ([arguments.against.resolve()] if arguments.against else [])
    for name in arguments.datasets:
        train = load_problem(name).train
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "train.npz"
            inputs = np.zeros((0, 0)) if train.u is None else train.u
            np.savez(data, y=train.y, u=inputs)
            cpu = {}
            for state in ("cold", "warm"):
                for tree in trees:
                    seconds = fit_apart(tree, data, Path(folder) / f"cache-{tree.name}")
                    cpu[tree] = seconds["cpu"]
                    answers = " ".join(f"{answer:.1f}" for answer in seconds["answers"])
                    print(
                        f"{name}  {tree.name}  {state}: CPU {seconds['cpu']:.1f} s, wall clock "
                        f"of the answers {answers} s, forecast {seconds['forecast']:.1f} s",
                        flush=True,
                    )
                if len(trees) == 2:
                    print(f"{name}  {state}: CPU ratio {cpu[trees[0]] / cpu[trees[1]]:.2f}")


if __name__ == "__main__":
    main()
