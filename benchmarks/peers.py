"""jax-sysid and sysidentpy on the DaISy suite, compared with methods of this library in one run.

    pip install jax-sysid sysidentpy
    GPSSM_DATA=... python benchmarks/peers.py [--methods arx] [--seeds 1]

Both train on the same rows and are scored by the same protocols as `gpssm bench --datasets daisy`.
Their point forecasts have errors but neither CRPS nor coverage, and thus no ratio for rolling
forecasts, which is that of the CRPS.

jax-sysid: x[k+1] = A x + B u + W tanh(V [x; u] + b), y = C x + D u + d with six states and ten
units, 1000 iterations of Adam and 1000 of L-BFGS on the error of the simulation of the training
rows, the better of two seeds. The state at an origin is that of an extended Kalman filter, with the
one of three levels of process noise that has the smallest one-step errors on the training rows.

sysidentpy: FROLS, polynomials of degree two in four lags of inputs and output, a model per output.
"""

import os
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import Timer, command_line
from jax_sysid.models import Model
from jaxtyping import Array
from sysidentpy.basis_function import Polynomial
from sysidentpy.model_structure_selection import FROLS
from sysidentpy.parameter_estimation import LeastSquares

from gpssm.bench import PROTOCOLS, BenchmarkProblem, result_tables, summarise
from gpssm.bench.problems import load_problems
from gpssm.bench.sweep import make_cell, run_cell

STATES = 6
UNITS = 10
LAGS = 4
# A forecast is a function of its first row and its number of rows.
Forecaster = Callable[[int, int], np.ndarray]


def fit_jax_sysid(y: np.ndarray, u: np.ndarray, rows: int, seed: int) -> Forecaster:
    """Fit a state-space model to the first `rows` rows; forecasts use the rows before them."""

    def advance(x: Array, u: Array, params: list[Array]) -> Array:
        A, B, W, V, b = params[:5]
        return A @ x + B @ u + W @ jnp.tanh(V @ jnp.hstack((x, u)) + b)

    def emit(x: Array, u: Array, params: list[Array]) -> Array:
        C, D, d = params[5:]
        return C @ x + D @ u + d

    input_dim = u.shape[1]
    output_dim = y.shape[1]
    best = None
    for start in (2 * seed, 2 * seed + 1):
        rng = np.random.default_rng(start)
        shapes = [(STATES, input_dim), (STATES, UNITS), (UNITS, STATES + input_dim), (UNITS,)]
        shapes += [(output_dim, STATES), (output_dim, input_dim), (output_dim,)]
        params = [0.5 * np.eye(STATES), *(0.1 * rng.normal(size=shape) for shape in shapes)]
        model = Model(STATES, output_dim, input_dim, state_fcn=advance, output_fcn=emit)
        model.init(params=params, seed=start)
        model.loss(rho_x0=1e-4, rho_th=1e-4)
        model.optimization(adam_epochs=1000, lbfgs_epochs=1000, iprint=-1)
        model.fit(y[:rows], u[:rows])
        error = np.mean((np.asarray(model.predict(model.x0, u[:rows])[0]) - y[:rows]) ** 2)
        if best is None or error < best[0]:
            best = (error, model.params, jnp.asarray(model.x0).reshape(-1))
    error, params, first = best

    @jax.jit
    def filtered(noise: float) -> tuple[Array, Array]:
        """The state before each row, given the rows before, and the one-step errors."""

        def step(carry: tuple[Array, Array], row: tuple[Array, Array]) -> Any:
            x, P = carry
            output, inputs = row
            H = jax.jacobian(emit)(x, inputs, params)
            innovation = output - emit(x, inputs, params)
            gain = jnp.linalg.solve(H @ P @ H.T + error * jnp.eye(output_dim), H @ P).T
            x_new = x + gain @ innovation
            P_new = P - gain @ H @ P
            F = jax.jacobian(advance)(x_new, inputs, params)
            P_new = F @ P_new @ F.T + noise * jnp.eye(STATES)
            return (advance(x_new, inputs, params), P_new), (x, innovation)

        start = (first, 1e-4 * jnp.eye(STATES))
        return jax.lax.scan(step, start, (jnp.asarray(y), jnp.asarray(u)))[1]

    runs = [filtered(scale * error) for scale in (1e-4, 1e-2, 1.0)]
    states = min(runs, key=lambda run: float(jnp.mean(run[1][:rows] ** 2)))[0]

    @jax.jit
    def simulate(x: Array, inputs: Array) -> Array:
        def step(x: Array, u: Array) -> tuple[Array, Array]:
            return advance(x, u, params), emit(x, u, params)

        return jax.lax.scan(step, x, inputs)[1]

    return lambda origin, steps: np.asarray(simulate(states[origin], u[origin : origin + steps]))


