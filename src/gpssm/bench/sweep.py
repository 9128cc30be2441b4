"""A sweep: methods on problems with several seeds, in cells that are fitted and judged once each.

A cell is a data set, a method with settings, and a seed; one fit serves all protocols. Its result is
one JSON file in the folder of the sweep, so that a sweep that was interrupted continues where it
stopped, and the folders of several machines (`shard`) can be copied together. A cell that fails is
recorded with its error and stops no other.
"""

import dataclasses
import functools
import gc
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from gpssm import __version__
from gpssm.bench.problems import SUITES, Problem, load_problems
from gpssm.bench.protocols import PROTOCOLS
from gpssm.core.files import digest, make_folder, write_atomically
from gpssm.core.places import Place
from gpssm.core.text import check_choice, check_whole, jsonable, to_json
from gpssm.evaluation.stack import stack
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.methods import METHODS
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior

CELLS = "cells"  # subfolder of the result files
AUTO = "ffvd-auto"  # the name of `gpssm.stack` as a method
# Names of methods with settings.
VARIANTS: dict[str, dict[str, Any]] = {
    "ffvd-shared": {"method": "ffvd", "coupling": "shared"},
    "ffvd-lmc": {"method": "ffvd", "coupling": "lmc", "rank": 2},
    "ffvd-cascade": {"method": "ffvd", "wiring": "cascade"},
    "ffvd-chain": {"method": "ffvd", "wiring": "chain"},
}
# Arguments of `fit` that a cell sets itself, or that do not change a result.
NOT_SETTINGS = ("series", "u", "outputs", "inputs", "seed", "progress", "checkpoint", "resume")
NOT_SETTINGS += ("prior", "prior_strength", "jobs", "cluster", "chunk", "chains", "fit_arguments")
CACHED_MEGABYTES = 1200.0  # of memory, above which compiled programs are discarded between cells

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem, a method with settings, a seed, and the protocols that apply of those wanted.

    `settings` are keywords of `fit` (of `stack` for "ffvd-auto") and fields of the method's own
    settings; with "method" among them `method` is merely the name in tables.
    """

    dataset: str
    method: str
    seed: int
    problem: Problem = field(repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    protocols: tuple[str, ...] = tuple(PROTOCOLS)

    def __post_init__(self) -> None:
        settings = VARIANTS.get(self.method, {}) | dict(self.settings)
        object.__setattr__(self, "settings", settings)
        for name in settings:
            check_choice(f"a setting of {self.method!r}", name, ["method", *self.config])
        for name in self.protocols:
            check_choice("a protocol", name, PROTOCOLS)
        learns = self.method != AUTO and self.method_settings.learns
        wanted = {name for name in self.protocols if learns or name != "learn"}
        applying = SUITES[self.problem.suite].protocols
        object.__setattr__(self, "protocols", tuple(name for name in applying if name in wanted))

    @property
    def method_settings(self) -> Any:
        """The settings of the method itself, with the fields that the cell's settings replace."""
        name = self.settings.get("method", "ffvd" if self.method == AUTO else self.method)
        if isinstance(name, str):
            check_choice("a method", name, METHODS)
        default = METHODS[name] if isinstance(name, str) else name
        fields = {one.name for one in dataclasses.fields(default)}
        return dataclasses.replace(
            default, **{key: value for key, value in self.settings.items() if key in fields}
        )

    @property
    def config(self) -> dict[str, Any]:
        """Everything that decides the posterior except rows and seed, defaults included."""
        parameters = dict(inspect.signature(fit).parameters)
        if self.method == AUTO:
            parameters |= inspect.signature(stack).parameters
        defaults = {name: one.default for name, one in parameters.items()}
        config = defaults | dataclasses.asdict(self.method_settings) | dict(self.settings)
        config["method"] = type(self.method_settings).__name__
        return {name: config[name] for name in config if name not in NOT_SETTINGS}

    @property
    def file(self) -> str:
        """Name of the result file; cells with other settings or data have another one."""
        identity = digest(to_json(self.config, sort_keys=True), self.problem.fingerprint)
        name = f"{self.dataset}-{self.method}-{self.seed}-{identity}"
        return re.sub(r"[^\w.-]", "_", name) + ".json"

    def record(self, **errors: str) -> Record:
        """A result without figures."""
        return {
            "dataset": self.dataset,
            "suite": self.problem.suite,
            "method": self.method,
            "seed": self.seed,
            "config": jsonable(self.config),
            "note": self.problem.note,
            "protocols": list(self.protocols),
            "fit": {},
            "figures": {},
            "errors": errors,
            "tracebacks": {},
            "code": code_version(),
            "finished": datetime.now(UTC).isoformat(),
        }

    def fit(self) -> Posterior:
        """The posterior of the training rows."""
        if self.method == AUTO:
            return stack(self.problem.train, seed=self.seed, **self.settings)
        accepted = inspect.signature(fit).parameters
        keywords = {name: value for name, value in self.settings.items() if name in accepted}
        keywords["method"] = self.method_settings
        return fit(self.problem.train, seed=self.seed, progress=False, **keywords)


