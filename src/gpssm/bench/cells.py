"""One cell of a sweep, a method fitted to the training rows of a data set with one seed and judged, and its results.

`records.py` says what trains and what tests. `fit` is handed the training rows alone, and takes from them the scaling
of outputs and controls, orders, parameters and states; one fit serves all protocols.

A result is the outcome of one (dataset, method, seed, protocol): a line of results.jsonl, which is only ever appended
to. What it must agree in to be the same result is its `key`. A line goes into the file in one write; where a crash
broke the last one off, it is passed over when read, and cut away before the next is written.

The method `ffvd-auto` is `gpssm.stack`: `ffvd` from several starts, its rivals and a linear model, mixed by weights
that come from the training rows. Others that are no methods but settings of one have a line in `VARIANTS`.
"""

import contextlib
import dataclasses
import gc
import inspect
import json
import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gpssm import __version__
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.records import Data, divide, fingerprint
from gpssm.core.elapsed import ticks
from gpssm.core.files import digest
from gpssm.core.text import jsonable, to_json
from gpssm.evaluation.stack import stack
from gpssm.fitting.fit import fit
from gpssm.inference.settings import MethodSettings
from gpssm.methods import METHODS
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior

FILE = "results.jsonl"
KEY = ("dataset", "method", "seed", "protocol", "config_hash", "data_hash")
AUTO = "ffvd-auto"
# Names that stand for a method with these arguments of `fit`.
VARIANTS: dict[str, dict[str, Any]] = {
    "ffvd-shared": {"method": "ffvd", "coupling": "shared"},
    "ffvd-lmc": {"method": "ffvd", "coupling": "lmc", "rank": 2},
    "ffvd-cascade": {"method": "ffvd", "wiring": "cascade"},
    "ffvd-chain": {"method": "ffvd", "wiring": "chain"},
}
# Arguments of `fit` that a sweep sets itself, or that are no setting.
OWN = ("series", "seed", "progress", "checkpoint", "resume", "jobs", "cluster", "prior", "prior_strength")
NO_MATTER = ("chains", "chunk")  # those that leave the result as it is
KEPT_MEGABYTES = 1200.0  # of memory, above which compiled programs are thrown away

