"""Tables and sentences that several commands show of runs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpssm.cli.shell import in_line, table
from gpssm.core.text import figure

if TYPE_CHECKING:
    from gpssm.cli.run_folder import Run
    from gpssm.data.series import Series

SHOWN = 12  # steps in a table
WIDTH = 80  # characters of a terminal
WORTH = "Worth it"  # the check that comes first
LEGEND = (
    "* best. Fit: 100 % is perfect, 0 % as good as the mean. Lower is better of the\n"
    "others; 90 % intervals should hold 90 % of what happened."
)
SCALED = "\nNRMSE and NCRPS: over all outputs, in standard deviations of the training data.\n"
ONE = {"rmse": "RMSE", "fit": "fit %", "crps": "CRPS", "nlpd": "NLPD", "coverage_90": "in 90 %"}
ALL = {"nrmse": "NRMSE", "fit": "fit %", "ncrps": "NCRPS", "nlpd": "NLPD", "coverage_90": "in 90 %"}
UNJUDGED = (
    "No rows were held out to test on. Pass --train 0.8 to see how good the forecasts are, beside "
    "those of the baselines."
)
WORDS = {"30": "The first 30 test rows", "full": "All {steps} test rows"}

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder that `gpssm fit` wrote.", show_default=False)
]


def finished(run: "Run") -> list[RenderableType]:
    """What to show of a run that has been finished, after its scores: what to make of it, times, where to look."""
    metrics = run.metrics()
    shown: list[RenderableType] = []
    # A problem that a check found is among the notes too, for programs that read nothing else.
    checks = metrics.get("checks", [])
    said = [
        note
        for note in metrics["notes"]
        if not any(note.startswith(f"{one['name']}: ") for one in checks)
    ]
    shown += [check_table(checks), *(f"Note: {in_line(note)}" for note in said)]
    names = {
        "setup": "setup",
        "compile": "compile",
        "run": "sample",
        "judge": "judge",
        "report": "report",
    }
    seconds = {
        name: metrics["seconds"][key] for key, name in names.items() if key in metrics["seconds"]
    }
    times = ", ".join(f"{name} {value:.{int(value < 10)}f}" for name, value in seconds.items())
    shown.append(f"\nSeconds:   {times}; total {sum(seconds.values()):.0f}")
    facts = metrics.get("summary", {}).get("facts", {})
    if any(facts.get("delay", ())):
        from gpssm.data.delays import name_controls

        shown.append(f"Controls:  {', '.join(name_controls(facts['inputs'], facts['delay']))}")
    report = run.folder / "report.html"
    shown += [f"Report:    {in_line(report)}"] if report.is_file() else []
    return [*shown, f"Forecast:  gpssm forecast {in_line(run.folder)}"]


def score_lines(metrics: Mapping[str, Any]) -> list[str]:
    """One line a horizon with the figures of the fit alone, before the baselines have theirs."""
    lines = []
    for label, by_method in metrics["scores"].items():
        ((method, figures),) = by_method.items()
        several = len(metrics["by_output"][label][method]) > 1
        error = (
            f"NRMSE {figure(figures['nrmse'])}" if several else f"RMSE {figure(figures['rmse'])}"
        )
        words = WORDS[label].format(steps=metrics["horizons"][label])
        lines.append(
            f"{words}: {method} {error}, fit {figure(figures['fit'], 3)} %, {figures['coverage_90']:.0%} in 90 %"
        )
    return lines


def check_table(checks: Sequence[Mapping[str, str]]) -> Table:
    """Whether the model was worth it, and the checks that ask for caution or worse, the gravest first."""
    marks = {"problem": "✕", "caution": "!", "good": "✓", "unknown": "–"}
    found = Table.grid(padding=(0, 1))
    shown = [one for one in checks if one["name"] == WORTH]
    shown += [
        one
        for level in ("problem", "caution")
        for one in checks
        if one["level"] == level and one not in shown
    ]
    for one in shown:
        name = "" if one["name"] == WORTH else f"{one['name']}: "
        found.add_row(
            marks[one["level"]],
            Text(in_line(f"{name}{one['figure']}. {one['words']} (On {one['protocol']}.)")),
        )
    return found


def score_tables(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """A table of scores a horizon; of several outputs, one of all in units of the training data, and one for each.

    :param metrics: `scores` and `by_output`, by horizon and method, and `horizons`, their steps.
    """
    tables: list[RenderableType] = []
    scores, apart = metrics["scores"], metrics.get("by_output", {})
    for label, figures in scores.items():
        title, by_method = (
            WORDS[label].format(steps=metrics["horizons"][label]),
            apart.get(label, {}),
        )
        outputs = list(dict.fromkeys(name for one in by_method.values() for name in one))
        if len(outputs) < 2:
            tables.append(score_table(title, figures, ONE))
            continue
        tables.append(score_table(f"{title}, all outputs", figures, ALL))
        for name in outputs:
            of_output = {method: one[name] for method, one in by_method.items() if name in one}
            unit = metrics.get("units", {}).get(name)
            tables.append(
                score_table(f"{title}, {name}{f' [{unit}]' if unit else ''}", of_output, ONE)
            )
    several = any(len(one) > 1 for by_method in apart.values() for one in by_method.values())
    return [*tables, LEGEND + (SCALED if several else "\n")] if tables else []


def score_table(
    title: str, scores: Mapping[str, Mapping[str, float | None]], shown: Mapping[str, str] = ONE
) -> RenderableType:
    """Scores by name; a star marks the best of each."""
    best = {name: _best(name, [one.get(name) for one in scores.values()]) for name in shown}
    rows = [
        (
            method,
            *(_score(name, figures.get(name), figures.get(name) == best[name]) for name in shown),
        )
        for method, figures in scores.items()
    ]
    return table(title, ["", *shown.values()], rows)


def _score(name: str, value: float | None, best: bool) -> str:
    if value is not None and (name == "fit" or name.startswith("coverage")):
        text = f"{value:.1f}" if name == "fit" else f"{value:.0%}"
    else:
        text = figure(value)
    return f"{text}{'*' if best and value is not None else ' '}"


def _best(name: str, values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    if name == "fit":
        return max(present, default=None)
    return min(
        present,
        key=lambda value: abs(value - 0.9) if name.startswith("coverage") else value,
        default=None,
    )


def forecast_tables(frame: Any, test: "Series | None") -> list[RenderableType]:
    """A table an output: the first and the last steps, with what happened where that is known."""
    rows = list(range(len(frame)))
    rows = rows if len(rows) <= SHOWN else [*rows[: SHOWN // 2], None, *rows[-SHOWN // 2 :]]
    outputs = [
        str(name).removesuffix(" mean") for name in frame.columns if str(name).endswith(" mean")
    ]
    shown: list[RenderableType] = []
    for number, output in enumerate(outputs):
        columns = {
            name.removeprefix(f"{output} "): frame[name]
            for name in frame
            if name.startswith(f"{output} ")
        }
        if test is not None and len(test) >= len(frame):
            columns["actual"] = test.y[: len(frame), number]
        # As many decimals as the spread of the forecast makes worth reading.
        spread = frame[f"{output} std"].median()
        place = math.floor(math.log10(spread)) if spread > 0 else 0
        shape = f".{max(2 - place, 0)}f" if -5 <= place <= 6 else ".3e"
        cells = {
            head: [
                "…" if row is None else f"{one[row]:{shape}}".replace("nan", "–") for row in rows
            ]
            for head, one in ((head, list(map(float, values))) for head, values in columns.items())
        }
        times = _times(frame.index)
        cells = {
            str(frame.index.name or "step"): ["…" if row is None else times[row] for row in rows],
            **cells,
        }
        # The limits of the widest interval say most: those inside go first where there is no room for all.
        while (
            len(cells) > 4
            and sum(2 + max(map(len, (head, *one))) for head, one in cells.items()) > WIDTH - 1
        ):
            limits = [head for head in cells if head.endswith("%")]
            middle = limits[(len(limits) - 1) // 2 : len(limits) // 2 + 1]
            for head in (
                middle if len(limits) > 2 else ["std" if "std" in cells else list(cells)[-1]]
            ):
                del cells[head]
        shown.append(table(output, list(cells), list(zip(*cells.values(), strict=True)), left=0))
    return shown


def _times(index: Any) -> list[str]:
    """Steps or times as text, dates without hours or seconds that are all nought."""
    texts = [str(one) for one in index]
    for nothing in (":00", " 00:00"):
        if all(len(text) > 10 and text.endswith(nothing) for text in texts):
            texts = [text.removesuffix(nothing) for text in texts]
    return texts
