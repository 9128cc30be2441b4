"""Seconds of a default fit: to the first nonlinear answer and to the last, cold and warm.

    GPSSM_DATA=... python benchmarks/default.py [exchanger ...] [--against FOLDER]

Every fit is a process of its own. The first one of a checkout finds no compiled programs (cold),
the second one finds all of them on disk (warm). `--against` names another checkout of this
repository, whose fits run in between, so that the ratio of CPU seconds is taken in one run.
"""

import os

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
from common import Timer, command_line

HERE = Path(__file__).resolve().parents[1]


def timed_fit(data: Path) -> dict[str, Any]:
    """Return the seconds of the default fit to a saved record, in this process."""
    import gpssm

    warnings.simplefilter("ignore")
    arrays = np.load(data)
    series = gpssm.Series(arrays["y"], arrays["u"] if arrays["u"].size else None)
    answers: list[float] = []
    options: dict[str, Any] = {"progress": False}
    start = time.perf_counter()
    if hasattr(gpssm, "linear_models"):  # checkouts without the ladder have one answer only

        def note(posterior: object) -> None:
            answers.append(time.perf_counter() - start)

        options["callback"] = note
    with Timer() as fit:
        posterior = gpssm.fit(series, **options)
    with Timer() as forecast:
        posterior.forecast(30, None if series.u is None else series.u[:30])
    return {"answers": [*answers, fit.wall], "cpu": fit.cpu, "forecast": forecast.wall}


def fit_in_process(checkout: Path, data: Path, cache: Path) -> dict[str, Any]:
    """Return the seconds of a fit in a process that imports the library from a checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "src"),
        "GPSSM_CACHE": str(cache),
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--child", str(data)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Print one line per data set, checkout and state of the cache."""
    parser = command_line(__doc__)
    parser.add_argument("datasets", nargs="*", default=["exchanger"])
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(timed_fit(options.child)))
        return
    from gpssm.bench.problems import load_problem

    checkouts = [HERE]
    if options.against:
        checkouts.append(options.against.resolve())
    for name in options.datasets:
        train = load_problem(name).train
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "train.npz"
            inputs = np.zeros((0, 0)) if train.u is None else train.u
            np.savez(data, y=train.y, u=inputs)
            for state in ("cold", "warm"):
                cpu = []
                for checkout in checkouts:
                    cache = Path(folder) / f"cache-{checkout.name}"
                    seconds = fit_in_process(checkout, data, cache)
                    cpu.append(seconds["cpu"])
                    answers = " ".join(f"{answer:.1f}" for answer in seconds["answers"])
                    print(
                        f"{name}  {checkout.name}  {state}: CPU {seconds['cpu']:.1f} s, wall clock "
                        f"of the answers {answers} s, forecast {seconds['forecast']:.1f} s",
                        flush=True,
                    )
                if len(cpu) == 2:
                    print(f"{name}  {state}: CPU ratio {cpu[0] / cpu[1]:.2f}")


if __name__ == "__main__":
    main()
