"""A sweep: methods on problems with several seeds, in cells that are fitted and scored once each.

A cell is a data set, a method with settings, and a seed; one fit serves all protocols. Its result
is one JSON file in the folder of the sweep, so that an interrupted sweep continues where it
stopped, and the folders of several machines (`shard`) can be merged. If a cell fails, its error is
recorded and the sweep continues.
"""

import contextlib
import functools
import gc
import json
import os
import platform
import re
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax

from gpssm import __version__
from gpssm.bench.problems import SUITES, BenchmarkProblem, load_problems
from gpssm.bench.protocols import PROTOCOLS
from gpssm.core.files import digest, make_folder, write_atomically
from gpssm.core.places import run_tasks
from gpssm.core.runtime import max_maps, num_maps
from gpssm.core.text import check_choice, check_whole, jsonable, to_json
from gpssm.fitting.fit import fit, parse_settings
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.inference.runner import Runtime
from gpssm.methods.spec import Spec
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.stack import leading_member

CELLS = "cells"  # subfolder of the result files
Record = dict[str, Any]


class Cell(NamedTuple):
    """A problem, the specification of the fit, and the protocols."""

    dataset: str
    problem: BenchmarkProblem
    method: str  # its name in tables
    spec: Spec
    runtime: Runtime
    protocols: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Hash of settings and data, which results of this cell must match."""
        settings = (self.spec.to_dict(), self.runtime.num_chains)
        return digest(settings, self.problem.fingerprint)

    @property
    def file(self) -> str:
        """Name of the result file."""
        name = f"{self.dataset}-{self.method}-{self.runtime.seed}-{self.identity}.json"
        return re.sub(r"[^\w.-]", "_", name)


def parse_method(method: str, settings: Mapping[str, Any]) -> tuple[Spec, Runtime]:
    """Return the spec and runtime of a method with settings.

    Parameters
    ----------
    method
        A name of `METHODS`, or any name if "method" is among the settings.
    settings
        Fields of `Spec`, of the method's own settings, and num_chains.
    """
    others = {name: value for name, value in settings.items() if name != "method"}
    return parse_settings(settings.get("method", method), others, ("num_chains",))


def make_cell(
    dataset: str,
    problem: BenchmarkProblem,
    method: str,
    settings: Mapping[str, Any],
    seed: int = 0,
    protocols: Sequence[str] = tuple(PROTOCOLS),
) -> Cell:
    """Return the cell of a problem and a method, with the protocols that apply."""
    spec, runtime = parse_method(method, settings)
    for name in protocols:
        check_choice("a protocol", name, PROTOCOLS)
    suite = SUITES[problem.suite]
    applying = [name for name in suite.protocols if name in protocols]
    applying = [name for name in applying if spec.settings.learns or name != "learn"]
    if not applying:
        raise ValueError(
            f"{method!r} on {dataset!r} is scored by none of {', '.join(protocols)}; "
            f"the protocols of its suite are {', '.join(suite.protocols)}"
        )
    runtime = runtime.replace(seed=seed)
    return Cell(dataset, problem, method, spec, runtime, tuple(applying))


def run_cell(cell: Cell) -> Record:
    """Fit and score a cell. Errors are part of the result, by protocol or under "fit"."""
    record = blank_record(cell)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fitted = _attempt(record, "fit", _fit, cell)
        if fitted is not None:
            posterior, record["fit"] = fitted
            for name in cell.protocols:
                judge = PROTOCOLS[name].judge
                figures = _attempt(record, name, judge, posterior, cell.problem, cell.runtime.seed)
                if figures is not None:
                    record["figures"][name] = figures
    messages = {str(item.message) for item in caught if issubclass(item.category, UserWarning)}
    record["warnings"] = sorted(messages)
    # A process with many programs runs out of memory maps.
    if num_maps() > max_maps() / 8:
        jax.clear_caches()
        gc.collect()
    return jsonable(record)


def _attempt(record: Record, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function; None after an error, which is recorded."""
    try:
        return function(*arguments)
    except Exception as error:
        record["errors"][part] = f"{type(error).__name__}: {error}"
        record["traceback"] = traceback.format_exc()


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
    """Run all cells without a result in the folder, and return all results of the folder.

        run_sweep("daisy", ["ffvd", "arx"], seeds=3, out="runs/daisy", jobs=4)
        write_report("runs/daisy")

    Parameters
    ----------
    datasets
        Names of data sets, of simulations (`sim:duffing`, `sim:kink:num_steps=200`) and of groups:
        "all" (the six benchmark sets), "daisy", "records". Or a mapping of names to series or
        `BenchmarkProblem` objects.
    methods
        Names of methods, see `parse_method`.
    seeds
        The seeds, or their number, starting at 0.
    protocols
        Names of `PROTOCOLS`; for each problem, the protocols of its suite are used.
    out
        Folder of the results.
    jobs
        Number of processes with one thread each; 1 runs in this process.
    cluster
        Address of a Dask scheduler to run on instead, tcp://host:8786, or its client.
    shard
        (i, n) runs the i-th of n parts of the cells, for n machines.
    settings
        Settings by method, see `parse_method`.
    progress
        True for a bar, "plain" for one line per cell, False for no output.
    retry
        Whether failed cells are run again.

    Returns
    -------
    list of dict
        One result per cell, as `load_results` reads them.
    """
    check_progress(progress)
    cells = _make_cells(datasets, methods, seeds, protocols, settings or {})
    part, parts = shard
    check_whole("the number of shards", parts, 1)
    if not 1 <= part <= parts:
        raise ValueError(f"shard must be i of n with 1 <= i <= n; got {part} of {parts}")
    folder = Path(out) / CELLS
    missing = [cell for cell in cells[part - 1 :: parts] if _is_missing(cell, folder, retry)]
    arrivals = run_tasks(missing, run_cell, jobs, cluster)
    make_folder(folder)
    names = [cell.file for cell in missing]
    for index, result in tracked(
        arrivals, progress, "sweep", lambda arrival: names[arrival[0]], len(names)
    ):
        if isinstance(result, Exception):  # the process of the cell died
            result = blank_record(missing[index]) | {"errors": {"fit": str(result)}}
        _write_record(folder / names[index], result)
    return load_results(out)


