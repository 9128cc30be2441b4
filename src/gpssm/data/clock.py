"""When the rows of a series are: a regular grid of times, numbers or dates.

    time of row t = start + t · step

A transition is learned for one step, so rows must follow each other at equal distances. `Clock.of`
finds the grid of a column of times, or says which row is not on it; `on_grid` puts such rows on
one, with gaps where rows are missing.
"""

import re
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.text import check_choice, count, is_real

if TYPE_CHECKING:
    import pandas as pd

JITTER = 0.1  # of a step, by which a time may miss the grid
SECOND = 10**9  # in nanoseconds
DAY = 86_400 * SECOND
REMEDY = (
    "A model needs rows at equal distances: correct the times, or give regrid=True (--regrid auto), "
    "which puts missing rows in as missing outputs; without the times (--time none) rows are only "
    "counted"
)

# The name of a column of times, with a unit perhaps, and how a date begins.
TIME = re.compile(
    r"(t|time|times?tamp|date|datetime|date.?time|seconds)"
    r"([ _]?[\[(]?(s|ms|min|h|d|sec|seconds|hours)[\])]?)?",
    re.I,
)
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{8}T")

Controls = Literal["hold", "interpolate"]


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
        if len(times.ticks) < 2:
            return None
        gaps = np.diff(times.ticks)
        step = np.median(gaps)
        equal = bool((gaps == step).all() and step > 0)
        # Days of a time zone differ in length, even if these happen not to.
        if equal and not (times.zone and step % DAY == 0):
            return times.clock(times.ticks[0], step)
        if times.dates and (gaps > 0).all():
            clock = times.calendar_clock(step, float(np.mean(gaps)))
            if clock is not None:
                return clock
        off = np.abs(gaps - step) > 2 * JITTER * step
        deviation = np.abs(times.ticks - times.ticks[0] - times.grid())
        if step <= 0 or off.any() or (deviation > JITTER * step).any():
            raise ValueError(times.complaint(gaps, step, off))
        return times.clock(times.ticks[0], (times.ticks[-1] - times.ticks[0]) / len(gaps))

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
        last = self.shifted(rows - 1)
        calendar = self.calendar and (rows * _offset(self.calendar)).freqstr
        return replace(last, step=self.step * rows, calendar=calendar)

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

    def _calendar_dates(self, number: int, first: int) -> "pd.DatetimeIndex":
        """Dates of the calendar, counted on the clock of the wall."""
        import pandas

        offset = _offset(self.calendar)
        start = pandas.Timestamp(self.start, tz="UTC").tz_convert(self.zone).tz_localize(None)
        try:
            begin = start + first * offset if first else start
            dates = pandas.date_range(begin, periods=number, freq=offset)
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
                f"the rows are at numbers, not dates, and cannot be split at {time!r}: give a row number"
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
        return f"{what} begin at {other.show(0)}, but {self.show(row)} would follow the rows known so far. "

    def common_rows(self, first: int, number: int, other: Any) -> tuple[slice, slice]:
        """Rows of a forecast and of data that are at the same times.

            steps, rows = forecast.clock.common_rows(forecast.start, forecast.horizon, actual)
            forecast[steps].score(actual[rows])

        Where one of them has no times, or times are only counted, rows are matched by position.

        Parameters
        ----------
        first, number
            The first row of the forecast on this clock, and how many there are.
        other
            The data: a Series, or a frame whose index has dates.

        Returns
        -------
        The rows within the `number` rows, and those of the data.
        """
        clock = clock_of(other)
        length = len(other)
        if clock is None or clock.dates != self.dates or None in (clock.name, self.name):
            return slice(0, min(number, length)), slice(0, min(number, length))
        self.check_step(clock, length)
        steps = self.times(number, first)
        times = clock.times(length)
        tolerance = JITTER * self.dt
        if self.dates:
            tolerance = np.timedelta64(round(JITTER * self.step), "ns")
        places = np.clip(np.searchsorted(times, steps - tolerance), 0, length - 1)
        (matched,) = np.nonzero(np.abs(times[places] - steps) <= tolerance)
        if not len(matched):
            raise ValueError(
                f"the forecast is of {self.show(first)} to {self.show(first + number - 1)}, and the "
                f"rows are of {clock.show(0)} to {clock.show(length - 1)}: none is at the same time"
            )
        begin, end = matched[0], matched[-1]
        return slice(int(begin), int(end) + 1), slice(int(places[begin]), int(places[end]) + 1)

    def texts(self, number: int, first: int = 0) -> list[str]:
        """The times of rows for people: dates without an hour where all are at midnight."""
        index = self.index(number, first)
        if not self.dates:
            return [_number_text(value, self.step) for value in index]
        pattern = "%Y-%m-%d" if (index == index.normalize()).all() else "%Y-%m-%d %H:%M:%S"
        texts = index.strftime(pattern).tolist()
        if all(text.endswith(":00") for text in texts):
            return [text.removesuffix(":00") for text in texts]
        return texts

    def show(self, row: int) -> str:
        """The time of a row for people."""
        time = self.index(1, row)[0]
        return str(time) if self.dates else _number_text(time, self.step)


