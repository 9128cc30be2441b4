"""A sweep: every method on every data set with every seed, judged by every protocol, resumable at any moment.

Its cells run in this process, in processes of this machine, or on a Dask cluster (`core/places.py`). A cell that takes
its process with it becomes a failed result of that cell alone. Meanwhile the user sees cells done, failures and the
time left.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gpssm.bench.cells import FILE, Cell, Line, append, key, load_results, run_cell
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import DATASETS
from gpssm.bench.records import Data, divide, load_data
from gpssm.core.elapsed import ticks
from gpssm.core.places import Place
from gpssm.core.text import check_whole
from gpssm.inference.progress import Mode, make_bar

JOB_MEGABYTES = 1500.0  # what a task is taken to need where no result tells

Datasets = Sequence[str] | Mapping[str, Data] | Literal["all"]


def run_sweep(
    datasets: Datasets,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    protocols: Sequence[str] = tuple(PROTOCOLS),
    out: str | Path = "bench",
    *,
    jobs: int = 1,
    cluster: Any = None,
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
        benchmarks of one series, or a mapping of names to series or `Records` of the user's own.
    :param methods: names from `gpssm.methods.METHODS`, or names with a "method" in `settings`; "ffvd-auto" is
        `gpssm.stack` of its default members, and `gpssm.benchmark.VARIANTS` has coupled and wired models.
    :param seeds: the seeds, or how many, from 0 on.
    :param protocols: of "p30", "full", "rolling" and "learn", for a series in two halves, and "simulate", for records;
        each data set and method is judged by those that apply to it.
    :param out: folder for results.jsonl.
    :param jobs: processes on this machine, fewer if there is not memory for as many; 1 runs in this process.
    :param cluster: the address of a Dask scheduler to run on instead, as tcp://host:8786, or a client of one; its
        workers need `gpssm`, and no data.
    :param settings: arguments for `gpssm.fit`, by method: {"ffvd-2": {"method": "ffvd", "state_dim": 2}}; those of
        "ffvd-auto" are for `gpssm.stack`.
    :param progress: True for a bar, "plain" for a line a cell, False for silence.
    :param retry: whether cells whose result is a failure are run again.
    """
    check_whole("jobs", jobs, 1)
    wanted = _cells(datasets, methods, seeds, protocols, settings or {})
    before = load_results(out) if (Path(out) / FILE).is_file() else []
    place = Place(jobs if cluster else _fitting(jobs, before, progress), cluster)
    cells = _missing(wanted, {key(line) for line in before if line["status"] == "ok" or not retry})
    there = len(wanted) - len(cells)
    with monitor(progress, len(cells), there) as report:
        for number, found in place.run(cells, run_cell):
            lines = cells[number].died(found) if isinstance(found, Exception) else found
            append(out, lines)
            report(lines)
    return load_results(out)


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
    series = _load(datasets)
    cells = [
        Cell(name, method, seed, series[name], settings.get(method, {}), tuple(dict.fromkeys(protocols)))
        for seed, name, method in itertools.product(dict.fromkeys(numbers), series, dict.fromkeys(methods))
    ]
    if not cells or not protocols:
        raise ValueError("a sweep needs at least one data set, method, seed and protocol")
    for name in [name for name, data in series.items() if not set(divide(data).protocols).intersection(protocols)]:
        applying = ", ".join(divide(series[name]).protocols)
        raise ValueError(f"{name!r} is judged by {applying}; got none of them in {', '.join(protocols)}")
    if idle := {cell.method for cell in cells}.difference(cell.method for cell in cells if cell.protocols):
        raise ValueError(f"{min(idle)!r} has no weights that learn follows: ask for another protocol too")
    return cells


def _load(datasets: Datasets) -> dict[str, Data]:
    """Data sets by name: of the given names, "all" six benchmarks, or the user's own as they are."""
    if isinstance(datasets, Mapping):
        return dict(datasets)
    if isinstance(datasets, str) and datasets != "all":
        raise TypeError(f"datasets must be a list of names, a mapping of names to series, or 'all'; got {datasets!r}")
    return {name: load_data(name) for name in (DATASETS if datasets == "all" else datasets)}


