"""The command line: words in, words out, no logic of its own."""

import os

import platformdirs

# Before JAX is imported: see runtime.py for what many BLAS threads cost. Compiled programs are kept between runs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", platformdirs.user_cache_dir("gpssm"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")

import sys
from typing import Annotated

import typer

from gpssm import __version__
from gpssm.commands import bench, catalogue, fit, forecast, runs
from gpssm.commands.base import STOPPED, complain

app = typer.Typer(
    name="gpssm",
    help="Gaussian process state-space models: from a data file to a forecast with honest uncertainty.",
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
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


for group in (fit, forecast, runs, catalogue, bench):
    group.add_commands(app)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        complain("Stopped.")
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
