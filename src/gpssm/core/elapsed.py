"""Seconds that pass, whatever becomes of the clocks.

Wall clocks are set, and are never asked how long something took. The system's counters go on while a machine sleeps or
is moved to another, and some have been seen to go back: what is shown or kept of a duration is never below zero, and
the time left is reckoned from the typical step, not from the one in which the machine slept.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np

_lock = threading.Lock()
_counter, _passed = time.perf_counter(), 0.0


def ticks() -> float:
    """Seconds since some moment, which never get fewer: the sum of all steps of the system's counter but those back."""
    global _counter, _passed
    with _lock:
        now = time.perf_counter()
        _passed += max(now - _counter, 0.0)
        _counter = now
        return _passed


def seconds_left(marks: Sequence[tuple[float, int]], total: int) -> float | None:
    """The time that is left, from moments (ticks, units done) in order: the median rate times the rest.

    :return: None as long as no unit has been done between two moments.
    """
    moments, done = np.asarray(marks, float).reshape(-1, 2).T
    steps = np.diff(done)
    rates = np.diff(moments)[steps > 0] / steps[steps > 0]
    return float(np.median(rates) * (total - done[-1])) if len(rates) else None
