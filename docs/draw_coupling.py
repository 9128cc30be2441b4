"""What sharing functions is worth, and what it costs: python docs/draw_coupling.py [SEED ...] prints two tables.

Six states in a ring, each pushed by its neighbour and by one and the same nonlinear function of the third and the
control, with a weight of its own; all are measured, with noise. Few rows train, the rest is one free run. The cost is
that of one gradient of the collapsed target. It writes docs/figures/coupling.png.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gpssm
from gpssm.core.runtime import in_double_precision
from gpssm.fitting.fit import build_model
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec
from gpssm.model.target import log_collapsed
from gpssm.plots.style import BLACK, BLUE, GREEN, VERMILION, in_house_style, legend, panels

STATES, TRAIN, TEST = 6, 60, 150
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "shared": {"coupling": "shared"},
    "lmc, rank 1": {"coupling": "lmc", "rank": 1},
    "lmc, rank 2": {"coupling": "lmc", "rank": 2},
}


def ring(num_steps: int, seed: int) -> gpssm.Series:
    """All states, and the control."""
    rng = np.random.default_rng(seed)
    weights = 0.5 * np.random.default_rng(7).normal(size=STATES)
    u = np.repeat(rng.normal(size=num_steps // 5 + 1), 5)[:num_steps]
    x, seen = np.zeros(STATES), []
    for control in u:
        x = (
            0.7 * x
            + 0.2 * np.roll(x, 1)
            + weights * np.sin(2 * x[2] + 1.5 * control)
            + 0.02 * rng.normal(size=STATES)
        )
        seen.append(x + 0.1 * rng.normal(size=STATES))
    return gpssm.Series(np.array(seen), u)


@in_double_precision
def cost(num_steps: int, num_inducing: int) -> None:
    """Milliseconds of one gradient of the collapsed target."""
    series = gpssm.Scaler.fit(ring(num_steps, 0)).scale(ring(num_steps, 0))
    start = linear_fit(series, Spec(state_dim=STATES))
    for name, given in WAYS.items():
        model = build_model(series, STATES, num_inducing, linear=start, **given)
        slope = jax.jit(jax.grad(lambda x, model=model: log_collapsed(model, x, series)))
        states = jnp.asarray(start.states[0])
        slope(states).block_until_ready()
        began, rounds = time.perf_counter(), 5
        for _ in range(rounds):
            slope(states).block_until_ready()
        spent = 1e3 * (time.perf_counter() - began) / rounds
        print(
            f"{name:<12} {num_steps} rows, {num_inducing} points: {spent:6.1f} ms a gradient",
            flush=True,
        )


@in_house_style()
def main() -> None:
    """Fit in all ways for each seed; draw the first."""
    warnings.simplefilter("ignore")
    cost(1000, 50)
    seeds = [int(seed) for seed in sys.argv[1:]] or [0]
    figure, axes = panels(1, height=1.8)
    for seed in seeds:
        train, test = ring(TRAIN + TEST, seed).split(TRAIN)
        for (name, given), colour in zip(
            WAYS.items(), (VERMILION, GREEN, BLUE, "0.6"), strict=True
        ):
            how: dict[str, Any] = {
                "start": "em+shooting",
                "num_chains": 1,
                "num_warmup": 250,
                "num_draws": 80,
            }
            posterior = gpssm.fit(
                train, state_dim=STATES, num_inducing=20, progress=False, **how, **given
            )
            found = posterior.forecast(u=test.u)
            error = np.sqrt(np.mean((found.mean - test.y) ** 2))
            low, high = found.interval(0.9)
            inside = np.mean((low <= test.y) & (test.y <= high))
            spent = sum(posterior.seconds)
            print(
                f"seed {seed}  {name:<12} rmse {error:.3f}  90 %: {inside:.2f}  {spent:.0f} s",
                flush=True,
            )
            if seed == seeds[0]:
                axes[0, 0].plot(found.mean[:80, 3], color=colour, label=f"{name}: RMSE {error:.2f}")
        if seed == seeds[0]:
            axes[0, 0].plot(test.y[:80, 3], color=BLACK, linewidth=0.8, label="data")
    axes[0, 0].set(xlabel="steps of the free run", ylabel="the fourth state")
    legend(figure)
    figure.savefig(Path(__file__).parent / "figures" / "coupling.png", dpi=110)


if __name__ == "__main__":
    main()
