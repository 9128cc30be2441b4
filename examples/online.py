"""Online use: a fitted model follows a running process and forecasts after each row.

The cost per row is constant: the function and the parameters stay as they were learned, and a
filter tracks the state.

    python examples/online.py [--quick]
"""

import argparse
import time

import numpy as np

import gpssm

HORIZON = 10
QUICK = {"num_inducing": 8, "start": "em", "num_chains": 2, "num_warmup": 20, "num_draws": 10}


def follow(posterior: gpssm.Posterior, rows: gpssm.Series) -> gpssm.Posterior:
    """Forecast the next rows, condition on one row, repeat; print speed and coverage."""
    covered = []
    seconds = []
    for t in range(len(rows) - HORIZON):
        forecast = posterior.forecast(HORIZON, rows.u[t : t + HORIZON], num_paths=200)
        low, high = forecast.interval(0.9)
        covered.append((low <= rows.y[t : t + HORIZON]) & (rows.y[t : t + HORIZON] <= high))
        start = time.perf_counter()
        posterior = posterior.condition(rows[t : t + 1])
        seconds.append(time.perf_counter() - start)
    print(f"{len(seconds)} rows: {1e3 * np.median(seconds):.1f} ms per row")
    print(f"90 % intervals of the next {HORIZON} rows cover {np.mean(covered):.0%}")
    return posterior


def main() -> None:
    """Fit the first rows and follow the rest."""
    parser = argparse.ArgumentParser(description="Condition on rows as they arrive.")
    parser.add_argument("--quick", action="store_true", help="few rows and draws, for a smoke test")
    options = parser.parse_args()
    series = gpssm.datasets.simulate(
        "duffing", num_steps=120 if options.quick else 400, seed=1
    ).series
    train, rest = series.split(len(series) - (HORIZON + 5 if options.quick else 150))
    posterior = gpssm.fit(
        train, method="ffvd", state_dim=2, progress=False, **(QUICK if options.quick else {})
    )
    latest = follow(posterior.thinned(100), rest)
    print(latest.forecast(HORIZON, np.zeros((HORIZON, 1))))


if __name__ == "__main__":
    main()