def _missing(cells: list[Cell], there: set[tuple[Any, ...]]) -> list[Cell]:
    """The cells with the protocols whose result is not there, without those that lack none."""
    lacking = [
        replace(cell, protocols=tuple(name for name in cell.protocols if key(cell.identity(name)) not in there))
        for cell in cells
    ]
    return [cell for cell in lacking if cell.protocols]


def _fitting(jobs: int, before: Sequence[Line], progress: Mode) -> int:
    """As many jobs as memory holds, and a word about it if they are fewer than wanted."""
    allowed = affordable(jobs, [line["peak_megabytes"] for line in before if line.get("peak_megabytes")])
    if allowed < jobs and progress is not False:
        print(f"gpssm: {allowed} processes in place of {jobs}: memory holds no more", file=sys.stderr, flush=True)
    return allowed


def affordable(jobs: int, peaks: Sequence[float]) -> int:
    """As many jobs as asked for, or as the free memory holds: by the largest peak seen so far, in megabytes."""
    free = _free_megabytes()
    return jobs if free is None else max(1, min(jobs, int(free / max([*peaks, JOB_MEGABYTES]))))


def _free_megabytes() -> float | None:
    """Memory that can be had, within the limits of a container if this is one; None where the system does not tell."""
    try:
        free = float(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        return None
    with suppress(OSError, ValueError):
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, (limit - used) / 2**20)
    return free


Report = Callable[[list[Line]], None]


@contextmanager
def monitor(mode: Mode, total: int, skipped: int) -> Iterator[Report]:
    """A function to call with the results of each cell: it moves a bar (True), prints a line ("plain"), or is silent.

    `skipped` cells of a resumed sweep are not among the `total`.
    """
    if mode not in (True, False, "plain"):
        raise ValueError(f"progress must be True (a bar), 'plain' (a line a cell) or False (silence), got {mode!r}.")
    if mode is False:
        yield lambda lines: None
    elif mode == "plain":
        yield _printer(total, skipped)
    else:
        with _bar(total, skipped) as report:
            yield report


def _printer(total: int, skipped: int) -> Report:
    began, done = ticks(), 0

    def report(lines: list[Line]) -> None:
        nonlocal done
        done += 1
        left = (ticks() - began) / done * (total - done)
        print(f"gpssm: {done}/{total} {in_words(lines)}  {left:.0f} s left", file=sys.stderr, flush=True)

    if skipped:
        print(f"gpssm: {skipped} cells were there already, {total} to run", file=sys.stderr, flush=True)
    return report


@contextmanager
def _bar(total: int, skipped: int) -> Iterator[Report]:
    with make_bar(stderr=True) as bar:
        # Cells differ widely in what they take: the time left is reckoned from all of them, not the latest.
        task = bar.add_task("sweep" + f" ({skipped} there already)" * bool(skipped), total=total)
        bar.speed_estimate_period = float("inf")

        def report(lines: list[Line]) -> None:
            bar.console.print(in_words(lines), highlight=False, markup=False)
            bar.advance(task)

        yield report


def in_words(lines: list[Line]) -> str:
    """A cell in a few words: `arx on dryer, seed 0: rmse p30 0.0361, rolling 0.0412`."""
    first = lines[0]
    good = [one for one in lines if one["status"] == "ok"]
    figures = ", ".join(f"{one['protocol']} {one['metrics']['rmse']:.3g}" for one in good)
    problems = {one["error"].splitlines()[0] for one in lines if one["status"] != "ok"}
    parts = [f"rmse {figures}"] if good else []
    parts += [f"FAILED, {problem}" for problem in sorted(problems)]
    return f"{first['method']} on {first['dataset']}, seed {first['seed']}: {'; '.join(parts)}"
