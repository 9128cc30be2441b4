"""When the rows of a series are: a regular grid of times, numbers or dates.

    time of row t = start + t · step

A transition is learned for one step, so rows must follow each other at equal distances. `Clock.of`
finds the grid of a column of times, or says which row is not on it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.data.times import (
    DAY,
    JITTER,
    SECOND,
    Times,
    is_time,
    number_text,
    off_grid,
    off_step,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Clock:
    """The times of rows: row t is at start + t · step.

    Parameters
    ----------
    start, step : float or int
        In the user's unit, or in nanoseconds since 1970 (UTC) for dates.
    dates : bool
        Whether times are dates.
    calendar : str, optional
        Pandas' name of a frequency whose steps differ in length, such as "MS" for months.
    zone : str, optional
        The time zone that dates are shown in.
    name : str, optional
        The name of the column of times; None where rows were only counted by a sampling time.
    """

    start: float | int
    step: float | int
    dates: bool = False
    calendar: str | None = None
    zone: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, values: Any, name: str | None = None) -> "Clock | None":
        """The clock of a column of times, or None for a single row, which has no step.

        A time may miss the grid by a tenth of a step. Gaps, repeated times and times that go back
        are errors.
        """
        times = Times.of(values, name)
        ticks = times.ticks
        if len(ticks) < 2:
            return None
        gaps = np.diff(ticks)
        step = np.median(gaps)
        # Days of a time zone differ in length, even if these happen not to.
        if (gaps == step).all() and step > 0 and not (times.zone and step % DAY == 0):
            return cls.starting(times, step)
        if times.dates and (gaps > 0).all():
            wall = times.index.tz_localize(None)
            for calendar in times.calendars():
                clock = replace(cls.starting(times, np.mean(gaps)), calendar=calendar)
                # Of an hour that occurs twice, any: a day later it occurs once.
                if clock.index(len(ticks)).tz_localize(None).equals(wall):
                    return clock
        if step <= 0 or off_step(gaps).any() or (off_grid(ticks) > JITTER * step).any():
            raise ValueError(times.complaint())
        return cls.starting(times, (ticks[-1] - ticks[0]) / len(gaps))

    @classmethod
    def starting(cls, times: Times, step: Any) -> "Clock":
        """The clock from the first of the times on."""
        start = times.ticks[0]
        if not times.dates:
            return cls(float(start), float(step), name=times.name)
        step = int(step) if step == int(step) else float(step)
        return cls(int(start), step, True, None, times.zone, times.name)

    @property
    def dt(self) -> float:
        """The step as a number: of dates, in seconds."""
        return self.step / SECOND if self.dates else self.step

    def shifted(self, rows: int) -> "Clock":
        """The clock of a series that begins `rows` rows later."""
        if self.calendar:
            return replace(self, start=int(self.times(1, rows).astype("int64")[0]))
        start = self.start + rows * self.step
        return replace(self, start=round(start) if self.dates else start)

    def every(self, rows: int) -> "Clock":
        """The clock of the last row of each block of `rows` rows."""
        calendar = self.calendar and (rows * self._offset).freqstr
        return replace(self.shifted(rows - 1), step=self.step * rows, calendar=calendar)

    def times(self, number: int, first: int = 0) -> np.ndarray:
        """The times of `number` rows from row `first` on: float64, or datetime64[ns] in UTC."""
        if self.calendar:
            return self._calendar_dates(number, first).as_unit("ns").asi8.astype("datetime64[ns]")
        rows = np.arange(first, first + number)
        if self.dates:
            if not abs(self.start + self.step * (first + number)) < 2**63:
                raise ValueError(self._beyond(first + number))
            # In whole numbers: nanoseconds since 1970 are too many for a float.
            ticks = self.start + np.round(self.step * rows).astype("int64")
            return ticks.astype("datetime64[ns]")
        ticks = self.start + self.step * rows
        # 3 · 0.1 is 0.3 to people. A float has 15 significant digits.
        largest = np.abs(ticks).max(initial=self.step)
        return np.round(ticks, int(np.clip(14 - np.floor(np.log10(largest)), 0, 300)))

    def _beyond(self, rows: int) -> str:
        begin = np.datetime64(int(self.start), "ns").astype("datetime64[s]")
        return f"dates end in 2262, and {rows} rows after {begin} go beyond"

    def index(self, number: int, first: int = 0) -> Any:
        """The same as a pandas index, dates in their time zone."""
        import pandas

        name = self.name or "time"
        if self.calendar:
            return self._calendar_dates(number, first).rename(name)
        index: Any = pandas.Index(self.times(number, first), name=name)
        return index.tz_localize("UTC").tz_convert(self.zone) if self.zone else index

    @property
    def _offset(self) -> Any:
        import pandas

        return pandas.tseries.frequencies.to_offset(self.calendar)

    def _calendar_dates(self, number: int, first: int) -> "pd.DatetimeIndex":
        """Dates of the calendar, counted on the clock of the wall."""
        import pandas

        start = pandas.Timestamp(self.start, tz="UTC").tz_convert(self.zone).tz_localize(None)
        try:
            begin = start + first * self._offset if first else start
            dates = pandas.date_range(begin, periods=number, freq=self._offset)
        except (pandas.errors.OutOfBoundsDatetime, OverflowError):
            raise ValueError(self._beyond(first + number)) from None
        # An hour that summer time skips is the next one; of one that occurs twice, the first.
        return dates.tz_localize(
            self.zone, ambiguous=np.ones(number, bool), nonexistent="shift_forward"
        )

    def rows_before(self, time: Any, number: int) -> int:
        """How many of `number` rows are before a date."""
        import pandas

        if not self.dates:
            raise ValueError(
                f"the rows are at numbers, not dates, and cannot be split at {time!r}: "
                "give a row number"
            )
        try:
            date: Any = pandas.Timestamp(time)
        except ValueError:
            raise ValueError(
                f"{time!r} is no date: write it like 2024-03-31 or 2024-03-31 12:00"
            ) from None
        if date.tzinfo is None:
            date = date.tz_localize(self.zone or "UTC")
        utc = np.datetime64(date.tz_convert("UTC").tz_localize(None), "ns")
        return int(np.searchsorted(self.times(number), utc))

    def check_step(self, other: "Clock | None", rows: int) -> None:
        """Refuse `rows` rows of another clock that are not one step of this one apart."""
        if other is None or rows < 2:
            return
        if self.calendar and other.dates:
            expected = replace(self, start=other.start).times(rows)
            agrees = bool((expected == other.times(rows)).all())
        else:
            # The step of a few rows whose times are rounded is known only roughly, and months
            # differ in length.
            tolerance = JITTER if self.calendar else max(1e-3, 2 * JITTER / (rows - 1))
            agrees = abs(other.dt - self.dt) <= tolerance * self.dt
        if not agrees:
            raise ValueError(
                f"the rows are {other.step_text()} apart, and those of the training data "
                f"{self.step_text()}: use resample or decimated, or correct dt or the times"
            )

    def step_text(self) -> str:
        """The step for people: "0.1", "600 s" or "1 MS"."""
        return self.calendar or f"{self.dt:g}{' s' if self.dates else ''}"

    def complaint(self, what: str, rows: Any, row: int) -> str:
        """A warning about `rows` that should begin at a row of this clock and do not, else "".

        Parameters
        ----------
        what
            What the rows are, to begin the sentence.
        rows
            A Series, or a frame with dates as its index.
        row
            Number of the row of this clock.
        """
        other = clock_of(rows)
        if other is None or not (other.dates and self.dates):
            return ""
        off = (other.times(1)[0] - self.times(1, row)[0]) / np.timedelta64(1, "ns") / self.step
        if abs(off) <= 0.5:
            return ""
        return (
            f"{what} begin at {other.show(0)}, but {self.show(row)} would follow the rows known "
            "so far. "
        )

    def texts(self, number: int, first: int = 0) -> list[str]:
        """The times of rows for people: dates without an hour where all are at midnight."""
        index = self.index(number, first)
        if not self.dates:
            return [number_text(value, self.step) for value in index]
        pattern = "%Y-%m-%d" if (index == index.normalize()).all() else "%Y-%m-%d %H:%M:%S"
        texts = index.strftime(pattern).tolist()
        if all(text.endswith(":00") for text in texts):
            return [text.removesuffix(":00") for text in texts]
        return texts

    def show(self, row: int) -> str:
        """The time of a row for people."""
        time = self.index(1, row)[0]
        return str(time) if self.dates else number_text(time, self.step)


def clock_of(values: Any) -> Clock | None:
    """The clock of data that carry times: a series that has a clock, or an index of times.

    A single row has a step of 1.
    """
    clock = getattr(values, "clock", None)
    if isinstance(clock, Clock):
        return clock
    index: Any = getattr(values, "index", None)
    if hasattr(values, "indexes") and getattr(values, "dims", ()):  # xarray
        index = values.indexes.get(next(iter(values.dims)))
    if not hasattr(index, "nlevels") or not is_time(index):
        return None
    return Clock.starting(Times.of(index), 1) if len(index) == 1 else Clock.of(index)
