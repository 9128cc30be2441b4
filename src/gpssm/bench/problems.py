"""Benchmark problems with training and test rows, in suites with common protocols.

six      one input, one output; the first half of the rows trains and the second tests
daisy    several inputs and outputs; 500 rows train and the next 500 test
records  training and test records; the first `window` rows of the test record determine the state
series   simulated series (`sim:duffing`) and user data, split like the six
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpssm.core.files import digest
from gpssm.data.datasets import DAISY, RECORDS, load, load_records
from gpssm.data.series import Series


class Suite(NamedTuple):
    """Problems with common tables: title, data sets, protocols, leading scores."""

    title: str
    datasets: tuple[str, ...]
    protocols: tuple[str, ...]
    figures: tuple[str, ...] = ("rmse", "crps")


SIX = ("actuator", "ballbeam", "drive", "dryer", "flutter", "furnace")
HALVES = ("p30", "simulation", "rolling", "learn")
SUITES: dict[str, Suite] = {
    "six": Suite("Six benchmark sets", SIX, HALVES),
    "daisy": Suite("DaISy suite", DAISY, ("daisy-rolling", "simulation"), ("nrmse", "ncrps")),
    "records": Suite("Records", tuple(RECORDS), ("simulation",)),
    "series": Suite("Other series", (), HALVES),
}
DAISY_ROWS = 500  # training rows, and as many test rows
# Subsets of the records, as fits to all rows take too long.
EMPS_STEP = 10  # the stage hardly moves above 10 Hz, and is sampled at 1 kHz
CIRCUIT_ROWS = slice(5200, 5200 + 8192)  # the input of the circuit starts at row 5200


class BenchmarkProblem(NamedTuple):
    """Training rows, test rows, the suite, and a note for the report.

        BenchmarkProblem([first, second], replace(third, window=20))

    By default, the test rows are a separate record, simulated from the state determined by its
    first `test.window` rows.
    """

    train: Series | Sequence[Series]
    test: Series
    suite: str = "records"
    note: str = ""

    @property
    def fingerprint(self) -> str:
        """Hash of all data that affect the result."""
        return digest(self.train, self.test, self.test.window, self.suite)


def halves(series: Series, suite: str = "series") -> BenchmarkProblem:
    """Return the problem with the first half of a series for training and the second for
    testing.
    """
    return BenchmarkProblem(*series.split(len(series) // 2), suite)


def load_problem(name: str) -> BenchmarkProblem:
    """Return the benchmark problem of a data set."""
    if name in DAISY:
        series = load(name)
        size = min(DAISY_ROWS, len(series) // 2)
        return BenchmarkProblem(series[:size], series[size : size + DAISY_ROWS], "daisy")
    if name not in RECORDS:
        return halves(load(name), "six" if name in SIX else "series")
    train, test = load_records(name)
    if name == "emps":
        train = train.decimated(EMPS_STEP)
        test = test.decimated(EMPS_STEP)
        rows = f"every {EMPS_STEP}th row (inputs averaged)"
    else:
        train = train[CIRCUIT_ROWS]
        rows = f"rows {CIRCUIT_ROWS.start} to {CIRCUIT_ROWS.stop - 1}"
    note = f"trained on {rows}, {len(train)} in all; tested on {len(test)} rows, "
    return BenchmarkProblem(train, test, "records", note + f"state from the first {test.window}")


def load_problems(
    datasets: Sequence[str] | str | Mapping[str, Series | BenchmarkProblem],
) -> dict[str, BenchmarkProblem]:
    """Problems by name: of a group, of a list of names and groups, or of the user's own data."""
    if isinstance(datasets, Mapping):
        return {
            name: data if isinstance(data, BenchmarkProblem) else halves(data)
            for name, data in datasets.items()
        }
    names = [datasets] if isinstance(datasets, str) else datasets
    groups = {"all": SIX, "daisy": DAISY, "records": tuple(RECORDS)}
    return {name: load_problem(name) for group in names for name in groups.get(group, (group,))}
