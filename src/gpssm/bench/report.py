"""Figures of a report: the RMSE of every method on each data set, and the coverage of its intervals.

The report of a sweep: report.md, report.html, figures/*.png and summary.csv beside the results.
"""

import base64
import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpssm.bench.auto import load_selections
from gpssm.bench.cells import Line, load_results
from gpssm.bench.published import PUBLISHED
from gpssm.bench.tables import (
    PROTOCOL_TITLES,
    Entry,
    Table,
    cost_tables,
    current,
    methods_of,
    result_tables,
    selection_tables,
    summarise,
    to_html,
    to_markdown,
    write_summary,
)
from gpssm.plots.style import BLUE, GREY, VERMILION, house, legend, panels, to_png

COLUMNS = 3  # panels in a row
LEVEL = 0.9
LEAST = 0.9  # of a mean that its bar goes down by at most: a logarithmic axis has no zero
TICKS = (1.0, 2.0, 5.0)  # in each power of ten


@house()
def draw_figure(entries: Sequence[Entry], protocol: str, metric: str) -> bytes:
    """A PNG with a panel a data set and a point a method, with its standard deviation over seeds."""
    chosen = [one for one in entries if (one.protocol, one.metric) == (protocol, metric) and not math.isnan(one.mean)]
    datasets, methods = list(dict.fromkeys(one.dataset for one in chosen)), methods_of(chosen)
    rows, height = max(1, math.ceil(len(datasets) / COLUMNS)), 0.6 + 0.16 * len(methods)
    figure, axes = panels(rows, COLUMNS, height=height, sharey=True)
    for panel, dataset in zip(axes.flat, datasets, strict=False):
        _draw_panel(panel, [one for one in chosen if one.dataset == dataset], methods)
        if metric.startswith("coverage"):
            _draw_level(panel)
        else:
            same = (
                one.mean for one in PUBLISHED if (one.protocol, one.metric, one.dataset) == (protocol, metric, dataset)
            )
            _draw_best(panel, min(same, default=None))
    for panel in axes.flat[len(datasets) :]:
        panel.set_visible(False)
    legend(figure)
    figure.supxlabel(f"{metric}, {protocol}", fontsize="medium")
    return to_png(figure)


def _draw_panel(panel: Any, entries: Sequence[Entry], methods: Sequence[str]) -> None:
    means, places = [one.mean for one in entries], [methods.index(one.method) for one in entries]
    up = [0.0 if math.isnan(one.sd) else one.sd for one in entries]
    down = [min(sd, LEAST * mean) for sd, mean in zip(up, means, strict=True)]
    panel.errorbar(means, places, xerr=(down, up), fmt="o", color=BLUE, capsize=1.5)
    panel.set_title(entries[0].dataset)
    panel.set_yticks(range(len(methods)), methods)
    panel.set_ylim(len(methods) - 0.5, -0.5)


def _draw_level(panel: Any) -> None:
    """An axis of shares, with the level that coverage should have."""
    panel.axvline(LEVEL, color=VERMILION, linewidth=1, linestyle="--", label="as it should be")
    panel.set_xlim(0, 1.02)


def _draw_best(panel: Any, published: float | None) -> None:
    """A logarithmic axis, since the worst method is far from the best, with the best that was published."""
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=TICKS))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
    if published is not None:
        panel.axvline(published, color=GREY, linewidth=1, linestyle="--", label="best published")


