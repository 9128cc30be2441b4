"""Results in figures: over the seeds of each protocol, data set and method, and tables of them, method × data set.

A table is of one protocol and one metric. Measured rows come first, with the best figure of each data set marked and
the second best too; published rows follow, labelled, and are marked by nothing.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gpssm.bench.cells import VARIANTS, Line
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import PUBLISHED, Published
from gpssm.core.text import DASH, figure_table
from gpssm.methods import METHODS

# What each metric is called, and what is least when it is best; None where there is nothing to win.
METRICS: dict[str, tuple[str, Callable[[float], float] | None]] = {
    "rmse": ("RMSE", lambda value: value),
    "nlpd": ("NLPD of the mixture of p(y | state) over the paths", lambda value: value),
    "nlpd_paths": ("NLPD of a density estimate from the paths", lambda value: value),
    "nmll_paper": ("NMLL as the FFVD paper defines it", lambda value: value),
    "crps": ("CRPS", lambda value: value),
    "coverage_90": ("Coverage of 90 % intervals", lambda value: abs(value - 0.9)),
    "share_left": ("Share of paths that left the region the model knows", None),
}
COSTS = {
    "fit_seconds": "Wall seconds of a fit, without compilation",
    "fit_cpu_seconds": "CPU seconds of a fit, compilation included",
    "compile_seconds": "Seconds of compilation",
    "peak_megabytes": "Peak memory, MB",
    "forecast_rhat": "R-hat of the 30-step forecast",
}
PROTOCOL_TITLES = {
    "p30": "P30: free run over the first 30 test steps",
    "full": "PFULL: free run over the whole test half",
    "rolling": "Rolling-30: mean over origins in the test half",
    "learn": "Rolling-30, learning on the way: mean over the same origins",
    "simulate": "Simulation: free run through a test record of its own",
}
LABELS = {
    "p30": "published (P30 only)",
    "full": "published (PFULL only)",
    "simulate": "published (simulation only)",
}

Group = tuple[str, str, str]  # protocol, data set, method
Mark = Literal["", "best", "second"]


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


def summarise(results: Iterable[Line]) -> list[Entry]:
    """An entry for each group and metric; a group that failed altogether has one, of its RMSE.

    Protocols come as they are listed, data sets by name, methods as they are registered, after the user's own: the
    order of the results is that in which cells happened to end.
    """

    def place(group: Group) -> tuple[int, str, int, str]:
        protocol, dataset, method = group
        return list(PROTOCOLS).index(protocol), dataset, *_rank(method)

    groups = _grouped(current(results))
    return [entry for group in sorted(groups, key=place) for entry in _entries(group, groups[group])]


def current(results: Iterable[Line]) -> list[Line]:
    """Of results under several settings or data of one name, those of the latest: figures never mix settings."""
    return [line for lines in _grouped(results).values() for line in lines if _setting(line) == _setting(lines[-1])]


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


def _grouped(results: Iterable[Line]) -> dict[Group, list[Line]]:
    groups: dict[Group, list[Line]] = defaultdict(list)
    for line in results:
        groups[line["protocol"], line["dataset"], line["method"]].append(line)
    return groups


def _entries(group: Group, lines: list[Line]) -> list[Entry]:
    good = [figures(line) for line in lines if line["status"] == "ok"]
    failed = len(lines) - len(good)
    if not good:
        return [Entry(*group, "rmse", math.nan, math.nan, 0, failed)]
    entries = []
    for metric in good[0]:
        known = [one[metric] for one in good if not math.isnan(one[metric])]
        mean = float(np.mean(known)) if known else math.nan
        sd = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
        entries.append(Entry(*group, metric, mean, sd, len(good), failed))
    return entries


def _setting(line: Line) -> tuple[str, str]:
    return line["config_hash"], line["data_hash"]


def methods_of(entries: Iterable[Entry]) -> list[str]:
    """The methods that have an entry, in the order of a summary."""
    return sorted({entry.method for entry in entries}, key=_rank)


def _rank(method: str) -> tuple[int, str]:
    base = VARIANTS.get(method, {}).get("method", method)
    return list(METHODS).index(base) if base in METHODS else -1, method


def write_summary(entries: Iterable[Entry], path: Path) -> None:
    """The entries as a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Entry._fields)
        writer.writerows(entries)


def rows_used(results: Iterable[Line]) -> list[str]:
    """Which rows were trained on and judged, of data sets that need words for it."""
    words = {line["dataset"]: line["data"] for line in current(results) if line.get("data")}
    return [f"{name}: {words[name]}." for name in sorted(words)]