def _make_cells(
    datasets: Sequence[str] | str | Mapping[str, Any],
    methods: Sequence[str],
    seeds: int | Sequence[int],
    protocols: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Cell]:
    """Return all cells, seed after seed, so that an interrupted sweep has results of everything."""
    for name in settings:
        check_choice("a method with settings", name, methods)
    problems = load_problems(datasets)
    cells = [
        make_cell(name, problem, method, settings.get(method, {}), seed, protocols)
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
        for name, problem in problems.items()
        for method in methods
    ]
    if not cells:
        raise ValueError("a sweep needs at least one data set, one method and one seed")
    return cells


def _write_record(path: Path, record: Record) -> None:
    """Write the result of a cell, with the figures that its file has already."""
    if path.is_file():
        record["figures"] = json.loads(path.read_text())["figures"] | record["figures"]
        record["protocols"] = list(dict.fromkeys([*record["protocols"], *record["figures"]]))
    write_atomically(path, lambda file: file.write(to_json(record).encode()))


def load_results(*folders: str | Path) -> list[Record]:
    """Return all results from the folders of one or more sweeps, one per cell."""
    paths = [path for folder in folders for path in sorted((Path(folder) / CELLS).glob("*.json"))]
    if not paths:
        raise FileNotFoundError(
            f"there are no results in {', '.join(map(str, folders))}: run a sweep into it first"
        )
    return [json.loads(path.read_text()) for path in {path.name: path for path in paths}.values()]


def _is_missing(cell: Cell, folder: Path, retry: bool) -> bool:
    """Return whether a result is missing, or is an error that should be retried."""
    path = folder / cell.file
    if not path.is_file():
        return True
    record = json.loads(path.read_text())
    if record["errors"]:
        return retry
    return not set(cell.protocols) <= set(record["figures"])


def blank_record(cell: Cell) -> Record:
    """Return a result without scores."""
    return {
        "dataset": cell.dataset,
        "suite": cell.problem.suite,
        "note": cell.problem.note,
        "method": cell.method,
        "seed": cell.runtime.seed,
        "identity": cell.identity,
        "protocols": list(cell.protocols),
        "fit": {},
        "figures": {},
        "errors": {},
        "code": code_version(),
        "finished": datetime.now(UTC).isoformat(),
    }


def _fit(cell: Cell) -> tuple[Any, Record]:
    """Return the posterior of a cell, with its cost and diagnostics."""
    cpu = _cpu_seconds()
    wall = time.perf_counter()
    posterior = fit(cell.problem.train, spec=cell.spec, runtime=cell.runtime)
    member = leading_member(posterior)
    return posterior, {
        "cpu": _cpu_seconds() - cpu,
        "wall": time.perf_counter() - wall,
        "compile": posterior.seconds.compile,
        "spec": member.spec.describe(),
        "rhat": member.diagnostics()[f"{HORIZON}-step forecast mean"].rhat,
        "draws": digest(member.draws),
        "weights": {row["member"]: row["weight"] for row in getattr(posterior, "table", ())},
    }


def _cpu_seconds() -> float:
    """Return the CPU time of this process, its threads, and its finished child processes."""
    return time.process_time() + sum(os.times()[2:4])


@functools.cache
def code_version() -> str:
    """Return the versions of gpssm, with the commit of a checkout, of JAX and of Python."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = ""
    with contextlib.suppress(OSError):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        commit = f" at {found.stdout.strip()}" if found.stdout else ""
    python = platform.python_version()
    backend = jax.default_backend()
    return f"gpssm {__version__}{commit}, jax {jax.__version__} on {backend}, Python {python}"
