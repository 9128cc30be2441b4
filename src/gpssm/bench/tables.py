"""Results as tables: one per suite and protocol, never mixed, over seeds, beside published figures.

Each table has the ratio of the figure that is ranked over that of the best baseline on the same set,
and below it the geometric mean and the worst of a method's ratios.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpssm.bench.problems import SUITES
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import PUBLISHED
from gpssm.bench.sweep import VARIANTS, Record, load_results
from gpssm.core.files import make_folder
from gpssm.core.text import DASH, figure_table
from gpssm.methods import METHODS

if TYPE_CHECKING:
    import pandas as pd

BASELINES = ("arx", "lgssm", "lstm", "prssm")
GROUP = ["suite", "protocol", "dataset", "method"]
TITLES = {
    "p30": "simulation of the first 30 test rows",
    "simulation": "simulation of all test rows",
    "rolling": "30-step forecasts from every 10th test row",
    "learn": "30-step forecasts from every 10th test row, learning up to it",
    "daisy-rolling": "30-step forecasts from every 30th test row",
}
LABELS = {
    "rmse": "RMSE",
    "crps": "CRPS",
    "nrmse": "NRMSE",
    "ncrps": "CRPS",
    "ratio": "ratio",
    "coverage_90": "cover",
    "cpu": "CPU s",
    "nlpd": "NLPD",
    "nmll_paper": "NMLL of the paper",
    "share_left": "paths left",
    "wall": "wall s",
    "compile": "compile s",
    "rhat": "R-hat",
}
LEGEND = (
    "RMSE and CRPS are in the units of the data, means ± standard deviations over seeds; of the DaISy "
    "suite NRMSE is in standard deviations of the test outputs and CRPS of the training outputs, means "
    "over outputs. The ratio is that of RMSE (DaISy: of CRPS, for simulations of NRMSE) over the best "
    f"of the baselines {', '.join(BASELINES)} on the same set. Cover is the coverage of 90 % intervals, "
    "CPU s the CPU seconds of a fit with compilation. Published figures are copied from papers."
)


class Table(NamedTuple):
    """A table of text: title, names of the columns, rows; the first `words` columns are words."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def __str__(self) -> str:
        return figure_table(self.columns, self.rows, words=self.words, title=self.title, width=100)

    @property
    def markdown(self) -> str:
        """The table for a Markdown page."""
        align = ["---" if number < self.words else "---:" for number in range(len(self.columns))]
        lines = ["| " + " | ".join(row) + " |" for row in (self.columns, align, *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, ""])


def summarise(results: Iterable[Record]) -> "pd.DataFrame":
    """Mean and standard deviation (`*_sd`) over seeds of each figure, with `seeds`, `failed`, `ratio`.

    One row per suite, protocol, data set and method. Where a method was run with several settings
    or on several versions of the data, only the seeds of the latest count.
    """
    import pandas

    rows = [
        {name: record[name] for name in ("suite", "dataset", "method", "seed", "finished")}
        | {"protocol": protocol, "config": str(record["config"])}
        | record["fit"]
        | record["figures"].get(protocol, {})
        for record in results
        for protocol in record["protocols"]
    ]
    frame = pandas.DataFrame(rows).sort_values("finished")
    frame = frame[frame.config == frame.groupby(GROUP).config.transform("last")]
    for name in set(LABELS).difference(frame.columns):
        frame[name] = math.nan
    groups = frame.groupby(GROUP)
    figures = [name for name in LABELS if name != "ratio"]
    table = groups[figures].mean().join(groups[figures].std().add_suffix("_sd"))
    table["seeds"] = groups.rmse.count()
    table["failed"] = groups.size() - table["seeds"]
    table["ratio"] = math.nan
    for (suite, protocol, _), part in table.groupby(GROUP[:3]):
        ranked = ranked_figure(suite, protocol)
        best = part[part.index.get_level_values("method").isin(BASELINES)][ranked].min()
        table.loc[part.index, "ratio"] = part[ranked] / best
    return table.loc[sorted(table.index, key=_order)]