def is_time(column: "pd.Index | pd.Series") -> bool:
    """Whether a column holds times: dates, or numbers under a name such as time, t or timestamp.

    Text counts if its first entry begins with a date.
    """
    from pandas.api import types

    kind: Any = column.dtype
    if types.is_numeric_dtype(kind):
        named = TIME.fullmatch(str(column.name or "").strip())
        return bool(named and column.notna().all())
    if types.is_object_dtype(kind) or types.is_string_dtype(kind):
        first = next((str(cell) for cell in column if cell == cell and cell is not None), "")
        return bool(DATE.match(first.strip()))
    dates = types.is_datetime64_any_dtype(kind) or types.is_timedelta64_dtype(kind)
    return bool(dates or str(kind).startswith("period"))


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
    if len(index) == 1:
        times = Times.of(index)
        return times.clock(times.ticks[0], 1)
    return Clock.of(index)


def localised(times: Any, dayfirst: bool | None = None, zone: str | None = None) -> Any:
    """Dates read with the day first or not, in a time zone if they have none.

    Parameters
    ----------
    times
        Dates, or texts that can be read as dates.
    dayfirst
        See `read_dates`.
    zone
        Name of a time zone. Of an hour that occurs twice, the order of the rows tells which it is.
    """
    import pandas

    index = pandas.Index(times)
    if pandas.api.types.is_numeric_dtype(index):
        raise ValueError(
            "dayfirst and zone are for dates, and the times are numbers: leave them out"
        )
    if not isinstance(index, pandas.DatetimeIndex):
        index = read_dates(index, str(index.name or "time"), dayfirst)
    if zone is None or index.tz is not None:
        return index
    settings: Any = {"nonexistent": "shift_forward"}
    try:
        return index.tz_localize(zone, ambiguous="infer", **settings)
    except ValueError:
        return index.tz_localize(zone, ambiguous=np.ones(len(index), bool), **settings)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"zone is the name of a time zone, like 'Europe/Berlin'; got {zone!r} ({error})"
        ) from None


def _number_text(value: float, step: float) -> str:
    """A number with as many digits as tell it from the next one a step away."""
    digits = 6
    if value and step:
        digits = max(6, int(np.ceil(np.log10(abs(value) / step))) + 2)
    return f"{value:.{min(digits, 15)}g}"


def _offset(calendar: str | None) -> Any:
    """Pandas' offset of a frequency by name."""
    import pandas

    return pandas.tseries.frequencies.to_offset(calendar)