def run_cell(cell: Cell) -> Record:
    """Fit and judge. Errors are part of the result, by protocol, or under "fit"."""
    record = cell.record()

    def attempt(
        part: str, function: Callable[..., dict[str, Any]], *arguments: Any
    ) -> dict[str, Any]:
        try:
            return function(*arguments)
        except Exception as error:
            record["errors"][part] = f"{type(error).__name__}: {error}"
            record["tracebacks"][part] = traceback.format_exc()
            return {}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        record["fit"] = attempt("fit", _fit, cell)
        posterior = record["fit"].pop("posterior", None)
        for name in cell.protocols if posterior is not None else ():
            judge = PROTOCOLS[name].judge
            if figures := attempt(name, judge, posterior, cell.problem, cell.seed):
                record["figures"][name] = figures
    messages = {str(one.message) for one in caught if issubclass(one.category, UserWarning)}
    record["warnings"] = sorted(messages)
    if _peak_megabytes() > CACHED_MEGABYTES:
        jax.clear_caches()
        gc.collect()
    return jsonable(record)


def run_sweep(
    datasets: Sequence[str] | str | Mapping[str, Any],
    methods: Sequence[str],
    seeds: int | Sequence[int],
    protocols: Sequence[str] = tuple(PROTOCOLS),
    out: str | Path = "bench",
    *,
    jobs: int = 1,
    cluster: Any = None,
    shard: tuple[int, int] = (1, 1),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Mode = True,
    retry: bool = False,
) -> list[Record]:
    """Run the cells that have no result in the folder yet, and return all results of the folder.

        run_sweep("daisy", ["ffvd", "arx"], seeds=3, out="runs/daisy", jobs=4)
        write_report("runs/daisy")

    Parameters
    ----------
    datasets
        Names of data sets, of simulations (`sim:duffing`, `sim:kink:num_steps=200`) and of groups:
        "all" (the six benchmark sets), "daisy", "records". Or a mapping of names to series or
        `Problem`s of the user's own.
    methods
        Names of `gpssm.methods.METHODS` or `VARIANTS`, "ffvd-auto" for `gpssm.stack`, or any name
        with a "method" in `settings`.
    seeds
        The seeds, or how many, from 0 on.
    protocols
        Names of `PROTOCOLS`; each problem is judged by those of its suite.
    out
        Folder of the results.
    jobs
        Processes of this machine, one thread each; 1 runs in this process.
    cluster
        Address of a Dask scheduler to run on instead, tcp://host:8786, or its client.
    shard
        (i, n) runs the i-th of n parts of the cells, for n machines.
    settings
        Keywords of `fit` and fields of the method's settings, by method.
    progress
        True for a bar, "plain" for one line per cell, False for silence.
    retry
        Whether failed cells are run again.

    Returns
    -------
    list of dict
        One result per cell, as `load_results` reads them.
    """
    check_progress(progress)
    cells = _cells(datasets, methods, seeds, protocols, settings or {})
    part, parts = shard
    check_whole("the number of shards", parts, 1)
    if not 1 <= part <= parts:
        raise ValueError(f"shard must be i of n with 1 <= i <= n; got {part} of {parts}")
    folder = Path(out) / CELLS
    missing = [cell for cell in cells[part - 1 :: parts] if _is_missing(cell, folder, retry)]
    arrivals = Place(jobs, cluster).run(missing, run_cell)
    make_folder(folder)
    for number, result in tracked(
        arrivals, progress, "sweep", lambda arrival: missing[arrival[0]].file, len(missing)
    ):
        cell = missing[number]
        # An exception in place of a result: the process of the cell died.
        record = cell.record(fit=str(result)) if isinstance(result, Exception) else result
        path = folder / cell.file
        if path.is_file():
            record["figures"] = json.loads(path.read_text())["figures"] | record["figures"]
            record["protocols"] = list(dict.fromkeys([*record["protocols"], *record["figures"]]))
        text = to_json(record).encode()
        write_atomically(path, lambda file, text=text: file.write(text))
    return load_results(out)


