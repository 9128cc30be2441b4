"""Further studies of the paper: time against iterations, traces of two samplers, figures of fits.

    OPENBLAS_NUM_THREADS=1 GPSSM_DATA=... python benchmarks/paper.py time|traces|fits [--out docs/figures]

`time` gives CPU seconds and the P30 error on Furnace after 100, 300 and 1000 iterations, half of them warm-up, with
four states and 100 inducing points as in the paper; compilation is reported separately. `traces`
runs FFVD-M and FFVD-C-M from the same states with the same fixed hyper-parameters, and reports when
each first reaches the typical set: when log q*(x), the log density of its states with the weights
integrated out, is within two standard deviations of its mean under `ffvd`, which has an accept
step. The samplers adapt their scales in the first iterations, marked in the figure. `fits` draws
the smoothed end of each training half and the forecast of the next 30 steps. Tables are printed in
Markdown, figures written as PNG.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import dataclasses
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm.data.datasets import load
from gpssm.fitting.fit import fit
from gpssm.inference.chains import Chains
from gpssm.methods import FFVD, FFVDCM, FFVDM, MethodSettings
from gpssm.methods.spec import Spec
from gpssm.model.target import log_collapsed
from gpssm.model.types import Draw
from gpssm.plots.style import (
    BLACK,
    BLUE,
    LIGHT,
    LINES,
    VERMILION,
    in_house_style,
    legend,
    panels,
    shade,
)
from gpssm.posterior.draws import absorb_common, model_of
from gpssm.posterior.posterior import Posterior
from gpssm.starts.build import Start, assign_roles

jax.config.update("jax_enable_x64", True)
STATE_DIM, NUM_INDUCING = 4, 100
BUDGETS = (100, 300, 1000)
METHODS: dict[str, type[MethodSettings]] = {"ffvd-m": FFVDM, "ffvd-c-m": FFVDCM, "ffvd": FFVD}
ADAPTING, EVERY, CHAINS = 1_000, 10, 4
DEEPEST = 600  # below the level, shown of a trace
ITERATIONS = {0.01: 24_000, 0.05: 4_000}  # by the step size, of which the paper takes the first
# What rolling forecasts inside the training halves chose.
CHOSEN: dict[str, dict[str, Any]] = {
    "actuator": {"state_dim": 3},
    "ballbeam": {"state_dim": 3},
    "drive": {"state_dim": 3, "likelihood": "abs"},
    "dryer": {"state_dim": 4},
    "flutter": {"state_dim": 4, "mean": "linear-fixed"},
    "furnace": {"state_dim": 4, "mean": "linear-fixed"},
}


class Run(NamedTuple):
    """Draws with axes (chain, draw), CPU seconds of a chain, and seconds on the clock for compilation."""

    draws: Draw
    seconds: float
    compilation: float


def run(
    config: MethodSettings, model: Any, states: Any, series: list[Any], num_chains: int, first: int
) -> Run:
    """Chains from the same states, each in one thread; they are compiled before their time is taken.

    Draws are kept from iteration `first` on, every `config.thin` of them, in warm-up too if there is any left.
    """
    chains = Chains(config, [Start(model, states)], series, 0, num_chains, "map", None)
    carry = chains.start(pilot=False)
    chains.advance(carry, 1, 1, 1, True)
    began, done, kept = time.process_time(), 0, []
    total = config.num_warmup + config.num_draws * config.thin
    while done < total:
        keep = done >= first
        thin = config.thin if keep else 1
        blocks = min(chains.layout.rows, ((total if keep else first) - done) // thin)
        carry, chunk = chains.advance(carry, 1 + done, blocks, thin, keep)
        done += blocks * thin
        kept += [chunk.draws] if keep else []
    seconds = (time.process_time() - began) / num_chains
    return Run(
        jax.tree.map(lambda *parts: np.concatenate(parts, 1), *kept),
        seconds,
        chains.compile_seconds,
    )


def learned(name: str, **settings: Any) -> tuple[Posterior, Any]:
    """A short fit to the training half, and the test half."""
    whole = load(name)
    train, test = whole.split(len(whole) // 2)
    return fit(train, num_chains=1, progress=False, seed=0, **settings), test


def study_time() -> None:
    """Seconds and errors against iterations."""
    start, test = learned(
        "furnace", state_dim=STATE_DIM, num_inducing=NUM_INDUCING, num_warmup=3, num_draws=4
    )
    series, rows = list(start.dataset.scaled), []
    for name, method in METHODS.items():
        for budget in BUDGETS:
            config = method(num_warmup=budget // 2, num_draws=budget // 10, thin=5)
            spec = Spec(
                config, state_dim=STATE_DIM, num_inducing=NUM_INDUCING, likelihood="gaussian"
            )
            model, states, _ = config.prepare(series, spec, jax.random.key(0))
            found = run(config, assign_roles(model, spec), states, series, 1, budget // 2)
            model, draws = absorb_common([model], found.draws)
            posterior = dataclasses.replace(start, model=model, draws=draws)
            scores = posterior.forecast(30, test.u[:30], seed=0).score(test[:30])
            rows.append(
                (
                    name,
                    budget,
                    f"{found.seconds:.1f}",
                    f"{found.compilation:.1f}",
                    f"{scores['rmse']:.3f}",
                )
            )
    show(["", "iterations", "CPU seconds", "compilation, s", "P30 RMSE"], rows)


def study_traces(out: Path) -> None:
    """When each sampler comes near where it stays."""
    start, _ = learned("furnace", state_dim=STATE_DIM, num_inducing=50, num_draws=20)
    model, series = model_of(start, 0, -1).with_roles("fix", "*"), list(start.dataset.scaled)
    smoothed = [np.mean(np.asarray(path), (0, 1)) for path in start.draws.states]
    starts = {"posterior mean": smoothed, "zeros": [np.zeros_like(path) for path in smoothed]}
    exact = trace(
        model,
        run(FFVD(num_warmup=300, num_draws=300, thin=3), model, smoothed, series, 2, 300).draws,
        series,
    )
    level, spread = float(exact.mean()), float(exact.std())
    figure, axes = panels(len(starts), len(ITERATIONS), height=2.2, sharex=True, sharey=True)
    rows = [("", "", "ffvd", f"{level:.0f} ± {spread:.0f}", "", "", "")]
    for axis, (where, states) in zip(axes, starts.items(), strict=True):
        for panel, size in zip(axis, ITERATIONS, strict=True):
            panel.set_title(f"from {where}, step {size}")
            panel.axvspan(EVERY, ADAPTING, color=LIGHT, zorder=0, linewidth=0, alpha=0.6)
            panel.axhline(level, color=BLACK, linewidth=0.8, linestyle="--")
            for style, (name, method) in zip(LINES, list(METHODS.items())[:2], strict=False):
                draws = (ITERATIONS[size] - ADAPTING) // EVERY
                config = method(num_warmup=ADAPTING, num_draws=draws, thin=EVERY, step_size=size)
                found = run(config, model, states, series, CHAINS, 0)
                traces = trace(model, found.draws, series)
                rows.append(
                    (
                        where,
                        size,
                        name,
                        *arrival(traces, level, spread),
                        f"{found.seconds / ITERATIONS[size] * 1e3:.1f}",
                    )
                )
                steps = EVERY * np.arange(1, traces.shape[1] + 1)
                lines = panel.semilogx(steps, traces.T, linewidth=0.6, alpha=0.7, **style)
                lines[0].set_label(name)
    axes[0, 0].set_ylim(level - DEEPEST, level + DEEPEST / 3)
    show(
        [
            "start",
            "step",
            "",
            "log q*(x) in the second half",
            "iterations to be near",
            "in four chains",
            "ms an iteration",
        ],
        rows,
    )
    finish(figure, axes, out / "traces_m_cm.png", "iteration", "log q*(x)")


def trace(model: Any, draws: Draw, series: list[Any]) -> np.ndarray:
    """log q*(x) of each draw's states, (chain, draw)."""
    density = eqx.filter_jit(
        lambda paths: jax.lax.map(lambda path: log_collapsed(model, path, series), paths)
    )
    flat = tuple(jnp.asarray(path.reshape(-1, *path.shape[2:])) for path in draws.states)
    return np.asarray(density(flat)).reshape(draws.states[0].shape[:2])


