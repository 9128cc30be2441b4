"""The transition that each method learns from a short series of the kink function, compared with
the truth.

    f(x) = 0.8 + (x + 0.2)(1 − 5 / (1 + exp(−2x))),   x_{t+1} = f(x_t) + N(0, Q),   y_t = x_{t+1} + N(0, R)

    OPENBLAS_NUM_THREADS=1 python benchmarks/kink.py [--out kink] [--seeds 0 1 2 3 4] [--quick]

Emission and noise levels are known, so that states have the true coordinates; kernel
hyper-parameters are learned from variance and lengthscale 1, with an identity mean, and every
method starts from the outputs as states. f is scored on a grid over the range of the true states
x_1 to x_{T−1}: RMSE of the posterior mean; mean log N(f; mean, sd²) of the true f; the share of the
grid where f lies within two standard deviations. Results are written to results.jsonl in the
folder, from which a second run continues; a table for each variant is printed, and the figure shows
the first variant and the first seed.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from gpssm.data.datasets import Simulated, simulate
from gpssm.inference.runner import Runtime, run_chains
from gpssm.methods import METHODS
from gpssm.model.bases import Basis, Hilbert, InducingPoints
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import Identity
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.plots.style import BLACK, BLUE, VERMILION, in_house_style, legend, panels, shade
from gpssm.starts.build import Start

jax.config.update("jax_enable_x64", True)

VARIANTS = {  # rows, and the standard deviations of process and observation noise
    "20 rows, .05 / .2": {"num_steps": 20, "process_std": 0.05, "noise_std": 0.2},
    "20 rows, .05 / .5": {"num_steps": 20, "process_std": 0.05, "noise_std": 0.5},
    "20 rows, .3 / .2": {"num_steps": 20, "process_std": 0.3, "noise_std": 0.2},
    "120 rows, .05 / .2": {"num_steps": 120, "process_std": 0.05, "noise_std": 0.2},
}
NAMES = [
    name for name, config in METHODS.items() if config.assumptions is not None
]  # with a Gaussian process
NUM_INDUCING, NUM_CHAINS, MARGIN = 15, 2, 1.0
# Its own default is cut to what a sweep of some hundred rows costs.
LENGTHS = {"fic-pg": {"num_warmup": 400, "num_draws": 300, "num_particles": 64}}
QUICK = {"num_warmup": 20, "num_draws": 10}
GRID, COLUMNS = 100, 5
FOUND = 0.5  # RMSE below which there is a kink: that of the best straight line is .7 to 1.0
Row = dict[str, Any]


def make_model(method: str, truth: Simulated) -> GPSSM:
    """The model in the truth's coordinates, with the kernel's hyper-parameters to be learned."""
    parts = (jnp.asarray(truth.C), jnp.asarray(truth.d), jnp.asarray(truth.noise_std))
    model = GPSSM.create(
        SquaredExponential.build(1, 1, variance=1.0, lengthscale=1.0),
        make_basis(method, truth.series.y),
        Identity(),
        Gaussian.build(*parts),
        jnp.asarray(truth.process_std),
    )
    return model.with_roles("fix", "*").with_roles("optimise", "kernel.*")


def make_basis(method: str, y: np.ndarray) -> Basis:
    """Inducing points spread over the outputs; sines for `rrank`, and for `exact` a place for each transition."""
    low, high = y.min() - MARGIN, y.max() + MARGIN
    if method == "rrank":
        return Hilbert.build(
            jnp.array([0.5 * (low + high)]), jnp.array([0.5 * (high - low) + MARGIN]), NUM_INDUCING
        )
    return InducingPoints(
        jnp.asarray(y if method == "exact" else np.linspace(low, high, NUM_INDUCING)[:, None])
    )


@jax.jit
def transitions(model: GPSSM, draws: Draw, grid: jax.Array) -> jax.Array:
    """E[f | v] and the residual variance of every draw on a grid, (draw, 2, grid)."""

    def one(draw: Draw) -> jax.Array:
        step = model.with_leaves(draw.leaves).transition()(grid[:, None], jnp.zeros((len(grid), 0)))
        return jnp.stack([step.given(draw.weights)[:, 0], jnp.maximum(step.residual[0], 0.0)])

    return jax.lax.map(one, draws)


def judge(truth: Simulated, model: GPSSM, draws: Draw) -> Row:
    """The figures, and the curve they come from."""
    followed = truth.states[1:-1]
    grid = np.linspace(followed.min(), followed.max(), GRID)
    pooled = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), draws)
    means, residuals = np.moveaxis(np.asarray(transitions(model, pooled, jnp.asarray(grid))), 1, 0)
    mean, std = means.mean(0), np.sqrt(means.var(0) + residuals.mean(0))
    error = truth.transition(grid[:, None], np.zeros((GRID, 0)))[:, 0] - mean
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "log_density": float(np.mean(norm.logpdf(error, scale=std))),
        "coverage": float(np.mean(np.abs(error) <= 2 * std)),
        "curve": [column.tolist() for column in (grid, mean, std)],
    }


def run(method: str, variant: str, seed: int, quick: bool) -> Row:
    """What one method learns of one simulated series."""
    truth = simulate("kink", seed=seed, **VARIANTS[variant])
    model, lengths = make_model(method, truth), QUICK if quick else LENGTHS.get(method, {})
    config = dataclasses.replace(METHODS[method], **lengths)
    start = np.concatenate([truth.series.y[:1], truth.series.y])
    runtime = Runtime(num_chains=NUM_CHAINS, seed=seed, progress=False)
    found = run_chains(config, [Start(model, [start])], [truth.series], runtime)
    figures = judge(truth, model, found.draws)
    # Hundreds of loaded programs use up a process's memory maps.
    jax.clear_caches()
    return {"method": method, "variant": variant, "seed": seed} | figures


def table(rows: list[Row], variant: str, methods: list[str]) -> str:
    """A line a method: medians over seeds, with ranges, and the number of seeds in which the kink was found."""
    lines = [
        f"{variant}\n",
        "| | RMSE | log density | within 2 sd | found |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        chosen = [row for row in rows if row["method"] == method and row["variant"] == variant]
        cells = [
            _cell([row[name] for row in chosen], form)
            for name, form in (("rmse", ".2f"), ("log_density", ".1f"), ("coverage", ".0%"))
        ]
        found = sum(row["rmse"] < FOUND for row in chosen)
        lines.append(f"| `{method}` | {' | '.join(cells)} | {found} of {len(chosen)} |")
    return "\n".join(lines)


def _cell(values: list[float], form: str) -> str:
    low, middle, high = (
        format(value, form).replace("-", "−") for value in np.quantile(values, (0, 0.5, 1))
    )
    return f"{middle} ({low} to {high})"


@in_house_style()
def draw(rows: list[Row], variant: str, seed: int, methods: list[str], path: Path) -> None:
    """A panel a method, with its RMSE: the truth, the true states, the posterior mean and two standard deviations."""
    truth = simulate("kink", seed=seed, **VARIANTS[variant])
    chosen = {
        row["method"]: row for row in rows if row["variant"] == variant and row["seed"] == seed
    }
    shown = [method for method in methods if method in chosen]
    columns = min(COLUMNS, len(shown))
    figure, axes = panels(-(-len(shown) // columns), columns, height=1.45, sharex=True, sharey=True)
    for panel in axes.flat[len(shown) :]:
        panel.set_visible(False)
    for panel, method in zip(axes.flat, shown, strict=False):
        grid, mean, std = np.array(chosen[method]["curve"])
        shade(panel, grid, mean - 2 * std, mean + 2 * std, label="± 2 sd")
        panel.plot(
            grid,
            truth.transition(grid[:, None], np.zeros((GRID, 0)))[:, 0],
            color=BLACK,
            label="truth",
        )
        panel.plot(grid, mean, color=BLUE, linestyle="--", label="posterior mean")
        panel.plot(
            truth.states[:-1, 0], truth.states[1:, 0], ".", color=VERMILION, label="true states"
        )
        panel.set_title(f"{method} {chosen[method]['rmse']:.2f}", pad=3)
        panel.set_ylim(-3.5, 1.8)
    for panel in axes[:, 0]:
        panel.set_ylabel("$x_{t+1}$")
    for column in axes.T:
        lowest = [panel for panel in column if panel.get_visible()][-1]
        lowest.set_xlabel("$x_t$")
        lowest.tick_params(labelbottom=True)
    legend(figure)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run what is not there yet, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description="What each method learns of the kink function.")
    parser.add_argument("--out", type=Path, default=Path("kink"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS)[:3])
    parser.add_argument("--quick", action="store_true", help="few draws, to see that all runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # Fits of one method and one length are one program: compile it once.
    jax.config.update("jax_compilation_cache_dir", str(options.out / "cache"))
    results = options.out / "results.jsonl"
    rows = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    done = {(row["method"], row["variant"], row["seed"]) for row in rows}
    for cell in (
        (m, v, s) for v in options.variants for s in options.seeds for m in options.methods
    ):
        if cell not in done:
            rows.append(run(*cell, options.quick))
            with results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print("\n\n".join(table(rows, variant, options.methods) for variant in options.variants))
    draw(rows, options.variants[0], options.seeds[0], options.methods, options.out / "kink.png")


if __name__ == "__main__":
    main()