Line = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Cell:
    """A data set, a method with settings for `fit`, and a seed; with the protocols to judge it by, if they apply.

    `method` is the name it has in tables. It is also the method, unless `settings` has another: {"method": ARX(...)}.
    Settings of `ffvd-auto` are for `gpssm.stack`; a name of `VARIANTS` has those of its line, as far as none are given.
    """

    dataset: str
    method: str
    seed: int
    series: Data = field(repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocols: tuple[str, ...] = tuple(PROTOCOLS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", VARIANTS.get(self.method, {}) | dict(self.settings))
        allowed = list(self._arguments)
        if unknown := [name for name in self.settings if name not in allowed]:
            raise ValueError(f"settings of {self.method!r} are arguments of gpssm.fit; {unknown} are none of {allowed}")
        if unknown := [name for name in self.protocols if name not in PROTOCOLS]:
            raise KeyError(f"Unknown protocols {unknown}. Known: {', '.join(PROTOCOLS)}.")
        learns, applying = self._can_learn, divide(self.series).protocols
        chosen = tuple(name for name in self.protocols if name in applying and (learns or name != "learn"))
        object.__setattr__(self, "protocols", chosen)

    @property
    def _arguments(self) -> dict[str, Any]:
        """What may be set, with the defaults."""
        found = inspect.signature(fit).parameters | (inspect.signature(stack).parameters if self.method == AUTO else {})
        return {name: one.default for name, one in found.items() if name not in OWN and one.kind is not one.VAR_KEYWORD}

    def fit(self, train: Any) -> Posterior:
        """The posterior of the training rows."""
        settings = {**self.settings, "seed": self.seed}
        if self.method == AUTO:
            return stack(train, **settings)
        return fit(train, **{"method": self.method, "progress": False, **settings})

    @property
    def algorithm(self) -> MethodSettings:
        """The method's configuration."""
        given = self.settings.get("method", "ffvd" if self.method == AUTO else self.method)
        if isinstance(given, str) and given not in METHODS:
            known = f"{', '.join(METHODS)}; or give settings={{{self.method!r}: {{'method': ...}}}}"
            raise KeyError(f"Unknown method {given!r}. Known: {known}.")
        return METHODS[given] if isinstance(given, str) else given

    @property
    def _can_learn(self) -> bool:
        """Whether `posterior.learn` can follow its weights."""
        return self.method != AUTO and self.algorithm.learns

    def config(self, protocol: str) -> dict[str, Any]:
        """Everything that decides the result but data and seed: settings with `fit`'s defaults, method, protocol."""
        settings = self._arguments | dict(self.settings)
        settings = {name: value for name, value in settings.items() if name not in (*NO_MATTER, "method")}
        method = {"name": type(self.algorithm).__name__} | dataclasses.asdict(self.algorithm)
        judging = dataclasses.asdict(PROTOCOLS[protocol])
        return jsonable({"fit": settings, "method": method, "protocol": judging})

    def identity(self, protocol: str) -> Line:
        """The part of a result that is known beforehand; `key` picks from it."""
        config = self.config(protocol)
        return {
            "dataset": self.dataset,
            "method": self.method,
            "seed": self.seed,
            "protocol": protocol,
            "config_hash": digest(json.dumps(config, sort_keys=True)),
            "data_hash": fingerprint(self.series),
            "config": config,
            "data": divide(self.series).words,
        }

    def died(self, error: BaseException) -> list[Line]:
        """The results of a cell that took its process with it."""
        return [failure(self, protocol, lost(error)) for protocol in self.protocols]


def run_cell(cell: Cell) -> list[Line]:
    """Fit and judge; a result for each protocol, whatever happens."""
    train, test, *_ = divide(cell.series)
    _forget_peak()
    fitting = attempt(cell.fit, train)
    facts = fitting if fitting.error else attempt(_fit_facts, fitting.value)
    lines = []
    for name in cell.protocols:
        judging = facts if facts.error else attempt(PROTOCOLS[name].judge, fitting.value, test, cell.seed)
        failed = judging.error is not None
        lines.append(failure(cell, name, judging) if failed else _success(cell, name, fitting, facts, judging))
    _tidy()
    return lines


class Attempt(NamedTuple):
    """What came of a call: its value or its error, its warnings, and the seconds it took."""

    value: Any
    error: str | None
    trace: str
    notes: list[str]
    seconds: dict[str, float]


def attempt(function: Callable[..., Any], *arguments: Any, **options: Any) -> Attempt:
    """Call a function and note what came of it; no error gets out."""
    wall, cpu = ticks(), time.process_time()
    value, error, trace = None, None, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*arguments, **options)
        except Exception as problem:
            error, trace = f"{type(problem).__name__}: {problem}", traceback.format_exc()
    notes = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    seconds = {"wall": ticks() - wall, "cpu": time.process_time() - cpu}
    return Attempt(value, error, trace, notes, seconds)


def failure(cell: Cell, protocol: str, found: Attempt) -> Line:
    """The result of a cell that has none."""
    line = {"status": "failed", "error": found.error, "traceback": found.trace}
    return cell.identity(protocol) | line | _surroundings()


def lost(error: BaseException) -> Attempt:
    """What comes of a call that took its process with it."""
    return Attempt(None, f"{type(error).__name__}: {error}", "", [], {})


def _success(cell: Cell, protocol: str, fitting: Attempt, facts: Attempt, judging: Attempt) -> Line:
    stages = fitting.value.seconds._asdict()
    found = {
        "status": "ok",
        "error": None,
        **judging.value._asdict(),
        **facts.value,
        "seconds": {"fit": fitting.seconds, **stages, "protocol": judging.seconds},
        "peak_megabytes": _peak(),
        "notes": [*dict.fromkeys([*fitting.value.notes, *fitting.notes, *judging.notes])],
    }
    return cell.identity(protocol) | jsonable(found) | _surroundings()


def _fit_facts(posterior: Posterior) -> dict[str, Any]:
    """What a fit tells of itself, whatever the protocol; `draws` is a hash that only an equal fit has."""
    spec = posterior.spec.describe()
    return {
        "start": spec["start"],
        "noise": spec["noise"],
        "state_dim": posterior.model.state_dim,
        "num_weights": posterior.model.basis.size,
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_draws,
        "forecast_rhat": posterior.diagnostics()[f"{HORIZON}-step forecast mean"].rhat,
        "draws": digest(posterior.draws),
        "weights": {row["member"]: row["weight"] for row in getattr(posterior, "table", ())},
    }


def _surroundings() -> Line:
    versions = {"gpssm": __version__, "jax": jax.__version__, "numpy": np.__version__}
    versions["python"] = platform.python_version()
    return {"versions": versions, "backend": jax.default_backend(), "finished": datetime.now(UTC).isoformat("T")}


def _tidy() -> None:
    """Throw away compiled programs once they fill the memory: a sweep has too many shapes to keep them all."""
    if (_peak() or 0.0) > KEPT_MEGABYTES:
        jax.clear_caches()
        gc.collect()


def _forget_peak() -> None:
    """Let the peak of memory be counted from now on, which only Linux can; elsewhere it is the process's."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak() -> float | None:
    """The largest memory that the process has had, in megabytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def load_results(folder: str | Path) -> list[Line]:
    """All results of a folder in the order of the file, each once.

    Where a cell was run again because it had failed, the later line counts, and one that is "ok" before any that is
    not. Figures that do not exist (NaN) are None.
    """
    found: dict[Key, Line] = {}
    for line in _lines(Path(folder) / FILE):
        before = found.get(key(line))
        if before is None or before["status"] != "ok":
            found.pop(key(line), None)
            found[key(line)] = line
    return list(found.values())


def append(folder: str | Path, lines: Iterable[Line]) -> None:
    """Add lines to the folder's results, on the disk when this returns."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(to_json(line, indent=None) + "\n" for line in lines)
    _cut_broken_end(path)
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())
        os.fsync(file.fileno())


def key(line: Mapping[str, Any]) -> Key:
    """What makes a line this result and no other: its cell, protocol, settings and data."""
    return tuple(line[name] for name in KEY)


def _lines(path: Path) -> Iterable[Line]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {FILE} in {path.parent}: run a sweep with that folder as `out` first")
    *whole, _ = path.read_text().split("\n")
    for number, text in enumerate(whole, start=1):
        try:
            yield json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path} is not JSON ({error}): mend it or take it out") from None


def _cut_broken_end(path: Path) -> None:
    """Cut the file after its last whole line."""
    with path.open("a+b") as file:
        size = file.tell()
        file.seek(max(size - 1, 0))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
