"""Milliseconds for value and gradient of `log_collapsed`, compared with the matrix products alone.

    OPENBLAS_NUM_THREADS=1 python benchmarks/density.py

The products are those of the chain rule: forward k(z,Z) from scaled dot products, A = k·L⁻ᵀ and AᵀA; backward, one
each for A's share of AᵀA, for k's share of A and for the states' share of k. Four of the six are
large, T·M². The minimum is one product less: the two backward ones can be A·(S·L⁻¹) with S the
derivative by AᵀA, since S·L⁻¹ is small. The exponentials, both Cholesky factors and their inverses
are not included. The density is timed with the computation of L⁻¹, as for new parameters, and
without it, as along a trajectory of the sampler. All are timed in one run on one thread,
alternately, and ratios are those of medians. A second part times a series of 100 000 steps and
reports the temporary memory according to XLA.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import statistics
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm.data.series import Series
from gpssm.model.bases import InducingPoints
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import Identity
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed

jax.config.update("jax_enable_x64", True)
REPEATS = 40


def example(
    length: int, num_inducing: int, state_dim: int, dtype: type
) -> tuple[GPSSM, jax.Array, Series]:
    """A model, states and a series of standard normal numbers."""
    rng = np.random.default_rng(0)
    dim = state_dim + 1
    model = GPSSM.create(
        SquaredExponential.build(state_dim, dim, 0.5, 2.0),
        InducingPoints(jnp.asarray(rng.normal(size=(num_inducing, dim)))),
        Identity(),
        Gaussian.build(jnp.ones((1, state_dim)), jnp.zeros(1), jnp.ones(1)),
        jnp.full((state_dim,), 0.3),
    )
    model = jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, model
    )
    series = Series(y=rng.normal(size=(length, 1)), u=rng.normal(size=(length, 1)))
    return model, jnp.asarray(rng.normal(size=(length + 1, state_dim)), dtype), series


def bare_products(
    length: int, num_inducing: int, state_dim: int, dtype: type, least: bool
) -> Callable[[], jax.Array]:
    """The forward and backward products alone, on random matrices of the same sizes; one less if they are the least."""
    rng = np.random.default_rng(1)

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(state_dim, *shape)), dtype)

    scaled, points = random(length, state_dim + 1), random(num_inducing, state_dim + 1)
    tall, square = random(length, num_inducing), random(num_inducing, num_inducing)

    @jax.jit
    def products(
        scaled: jax.Array, points: jax.Array, tall: jax.Array, square: jax.Array
    ) -> jax.Array:
        forward = [scaled @ points.mT, tall @ square, tall.mT @ tall]
        backward = [tall @ square.mT, *([] if least else [tall @ (2 * square)]), tall @ points]
        return sum(jnp.sum(one[:, 0, 0]) for one in [*forward, *backward])

    return lambda: products(scaled, points, tall, square)


def milliseconds(*calls: Callable[[], object]) -> list[float]:
    """The median time of each call, taken in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        jax.block_until_ready(call())
    for _ in range(REPEATS):
        for call, record in zip(calls, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            record.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(record) for record in times]


def compare(
    chains: int, dtype: type, length: int = 500, num_inducing: int = 100, state_dim: int = 4
) -> None:
    """One row of the table."""
    model, states, series = example(length, num_inducing, state_dim, dtype)
    both = jax.value_and_grad(lambda x, m, s: log_collapsed(m, x, s))
    many, sizes = jnp.stack([states] * chains), (length, num_inducing, state_dim, dtype)
    density = eqx.filter_jit(lambda x, m, s: jax.lax.map(lambda one: both(one, m, s), x))
    products, least, prepared = (
        bare_products(*sizes, least=False),
        bare_products(*sizes, least=True),
        model.prepared(),
    )
    ours, ready, bare, fewer = milliseconds(
        lambda: density(many, model, series),
        lambda: density(many, prepared, series),
        lambda: [products() for _ in range(chains)],
        lambda: [least() for _ in range(chains)],
    )
    times = "".join(f"{one:10.2f}" for one in (ours, ready, bare, fewer))
    ratios = "".join(f"{one:10.2f}" for one in (ours / bare, ready / bare, ready / fewer))
    print(f"{np.dtype(dtype).name:8} {chains:7d}{times}{ratios}")


def long_series(length: int = 100_000, num_inducing: int = 100, state_dim: int = 4) -> None:
    """Temporary memory and time of value + gradient for a long series."""
    model, states, series = example(length, num_inducing, state_dim, np.float64)
    arrays, static = eqx.partition(model, eqx.is_array)
    both = jax.jit(
        lambda x, a, s: jax.value_and_grad(lambda z: log_collapsed(eqx.combine(a, static), z, s))(x)
    )
    compiled = both.lower(states, arrays, series).compile()
    start = time.perf_counter()
    jax.block_until_ready(compiled(states, arrays, series))
    memory = compiled.memory_analysis().temp_size_in_bytes / 1e6
    print(
        f"T={length}, M={num_inducing}, Dx={state_dim}: {time.perf_counter() - start:.2f} s, {memory:.0f} MB"
    )


def main() -> None:
    """Print both parts."""
    print("T=500, M=100, Dx=4, Du=1: value + gradient of log_collapsed, one thread")
    names = ("density", "at hand", "products", "least", "ratio", "at hand", "to least")
    print(f"{'dtype':8} {'chains':>7}" + "".join(f"{name:>10}" for name in names))
    for dtype in (np.float64, np.float32):
        for chains in (1, 16):
            compare(chains, dtype)
    long_series()


if __name__ == "__main__":
    main()
