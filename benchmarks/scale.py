"""Time and memory of the parts of an iteration of `ffvd`, from a thousand rows to a million.

    python benchmarks/scale.py [--rows 1000 10000 100000] [--states 4] [--points 50] [--no-run]

Series are simulated from a stable, rotating linear model, around which the model of a fit is built.
For one chain on the device that JAX finds, the table has microseconds per row of

    whitening    new coordinates of the sampler, computed six times in a warm-up
    gradient     one gradient of the log density of the states, in these coordinates
    learning     an iteration at the start of the warm-up: trajectory, noises, kernel parameters
    sampling     an iteration after the warm-up, with all moves of the noises

as the best of three calls after a first one, gigabytes of XLA's temporaries and of arguments and
results, and the number of gradients in the trajectories of the last two. `--no-run` prints the
memory only, so that a million rows can be examined on a small machine.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import command_line

from gpssm.core.runtime import OPTIONS
from gpssm.data.series import Series
from gpssm.fitting.fit import build_model
from gpssm.inference.whitening import Whitening, unstack, whiten
from gpssm.linear.state_space import LinearFit, LinearSSM
from gpssm.methods.ffvd import FFVD
from gpssm.methods.spec import Spec
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed
from gpssm.starts.build import assign_roles

REPEATS = 3
GRADIENTS = 11
NOISE_STD = 0.1  # of states and outputs


class Program(NamedTuple):
    """A compiled program and its memory in gigabytes."""

    call: Callable[..., Any]
    temporaries: float
    arrays: float

    @classmethod
    def of(cls, function: Callable[..., Any], *shapes: Any) -> "Program":
        """Compile a function for arguments, or shapes, like these."""
        program = jax.jit(function, compiler_options=OPTIONS).lower(*shapes).compile()
        memory = program.memory_analysis()
        arrays = memory.argument_size_in_bytes + memory.output_size_in_bytes
        return cls(program, memory.temp_size_in_bytes / 1e9, arrays / 1e9)


def example(rows: int, states: int, points: int) -> tuple[GPSSM, np.ndarray, list[Series]]:
    """Return the model of a fit to a simulated linear model, its states, and the series."""
    rng = np.random.default_rng(0)
    A = 0.95 * np.linalg.qr(rng.normal(size=(states, states)))[0]
    B = 0.3 * rng.normal(size=(states, 1))
    u = rng.normal(size=(rows, 1))
    increments = u @ B.T + NOISE_STD * rng.normal(size=(rows, states))
    path = np.zeros((rows + 1, states))
    for row in range(rows):
        path[row + 1] = A @ path[row] + increments[row]
    series = [Series(y=path[1:, :1] + NOISE_STD * rng.normal(size=(rows, 1)), u=u)]
    parameters = (
        *(A, B, np.zeros(states)),
        *(np.eye(1, states), np.zeros(1)),
        *(NOISE_STD**2 * np.eye(states), np.full(1, NOISE_STD)),
    )
    linear = LinearFit.of(LinearSSM(*map(jnp.asarray, parameters)), [path], series)
    return assign_roles(build_model(series, states, points, linear=linear), Spec()), path, series


def compare(rows: int, states: int, points: int, run: bool) -> None:
    """Print the lines of the table for one length."""
    model, path, series = example(rows, states, points)
    settings = FFVD()
    key = jax.random.key(0)
    centre = jnp.asarray(path)
    method = settings.build(model, (path,))
    series = jax.tree.map(jnp.asarray, series)

    def whitened(centre: jax.Array, series: list[Series]) -> Whitening:
        return whiten(model, centre, series, settings.rank)

    def trajectory(whitening: Whitening, position: jax.Array, series: list[Series]) -> jax.Array:
        coordinates = whitening.at(model)
        prepared = model.prepared()

        def log_density(position: jax.Array) -> jax.Array:
            return log_collapsed(prepared, unstack(coordinates.to_states(position), series), series)

        def ascend(position: jax.Array, _: None) -> tuple[jax.Array, None]:
            return position + 1e-6 * jax.grad(log_density)(position), None

        return jax.lax.scan(ascend, position, None, length=GRADIENTS)[0]

    program = Program.of(whitened, centre, series)
    whitening = report(rows, "whitening", program, (centre, series), run)
    origin = jnp.zeros(centre.size)
    program = Program.of(trajectory, jax.eval_shape(whitened, centre, series), origin, series)
    report(rows, "gradient", program, (whitening, origin, series), run, GRADIENTS)
    del whitening
    program = Program.of(method.step, key, jax.eval_shape(method.init, key, series), series)
    carry = None
    if run:
        carry = jax.jit(method.init)(key, series)
        carry = program.call(key, carry, series)[0]  # with the first whitening in it
    learning = report(rows, "learning", program, (key, carry, series), run)
    if run:
        carry = carry._replace(iteration=jnp.asarray(settings.num_warmup, carry.iteration.dtype))
    sampling = report(rows, "sampling", program, (key, carry, series), run)
    if run:
        gradients = (int(info.gradients) for _, info in (learning, sampling))
        print("gradients of their trajectories:", *gradients)


def report(
    rows: int, name: str, program: Program, arguments: tuple[Any, ...], run: bool, repeats: int = 1
) -> Any:
    """Print a line of the table, and return the result of the program.

    Parameters
    ----------
    rows, name
        Number of rows, and name of the part.
    program, arguments
        What is called.
    run
        Whether to call it.
    repeats
        How often the program repeats the part.
    """
    result = None
    best = float("nan")
    for _ in range(1 + REPEATS if run else 0):
        start = time.perf_counter()
        result = jax.block_until_ready(program.call(*arguments))
        best = np.fmin(best, (time.perf_counter() - start) / repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{rows:8d}  {name:10}{1e6 * best / rows:12.2f}{1e3 * best:12.2f}"
        f"{program.temporaries:12.3f}{program.arrays:12.3f}{peak:12.2f}",
        flush=True,
    )
    return result


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--states", type=int, default=4)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--run", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(
        f"{jax.devices()[0].device_kind}, {options.states} states, {options.points} points; "
        "microseconds a row, milliseconds,"
    )
    print("GB of temporaries, GB of arguments and results, GB of the process at its peak")
    for rows in options.rows:
        compare(rows, options.states, options.points, options.run)


if __name__ == "__main__":
    main()
