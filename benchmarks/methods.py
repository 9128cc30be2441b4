"""CPU seconds for 1000 iterations of each method on the training half of Furnace, one thread.

    GPSSM_DATA=... python benchmarks/methods.py [METHOD ...]

Four states, 50 inducing points. A few iterations are timed and scaled up; compilation is timed
separately. `prssm` and `vcdt` have second rows with the numbers of samples of their papers.
"""

import os

os.environ["NPROC"] = "1"  # threads of XLA

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from common import Timer, command_line

from gpssm.data.datasets import load
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings
from gpssm.methods import METHODS, PRSSM, VCDT
from gpssm.methods.spec import Spec
from gpssm.starts.build import assign_roles

ITERATIONS = 20
# Seconds that the papers print for 1000 iterations on a laptop.
PUBLISHED = {"ffvd-m": 239, "vgpssm": 53, "prssm": 2138, "vcdt": 3375}
PLAIN = ("ffvd", "ffvd-m", "ffvd-c-m", "ffvd-p", "fic-pg", "rrank", "vgpssm", "igpssm", "envi")
CASES: dict[str, MethodSettings] = {
    **{name: METHODS[name] for name in PLAIN},
    "prssm": PRSSM(),
    "prssm, 50 particles": PRSSM(num_samples=50),
    "vcdt, its factorised start": VCDT(factorised=1.0),
    "vcdt": VCDT(factorised=0.0),
    "vcdt, 100 samples": VCDT(factorised=0.0, num_samples=100),
}


def measure(settings: MethodSettings, series: list[Series]) -> tuple[float, float]:
    """Return the CPU seconds of compilation, and of 1000 iterations."""
    spec = Spec(method=settings, state_dim=4, num_inducing=50, likelihood="gaussian")
    model, states, _ = settings.prepare(series, spec, jax.random.key(0))
    # The iterations timed lie inside the warm-up, where a method learns.
    method = dataclasses.replace(settings, num_warmup=1000).build(
        assign_roles(model, spec), tuple(map(jnp.asarray, states))
    )

    def run(carry: Any, key: Any) -> Any:
        return jax.lax.scan(
            lambda carry, key: method.step(key, carry, series),
            carry,
            jax.random.split(key, ITERATIONS),
        )

    carry = jax.jit(method.init)(jax.random.key(0), series)
    with Timer() as compilation:
        program = jax.jit(run).lower(carry, jax.random.key(1)).compile()
    carry, _ = jax.block_until_ready(program(carry, jax.random.key(1)))
    with Timer() as iterations:
        jax.block_until_ready(program(carry, jax.random.key(2)))
    return compilation.cpu, iterations.cpu * 1000 / ITERATIONS


def main() -> None:
    """Print one row per method, in Markdown."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", metavar="METHOD", default=list(CASES))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    train, _ = load("furnace").split(0.5)
    series = [Scaler.fit([train]).scale(train)]
    print("| method | 1000 iterations, CPU s | compilation, CPU s | published, s | ratio |")
    print("|---|---|---|---|---|")
    for name in options.names:
        compilation, seconds = measure(CASES[name], series)
        published = PUBLISHED.get(name.split(",")[0])
        ratio = "–" if published is None else f"{published / seconds:.0f}"
        print(
            f"| {name} | {seconds:.1f} | {compilation:.1f} | {published or '–'} | {ratio} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
