"""Learn from a stream: read rows as they arrive, learn from them, save, and detect changes.

The rows are lines `u,y` of a file that may still be growing. The posterior learns from each of them
(`learn`) and is saved atomically, so a process that is killed at any moment can continue and will
reach the same result. Each output is predicted before it is used. The standardised errors enter
Page's test (CUSUM) for errors twice as large, which raises at most one false alarm in e^ALARM rows.
The state of that test is stored in a second file next to the posterior.

    python examples/stream.py [--rows rows.csv] [--state state.nc] [--quick]

Without a file of rows it simulates a tank whose outlet clogs half-way through.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpssm

ALARM = 7.0
PATIENCE = 2.0  # seconds without a new line after which the stream has ended
END = "end"  # a line that ends the stream at once
TRAINING = 150  # rows of the first fit
FORGETTING = 0.98  # factor per row


def plant(length: int, changes: int, seed: int = 0) -> gpssm.Series:
    """Simulate the level of a tank whose outlet c shrinks at row `changes`.

    h_{t+1} = h_t + .2 (u_t − c √h_t) + noise
    """
    rng = np.random.default_rng(seed)
    u = 1.0 + 0.5 * np.repeat(rng.random(length // 10 + 1), 10)[:length]
    level = 1.5
    levels = []
    for row, flow in enumerate(u):
        outlet = 1.0 if row < changes else 0.6
        level = max(level + 0.2 * (flow - outlet * math.sqrt(level)) + 0.01 * rng.normal(), 0.01)
        levels.append(level + 0.01 * rng.normal())
    return gpssm.Series(np.array(levels), u, outputs="level", inputs="pump")


def lines(path: Path, first: int) -> Iterator[tuple[float, float]]:
    """Yield the rows of a growing file from number `first` on, as soon as a line is complete."""
    with path.open() as file:
        number = 0
        part = ""
        waited = 0.0
        while waited < PATIENCE:
            part += file.readline()
            if not part.endswith("\n"):
                time.sleep(0.05)
                waited += 0.05
                continue
            line = part.strip()
            part = ""
            waited = 0.0
            if line == END:
                return
            number += 1
            if number > first:
                u, y = line.split(",")
                yield float(u), float(y or "nan")


def test_after(rows: int, state: Path) -> dict[str, Any]:
    """Return the score of the change test after `rows` rows, and the rows of all alarms."""
    file = state.with_suffix(".json")
    tests = json.loads(file.read_text()) if file.exists() else {}
    return tests.get(str(rows), {"score": 0.0, "alarms": []})


def follow(posterior: gpssm.Posterior, rows: Path, state: Path) -> gpssm.Posterior:
    """Learn from every row of the stream that the posterior has not seen."""
    known = posterior.learned.rows if posterior.learned else 0
    test = test_after(known, state)
    for number, (u, y) in enumerate(lines(rows, known), start=known + 1):
        before = test
        score = before["score"]
        if not math.isnan(y):
            expected = posterior.forecast(1, [[u]], num_paths=200, seed=number)
            error = (y - expected.mean[0, 0]) / expected.std[0, 0]
            # log N(error; 0, 2²) − log N(error; 0, 1)
            score = max(0.0, score + 0.375 * error**2 - math.log(2))
        test = {"score": score, "alarms": before["alarms"]}
        if score > ALARM:
            test = {"score": 0.0, "alarms": [*before["alarms"], number]}
            print(f"row {number}: the system has changed", flush=True)
        row = gpssm.Series([[y]], [[u]], outputs="level", inputs="pump")
        posterior = posterior.learn(row, forgetting=FORGETTING)
        # A process killed between the two writes leaves the test one row ahead: keep both.
        part = state.with_suffix(".part")
        part.write_text(json.dumps({number - 1: before, number: test}))
        part.replace(state.with_suffix(".json"))
        posterior.save(state, overwrite=True)
        if number % 10 == 0:
            print(f"{number} rows learned", flush=True)
    return posterior


def main() -> None:
    """Start from a fit, or continue from the file of an earlier run."""
    parser = argparse.ArgumentParser(description="Learn from a stream of rows.")
    parser.add_argument("--rows", type=Path, help="a file of lines u,y")
    parser.add_argument(
        "--state", type=Path, default=Path("state.nc"), help="file of the posterior"
    )
    parser.add_argument("--quick", action="store_true", help="few rows and draws, for a smoke test")
    options = parser.parse_args()
    length = 40 if options.quick else 150
    series = plant(TRAINING + length, TRAINING + length // 2)
    if options.rows is None:
        options.rows = options.state.with_suffix(".csv")
        text = [
            f"{u:.6f},{y:.6f}\n"
            for u, y in zip(series.u[TRAINING:, 0], series.y[TRAINING:, 0], strict=True)
        ]
        options.rows.write_text("".join([*text, END, "\n"]))
    if options.state.exists():
        posterior = gpssm.load(options.state)
        print(f"continuing from {options.state}, after {posterior.learned.rows} rows", flush=True)
    else:
        sizes = (
            {"num_warmup": 60, "num_draws": 10, "num_chains": 2}
            if options.quick
            else {"num_chains": 2}
        )
        fitted = gpssm.fit(
            series[:TRAINING], state_dim=1, num_inducing=10, start="em", progress=False, **sizes
        )
        posterior = fitted.thinned(20)
    posterior = follow(posterior, options.rows, options.state)
    alarms = test_after(posterior.learned.rows, options.state)["alarms"]
    print(f"alarms at rows {alarms}" if alarms else "no alarm")
    constant = np.full((20, 1), 1.25)
    print(posterior.forecast(20, constant, num_paths=200))


if __name__ == "__main__":
    main()
