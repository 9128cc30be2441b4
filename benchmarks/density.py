"""Milliseconds of value and gradient of `log_collapsed`, beside matrix products of the same sizes.

    python benchmarks/density.py

The products are those of the chain rule: forward k(z, Z) from scaled dot products, A = k L⁻ᵀ and
AᵀA; backward, one each for the share of A in AᵀA, of k in A and of the states in k. Four of the six
are of size T M². The fewest products that suffice are one less: the two backward ones can be
A (S L⁻¹), with S the gradient with respect to AᵀA, because S L⁻¹ is small. Exponentials, Cholesky
factors and inverses are in neither.

The density is timed with L⁻¹ to be computed, as for new parameters, and with L⁻¹ precomputed, as
along a trajectory of the sampler. All are timed alternately on one thread, and ratios are of the
medians. A second part times a series of 100 000 steps and reports XLA's temporary memory.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from common import Timer, command_line

from gpssm.data.series import Series
from gpssm.model.bases import InducingPoints
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import Identity
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed

ROWS = 500
LONG_ROWS = 100_000
NUM_INDUCING = 100
STATE_DIM = 4
REPEATS = 40


def example(rows: int, dtype: type) -> tuple[GPSSM, jax.Array, Series]:
    """Return a model, states and a series of standard normal numbers."""
    rng = np.random.default_rng(0)
    dim = STATE_DIM + 1
    model = GPSSM.create(
        SquaredExponential.build(STATE_DIM, dim, 0.5, 2.0),
        InducingPoints(jnp.asarray(rng.normal(size=(NUM_INDUCING, dim)))),
        Identity(),
        Gaussian.build(jnp.ones((1, STATE_DIM)), jnp.zeros(1), jnp.ones(1)),
        jnp.full((STATE_DIM,), 0.3),
    )
    model = jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, model
    )
    series = Series(y=rng.normal(size=(rows, 1)), u=rng.normal(size=(rows, 1)))
    return model, jnp.asarray(rng.normal(size=(rows + 1, STATE_DIM)), dtype), series


def matrix_products(dtype: type, fewest: bool) -> Callable[[], jax.Array]:
    """Return a call of the products alone, on random matrices.

    Parameters
    ----------
    dtype
        Precision.
    fewest
        Whether to leave out the backward product that can be avoided.
    """
    rng = np.random.default_rng(1)

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(STATE_DIM, *shape)), dtype)

    arrays = (
        random(ROWS, STATE_DIM + 1),
        random(NUM_INDUCING, STATE_DIM + 1),
        random(ROWS, NUM_INDUCING),
        random(NUM_INDUCING, NUM_INDUCING),
    )

    @jax.jit
    def products(
        scaled: jax.Array, points: jax.Array, gain: jax.Array, factor: jax.Array
    ) -> jax.Array:
        results = [scaled @ points.mT, gain @ factor, gain.mT @ gain]
        results += [gain @ factor.mT, gain @ points]
        if not fewest:
            results.append(gain @ (2 * factor))
        return sum(jnp.sum(result[:, 0, 0]) for result in results)

    return lambda: products(*arrays)


def medians(*calls: Callable[[], object]) -> np.ndarray:
    """Return the median milliseconds of each call, taken in turns."""
    times = np.empty((REPEATS + 1, len(calls)))
    for repeat in times:
        for column, call in enumerate(calls):
            start = time.perf_counter()
            jax.block_until_ready(call())
            repeat[column] = 1e3 * (time.perf_counter() - start)
    return np.median(times[1:], axis=0)  # the first repeat compiles


def compare(chains: int, dtype: type) -> None:
    """Print one row of the table."""
    model, states, series = example(ROWS, dtype)
    paths = jnp.stack([states] * chains)
    value_and_gradient = jax.value_and_grad(
        lambda x, model, series: log_collapsed(model, x, series)
    )
    density = eqx.filter_jit(
        lambda paths, *rest: jax.lax.map(lambda x: value_and_gradient(x, *rest), paths)
    )
    prepared = model.prepared()
    products = matrix_products(dtype, fewest=False)
    fewest = matrix_products(dtype, fewest=True)
    times = medians(
        lambda: density(paths, model, series),
        lambda: density(paths, prepared, series),
        lambda: [products() for _ in range(chains)],
        lambda: [fewest() for _ in range(chains)],
    )
    ratios = (times[0] / times[2], times[1] / times[2], times[1] / times[3])
    cells = "".join(f"{value:10.2f}" for value in (*times, *ratios))
    print(f"{np.dtype(dtype).name:8} {chains:7d}{cells}")


def long_series() -> None:
    """Print temporary memory and time of value and gradient for a long series."""
    model, states, series = example(LONG_ROWS, np.float64)
    arrays, static = eqx.partition(model, eqx.is_array)

    def density(x: jax.Array, arrays: GPSSM, series: Series) -> jax.Array:
        return log_collapsed(eqx.combine(arrays, static), x, series)

    program = jax.jit(jax.value_and_grad(density)).lower(states, arrays, series).compile()
    with Timer() as timer:
        jax.block_until_ready(program(states, arrays, series))
    memory = program.memory_analysis().temp_size_in_bytes / 1e6
    sizes = f"T={LONG_ROWS}, M={NUM_INDUCING}, Dx={STATE_DIM}"
    print(f"{sizes}: {timer.wall:.2f} s, {memory:.0f} MB")


def main() -> None:
    """Print both parts."""
    command_line(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    print(
        f"T={ROWS}, M={NUM_INDUCING}, Dx={STATE_DIM}, Du=1: value and gradient of log_collapsed, "
        "one thread"
    )
    names = ("density", "prepared", "products", "fewest", "ratio", "prepared", "to fewest")
    print(f"{'dtype':8} {'chains':>7}" + "".join(f"{name:>10}" for name in names))
    for dtype in (np.float64, np.float32):
        for chains in (1, 16):
            compare(chains, dtype)
    long_series()


if __name__ == "__main__":
    main()
