"""Tables and sentences that several commands show of runs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from gpssm.core.table import Table, loss
from gpssm.core.text import figure, in_line

if TYPE_CHECKING:
    from gpssm.cli.run_folder import Run
    from gpssm.data.series import Series

STEPS = 12  # in a table of a forecast
WORTH = "Worth it"  # the check of the fit against linear models and baselines
GRAVITY = ("problem", "caution", "good", "unknown")
MARKS = {"problem": "✕", "caution": "!", "good": "✓", "unknown": "–"}
LEGEND = (
    "* best. Lower is better, but fit: 100 % is perfect, 0 % as good as the mean.\n"
    "90 % intervals should hold 90 % of what happened.\n"
)
UNJUDGED = (
    "No rows were held out, so nothing says how good the forecasts are. Pass\n"
    "--train 0.8 to judge them beside linear models.\n"
)
HEADS = {"rmse": "RMSE", "nrmse": "NRMSE", "fit": "fit %", "crps": "CRPS", "ncrps": "NCRPS"}
HEADS |= {"nlpd": "NLPD", "coverage_90": "in 90 %"}
ONE_OUTPUT = ("rmse", "fit", "crps", "coverage_90")
ALL_OUTPUTS = ("nrmse", "fit", "ncrps", "coverage_90")  # in units of the training data's spread

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder that `gpssm fit` wrote.", show_default=False)
]


def closing_lines(run: "Run") -> list[RenderableType]:
    """What to make of a finished run: verdicts, the worst first; times; where to look."""
    metrics = run.metrics()
    shown: list[RenderableType] = [*verdicts(metrics)]
    names = {"run": "sample"}
    seconds = {names.get(name, name): value for name, value in metrics["seconds"].items()}
    times = ", ".join(f"{name} {value:.{int(value < 10)}f}" for name, value in seconds.items())
    shown.append(f"\nSeconds:   {times}; total {sum(seconds.values()):.0f}")
    facts = metrics["summary"]["facts"]
    if any(facts["delay"]):
        from gpssm.data.delays import name_controls

        shown.append(f"Inputs:    {', '.join(name_controls(facts['inputs'], facts['delay']))}")
    report = run.folder / "report.html"
    if report.is_file():
        shown.append(f"Report:    {in_line(report)}")
    return [*shown, f"Forecast:  gpssm forecast {in_line(run.folder)}"]


def verdicts(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """Checks that ask for attention, the gravest first, whether the fit was worth it, and notes.

    Whether it was worth it is not said of training rows, which flatter the more flexible model.
    """
    checks = metrics["checks"]
    judged = metrics["rolling"]["held_out"]
    shown = [
        check
        for check in checks
        if (check["name"] != WORTH and check["level"] in GRAVITY[:2])
        or (check["name"] == WORTH and judged)
    ]
    grid = Grid.grid(padding=(0, 1))
    for check in sorted(
        shown, key=lambda check: (GRAVITY.index(check["level"]), check["name"] != WORTH)
    ):
        name = "" if check["name"] == WORTH else f"{check['name']}: "
        words = f"{name}{check['words']} ({check['figure']}; {check['protocol']}.)"
        grid.add_row(MARKS[check["level"]], Text(in_line(words)))
    if not shown:
        grid.add_row(MARKS["good"], Text(f"All {len(checks)} checks passed."))
    # A problem that a check found is among the notes too, for programs that read only these.
    notes = [
        f"Note: {in_line(note)}"
        for note in metrics["notes"]
        if not any(note.startswith(f"{check['name']}: ") for check in checks)
    ]
    return [grid, *notes]


def score_tables(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """Scores on held-out rows: of rolling forecasts, which decide, and of one simulation of all
    rows.

    Parameters
    ----------
    metrics
        The contents of metrics.json, or of several: see `compare_runs`.
    """
    rolling = metrics["rolling"]
    if not rolling["held_out"] or not metrics["scores"]:
        return []
    steps = rolling["horizon"]
    tables: list[RenderableType] = [f"On {rolling['protocol']}:\n"]
    methods = rolling["methods"]
    columns = {"rmse_1": "RMSE, 1 step", f"rmse_{steps}": f"{steps} steps"}
    columns |= {name: HEADS[name] for name in ONE_OUTPUT[1:]}
    outputs = list(dict.fromkeys(name for entry in methods.values() for name in entry["outputs"]))
    for output in outputs:
        scores = {}
        for method, entry in methods.items():
            if output in entry["outputs"]:
                by_step = entry["outputs"][output].get("rmse_by_step") or [None]
                ends = {"rmse_1": by_step[0], f"rmse_{steps}": by_step[-1]}
                scores[method] = ends | entry["outputs"][output]
        tables.append(score_table(_with_unit(output, metrics), scores, columns))
    if len(outputs) > 1:
        scores = {method: {"ncrps": entry["scaled_crps"]} for method, entry in methods.items()}
        columns = {"ncrps": "CRPS / spread of the output"}
        tables.append(score_table("All outputs", scores, columns))
    scores = metrics["scores"]["full"]
    columns = {name: HEADS[name] for name in (ONE_OUTPUT if len(outputs) < 2 else ALL_OUTPUTS)}
    title = f"On one simulation of all {metrics['horizons']['full']} held-out rows:\n"
    return [*tables, title, score_table("", scores, columns), LEGEND]


def _with_unit(output: str, metrics: Mapping[str, Any]) -> str:
    unit = metrics["units"].get(output)
    return f"{output} [{unit}]" if unit else output


def score_table(
    title: str, scores: Mapping[str, Mapping[str, float | None]], columns: Mapping[str, str]
) -> Table:
    """Scores by method; a star marks the best of each column."""
    losses = {
        name: [
            loss(name, figures[name]) if figures.get(name) is not None else math.inf
            for figures in scores.values()
        ]
        for name in columns
    }
    rows = []
    for row, (method, figures) in enumerate(scores.items()):
        cells = []
        for name in columns:
            value = figures.get(name)
            star = "*" if value is not None and losses[name][row] == min(losses[name]) else " "
            text = (
                f"{value:.0%}" if name == "coverage_90" and value is not None else figure(value, 3)
            )
            cells.append(text + star)
        rows.append((method, *cells))
    return Table(["", *columns.values()], rows, title)


def forecast_tables(frame: Any, test: "Series | None") -> list[RenderableType]:
    """Per output the first and last steps: mean, widest interval, and what happened if it is known."""
    outputs = [
        str(name).removesuffix(" mean") for name in frame.columns if str(name).endswith(" mean")
    ]
    times = _times(frame.index)
    tables: list[RenderableType] = []
    for number, output in enumerate(outputs):
        limits = [name for name in frame if name.startswith(f"{output} ") and name.endswith("%")]
        names = [f"{output} mean", limits[0], limits[-1]]
        columns = {name.removeprefix(f"{output} "): frame[name] for name in names}
        if test is not None and len(test) >= len(frame):
            columns["actual"] = test.y[: len(frame), number]
        # As many decimals as the spread of the forecast makes worth reading.
        spread = frame[f"{output} std"].median()
        place = math.floor(math.log10(spread)) if spread > 0 else 0
        shape = f".{max(2 - place, 0)}f" if -5 <= place <= 6 else ".3e"
        rows = [
            (time, *(f"{value:{shape}}".replace("nan", "–") for value in values))
            for time, *values in zip(times, *columns.values(), strict=True)
        ]
        head = [str(frame.index.name or "step"), *columns]
        tables.append(Table(head, rows, output, words=0).shortened(STEPS))
    return tables


def _times(index: Any) -> list[str]:
    """Steps or times as text, dates without hours or seconds that are all zero."""
    texts = [str(time) for time in index]
    for end in (":00", " 00:00"):
        if all(len(text) > 10 and text.endswith(end) for text in texts):
            texts = [text.removesuffix(end) for text in texts]
    return texts


def list_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of two columns of text."""
    return Table(columns, rows, title, words=2)
