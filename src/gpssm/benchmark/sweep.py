"""A sweep: every method on every data set with every seed, judged by every protocol, resumable at any moment."""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gpssm.benchmark.auto import (
    AUTO,
    Search,
    is_made,
    load_selections,
    run_search,
    save_selections,
    searches,
    settle,
    shared_settings,
    unsettled,
)
from gpssm.benchmark.cells import Cell, run_cell
from gpssm.benchmark.data import Datasets, load_all
from gpssm.benchmark.monitor import monitor
from gpssm.benchmark.protocols import PROTOCOLS
from gpssm.benchmark.results import FILE, Line, append, key, load_results
from gpssm.benchmark.workers import Task, Work, affordable, run_cluster, run_here, run_processes
from gpssm.progress import Mode


def run_sweep(
    datasets: Datasets,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    protocols: Sequence[str] = tuple(PROTOCOLS),
    out: str | Path = "bench",
    *,
    jobs: int = 1,
    cluster: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Mode = True,
    retry: bool = False,
) -> list[Line]:
    """Run what is not there yet and give back all results of the folder.

        run_sweep("all", ["ffvd", "arx"], seeds=5, out="runs/first", jobs=4)
        write_report("runs/first")

    Results are written as they arrive, so that a sweep that was broken off goes on where it stopped when it is called
    again. A cell that fails is recorded with its error, and stops no other.

    :param datasets: names of benchmarks or simulations (`sim:duffing`, `sim:kink:num_steps=200`), "all" for the six
        benchmarks, or a mapping of names to series of the user's own.
    :param methods: names from `gpssm.methods.METHODS`, or names with a "method" in `settings`; "ffvd-auto" is `ffvd`
        with what `gpssm.select` finds best inside the training half of each data set, kept in selections.json.
    :param seeds: the seeds, or how many, from 0 on.
    :param protocols: of "p30", "full" and "rolling".
    :param out: folder for results.jsonl.
    :param jobs: processes on this machine, fewer if there is not memory for as many; 1 runs in this process.
    :param cluster: the address of a Dask scheduler to run on instead, as tcp://host:8786; its workers need `gpssm`, and
        no data.
    :param settings: arguments for `gpssm.fit`, by method: {"ffvd-2": {"method": "ffvd", "state_dim": 2}}; those of
        "ffvd-auto" are for `gpssm.select`.
    :param progress: True for a bar, "plain" for a line a cell, False for silence.
    :param retry: whether cells whose result is a failure are run again.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more; got {jobs}")
    settings = dict(settings or {})
    asked = settings.get(AUTO, {})
    settings |= {AUTO: shared_settings(asked)} if AUTO in methods else {}
    wanted = _cells(datasets, methods, seeds, protocols, settings)
    before = load_results(out) if (Path(out) / FILE).is_file() else []
    place = Place(jobs if cluster else _fitting(jobs, before, progress), cluster)
    selections = _select(searches(wanted, asked), out, place, progress, retry)
    wanted = [settle(cell, selections) for cell in wanted]
    cells = _missing(wanted, {key(line) for line in before if line["status"] == "ok" or not retry})
    there = len(wanted) - len(cells)
    append(out, [line for cell in cells for line in unsettled(cell, selections)])
    cells = [cell for cell in cells if not unsettled(cell, selections)]
    with monitor(progress, len(cells), there) as report:
        for lines in place.run(cells, run_cell):
            append(out, lines)
            report(lines)
    return load_results(out)


class Place(NamedTuple):
    """Where tasks run: as many processes of this machine, or a cluster."""

    jobs: int
    cluster: str | None

    def run(self, tasks: Sequence[Task], work: Work) -> Iterator[list[Line]]:
        """The results of each, as they arrive."""
        if self.cluster is not None:
            return run_cluster(tasks, work, self.cluster)
        return run_here(tasks, work) if self.jobs == 1 else run_processes(tasks, work, self.jobs)


def _fitting(jobs: int, before: Sequence[Line], progress: Mode) -> int:
    """As many jobs as memory holds, and a word about it if they are fewer than wanted."""
    allowed = affordable(jobs, [line["peak_megabytes"] for line in before if line.get("peak_megabytes")])
    if allowed < jobs and progress is not False:
        print(f"gpssm: {allowed} processes in place of {jobs}: memory holds no more", file=sys.stderr, flush=True)
    return allowed


def _select(wanted: Sequence[Search], out: str | Path, place: Place, progress: Mode, retry: bool) -> Mapping[str, Line]:
    """The selections by data set, those that were not there yet made and written now."""
    selections = load_selections(out)
    missing = [search for search in wanted if not is_made(search, selections, retry)]
    if missing:
        with monitor(progress, len(missing), 0) as report:
            for lines in place.run(missing, run_search):
                selections |= {line["dataset"]: line for line in lines}
                save_selections(out, selections)
                report(lines)
    return selections


def _cells(
    datasets: Datasets,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    protocols: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Cell]:
    """All cells; whole rounds of one seed come first, so that a sweep broken off has something of everything."""
    if unused := [name for name in settings if name not in methods]:
        raise ValueError(f"settings has {unused}, which are not among the methods {list(methods)}")
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    series = load_all(datasets)
    cells = [
        Cell(name, method, seed, series[name], settings.get(method, {}), tuple(dict.fromkeys(protocols)))
        for seed, name, method in itertools.product(dict.fromkeys(numbers), series, dict.fromkeys(methods))
    ]
    if not cells or not protocols:
        raise ValueError("a sweep needs at least one data set, method, seed and protocol")
    return cells


def _missing(cells: list[Cell], there: set[tuple[Any, ...]]) -> list[Cell]:
    """The cells with the protocols whose result is not there, without those that lack none."""
    lacking = [
        replace(cell, protocols=tuple(name for name in cell.protocols if key(cell.identity(name)) not in there))
        for cell in cells
    ]
    return [cell for cell in lacking if cell.protocols]
