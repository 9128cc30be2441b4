"""`gpssm compare`, `gpssm report` and `gpssm info`: what there is to see of runs."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from gpssm.cli.shell import Answer, Screen, console, in_line, printable, register, table
from gpssm.cli.tables import RunFolder, score_tables


def compare(
    screen: Screen,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)
    ],
) -> Answer:
    """Compare runs that were judged on the same rows, with the baselines once."""
    from gpssm.cli.run_folder import Run, compare_runs

    found = compare_runs([Run.open(folder) for folder in runs])
    return Answer(found, score_tables(found))


def report(screen: Screen, run: RunFolder) -> Answer:
    """Write the report of a run again, and say where it is."""
    from gpssm.cli.pipeline import report_again
    from gpssm.cli.run_folder import Run

    path = report_again(Run.open(run), screen.say)
    return Answer({"report": str(path)}, [in_line(path)])


def info(screen: Screen, run: RunFolder) -> Answer:
    """Say what a run is: data, model, sampling, what to distrust, scores on test rows, files."""
    from gpssm.cli.run_folder import METRICS, Run

    found = Run.open(run)
    summary = found.posterior().summary()
    sizes = [(name, f"{size / 1024:,.1f}") for name, size in found.files.items()]
    metrics = found.metrics() if METRICS in found.files else {"scores": {}, "horizons": {}}
    tables = score_tables(metrics)
    shown: list[RenderableType] = [_wrapped(printable(summary)), "", *tables]
    shown.append(table(f"Files of {run}", ["", "kB"], sizes))
    data = {
        "run": str(run),
        "settings": found.tables(),
        "summary": summary.to_dict(),
        "files": found.files,
    }
    data |= {"scores": metrics["scores"], "by_output": metrics.get("by_output", {})}
    return Answer(data, shown)


def _wrapped(text: str) -> str:
    """The text with lines that are too long for the terminal indented where they go on."""
    width, lines = console().width, text.split("\n")
    indents = [" " * (len(line) - len(line.lstrip()) + 2) for line in lines]
    pairs = zip(lines, indents, strict=True)
    return "\n".join(textwrap.fill(line, width, subsequent_indent=indent) for line, indent in pairs)


def add_commands(app: typer.Typer) -> None:
    """Add them to the command line."""
    for command in (compare, report, info):
        register(app)(command)
