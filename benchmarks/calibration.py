"""Coverage of the 90 % forecast intervals of default fits on simulated systems.

    python benchmarks/calibration.py [--systems drift,relay] [--seeds 3] [--jobs 16] [--out FILE]

Every cell is one system and one seed: a default fit, forecasts of 30 steps from every fifth of the
150 test rows, and one simulation of all test rows. Cells run in parallel processes. Each is one
line of JSON in FILE, so that a run that was killed resumes, and the tables are printed from FILE.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from common import Timer, append_cell, command_line, read_cells
from systems import SYSTEMS

import gpssm
from gpssm.core.places import run_tasks

TEST_ROWS = 150
HORIZON = 30
STEPS = (1, 10, 30)  # steps ahead that the table shows
LOW = 0.75  # coverage below which a fit should have warned
# Columns of the table: c is coverage and w width, at steps ahead, over all of them, and of the
# simulation of all test rows.
FIGURES = {
    **{f"coverage.{step}": f"c {step}" for step in STEPS},
    "coverage_rolling": f"c 1-{HORIZON}",
    "coverage_simulation": "c sim",
    **{f"width.{step}": f"w {step}" for step in STEPS},
    "width_simulation": "w sim",
}
# Who warned: the fit, its summary, or its forecasts.
WARNINGS = ("warnings", "summary", "forecast_warnings")
COLUMNS = ["system", "seed", "rows", "method", "refused", "finite", *FIGURES, *WARNINGS]


class Cell(NamedTuple):
    """A system and the seed of its simulation and of the fit."""

    system: str
    seed: int


def run(cell: Cell) -> dict[str, Any]:
    """Return the coverage of one fit and its warnings, or the message of a refusal."""
    system = SYSTEMS[cell.system]
    train, test = system.records(cell.seed, TEST_ROWS)
    result: dict[str, Any] = {**cell._asdict(), "rows": len(train)}
    try:
        with Timer() as fit_timer, warnings.catch_warnings(record=True) as fit_warnings:
            warnings.simplefilter("always")
            posterior = gpssm.fit(train, seed=cell.seed, progress=False, **system.settings)
        with warnings.catch_warnings(record=True) as forecast_warnings:
            warnings.simplefilter("always")
            result |= coverage(posterior, test)
        result["summary"] = list(posterior.summary().doubts)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return result | {"refused": str(error)}
    result["warnings"] = messages(fit_warnings)
    result["forecast_warnings"] = messages(forecast_warnings)
    result["method"] = posterior.method
    result["seconds"] = round(fit_timer.wall, 1)
    return result


def coverage(posterior: Any, test: gpssm.Series) -> dict[str, Any]:
    """Return coverage, and width in standard deviations of the training outputs.

    Parameters
    ----------
    posterior
        The fit.
    test
        The rows after the training rows.
    """
    backtest = gpssm.backtest(
        posterior, test, horizon=HORIZON, step=5, levels=(0.9,), num_paths=400, progress=False
    )
    simulation = posterior.forecast(len(test), test, num_paths=400)
    by_step = backtest.by_step()
    # With several outputs, `by_step` is in standard deviations already.
    unit = simulation.scale[0] if test.output_dim == 1 else 1.0
    low, high = simulation.interval(0.9)
    observed = np.isfinite(test.y)
    inside = (low <= test.y) & (test.y <= high)
    return {
        "coverage": {str(step): by_step.coverage_90[step] for step in STEPS},
        "width": {str(step): by_step.width_90[step] / unit for step in STEPS},
        "coverage_rolling": by_step.coverage_90.mean(),
        "coverage_simulation": inside[observed].mean(),
        "width_simulation": np.mean((high - low) / simulation.scale),
        "finite": bool(np.isfinite(simulation.paths).all()),
    }


def messages(caught: list[warnings.WarningMessage]) -> list[str]:
    """Return the distinct messages of the library's warnings."""
    texts = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
    return list(dict.fromkeys(texts))


def tables(cells: pd.DataFrame) -> str:
    """Return the means over seeds of each system, the refusals, and the share of low coverage."""
    refused = cells[cells.refused.notna()]
    fits = cells[cells.refused.isna()]
    figures = fits[["system", *FIGURES]].rename(columns=FIGURES)
    table = figures.groupby("system", sort=False).mean()
    low = fits.coverage_rolling < LOW
    counts = {"below": low, **{source: fits[source].astype(bool) for source in WARNINGS}, "fits": 1}
    table = table.join(fits[["system"]].assign(**counts).groupby("system").sum())
    table = table.reindex([name for name in SYSTEMS if name in table.index])
    lines = [table.to_string(float_format="%.2f")]
    for cell in refused.itertuples():
        lines.append(f"refused: {cell.system}, seed {cell.seed}: {cell.refused}")
    for cell in fits[~fits.finite.astype(bool)].itertuples():
        lines.append(f"NOT FINITE: {cell.system}, seed {cell.seed}")
    unwarned = ~fits.warnings.astype(bool)
    silent = ~fits[list(WARNINGS)].astype(bool).any(axis=1)
    for protocol in ("coverage_rolling", "coverage_simulation"):
        low = fits[protocol] < LOW
        lines.append(
            f"{protocol} below {LOW:g}: {low.sum()} of {len(fits)} fits, "
            f"{(low & unwarned).sum()} without a warning of the fit, "
            f"{(low & silent).sum()} without any warning"
        )
        for cell in fits[low & unwarned].itertuples():
            lines.append(f"    unwarned by the fit: {cell.system}, seed {cell.seed}")
    return "\n".join(lines)


def main() -> None:
    """Run the cells that FILE does not have yet, and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--systems", help="names separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl"))
    options = parser.parse_args()
    names = options.systems.split(",") if options.systems else list(SYSTEMS)
    if unknown := [name for name in names if name not in SYSTEMS]:
        parser.error(f"there is no system {unknown[0]!r}; there are {', '.join(SYSTEMS)}")
    finished = {(result["system"], result["seed"]) for result in read_cells(options.out)}
    # Seeds are the outer loop: a run that is killed has a few seeds of all systems.
    cells = [Cell(name, seed) for seed in range(options.seeds) for name in names]
    cells = [cell for cell in cells if cell not in finished]
    for number, result in run_tasks(cells, run, options.jobs):
        if isinstance(result, Exception):
            print(f"{cells[number]}: failed: {result!r}", file=sys.stderr, flush=True)
            continue
        append_cell(options.out, result)
        print(f"{cells[number]}: {result.get('seconds')} s", file=sys.stderr, flush=True)
    results = pd.json_normalize(read_cells(options.out)).reindex(columns=COLUMNS)
    print(tables(results[results.system.isin(names)]))


if __name__ == "__main__":
    main()
