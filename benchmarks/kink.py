"""The transition that each method learns from a short series of the kink function.

    f(x) = 0.8 + (x + 0.2)(1 − 5 / (1 + exp(−2x))),
    x_{t+1} = f(x_t) + N(0, Q),   y_t = x_{t+1} + N(0, R)

    python benchmarks/kink.py [--out kink] [--seeds 0 1 2 3 4] [--quick]

The output map and the noises are known, so that states have the coordinates of the true ones.
Variance and lengthscale of the kernel are learned from 1, the mean function is the identity, and
every method starts from the outputs as states. f is judged on a grid over the range of the true
states x_1 to x_{T−1}: RMSE of the posterior mean, mean log N(f; mean, sd²) of the true f, and the
share of the grid where f lies within two standard deviations. Results are lines of JSON in the
folder, from which a second run continues. A table is printed for each variant; the figure is of the
first variant and the first seed.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from common import Cell, append_cell, command_line, read_cells
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

# Rows, and the standard deviations of process and observation noise.
VARIANTS = {
    "20 rows, .05 / .2": {"num_steps": 20, "process_std": 0.05, "noise_std": 0.2},
    "20 rows, .05 / .5": {"num_steps": 20, "process_std": 0.05, "noise_std": 0.5},
    "20 rows, .3 / .2": {"num_steps": 20, "process_std": 0.3, "noise_std": 0.2},
    "120 rows, .05 / .2": {"num_steps": 120, "process_std": 0.05, "noise_std": 0.2},
}
# Methods with a Gaussian process of hidden states.
NAMES = [name for name, settings in METHODS.items() if settings.learns and name != "auto"]
NUM_INDUCING = 15
GRID = 100
# The defaults of fic-pg would dominate the time of the sweep.
LENGTHS = {"fic-pg": {"num_warmup": 400, "num_draws": 300, "num_particles": 64}}
QUICK = {"num_warmup": 20, "num_draws": 10}
FOUND = 0.5  # RMSE below which the kink is learned; the best straight line has .7 to 1.0


def make_model(method: str, truth: Simulated) -> GPSSM:
    """Return the model in the coordinates of the true states, with a kernel to be learned."""
    model = GPSSM.create(
        SquaredExponential.build(1, 1, variance=1.0, lengthscale=1.0),
        make_basis(method, truth.series.y),
        Identity(),
        Gaussian.build(*map(jnp.asarray, (truth.C, truth.d, truth.noise_std))),
        jnp.asarray(truth.process_std),
    )
    return model.with_roles("fix", "*").with_roles("optimise", "kernel.*")


def make_basis(method: str, y: np.ndarray) -> Basis:
    """Return inducing points spread over the outputs, or what the method needs instead.

    `rrank` has sines, and `exact` has one point for each transition.
    """
    margin = 1.0
    low = y.min() - margin
    high = y.max() + margin
    if method == "rrank":
        centre = jnp.array([0.5 * (low + high)])
        return Hilbert.build(centre, jnp.array([0.5 * (high - low) + margin]), NUM_INDUCING)
    points = y if method == "exact" else np.linspace(low, high, NUM_INDUCING)[:, None]
    return InducingPoints(jnp.asarray(points))


@jax.jit
def transitions(model: GPSSM, draws: Draw, grid: jax.Array) -> jax.Array:
    """Return E[f | v] and the residual variance of every draw on a grid, (draw, 2, grid)."""

    def moments(draw: Draw) -> jax.Array:
        step = model.with_leaves(draw.leaves).transition()(grid[:, None], jnp.zeros((len(grid), 0)))
        return jnp.stack([step.given(draw.weights)[:, 0], jnp.maximum(step.residual[0], 0.0)])

    return jax.lax.map(moments, draws)


def true_function(truth: Simulated, grid: np.ndarray) -> np.ndarray:
    """Return the true f on a grid."""
    return truth.transition(grid[:, None], np.zeros((len(grid), 0)))[:, 0]


def judge(truth: Simulated, model: GPSSM, draws: Draw) -> Cell:
    """Return the scores, and the curve from which they are computed."""
    visited = truth.states[1:-1]
    grid = np.linspace(visited.min(), visited.max(), GRID)
    pooled = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), draws)
    means, residuals = np.moveaxis(np.asarray(transitions(model, pooled, jnp.asarray(grid))), 1, 0)
    mean = means.mean(0)
    std = np.sqrt(means.var(0) + residuals.mean(0))
    error = true_function(truth, grid) - mean
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "log_density": float(np.mean(norm.logpdf(error, scale=std))),
        "coverage": float(np.mean(np.abs(error) <= 2 * std)),
        "curve": [column.tolist() for column in (grid, mean, std)],
    }


def run(method: str, variant: str, seed: int, quick: bool) -> Cell:
    """Fit one simulated series by one method, and judge the result."""
    truth = simulate("kink", seed=seed, **VARIANTS[variant])
    model = make_model(method, truth)
    lengths = QUICK if quick else LENGTHS.get(method, {})
    settings = dataclasses.replace(METHODS[method], **lengths)
    states = np.concatenate([truth.series.y[:1], truth.series.y])
    runtime = Runtime(num_chains=2, seed=seed, progress=False)
    result = run_chains(settings, [Start(model, [states])], [truth.series], runtime)
    scores = judge(truth, model, result.draws)
    # Hundreds of loaded programs would exhaust the memory maps of a process.
    jax.clear_caches()
    return {"method": method, "variant": variant, "seed": seed} | scores


def table(cells: list[Cell], variant: str, methods: list[str]) -> str:
    """Return medians over seeds with ranges, and how often the kink was learned, per method."""
    lines = [
        f"{variant}\n",
        "| | RMSE | log density | within 2 sd | found |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        results = [cell for cell in cells if (cell["method"], cell["variant"]) == (method, variant)]
        texts = []
        for score, form in (("rmse", ".2f"), ("log_density", ".1f"), ("coverage", ".0%")):
            quantiles = np.quantile([result[score] for result in results], (0, 0.5, 1))
            low, median, high = (format(value, form).replace("-", "−") for value in quantiles)
            texts.append(f"{median} ({low} to {high})")
        count = sum(result["rmse"] < FOUND for result in results)
        lines.append(f"| `{method}` | {' | '.join(texts)} | {count} of {len(results)} |")
    return "\n".join(lines)


@in_house_style()
def draw(cells: list[Cell], variant: str, seed: int, methods: list[str], path: Path) -> None:
    """Draw the truth, the true states and the posterior of f, one panel per method."""
    truth = simulate("kink", seed=seed, **VARIANTS[variant])
    results = {
        cell["method"]: cell for cell in cells if (cell["variant"], cell["seed"]) == (variant, seed)
    }
    shown = [method for method in methods if method in results]
    columns = min(5, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure, axes = panels(rows, columns, height=1.45, sharex=True, sharey=True)
    for panel in axes.flat[len(shown) :]:
        panel.set_visible(False)
    for panel, method in zip(axes.flat, shown, strict=False):
        grid, mean, std = np.array(results[method]["curve"])
        shade(panel, grid, mean - 2 * std, mean + 2 * std, label="± 2 sd")
        panel.plot(grid, true_function(truth, grid), color=BLACK, label="truth")
        panel.plot(grid, mean, color=BLUE, linestyle="--", label="posterior mean")
        states = truth.states[:, 0]
        panel.plot(states[:-1], states[1:], ".", color=VERMILION, label="true states")
        panel.set_title(f"{method} {results[method]['rmse']:.2f}", pad=3)
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
    """Run the cells that are not finished, print the tables, draw the figure."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, default=Path("kink"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS)[:3])
    parser.add_argument("--quick", action="store_true", help="few draws, to try the script")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_enable_x64", True)
    # Fits of one method and one length are one program: compile it once.
    jax.config.update("jax_compilation_cache_dir", str(options.out / "cache"))
    path = options.out / "results.jsonl"
    finished = {(cell["method"], cell["variant"], cell["seed"]) for cell in read_cells(path)}
    for variant in options.variants:
        for seed in options.seeds:
            for method in options.methods:
                if (method, variant, seed) not in finished:
                    append_cell(path, run(method, variant, seed, options.quick))
    cells = read_cells(path)
    print("\n\n".join(table(cells, variant, options.methods) for variant in options.variants))
    draw(cells, options.variants[0], options.seeds[0], options.methods, options.out / "kink.png")


if __name__ == "__main__":
    main()
