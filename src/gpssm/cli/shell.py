"""The common parts of all commands: shared options, output and error handling.

A command is a function of a `Screen` and its options that returns an `Answer`. `command` adds
--json, --quiet and --debug, shows the answer, and converts errors to one paragraph and an exit
code: 1 for failures, 2 for wrong usage, and 130 after Ctrl-C or SIGTERM. Nothing heavy is imported
here, so that `gpssm --help` is fast.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from gpssm.core.text import check_path, in_line, printable, to_json

STOPPED = 130  # exit code
LONGEST = 1600  # maximum number of characters of an error message
OPTIONS = {
    "as_json": Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
}


class Answer(NamedTuple):
    """The result of a command: data for programs, and text for users."""

    data: Any
    shown: Sequence[RenderableType]


class Misuse(Exception):
    """The command was used wrongly."""


@dataclass(frozen=True)
class Screen:
    """Output while a command runs."""

    silent: bool = False

    @property
    def progress(self) -> bool | Literal["plain"]:
        """True for a bar on a terminal, "plain" for lines elsewhere, False with --quiet."""
        if self.silent:
            return False
        return True if sys.stdout.isatty() else "plain"

    def say(self, text: str) -> None:
        """Print a progress message on standard error."""
        self.note(f"{text} ...")

    def note(self, *texts: str) -> None:
        """Print notes on standard error."""
        if not self.silent:
            for text in texts:
                console(error=True).print(Text(in_line(text), style="dim"))

    def show(self, parts: Sequence[RenderableType]) -> None:
        """Print the first part of the answer."""
        if not self.silent:
            for part in parts:
                console().print(printable(part) if isinstance(part, str) else part)


def console(error: bool = False) -> Console:
    """Return a console without markup, since column names may look like markup."""
    return Console(stderr=error, markup=False, emoji=False, highlight=False)


def command(function: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command from a function of a screen and options."""

    @functools.wraps(function)
    def run(
        *, context: typer.Context, as_json: bool, quiet: bool, debug: bool, **options: Any
    ) -> None:
        with ending(debug), warnings.catch_warnings():
            if context.invoked_subcommand is not None:
                _refuse_lost_options(context)
                return
            if not debug:
                # These appear in the notes of posteriors and forecasts.
                warnings.simplefilter("ignore")
            answer = function(Screen(as_json or quiet), **options)
            if as_json:
                typer.echo(to_json(answer.data))
            Screen(as_json or quiet).show(answer.shown)

    _, *declared = inspect.signature(function).parameters.values()
    defaults: dict[str, Any] = {option.name: option.default for option in declared}
    defaults |= dict.fromkeys(OPTIONS, False) | {"context": inspect.Parameter.empty}
    hints = get_type_hints(function, include_extras=True) | OPTIONS | {"context": typer.Context}
    run.__annotations__ = {name: hints[name] for name in defaults}
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]
        )
        for name, default in defaults.items()
    ]
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
    return run


def _refuse_lost_options(context: typer.Context) -> None:
    """Raise if options of a group precede one of its commands, where they would be ignored."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source and source.name == "COMMANDLINE":
            name = context.invoked_subcommand
            raise Misuse(f"{option.opts[0]} is not an option of {name!r}, or belongs after it")


@contextmanager
def ending(debug: bool = False) -> Iterator[None]:
    """Convert errors to a paragraph on standard error and an exit code."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except Misuse as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        complain(str(stop) or "Stopped.")
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        if debug:
            raise
        complain(_message(error))
        raise typer.Exit(1) from None


def complain(message: str) -> None:
    """Print one paragraph on standard error, without the middle if it is very long."""
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} … {message[-LONGEST // 2 :]}"
    console(error=True).print(f"gpssm: {in_line(message)}", soft_wrap=not sys.stderr.isatty())


def _message(error: Exception) -> str:
    """Return the message of an error: its text if it is meant for the user."""
    if isinstance(error, KeyError):
        return str(error.args[0] if error.args else error)
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror
    if isinstance(error, OSError | ValueError | TypeError | ImportError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory: use fewer rows, draws or inducing points ({error})"
    return f"{type(error).__name__}: {error}. Pass --debug for a traceback"


@contextmanager
def usage() -> Iterator[None]:
    """Convert errors in the options to `Misuse`."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise Misuse(_message(error)) from None


def check_paths(*paths: Path | None) -> None:
    """Raise `Misuse` for invalid names of files or folders."""
    with usage():
        for path in paths:
            if path is not None:
                check_path(path)
