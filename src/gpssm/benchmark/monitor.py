"""What the user sees of a sweep while it lasts: cells done, failures, time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpssm.benchmark.results import Line
from gpssm.progress import Mode, make_bar

Report = Callable[[list[Line]], None]


@contextmanager
def monitor(mode: Mode, total: int, skipped: int) -> Iterator[Report]:
    """A function to call with the results of each cell: it moves a bar (True), prints a line ("plain"), or is silent.

    `skipped` cells of a resumed sweep are not among the `total`.
    """
    if mode not in (True, False, "plain"):
        raise ValueError(f"progress must be True (a bar), 'plain' (a line a cell) or False (silence), got {mode!r}.")
    if mode is False:
        yield lambda lines: None
    elif mode == "plain":
        yield _plain(total, skipped)
    else:
        with _bar(total, skipped) as report:
            yield report


def describe(lines: list[Line]) -> str:
    """A cell, or a selection, in a few words: `arx on dryer, seed 0: rmse p30 0.0361, rolling 0.0412`."""
    first = lines[0]
    if "protocol" not in first:
        return f"{first['dataset']}: {_choice(first)}"
    good = [one for one in lines if one["status"] == "ok"]
    figures = ", ".join(f"{one['protocol']} {one['metrics']['rmse']:.3g}" for one in good)
    problems = {one["error"].splitlines()[0] for one in lines if one["status"] != "ok"}
    parts = [f"rmse {figures}"] if good else []
    parts += [f"FAILED, {problem}" for problem in sorted(problems)]
    return f"{first['method']} on {first['dataset']}, seed {first['seed']}: {'; '.join(parts)}"


def _choice(selection: Line) -> str:
    """A selection in a few words: `state_dim 3, mean linear, the best of 4`."""
    if selection["status"] != "ok":
        return f"selection FAILED, {selection['error'].splitlines()[0]}"
    chosen = ", ".join(f"{name} {value}" for name, value in selection["best"].items())
    return f"{chosen}, the best of {len(selection['table'])}"


def _plain(total: int, skipped: int) -> Report:
    began, done = time.monotonic(), 0

    def report(lines: list[Line]) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - began) / done * (total - done)
        print(f"gpssm: {done}/{total} {describe(lines)}  {left:.0f} s left", file=sys.stderr, flush=True)

    if skipped:
        print(f"gpssm: {skipped} cells were there already, {total} to run", file=sys.stderr, flush=True)
    return report


@contextmanager
def _bar(total: int, skipped: int) -> Iterator[Report]:
    with make_bar(stderr=True) as bar:
        # Cells differ widely in what they take: the time left is reckoned from all of them, not the latest.
        task = bar.add_task("sweep" + f" ({skipped} there already)" * bool(skipped), total=total)
        bar.speed_estimate_period = float("inf")

        def report(lines: list[Line]) -> None:
            bar.console.print(describe(lines), highlight=False, markup=False)
            bar.advance(task)

        yield report
