"""Tables and messages about runs that several commands show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from gpssm.core.table import Table
from gpssm.core.text import in_line

if TYPE_CHECKING:
    from gpssm.cli.run_folder import Run
    from gpssm.data.series import Series

WORTH = "Simpler models"  # the check that compares the fit with linear models and baselines
MARKS = {"problem": "✕", "caution": "!", "good": "✓"}
UNJUDGED = (
    "No rows were held out, so the accuracy of forecasts is unknown. Pass\n--train 0.8 to "
    "compare them with linear models.\n"
)
HEADS = {
    "rmse": "RMSE",
    "nrmse": "NRMSE",
    "fit": "fit %",
    "crps": "CRPS",
    "ncrps": "NCRPS",
    "coverage_90": "in 90 %",
}

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run folder of `gpssm fit`.", show_default=False)
]


def closing_lines(run: "Run") -> list[RenderableType]:
    """Return the closing lines of a finished run: verdicts, times and paths."""
    metrics = run.metrics()
    shown: list[RenderableType] = [*verdicts(metrics)]
    seconds = metrics["seconds"]
    times = ", ".join(f"{name} {value:.{int(value < 10)}f}" for name, value in seconds.items())
    shown.append(f"\nSeconds:   {times}; total {sum(seconds.values()):.0f}")
    summary = metrics["summary"]
    if summary["leading"]:
        members = [
            f"{row['member']} {row['weight']:.0%}" for row in summary["members"] if row["weight"]
        ]
        shown.append(f"Mixture:   {in_line(', '.join(members))}")
    facts = summary["facts"]
    if any(facts["delay"]):
        from gpssm.data.delays import name_inputs

        shown.append(f"Inputs:    {', '.join(name_inputs(facts['inputs'], facts['delay']))}")
    report = run.folder / "report.html"
    if report.is_file():
        shown.append(f"Report:    {in_line(report)}")
    return [*shown, f"Forecast:  gpssm forecast {in_line(run.folder)}"]


def verdicts(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """Return warnings, the most severe first and one per cause, and the comparison with baselines.

    Notes follow.
    """
    from gpssm.posterior.checks import Check, doubts

    checks = [Check(**check) for check in metrics["checks"]]
    shown = doubts(checks)
    shown += [check for check in checks if check.name == WORTH and check.level == "good"]
    grid = Grid.grid(padding=(0, 1))
    for check in shown:
        name = "" if check.name == WORTH else f"{check.name}: "
        verdict = f"{name}{check.words} ({check.figure}; {check.protocol}.)"
        grid.add_row(MARKS[check.level], Text(in_line(verdict)))
    if not shown:
        grid.add_row(MARKS["good"], Text(f"All {len(checks)} checks passed."))
    # Problems found by checks are also among the notes, for programs that read only these.
    notes = [
        f"Note: {in_line(note)}"
        for note in metrics["notes"]
        if not any(note.startswith(f"{check.name}: ") for check in checks)
    ]
    return [grid, *notes]


def score_tables(metrics: Mapping[str, Any]) -> list[RenderableType]:
    """Return tables of scores on held-out rows: of rolling forecasts, and of one simulation.

    Parameters
    ----------
    metrics
        The contents of metrics.json, or the result of `compare_runs`.
    """
    rolling = metrics["rolling"]
    if not rolling["held_out"] or not metrics["scores"]:
        return []
    step = rolling["step"]
    horizon = rolling["horizon"]
    heads = dict(HEADS)
    if step < horizon:
        heads |= {"rmse_first": f"steps 1–{step}", "rmse_last": f"{horizon - step + 1}–{horizon}"}
    columns = ["rmse", "rmse_first", "rmse_last", "fit", "crps", "coverage_90"]
    columns = [name for name in columns if name in heads]
    methods = rolling["methods"]
    outputs = list(dict.fromkeys(name for entry in methods.values() for name in entry["outputs"]))
    tables: list[RenderableType] = [f"On {rolling['protocol']}:\n"]
    for output in outputs:
        scores = {method: entry["outputs"].get(output, {}) for method, entry in methods.items()}
        unit = metrics["units"].get(output)
        title = f"{output} [{unit}]" if unit else output
        tables.append(score_table(title, scores, columns, heads))
    columns = ["rmse", "fit", "crps", "coverage_90"]
    if len(outputs) > 1:  # in standard deviations of the training outputs
        columns = ["nrmse", "fit", "ncrps", "coverage_90"]
        scores = {method: {"ncrps": entry["scaled_crps"]} for method, entry in methods.items()}
        heads["ncrps"] = "CRPS / std of the output"
        tables.append(score_table("All outputs", scores, ["ncrps"], heads))
    title = f"On one simulation of all {metrics['test']['rows']} held-out rows:\n"
    legend = (
        "* best. Lower is better, except for fit: 100 % is perfect, 0 % equals the mean.\n"
        "90 % intervals should cover 0.9 of the outputs.\n"
    )
    return [*tables, title, score_table("", metrics["scores"], columns, HEADS), legend]


def score_table(
    title: str,
    scores: Mapping[str, Mapping[str, float | None]],
    columns: Sequence[str],
    heads: Mapping[str, str],
) -> Table:
    """Return scores by method, with a star for the best of each column."""
    import pandas

    frame = pandas.DataFrame.from_dict(dict(scores), orient="index", columns=None)
    table = Table.of(frame.reindex(columns=list(columns)).astype(float), starred=True, title=title)
    return replace(table, columns=["", *(heads[name] for name in columns)])


def forecast_tables(frame: Any, test: "Series | None") -> list[RenderableType]:
    """Return tables of the first and last steps of each output: mean, interval, actual,
    warnings.
    """
    from gpssm.report.content import forecast_tables

    limits = [name for name in frame if str(name).endswith("%")]
    number = len(limits) // sum(str(name).endswith(" mean") for name in frame)
    inner = [name for k, name in enumerate(limits) if 0 < k % number < number - 1]
    tables = forecast_tables(frame.drop(columns=inner), test)
    return [table.shortened(12) for table in tables]
