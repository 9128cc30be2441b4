"""Difficult data: does each fit end with finite forecasts and calibrated intervals, or with a clear
error?

    python benchmarks/sane.py                 # all cases, as a table
    python benchmarks/sane.py "ten rows" ...  # some of them

Each case is a series with known truth: the first rows train, the next 30 are forecast, and the share of them inside the
90 % intervals is counted. There are few draws and the start is `em`: the purpose is to find
failures, not good forecasts.
"""

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

import gpssm
from gpssm.data.series import Series

STEPS = 30
EFFORT = {
    "num_warmup": 150,
    "num_draws": 50,
    "num_chains": 2,
    "num_inducing": 15,
    "start": "em",
    "progress": False,
}
# What is said of chains this short, in every case.
SHORT = (
    "30-step",
    "Function values",
    "Likelihood",
    "Log ",
    "Smoothed outputs",
    "States, within",
    "Energy",
)
Case = tuple[Series, dict[str, object]]


def tank(
    rows: int = 120, outputs: int = 1, inputs: int = 1, seed: int = 0, u: np.ndarray | None = None
) -> np.ndarray:
    """Rows of controls and outputs: y_t = .8 y_{t−1} + tanh(u_{t−1}) mixed over outputs, with noise of .1."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.normal(size=(rows // 4 + 1, inputs)), 4, axis=0)[:rows] if u is None else u
    mixing = rng.normal(size=(inputs, outputs))
    y = np.zeros((rows, outputs))
    for t in range(1, rows):
        y[t] = 0.8 * y[t - 1] + np.tanh(u[t - 1] @ mixing)
    return np.hstack([u, y + 0.1 * rng.normal(size=y.shape)])


def series(table: np.ndarray, inputs: int = 1, scale: float = 1.0) -> Series:
    """The table as a series, its outputs times a scale."""
    return Series(scale * table[:, inputs:], table[:, :inputs])


def changed(change: Callable[[np.ndarray], None], rows: int = 120) -> Series:
    """The tank with something done to its training outputs."""
    table = tank(rows + STEPS)
    change(table[:rows])
    return series(table)


def outlier(at: int) -> Callable[[np.ndarray], None]:
    """One output 50 standard deviations away."""

    def change(table: np.ndarray) -> None:
        table[at, 1] += 50 * table[:, 1].std()

    return change


def missing(rows: slice | np.ndarray) -> Callable[[np.ndarray], None]:
    """Outputs that were not seen."""

    def change(table: np.ndarray) -> None:
        table[rows, 1] = np.nan

    return change


def constant(table: np.ndarray) -> None:
    """A sensor that hung for a quarter of the time."""
    table[30:60, 1] = table[30, 1]


def quantised(table: np.ndarray) -> None:
    """A sensor of few bits."""
    table[:, 1] = np.round(table[:, 1])


def grown() -> Series:
    """An output that grows without end."""
    rng = np.random.default_rng(1)
    return Series(np.cumsum(0.5 + 0.1 * rng.normal(size=150)))


def integrated() -> Series:
    """A random walk with a drive."""
    rng = np.random.default_rng(2)
    u = np.repeat(rng.normal(size=30), 5)
    return Series(np.cumsum(0.3 * np.r_[0, u[:-1]] + 0.05 * rng.normal(size=150)), u)


def periodic() -> Series:
    """A sine with noise, and no controls."""
    rng = np.random.default_rng(3)
    return Series(np.sin(0.3 * np.arange(150)) + 0.1 * rng.normal(size=150))


def independent() -> Series:
    """An output that its control has nothing to do with."""
    rng = np.random.default_rng(4)
    return Series(rng.normal(size=150), rng.normal(size=150))


def stepped() -> Series:
    """A control with one step."""
    return series(tank(150, u=(np.arange(150) > 60).astype(float)[:, None]))


def collinear() -> Series:
    """Two controls that are one."""
    table = tank(150)
    return Series(table[:, 1], np.hstack([table[:, :1], 2 * table[:, :1]]))


def never_seen() -> Series:
    """Two outputs of which one is always missing."""
    table = tank(150, outputs=2)
    table[:, 2] = np.nan
    return series(table)


def many() -> Series:
    """Five outputs, five controls."""
    return series(tank(150, outputs=5, inputs=5), inputs=5)


def square() -> Series:
    """A square wave."""
    rng = np.random.default_rng(5)
    return Series(np.sign(np.sin(0.25 * np.arange(150))) + 0.05 * rng.normal(size=150))


def regimes() -> Series:
    """A gain that doubles half-way."""
    table = tank(150)
    table[60:, 1] *= 2
    return series(table)


def rng_choice() -> np.ndarray:
    """Nine rows in ten, at random."""
    return np.random.default_rng(6).permutation(120)[:108]


CASES: dict[str, Callable[[], Case]] = {
    "as it should be": lambda: (series(tank(150)), {}),
    "outputs of scale 1e-9": lambda: (series(tank(150), scale=1e-9), {}),
    "outputs of scale 1e9": lambda: (series(tank(150), scale=1e9), {}),
    "ten rows": lambda: (series(tank(40)), {}),
    "step only": lambda: (stepped(), {}),
    "collinear controls": lambda: (collinear(), {}),
    "output independent of control": lambda: (independent(), {}),
    "growing": lambda: (grown(), {}),
    "integrating": lambda: (integrated(), {}),
    "periodic": lambda: (periodic(), {}),
    "square wave": lambda: (square(), {}),
    "two regimes": lambda: (regimes(), {}),
    "90 % missing": lambda: (changed(missing(rng_choice())), {}),
    "first 80 of 120 missing": lambda: (changed(missing(slice(80))), {}),
    "an output never seen": lambda: (never_seen(), {}),
    "outlier in the middle": lambda: (changed(outlier(60)), {}),
    "outlier in the last row": lambda: (changed(outlier(119)), {}),
    "a constant stretch": lambda: (changed(constant), {}),
    "quantised": lambda: (changed(quantised), {}),
    "one state": lambda: (series(tank(150)), {"state_dim": 1}),
    "ten states": lambda: (series(tank(150)), {"state_dim": 10}),
    "five by five": lambda: (many(), {}),
    "more states than rows": lambda: (series(tank(42)), {"state_dim": 14}),
    "more points than rows": lambda: (series(tank(50)), {"num_inducing": 60}),
    "20 000 rows": lambda: (series(tank(20_000 + STEPS)), {}),
}


def run(name: str) -> dict[str, object]:
    """One case: how it ended."""
    data, settings = CASES[name]()
    train, test = data.split(len(data) - STEPS)
    row: dict[str, object] = {"case": name, "rows": len(train)}
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            posterior = gpssm.fit(train, **({"state_dim": 2} | EFFORT | settings))  # type: ignore[arg-type]
            forecast = posterior.forecast(STEPS, test, num_paths=400)
            summary = posterior.summary()
        except (ArithmeticError, RuntimeError, ValueError) as error:
            return row | {
                "ended": f"refused: {error}"[:120],
                "seconds": time.perf_counter() - began,
            }
    finite = np.isfinite(forecast.paths).all()
    score = forecast.score(test)
    row |= {"ended": "finite" if finite else "NOT FINITE", "coverage": score["coverage_90"]}
    row |= {
        "error": score["rmse"] / np.nanstd(train.y),
        "width": score["width_90"] / np.nanstd(train.y),
    }
    heard = {
        str(one.message).split(":")[0].split(".")[0][:60]
        for one in said
        if one.category is UserWarning
    }
    heard |= {doubt.split(":")[0].split(".")[0][:60] for doubt in summary.doubts}
    heard = {one for one in heard if not one.startswith(SHORT)}
    return row | {"said": "; ".join(sorted(heard)), "seconds": time.perf_counter() - began}


def main() -> None:
    """Print the table as it goes on."""
    names = sys.argv[1:] or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        raise SystemExit(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    print(
        "| case | rows | ended | in 90 % | error, sd | width, sd | said of it |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in names:
        row = run(name)
        figures = [
            f"{row[key]:.2f}" if key in row else "" for key in ("coverage", "error", "width")
        ]
        print(
            f"| {row['case']} | {row['rows']} | {row['ended']} | {' | '.join(figures)} | {row.get('said', '')} |",
            flush=True,
        )
        print(f"{name}: {row['seconds']:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
