"""The cost of iterations of each method: CPU seconds for 1000 iterations on the training half of
furnace, one thread.

    python benchmarks/methods.py [METHOD ...]

Four states, 50 inducing points. A few iterations are timed and scaled up; compilation is timed
separately. `prssm` and `vcdt` have second rows with the numbers of samples of their papers.
"""

import dataclasses
import os
import sys
import time
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["NPROC"] = "1"  # of XLA's threads

import jax
import jax.numpy as jnp

from gpssm.data.datasets import load
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings
from gpssm.methods import METHODS, PRSSM, VCDT
from gpssm.methods.spec import Spec
from gpssm.starts.build import assign_roles

ITERATIONS = 20
PUBLISHED = {
    "ffvd-m": 239,
    "vgpssm": 53,
    "prssm": 2138,
    "vcdt": 3375,
}  # seconds for 1000, on a laptop
CASES: dict[str, MethodSettings] = {
    **{
        name: METHODS[name]
        for name in (
            "ffvd",
            "ffvd-m",
            "ffvd-c-m",
            "ffvd-p",
            "fic-pg",
            "rrank",
            "vgpssm",
            "igpssm",
            "envi",
        )
    },
    "prssm": PRSSM(),
    "prssm, 50 particles": PRSSM(num_samples=50),
    "vcdt, its factorised start": VCDT(factorised=1.0),
    "vcdt": VCDT(factorised=0.0),
    "vcdt, 100 samples": VCDT(factorised=0.0, num_samples=100),
}


def measure(config: MethodSettings, series: list[Series]) -> tuple[float, float]:
    """CPU seconds of compilation, and of 1000 iterations."""
    spec = Spec(method=config, likelihood="gaussian")
    model, states, _ = config.prepare(series, spec, jax.random.key(0))
    model = assign_roles(model, spec)
    # The iterations timed lie inside the warm-up, where a method learns.
    method = dataclasses.replace(config, num_warmup=1000).build(
        model, tuple(map(jnp.asarray, states))
    )

    def run(carry: Any, key: Any) -> Any:
        return jax.lax.scan(
            lambda now, one: method.step(one, now, series), carry, jax.random.split(key, ITERATIONS)
        )

    carry = jax.jit(method.init)(jax.random.key(0), series)
    began = time.process_time()
    program = jax.jit(run).lower(carry, jax.random.key(1)).compile()
    compiled = time.process_time()
    carry, _ = jax.block_until_ready(program(carry, jax.random.key(1)))
    started = time.process_time()
    jax.block_until_ready(program(carry, jax.random.key(2)))
    return compiled - began, (time.process_time() - started) * 1000 / ITERATIONS


def main(names: list[str]) -> None:
    """A row a method, in Markdown."""
    jax.config.update("jax_enable_x64", True)
    train, _ = load("furnace").split(0.5)
    series = [Scaler.fit([train]).scale(train)]
    print(
        "| method | 1000 iterations, CPU s | compilation, CPU s | published, s | ratio |\n|---|---|---|---|---|"
    )
    for name in names or CASES:
        compilation, seconds = measure(CASES[name], series)
        published = PUBLISHED.get(name.split(",")[0])
        ratio = "–" if published is None else f"{published / seconds:.0f}"
        print(
            f"| {name} | {seconds:.1f} | {compilation:.1f} | {published or '–'} | {ratio} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
