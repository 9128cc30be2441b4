"""Every public function with invalid arguments: a clear error, or a correct result.

`hostile.VALUES` is tried on each argument of each entry in turn, the others being as they should be. An error counts as
ours if a `raise` of this library raised it; a forecast must be finite, or come with a warning.
"""

import collections
import contextlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpssm
from builders import make_series
from gpssm import metrics
from gpssm.data.readers import read
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_list
from gpssm.evaluation.scores import Backtest, Comparison
from gpssm.posterior import storage
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.dynamics import static_gain
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack
from hostile import VALUES, attempt
from posteriors import fitted, make_posterior

EDITS, FILES = 120, 100
POSTERIOR = make_posterior()
SERIES = make_series(9)
U = np.linspace(-1, 1, 9)[:, None]
RNG = np.random.default_rng(0)
PATHS = RNG.normal(size=(5, 9, 2))
FORECAST = Forecast(PATHS, ("y0", "y1"), 9, U, ("u",), moments=(PATHS, np.ones_like(PATHS)))
GOOD = {
    "forecast": {"horizon": 3, "u": U, "num_paths": 6},
    "condition": {"series": SERIES},
    "condition_at": {"series": SERIES, "rows": [3, 6]},
    "learn": {"series": SERIES, "forgetting": 0.9, "max_draws": 6},
    "predict": {"series": SERIES, "num_paths": 6},
    "simulate": {"u": U, "warmup": SERIES, "num_paths": 6},
    "transition": {"x": np.zeros((3, 2)), "u": U[:3]},
}
OPTIONS = (
    "num_paths",
    "seed",
    "index",
    "bounds",
    "calibrated",
    "num_particles",
    "steps",
    "horizon",
)


def verb(name, argument):
    method = getattr(POSTERIOR, name, partial(condition_at, POSTERIOR))
    return lambda value: method(**GOOD[name] | {argument: value})


ENTRIES = {
    "Series(y)": Series,
    "Series(u)": lambda value: Series(SERIES.y, value),
    **{
        f"Series({name}=)": lambda value, name=name: Series(SERIES.y, **{name: value})
        for name in ("name", "dt")
    },
    "Series(outputs=)": lambda value: Series(SERIES.y, outputs=value),
    "Series(window=)": lambda value: Series(SERIES.y, window=value),
    "Series.split": SERIES.split,
    "Series.decimated": SERIES.decimated,
    "Series[...]": SERIES.__getitem__,
    "Series.of": Series.of,
    "as_list": as_list,
    "Scaler.fit": Scaler.fit,
    "Scaler.fit(outputs=)": lambda value: Scaler.fit(SERIES, outputs=value),
    "Scaler": lambda value: Scaler((0.0,), (value,), (), ()),
    "Scaler.scale": POSTERIOR.dataset.scaler.scale,
    "Scaler.scale_inputs": POSTERIOR.dataset.scaler.scale_inputs,
    "Scaler.unscale_mean": POSTERIOR.dataset.scaler.unscale_mean,
    "read": lambda value: read(value, 0),
    "load": gpssm.load,
    "load(parts=)": lambda value: gpssm.load("nowhere.nc", value),
    "save": lambda value: POSTERIOR.save(value),
    "chain": lambda value: POSTERIOR.thinned(chain=value),
    "thinned": POSTERIOR.thinned,
    "Dataset.experiment": POSTERIOR.dataset.experiment,
    "smooth": POSTERIOR.smooth,
    "smooth(seed=)": lambda value: POSTERIOR.smooth(seed=value),
    "to_arviz": lambda value: POSTERIOR.to_arviz(seed=value),
    "update": lambda value: POSTERIOR.update(value),
    **{
        f"{name}({argument}=)": verb(name, argument)
        for name, good in GOOD.items()
        for argument in (*good, *(OPTIONS[:5] if name == "forecast" else ()))
    },
    **{
        f"condition({name}=)": verb("condition", name)
        for name in ("seed", "index", "num_particles")
    },
    **{
        f"predict({name}=)": verb("predict", name)
        for name in ("steps", "seed", "bounds", "calibrated")
    },
    **{f"simulate({name}=)": verb("simulate", name) for name in ("horizon", "seed", "bounds")},
    "quantile": FORECAST.quantile,
    "interval": FORECAST.interval,
    "to_dataframe": FORECAST.to_dataframe,
    "score": FORECAST.score,
    "score(levels=)": lambda value: FORECAST.score(SERIES, value),
    "rows_of": FORECAST.rows_of,
    "Forecast[...]": FORECAST.__getitem__,
    "compare": lambda value: gpssm.compare(value, SERIES),
    "compare(test)": lambda value: gpssm.compare({"one": POSTERIOR}, value),
    "compare(horizon=)": lambda value: gpssm.compare({"one": POSTERIOR}, SERIES, horizon=value),
    "compare(levels=)": lambda value: gpssm.compare({"one": POSTERIOR}, SERIES, levels=value),
    **{
        f"metrics.{name}({place})": lambda value, name=name, of=of, place=place: getattr(
            metrics, name
        )(*(value if index == place else good for index, good in enumerate((of, SERIES.y))))
        for name, of in (
            ("rmse", SERIES.y),
            ("mae", SERIES.y),
            ("crps", PATHS),
            ("coverage", PATHS),
            ("pit", PATHS),
        )
        for place in (0, 1)
    },
    "metrics.coverage(level=)": lambda value: metrics.coverage(PATHS, SERIES.y, value),
    "metrics.score(levels=)": lambda value: metrics.score(PATHS, SERIES.y, levels=value),
    "datasets.load": gpssm.datasets.load,
}


