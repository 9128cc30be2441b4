"""`gpssm bench run` and `gpssm bench report`: many methods on many series."""

from pathlib import Path
from typing import Annotated

import typer

from gpssm.commands.base import Answer, Screen, register, table, usage

bench = typer.Typer(name="bench", help="Benchmarks: fit and judge methods on many series.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of results.", show_default=False)]
Several = list[str]
STANDARD = ("ffvd", "arx", "lgssm", "last", "mean")


def run(
    screen: Screen,
    out: Folder,
    dataset: Annotated[Several | None, typer.Option("--data", "-d", help="Series, see `gpssm data list`.")] = None,
    method: Annotated[Several | None, typer.Option("--method", "-m", help="Method; repeat for more.")] = None,
    protocol: Annotated[Several | None, typer.Option(help="p30, full or rolling; all if not given.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0 on.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    cluster: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, tcp://host:8786.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failures again.")] = False,
) -> Answer:
    """Run what is not in the folder yet: by default ffvd and the baselines on the six benchmarks.

    \b
    gpssm bench run runs/bench -d furnace -d sim:duffing -m ffvd -m arx --seeds 5
    """
    from gpssm.benchmark import PROTOCOLS, run_sweep
    from gpssm.methods import METHODS

    with usage():
        _check(protocol or [], list(PROTOCOLS), "protocol")
        _check(method or [], list(METHODS), "method")
    lines = run_sweep(
        dataset or "all",
        method or STANDARD,
        seeds,
        protocol or tuple(PROTOCOLS),
        out,
        jobs=jobs,
        cluster=cluster,
        progress=screen.progress,
        retry=retry,
    )
    rows = [
        (line["dataset"], line["method"], str(line["seed"]), line["protocol"], (line.get("metrics") or {}).get("rmse"))
        for line in lines
    ]
    columns = ["series", "method", "seed", "protocol", "RMSE"]
    return Answer(lines, [table("Results", columns, rows, left=4), f"Tables and figures: gpssm bench report {out}"])


def _check(given: Several, known: Several, what: str) -> None:
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")


def report(screen: Screen, folder: Folder) -> Answer:
    """Make tables and figures of a folder's results."""
    from gpssm.benchmark import write_report

    path = write_report(folder)
    return Answer({"report": str(path)}, [str(path)])


def add_commands(app: typer.Typer) -> None:
    """Add them to the command line."""
    register(bench)(run)
    register(bench)(report)
    app.add_typer(bench)
