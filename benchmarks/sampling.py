"""Effective draws for each 1000 gradients: `ffvd` beside NUTS and the paper's collapsed SGHMC, on one target.

    OPENBLAS_NUM_THREADS=1 GPSSM_DATA=... python benchmarks/sampling.py [--sets furnace,actuator] [--skip-cost]

Hyper-parameters are learned once by `ffvd`, then fixed for all, so every method draws states from the same density.
`ffvd-nuts` is NUTS on plain x with diagonal window adaptation. `ffvd-c-m` is run at several step sizes; what counts is
the fastest whose bias in the forecast's standard deviation, against the long run of `ffvd`, is below 10 %. Forecasts
are the mean paths of the draws. A second part gives the cost of one gradient in the sampler's coordinates up to
T = 100 000.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import dataclasses
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm.build import build_model, linear_start
from gpssm.datasets import load, simulate
from gpssm.diagnostics import ess_bulk
from gpssm.fit import fit
from gpssm.loop import sample
from gpssm.methods import FFVD, FFVDCM, FFVDNUTS, Config
from gpssm.posterior import Posterior, Seconds, forecast_mean
from gpssm.scaler import Scaler
from gpssm.target import log_collapsed
from gpssm.whitening import unstack, whiten

jax.config.update("jax_enable_x64", True)
CHAINS, HORIZON, STATE_DIM, NUM_INDUCING = 2, 30, 4, 50
STEP_SIZES = (0.2, 0.1, 0.05, 0.02)


def learn(name: str) -> tuple[Posterior, np.ndarray]:
    """Hyper-parameters on the training half, and the controls of the forecast."""
    whole = load(name)
    train, test = whole.split(len(whole) // 2)
    found = fit(
        train, state_dim=STATE_DIM, num_inducing=NUM_INDUCING, num_chains=1, num_draws=20, progress=False, seed=0
    )
    return found, test.u[:HORIZON]


def run(learned: Posterior, config: Config) -> Posterior:
    """Draws of the states with the learned hyper-parameters fixed, from where learning ended."""
    model = learned.model_at(0, -1).with_roles("fix", "*")
    start = [path[0, -1] for path in learned.draws.states]
    found = sample(config, model, start, list(learned.series), num_chains=CHAINS, seed=1)
    seconds = Seconds(0.0, found.compile_seconds, found.run_seconds)
    return dataclasses.replace(
        learned, model=model, draws=found.draws, info=found.info, warmup=found.warmup, seconds=seconds
    )


def describe(label: str, posterior: Posterior, u: np.ndarray, reference: np.ndarray | None) -> dict[str, float]:
    """One row: effective draws a thousand gradients of states and forecast, and the bias of the forecast's spread."""
    paths = forecast_mean(posterior, u)[..., 0]
    thousands = float(np.sum(posterior.info.gradients)) / 1000
    states = np.concatenate([np.asarray(p).reshape(*p.shape[:2], -1) for p in posterior.draws.states], -1)
    spread = paths.std((0, 1))
    bias = float(np.median(spread / reference) - 1) if reference is not None else 0.0
    rates = {
        "states": float(np.median(ess_bulk(states))) / thousands,
        "forecast": float(np.min(ess_bulk(paths))) / thousands,
        "bias": bias,
        "ms": 1e3
        * posterior.seconds.run
        / float(np.sum(posterior.info.gradients) + np.sum(posterior.warmup.gradients)),
    }
    print(
        f"{label:22} {rates['states']:10.2f} {rates['forecast']:10.2f} {100 * bias:9.1f} % {rates['ms']:8.2f}"
        f" {thousands:10.1f}",
        flush=True,
    )
    return rates


def compare(name: str, effort: float) -> None:
    """The table of one data set; `effort` scales the lengths of all runs."""

    def times(number: int) -> int:
        return max(int(effort * number), 100)

    learned, u = learn(name)
    length = len(learned.series[0])
    print(f"\n{name}, T={length}, Dx={STATE_DIM}, M={NUM_INDUCING}, {CHAINS} chains, hyper-parameters fixed")
    print(f"{'':22} {'states':>10} {'forecast':>10} {'bias of sd':>11} {'ms/grad':>8} {'1000 grads':>10}")
    ours = run(learned, FFVD(num_warmup=300, num_draws=times(2000)))
    reference = forecast_mean(ours, u)[..., 0].std((0, 1))
    best = describe("ffvd", ours, u, reference)
    nuts = describe("ffvd-nuts (diagonal)", run(learned, FFVDNUTS(num_warmup=300, num_draws=times(300))), u, reference)
    rows = []
    for size in STEP_SIZES:
        config = FFVDCM(num_warmup=5000, num_draws=times(1000), thin=30, step_size=size)
        rows.append(describe(f"ffvd-c-m, step {size}", run(learned, config), u, reference))
    honest = [row for row in rows if abs(row["bias"]) < 0.1]
    ratios = [best[key] / nuts[key] for key in ("states", "forecast")]
    print(f"ffvd / ffvd-nuts: states {ratios[0]:.1f}, forecast {ratios[1]:.1f}")
    if honest:
        states, forecast = (max(row[key] for row in honest) for key in ("states", "forecast"))
        print(f"ffvd / ffvd-c-m:  states {best['states'] / states:.1f}, forecast {best['forecast'] / forecast:.1f}")
    else:
        print("ffvd / ffvd-c-m:  no step size tried has a bias below 10 %")


def cost(lengths: tuple[int, ...] = (1_000, 10_000, 100_000)) -> None:
    """Milliseconds of one gradient in whitened coordinates, and of the whitening itself, against T."""
    print(f"\n{'T':>8} {'gradient ms':>12} {'per 1000 steps':>15} {'whitening s':>12}")
    for length in lengths:
        truth = simulate("duffing", num_steps=length, seed=0).series
        series = [Scaler.fit(truth).scale(truth)]
        start = linear_start(series, 2)
        model = build_model(series, 2, NUM_INDUCING, start=start)
        states = jnp.asarray(start.states[0])
        make = eqx.filter_jit(lambda m, x, s: whiten(jax.random.key(0), m, x, x[None], s, 8))
        jax.block_until_ready(make(model, states, series))
        began = time.perf_counter()
        whitening = jax.block_until_ready(make(model, states, series))
        whitened = time.perf_counter() - began

        def log_density(position: jax.Array, m, w, s) -> jax.Array:
            return log_collapsed(m, unstack(w.to_states(position), s), s)

        slope = eqx.filter_jit(jax.grad(log_density))
        jax.block_until_ready(slope(jnp.zeros(states.size), model, whitening, series))
        began = time.perf_counter()
        for _ in range(3):
            jax.block_until_ready(slope(jnp.zeros(states.size), model, whitening, series))
        one = 1e3 * (time.perf_counter() - began) / 3
        print(f"{length:8d} {one:12.1f} {1000 * one / length:15.2f} {whitened:12.2f}", flush=True)


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default="furnace,actuator")
    parser.add_argument("--effort", type=float, default=1.0, help="scales the lengths of all runs")
    parser.add_argument("--skip-cost", action="store_true")
    options = parser.parse_args()
    for name in filter(None, options.sets.split(",")):
        compare(name, options.effort)
    if not options.skip_cost:
        cost()


if __name__ == "__main__":
    main()
