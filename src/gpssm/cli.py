"""The command line: words in, words out, no logic of its own."""

import os
import sys

import platformdirs

# Before JAX is imported: see runtime.py for what many BLAS threads cost. Compiled programs are kept between runs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", platformdirs.user_cache_dir("gpssm"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import typer

app = typer.Typer(
    name="gpssm",
    help="Gaussian process state-space models: from a data file to a forecast with honest uncertainty.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Keep sub-commands even while there is only one."""


@app.command()
def demo(seed: int = typer.Option(0, help="Seed of the simulated series.")) -> None:
    """Simulate a driven oscillator, sample its posterior, print diagnostics and a forecast."""
    from gpssm.demo import run

    run(seed)


def main() -> None:
    """Run the command line; errors that a user can mend are one paragraph, not a traceback."""
    try:
        app()
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"gpssm: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
