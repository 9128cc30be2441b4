"""Excerpts of long records, for searches that go over all rows hundreds of times.

What a linear model has of a record is known from some thousands of its rows; which ones is not, since a machine may
stand still for a long time. So the excerpts are stretches that are spread evenly over it, and what is found from them
is where a short search over all rows begins.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpssm.data.series import Series, as_list

ROWS, STRETCH = 4096, 1024  # of all excerpts together, and of each


class Stage(NamedTuple):
    """Series to search through, in so many steps; each is that of a record from a row on."""

    series: list[Series]
    steps: int
    record: tuple[int, ...]
    begin: tuple[int, ...]

    @property
    def first(self) -> list[int]:
        """The numbers of those that begin where a record does."""
        return [number for number, row in enumerate(self.begin) if row == 0]

    def cut(self, paths: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Of the states (T+1, Dx) of each record those of these series."""
        parts = zip(self.series, self.record, self.begin, strict=True)
        return [paths[record][begin : begin + len(one) + 1] for one, record, begin in parts]


def stages(series: Series | Sequence[Series], steps: int) -> list[Stage]:
    """What to search through: excerpts first, where all rows are many, and then all of them.

    The search through all rows has as many steps as cost what those through the excerpts did.
    """
    whole = as_list(series)
    total, count = sum(len(one) for one in whole), len(whole)
    if total <= ROWS:
        return [Stage(whole, steps, tuple(range(count)), (0,) * count)]
    places = [
        (record, int(begin), min(STRETCH, len(one)))
        for record, one in enumerate(whole)
        for begin in _spread(len(one), max(1, ROWS * len(one) // (total * min(STRETCH, len(one)))))
    ]
    parts = [whole[record][begin : begin + length] for record, begin, length in places]
    record, begin, _ = zip(*places, strict=True)
    few = Stage(parts, steps, record, begin)
    return [few, Stage(whole, max(1, steps * ROWS // total), tuple(range(count)), (0,) * count)]


def _spread(rows: int, count: int) -> np.ndarray:
    """Where so many stretches begin."""
    return np.linspace(0, max(rows - STRETCH, 0), count).astype(int)
