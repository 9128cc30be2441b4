"""How many rows a prior from a sister plant saves: writes docs/figures/priors.png and prints a table.

    python docs/draw_priors.py [--rows 20,40,80] [--seeds 2] [--dataset dryer]

Two tanks in a row, of which the second's level is seen, h₁' = h₁ + .2 (u − c₁√h₁), h₂' = h₂ + .2 (c₁√h₁ − c₂√h₂): the
sister has 300 rows, the new plant other outlets and few rows. Each fit then runs free through 200 rows it has not seen.
With a data set its first half is the sister, and the new plant is the same one later: few rows of the second half, from
another place for each seed, before a free run of 100. There is a table of that, and no figure.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import gpssm
from gpssm.plots.style import LINES, in_house_style, panels

SIZES = {"num_chains": 1, "num_warmup": 300, "num_draws": 100, "progress": False}
SISTER, NEW = (1.0, 1.0), (0.97, 1.04)  # c₁, c₂
TEST, TEST_REAL, APART = 200, 100, 150  # rows of a free run; rows between the places of two seeds
STRENGTHS = {"no prior": None, "strength 1": 1.0, "strength .1": 0.1}


def tanks(length: int, outlets: tuple[float, float], seed: int) -> gpssm.Series:
    """The second level under a pump that changes every ten rows."""
    rng = np.random.default_rng(seed)
    u = 0.6 + 0.9 * np.repeat(rng.random(length // 10 + 1), 10)[:length]
    first, second, levels = 1.0, 1.0, []
    for flow in u:
        between = outlets[0] * np.sqrt(first)
        first = max(first + 0.2 * (flow - between) + 0.005 * rng.normal(), 0.01)
        second = max(
            second + 0.2 * (between - outlets[1] * np.sqrt(second)) + 0.005 * rng.normal(), 0.01
        )
        levels.append(second + 0.01 * rng.normal())
    return gpssm.Series(np.array(levels), u, outputs="level", inputs="pump")


def error(posterior: gpssm.Posterior, test: gpssm.Series) -> tuple[float, float]:
    """RMSE and 90 % coverage of the rows of a free run that follows the training data.

    Without bounds: twenty rows go to few places, and the run must be allowed to leave them.
    """
    score = posterior.forecast(len(test), test.u, bounds=None).score(test)
    return score["rmse"], score["coverage_90"]


@in_house_style()
def main() -> None:
    """Fit the sister, then the new plant with ever more rows."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="The learning curve with and without a prior.")
    parser.add_argument("--rows", default="20,40,80")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dataset", help="a benchmark in place of the tanks")
    options = parser.parse_args()
    counts = [int(number) for number in options.rows.split(",")]
    if options.dataset:
        former, later = gpssm.datasets.load(options.dataset).split(0.5)
        own: dict[str, Any] = {"state_dim": 4, "num_inducing": 20, "start": "em"}
    else:
        former, later = tanks(300, SISTER, 100), None
        own = {"state_dim": 2, "num_inducing": 20, "start": "em"}
    sister = gpssm.fit(former, **own, **SIZES)
    print(
        f"{'rows':>6}{'':>4}" + "".join(f"{name:>24}" for name in ["sister as it is", *STRENGTHS])
    )
    table = np.full((len(counts), options.seeds, 1 + len(STRENGTHS)), np.nan)
    for place, count in enumerate(counts):
        for seed in range(options.seeds):
            if later is None:
                train, test = tanks(count + TEST, NEW, seed).split(count)
            else:
                train, test = later[APART * seed : APART * seed + count + TEST_REAL].split(count)
            found = [error(sister.condition(train, new_experiment=True), test)]
            for strength in STRENGTHS.values():
                given = own if strength is None else {"prior": sister, "prior_strength": strength}
                found.append(error(gpssm.fit(train, seed=seed, **given, **SIZES), test))
            table[place, seed] = [rmse for rmse, _ in found]
            words = (f"{rmse:.4f} ({coverage:.2f})" for rmse, coverage in found)
            print(f"{count:>6}{seed:>4}" + "".join(f"{one:>24}" for one in words), flush=True)
    if options.dataset:
        return
    figure, axes = panels(1)
    panel = axes[0, 0]
    for column, (name, style) in enumerate(
        zip(["sister as it is", *STRENGTHS], LINES, strict=False)
    ):
        panel.plot(counts, np.median(table[:, :, column], 1), marker="o", label=name, **style)
    panel.set_ylim(0)
    panel.set_xticks(counts)
    panel.set_xlabel("rows of the new plant")
    panel.set_ylabel("RMSE of a free run")
    panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    figure.savefig(Path(__file__).parent / "figures" / "priors.png", dpi=110)


if __name__ == "__main__":
    main()
