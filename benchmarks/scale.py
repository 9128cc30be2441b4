"""Cost per row from a thousand to a million rows: time and memory of the parts of an iteration of
`ffvd`.

    OPENBLAS_NUM_THREADS=1 python benchmarks/scale.py [--rows 1000 10000 100000] [--states 4] [--points 50] [--no-run]
    GPSSM_DATA=... python benchmarks/scale.py --emps 24841 [--start em] [--chains 4] [--windows 8] [--keep-states 1000]

The first command draws series of these lengths from a damped oscillating linear model, builds the
model that a fit would build, and prints, for one chain on the available device, microseconds per
row of

    whitening    computing the coordinates of the sampler, six times in a warm-up
    gradient     the gradient of the log density of the states in these coordinates
    learning     an iteration in the first part of the warm-up: trajectory, noise levels, a step of
    the kernel parameters sampling     an iteration after the warm-up, with all moves of the noise
    levels

the best of three calls after a first one, and gigabytes of temporaries of XLA and of arguments and
results; then the number of gradients of the last two trajectories. `--no-run` prints only the
memory, so that a million rows can be examined on a small machine.

The second fits so many rows of `emps` with four states and all defaults but those named, and prints the seconds of its
parts, the memory of the process, and the error of a simulation through as many rows of the test record.
"""

import argparse
import os
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

import gpssm
from gpssm.core import loops
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

REPEATS, GRADIENTS = 3, 11
PROCESS_STD, NOISE_STD = 0.1, 0.1
PATHS = 4_500_000  # rows of a simulation, over all its paths: more take more memory than they tell


def example(rows: int, states: int, points: int) -> tuple[GPSSM, np.ndarray, list[Series]]:
    """A series from a linear model, its states, and the model that `fit` would build around them."""
    rng = np.random.default_rng(0)
    transition = 0.95 * np.linalg.qr(rng.normal(size=(states, states)))[0]
    control, u = 0.3 * rng.normal(size=(states, 1)), rng.normal(size=(rows, 1))
    pushes = u @ control.T + PROCESS_STD * rng.normal(size=(rows, states))
    path = np.zeros((rows + 1, states))
    for row in range(rows):
        path[row + 1] = transition @ path[row] + pushes[row]
    series = [Series(y=path[1:, :1] + NOISE_STD * rng.normal(size=(rows, 1)), u=u)]
    noises = (PROCESS_STD**2 * np.eye(states), np.full(1, NOISE_STD))
    linear = LinearSSM(
        *map(
            jnp.asarray,
            (transition, control, np.zeros(states), np.eye(1, states), np.zeros(1), *noises),
        )
    )
    start = LinearFit.of(linear, [path], series)
    return assign_roles(build_model(series, states, points, linear=start), Spec()), path, series


def compare(rows: int, states: int, points: int, run: bool) -> None:
    """The lines of the table for one length."""
    model, path, series = example(rows, states, points)
    settings, key, centre = FFVD(), jax.random.key(0), jnp.asarray(path)
    method, series = settings.build(model, (path,)), jax.tree.map(jnp.asarray, series)

    def trajectory(whitening: Whitening, position: jax.Array, series: list[Series]) -> jax.Array:
        coordinates, prepared = whitening.at(model), model.prepared()

        def log_density(position: jax.Array) -> jax.Array:
            return log_collapsed(prepared, unstack(coordinates.to_states(position), series), series)

        def turn(at: jax.Array, _: None) -> tuple[jax.Array, None]:
            return at + 1e-6 * jax.grad(log_density)(at), None

        return jax.lax.scan(turn, position, None, length=GRADIENTS)[0]

    def find(centre: jax.Array, series: list[Series]) -> Whitening:
        return whiten(model, centre, series, settings.rank)

    program, size = compiled(find, centre, series)
    whitening = line(rows, "whitening", size, program, (centre, series), run)
    given = (jax.eval_shape(find, centre, series), jnp.zeros(centre.size), series)
    program, size = compiled(trajectory, *given)
    line(rows, "gradient", size, program, (whitening, *given[1:]), run, GRADIENTS)
    del whitening
    program, size = compiled(method.step, key, jax.eval_shape(method.init, key, series), series)
    carry = None
    if run:
        carry = jax.jit(method.init)(key, series)
        carry = program(key, carry, series)[0]  # with the first whitening in it
    found = [line(rows, "learning", size, program, (key, carry, series), run)]
    if run:
        carry = carry._replace(iteration=jnp.asarray(settings.num_warmup, carry.iteration.dtype))
    found += [line(rows, "sampling", size, program, (key, carry, series), run)]
    if run:
        print("gradients of their trajectories:", *(int(info.gradients) for _, info in found))


