"""Small fits whose draws are recorded, and compared with the recording after a change of the code.

    python benchmarks/recording.py record recording.npz
    python benchmarks/recording.py check recording.npz
    python benchmarks/recording.py check recording.npz ffvd lmc    # some of the cases

Every method of the registry is run once on 40 rows, and `ffvd` also on other kinds of data and
models, with the verbs of a posterior. A case is "equal" if all of its arrays are equal bit for bit,
"equal to 1e-10" if they differ by rounding alone, and "different" otherwise. The exit status is 1 if
a case is different or fails. The numbers depend on the processor and on the version of JAX: record
and check on the same machine.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import gpssm
from gpssm.data.series import Series
from gpssm.methods import METHODS

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
    """A tank with a saturating inlet: y_t = .8 y_{t-1} + tanh(u_{t-1}) + noise."""
    generator = np.random.default_rng(seed)
    u = np.repeat(generator.normal(size=rows // 4 + 1), 4)[:rows]
    y = np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.8 * y[t - 1] + np.tanh(u[t - 1])
    return Series(y + 0.1 * generator.normal(size=rows), u)


def with_gaps() -> Series:
    """The tank without the outputs of some rows."""
    series = tank()
    y = series.y.copy()
    y[10:14] = np.nan
    return Series(y, series.u)


def pendulum() -> gpssm.Physics:
    """A cart with an unknown friction, as physics with an unknown part."""

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
    """The draws, their log targets and a forecast."""
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
    """The physics, which say themselves what the model is."""
    settings = {name: SMALL[name] for name in SMALL if name not in ("state_dim", "num_inducing")}
    settings = {**settings, "start": "auto", "likelihood": "auto"}
    return arrays(gpssm.fit(tank(), physics=pendulum(), **settings))


def rows_that_follow() -> Arrays:
    """The verbs that take new rows, and a file."""
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
        "smooth": {"states": smoothed.states, "outputs": smoothed.paths},
        "predict": {"paths": posterior.predict(rows, 3, num_paths=20).paths},
    }
    return {
        f"{verb}: {name}": value
        for verb, result in results.items()
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
    "verbs": rows_that_follow,
}


def compare(now: Arrays, before: Arrays) -> str:
    """Return how two results of a case differ."""
    if now.keys() != before.keys():
        return f"different: arrays {sorted(now.keys() ^ before.keys())}"
    if all(np.array_equal(now[name], before[name], equal_nan=True) for name in now):
        return "equal"
    for name in now:
        if now[name].shape != before[name].shape:
            return f"different: {name} has shape {now[name].shape}, not {before[name].shape}"
        if not np.allclose(now[name], before[name], TOLERANCE, TOLERANCE, equal_nan=True):
            gap = np.nanmax(np.abs(now[name] - before[name]))
            return f"different: {name} by up to {gap:.2g}"
    return "equal to 1e-10"


def main() -> int:
    """Record or check the cases named on the command line, or all of them."""
    command, path, *names = sys.argv[1:]
    if command not in ("record", "check"):
        raise SystemExit("usage: recording.py record|check FILE [case ...]")
    warnings.simplefilter("ignore")
    stored: Arrays = {}
    if command == "check":
        with np.load(path) as file:
            stored = dict(file)
    failed = False
    results: Arrays = {}
    for case in names or CASES:
        began = time.process_time()
        now = {name: np.asarray(array) for name, array in CASES[case]().items()}
        results |= {f"{case} | {name}": array for name, array in now.items()}
        verdict = "recorded"
        if command == "check":
            prefix = f"{case} | "
            before = {
                name.removeprefix(prefix): array
                for name, array in stored.items()
                if name.startswith(prefix)
            }
            verdict = compare(now, before)
        failed = failed or verdict.startswith("different")
        print(f"{case:20} {verdict} ({time.process_time() - began:.0f} s)", flush=True)
    if command == "record":
        np.savez(path, **results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
