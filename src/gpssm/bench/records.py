"""What trains, what tests, and which protocols apply: the one question that cells and sweeps ask of a data set.

A data set is one of two kinds:

    a `Series`     its first half (T // 2 rows) trains, and the second tests: p30, full, rolling, learn
    `Records`      some records train, and the model runs freely through another one: simulate

Benchmarks with a test record of their own (`gpssm.data.datasets.RECORDS`) have more rows than can be trained on in
minutes. `USED` says which of them are used; the words of it stand beside every result.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpssm.core.files import digest
from gpssm.data.datasets import RECORDS, load, load_records
from gpssm.data.series import Series

OF_HALVES, OF_RECORDS = ("p30", "full", "rolling", "learn"), ("simulate",)  # the protocols that apply


class Records(NamedTuple):
    """One record to train on, or several, and one to test on, of which `test.window` rows are given.

    run_sweep({"stage": Records([first, second], replace(third, window=20))}, ["ffvd"], seeds=3)
    """

    train: Series | Sequence[Series]
    test: Series
    words: str = ""  # which rows these are, for tables


Data = Series | Records


class Division(NamedTuple):
    """What trains, what tests, the protocols that apply, and which rows these are in words, if that needs any."""

    train: Series | Sequence[Series]
    test: Series
    protocols: tuple[str, ...]
    words: str


def divide(data: Data) -> Division:
    """The division of a data set of either kind."""
    if isinstance(data, Records):
        return Division(data.train, data.test, OF_RECORDS, data.words)
    return Division(*data.split(len(data) // 2), OF_HALVES, "")


def fingerprint(data: Data) -> str:
    """A hash of all rows, and of what else of the data changes a result."""
    return digest(data) if isinstance(data, Series) else digest(data.train, data.test, data.test.window)


def load_data(name: str) -> Data:
    """The data set of a name that `gpssm.datasets.load` knows, as the benchmark uses it."""
    return USED[name](*load_records(name)) if name in RECORDS else load(name)


EVERY = 10  # rows of EMPS: 10 ms, while the position has next to nothing faster than 10 Hz
QUIET, STRETCH = 5200, 8192  # rows of the circuit before its input sets in, and rows to train on after them


def _emps(train: Series, test: Series) -> Records:
    train, test = train.decimated(EVERY), test.decimated(EVERY)
    words = f"trained and judged at every {EVERY}th row (of the controls their means): {len(train)} rows each, "
    return Records(train, test, words + f"state from the first {test.window}")


def _circuit(train: Series, test: Series) -> Records:
    train = train[QUIET : QUIET + STRETCH]
    words = f"trained on rows {QUIET} to {QUIET + STRETCH - 1}, judged on all {len(test)} of the test record, "
    return Records(train, test, words + f"state from the first {test.window}")


USED: dict[str, Callable[[Series, Series], Records]] = {"emps": _emps, "wiener-hammerstein": _circuit}
