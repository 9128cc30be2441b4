"""Long records: cut into windows, and of their states only the last kept.

A window is an experiment of its own that shares everything with the others but its states. It has T_w + 1 of them, the
first of which stands for the same moment as the last of the window before, and is let go when the windows are put
together again:

    x₀ | x₁ … x_a | x_{a+1} … x_b | …        the states of a record in windows of rows 0 … a−1, a … b−1, …

so that what the posterior holds is one path a record, as ever. All states of all draws of a long record are more than
a machine can hold: draws then have those of its last rows alone, on which forecasts and diagnostics rest.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gpssm.core.text import check_whole, count, is_whole
from gpssm.data.series import Series
from gpssm.posterior.conditioning import LOOKBACK

Keep = int | Literal["auto", "all"]
KEPT_BYTES = 2**31  # of states in all draws, above which "auto" keeps the last of them only
SHORTEST = 20  # rows of a window


class Windows(NamedTuple):
    """The windows of all records, one after the other, and the rows of its record at which each begins."""

    series: list[Series]
    record: tuple[int, ...]
    begin: tuple[int, ...]

    def cut_states(self, paths: Any) -> Any:
        """Paths of states (T+1, Dx), one a record, cut as the records are; anything else as it is."""
        several = len(self.series) > 1 + max(self.record)
        if not several or isinstance(paths, str) or any(isinstance(one, str) for one in paths):
            return paths
        given = [paths] if np.ndim(paths[0]) == 1 else paths
        parts = zip(self.series, self.record, self.begin, strict=True)
        return [np.asarray(given[record])[begin : begin + len(one) + 1] for one, record, begin in parts]

    def kept_from(self, first: Sequence[int]) -> tuple[int, ...] | None:
        """The first state of each window that is kept where those of the records are; None for all of all."""
        parts = zip(self.series, self.record, self.begin, strict=True)
        local = tuple(min(max(first[record] - begin, int(begin > 0)), len(one) + 1) for one, record, begin in parts)
        return local if any(local) else None

    def join(self, paths: Sequence[Any]) -> tuple[Any, ...]:
        """What was kept of the states of each window (chain, draw, _, Dx), put together for each record."""
        groups = itertools.groupby(zip(self.record, paths, strict=True), lambda pair: pair[0])
        parts = [[path for _, path in group] for _, group in groups]
        return tuple(group[0] if len(group) == 1 else np.concatenate(group, axis=2) for group in parts)


def cut(series: Sequence[Series], windows: int) -> Windows:
    """Each record in so many windows of nearly equal length."""
    check_whole("windows", windows, 1)
    short = min(len(one) for one in series)
    if windows > 1 and short < SHORTEST * windows:
        raise ValueError(
            f"windows={windows} would be shorter than {SHORTEST} rows, of a series of {short}: ask for fewer windows"
        )
    found = Windows([], (), ())
    for record, one in enumerate(series):
        ends = [len(one) * number // windows for number in range(windows + 1)]
        found = Windows(
            [*found.series, *(one[begin:end] for begin, end in itertools.pairwise(ends))],
            (*found.record, *[record] * windows),
            (*found.begin, *ends[:-1]),
        )
    return found


def check_keep(keep: Any) -> None:
    """Refuse at once what says nothing of which states to keep."""
    if not (isinstance(keep, str) and keep in ("auto", "all")) and not (is_whole(keep) and keep >= LOOKBACK):
        raise ValueError(f"keep_states must be auto, all, or a number of rows of at least {LOOKBACK}; got {keep!r}.")


def first_kept(series: Sequence[Series], keep: Keep, numbers: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The first state of each record that is kept, and a note where that was not asked for.

    :param numbers: in the states of one row, over all draws of all chains.
    """
    lengths = [len(one) for one in series]
    rows, notes = max(lengths) if isinstance(keep, str) else int(keep), ()
    if keep == "auto" and 8 * numbers * sum(lengths) > KEPT_BYTES:
        rows = max(KEPT_BYTES // (8 * numbers * len(lengths)), LOOKBACK)
        notes = (
            f"The states of the last {count(rows, 'row')} alone were kept: all of them would take "
            f"{8 * numbers * sum(lengths) / 1e9:.1f} GB. keep_states='all', or a number of rows, says otherwise.",
        )
    return tuple(max(length - rows, 0) for length in lengths), notes
