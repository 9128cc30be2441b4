"""The commands as one program."""

import signal
import sys
from typing import Annotated

import typer

from gpssm import __version__
from gpssm.cli.commands import bench, catalogue, fit, runs
from gpssm.cli.shell import STOPPED, command, complain

app = typer.Typer(
    name="gpssm",
    help="Gaussian process state-space models: from a data file to a forecast with calibrated "
    "uncertainty.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"gpssm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


for function in (
    *(fit.fit, fit.demo, runs.forecast, runs.compare, runs.report, runs.info),
    *(catalogue.methods, catalogue.kernels, catalogue.likelihoods),
):
    app.command()(command(function))
data = typer.Typer(help="Benchmark series, and simulated series with known truth.")
data.command("list")(command(catalogue.list_data))
data.command()(command(catalogue.fetch))
app.add_typer(data, name="data", no_args_is_help=True)
sweeps = typer.Typer()
sweeps.callback(invoke_without_command=True)(command(bench.sweep))
sweeps.command()(command(bench.report))
app.add_typer(sweeps, name="bench", no_args_is_help=True)


def run() -> None:
    """Run the command line. SIGTERM is treated as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        complain("Stopped.")
        sys.exit(STOPPED)
