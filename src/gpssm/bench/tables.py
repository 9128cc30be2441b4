"""Results as tables: one per suite and protocol, never mixed, beside published figures.

Each table includes the ratio of the ranked score to that of the best baseline on the same set; the
following table has the geometric mean and the worst of the ratios of each method.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gpssm.bench.problems import SUITES
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import PUBLISHED
from gpssm.bench.sweep import Record, load_results
from gpssm.core.files import make_folder
from gpssm.core.table import Table
from gpssm.core.text import DASH
from gpssm.methods import METHODS

BASELINES = ("arx", "lgssm", "lstm", "prssm")
GROUP = ["suite", "protocol", "dataset", "method"]
TITLES = {
    "p30": "simulation of the first 30 test rows",
    "simulation": "simulation of all test rows",
    "rolling": "30-step forecasts from every 10th test row",
    "learn": "30-step forecasts from every 10th test row, learning up to it",
    "daisy-rolling": "30-step forecasts from every 30th test row",
}
LABELS = {"rmse": "RMSE", "crps": "CRPS", "nrmse": "NRMSE", "ncrps": "CRPS"}
LEGEND = f"""\
Figures are means ± standard deviations over seeds. RMSE and CRPS are in the units of the data; of
the DaISy suite NRMSE is in standard deviations of the test outputs and CRPS in those of the
training outputs, means over outputs. The ratio is that of RMSE (DaISy: of CRPS, for simulations of
NRMSE) over the best of {", ".join(BASELINES)} on the same set. "cover" is the coverage of 90 %
intervals, "CPU s" the CPU seconds of a fit with compilation. summary.csv has more figures.
"""


def summarise(results: Iterable[Record]) -> pd.DataFrame:
    """Return mean and standard deviation (`*_sd`) of each score over seeds, and the ratio.

    One row per suite, protocol, data set and method. If a method was run with several settings or
    versions of the data, only the latest is used.
    """
    rows = [
        {name: record[name] for name in ("suite", "dataset", "method", "identity", "finished")}
        | {"protocol": protocol, **record["fit"], **record["figures"].get(protocol, {})}
        for record in results
        for protocol in record["protocols"]
    ]
    frame: Any = pd.DataFrame(rows).sort_values("finished")
    frame = frame[frame.identity == frame.groupby(GROUP).identity.transform("last")]
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, *LABELS, "coverage_90", "cpu"])))
    groups = frame.groupby(GROUP)
    numbers = frame.select_dtypes("number").columns
    table = groups[list(numbers)].mean().join(groups[list(numbers)].std().add_suffix("_sd"))
    table["seeds"] = groups.rmse.count()
    table["failed"] = groups.size() - table["seeds"]
    ratios = []
    for (suite, protocol, _), part in table.groupby(GROUP[:3]):
        ranked = part[ranked_figure(suite, protocol)]
        ratios.append(ranked / ranked[ranked.index.isin(BASELINES, level="method")].min())
    table["ratio"] = pd.concat(ratios)
    return table.loc[sorted(table.index, key=_order)]


def result_tables(summary: pd.DataFrame) -> list[Table]:
    """Return the tables of `summarise`, each followed by a table of ratios over its data sets."""
    tables = []
    groups: Any = summary.groupby(GROUP[:2], sort=False)
    for (suite, protocol), part in groups:
        title = f"{SUITES[suite].title}: {TITLES[protocol]}"
        leading = SUITES[suite].figures
        rows: list[list[str]] = []
        for dataset, entries in part.groupby("dataset", sort=False):
            rows.append([str(dataset)])
            for index, entry in entries.iterrows():
                cells = [_mean(entry[name], entry[f"{name}_sd"]) for name in leading]
                cells += [_number(entry[name]) for name in ("ratio", "coverage_90", "cpu")]
                failed = f", {entry.failed:.0f} failed" if entry.failed else ""
                rows.append([f"  {index[-1]}", *cells, f"{entry.seeds:.0f}{failed}"])
            for method, figure in PUBLISHED.get((suite, protocol, dataset), {}).items():
                rows.append([f"  {method}*", _mean(*figure)])
        columns = ["", *(LABELS[name] for name in leading), "ratio", "cover", "CPU s", "seeds"]
        rows = [row + [""] * (len(columns) - len(row)) for row in rows]
        tables.append(Table(columns, rows, title + " (* published)" * ("*" in str(rows))))
        if part.ratio.notna().any():
            figure = LABELS[ranked_figure(suite, protocol)]
            tables.append(_ratio_table(part, f"{title}: {figure} over the best baseline"))
    return tables


def _ratio_table(part: pd.DataFrame, title: str) -> Table:
    """Return the geometric mean and the worst of the ratios of each method over data sets."""
    rows = []
    for method, ratios in part.ratio.dropna().groupby("method", sort=False):
        ratios = ratios.droplevel(["suite", "protocol", "method"])
        mean = math.prod(ratios) ** (1 / len(ratios))
        worst = f"{_number(ratios.max())} ({ratios.idxmax()})"
        rows.append([str(method), _number(mean), worst, str(len(ratios))])
    return Table(["", "geometric mean", "worst", "sets"], rows, title)


def provenance(results: Sequence[Record]) -> list[str]:
    """Return sentences about the results: seeds, versions, rows used, failures."""
    seeds = sorted({record["seed"] for record in results})
    facts = [f"{len(results)} cells, seeds {', '.join(map(str, seeds))}."]
    facts += [f"Made with {code}." for code in sorted({record["code"] for record in results})]
    facts += sorted({f"{item['dataset']}: {item['note']}." for item in results if item["note"]})
    for record in results:
        cell = f"{record['method']} on {record['dataset']}, seed {record['seed']}"
        if weights := record["fit"].get("weights"):
            members = ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())
            facts.append(f"{cell} is a mixture of {members}.")
        for part, error in record["errors"].items():
            facts.append(f"Failed: {cell}, {part}: {' '.join(error.split())}")
    return facts


def write_report(*folders: str | Path, out: str | Path | None = None) -> Path:
    """Write report.md and summary.csv about the merged results of one or more folders.

    Parameters
    ----------
    *folders
        Folders of sweeps.
    out
        Folder of the report, by default the first one.

    Returns
    -------
    Path
        Path of report.md.
    """
    results = load_results(*folders)
    summary = summarise(results)
    folder = Path(out or folders[0])
    make_folder(folder)
    summary.to_csv(folder / "summary.csv")
    page = ["# Benchmark", "", LEGEND, *(table.markdown for table in result_tables(summary))]
    page += [f"- {fact}" for fact in provenance(results)]
    path = folder / "report.md"
    path.write_text("\n".join(page) + "\n", encoding="utf-8")
    return path


def ranked_figure(suite: str, protocol: str) -> str:
    """Return the score whose ratio to the best baseline is reported."""
    if suite != "daisy":
        return "rmse"
    return "nrmse" if protocol == "simulation" else "ncrps"


def _order(index: tuple[str, str, str, str]) -> tuple[int | str, ...]:
    """Return the sort key of a row: suites, protocols, data sets and methods in their listed
    order.
    """
    suite, protocol, dataset, method = index
    methods = [*METHODS] if method in METHODS else [method, *METHODS]
    datasets = [*SUITES[suite].datasets, dataset]
    places = [list(SUITES).index(suite), list(PROTOCOLS).index(protocol), datasets.index(dataset)]
    return *places, dataset, methods.index(method), method


def _mean(mean: float, sd: float) -> str:
    """Return mean ± standard deviation with three significant digits of the mean."""
    text = _number(mean)
    if math.isnan(mean) or math.isnan(sd):
        return text
    decimals = len(text.partition(".")[2])
    return f"{text} ± {_number(sd) if 'e' in text else format(sd, f'.{decimals}f')}"


def _number(value: float) -> str:
    """Return three significant digits, or a dash for a missing value."""
    if math.isnan(value):
        return DASH
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:#.3g}".rstrip(".")
