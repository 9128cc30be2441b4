"""`gpssm bench` and `gpssm bench report`: many methods on many data sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpssm.cli.commands.fit import parse_pairs
from gpssm.cli.shell import Answer, Screen, check_paths, in_line, usage

ALL = "all"


def sweep(
    screen: Screen,
    datasets: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Data sets, or all (the six benchmarks), daisy, records."
        ),
    ] = ALL,
    methods: Annotated[
        str,
        typer.Option(metavar="LIST", help="Methods listed by `gpssm methods`, or all."),
    ] = "auto,arx,lgssm,last,mean",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at 0.")] = 5,
    protocols: Annotated[
        str, typer.Option(metavar="LIST", help="Protocols to use; by default all that apply.")
    ] = ALL,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of results.")
    ] = Path("runs/bench"),
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[METHOD.]NAME=VALUE", help="Setting; may be repeated."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failures again.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, one thread each.")] = 1,
    cluster: Annotated[str | None, typer.Option(help="Dask scheduler, tcp://host:8786.")] = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Run part I of N.")] = "1/1",
) -> Answer:
    """Fit methods to the first rows of many series and score them on later rows.

    emps and wiener-hammerstein have test records to simulate instead.
    Protocols: p30, simulation, rolling, learn, daisy-rolling.
    Separate lists by commas. Results in the folder are not computed again.

    \b
    gpssm bench --datasets daisy --methods auto,arx --seeds 3 --out DIR
    gpssm bench --datasets furnace,sim:duffing --protocols rolling --out DIR
    gpssm bench --methods all --set ffvd.num_chains=2 --jobs 4 --out DIR
    gpssm bench report DIR
    """
    from gpssm.bench import PROTOCOLS, run_sweep
    from gpssm.methods import METHODS

    check_paths(out)
    with usage():
        chosen = [*METHODS] if methods == ALL else _names(methods)
        part, _, parts = shard.partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            raise ValueError(f"--shard must be I/N with I from 1 to N, such as 2/4; got {shard!r}")
        results = run_sweep(
            _names(datasets),
            chosen,
            seeds,
            [*PROTOCOLS] if protocols == ALL else _names(protocols),
            out,
            jobs=jobs,
            cluster=cluster,
            shard=(int(part), int(parts)),
            settings=_settings_by_method(changes or [], chosen),
            progress=screen.progress,
            retry=retry,
        )
    return Answer(results, [*_pages(results), f"Report: gpssm bench report {in_line(out)}"])


def report(
    screen: Screen,
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="For the report.")
    ] = None,
) -> Answer:
    """Tabulate the results of one or more folders."""
    from gpssm.bench import load_results, write_report

    check_paths(*folders, out)
    path = write_report(*folders, out=out)
    return Answer({"report": str(path)}, [*_pages(load_results(*folders)), in_line(path)])


def _pages(results: list[dict[str, Any]]) -> list[str]:
    """Return the tables and a description of the results as text."""
    from gpssm.bench.tables import provenance, result_tables, summarise

    tables = [f"{table}\n" for table in result_tables(summarise(results))]
    return [*tables, *(in_line(fact) for fact in provenance(results))]


def _settings_by_method(texts: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each method from texts [METHOD.]NAME=VALUE."""
    settings: dict[str, dict[str, Any]] = {}
    for name, value in parse_pairs(texts).items():
        method, _, key = name.rpartition(".")
        for target in [method] if method else methods:
            settings.setdefault(target, {})[key] = value
    return settings


def _names(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name for part in text.split(",") if (name := part.strip())]
