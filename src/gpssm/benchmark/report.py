"""The report of a sweep: report.md, report.html, figures/*.png and summary.csv beside the results."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from gpssm.benchmark.auto import load_selections
from gpssm.benchmark.pictures import draw_figure
from gpssm.benchmark.results import Line, load_results
from gpssm.benchmark.summary import Entry, current, summarise, write_summary
from gpssm.benchmark.tables import (
    PROTOCOL_TITLES,
    Table,
    cost_tables,
    result_tables,
    selection_tables,
    to_html,
    to_markdown,
)

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
