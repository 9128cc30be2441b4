"""What the user sees of a run while it lasts, and how the user can end it."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO, TypeVar

import numpy as np
from jaxtyping import Float

from gpssm.core.elapsed import seconds_left, ticks
from gpssm.core.mixing import rhat

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
Mode = bool | Literal["plain"]
WIDE = 110  # columns of a terminal from which a bar has all its words
NOTEBOOK = 100  # columns of a bar there
FEWEST = 8  # draws a chain below which R-hat says nothing


class Status(NamedTuple):
    """Where a run stands after a chunk."""

    phase: Literal["warm-up", "sampling"]
    done: int  # iterations, from the start of the warm-up
    total: int
    acceptance: float
    log_target: float
    rhat: float

    def __str__(self) -> str:
        parts = [f"{self.phase} {self.done}/{self.total}", f"acceptance {self.acceptance:.2f}"]
        parts.append(f"log target {self.log_target:.1f}")
        return "  ".join(parts if np.isnan(self.rhat) else [*parts, f"R-hat {self.rhat:.3f}"])


Report = Callable[[Status], None]


def running_rhat(log_target: Float[np.ndarray, "chain draw"], apart: bool) -> float:
    """R-hat of the log target so far; NaN while there is too little to tell.

    Chains with models of their own have targets of their own, which cannot be compared: it is the worst of each.
    """
    if log_target.shape[1] < FEWEST or not np.isfinite(log_target).all():
        return float("nan")
    return max(float(rhat(one)) for one in (log_target[:, None] if apart else [log_target]))


def check_progress(mode: Any) -> None:
    """Refuse what says nothing of how progress is shown."""
    if not isinstance(mode, bool) and not (isinstance(mode, str) and mode == "plain"):
        raise ValueError(f"progress must be True (a bar), 'plain' (a line a chunk) or False (silence), got {mode!r}.")


def reporter(mode: Mode, total: int) -> AbstractContextManager[Report]:
    """A context that yields a function to call after each chunk: a bar (True), a line a chunk ("plain"), or silence."""
    check_progress(mode)
    if mode is False:
        return nullcontext(lambda status: None)
    return _plain(sys.stderr) if mode == "plain" else _bar(total)


@contextmanager
def _plain(stream: TextIO) -> Iterator[Report]:
    # The first chunk waits for the compiler, so the time left is reckoned from its end.
    marks: list[tuple[float, int]] = []

    def report(status: Status) -> None:
        marks.append((ticks(), status.done))
        left = seconds_left(marks, status.total)
        print(f"gpssm: {status}" + ("" if left is None else f"  {left:.0f} s left"), file=stream, flush=True)

    yield report


@contextmanager
def _bar(total: int) -> Iterator[Report]:
    with make_bar("{task.fields[facts]}") as bar:
        task = bar.add_task("compiling", total=total, facts="")
        wide = bar.console.width >= WIDE

        def report(status: Status) -> None:
            words, short = str(status).split("  ", 1)[1], f"accepted {status.acceptance:.0%}"
            short += "" if np.isnan(status.rhat) else f" R-hat {status.rhat:.2f}"
            bar.update(task, completed=status.done, description=status.phase, facts=words if wide else short)

        yield report


def make_bar(*texts: str, stderr: bool = False) -> "Progress":
    """Rich's bar with the columns of this library, and a text behind them for each that is given."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=stderr)
    if console.is_jupyter:
        # A notebook knows how to begin a line again, which is all that one bar needs. Rich would take a widget, whose
        # every change nbclient, and what runs notebooks by it, answers: it may then miss that the cell has ended.
        console = Console(stderr=stderr, force_jupyter=False, force_terminal=True, width=NOTEBOOK)
    bar = BarColumn(40 if console.width >= WIDE else 12)
    columns = (TextColumn("{task.description}"), bar, MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), *map(TextColumn, texts), console=console, get_time=ticks)


def tracked(
    items: Iterable[T], mode: Mode, what: str, name: Callable[[T], str] = str, total: int | None = None
) -> Iterator[T]:
    """The items one after the other, with a bar, or a line for each as it is done, that says which.

    :param what: is being done, "backtest".
    :param name: what to call an item.
    :param total: how many there are, where `items` does not know.
    """
    total = len(items) if isinstance(items, Sized) else total
    if mode is True:
        with make_bar("{task.fields[facts]}") as bar:
            task = bar.add_task(what, total=total, facts="")
            for item in items:
                bar.update(task, facts=name(item))
                yield item
                bar.advance(task)
        return
    for number, item in enumerate(items, 1):
        yield item
        if mode == "plain":
            print(f"gpssm: {what} {number}/{total}, {name(item)}", file=sys.stderr, flush=True)


@contextmanager
def announcing(mode: Mode, what: str) -> Iterator[Callable[[str], None]]:
    """A context that yields a function to say what is tried next, of which nobody knows how much there will be."""
    if mode is True:
        with make_bar("{task.fields[facts]}") as bar:
            task = bar.add_task(what, total=None, facts="")
            yield lambda words: bar.update(task, advance=1, facts=words)
    else:
        yield lambda words: print(f"gpssm: {what}, {words}", file=sys.stderr, flush=True) if mode == "plain" else None


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C be asked about, `pressed()`, instead of breaking off; the second one breaks off.

    SIGTERM, by which systems ask a process to end, is the same, unless the user's program has plans of its own for it.
    Python lets only the main thread handle signals: in another one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    presses: list[int] = []

    def handle(number: int, frame: object) -> None:
        presses.append(number)
        if len(presses) > 1:
            raise KeyboardInterrupt

    standard = (signal.SIG_DFL, signal.default_int_handler)
    numbers = [signal.SIGINT, *([signal.SIGTERM] if signal.getsignal(signal.SIGTERM) in standard else [])]
    previous = [signal.signal(number, handle) for number in numbers]
    try:
        yield lambda: bool(presses)
    finally:
        for number, before in zip(numbers, previous, strict=True):
            # None stands for a handler that was not set from Python, which cannot be put back.
            signal.signal(number, signal.default_int_handler if before is None else before)
