"""What all commands share: three options, how answers are shown, and how errors end.

A command is a function of a `Screen` and its own options that returns an `Answer`. `register` adds --json, --quiet and
--debug to it, shows the answer, and turns errors into one paragraph and an exit code: 1 where something failed, 2 where
the command was used wrongly, 130 where the user stopped it. Nothing heavy is imported here: `gpssm --help` is quick.
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

from gpssm.core.table import Table
from gpssm.core.text import check_path, in_line, printable, to_json

FAILED, MISUSED, STOPPED = 1, 2, 130
LONGEST = 1600  # characters of an error
PLAIN: dict[str, Any] = {
    "markup": False,
    "emoji": False,
    "highlight": False,
}  # names of columns are not ours to read
OPTIONS = {
    "as_json": Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
}


class Answer(NamedTuple):
    """What a command found: for programs, and for people."""

    data: Any
    shown: Sequence[RenderableType]


class Misuse(Exception):
    """The command line was not understood."""


@dataclass(frozen=True)
class Screen:
    """What may be printed while a command runs."""

    silent: bool

    @property
    def progress(self) -> bool | Literal["plain"]:
        """A bar on a terminal, lines elsewhere, nothing where silence is asked for."""
        return False if self.silent else True if sys.stdout.isatty() else "plain"

    def say(self, text: str) -> None:
        """Tell what is being done, on standard error."""
        if not self.silent:
            console(error=True).print(Text(f"{in_line(text)} ...", style="dim"))

    def show(self, things: Sequence[RenderableType]) -> None:
        """Print a part of the answer that is there before the rest."""
        if not self.silent:
            screen = console()
            for one in things:
                screen.print(one)


def console(error: bool = False) -> Console:
    """A console that takes text as it is, and leaves long lines whole where nobody watches."""
    return Console(stderr=error, **PLAIN)


def register(
    app: typer.Typer, name: str | None = None, **settings: Any
) -> Callable[[Callable[..., Answer]], Any]:
    """Make a command of a function of a screen and options."""

    def add(function: Callable[..., Answer]) -> Callable[..., Answer]:
        app.command(name, **settings)(_with_options(function))
        return function

    return add


def register_group(app: typer.Typer, function: Callable[..., Answer]) -> None:
    """Make a function what a group of commands does where options are given and none of the commands is named."""
    app.callback(invoke_without_command=True)(_with_options(function))


def _with_options(function: Callable[..., Answer]) -> Callable[..., None]:
    @functools.wraps(function)
    def run(
        *, context: typer.Context, as_json: bool, quiet: bool, debug: bool, **options: Any
    ) -> None:
        with ending(debug), warnings.catch_warnings():
            if context.invoked_subcommand is not None:
                # Options of a group that stand before one of its commands would be lost.
                sources = [
                    (one, context.get_parameter_source(one.name or ""))
                    for one in context.command.params
                ]
                if lost := [
                    one.opts[0]
                    for one, source in sources
                    if source and source.name == "COMMANDLINE"
                ]:
                    raise Misuse(
                        f"{lost[0]} is no option of {context.invoked_subcommand!r}, or belongs after it"
                    )
                return
            if not debug:
                warnings.simplefilter(
                    "ignore"
                )  # what a user should know is in the notes of posteriors and forecasts
            answer = function(Screen(as_json or quiet), **options)
            show(answer, as_json, quiet)

    kind = inspect.Parameter.KEYWORD_ONLY
    hints = {
        name: hint
        for name, hint in get_type_hints(function, include_extras=True).items()
        if name != "return"
    }
    first, *own = inspect.signature(function).parameters.values()
    hints.pop(first.name)
    parameters = [one.replace(annotation=hints[one.name], kind=kind) for one in own]
    parameters += [
        inspect.Parameter(name, kind, default=False, annotation=hint)
        for name, hint in OPTIONS.items()
    ]
    parameters.append(inspect.Parameter("context", kind, annotation=typer.Context))
    run.__annotations__ = hints | OPTIONS | {"context": typer.Context}
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010
    return run


def show(answer: Answer, as_json: bool, quiet: bool) -> None:
    """Print an answer."""
    if as_json:
        typer.echo(to_json(answer.data))
    elif not quiet:
        screen = console()
        for one in answer.shown:
            screen.print(printable(one) if isinstance(one, str) else one)


@contextmanager
def ending(debug: bool = False) -> Iterator[None]:
    """Turn what goes wrong into a paragraph on standard error and an exit code."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except Misuse as error:
        complain(str(error))
        raise typer.Exit(MISUSED) from None
    except KeyboardInterrupt as stop:
        complain(str(stop) or "Stopped.")
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        if debug:
            raise
        complain(_message(error))
        raise typer.Exit(FAILED) from None


def complain(message: str) -> None:
    """One paragraph on standard error; of a very long one, both ends."""
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} … {message[-LONGEST // 2 :]}"
    console(error=True).print(f"gpssm: {in_line(message)}", soft_wrap=not sys.stderr.isatty())


def _message(error: Exception) -> str:
    """What to tell about an error: its own words, if it was meant for the user."""
    if isinstance(error, KeyError):
        return str(error.args[0] if error.args else error)
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror
    if isinstance(error, OSError | ValueError | TypeError | ImportError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory: use fewer rows, draws or inducing points ({error})"
    return f"{type(error).__name__}: {error}. Give --debug to see where"


@contextmanager
def usage() -> Iterator[None]:
    """Errors in here are those of the command line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise Misuse(str(error)) from None


def check_paths(*paths: Path | None) -> None:
    """Refuse as a misuse what no file or folder can be called."""
    with usage():
        for path in paths:
            if path is not None:
                check_path(path)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1
) -> Table:
    """A table whose first `left` columns are text, and the others numbers, of names that are not ours."""
    return Table(columns, rows, title, words=left)
