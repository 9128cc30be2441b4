"""Learning on the go, along the test halves of the benchmarks: writes docs/figures/learning.png and prints a table.

    python docs/draw_learning.py furnace [dryer ...] [--seeds 0,1,2] [--update] [--keep FOLDER]

The training half is fitted once. From every tenth row of the test half 30 steps are forecast: with the state filtered
and the function as fitted (`never`), with the function learned from the rows on the way (`learn`, its forgetting found
in the training half), and, with --update, after sampling again at each origin (`update`). The figure is of the first.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

import gpssm
from gpssm.evaluation.backtest import Backtest
from gpssm.plots.style import BLACK, BLUE, GREY, in_house_style, panels, shade
from gpssm.posterior.learning import choose_forgetting

DRAWS = 100


def fitted(name: str, train: gpssm.Series, seed: int, folder: Path | None) -> gpssm.Posterior:
    """The default fit of the training half with two chains; kept in a folder, if there is one."""
    path = folder and folder / f"{name}-{seed}.nc"
    if path and path.exists():
        return gpssm.load(path)
    posterior = gpssm.fit(train, num_chains=2, num_draws=250, seed=seed, progress=False)
    if path:
        posterior.save(path)
    return posterior


def rolling(
    row: str,
    how: str,
    posterior: gpssm.Posterior,
    test: gpssm.Series,
    forgetting: tuple[float, ...],
) -> Backtest:
    """The forecasts and their row of the table."""
    options = {"forgetting": forgetting} if how == "learn" else {}
    began = time.perf_counter()
    found = gpssm.backtest(posterior, test, refit=how, max_draws=DRAWS, progress=False, **options)
    seconds, score = time.perf_counter() - began, found.scores
    words = f"{score['rmse']:>9.4f}{score['crps']:>9.4f}{score['coverage_90']:>9.2f}{seconds:>9.0f}"
    print(f"{row}{how:<8}{words}", flush=True)
    return found


@in_house_style()
def draw(never: Backtest, learned: Backtest) -> None:
    """Forecasts along the test half, every third origin, and their errors by origin."""
    figure, axes = panels(2)
    top, bottom = axes[:, 0]
    for found, color, label in (
        (never, GREY, "state filtered only"),
        (learned, BLUE, "function learned too"),
    ):
        for place in range(0, len(found.origins), 3):
            steps, ahead = found.origins[place] + np.arange(found.horizon), found.forecasts[place]
            shade(top, steps, *(limit[:, 0] for limit in ahead.interval(0.9)), color=color)
            top.plot(steps, ahead.median[:, 0], color=color, label=label if place == 0 else None)
        errors = [figures["rmse"] for figures in found.figures]
        bottom.plot(
            found.origins, errors, "o-", color=color, label=f"{label}: mean {np.mean(errors):.3f}"
        )
    top.plot(np.arange(len(never.series)), never.series.y[:, 0], color=BLACK, linewidth=0.8)
    top.legend()
    top.set_ylabel(never.series.outputs[0])
    bottom.set_ylabel("RMSE of 30 steps")
    bottom.set_xlabel("row of the test half")
    bottom.legend()
    figure.savefig(Path(__file__).parent / "figures" / "learning.png", dpi=110)


def main() -> None:
    """Fit, follow, print, draw."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="Rolling forecasts with and without learning.")
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--seeds", default="0", help="of the fits")
    parser.add_argument("--update", action="store_true", help="sample again at each origin, too")
    parser.add_argument("--keep", type=Path, help="a folder to keep fits in")
    options = parser.parse_args()
    ways = ("never", "learn", "update") if options.update else ("never", "learn")
    print(f"{'':<12}{'seed':<6}{'refit':<8}{'rmse':>9}{'crps':>9}{'cov 90':>9}{'seconds':>9}")
    first = None
    for name in options.datasets:
        series = gpssm.datasets.load(name)
        train, test = series.split(len(series) // 2)
        for seed in map(int, options.seeds.split(",")):
            posterior = fitted(name, train, seed, options.keep)
            rates = choose_forgetting(posterior)
            print(f"{name}: forgetting {', '.join(f'{rate:.4f}' for rate in rates)}", flush=True)
            found = [rolling(f"{name:<12}{seed:<6}", how, posterior, test, rates) for how in ways]
            first = first or found[:2]
    if first:
        draw(*first)


if __name__ == "__main__":
    main()
