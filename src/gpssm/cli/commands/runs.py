"""`gpssm compare`, `gpssm report` and `gpssm info`: what there is to see of runs."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from gpssm.cli.shell import Answer, Screen, console, in_line, printable, register
from gpssm.cli.tables import RunFolder, list_table, score_tables, verdicts


def compare(
    screen: Screen,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)
    ],
) -> Answer:
    """Compare runs scored on the same rows, with their baselines."""
    from gpssm.cli.run_folder import Run, compare_runs

    scores = compare_runs([Run.open(folder) for folder in runs])
    return Answer(scores, score_tables(scores))


def report(screen: Screen, run: RunFolder) -> Answer:
    """Write the report of a run again."""
    from gpssm.cli.pipeline import report_again
    from gpssm.cli.run_folder import Run

    path = report_again(Run.open(run), screen)
    return Answer({"report": str(path)}, [in_line(path)])


def info(screen: Screen, run: RunFolder) -> Answer:
    """Say what a run is: data, model, sampling, warnings, scores and verdicts, files."""
    from gpssm.cli.run_folder import METRICS, Run

    opened = Run.open(run)
    summary = opened.posterior().summary()
    files = opened.files
    shown: list[RenderableType] = [_wrapped(printable(summary)), ""]
    data = {"run": str(run), "settings": opened.settings().to_dict(), "summary": summary.to_dict()}
    if METRICS in files:
        metrics = opened.metrics()
        shown += [*score_tables(metrics), *verdicts(metrics)]
        data |= {name: metrics[name] for name in ("scores", "rolling", "checks")}
    sizes = [(name, f"{size / 1024:,.1f} kB") for name, size in files.items()]
    shown.append(list_table(f"Files of {run}", ["", "size"], sizes))
    return Answer(data | {"files": files}, shown)


def _wrapped(text: str) -> str:
    """The text, with what goes on after the end of a line of the terminal indented."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines.append(textwrap.fill(line, console().width, subsequent_indent=indent))
    return "\n".join(lines)


def add_commands(app: typer.Typer) -> None:
    """Add them to the command line."""
    for command in (compare, report, info):
        register(app)(command)
