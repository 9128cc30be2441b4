"""Seconds that pass, whatever becomes of the clocks.

Wall clocks are set, and are never asked how long something took. The system's counters go on while
a machine sleeps or is moved to another, and some have been seen to go back: what is shown or kept
of a duration is never below zero, and the time left is reckoned from the typical step, not from the
one in which the machine slept.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np

_lock = threading.Lock()
_counter, _passed = time.perf_counter(), 0.0


def ticks() -> float:
    """Seconds since some moment: the sum of all steps of the system's counter but those back."""
    global _counter, _passed
    with _lock:
        counter = time.perf_counter()
        _passed += max(counter - _counter, 0.0)
        _counter = counter
        return _passed


def seconds_left(marks: Sequence[tuple[float, int]], total: int) -> float | None:
    """The time that is left: the median rate of units per second times the rest.

    Parameters
    ----------
    marks
        Moments in order, each with the number of units done: (ticks, units).
    total
        Number of all units.

    Returns
    -------
    Seconds, or None as long as no unit has been done between two moments.
    """
    moments, done = np.asarray(marks, float).reshape(-1, 2).T
    steps = np.diff(done)
    rates = np.diff(moments)[steps > 0] / steps[steps > 0]
    return float(np.median(rates) * (total - done[-1])) if len(rates) else None
