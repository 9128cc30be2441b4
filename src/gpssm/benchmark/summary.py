"""Results in figures: mean and standard deviation over seeds of each metric, for each protocol, data set and method."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpssm.benchmark.protocols import PROTOCOLS
from gpssm.benchmark.results import Line
from gpssm.methods import METHODS

Group = tuple[str, str, str]  # protocol, data set, method


class Entry(NamedTuple):
    """A metric over the seeds of one method on one data set; mean and sd are NaN where there is no figure."""

    protocol: str
    dataset: str
    method: str
    metric: str
    mean: float
    sd: float
    seeds: int  # that have a result
    failed: int  # that ended in an error


def current(results: Iterable[Line]) -> list[Line]:
    """Of results under several settings or data of one name, those of the latest: figures never mix settings."""
    return [line for lines in _grouped(results).values() for line in lines if _setting(line) == _setting(lines[-1])]


def summarise(results: Iterable[Line]) -> list[Entry]:
    """An entry for each group and metric; a group that failed altogether has one, of its RMSE.

    Their order does not depend on that of the results, which is the order in which cells happened to end.
    """
    groups = sorted(_grouped(current(results)).items(), key=lambda item: _place(item[0]))
    return [entry for group, lines in groups for entry in _entries(group, lines)]


def figures(line: Line) -> dict[str, float]:
    """The metrics of a good result, and with them what its fit cost and how far it can be trusted."""
    seconds = line["seconds"]
    values = line["metrics"] | {
        "share_left": line["share_left"],
        "forecast_rhat": line["forecast_rhat"],
        "fit_seconds": seconds["fit"]["wall"] - seconds["compile"],
        "fit_cpu_seconds": seconds["fit"]["cpu"],
        "compile_seconds": seconds["compile"],
        "protocol_seconds": seconds["protocol"]["wall"],
        "peak_megabytes": line["peak_megabytes"],
    }
    return {name: math.nan if value is None else value for name, value in values.items()}


def write_summary(entries: Iterable[Entry], path: Path) -> None:
    """The entries as a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Entry._fields)
        writer.writerows(entries)


def _grouped(results: Iterable[Line]) -> dict[Group, list[Line]]:
    groups: dict[Group, list[Line]] = defaultdict(list)
    for line in results:
        groups[line["protocol"], line["dataset"], line["method"]].append(line)
    return groups


def _place(group: Group) -> tuple[int, str, int, str]:
    """Protocols as they are listed, data sets by name, methods as they are registered, after the user's own."""
    protocol, dataset, method = group
    return list(PROTOCOLS).index(protocol), dataset, *_rank(method)


def methods_of(entries: Iterable[Entry]) -> list[str]:
    """The methods that have an entry, in the order of `_place`."""
    return sorted({entry.method for entry in entries}, key=_rank)


def _rank(method: str) -> tuple[int, str]:
    return list(METHODS).index(method) if method in METHODS else -1, method


def _entries(group: Group, lines: list[Line]) -> list[Entry]:
    good = [figures(line) for line in lines if line["status"] == "ok"]
    failed = len(lines) - len(good)
    if not good:
        return [Entry(*group, "rmse", math.nan, math.nan, 0, failed)]
    return [_entry(group, name, [one[name] for one in good], failed) for name in good[0]]


def _entry(group: Group, metric: str, values: list[float], failed: int) -> Entry:
    known = [value for value in values if not math.isnan(value)]
    mean = float(np.mean(known)) if known else math.nan
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
    return Entry(*group, metric, mean, sd, len(values), failed)


def _setting(line: Line) -> tuple[str, str]:
    return line["config_hash"], line["data_hash"]