def arrival(traces: np.ndarray, level: float, spread: float) -> tuple[str, str, str]:
    """The mean and sd of the second halves, and when chains are first near the level."""
    late, near = traces[:, traces.shape[1] // 2 :], np.abs(traces - level) < 2 * spread
    first = EVERY * np.where(near.any(1), np.argmax(near, 1) + 1, traces.shape[1])
    return (
        f"{late.mean():.0f} ± {late.std(1).mean():.0f}",
        f"{np.median(first):.0f}",
        ", ".join(map(str, sorted(first))),
    )


def study_fits(out: Path, selections: Path | None) -> None:
    """The last rows of the training half smoothed, and 30 steps more, on every benchmark."""
    given = json.loads(selections.read_text()) if selections else {}
    chosen = CHOSEN | {name: one["best"] for name, one in given.items() if one["status"] == "ok"}
    figure, axes = panels(3, 2, height=1.8)
    for panel, (name, settings) in zip(axes.ravel(), chosen.items(), strict=True):
        whole = load(name)
        train, test = whole.split(len(whole) // 2)
        posterior = fit(train, progress=False, seed=0, **settings)
        draw_fit(panel, posterior, test)
        rest = ", ".join(str(value) for key, value in settings.items() if key != "state_dim")
        panel.set_title(f"{name}: {settings['state_dim']} states" + f", {rest}" * bool(rest))
        print(name, flush=True)
    finish(figure, axes, out / "fits.png", "step", "")


def draw_fit(panel: Any, posterior: Posterior, test: Any) -> None:
    """Outputs without noise before the line, the forecast with its 90 % interval after it."""
    horizon, length = 30, len(posterior.dataset.experiments[0])
    smoothed, forecast = posterior.smooth(), posterior.forecast(horizon, test.u[:horizon])
    shown = min(length, 4 * horizon)
    for paths, first, color, label in (
        (smoothed, 0, BLUE, "smoothed"),
        (forecast, length, VERMILION, "forecast"),
    ):
        steps = first + np.arange(paths.horizon)
        low, high = (limit[:, 0] for limit in paths.interval(0.9))
        shade(panel, steps, low, high, color=color, alpha=0.3, label=f"{label}, 90 %")
        panel.plot(steps, paths.mean[:, 0], color=color, label=f"{label}, mean")
    actual = np.concatenate([posterior.dataset.experiments[0].y[:, 0], test.y[:horizon, 0]])
    panel.plot(np.arange(len(actual)), actual, ".", color=BLACK, markersize=2.5, label="data")
    panel.axvspan(length, length + horizon, color=LIGHT, zorder=0, linewidth=0, alpha=0.5)
    panel.set_xlim(length - shown, length + horizon)
    visible = actual[length - shown :]
    margin = 0.3 * np.ptp(visible)
    panel.set_ylim(visible.min() - margin, visible.max() + margin)


def finish(figure: Any, axes: np.ndarray, path: Path, across: str, up: str) -> None:
    """Labels at the edges, one legend, and the file."""
    for bottom, left in zip(axes[-1], axes[:, 0], strict=False):
        bottom.set_xlabel(across)
        left.set_ylabel(up)
    legend(figure)
    figure.savefig(path, dpi=130)
    print(f"written to {path}")


def show(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """A table in Markdown."""
    for line in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(map(str, line))} |", flush=True)


def main() -> None:
    """The study that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["time", "traces", "fits"])
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "figures"
    )
    parser.add_argument(
        "--selections", type=Path, help="selections.json of a sweep with ffvd-auto, for `fits`"
    )
    options = parser.parse_args()
    with in_house_style():
        studies = {"time": study_time, "traces": lambda: study_traces(options.out)}
        studies.get(options.study, lambda: study_fits(options.out, options.selections))()


if __name__ == "__main__":
    main()
