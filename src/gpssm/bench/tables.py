"""Results as tables: one per suite and protocol, never mixed, beside published figures.

Each table includes the ratio of the ranked score to that of the best baseline on the same set; the
following table has the geometric mean and the worst of the ratios of each method.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import gmean

from gpssm.bench.problems import SUITES
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import published
from gpssm.bench.sweep import Record, load_results
from gpssm.core.files import make_folder
from gpssm.core.table import Table
from gpssm.core.text import figure
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
    ranked: Any = table.apply(lambda entry: entry[ranked_figure(*entry.name[:2])], axis=1)
    baselines = ranked.where(ranked.index.isin(BASELINES, level="method"))
    table["ratio"] = ranked / baselines.groupby(GROUP[:3]).transform("min")
    # Suites, protocols, data sets and methods are in their listed order; others follow.
    sets = [name for suite in SUITES.values() for name in suite.datasets]
    listed = [*SUITES, *PROTOCOLS, *sets, *METHODS]
    rank = {name: f"{number:03}" for number, name in enumerate(listed)}
    return table.sort_index(key=lambda names: names.map(lambda name: rank.get(name, "999") + name))


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
                cells = [_with_spread(entry[name], entry[f"{name}_sd"]) for name in leading]
                cells += [_number(entry[name]) for name in ("ratio", "coverage_90", "cpu")]
                failed = f", {entry.failed:.0f} failed" if entry.failed else ""
                rows.append([f"  {index[-1]}", *cells, f"{entry.seeds:.0f}{failed}"])
            printed = published(suite, protocol, str(dataset))
            rows += [[f"  {method}*", _with_spread(*pair)] for method, pair in printed.items()]
        columns = ["", *(LABELS[name] for name in leading), "ratio", "cover", "CPU s", "seeds"]
        rows = [row + [""] * (len(columns) - len(row)) for row in rows]
        tables.append(Table(columns, rows, title + " (* published)" * ("*" in str(rows))))
        if part.ratio.notna().any():
            score = LABELS[ranked_figure(suite, protocol)]
            tables.append(_ratio_table(part, f"{title}: {score} over the best baseline"))
    return tables


def _ratio_table(part: pd.DataFrame, title: str) -> Table:
    """Return the geometric mean and the worst of the ratios of each method over data sets."""
    rows = []
    for method, ratios in part.ratio.dropna().groupby("method", sort=False):
        worst = f"{_number(ratios.max())} ({ratios.idxmax()[2]})"
        rows.append([str(method), _number(gmean(ratios)), worst, str(len(ratios))])
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


def _with_spread(mean: float, sd: float) -> str:
    """Return mean ± standard deviation, or only the mean if the deviation is NaN."""
    return _number(mean) if math.isnan(sd) else f"{_number(mean)} ± {figure(sd, 2)}"


def _number(value: float) -> str:
    """Return three significant digits, but no exponent for thousands."""
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e6 else figure(float(value), 3)