class Reached(Exception):
    """What was given is taken for good: a fit got as far as its linear model, an update as far as its first states."""


def reach(*_, **__):
    raise Reached


def suppressed(call, **given):
    with contextlib.suppress(Reached):
        call(**given)


def read_small(**options):
    path = Path("small.csv")
    path.write_text("when,y\n2024-01-01,1\n2024-01-02,2\n")
    return read(path, "y", **options)


FITTED = fitted()
ROWS, LONG = make_series(16, seed=3), make_series(40, seed=4)
STACK = Stack.of({"one": POSTERIOR, "two": POSTERIOR}, [0.6, 0.4])
LINEAR, GAIN = POSTERIOR.linearise(), static_gain(POSTERIOR, values=[0.0, 1.0])
BACKTEST = Backtest(SERIES, np.array([0]), (FORECAST,), (FORECAST.score(SERIES),), (0.9,), "never")
COMPARISON = Comparison({"one": FORECAST}, SERIES[: FORECAST.horizon], (0.5, 0.9))
FRAME = pd.DataFrame({"y": np.arange(9.0), "u": np.zeros(9), "at": np.arange(9.0)})
QUIET = {"progress": False}
# A call that is as it should be, and the arguments that are tried besides those it has.
CALLS = {
    "detrend": (gpssm.detrend, {"series": SERIES, "order": 1}, ()),
    "resample": (gpssm.resample, {"series": SERIES, "factor": 0.5}, ()),
    "delays": (gpssm.delays, {"series": ROWS, "longest": 2}, ()),
    "from_dataframe": (
        Series.from_dataframe,
        {"frame": FRAME, "outputs": "y", "inputs": "u", "time": "at"},
        ("regrid", "fill_inputs", "dayfirst", "zone", "name", "dt", "window", "units"),
    ),
    "read": (
        read_small,
        {"time": "when", "regrid": "1d", "na": ["Bad"], "encoding": "utf-8", "skip": 0},
        ("inputs", "fill_inputs", "dayfirst", "zone", "name", "dt", "units", "thousands", "sheet"),
    ),
    "datasets.simulate": (
        gpssm.datasets.simulate,
        {"name": "linear_gaussian", "num_steps": 12, "seed": 0},
        (),
    ),
    "datasets.load_records": (gpssm.datasets.load_records, {"name": "emps"}, ()),
    "backtest": (
        gpssm.backtest,
        {
            "series": ROWS,
            "posterior": POSTERIOR,
            "horizon": 2,
            "step": 8,
            "num_paths": 6,
            "max_draws": 2,
        }
        | QUIET,
        ("start", "refit", "levels", "new_experiment", "seed"),
    ),
    "Backtest.by_step": (BACKTEST.by_step, {"output": "y0"}, ()),
    "Backtest.plot": (BACKTEST.plot, {"output": "y0", "level": 0.9}, ()),
    "select": (
        gpssm.select,
        {
            "series": LONG,
            "candidates": [{"method": "mean", "num_draws": 4}],
            "step": 20,
            "horizon": 3,
        }
        | QUIET,
        ("share", "score", "seed", "num_draws"),
    ),
    "stack": (
        gpssm.stack,
        {"series": ROWS, "members": {"a": POSTERIOR, "b": POSTERIOR}},
        ("seed", "jobs"),
    ),
    "stack of settings": (
        gpssm.stack,
        {"series": LONG, "members": ["mean", "last"]},
        ("num_chains", "num_draws"),
    ),
    "Stack.forecast": (STACK.forecast, GOOD["forecast"], ("seed", "calibrated")),
    "Stack.predict": (STACK.predict, GOOD["predict"] | {"steps": 1}, ()),
    "Stack.simulate": (STACK.simulate, GOOD["simulate"], ()),
    "Stack.condition": (STACK.condition, GOOD["condition"], ()),
    "Stack.condition_at": (partial(condition_at, STACK), GOOD["condition_at"], ()),
    "Stack.smooth": (STACK.smooth, {"index": 0, "seed": 0}, ()),
    "Stack.thinned": (STACK.thinned, {"most": 4}, ()),
    "Stack.save": (STACK.save, {"path": "stack.zip", "overwrite": True}, ()),
    "calibrate": (POSTERIOR.calibrate, {"series": ROWS}, ("new_experiment", "index", "seed")),
    "update": (
        lambda **given: suppressed(FITTED.update, **given),
        {"series": FITTED.dataset.experiments[0][:5], "num_warmup": 2, "num_draws": 2},
        ("new_experiment", "seed", "progress", "index"),
    ),
    "compare": (
        gpssm.compare,
        {"candidates": {"one": POSTERIOR}, "test": SERIES, "horizon": 3, "num_paths": 6} | QUIET,
        ("baselines", "seed", "levels"),
    ),
    "Comparison.plot": (COMPARISON.plot, {"output": "y0", "level": 0.9}, ()),
    "informative": (
        partial(gpssm.analysis.informative, make_posterior(chains=4, draws=4)),
        {"experiments": {"one": U}, "target": U, "num_paths": 16, "max_draws": 16, "seed": 0},
        (),
    ),
    "rollout": (POSTERIOR.rollout, {"num_paths": 6, "seed": 0}, ("noise", "index", "bounds")),
    "linearise at": (POSTERIOR.linearise, {}, ("at", "row", "index")),
    "static_gain": (
        partial(static_gain, POSTERIOR),
        {"input": "u0", "values": [0.0, 1.0]},
        ("at",),
    ),
    "Linearisation": (LINEAR.step_response, {"n": 3}, ()),
    "Linearisation.impulse_response": (LINEAR.impulse_response, {"n": 3}, ()),
    "Linearisation.bode": (LINEAR.bode, {"frequencies": [0.1, 0.2]}, ()),
    "Linearisation.plot": (LINEAR.plot, {"level": 0.9}, ()),
    "Response.interval": (LINEAR.step_response(3).interval, {"level": 0.9}, ()),
    "score_outputs": (FORECAST.score_outputs, {"actual": SERIES, "levels": (0.9,)}, ()),
    "Forecast.plot": (
        FORECAST.plot,
        {"actual": SERIES, "history": SERIES, "levels": (0.5,)},
        (),
    ),
    "Series.plot": (SERIES.plot, {"train": SERIES}, ()),
    **{
        f"metrics.{name}": (getattr(metrics, name), good, ())
        for name, good in {
            "nrmse": {"mean": SERIES.y, "y": SERIES.y, "reference": SERIES.y},
            "fit_percent": {"mean": SERIES.y, "y": SERIES.y},
            "nlpd": {"paths_mean": PATHS, "paths_variance": np.ones_like(PATHS), "y": SERIES.y},
            "nmll_paper": {"mean": SERIES.y, "variance": np.ones_like(SERIES.y), "y": SERIES.y},
            "energy_score": {"paths": PATHS, "y": SERIES.y},
            "central_interval": {"paths": PATHS, "level": 0.9},
            "interval_width": {"paths": PATHS, "level": 0.9},
            "log_density": {"paths": PATHS, "y": SERIES.y},
        }.items()
    },
    **{
        f"plots.{name}": (getattr(gpssm.plots, name), good, ())
        for name, good in {
            "plot_bode": {"bode": LINEAR.bode([0.1]), "level": 0.9},
            "plot_calibration": {"pairs": [(FORECAST, SERIES)], "levels": (0.9,)},
            "plot_comparison": {
                "forecasts": {"a": FORECAST},
                "actual": SERIES,
                "history": SERIES,
                "output": "y0",
                "level": 0.9,
            },
            "plot_forecast": {"forecast": FORECAST, "actual": SERIES, "history": SERIES},
            "plot_poles": {"linear": LINEAR, "level": 0.9},
            "plot_residuals": {"posterior": POSTERIOR, "index": 0, "num_paths": 6, "rows": 9},
            "plot_response": {"response": LINEAR.step_response(3), "level": 0.9},
            "plot_backtest": {"backtest": BACKTEST, "level": 0.9},
            "plot_series": {"series": SERIES, "train": SERIES},
            "plot_smoothed": {"posterior": POSTERIOR, "index": 0},
            "plot_states": {"posterior": POSTERIOR, "index": 0},
            "plot_static_gain": {"curve": GAIN, "level": 0.9},
            "plot_traces": {"posterior": POSTERIOR},
            "plot_transition": {"posterior": POSTERIOR, "chain": 0},
        }.items()
    },
}
ARGUMENTS = {
    f"{name}({argument}=)": lambda value, call=call, good=good, argument=argument: call(
        **good | {argument: value}
    )
    for name, (call, good, more) in CALLS.items()
    for argument in (*good, *more)
}
SHARE = 16  # of the values, one in so many is tried on each of these arguments; all of them in the slow tests