@dataclass(frozen=True)
class Times:
    """A column of times as it was given: numbers, or nanoseconds since 1970 (UTC) for `dates`."""

    ticks: Float[np.ndarray, " T"] | Int[np.ndarray, " T"]
    dates: bool
    zone: str | None
    name: str | None

    @classmethod
    def of(cls, values: Any, name: str | None = None) -> "Times":
        """Ticks of numbers, dates, or text that can be read as dates."""
        import pandas

        name = name or getattr(values, "name", None)
        label = "time" if name is None else str(name)
        try:
            index = pandas.Index(values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"times are a column of numbers or dates; got {type(values).__name__} ({error})"
            ) from None
        if index.ndim != 1 or index.nlevels > 1 or pandas.api.types.is_complex_dtype(index):
            raise ValueError(
                f"times are a column of numbers or dates; got an index of {index.dtype}"
            )
        if isinstance(index, pandas.PeriodIndex):
            index = index.to_timestamp()
        elif isinstance(index, pandas.TimedeltaIndex):
            index = index / pandas.Timedelta(seconds=1)
        elif not (
            isinstance(index, pandas.DatetimeIndex) or pandas.api.types.is_numeric_dtype(index)
        ):
            index = read_dates(index, label)
        if index.isna().any():
            row = int(np.flatnonzero(index.isna())[0])
            raise ValueError(
                f"the time in column {label!r}, row {row} (counted from 0), is missing. {REMEDY}"
            )
        if not isinstance(index, pandas.DatetimeIndex):
            return cls(index.to_numpy(dtype=np.float64), False, None, label)
        try:
            ticks = index.as_unit("ns").asi8
        except pandas.errors.OutOfBoundsDatetime as error:
            raise ValueError(
                f"column {label!r} has dates outside of 1677 to 2262, which cannot be counted in "
                f"nanoseconds ({error}): give times as numbers, such as years"
            ) from None
        return cls(ticks, True, None if index.tz is None else str(index.tz), label)

    def clock(self, start: Any, step: Any) -> Clock:
        """The clock that starts there."""
        if not self.dates:
            return Clock(float(start), float(step), name=self.name)
        step = int(step) if step == int(step) else float(step)
        return Clock(int(start), step, True, None, self.zone, self.name)

    def calendar_clock(self, step: float, mean: float) -> Clock | None:
        """The clock of the calendar that the dates follow, if there is one."""
        import pandas

        index = pandas.DatetimeIndex(self.ticks.astype("datetime64[ns]"))
        index = index.tz_localize("UTC").tz_convert(self.zone)
        calendars = []
        if len(index) > 2:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it will not be text in a later version
                frequency = pandas.infer_freq(index)
            calendars.append(getattr(frequency, "freqstr", frequency))
        if self.zone and step % DAY == 0:
            calendars.append(_offset(f"{int(step // DAY)}D").freqstr)
        for calendar in calendars:
            if calendar is not None:
                clock = replace(self.clock(self.ticks[0], mean), calendar=str(calendar))
                if (clock.times(len(index)).astype("int64") == self.ticks).all():
                    return clock
        return None

    def grid(self) -> Float[np.ndarray, " T"]:
        """Times at equal distances from 0 to the last, counted from the first."""
        return np.linspace(0, self.ticks[-1] - self.ticks[0], len(self.ticks))

    def complaint(self, gaps: np.ndarray, step: float, off: np.ndarray) -> str:
        """What is wrong with the first row that is not a step after the one before."""
        wrong = np.flatnonzero((gaps <= 0) | off)
        deviation = np.abs(self.ticks - self.ticks[0] - self.grid())
        row = int(wrong[0]) + 1 if wrong.size else int(np.argmax(deviation))
        time = self.show(row)
        gap = gaps[row - 1]
        place = f"the time in column {self.name!r}, row {row} (counted from 0), is {time}"
        if gap < 0:
            return (
                f"rows are out of time order: {place}, before that of the row before, "
                f"{self.show(row - 1)}. Sort them by time. {REMEDY}"
            )
        if gap == 0:
            return f"{place}, as the row before. {REMEDY}"
        if not off[row - 1]:
            miss = self.length(float(deviation[row]))
            return f"{place}, {miss} off a grid with steps of {self.length(step)}. {REMEDY}"
        return (
            f"{place}, {self.length(gap)} after the row before; most are {self.length(step)} "
            f"apart. {REMEDY}"
        )

    def show(self, row: int) -> str:
        """The time of a row for people."""
        return self.clock(self.ticks[row], 1).show(0)

    def length(self, gap: float) -> str:
        """A distance between times for people."""
        return f"{gap / SECOND:g} s" if self.dates else f"{gap:g}"


