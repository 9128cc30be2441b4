"""The residual of f given the weights: drawn independently at each step, or as one function per
path.

    python benchmarks/residual.py                          # simulated series
    python benchmarks/residual.py --datasets dryer,actuator

Each series is fitted by a short chain of `ffvd` from the linear fit, then forecast from origins along the rows that
follow, both ways from the same posterior and seed. The table has the coverage of 90 % intervals, their mean width and
the CRPS, both in standard deviations of the training outputs, by step ahead: a mean over origins and series.
"""

import argparse
import os
import time
import warnings
from collections.abc import Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import gpssm
from gpssm.core import metrics
from gpssm.posterior.conditioning import condition_at

STEPS = (1, 10, 30, 100, 300)
SYSTEMS = ("duffing", "sparse_gp")
FIT = {
    "start": "em",
    "noise": "free",
    "likelihood": "gaussian",
    "num_chains": 2,
    "num_warmup": 300,
    "num_draws": 100,
}


def simulated(
    names: list[str], seeds: int, rows: int, test: int
) -> Iterator[tuple[str, gpssm.Series, gpssm.Series]]:
    """Training and test rows of simulated series."""
    for name in names:
        for seed in range(seeds):
            series = gpssm.datasets.simulate(name, num_steps=rows + test, seed=seed).series
            yield f"{name} {seed}", *series.split(rows)


def benchmarks(names: list[str]) -> Iterator[tuple[str, gpssm.Series, gpssm.Series]]:
    """The halves of benchmark sets."""
    for name in names:
        yield name, *gpssm.datasets.load(name).split(0.5)


def judge(
    posterior: gpssm.Posterior, test: gpssm.Series, spacing: int, num_paths: int
) -> dict[str, dict[int, list]]:
    """Coverage, width and CRPS by step for both ways, and the seconds of a forecast."""
    spread = np.nanstd(posterior.dataset.experiments[0].y, axis=0)
    horizon = min(max(STEPS), len(test))
    origins = range(0, max(len(test) - min(30, horizon), 1), spacing)
    found = {name: {step: [] for step in (*STEPS, 0)} for name in ("step", "path")}
    for origin, now in zip(origins, condition_at(posterior, test, origins), strict=True):
        rows = test[origin : origin + horizon]
        u = np.pad(rows.u, ((0, horizon - len(rows)), (0, 0)), mode="edge")
        for name, figures in found.items():
            began = time.perf_counter()
            forecast = now.forecast(
                horizon, u, num_paths=num_paths, seed=origin, one_function=name == "path"
            )
            figures[0].append(time.perf_counter() - began)
            for step in (one for one in STEPS if one <= len(rows)):
                paths, actual = (
                    forecast.paths[:, step - 1 : step] / spread,
                    rows.y[step - 1 : step] / spread,
                )
                low, high = metrics.central_interval(paths, 0.9)
                inside = np.mean((low <= actual) & (actual <= high))
                figures[step].append((inside, np.mean(high - low), metrics.crps(paths, actual)))
    return found


def main() -> None:
    """Fit, forecast, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", help="benchmark sets in place of simulated series")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--test", type=int, default=600)
    parser.add_argument("--inducing", type=int, default=20)
    parser.add_argument("--states", type=int, default=2)
    parser.add_argument("--spacing", type=int, default=25)
    parser.add_argument("--paths", type=int, default=300)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.datasets:
        series = benchmarks(given.datasets.split(","))
    else:
        series = simulated(given.systems.split(","), given.seeds, given.rows, given.test)
    groups: dict[str, list] = {}
    for name, train, test in series:
        posterior = gpssm.fit(
            train, state_dim=given.states, num_inducing=given.inducing, progress=False, **FIT
        )
        novelty = posterior.forecast(
            30, np.repeat(train.u[-1:], 30, axis=0)
        ).diagnostics.novelty.mean()
        groups.setdefault(name.split()[0], []).append(
            judge(posterior, test, given.spacing, given.paths)
        )
        print(f"# {name}: novelty {novelty:.3g} over 30 steps", flush=True)
    print(
        f"{'series':<14}{'residual':<9}"
        + "".join(f"{f'step {step}':>22}" for step in STEPS)
        + f"{'ms':>8}"
    )
    for group, several in groups.items():
        for way in ("step", "path"):
            cells = []
            for step in STEPS:
                values = np.array([row for one in several for row in one[way][step]])
                cells.append(
                    "-" if not len(values) else "{:.3f} {:.3f} {:.4f}".format(*values.mean(0))
                )
            seconds = np.median([value for one in several for value in one[way][0]])
            print(
                f"{group:<14}{way:<9}"
                + "".join(f"{cell:>22}" for cell in cells)
                + f"{1000 * seconds:>8.0f}"
            )


if __name__ == "__main__":
    main()
