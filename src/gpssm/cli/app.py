"""The commands as one program."""

import signal
import sys
from typing import Annotated

import typer

from gpssm import __version__
from gpssm.cli.commands import bench, catalogue, fit, runs
from gpssm.cli.shell import STOPPED, complain

app = typer.Typer(
    name="gpssm",
    help="Gaussian process state-space models: from a data file to a forecast with calibrated "
    "uncertainty.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
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


for group in (fit, runs, catalogue, bench):
    group.add_commands(app)


def run() -> None:
    """Run the command line. SIGTERM, by which systems ask a process to end, counts as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        complain("Stopped.")
        sys.exit(STOPPED)