def read_dates(values: Any, name: str = "time", dayfirst: bool | None = None) -> "pd.DatetimeIndex":
    """Text as dates, all of them in one way.

    Where 01/02/2024 could be January or February, the reading that makes the times regular is
    taken; if that does not decide, the day comes first in 01.02.2024 and the month in 01/02/2024,
    and a warning says so.

    Parameters
    ----------
    values
        The texts.
    name
        Name of the column, for messages.
    dayfirst
        Whether the day comes first in dates that begin with neither a year nor a name.
    """
    import pandas

    texts = pandas.Index(values).astype(str).str.strip()
    # With summer and winter time in one column, offsets from UTC differ.
    offsets = texts.str.extract(r":\d{2}(?:\.\d+)?\s*([+-]\d{2}:?\d{2})$", expand=False).nunique()
    fields = texts.str.extract(r"^(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}\b").to_numpy(float)
    possible = [False, True] if dayfirst is None else [bool(dayfirst)]
    if np.isfinite(fields).all():
        months = fields.max(axis=0, initial=0) <= 12  # of the first and of the second number
        possible = [day_first for day_first in possible if months[int(day_first)]]
        if not possible:
            row = int(np.argmax(fields[:, int(bool(dayfirst))] > 12))
            raise ValueError(
                f"column {name!r}, row {row} (counted from 0), is {texts[row]!r}, which is no date "
                f"with the {'day' if dayfirst else 'month'} first, as others are: write all in one way"
            )
    else:
        possible = possible[:1]
    readings = {}
    for day_first in possible:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the day comes first in no date of the column
                dates = pandas.to_datetime(texts, dayfirst=day_first, utc=offsets > 1)
            readings[day_first] = pandas.DatetimeIndex(dates, name=name)
        except (ValueError, TypeError):
            continue
    if not readings:
        unread = pandas.to_datetime(texts, errors="coerce", format="mixed", utc=True)
        row = int(np.flatnonzero(unread.isna())[0]) if unread.isna().any() else 0
        raise ValueError(
            f"column {name!r}, row {row} (counted from 0), is {texts[row]!r}, which is neither a "
            "number nor a date. Write dates like 2024-03-31 12:00, all in one way"
        )
    if len(readings) == 1 or readings[False].equals(readings[True]):
        return next(iter(readings.values()))
    regular = [dates for dates in readings.values() if _is_regular(dates)]
    if len(regular) == 1:
        return regular[0]
    if texts.str.match(r"\d{1,2}\.\d{1,2}\.\d{4}").all():
        return readings[True]
    texts = (f"{readings[first][-1]:%d %B %Y}" for first in (False, True))
    warnings.warn(
        f"column {name!r} ends with {values[-1]!r}, which was read with the month first, as {next(texts)}; "
        f"with the day first it is {next(texts)}. Pass dayfirst=True or dayfirst=False to decide",
        stacklevel=6,
    )
    return readings[False]


def _is_regular(dates: "pd.DatetimeIndex") -> bool:
    try:
        return Clock.of(dates) is not None
    except ValueError:
        return False


