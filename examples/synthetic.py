"""Is the posterior Gaussian? The synthetic study of Fan et al. (2023).

    x_{t+1} = f(x_t) + N(0, .01),   y_t = x_{t+1} + N(0, .01)

f is a sparse GP with 20 inducing outputs U = L v. A transition is drawn, 120 outputs are simulated,
and the free-form posterior of states and inducing outputs is sampled with all parameters at their
true values, by `ffvd` and by particle Gibbs, which can jump between modes of the first state.
D'Agostino and Pearson's test is then applied to each marginal.

    python examples/synthetic.py [--seeds 4 ...] [--out FILE] [--quick]
"""

import argparse
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import signal, stats

import gpssm
from gpssm.datasets import Simulated, simulate_model
from gpssm.diagnostics import ess_bulk, rhat
from gpssm.inference.runner import run_chains
from gpssm.methods import METHODS, MethodSettings
from gpssm.starts.build import Start

jax.config.update("jax_enable_x64", True)

LOCATIONS = np.linspace(-2.0, 2.0, 20)
VARIANCE = 2.0
LENGTHSCALE = 0.5
GRID = np.linspace(-2.5, 2.5, 201)
BOTTOM = -5.0  # of the transition's panel
BLOCK = 50  # draws in one test of normality, as in the paper
LEVEL = 0.05
# Draws are thinned until the test can treat them as independent.
RUNS = {
    "ffvd": {"num_warmup": 500, "num_draws": 250, "thin": 10},
    "ffvd-p": {"num_warmup": 200, "num_draws": 250, "thin": 5},
}
QUICK = {"num_warmup": 50, "num_draws": 25, "thin": 1}
# Of the Okabe-Ito palette.
BLACK = "#000000"
ORANGE = "#E69F00"
BLUE = "#0072B2"
GREEN = "#009E73"


class Study(NamedTuple):
    """The simulated series and the draws, whose leading axes are (chain, draw)."""

    truth: Simulated
    states: np.ndarray  # (chain, draw, T+1)
    inducing: np.ndarray  # (chain, draw, M)
    function: np.ndarray  # f at GRID
    notes: tuple[str, ...]  # warnings of the sampler


def simulate_sparse_gp(seed: int, num_steps: int = 120) -> Simulated:
    """Simulate a transition drawn from a sparse Gaussian process with mean zero.

        f(x) = k(x, Z) k(Z, Z)⁻¹ U,    U ~ N(0, k(Z, Z))

    with k squared-exponential and Z evenly spaced in [−2, 2], outside which f returns to zero.
    """
    rng = np.random.default_rng(seed)

    def covariance(x: np.ndarray) -> np.ndarray:
        """Return k(x, Z), with a new last axis for Z."""
        return VARIANCE * np.exp(-0.5 * np.square((x[..., None] - LOCATIONS) / LENGTHSCALE))

    factor = np.linalg.cholesky(covariance(LOCATIONS) + 1e-8 * VARIANCE * np.eye(len(LOCATIONS)))
    # k(Z,Z)⁻¹ U = L⁻ᵀ v with v ~ N(0, I)
    coefficients = np.linalg.solve(factor.T, rng.normal(size=len(LOCATIONS)))
    return simulate_model(
        rng,
        lambda x, u: covariance(x) @ coefficients,
        np.zeros((num_steps, 0)),
        process_std=0.1,
        noise_std=0.1,
        C=np.eye(1),
        name="sparse_gp",
    )


def run(truth: Simulated, seed: int, settings: MethodSettings) -> Study:
    """Sample the posterior under the true parameters with four chains."""
    model = gpssm.GPSSM.create(
        gpssm.kernels.SquaredExponential.build(1, 1, variance=VARIANCE, lengthscale=LENGTHSCALE),
        gpssm.bases.InducingPoints(jnp.asarray(LOCATIONS[:, None])),
        gpssm.means.Zero(),
        gpssm.likelihoods.Gaussian.build(*map(jnp.asarray, (truth.C, truth.d, truth.noise_std))),
        jnp.asarray(truth.process_std),
    ).with_roles("fix", "*")
    # Outside of the locations B / 2Q is about 100: start within.
    start = np.clip(np.concatenate([np.zeros((1, 1)), truth.series.y]), LOCATIONS[0], LOCATIONS[-1])
    runtime = gpssm.Runtime(seed=seed, progress=False)
    result = run_chains(settings, [Start(model, [start])], [truth.series], runtime)
    draws = result.draws
    weights = draws.weights[:, :, 0]
    root = np.linalg.inv(np.asarray(model.basis.factorise(model.kernel))[0]).T  # L, from L⁻ᵀ
    gain = model.transition()(jnp.asarray(GRID[:, None]), jnp.zeros((len(GRID), 0))).gain[0]
    inducing = weights @ root.T  # U = L v
    function = weights @ np.asarray(gain).T  # f = A v
    return Study(truth, draws.states[0][..., 0], inducing, function, result.notes)


