"""Is it worth sampling the kernel? Forecasts, mixing and time of hyper="optimise" and "sample" on
short series.

    OPENBLAS_NUM_THREADS=1 python benchmarks/hyper.py [--systems duffing] [--rows 30 60 120] [--seeds 0 1 2]
        [--rates .03 .1]

Two states, 20 inducing points, start="em", two chains; forecasts of 30 steps from rows that follow the training rows,
scores in units of the outputs' standard deviation. "optimise" is run at each learning rate, "sample" at the last one:
does the optimisation converge, or do the steps run out?
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import dataclasses
import itertools

import numpy as np

import gpssm
from gpssm.data.datasets import simulate
from gpssm.methods import METHODS
from gpssm.posterior.draws import model_of

REST, STEP = 90, 20  # rows that follow, and rows from one origin to the next


def row(system: str, rows: int, seed: int, hyper: str, rate: float) -> str:
    """One fit as a row of the table."""
    whole = simulate(system, num_steps=rows + REST, seed=seed).series
    train, rest = whole.split(rows)
    method = dataclasses.replace(METHODS["ffvd"], learning_rate=rate)
    settings = {
        "state_dim": 2,
        "num_inducing": 20,
        "start": "em",
        "num_chains": 2,
        "seed": seed,
        "progress": False,
    }
    posterior = gpssm.fit(train, method=method, hyper=hyper, **settings)
    tested = gpssm.backtest(
        posterior, rest, step=STEP, max_draws=100, num_paths=400, progress=False
    ).scores
    found = posterior.diagnostics()
    groups = [found[name] for name in ("log target", "smoothed outputs", "30-step forecast mean")]
    # What is optimised is the same in all draws.
    drawn = posterior.draws.leaves.get("kernel.log_variance")
    variances = (
        model_of(posterior, 0, 0).kernel.log_variance
        if drawn is None
        else np.mean(drawn, axis=(0, 1))
    )
    figures = [
        f"{tested['crps'] / np.std(whole.y):.3f} | {tested['coverage_90']:.2f}",
        f"{max(one.rhat for one in groups):.2f} / {min(one.ess_bulk for one in groups):.0f}",
        f"{posterior.seconds.run:.1f} | " + " ".join(f"{value:.1f}" for value in variances),
    ]
    return f"| {system} | {rows} | {seed} | {hyper}, {rate:g} | " + " | ".join(figures) + " |"


def main() -> None:
    """The table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", default=["duffing", "linear_gaussian"])
    parser.add_argument("--rows", type=int, nargs="+", default=[30, 60, 120])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1])
    options = parser.parse_args()
    print(
        "| system | rows | seed | hyper | CRPS | coverage | worst R-hat / effective draws | run, s | log variances |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    ways = [*(("optimise", rate) for rate in options.rates), ("sample", options.rates[-1])]
    for system, rows, seed in itertools.product(options.systems, options.rows, options.seeds):
        for hyper, rate in ways:
            print(row(system, rows, seed, hyper, rate), flush=True)


if __name__ == "__main__":
    main()
