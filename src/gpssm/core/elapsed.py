"""Durations that are robust to changes of clocks.

Wall clocks may be adjusted and are not used for durations. Counters of the system continue while a
machine sleeps or is migrated, and may even go back. Durations are therefore never negative, and the
time left is estimated from the median step, not from one during which the machine slept.
"""

import threading
import time
from collections.abc import Sequence

import numpy as np

_lock = threading.Lock()
_counter, _passed = time.perf_counter(), 0.0


def ticks() -> float:
    """Return seconds since a fixed time: the sum of all positive steps of the system's counter."""
    global _counter, _passed
    with _lock:
        counter = time.perf_counter()
        _passed += max(counter - _counter, 0.0)
        _counter = counter
        return _passed


def seconds_left(marks: Sequence[tuple[float, int]], total: int) -> float | None:
    """Return the time left: the remaining units divided by the median rate.

    Parameters
    ----------
    marks
        Times in order, each with the number of finished units: (ticks, units).
    total
        Total number of units.

    Returns
    -------
    Seconds, or None until units have been finished between two times.
    """
    moments, done = np.asarray(marks, float).reshape(-1, 2).T
    steps = np.diff(done)
    rates = np.diff(moments)[steps > 0] / steps[steps > 0]
    return float(np.median(rates) * (total - done[-1])) if len(rates) else None