def rmse_table(entries: Iterable[Entry]) -> str:
    """The RMSE of every method on every data set under every protocol, as text."""
    rows = [
        (one.dataset, one.method, one.protocol, one.mean, one.sd, one.seeds, one.failed)
        for one in entries
        if one.metric == "rmse"
    ]
    columns = ("series", "method", "protocol", "mean", "sd", "seeds", "failed")
    return figure_table(columns, rows, words=3, title="RMSE over seeds")


class Row(NamedTuple):
    """A method's figures, one a column, each with its mark; `published` tells another paper's from ours."""

    label: str
    cells: list[tuple[str, Mark]]
    published: bool = False


class Table(NamedTuple):
    """A title, the names of the columns, and rows."""

    title: str
    columns: list[str]
    rows: list[Row]


def result_tables(entries: Sequence[Entry], protocol: str) -> list[Table]:
    """The tables of one protocol, with published figures of the same protocol."""
    own = [entry for entry in entries if entry.protocol == protocol]
    tables = [_metric_table(own, metric, title, better, protocol) for metric, (title, better) in METRICS.items()]
    return [table for table in tables if table.rows]


def cost_tables(entries: Sequence[Entry]) -> list[Table]:
    """What fits took: they serve all protocols, so the figures come from any one of them."""
    seen: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        seen.setdefault((entry.dataset, entry.method, entry.metric), entry)
    return [_metric_table([*seen.values()], metric, title, None, "") for metric, title in COSTS.items()]


def weight_table(results: Sequence[Line]) -> Table | None:
    """The weights of the members of stacks, a mean over seeds; None where there are no stacks."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for line in results:
        for member, weight in line.get("weights", {}).items():
            found.setdefault((member, line["dataset"]), {})[line["seed"]] = weight
    if not found:
        return None
    members, datasets = list(dict.fromkeys(name for name, _ in found)), sorted({name for _, name in found})

    def mean(member: str, dataset: str) -> str:
        weights = found.get((member, dataset))
        return "" if weights is None else f"{sum(weights.values()) / len(weights):.2f}"

    rows = [Row(member, [(mean(member, name), "") for name in datasets]) for member in members]
    return Table("Weights, means over seeds", datasets, rows)


def _metric_table(
    entries: Sequence[Entry], metric: str, title: str, better: Callable[[float], float] | None, protocol: str
) -> Table:
    datasets = list(dict.fromkeys(entry.dataset for entry in entries))
    methods = methods_of(entries)
    at = {(one.method, one.dataset): one for one in entries if one.metric == metric or not one.seeds}
    marks = _marks([one for one in at.values() if one.metric == metric], better)
    rows = [
        Row(method, [(_text(at.get((method, name))), marks.get((method, name), "")) for name in datasets])
        for method in methods
    ]
    return Table(title, datasets, rows + _published(metric, protocol, datasets))


def _marks(entries: Iterable[Entry], better: Callable[[float], float] | None) -> dict[tuple[str, str], Mark]:
    """The best and the second best on each data set, as far as the digits shown can tell them apart."""
    marks: dict[tuple[str, str], Mark] = {}
    if better is None:
        return marks
    losses = {(one.method, one.dataset): better(float(number(one.mean))) for one in entries if not math.isnan(one.mean)}
    for (method, dataset), loss in losses.items():
        ranks = sorted({rival for (_, place), rival in losses.items() if place == dataset})
        if len(ranks) > 1 and loss in ranks[:2]:
            marks[method, dataset] = "best" if loss == ranks[0] else "second"
    return marks


def _text(entry: Entry | None) -> str:
    if entry is None:
        return DASH
    if not entry.seeds and entry.failed:
        return "failed"
    spread = "" if math.isnan(entry.sd) else f" ± {number(entry.sd)}"
    return (
        number(entry.mean) + spread + f" ({entry.failed} of {entry.seeds + entry.failed} failed)" * bool(entry.failed)
    )


def _published(metric: str, protocol: str, datasets: Sequence[str]) -> list[Row]:
    """Rows of other papers on the same data sets, under the same protocol."""
    known = {(one.method, one.dataset): one for one in PUBLISHED if (one.protocol, one.metric) == (protocol, metric)}
    shown = dict.fromkeys(method for method, dataset in known if dataset in datasets)
    return [
        Row(f"{method}, {LABELS[protocol]}", [(_quoted(known.get((method, name))), "") for name in datasets], True)
        for method in shown
    ]


def _quoted(figure: Published | None) -> str:
    if figure is None:
        return DASH
    return number(figure.mean) + ("" if figure.sd is None else f" ± {number(figure.sd)}")


def number(value: float) -> str:
    """Three significant digits, or all before the point; what does not exist is a dash."""
    if math.isnan(value):
        return DASH
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:.3g}"
