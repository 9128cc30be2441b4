"""`gpssm forecast`: what comes after the training data of a run."""

from pathlib import Path
from typing import Annotated

import typer

from gpssm.cli.shell import Answer, Screen, register, usage
from gpssm.cli.tables import RunFolder, forecast_tables


def forecast(
    screen: Screen,
    run: RunFolder,
    inputs: Annotated[Path | None, typer.Option(help="File with the controls to come, columns by name.")] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps; default all rows of inputs, or 30.")] = None,
    levels: Annotated[str, typer.Option(help="Intervals in per cent.")] = "50,90",
    num_paths: Annotated[int | None, typer.Option(min=2, help="Simulated futures; default as in the run.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file.")] = False,
) -> Answer:
    """Forecast the rows that follow the training data.

    The controls are those of --inputs, or else of the rows that were held out.
    """
    with usage():
        try:
            shares = tuple(float(part) / 100 for part in levels.replace("%", "").split(","))
        except ValueError:
            shares = (0.0,)
        if not all(0 < share < 1 for share in shares):
            raise ValueError(f"--levels are percentages between 0 and 100, like 50,90; got {levels!r}")
        if out is not None and out.exists() and not overwrite:
            raise ValueError(f"{out} exists: give --overwrite to replace it")
    from gpssm.cli.pipeline import forecast_run
    from gpssm.cli.run_folder import Run

    found = Run.open(run)
    test = found.test() if inputs is None else None
    result = forecast_run(found, inputs, horizon, num_paths)
    frame = result.to_dataframe(shares)
    if out is not None:
        from gpssm.core.files import write_atomically
        from gpssm.core.text import to_csv

        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, lambda file: file.write(to_csv(frame).encode()))
    notes = list(result.diagnostics.notes) if result.diagnostics else []
    shown = [*forecast_tables(frame, test), *(f"Note: {note}" for note in notes)]
    shown += [f"Written to {out}"] if out else []
    columns = {str(name): column.tolist() for name, column in frame.items()}
    return Answer({"step": frame.index.tolist(), **columns, "notes": notes}, shown)


def add_commands(app: typer.Typer) -> None:
    """Add it to the command line."""
    register(app)(forecast)
