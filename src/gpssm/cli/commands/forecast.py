"""`gpssm forecast`: the rows that follow the training data of a run."""

from pathlib import Path
from typing import Annotated

import typer

from gpssm.cli.shell import Answer, Screen, check_paths, register, usage
from gpssm.cli.tables import RunFolder, forecast_tables
from gpssm.core.text import as_share, in_line


def forecast(
    screen: Screen,
    run: RunFolder,
    inputs: Annotated[
        Path | None,
        typer.Option(help="File with the inputs ahead, columns by name, matched by time."),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Steps; default all rows of inputs, or 30.")
    ] = None,
    levels: Annotated[
        str, typer.Option(help="Intervals, in per cent or as shares (below 1).")
    ] = "50,90",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the paths; default as in the run.")
    ] = None,
    num_paths: Annotated[
        int | None, typer.Option(min=2, help="Simulated futures; default as in the run.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file to write.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> Answer:
    """Forecast the rows that follow the training data.

    The inputs are those of --inputs, or else of the rows that were held out.
    """
    check_paths(inputs, out)
    with usage():
        try:
            shares = tuple(map(_share, levels.split(",")))
        except ValueError:
            raise ValueError(
                "--levels are per cent or shares, like 50,90 or 0.5,0.9; "
                f"got {levels!r} (1 could mean 1 % or all)"
            ) from None
        if out is not None and out.exists() and not overwrite:
            raise ValueError(f"{out} exists: give --overwrite to replace it")
    from gpssm.cli.pipeline import forecast_run
    from gpssm.cli.run_folder import Run

    opened = Run.open(run)
    result = forecast_run(opened, screen, inputs, horizon, num_paths, seed)
    frame = result.to_dataframe(shares)
    notes = list(result.diagnostics.notes) if result.diagnostics else []
    shown = forecast_tables(frame, opened.test() if inputs is None else None)
    shown += [f"Note: {in_line(note)}" for note in notes]
    if out is not None:
        from gpssm.core.files import make_folder, write_atomically
        from gpssm.core.text import to_csv

        make_folder(out.parent)
        write_atomically(out, lambda file: file.write(to_csv(frame).encode()))
        shown.append(f"Written to {in_line(out)}")
    data = {"step": result.steps.tolist()}
    if frame.index.name != "step":
        data[str(frame.index.name)] = list(map(str, frame.index))
    data |= {str(name): column.tolist() for name, column in frame.items()}
    return Answer(data | {"notes": notes}, shown)


def _share(text: str) -> float:
    """Return a level as a share: 0.9, 90 and "90 %" are the same."""
    value = float(text.replace("%", ""))
    # 99.5 / 100 is not the nearest number to .995, and limits are named by it.
    return as_share(round(value / 100, 12) if value > 1 else value)


def add_commands(app: typer.Typer) -> None:
    """Add it to the command line."""
    register(app)(forecast)
