"""Every public entry, given what it was not meant for: an error in our words, or a result that is right.

`hostile.VALUES` is tried on each argument of each entry in turn, the others being as they should be. An error counts as
ours if a `raise` of this library raised it; a forecast must be finite, or come with a warning.
"""

import collections
import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

import gpssm
from builders import make_series
from gpssm import metrics
from gpssm.data.readers import read
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_list, check_trainable
from gpssm.fitting.candidates import Plan
from gpssm.posterior import storage
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from hostile import VALUES, attempt
from posteriors import make_posterior

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
    "function": {"x": np.zeros((3, 2)), "u": U[:3]},
    "linearise": {"x": np.zeros((3, 2)), "u": U[:3]},
}
OPTIONS = ("num_paths", "seed", "index", "bounds", "calibrated", "num_particles", "steps", "horizon")


def verb(name, argument):
    return lambda value: getattr(POSTERIOR, name)(**GOOD[name] | {argument: value})


ENTRIES = {
    "Series(y)": Series,
    "Series(u)": lambda value: Series(SERIES.y, value),
    **{f"Series({name}=)": lambda value, name=name: Series(SERIES.y, **{name: value}) for name in ("name", "dt")},
    "Series(outputs=)": lambda value: Series(SERIES.y, outputs=value),
    "Series(window=)": lambda value: Series(SERIES.y, window=value),
    "Series.split": SERIES.split,
    "Series.decimated": SERIES.decimated,
    "Series[...]": SERIES.__getitem__,
    "Series.of": Series.of,
    "as_list": as_list,
    "check_trainable": check_trainable,
    "Scaler.fit": Scaler.fit,
    "Scaler.fit(outputs=)": lambda value: Scaler.fit(SERIES, outputs=value),
    "Scaler": lambda value: Scaler((0.0,), (value,), (), ()),
    "Scaler.scale": POSTERIOR.scaler.scale,
    "Scaler.scale_inputs": POSTERIOR.scaler.scale_inputs,
    "Scaler.unscale_mean": POSTERIOR.scaler.unscale_mean,
    "read": lambda value: read(value, 0),
    "load": gpssm.load,
    "load(parts=)": lambda value: gpssm.load("nowhere.nc", value),
    "save": lambda value: POSTERIOR.save(value),
    "chain": POSTERIOR.chain,
    "thinned": POSTERIOR.thinned,
    "training_series": POSTERIOR.training_series,
    "smooth": POSTERIOR.smooth,
    "smooth(seed=)": lambda value: POSTERIOR.smooth(seed=value),
    "outputs": POSTERIOR.outputs,
    "to_arviz": lambda value: POSTERIOR.to_arviz(seed=value),
    "update": lambda value: POSTERIOR.update(value),
    **{
        f"{name}({argument}=)": verb(name, argument)
        for name, good in GOOD.items()
        for argument in (*good, *(OPTIONS[:5] if name == "forecast" else ()))
    },
    **{f"condition({name}=)": verb("condition", name) for name in ("seed", "index", "num_particles")},
    **{f"predict({name}=)": verb("predict", name) for name in ("steps", "seed", "bounds", "calibrated")},
    **{f"simulate({name}=)": verb("simulate", name) for name in ("horizon", "seed", "bounds")},
    "quantile": FORECAST.quantile,
    "interval": FORECAST.interval,
    "to_dataframe": FORECAST.to_dataframe,
    "score": FORECAST.score,
    "score(levels=)": lambda value: FORECAST.score(SERIES, value),
    "rows_of": FORECAST.rows_of,
    "Forecast[...]": FORECAST.__getitem__,
    "compare": lambda value: gpssm.compare(value, SERIES),
    "compare(test)": lambda value: gpssm.compare({"one": FORECAST}, value),
    "compare(horizon=)": lambda value: gpssm.compare({"one": FORECAST}, SERIES, horizon=value),
    "compare(levels=)": lambda value: gpssm.compare({"one": FORECAST}, SERIES, levels=value),
    **{
        f"metrics.{name}({place})": lambda value, name=name, of=of, place=place: getattr(metrics, name)(
            *(value if index == place else good for index, good in enumerate((of, SERIES.y)))
        )
        for name, of in (("rmse", SERIES.y), ("mae", SERIES.y), ("crps", PATHS), ("coverage", PATHS), ("pit", PATHS))
        for place in (0, 1)
    },
    "metrics.coverage(level=)": lambda value: metrics.coverage(PATHS, SERIES.y, value),
    "metrics.score(levels=)": lambda value: metrics.score(PATHS, SERIES.y, levels=value),
    "datasets.load": gpssm.datasets.load,
}


class Reached(Exception):
    """A fit got as far as its linear model: what it was given is taken for good."""


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
        *("num_warmup", "num_draws", "thin", "hyper", "fixed", "learn", "seed", "progress", "checkpoint", "batching"),
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
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_no_argument_was_meant_for(entry):
    outcomes = [(f"{entry} {name}", attempt(lambda make=make: ENTRIES[entry](make()))) for name, make in VALUES.items()]
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


@pytest.mark.parametrize("argument", FIT)
def test_what_a_fit_was_not_meant_for_is_refused_before_it_begins(argument, monkeypatch):
    def prepare(*_):
        raise Reached

    monkeypatch.setattr(Plan, "prepare", prepare)

    def call(value):
        with contextlib.suppress(Reached):
            FIT[argument](value)

    outcomes = [(f"{argument} {name}", attempt(lambda make=make: call(make()))) for name, make in VALUES.items()]
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


def nodes(tree, path=()):
    """The paths of all entries of a tree of JSON."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from nodes(value, (*path, key))


INSERTS = (None, True, -1, 0, 1e300, 10**30, "", "draws", [], {}, [[]], {"tuple": []}, {"dict": {}}, {"link": "abs"})
INSERTS += ({"class": "os.system", "fields": {}}, {"class": "kernels.Sum", "fields": {}}, {"array": "weights"})
INSERTS += ({"array": "x", "dtype": "O", "kind": "jax"}, {"part": "a", "was": "b", "leaves": []}, "\ud800")


def test_descriptions_that_were_edited():
    rng, described = np.random.default_rng(1), {}
    for field in storage.FIELDS:
        described[field] = storage.describe(getattr(POSTERIOR, field))
    arrays = {field: found for field, (_, found) in described.items()}
    text = json.dumps({field: found for field, (found, _) in described.items()})
    places, outcomes = [place for place in nodes(json.loads(text)) if len(place) > 1], []

    def use(descriptions):
        posterior = Posterior(**storage.put_together(Path("edited.nc"), descriptions, arrays))
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


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".dat", ".txt", ".mat", ".npz", ".parquet", ".nc"])
def test_files_of_anything(suffix, tmp_path):
    rng, outcomes = np.random.default_rng(2), []
    for number in range(FILES):
        length = int(rng.integers(0, 200))
        content = "".join(rng.choice(list(LETTERS), length)).encode() if number % 4 else rng.bytes(length)
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes((b"\x89HDF\r\n\x1a\n" if suffix == ".nc" and number % 2 else b"") + content)
        call = gpssm.load if suffix == ".nc" else read_a_column
        outcomes.append((repr(content), attempt(lambda path=path, call=call: call(path))))
    counts, words = report(outcomes)
    assert counts.keys() <= {"fine", "refused"}, words


def read_a_column(path):
    return read(path, 0)