def on_grid(
    values: Any,
    y: Float[np.ndarray, "N Dy"],
    u: Float[np.ndarray, "N Du"],
    step: Any = None,
    controls: Controls = "hold",
) -> tuple[Clock, Float[np.ndarray, "T Dy"], Float[np.ndarray, "T Du"]]:
    """Rows at any times, put on the grid from the first to the last: clock, outputs and inputs.

    Each row goes to the nearest point of the grid, and rows that share a point are averaged. Where
    no row is near, outputs are NaN, and inputs those of the last row before or on the line between
    their neighbours.

    Parameters
    ----------
    values
        The time of each row, in any order.
    y, u
        Outputs and inputs.
    step
        Step of the grid: a number, or text such as "10min" for dates; by default that which most
        rows are apart.
    controls
        The rule for inputs where rows are missing: "hold" or "interpolate".
    """
    import pandas

    check_choice("the rule for controls", controls, ("hold", "interpolate"))
    times = Times.of(values)
    if not len(times.ticks) == len(y) == len(u) or not len(y):
        raise ValueError(
            f"there are {len(times.ticks)} times for {len(y)} rows of outputs and {len(u)} of controls"
        )
    order = np.argsort(times.ticks, kind="stable")
    ticks = times.ticks[order] - times.ticks[order[0]]
    if step is None:
        step = _typical_step(ticks, SECOND if times.dates else 1)
    elif times.dates:
        try:
            step = pandas.Timedelta(step if isinstance(step, str) else f"{step}s").value
        except ValueError as error:
            raise ValueError(
                f"regrid={step!r} is no distance of times, like '10min': {error}"
            ) from None
    if not is_real(step) or not 0 < step < 1e300:
        raise ValueError(f"regrid needs times that differ, and a step above 0; got {step!r}")
    # A step may be so small that its number is none.
    rows = ticks[-1] / max(float(step), 1e-290) + 1
    if not rows < 20 * len(ticks) + 0.5:
        raise ValueError(
            f"a grid with a step of {times.length(step)} from {times.show(order[0])} to {times.show(order[-1])} has "
            f"{rows:.12g} rows for {len(ticks)} that were given: name another step, or cut the data at the long gaps"
        )
    places = np.round(ticks / float(step)).astype(int)
    filled, group = np.unique(places, return_inverse=True)
    if len(filled) < len(places):
        repeated = int(order[np.argmin(np.diff(places)) + 1])
        warnings.warn(
            f"{count(len(places) - len(filled), 'row')} of {len(places)} fell on a point of the grid "
            f"that another one has, the first at {times.show(repeated)}: "
            "they were averaged. Where clocks were set back, give the time zone, zone='Europe/Berlin'",
            stacklevel=4,
        )
    mean_y = _group_means(y[order], group)
    mean_u = _group_means(u[order], group)
    grid = np.arange(places[-1] + 1)
    on_y = np.full((len(grid), y.shape[1]), np.nan)
    on_y[filled] = mean_y
    if controls == "hold":
        on_u = mean_u[np.searchsorted(filled, grid, side="right") - 1]
    else:
        on_u = np.empty((len(grid), u.shape[1]))
        for column, values_there in zip(on_u.T, mean_u.T, strict=True):
            column[:] = np.interp(grid, filled, values_there)
    return times.clock(times.ticks[order[0]], step), on_y, on_u


def _typical_step(ticks: np.ndarray, unit: float) -> float:
    """The step of sorted times that jitter and have gaps, from 0 on; a round number if one fits.

    The slope of the times over rows counted by the median distance.
    """
    gaps = np.diff(ticks)
    if not (gaps > 0).any():
        return 0.0
    median = np.median(gaps[gaps > 0])
    rows = np.concatenate([[0], np.cumsum(np.round(gaps / median))])
    if (gaps[gaps > 0] == median).all() or not rows[-1]:
        return float(median)
    slope = np.polyfit(rows, ticks, 1)[0]
    for digits in (1, 2, 3):
        step = float(f"{slope / unit:.{digits}g}") * unit
        if abs(step - slope) * rows[-1] < 0.25 * slope:
            return step
    return float(slope)


def _group_means(rows: Float[np.ndarray, "N D"], group: np.ndarray) -> Float[np.ndarray, "G D"]:
    """The mean of the observed entries of each group of rows, NaN where there are none."""
    seen = np.isfinite(rows)
    counts = np.zeros((group[-1] + 1, rows.shape[1]))
    sums = np.zeros_like(counts)
    np.add.at(counts, group, seen)
    np.add.at(sums, group, np.where(seen, rows, 0.0))
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