def load_results(*folders: str | Path) -> list[Record]:
    """All results of the folders of one or more sweeps, one per cell."""
    paths = [path for folder in folders for path in sorted((Path(folder) / CELLS).glob("*.json"))]
    if not paths:
        names = ", ".join(map(str, folders))
        raise FileNotFoundError(
            f"there are no results in {names}: run a sweep with it as `out` first"
        )
    return [json.loads(path.read_text()) for path in {path.name: path for path in paths}.values()]


def _cells(
    datasets: Sequence[str] | str | Mapping[str, Any],
    methods: Sequence[str],
    seeds: int | Sequence[int],
    protocols: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Cell]:
    """All cells, seed after seed, so that an interrupted sweep has results of everything."""
    for name in settings:
        check_choice("a method with settings", name, methods)
    problems = load_problems(datasets)
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    cells = [
        Cell(name, method, seed, problem, settings.get(method, {}), tuple(protocols))
        for seed in seeds
        for name, problem in problems.items()
        for method in methods
    ]
    if not cells:
        raise ValueError("a sweep needs at least one data set, one method and one seed")
    for cell in cells:
        if not cell.protocols:
            raise ValueError(
                f"{cell.method!r} on {cell.dataset!r} is judged by none of {', '.join(protocols)}; "
                f"the protocols of its suite are {', '.join(SUITES[cell.problem.suite].protocols)}"
            )
    return cells


def _is_missing(cell: Cell, folder: Path, retry: bool) -> bool:
    """Whether the folder lacks a result of a protocol, or has an error and `retry` is true."""
    path = folder / cell.file
    if not path.is_file():
        return True
    record = json.loads(path.read_text())
    if record["errors"]:
        return retry
    return not set(cell.protocols) <= set(record["figures"])


def _fit(cell: Cell) -> dict[str, Any]:
    """The posterior of a cell, what it cost, and facts that tell whether it can be trusted."""
    cpu, wall = _cpu_seconds(), time.perf_counter()
    posterior = cell.fit()
    return {
        "posterior": posterior,
        "cpu": _cpu_seconds() - cpu,
        "wall": time.perf_counter() - wall,
        "compile": posterior.seconds.compile,
        "state_dim": posterior.model.state_dim,
        "num_draws": posterior.num_chains * posterior.num_draws,
        "rhat": posterior.diagnostics()[f"{HORIZON}-step forecast mean"].rhat,
        "draws": digest(posterior.draws),
        "weights": {row["member"]: row["weight"] for row in posterior.config.get("members", ())},
    }


def _cpu_seconds() -> float:
    """CPU time of this process, all its threads, and its child processes that have ended."""
    return sum(os.times()[:4])


def _peak_megabytes() -> float:
    """Largest memory that the process has used; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@functools.cache
def code_version() -> str:
    """Versions of gpssm, with its commit where it runs from a checkout, and of what it stands on."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        commit = (
            " " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        )
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    python = platform.python_version()
    return f"gpssm {__version__}{commit}, jax {jax.__version__} on {jax.default_backend()}, Python {python}"
