"""What knowing the wiring is worth: python docs/draw_wiring.py writes docs/figures/wiring.png and prints a table.

Three tanks in a row are simulated: a pump fills the first, what runs out of one, √level, fills the next, and the level
of the last is measured. Few rows train; the rest is one free run of the model that was told the cascade, and of one
that was not.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import gpssm

STEP, FLOWS = 0.5, np.array([0.5, 0.4, 0.45])
TRAIN, TEST = 100, 300


def tanks(num_steps: int, seed: int) -> gpssm.Series:
    """The level of the last of three tanks, and the pump."""
    rng = np.random.default_rng(seed)
    pump = np.repeat(rng.uniform(0.1, 1.0, num_steps // 12 + 1), 12)[:num_steps]
    levels, seen = np.ones(3), []
    for inflow in pump:
        out = FLOWS * np.sqrt(levels)
        levels = np.maximum(levels + STEP * (np.concatenate([[inflow], out[:-1]]) - out), 0.0)
        levels = np.maximum(levels + 0.01 * rng.normal(size=3), 0.0)
        seen.append(levels[-1] + 0.03 * rng.normal())
    return gpssm.Series(
        np.array(seen), pump, outputs=["level"], inputs=["pump"], dt=STEP, name="tanks"
    )


def main() -> None:
    """Fit with and without the wiring, for each seed given (0 by default); draw that of the first."""
    warnings.simplefilter("ignore")
    seeds = [int(seed) for seed in sys.argv[1:]] or [0]
    for seed in seeds:
        train, test = tanks(TRAIN + TEST, seed).split(TRAIN)
        for wiring in (None, "cascade"):
            how: dict[str, Any] = {
                "start": "em",
                "num_chains": 2,
                "num_warmup": 300,
                "num_draws": 100,
            }
            posterior = gpssm.fit(
                train, state_dim=3, num_inducing=20, wiring=wiring, progress=False, **how
            )
            score = posterior.forecast(u=test.u).score(test)
            rmse, crps, inside = (score[name] for name in ("rmse", "crps", "coverage_90"))
            print(
                f"seed {seed}  {wiring or 'none':<9} rmse {rmse:.3f}  crps {crps:.3f}  90 %: {inside:.2f}",
                flush=True,
            )
            if wiring and seed == seeds[0]:
                figure = gpssm.plots.plot_wiring(posterior)
                figure.savefig(Path(__file__).parent / "figures" / "wiring.png", dpi=110)


if __name__ == "__main__":
    main()
