"""Progress bars, and interruptions by the user."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from gpssm.core.mixing import rhat

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
Mode = bool | Literal["plain"]

WIDE_TERMINAL = 110  # minimum columns of a terminal for a bar with all statistics


class Status(NamedTuple):
    """The progress of a run after a chunk.

    Parameters
    ----------
    phase
        The current phase of the run.
    done
        Iterations since the start of the warm-up.
    total
        Iterations of the whole run.
    acceptance
        Mean acceptance probability in the chunk.
    log_target
        Mean over chains of the log target after the chunk.
    rhat
        R-hat of the log target so far, NaN while there are too few draws.
    """

    phase: Literal["warm-up", "sampling"]
    done: int
    total: int
    acceptance: float
    log_target: float
    rhat: float

    def __str__(self) -> str:
        parts = [
            f"{self.phase} {self.done}/{self.total}",
            f"acceptance {self.acceptance:.2f}",
            f"log target {self.log_target:.1f}",
        ]
        if not np.isnan(self.rhat):
            parts.append(f"R-hat {self.rhat:.3f}")
        return "  ".join(parts)


Report = Callable[[Status], None]


def running_rhat(log_target: Float[np.ndarray, "chain draw"], separate_models: bool) -> float:
    """Return R-hat of the log target so far.

    Parameters
    ----------
    log_target
        The log target of the draws.
    separate_models
        Whether each chain has a separate model. Their targets cannot be compared, and the result is
        the largest split R-hat of a single chain.

    Returns
    -------
    float
        R-hat, NaN while there are fewer than eight draws in a chain, or a value is not finite.
    """
    if log_target.shape[1] < 8 or not np.isfinite(log_target).all():
        return float("nan")
    groups = log_target[:, None] if separate_models else log_target[None]
    return max(float(rhat(group)) for group in groups)


def seconds_left(marks: Sequence[tuple[float, int]], total: int) -> float | None:
    """Return the time left: the median of the seconds per unit times the units that remain.

    With a median, a step in which the machine slept does not count.

    Parameters
    ----------
    marks
        Moments in order, each with the number of units done: (seconds, units).
    total
        Total number of units.

    Returns
    -------
    float or None
        Seconds, or None until units have been finished between two times.
    """
    moments, done = np.asarray(marks, float).reshape(-1, 2).T
    steps = np.diff(done)
    rates = np.diff(moments)[steps > 0] / steps[steps > 0]
    return float(np.median(rates) * (total - done[-1])) if len(rates) else None


def check_progress(mode: Any) -> None:
    """Raise unless `mode` is True, False or "plain"."""
    if not isinstance(mode, bool) and not (isinstance(mode, str) and mode == "plain"):
        raise ValueError(
            "progress must be True (a bar), 'plain' (one line per chunk) or False (no output), "
            f"got {mode!r}."
        )


@contextmanager
def _display(mode: Mode, what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Yield a function `show(line, facts, narrow, **changes)` that shows how work stands.

    In the mode "plain" it prints the line, if any. A bar shows the facts, in a narrow terminal the
    narrow ones, and takes the changes of `rich.progress.Progress.update`.
    """
    if mode is not True:

        def show_line(line: str | None, *facts: str, **changes: Any) -> None:
            if mode == "plain" and line is not None:
                print(f"gpssm: {line}", file=sys.stderr, flush=True)

        yield show_line
        return
    with _bar(total) as bar:
        task = bar.add_task(what, total=total, facts="")
        is_wide = bar.console.width >= WIDE_TERMINAL

        def show(line: str | None, facts: str, narrow: str = "", **changes: Any) -> None:
            bar.update(task, facts=facts if is_wide else narrow or facts, **changes)

        yield show


def _bar(total: int | None) -> "Progress":
    """Return a bar with the columns of this library."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console()
    if console.is_jupyter:
        # One bar only needs to start its line again, which a notebook can do. Rich would use a
        # widget, and nbclient answers each of its changes: it may then miss the end of the cell.
        console = Console(force_jupyter=False, force_terminal=True, width=100)
    # Work whose number of steps is unknown has no end to count to, and a few steps, such as fits of
    # baselines, differ too much to reckon the time left from.
    counted = () if total is None else (MofNCompleteColumn(),)
    counted += (TimeRemainingColumn(),) if total is not None and total >= 20 else ()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(40 if console.width >= WIDE_TERMINAL else 12),
        TimeElapsedColumn(),
        *counted,
        TextColumn("{task.fields[facts]}"),
        console=console,
    )


@contextmanager
def reporter(mode: Mode, total: int) -> Iterator[Report]:
    """Yield a function to call with the status after each chunk.

    Parameters
    ----------
    mode
        True for a bar, "plain" for one line per chunk, False for silence.
    total
        Iterations of the whole run.

    Yields
    ------
    callable
        A function of a `Status`.
    """
    check_progress(mode)
    # The first chunk waits for the compiler, so the time left is estimated from its end on.
    marks: list[tuple[float, int]] = []
    with _display(mode, "compiling", total) as show:

        def report(status: Status) -> None:
            marks.append((time.monotonic(), status.done))
            seconds = seconds_left(marks, status.total)
            estimate = "" if seconds is None else f"  {seconds:.0f} s left"
            facts = str(status).split("  ", 1)[1]
            narrow = f"accepted {status.acceptance:.0%}"
            narrow += "" if np.isnan(status.rhat) else f" R-hat {status.rhat:.2f}"
            line = f"{status}{estimate}"
            show(line, facts, narrow, completed=status.done, description=status.phase)

        yield report


def tracked(
    items: Iterable[Item],
    mode: Mode,
    what: str,
    name: Callable[[Item], str] = str,
    total: int | None = None,
) -> Iterator[Item]:
    """Yield the items, with a bar or with one line for each finished item.

    Parameters
    ----------
    items
        The items.
    mode
        As in `reporter`.
    what
        The name of the task, such as "backtest".
    name
        The text for an item.
    total
        The number of items, if `items` has no length.

    Yields
    ------
    Item
        Each item.
    """
    total = len(items) if isinstance(items, Sized) else total
    with _display(mode, what, total) as show:
        for number, item in enumerate(items, 1):
            show(None, name(item))
            yield item
            show(f"{what} {number}/{total}, {name(item)}", name(item), advance=1)


@contextmanager
def announcing(mode: Mode, what: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the next step of a task with an unknown number of steps.

    Parameters
    ----------
    mode
        As in `reporter`.
    what
        The name of the task.

    Yields
    ------
    callable
        A function of the text of the next step.
    """
    with _display(mode, what, None) as show:
        yield lambda text: show(f"{what}, {text}", text, advance=1)


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function `pressed()` that returns whether the user has pressed Ctrl-C.

    The first Ctrl-C is only recorded; a second one raises KeyboardInterrupt. SIGTERM is treated as
    Ctrl-C unless the user's program handles it. Python handles signals only in the main thread; in
    other threads this function has no effect.

    Yields
    ------
    callable
        A function without arguments.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    presses: list[int] = []

    def handle(number: int, frame: object) -> None:
        presses.append(number)
        if len(presses) > 1:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT]
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.default_int_handler):
        numbers.append(signal.SIGTERM)
    previous = [signal.signal(number, handle) for number in numbers]
    try:
        yield lambda: bool(presses)
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            # None means a handler that was not installed from Python, which cannot be restored.
            signal.signal(number, signal.default_int_handler if handler is None else handler)
