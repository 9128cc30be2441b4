"""Small fits whose draws are recorded, and compared with the recording after a change of the code.

    python benchmarks/recording.py record recording.npz
    python benchmarks/recording.py check recording.npz
    python benchmarks/recording.py check recording.npz ffvd lmc    # some of the cases

Every method of the registry is run once on 40 rows, and `ffvd` also on other kinds of data and
models, with the methods that extend a posterior. A case is "equal" if all of its arrays are equal
bit for bit, "equal to 1e-10" if they differ by rounding alone, and "different" otherwise. The exit
status is 1 if a case is different or fails. The numbers depend on the processor and on the version
of JAX: record and check on the same machine.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from common import Timer, command_line

import gpssm
from gpssm.data.series import Series
from gpssm.methods import METHODS
from gpssm.posterior.draws import merge_chains

ROWS = 40
TOLERANCE = 1e-10
SMALL = {
    "state_dim": 2,
    "num_inducing": 6,
    "start": "em",
    "likelihood": "gaussian",
    "num_warmup": 10,
    "num_draws": 5,
    "thin": 1,
    "num_chains": 2,
    "seed": 3,
    "progress": False,
}
WIRING = [[1, 1, 0], [1, 0, 1]]
Arrays = dict[str, np.ndarray]


def tank(rows: int = ROWS, seed: int = 0) -> Series:
    """Simulate a tank with a saturating inlet: y_t = .8 y_{t-1} + tanh(u_{t-1}) + noise."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.normal(size=rows // 4 + 1), 4)[:rows]
    y = np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.8 * y[t - 1] + np.tanh(u[t - 1])
    return Series(y + 0.1 * rng.normal(size=rows), u)


def with_gaps() -> Series:
    """Simulate the tank without the outputs of some rows."""
    series = tank()
    y = series.y.copy()
    y[10:14] = np.nan
    return Series(y, series.u)


def cart() -> gpssm.Physics:
    """Return the physics of a cart whose friction is unknown."""

    def step(x: Any, u: Any, parameters: Any) -> Any:
        return jnp.stack([0.8 * x[0] + parameters["gain"] * u[0]])

    return gpssm.Physics(
        step,
        gpssm.Unknown(lambda x, u: u[0], 0, np.linspace(-2.0, 2.0, 9), size=0.5, length=0.8),
        [[1.0]],
        lambda y, u: np.concatenate([y[:1], y]),
        [1.0],
        {"gain": gpssm.priors.Normal(0.8, 0.5)},
        [0.05],
    )


def fit(series: Any = None, **settings: Any) -> gpssm.Posterior:
    """Fit with a tiny budget."""
    return gpssm.fit(tank() if series is None else series, **{**SMALL, **settings})


def arrays(posterior: gpssm.Posterior) -> Arrays:
    """Return the draws, their log targets and a forecast."""
    draws = posterior.draws
    u = np.linspace(-1.0, 1.0, 8)[:, None] if posterior.dataset.inputs else None
    forecast = posterior.forecast(8, u, num_paths=20)
    states = {f"states {index}": path for index, path in enumerate(draws.states)}
    return {
        **states,
        **{f"leaf {name}": leaf for name, leaf in draws.leaves.items()},
        "weights": draws.weights,
        "log target": posterior.info.log_target,
        "log target of the warm-up": posterior.warmup.log_target,
        "forecast": forecast.paths,
    }


def recorded_fit(series: Callable[[], Any] = tank, **settings: Any) -> Callable[[], Arrays]:
    """Return a case that fits."""
    return lambda: arrays(fit(series(), **settings))


def physics() -> Arrays:
    """Fit the physics, which determine the number of states and the likelihood."""
    settings = {name: SMALL[name] for name in SMALL if name not in ("state_dim", "num_inducing")}
    settings = {**settings, "start": "auto", "likelihood": "auto"}
    return arrays(gpssm.fit(tank(), physics=cart(), **settings))


def extensions() -> Arrays:
    """Call the methods that take new rows, and write and read a file."""
    posterior = fit()
    later = tank(60)
    rows = Series(later.y[ROWS:], later.u[ROWS:])
    smoothed = posterior.smooth()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.nc"
        posterior.save(path)
        loaded = gpssm.load(path)
    results: dict[str, Arrays] = {
        "condition": arrays(posterior.condition(rows)),
        "learn": arrays(posterior.learn(rows)),
        "update": arrays(posterior.update(rows, num_warmup=6, num_draws=4)),
        "load": arrays(loaded),
        "smooth": {"states": merge_chains(posterior.draws.states[-1]), "outputs": smoothed.paths},
        "predict": {"paths": posterior.predict(rows, 3, num_paths=20).paths},
    }
    return {
        f"{method}: {name}": value
        for method, result in results.items()
        for name, value in result.items()
    }


CASES: dict[str, Callable[[], Arrays]] = {
    **{name: recorded_fit(method=name) for name in METHODS},
    "missing outputs": recorded_fit(with_gaps),
    "two experiments": recorded_fit(lambda: [tank(), tank(25, 1)]),
    "delay": recorded_fit(delay=2),
    "wiring": recorded_fit(wiring=WIRING),
    "physics": physics,
    "hilbert": recorded_fit(basis="hilbert"),
    "fourier": recorded_fit(basis="fourier"),
    "shared": recorded_fit(coupling="shared"),
    "lmc": recorded_fit(coupling="lmc", rank=1),
    "hammerstein": recorded_fit(coupling="hammerstein"),
    "abs": recorded_fit(likelihood="abs", hyper="sample"),
    "extensions": extensions,
}


def compare(new: Arrays, before: Arrays) -> str:
    """Return how two results of a case differ."""
    if new.keys() != before.keys():
        return f"different: arrays {sorted(new.keys() ^ before.keys())}"
    if all(np.array_equal(new[name], before[name], equal_nan=True) for name in new):
        return "equal"
    for name in new:
        if new[name].shape != before[name].shape:
            return f"different: {name} has shape {new[name].shape}, not {before[name].shape}"
        if not np.allclose(new[name], before[name], TOLERANCE, TOLERANCE, equal_nan=True):
            gap = np.nanmax(np.abs(new[name] - before[name]))
            return f"different: {name} by up to {gap:.2g}"
    return "equal to 1e-10"


def main() -> int:
    """Record or check the cases named on the command line, or all of them."""
    parser = command_line(__doc__)
    parser.add_argument("command", choices=["record", "check"])
    parser.add_argument("path", type=Path, metavar="FILE")
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    stored: Arrays = {}
    if options.command == "check":
        with np.load(options.path) as file:
            stored = dict(file)
    failed = False
    results: Arrays = {}
    for case in options.cases:
        prefix = f"{case} | "
        with Timer() as timer:
            arrays = {f"{prefix}{name}": np.asarray(leaf) for name, leaf in CASES[case]().items()}
        results |= arrays
        verdict = "recorded"
        if options.command == "check":
            before = {name: leaf for name, leaf in stored.items() if name.startswith(prefix)}
            verdict = compare(arrays, before)
        failed = failed or verdict.startswith("different")
        print(f"{case:20} {verdict} ({timer.cpu:.0f} s)", flush=True)
    if options.command == "record":
        np.savez(options.path, **results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
