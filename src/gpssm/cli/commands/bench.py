"""`gpssm bench` and `gpssm bench report`: many methods on many series."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpssm.cli.shell import Answer, Screen, check_paths, in_line, register, register_group, usage

bench = typer.Typer(name="bench", no_args_is_help=True)

ALL = "all"
STANDARD = "ffvd,arx,lgssm,last,mean"
RUNNING = "Where it runs"


def sweep(
    screen: Screen,
    datasets: Annotated[
        str, typer.Option(metavar="LIST", help="Series of `gpssm data list`, or all: six benchmarks.")
    ] = ALL,
    methods: Annotated[
        str, typer.Option(metavar="LIST", help="Methods of `gpssm methods`, ffvd-auto, ffvd-shared, ..., or all.")
    ] = STANDARD,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0 on.")] = 5,
    protocols: Annotated[
        str, typer.Option(metavar="LIST", help="Of p30, full, rolling, learn, simulate; all: those that apply.")
    ] = ALL,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of results.")] = Path("runs/bench"),
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[METHOD.]NAME=VALUE", help="Setting of a method, or of all; repeat for more."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failures again.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, one thread each.", rich_help_panel=RUNNING)] = 1,
    cluster: Annotated[
        str | None, typer.Option(help="Dask scheduler, tcp://host:8786.", rich_help_panel=RUNNING)
    ] = None,
) -> Answer:
    """Fit methods to the first half of many series and judge them on the second.

    emps and wiener-hammerstein have test records to simulate instead.
    Lists have commas. What the folder has already is not run again.

    \b
    gpssm bench --datasets furnace,sim:duffing --methods ffvd,arx --out DIR
    gpssm bench --datasets emps --protocols simulate --out DIR
    gpssm bench --methods all --set ffvd.num_chains=2 --jobs 4 --out DIR
    gpssm bench report DIR
    """
    from gpssm.bench import AUTO, PROTOCOLS, VARIANTS, run_sweep
    from gpssm.bench.tables import rmse_table, rows_used, summarise
    from gpssm.methods import METHODS

    check_paths(out)
    with usage():
        known = [AUTO, *METHODS]
        chosen = known if methods == ALL else _names(methods, "method", [*known, *VARIANTS])
        judged = list(PROTOCOLS) if protocols == ALL else _names(protocols, "protocol", list(PROTOCOLS))
        settings = _settings(changes or [], chosen)
        series = ALL if datasets == ALL else _names(datasets, "series")
    lines = run_sweep(
        series,
        chosen,
        seeds,
        judged,
        out,
        jobs=jobs,
        cluster=cluster,
        settings=settings,
        progress=screen.progress,
        retry=retry,
    )
    report_it = f"\nTables and figures: gpssm bench report {in_line(out)}"
    return Answer(lines, [rmse_table(summarise(lines)), *rows_used(lines), report_it])


def _names(text: str, what: str, known: Sequence[str] = ()) -> list[str]:
    """The names of a list with commas, each one known."""
    from gpssm.cli.settings import nearest

    names = [name for part in text.split(",") if (name := part.strip())]
    if not names:
        raise ValueError(f"name at least one {what}; got {text!r}")
    if unknown := [name for name in names if known and name not in known]:
        raise ValueError(f"there is no {what} {unknown[0]!r}.{nearest(unknown[0], known)} Known: {', '.join(known)}")
    return names


def _settings(changes: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The arguments of `run_sweep` for METHOD.NAME=VALUE, and for NAME=VALUE, which all methods get."""
    found: dict[str, dict[str, Any]] = {}
    for change in changes:
        name, sign, text = change.partition("=")
        method, _, key = name.rpartition(".")
        if not sign or not key:
            raise ValueError(f"--set takes METHOD.NAME=VALUE, or NAME=VALUE for all methods; got {change!r}")
        for one in _names(method, "method", methods) if method else methods:
            found.setdefault(one, {})[key] = _value(text)
    return {method: _arranged(method, given) for method, given in found.items()}


def _arranged(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Settings for `fit`, those that are the method's own in its configuration."""
    import dataclasses

    from gpssm.bench import VARIANTS
    from gpssm.cli.settings import FIT
    from gpssm.methods import METHODS

    base = VARIANTS.get(method, {}).get("method", method)
    own = {name: value for name, value in given.items() if name not in FIT}
    if not own or base not in METHODS:
        return given
    for name in own:
        _names(name, f"setting of {method}", [*FIT, *(one.name for one in dataclasses.fields(METHODS[base]))])
    shared = {name: value for name, value in given.items() if name in FIT}
    return shared | {"method": dataclasses.replace(METHODS[base], **own)}


def _value(text: str) -> Any:
    """A number, true, false or null, a list of those in brackets, or else a word."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return tuple(value) if isinstance(value, list) else value


def report(
    screen: Screen,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of results.", show_default=False)],
) -> Answer:
    """Make tables and figures of a folder's results."""
    from gpssm.bench import write_report

    check_paths(folder)
    path = write_report(folder)
    return Answer({"report": str(path)}, [in_line(path)])


def add_commands(app: typer.Typer) -> None:
    """Add them to the command line."""
    register_group(bench, sweep)
    register(bench)(report)
    app.add_typer(bench)