def fit_sysidentpy(y: np.ndarray, u: np.ndarray, rows: int, seed: int) -> Forecaster:
    """Fit one polynomial model per output; a forecast starts from the rows before it."""
    # A row of inputs acts on the same row of outputs here, and on the next one there.
    shifted = np.vstack([u[1:], u[-1:]])
    lags = list(range(1, LAGS + 1))
    models = []
    for j in range(y.shape[1]):
        model = FROLS(
            ylag=LAGS,
            xlag=[lags] * u.shape[1] if u.shape[1] > 1 else LAGS,
            info_criteria="bic",
            n_info_values=20,
            estimator=LeastSquares(),
            basis_function=Polynomial(degree=2),
        )
        model.fit(X=shifted[:rows], y=y[:rows, [j]])
        models.append(model)

    def forecast(origin: int, steps: int) -> np.ndarray:
        inputs = shifted[origin - LAGS : origin + steps]
        paths = [
            model.predict(X=inputs, y=y[origin - LAGS : origin, [j]])[LAGS:]
            for j, model in enumerate(models)
        ]
        return np.hstack(paths)

    return forecast


PEERS = {"jax-sysid": fit_jax_sysid, "sysidentpy": fit_sysidentpy}


def judge(name: str, dataset: str, problem: BenchmarkProblem, seed: int) -> dict[str, Any]:
    """Return the scores of a peer in the form of `run_cell`."""
    rows = len(problem.train)
    y = np.vstack([problem.train.y, problem.test.y])
    u = np.vstack([problem.train.u, problem.test.u])
    std = y[:rows].std(0)
    y = (y - y[:rows].mean(0)) / std
    u = (u - u[:rows].mean(0)) / u[:rows].std(0)
    scheme = PROTOCOLS["daisy-rolling"].scheme
    origins = {
        "daisy-rolling": (scheme.horizon, scheme.origins(len(problem.test))),
        "simulation": (len(problem.test), [0]),
    }
    start = sum(os.times()[:4])  # CPU seconds, with those of child processes
    forecast = PEERS[name](y, u, rows, seed)
    record = {"fit": {"cpu": sum(os.times()[:4]) - start}, "figures": {}}
    for protocol, (steps, firsts) in origins.items():
        errors = [
            forecast(rows + first, steps) - y[rows + first : rows + first + steps]
            for first in firsts
        ]
        rmse = np.sqrt(np.mean(np.square(errors), axis=(0, 1))) * std
        figures = {"rmse": rmse.mean(), "nrmse": np.mean(rmse / problem.test.y.std(0))}
        record["figures"][protocol] = {key: float(value) for key, value in figures.items()}
    record |= {"suite": "daisy", "dataset": dataset, "method": name, "identity": name}
    return record | {"protocols": list(origins), "finished": datetime.now(UTC).isoformat()}


def main() -> None:
    """Run all and print the tables of `gpssm bench`."""
    parser = command_line(__doc__)
    parser.add_argument("--datasets", default="daisy", help="of the suite, by name")
    parser.add_argument("--methods", default="arx,lgssm", help="of this library")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for seed in range(options.seeds):
        for dataset, problem in load_problems(options.datasets.split(",")).items():
            for name in [*filter(None, options.methods.split(",")), *PEERS]:
                with Timer() as timer:
                    if name in PEERS:
                        result = judge(name, dataset, problem, seed)
                    else:
                        result = run_cell(make_cell(dataset, problem, name, {}, seed))
                results.append(result)
                print(f"{dataset}, {name}, seed {seed}: {timer.wall:.0f} s", flush=True)
    print(*result_tables(summarise(results)), sep="\n\n")


if __name__ == "__main__":
    main()
