"""Progress bars, and interruptions by the user."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from gpssm.core.elapsed import seconds_left, ticks
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


def check_progress(mode: Any) -> None:
    """Raise unless `mode` is True, False or "plain"."""
    if not isinstance(mode, bool) and not (isinstance(mode, str) and mode == "plain"):
        raise ValueError(
            "progress must be True (a bar), 'plain' (one line per chunk) or False (no output), "
            f"got {mode!r}."
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
    if mode is not True:
        # The first chunk includes compilation; the time left is estimated from its end on.
        marks: list[tuple[float, int]] = []

        def report(status: Status) -> None:
            marks.append((ticks(), status.done))
            seconds = seconds_left(marks, status.total)
            estimate = "" if seconds is None else f"  {seconds:.0f} s left"
            _print(mode, f"{status}{estimate}")

        yield report
        return
    with _bar("compiling", total) as (bar, update):
        wide = bar.console.width >= WIDE_TERMINAL

        def report_in_bar(status: Status) -> None:
            figures = str(status).split("  ", 1)[1]
            if not wide:
                figures = f"accepted {status.acceptance:.0%}"
                figures += "" if np.isnan(status.rhat) else f" R-hat {status.rhat:.2f}"
            update(completed=status.done, description=status.phase, facts=figures)

        yield report_in_bar


def _print(mode: Mode, text: str) -> None:
    """Print a line in the mode "plain"."""
    if mode == "plain":
        print(f"gpssm: {text}", file=sys.stderr, flush=True)


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[tuple["Progress", Callable[..., None]]]:
    """Yield a bar with the columns of this library, and a function that updates it."""
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
        # A single bar only needs carriage returns, which notebooks support. Rich would use a
        # widget, and nbclient responds to each of its changes and may then miss the end of the
        # cell.
        console = Console(force_jupyter=False, force_terminal=True, width=100)
    # With an unknown number of steps there is no end to count to, and a few unequal steps, such as
    # fits of baselines, do not allow an estimate of the time left.
    counted = () if total is None else (MofNCompleteColumn(),)
    counted += (TimeRemainingColumn(),) if total is not None and total >= 20 else ()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(40 if console.width >= WIDE_TERMINAL else 12),
        TimeElapsedColumn(),
        *counted,
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=console, get_time=ticks) as bar:
        task = bar.add_task(what, total=total, facts="")
        yield bar, partial(bar.update, task)


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
    if mode is not True:
        for number, item in enumerate(items, 1):
            yield item
            _print(mode, f"{what} {number}/{total}, {name(item)}")
        return
    with _bar(what, total) as (_, update):
        for item in items:
            update(facts=name(item))
            yield item
            update(advance=1)


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
    if mode is not True:
        yield lambda text: _print(mode, f"{what}, {text}")
        return
    with _bar(what, None) as (_, update):
        yield lambda text: update(advance=1, facts=text)


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