FIT = {
    name: lambda value, name=name: gpssm.fit(make_series(12), **{"progress": False, name: value})
    for name in (
        *(
            "method",
            "state_dim",
            "num_inducing",
            "kernel",
            "mean",
            "likelihood",
            "basis",
            "start",
            "noise",
            "num_chains",
        ),
        *(
            "num_warmup",
            "num_draws",
            "thin",
            "hyper",
            "fixed",
            "learn",
            "seed",
            "progress",
            "checkpoint",
            "batching",
        ),
        *("chunk", "prior"),
    )
}


def report(outcomes):
    wrong = [(name, found) for name, found in outcomes if found.kind in ("raw", "silent")]
    counts = collections.Counter(found.kind for _, found in outcomes)
    listed = "\n".join(f"{name}: {found.kind} {found.words}" for name, found in wrong)
    return counts, f"{counts}\n{listed}"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """With candidates that take no time in place of those that are tried where none are named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "gpssm.evaluation.held_out.default_candidates", lambda _: [{"method": "mean"}]
    )
    monkeypatch.setattr("gpssm.evaluation.held_out.default_members", lambda _: ["mean", "last"])
    monkeypatch.setattr("gpssm.posterior.learning.extend_states", reach)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_no_argument_was_meant_for(entry):
    outcomes = [
        (f"{entry} {name}", attempt(lambda make=make: ENTRIES[entry](make())))
        for name, make in VALUES.items()
    ]
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


def outcomes_of(entry, first, step):
    """What becomes of every `step`-th value from the `first` on."""
    chosen = list(VALUES.items())[first % step :: step]
    return [
        (f"{entry} {name}", attempt(lambda make=make: ARGUMENTS[entry](make())))
        for name, make in chosen
    ]


def test_some_of_what_no_argument_was_meant_for():
    tried = [outcomes_of(entry, number, SHARE) for number, entry in enumerate(ARGUMENTS)]
    counts, words = report([one for several in tried for one in several])
    assert counts.keys() <= {"fine", "refused"}, words


@pytest.mark.slow
@pytest.mark.parametrize("entry", ARGUMENTS)
def test_all_that_no_argument_was_meant_for(entry):
    counts, words = report(outcomes_of(entry, 0, 1))
    assert counts.keys() <= {"fine", "refused"}, words


@pytest.mark.parametrize("argument", FIT)
def test_what_a_fit_was_not_meant_for_is_refused_before_it_begins(argument, monkeypatch):
    # Where the first computation of the ladder, and of any other method, begins.
    monkeypatch.setattr("gpssm.fitting.ladder.council", reach)
    monkeypatch.setattr("gpssm.fitting.single.choose_starts", reach)
    outcomes = [
        (f"{argument} {name}", attempt(lambda make=make: suppressed(FIT[argument], value=make())))
        for name, make in VALUES.items()
    ]
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


def nodes(tree, path=()):
    """The paths of all entries of a tree of JSON."""
    entries = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in entries:
        yield (*path, key)
        yield from nodes(value, (*path, key))


INSERTS = (
    None,
    True,
    -1,
    0,
    1e300,
    10**30,
    "",
    "draws",
    [],
    {},
    [[]],
    {"tuple": []},
    {"dict": {}},
    {"link": "abs"},
)
INSERTS += (
    {"class": "os.system", "fields": {}},
    {"class": "kernels.Sum", "fields": {}},
    {"array": "weights"},
)
INSERTS += (
    {"array": "x", "dtype": "O", "kind": "jax"},
    {"part": "a", "was": "b", "leaves": []},
    "\ud800",
)


def test_descriptions_that_were_edited():
    rng = np.random.default_rng(1)
    stored = storage.to_tree(POSTERIOR)
    text = json.dumps({field: json.loads(stored.attrs[field]) for field in storage.FIELDS})
    places = [place for place in nodes(json.loads(text)) if len(place) > 1]
    outcomes = []

    def use(descriptions):
        edited = stored.copy()
        edited.attrs = {field: json.dumps(entry) for field, entry in descriptions.items()}
        posterior = Posterior(**storage.from_tree(edited, Path("edited.nc")))
        return posterior.forecast(3, U, num_paths=6)

    for number in rng.permutation(len(places))[:EDITS]:
        *way, key = place = places[number]
        tree = json.loads(text)
        parent = tree
        for step in way:
            parent = parent[step]
        change = rng.integers(len(INSERTS) + 1)
        if change == len(INSERTS):
            del parent[key]
        else:
            parent[key] = INSERTS[change]
        outcomes.append((f"{place} {change}", attempt(lambda tree=tree: use(tree))))
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


LETTERS = "0123456789.,;:-+eE \t\n\r\"'#%?abcnaN/\x00\x1bé�"


@pytest.mark.parametrize(
    "suffix", [".csv", ".tsv", ".dat", ".txt", ".mat", ".npz", ".parquet", ".nc"]
)
def test_files_of_anything(suffix, tmp_path):
    rng, outcomes = np.random.default_rng(2), []
    for number in range(FILES):
        length = int(rng.integers(0, 200))
        content = (
            "".join(rng.choice(list(LETTERS), length)).encode() if number % 4 else rng.bytes(length)
        )
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(
            (b"\x89HDF\r\n\x1a\n" if suffix == ".nc" and number % 2 else b"") + content
        )
        call = gpssm.load if suffix == ".nc" else read_a_column
        outcomes.append((repr(content), attempt(lambda path=path, call=call: call(path))))
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


def read_a_column(path):
    return read(path, 0)