def result_tables(summary: "pd.DataFrame", wide: bool = False) -> list[Table]:
    """The tables of `summarise`; `wide` ones have more figures than fit into 80 columns."""
    tables = []
    for (suite, protocol), part in summary.groupby(GROUP[:2], sort=False):
        title = f"{SUITES[suite].title}: {TITLES[protocol]}"
        leading = SUITES[suite].figures
        rest = ["coverage_90", "cpu"]
        rest += ["nlpd", "nmll_paper", "share_left", "wall", "compile", "rhat"] if wide else []
        rows: list[list[str]] = []
        for dataset, entries in part.groupby("dataset", sort=False):
            rows.append([str(dataset)])
            for index, entry in entries.iterrows():
                cells = [_mean(entry[name], entry[f"{name}_sd"]) for name in leading]
                cells += [_number(entry[name]) for name in ["ratio", *rest]]
                seeds = f"{entry.seeds:.0f}" + (f", {entry.failed:.0f} failed" if entry.failed else "")
                rows.append(["  " + index[-1], *cells, seeds])
            for method, (mean, sd) in PUBLISHED.get((suite, protocol, dataset), {}).items():
                rows.append([f"  {method}*", _mean(mean, math.nan if sd is None else sd)])
        labels = ["", *(LABELS[name] for name in [*leading, "ratio", *rest]), "seeds"]
        rows = [row + [""] * (len(labels) - len(row)) for row in rows]
        tables.append(Table(title + " (* published)" * ("*" in str(rows)), labels, rows))
        if part.ratio.notna().any():
            tables.append(_ratio_table(part, f"{title}, {LABELS[ranked_figure(suite, protocol)]}"))
    return tables


def _ratio_table(part: "pd.DataFrame", title: str) -> Table:
    """Geometric mean and worst of the ratios of each method over the sets of a table."""
    rows = []
    for method, ratios in part.ratio.groupby("method", sort=False):
        ratios = ratios.dropna().droplevel(["suite", "protocol", "method"])
        if len(ratios):
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            worst = f"{_number(ratios.max())} ({ratios.idxmax()})"
            rows.append([str(method), _number(mean), worst, str(len(ratios))])
    columns = ["", "geometric mean", "worst", "sets"]
    return Table(f"{title}: ratio against the best baseline", columns, rows)


def provenance(results: Sequence[Record]) -> list[str]:
    """Sentences about what the results are: seeds, versions, rows used, failures."""
    seeds = sorted({record["seed"] for record in results})
    facts = [f"{len(results)} cells, seeds {', '.join(map(str, seeds))}."]
    facts += [f"Made with {code}." for code in sorted({record["code"] for record in results})]
    facts += sorted({f"{one['dataset']}: {one['note']}." for one in results if one["note"]})
    for record in results:
        if weights := record["fit"].get("weights"):
            members = ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())
            facts.append(f"{_cell_name(record)} is a mixture of {members}.")
        for part, error in record["errors"].items():
            facts.append(f"Failed: {_cell_name(record)}, {part}: {' '.join(error.split())}")
    return facts


def write_report(*folders: str | Path, out: str | Path | None = None) -> Path:
    """Write report.md and summary.csv about the results of one or more folders.

    Parameters
    ----------
    *folders
        Folders of sweeps; their results are merged.
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
    page = [
        "# Benchmark",
        "",
        LEGEND,
        "",
        *(table.markdown for table in result_tables(summary, wide=True)),
    ]
    page += [f"- {fact}" for fact in provenance(results)]
    path = folder / "report.md"
    path.write_text("\n".join(page) + "\n", encoding="utf-8")
    return path


def ranked_figure(suite: str, protocol: str) -> str:
    """The figure whose ratio against the best baseline is reported."""
    if suite != "daisy":
        return "rmse"
    return "nrmse" if protocol == "simulation" else "ncrps"


def _order(index: tuple[str, str, str, str]) -> tuple[Any, ...]:
    """Suites, protocols and data sets as they are listed; methods too, after the user's own."""
    suite, protocol, dataset, method = index
    names = SUITES[suite].datasets
    base = VARIANTS.get(method, {}).get("method", method)
    return (
        list(SUITES).index(suite),
        list(PROTOCOLS).index(protocol),
        names.index(dataset) if dataset in names else len(names),
        dataset,
        list(METHODS).index(base) if base in METHODS else -1,
        method,
    )


def _cell_name(record: Record) -> str:
    return f"{record['method']} on {record['dataset']}, seed {record['seed']}"


def _mean(mean: float, sd: float) -> str:
    """Mean ± standard deviation with as many decimals as the mean has in three digits."""
    text = _number(mean)
    if math.isnan(mean) or math.isnan(sd):
        return text
    decimals = len(text.partition(".")[2])
    return f"{text} ± {_number(sd) if 'e' in text else format(sd, f'.{decimals}f')}"


def _number(value: float) -> str:
    """Three significant digits; what does not exist is a dash."""
    if math.isnan(value):
        return DASH
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:#.3g}".rstrip(".")
