"""`gpssm forecast`, `compare`, `report` and `info`: commands for finished runs."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from gpssm.cli.shell import Answer, Screen, check_paths, console, usage
from gpssm.cli.tables import RunFolder, forecast_tables, score_tables, verdicts
from gpssm.core.table import Table
from gpssm.core.text import as_share, in_line, printable, to_csv


def forecast(
    screen: Screen,
    run: RunFolder,
    inputs: Annotated[
        Path | None,
        typer.Option(help="File with future inputs; columns by name, rows matched by time."),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="Number of steps. (default: rows of the inputs, or 30)"),
    ] = None,
    levels: Annotated[
        str, typer.Option(help="Levels of the intervals, in per cent or as fractions.")
    ] = "50,90",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the paths. (default: seed of the run)")
    ] = None,
    num_paths: Annotated[int, typer.Option(min=2, help="Simulated futures.")] = 1000,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file to write.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> Answer:
    """Forecast the rows that follow the training data.

    The inputs are those of --inputs, or of the held-out rows by default.
    """
    check_paths(inputs, out)
    with usage():
        try:
            shares = tuple(map(_share, levels.split(",")))
        except ValueError:
            raise ValueError(
                "--levels must be per cent or fractions, such as 50,90 or 0.5,0.9; got "
                f"{levels!r} (1 is ambiguous)"
            ) from None
        if out is not None and out.exists() and not overwrite:
            raise ValueError(f"{out} exists: pass --overwrite to replace it")
    from gpssm.cli.pipeline import forecast_run
    from gpssm.cli.run_folder import Run

    opened = Run.open(run)
    result = forecast_run(opened, screen, inputs, horizon, num_paths, seed)
    frame = result.to_dataframe(shares)
    notes = list(result.diagnostics.notes) if result.diagnostics else []
    shown = forecast_tables(frame, opened.test() if inputs is None else None)
    shown += [f"Note: {in_line(note)}" for note in notes]
    if out is not None:
        Run(out.parent).write(out.name, to_csv(frame))
        shown.append(f"Written to {in_line(out)}")
    data = {"step": result.steps.tolist()}
    if frame.index.name != "step":
        data[str(frame.index.name)] = list(map(str, frame.index))
    data |= {str(name): column.tolist() for name, column in frame.items()}
    return Answer(data | {"notes": notes}, shown)


def _share(text: str) -> float:
    """Return a level as a share: 0.9, 90 and "90 %" are the same."""
    value = float(text.replace("%", ""))
    # 99.5 / 100 is not the float nearest to .995, by which limits are named.
    return as_share(round(value / 100, 12) if value > 1 else value)


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
    """Show data, model, sampling, warnings, scores, verdicts and files of a run."""
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
    shown.append(Table(["", "size"], sizes, f"Files of {run}", words=2))
    return Answer(data | {"files": files}, shown)


def _wrapped(text: str) -> str:
    """Return the text wrapped to the terminal, with continuation lines indented."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines.append(textwrap.fill(line, console().width, subsequent_indent=indent))
    return "\n".join(lines)
