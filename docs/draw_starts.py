"""Free runs from each start: python docs/draw_starts.py writes docs/figures/starts.png and prints a table.

A driven oscillator with a cubic spring is simulated; the first half trains, and the second is one free run of the
posterior that chains from each start came to.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from gpssm.data.datasets import load
from gpssm.fitting.fit import fit
from gpssm.methods import FFVD
from gpssm.plots.style import BLACK, BLUE, in_house_style, panels, shade
from gpssm.starts.start import STARTS

METHOD = FFVD(num_warmup=300, num_draws=100)
SHOWN = 120  # steps of the free run


@in_house_style()
def main() -> None:
    """Fit from each start, with the process noise free and small; draw the former."""
    warnings.simplefilter("ignore")
    train, test = load("sim:duffing:num_steps=500").split(0.5)
    figure, axes = panels(len(STARTS))
    print(f"{'start':<24}{'noise':<8}{'rmse':>8}{'coverage 90 %':>15}")
    for panel, name in zip(axes[:, 0], STARTS, strict=True):
        for noise in ("free", "small"):
            sizes: dict[str, Any] = {
                "state_dim": 2,
                "num_inducing": 30,
                "num_chains": 2,
                "noise": noise,
            }
            posterior = fit(train, method=METHOD, start=name, progress=False, **sizes)
            found = posterior.forecast(len(test), test.u)
            score = found.score(test)
            print(
                f"{name:<24}{noise:<8}{score['rmse']:>8.4f}{score['coverage_90']:>15.2f}",
                flush=True,
            )
            if noise == "free":
                steps = np.arange(SHOWN)
                shade(
                    panel, steps, *(limit[:SHOWN, 0] for limit in found.interval(0.9)), color=BLUE
                )
                panel.plot(steps, found.median[:SHOWN, 0], color=BLUE)
                panel.plot(steps, test.y[:SHOWN, 0], color=BLACK, linewidth=0.8)
                panel.set_title(f"{name}: RMSE {score['rmse']:.3g}", loc="left")
    axes[-1, 0].set_xlabel("steps of the free run")
    figure.savefig(Path(__file__).parent / "figures" / "starts.png", dpi=110)


if __name__ == "__main__":
    main()