def compiled(function: Callable[..., Any], *given: Any) -> tuple[Callable[..., Any], str]:
    """The program for arguments, or shapes, like these, and the gigabytes it takes."""
    program = jax.jit(function, compiler_options=OPTIONS).lower(*given).compile()
    memory = program.memory_analysis()
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return program, f"{memory.temp_size_in_bytes / 1e9:12.3f}{kept / 1e9:12.3f}"


def line(
    rows: int,
    name: str,
    size: str,
    program: Callable[..., Any],
    given: tuple[Any, ...],
    run: bool,
    times: int = 1,
) -> Any:
    """A line of the table, and what the program gives."""
    found, best = None, float("nan")
    for _ in range(1 + REPEATS if run else 0):
        began = time.perf_counter()
        found = jax.block_until_ready(program(*given))
        best = np.fmin(best, (time.perf_counter() - began) / times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{rows:8d}  {name:10}{1e6 * best / rows:12.2f}{1e3 * best:12.2f}{size}{peak:12.2f}",
        flush=True,
    )
    return found


def fit_emps(rows: int, **settings: Any) -> None:
    """The timed fit."""
    train, test = gpssm.datasets.load_records("emps")
    train, test = train[:rows], test[:rows]
    began = time.perf_counter()
    posterior = gpssm.fit(train, state_dim=4, progress="plain", **settings)
    total, parts = time.perf_counter() - began, posterior.seconds
    print(
        f"{rows} rows, {posterior.num_chains} chains, start {posterior.spec.start}: {total:.0f} s"
    )
    print(f"start {parts.setup:.0f}, compile {parts.compile:.0f}, run {parts.run:.0f} s")
    known = test.window
    paths = max(1, min(1000, PATHS // len(test)))
    began = time.perf_counter()
    free = posterior.simulate(test.u[known:], warmup=test[:known], num_paths=paths)
    error = float(np.sqrt(np.mean((free.mean - test.y[known:]) ** 2)))
    print(
        f"simulation of {len(test) - known} rows of the test record: RMSE {1000 * error:.2f} mm",
        end=", ",
    )
    print(f"{time.perf_counter() - began:.0f} s for {paths} paths")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


def main() -> None:
    """Print the table, or time the fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--states", type=int, default=4)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument(
        "--chunk", type=int, help="rows of a chunk of time, in place of the device's own number"
    )
    parser.add_argument("--no-run", action="store_true", help="memory alone")
    parser.add_argument(
        "--emps", type=int, metavar="ROWS", help="fit so many rows of `emps` instead"
    )
    parser.add_argument("--start", default="auto")
    parser.add_argument("--noise", default="auto")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--draws", type=int)
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--keep-states", type=int)
    given = parser.parse_args()
    if given.chunk is not None:
        loops.CHUNK = loops.CHUNK_ON_GPU = given.chunk
    if given.emps is not None:
        warnings.simplefilter("ignore")  # of convergence, which is not what is measured
        numbers = {"num_chains": given.chains, "num_warmup": given.warmup, "num_draws": given.draws}
        keep = "auto" if given.keep_states is None else given.keep_states
        fit_emps(
            given.emps,
            start=given.start,
            noise=given.noise,
            windows=given.windows,
            keep_states=keep,
            **numbers,
        )
        return
    jax.config.update("jax_enable_x64", True)
    print(
        f"{jax.devices()[0].device_kind}, {given.states} states, {given.points} points; microseconds a row,"
    )
    print(
        "milliseconds, GB of temporaries, GB of arguments and results, GB of the process at its peak"
    )
    for rows in given.rows:
        compare(rows, given.states, given.points, not given.no_run)


if __name__ == "__main__":
    main()
