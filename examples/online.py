"""Online use: a model learned once follows a running process, row by row, and forecasts after each.

Each row costs the same however many came before: functions and parameters stay as they were learned, a particle filter
carries the state. Now and then `update` learns from the rows gathered since.

    python examples/online.py [--quick]
"""

import argparse
import time

import numpy as np

import gpssm

HORIZON = 10
QUICK = {"num_inducing": 8, "start": "em", "num_chains": 2, "num_warmup": 20, "num_draws": 10}


def follow(posterior: gpssm.Posterior, rows: gpssm.Series) -> gpssm.Posterior:
    """Take in one row at a time, after forecasting it and what comes next; print how it went."""
    inside, seconds = [], []
    for t in range(len(rows) - HORIZON):
        forecast = posterior.forecast(HORIZON, rows.u[t : t + HORIZON], num_paths=200)
        low, high = forecast.interval(0.9)
        inside.append((low <= rows.y[t : t + HORIZON]) & (rows.y[t : t + HORIZON] <= high))
        began = time.perf_counter()
        posterior = posterior.condition(rows[t : t + 1])
        seconds.append(time.perf_counter() - began)
    print(f"{len(seconds)} rows: {1e3 * np.median(seconds):.1f} ms a row to take in")
    print(f"90 % intervals of the next {HORIZON} rows held {np.mean(inside):.0%}")
    return posterior


def main() -> None:
    """Learn from the first rows, follow the rest."""
    parser = argparse.ArgumentParser(description="Condition on rows as they arrive.")
    parser.add_argument(
        "--quick", action="store_true", help="few rows and draws, to see that all runs"
    )
    options = parser.parse_args()
    series = gpssm.datasets.simulate(
        "duffing", num_steps=120 if options.quick else 400, seed=1
    ).series
    train, rest = series.split(len(series) - (HORIZON + 5 if options.quick else 150))
    posterior = gpssm.fit(train, state_dim=2, progress=False, **(QUICK if options.quick else {}))
    now = follow(posterior.thinned(100), rest)
    print(now.forecast(HORIZON, np.zeros((HORIZON, 1))))


if __name__ == "__main__":
    main()
