"""Excerpts of long records, for searches that go over all rows hundreds of times.

What a linear model has of a record is known from some thousands of its rows; which ones is not,
since a machine may stand still for a long time. So the excerpts are stretches that are spread
evenly over it, and what is found from them is where a short search over all rows begins.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpssm.data.series import Series, as_list

ROWS, STRETCH, LEAST = 4096, 1024, 64  # of all excerpts together, and of each at most and at least


class Stage(NamedTuple):
    """Series to search through, a number of steps, and which series begin where a record does."""

    series: list[Series]
    steps: int
    first: tuple[int, ...]


def stages(series: Series | Sequence[Series], steps: int) -> list[Stage]:
    """What to search through: excerpts first, where all rows are many, and then all of them.

    The search through all rows has as many steps as cost what those through the excerpts did.
    """
    whole = as_list(series)
    total = sum(len(item) for item in whole)
    if total <= ROWS:
        return [Stage(whole, steps, tuple(range(len(whole))))]
    parts, first = [], []
    for item in whole:
        first.append(len(parts))
        share = ROWS * len(item) // total
        length = min(max(min(share, STRETCH), LEAST), len(item))
        begins = np.linspace(0, len(item) - length, max(1, share // length)).astype(int)
        parts += [item[begin : begin + length] for begin in begins]
    return [
        Stage(parts, steps, tuple(first)),
        Stage(whole, max(1, steps * ROWS // total), tuple(range(len(whole)))),
    ]
