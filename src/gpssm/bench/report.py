"""The report of a sweep beside its results: report.md, report.html, figures/*.png and summary.csv.

The figures are the RMSE of every method on each data set, and the coverage of its intervals.
"""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpssm.bench.cells import load_results
from gpssm.bench.published import PUBLISHED
from gpssm.bench.tables import (
    PROTOCOL_TITLES,
    Entry,
    Table,
    cost_tables,
    current,
    methods_of,
    result_tables,
    rows_used,
    summarise,
    weight_table,
    write_summary,
)
from gpssm.plots.style import BLUE, GREY, VERMILION, in_house_style, legend, panels, to_png

TITLE = "Benchmark"
PICTURED = ("rmse", "coverage_90")
LEGEND = (
    "Figures are in the units of the data, mean ± standard deviation over seeds where there are several. The best of "
    "each column is bold and the second best underlined; for coverage that is the nearest to 0.9. Rows called "
    "published are copied from papers, were made by other code, and take no part in the marking. Each table is of one "
    "protocol. A dash means that there is no figure."
)
# How the best figure and the second best are marked, page by page.
MARKS = {
    "report.md": {"": "%s", "best": "**%s**", "second": "<u>%s</u>"},
    "report.html": {"": "%s", "best": "<b>%s</b>", "second": "<u>%s</u>"},
}
COLUMNS = 3  # panels in a row
LEVEL = 0.9
LEAST = 0.9  # of a mean that its bar goes down by at most: a logarithmic axis has no zero
TICKS = (1.0, 2.0, 5.0)  # in each power of ten


class Section(NamedTuple):
    """A part of the report: a title, tables, and the files of figures."""

    title: str
    tables: list[Table]
    pictures: list[Path]


def write_report(folder: str | Path) -> Path:
    """Write the report of a folder's results into it, and give back the path of report.md. Needs matplotlib."""
    folder = Path(folder)
    results = load_results(folder)
    shown, entries = current(results), summarise(results)
    write_summary(entries, folder / "summary.csv")
    (folder / "figures").mkdir(exist_ok=True)
    sections = []
    for protocol, title in PROTOCOL_TITLES.items():
        if any(entry.protocol == protocol for entry in entries):
            pictures = [folder / "figures" / f"{metric}-{protocol}.png" for metric in PICTURED]
            for path, metric in zip(pictures, PICTURED, strict=True):
                path.write_bytes(draw_figure(entries, protocol, metric))
            sections.append(Section(title, result_tables(entries, protocol), pictures))
    sections.append(Section("Cost and convergence", cost_tables(entries), []))
    if table := weight_table(shown):
        sections.append(Section("What ffvd-auto is made of", [table], []))
    seeds = sorted({line["seed"] for line in shown})
    versions = {", ".join(f"{name} {version}" for name, version in line["versions"].items()) for line in shown}
    facts = [
        f"{len(shown)} results, seeds {', '.join(map(str, seeds))}.",
        *(f"Made with {one}." for one in sorted(versions)),
        *rows_used(shown),
    ]
    if left_out := len(results) - len(shown):
        facts.append(f"{left_out} results of earlier settings or data under the same name are left out.")
    failures = [
        f"{line['method']} on {line['dataset']}, seed {line['seed']}, {line['protocol']}: {line['error']}"
        for line in shown
        if line["status"] != "ok"
    ]
    for name in MARKS:
        (folder / name).write_text(_render(name, sections, facts, failures), encoding="utf-8")
    return folder / "report.md"


def _render(name: str, sections: list[Section], facts: list[str], failures: list[str]) -> str:
    """The file of that name from its template: Markdown beside its figures, or one HTML file with everything in it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpssm", "bench"),
        autoescape=name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = lambda path: base64.b64encode(path.read_bytes()).decode()
    return environment.get_template(f"{name}.j2").render(
        title=TITLE, legend=LEGEND, facts=facts, sections=sections, failures=failures, marks=MARKS[name]
    )


@in_house_style()
def draw_figure(entries: Sequence[Entry], protocol: str, metric: str) -> bytes:
    """A PNG with a panel a data set and a point a method, with its standard deviation over seeds."""
    from matplotlib.ticker import LogLocator, NullLocator

    chosen = [one for one in entries if (one.protocol, one.metric) == (protocol, metric) and not math.isnan(one.mean)]
    datasets, methods = list(dict.fromkeys(one.dataset for one in chosen)), methods_of(chosen)
    rows, height = max(1, math.ceil(len(datasets) / COLUMNS)), 0.6 + 0.16 * len(methods)
    figure, axes = panels(rows, COLUMNS, height=height, sharey=True)
    for panel, dataset in zip(axes.flat, datasets, strict=False):
        here = [one for one in chosen if one.dataset == dataset]
        means, places = [one.mean for one in here], [methods.index(one.method) for one in here]
        up = [0.0 if math.isnan(one.sd) else one.sd for one in here]
        down = [min(sd, LEAST * mean) for sd, mean in zip(up, means, strict=True)]
        panel.errorbar(means, places, xerr=(down, up), fmt="o", color=BLUE, capsize=1.5)
        panel.set_title(dataset)
        panel.set_yticks(range(len(methods)), methods)
        panel.set_ylim(len(methods) - 0.5, -0.5)
        if metric.startswith("coverage"):
            panel.axvline(LEVEL, color=VERMILION, linewidth=1, linestyle="--", label="as it should be")
            panel.set_xlim(0, 1.02)
            continue
        # A logarithmic axis, since the worst method is far from the best.
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=TICKS))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter("{x:g}")
        same = [one.mean for one in PUBLISHED if (one.protocol, one.metric, one.dataset) == (protocol, metric, dataset)]
        if same:
            panel.axvline(min(same), color=GREY, linewidth=1, linestyle="--", label="best published")
    for panel in axes.flat[len(datasets) :]:
        panel.set_visible(False)
    legend(figure)
    figure.supxlabel(f"{metric}, {protocol}", fontsize="medium")
    return to_png(figure)