TITLE = "Benchmark"
PICTURED = ("rmse", "coverage_90")
LEGEND = (
    "Figures are in the units of the data, mean ± standard deviation over seeds where there are several. The best of "
    "each column is bold and the second best underlined; for coverage that is the nearest to 0.9. Rows called "
    "published are copied from papers, were made by other code, and take no part in the marking. Each table is of one "
    "protocol. A dash means that there is no figure."
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 1.5em } th, td { padding: .2em .8em; text-align: right }
tr { border-bottom: 1px solid #ddd } th:first-child { text-align: left; font-weight: 600 }
.published { color: #777; font-style: italic } img { max-width: 100% } pre { white-space: pre-wrap }
"""


def write_report(folder: str | Path) -> Path:
    """Write the report of a folder's results into it, and give back the path of report.md. Needs matplotlib."""
    folder = Path(folder)
    results = load_results(folder)
    shown, entries = current(results), summarise(results)
    protocols = [name for name in PROTOCOL_TITLES if any(entry.protocol == name for entry in entries)]
    write_summary(entries, folder / "summary.csv")
    pictures = _write_pictures(entries, protocols, folder / "figures")
    sections = {PROTOCOL_TITLES[name]: result_tables(entries, name) for name in protocols}
    sections["Cost and convergence"] = cost_tables(entries)
    if selected := selection_tables(load_selections(folder).values()):
        sections["Settings of ffvd-auto: rolling forecasts inside the training half"] = selected
    facts = _facts(shown, len(results) - len(shown))
    (folder / "report.html").write_text(_html(sections, facts, _failures(shown), pictures))
    path = folder / "report.md"
    path.write_text(_markdown(sections, facts, _failures(shown), pictures))
    return path


def _write_pictures(entries: Sequence[Entry], protocols: Sequence[str], folder: Path) -> dict[str, list[Path]]:
    """The figures' files, by the title of the section they belong to."""
    folder.mkdir(exist_ok=True)
    written: dict[str, list[Path]] = {}
    for protocol in protocols:
        for metric in PICTURED:
            path = folder / f"{metric}-{protocol}.png"
            path.write_bytes(draw_figure(entries, protocol, metric))
            written.setdefault(PROTOCOL_TITLES[protocol], []).append(path)
    return written


def _facts(lines: Sequence[Line], left_out: int) -> list[str]:
    """What the tables are made of."""
    seeds = sorted({line["seed"] for line in lines})
    versions = {", ".join(f"{name} {version}" for name, version in line["versions"].items()) for line in lines}
    facts = [
        f"{len(lines)} results, seeds {', '.join(map(str, seeds))}.",
        *(f"Made with {one}." for one in sorted(versions)),
    ]
    if left_out:
        facts.append(f"{left_out} results of earlier settings or data under the same name are left out.")
    return facts


def _failures(lines: Sequence[Line]) -> list[str]:
    return [
        f"{line['method']} on {line['dataset']}, seed {line['seed']}, {line['protocol']}: {line['error']}"
        for line in lines
        if line["status"] != "ok"
    ]


def _markdown(
    sections: dict[str, list[Table]], facts: list[str], failures: list[str], pictures: dict[str, list[Path]]
) -> str:
    parts = [f"# {TITLE}", LEGEND, *facts]
    for title, tables in sections.items():
        parts += [f"## {title}", *map(to_markdown, tables)]
        parts += [f"![{path.stem}](figures/{path.name})" for path in pictures.get(title, [])]
    if failures:
        parts += ["## Failures", "\n".join(f"- {' '.join(one.split())}" for one in failures)]
    return "\n\n".join(parts) + "\n"


def _html(
    sections: dict[str, list[Table]], facts: list[str], failures: list[str], pictures: dict[str, list[Path]]
) -> str:
    """One file with everything in it, the figures too."""
    parts = [f"<h1>{TITLE}</h1>", *(f"<p>{html.escape(text)}</p>" for text in [LEGEND, *facts])]
    for title, tables in sections.items():
        parts += [f"<h2>{html.escape(title)}</h2>", *map(to_html, tables), *map(_embedded, pictures.get(title, []))]
    if failures:
        parts += ["<h2>Failures</h2>", *(f"<pre>{html.escape(one)}</pre>" for one in failures)]
    head = f"<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>{TITLE}</title>\n<style>{STYLE}</style>\n"
    return head + "\n".join(parts) + "\n</html>\n"


def _embedded(path: Path) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{image}"></p>'