def p_values(values: np.ndarray, block: int) -> np.ndarray:
    """Return p-values (blocks, n) of the test, in blocks of draws from all chains."""
    pooled = values.swapaxes(0, 1).reshape(-1, values.shape[2])
    blocks = pooled[: len(pooled) // block * block].reshape(-1, block, values.shape[2])
    return stats.normaltest(blocks, axis=1).pvalue


def num_modes(values: np.ndarray) -> np.ndarray:
    """Count the peaks of each marginal's density with a prominence of a tenth of the highest."""

    def count(marginal: np.ndarray) -> int:
        density = stats.gaussian_kde(marginal)(np.linspace(marginal.min(), marginal.max(), 200))
        padded = np.pad(density / density.max(), 1)
        return len(signal.find_peaks(padded, prominence=0.1)[0])

    return np.array([count(marginal) for marginal in values.reshape(-1, values.shape[2]).T])


def report(method: str, study: Study) -> None:
    """Print the shares of marginals for which normality is rejected, and diagnostics."""
    print(f"  {method}", *study.notes, sep="\n    ")
    still = np.mean(np.ptp(study.states, axis=(0, 1)) < 1e-6)
    if still:
        print(f"    stuck: {still:.0%} of the states never moved in any chain")
        return
    for name, values in (("states", study.states), ("inducing", study.inducing)):
        shares = np.mean(p_values(values, BLOCK) < LEVEL, axis=1)
        total = values.shape[0] * values.shape[1]
        pooled = np.mean(p_values(values, total) < LEVEL)
        rhats = rhat(values)
        sizes = ess_bulk(values)
        print(
            f"    {name:8s} rejected: {shares.mean():.0%} with {BLOCK} draws ({shares.min():.0%} "
            f"to {shares.max():.0%} over {len(shares)} sets), {pooled:.0%} with {total}; "
            f"R-hat median {np.median(rhats):.2f}, worst {np.max(rhats):.2f}; "
            f"ESS median {np.median(sizes):.0f}, least {np.min(sizes):.0f}; "
            f"more than one mode: {np.flatnonzero(num_modes(values) > 1).tolist()}"
        )
    low, high = np.quantile(study.states, (0.05, 0.95), axis=(0, 1))
    covered = np.mean((low <= study.truth.states[:, 0]) & (study.truth.states[:, 0] <= high))
    print(
        f"    R-hat of x₀ {rhat(study.states[:, :, :1])[0]:.2f}; "
        f"90 % intervals cover {covered:.0%} of the true states"
    )


def draw_transition(axes: Any, study: Study, reference: Study) -> None:
    """Draw f with its band, and the marginal of x₀ by both methods.

    The modes of x₀ are where f equals y₀.
    """
    low, middle, high = np.quantile(study.function, (0.05, 0.5, 0.95), axis=(0, 1))
    axes.fill_between(GRID, low, high, color=BLUE, alpha=0.25, lw=0, label="5–95 %")
    axes.plot(GRID, middle, color=BLUE, label="median")
    axes.plot(
        GRID,
        study.truth.transition(GRID[:, None], np.zeros((len(GRID), 0))),
        "--",
        color=BLACK,
        label="truth",
    )
    low, middle, high = np.quantile(study.inducing, (0.05, 0.5, 0.95), axis=(0, 1))
    axes.errorbar(
        LOCATIONS,
        middle,
        (middle - low, high - middle),
        fmt="o",
        ms=3,
        lw=1,
        color=ORANGE,
        label="inducing outputs",
    )
    for drawn, style in ((study, {"fill": True, "alpha": 0.5}), (reference, {"lw": 1.2})):
        heights, edges = np.histogram(drawn.states[:, :, 0], 100, (GRID[0], GRID[-1]), density=True)
        label = "x₀ | y, ffvd-p" if drawn is reference else "x₀ | y, ffvd"
        axes.stairs(
            BOTTOM + 0.25 * heights, edges, baseline=BOTTOM, color=GREEN, label=label, **style
        )
    axes.axhline(study.truth.series.y[0, 0], color=GREEN, ls=":", lw=1.5, label="y₀")
    axes.set(
        xlabel="x",
        ylabel="f(x)",
        xlim=(GRID[0], GRID[-1]),
        ylim=(BOTTOM, -BOTTOM),
        title="(a) Transition",
    )
    axes.legend(ncols=3, loc="upper center", fontsize=7, frameon=False, columnspacing=1.0)


def draw_states(axes: Any, study: Study) -> None:
    """Draw the smoothed states with their band."""
    low, middle, high = np.quantile(study.states, (0.05, 0.5, 0.95), axis=(0, 1))
    time = np.arange(len(middle))
    axes.fill_between(time, low, high, color=BLUE, alpha=0.35, lw=0, label="5–95 %")
    axes.plot(time, middle, color=BLUE, lw=1, label="median")
    axes.plot(time, study.truth.states[:, 0], "--", color=BLACK, lw=0.8, label="truth")
    axes.plot(time[1:], study.truth.series.y[:, 0], ".", ms=3, color=ORANGE, label="output")
    axes.set(xlabel="time", ylabel="state", xlim=(-1, len(time)), title="(c) Smoothed states")
    axes.margins(y=0.25)
    axes.legend(ncols=4, loc="upper left", fontsize=7, frameon=False)


def draw_tests(axes: Any, study: Study) -> None:
    """Draw the share of marginals with a p-value below p, against p."""
    total = study.states.shape[0] * study.states.shape[1]
    levels = np.geomspace(1e-4, 1.0, 200)
    for name, values, colour in (
        ("states", study.states, BLUE),
        ("inducing outputs", study.inducing, ORANGE),
    ):
        for block, style in ((BLOCK, "-"), (total, "--")):
            ordered = np.sort(p_values(values, block).ravel())
            share = np.searchsorted(ordered, levels, side="right") / len(ordered)
            axes.plot(levels, share, style, color=colour, label=f"{name}, {block} draws")
    axes.plot(levels, levels, ":", color=BLACK, label="if Gaussian")
    axes.axvline(LEVEL, color=BLACK, lw=0.5)
    axes.set(
        xscale="log",
        xlabel="p",
        ylabel="share of marginals with p-value ≤ p",
        xlim=(1e-4, 1),
        ylim=(0, 1),
    )
    axes.set_title("(b) Normality tests")
    axes.legend(loc="upper left", fontsize=7, frameon=False)


def draw_figure(study: Study, reference: Study, path: str) -> None:
    """Draw all three panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    draw_transition(figure.add_subplot(grid[0, 0]), study, reference)
    draw_tests(figure.add_subplot(grid[0, 1]), study)
    draw_states(figure.add_subplot(grid[1, :]), study)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Report on every seed, and draw the figure for the first."""
    parser = argparse.ArgumentParser(
        description="The posterior of a GP state-space model is not Gaussian."
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[4])
    parser.add_argument("--out", default="synthetic.png")
    parser.add_argument("--quick", action="store_true", help="few draws, for a smoke test")
    options = parser.parse_args()
    for seed in options.seeds:
        truth = simulate_sparse_gp(seed)
        inside = np.mean(np.abs(truth.states) <= LOCATIONS[-1])
        print(f"seed {seed}: {inside:.0%} of the true states lie between the inducing points")
        studies = []
        for method, lengths in RUNS.items():
            settings = dataclasses.replace(METHODS[method], **(QUICK if options.quick else lengths))
            studies.append(run(truth, seed, settings))
            report(method, studies[-1])
        if seed == options.seeds[0]:
            draw_figure(*studies, options.out)


if __name__ == "__main__":
    main()
