"""When the rows of a series are: a regular grid of times, numbers or dates.

    time of row t = start + t · step

A transition is learned for one step, so rows must follow each other at equal distances. `Clock.of` finds the grid of a
column of times, or says which row is not on it; `on_grid` puts such rows on one, with gaps where rows are missing.
"""

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.text import check_choice, is_real

if TYPE_CHECKING:
    import pandas as pd

JITTER = 0.1  # of a step, by which a time may miss the grid
MOST = 20  # times as many rows as were given, that a grid may have
SECOND, DAY = 10**9, 86_400 * 10**9  # nanoseconds
REMEDY = (
    "A model needs rows at equal distances: correct the times, or give regrid=True (--regrid), which puts missing rows "
    "in as missing outputs; without the times (--time none) rows are only counted"
)

Controls = Literal["hold", "interpolate"]


@dataclass(frozen=True)
class Clock:
    """Row t is at start + t · step: numbers in the user's unit, or nanoseconds since 1970 (UTC) for `dates`.

    `calendar` is pandas' name of a frequency whose steps differ in length ("MS", months); `zone` the time zone that
    dates are shown in; `name` what the column of times was called, None where rows were only counted by `dt`.
    """

    start: float | int
    step: float | int
    dates: bool = False
    calendar: str | None = None
    zone: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, values: Any, name: str | None = None) -> "Clock | None":
        """The clock of a column of times, one a row; None for a single row, which has no step.

        A time may miss the grid by a tenth of a step. Gaps, times that occur twice or go back are errors.
        """
        times = Times.of(values, name)
        if len(times.ticks) < 2:
            return None
        gaps = np.diff(times.ticks)
        step = np.median(gaps)
        # Days of a time zone are not all as long, though these may be.
        even = bool((gaps == step).all() and step > 0)
        if even and not (times.zone and step % DAY == 0):
            return times.clock(times.ticks[0], step)
        if times.dates and (gaps > 0).all() and (calendar := times.calendar()):
            return replace(times.clock(times.ticks[0], np.mean(gaps)), calendar=calendar)
        off = np.abs(gaps - step) > 2 * JITTER * step
        if (
            step <= 0
            or off.any()
            or (np.abs(times.ticks - times.ticks[0] - times.grid()) > JITTER * step).any()
        ):
            raise ValueError(times.complaint(gaps, step, off))
        return times.clock(times.ticks[0], (times.ticks[-1] - times.ticks[0]) / len(gaps))

    @property
    def dt(self) -> float:
        """The step as a number: of dates, in seconds."""
        return self.step / SECOND if self.dates else self.step

    def shifted(self, rows: int) -> "Clock":
        """The clock of a series that begins so many rows later."""
        if self.calendar:
            return replace(self, start=int(self.times(1, rows).astype("int64")[0]))
        start = self.start + rows * self.step
        return replace(self, start=round(start) if self.dates else start)

    def every(self, rows: int) -> "Clock":
        """The clock of every so many rows, from the end of the first block of them on."""
        first = self.shifted(rows - 1)
        return replace(
            first, step=self.step * rows, calendar=self.calendar and f"{rows}{self.calendar}"
        )

    def times(self, number: int, first: int = 0) -> np.ndarray:
        """The times of `number` rows from row `first` on: float64, or datetime64[ns] in UTC."""
        if self.calendar:
            return (
                self.index(number, first).tz_convert(None).to_numpy()
                if self.zone
                else self._dates(number, first)
            )
        rows = np.arange(first, first + number)
        if self.dates:
            # In whole numbers, as far as they are: nanoseconds since 1970 are too many for a float.
            return (self.start + np.round(self.step * rows).astype("int64")).astype(
                "datetime64[ns]"
            )
        ticks = self.start + self.step * rows
        # 3 · 0.1 is 0.3 to people.
        largest = np.abs(ticks).max(initial=self.step)
        return np.round(ticks, int(np.clip(12 - np.floor(np.log10(largest)), 0, 300)))

    def index(self, number: int, first: int = 0) -> Any:
        """The same as a pandas index, dates in their time zone."""
        import pandas

        name = self.name or "time"
        if not self.dates:
            return pandas.Index(self.times(number, first), name=name)
        values = self._dates(number, first) if self.calendar else self.times(number, first)
        found = pandas.DatetimeIndex(values, name=name)
        if self.zone:
            found = (
                found.tz_localize(self.zone)
                if self.calendar
                else found.tz_localize("UTC").tz_convert(self.zone)
            )
        return found

    def _dates(self, number: int, first: int) -> np.ndarray:
        """Dates of the calendar, on the clock of the wall."""
        import pandas

        start = (
            pandas.Timestamp(int(self.start), tz="UTC")
            .tz_convert(self.zone or "UTC")
            .tz_localize(None)
        )
        offset: Any = pandas.tseries.frequencies.to_offset(self.calendar)
        begin = start + first * offset if first else start
        return (
            pandas.date_range(begin, periods=number, freq=offset)
            .to_numpy()
            .astype("datetime64[ns]")
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
        return int(
            np.searchsorted(
                self.times(number), np.datetime64(date.tz_convert("UTC").tz_localize(None), "ns")
            )
        )

    def complaint(self, what: str, rows: Any, row: int) -> str:
        """What to say of rows that should begin at that row of this clock, and by their own dates do not; else "".

        :param rows: a Series, or a frame with dates as its index.
        """
        own, index = getattr(rows, "clock", None), getattr(rows, "index", None)
        if (
            own is None
            and index is not None
            and type(index).__name__ == "DatetimeIndex"
            and len(index)
        ):
            times = Times.of(index[:1])
            own = times.clock(times.ticks[0], 1)
        if own is None or not (own.dates and self.dates):
            return ""
        off = (own.times(1)[0] - self.times(1, row)[0]) / np.timedelta64(1, "ns") / self.step
        if abs(off) <= 0.5:
            return ""
        return f"{what} begin at {own.show(0)}, but {self.show(row)} would follow the rows known so far. "

    def texts(self, number: int, first: int = 0) -> list[str]:
        """The times of rows to be read, as short as they may be: dates without an hour where all are at midnight."""
        index = self.index(number, first)
        if not self.dates:
            return [f"{value:g}" for value in index]
        pattern = "%Y-%m-%d" if (index == index.normalize()).all() else "%Y-%m-%d %H:%M:%S"
        texts = index.strftime(pattern).tolist()
        return (
            [text.removesuffix(":00") for text in texts]
            if all(text.endswith(":00") for text in texts)
            else texts
        )

    def show(self, row: int) -> str:
        """The time of a row, to be read."""
        value = self.index(1, row)[0]
        return str(value) if self.dates else f"{value:g}"


@dataclass(frozen=True)
class Times:
    """A column of times as it was given: ticks are numbers, or nanoseconds since 1970 (UTC) for `dates`."""

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
        if isinstance(values, pandas.PeriodIndex):
            values = values.to_timestamp()
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
        if isinstance(index, pandas.TimedeltaIndex):
            index = index / pandas.Timedelta(seconds=1)
        if not (
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
        zone = None if index.tz is None else str(index.tz)
        plain = index if index.tz is None else index.tz_convert("UTC").tz_localize(None)
        return cls(plain.to_numpy().astype("datetime64[ns]").astype("int64"), True, zone, label)

    def clock(self, start: Any, step: Any) -> Clock:
        """The clock that starts there."""
        if self.dates:
            return Clock(
                int(start),
                int(step) if step == int(step) else float(step),
                True,
                None,
                self.zone,
                self.name,
            )
        return Clock(float(start), float(step), name=self.name)

    def calendar(self) -> str | None:
        """Pandas' name of the frequency, where the times have one."""
        import pandas

        index = pandas.DatetimeIndex(self.ticks.astype("datetime64[ns]"))
        index = index if self.zone is None else index.tz_localize("UTC").tz_convert(self.zone)
        found = pandas.infer_freq(index) if len(index) > 2 else None
        return None if found is None else str(found)

    def grid(self) -> Float[np.ndarray, " T"]:
        """The times that lie between the first and the last at equal distances."""
        return np.linspace(0, self.ticks[-1] - self.ticks[0], len(self.ticks))

    def complaint(self, gaps: np.ndarray, step: float, off: np.ndarray) -> str:
        """What is wrong with the first row that is not a step after the one before."""
        wrong = np.flatnonzero((gaps <= 0) | off)
        row = (
            int(wrong[0]) + 1
            if wrong.size
            else int(np.argmax(np.abs(self.ticks - self.ticks[0] - self.grid())))
        )
        before, here, gap = self.show(row - 1), self.show(row), gaps[row - 1]
        if gap == 0:
            what = f"is {here}, as the row before"
        elif gap < 0:
            what = f"is {here}, before that of the row before, {before}"
        else:
            what = f"is {here}, {self.length(gap)} after the row before; most are {self.length(step)} apart"
        return f"the time in column {self.name!r}, row {row} (counted from 0), {what}. {REMEDY}"

    def show(self, row: int) -> str:
        """The time of a row, to be read."""
        return self.clock(self.ticks[row], 1).show(0)

    def length(self, gap: float) -> str:
        """A distance between times, to be read."""
        return f"{gap / SECOND:g} s" if self.dates else f"{gap:g}"


def read_dates(values: Any, name: str = "time") -> "pd.DatetimeIndex":
    """Text as dates. Of 01/02/2024 the month comes first if that makes the times regular, of 01.02.2024 the day."""
    import pandas

    texts = pandas.Index(values).astype(str).str.strip()
    # With summer and winter time in one column, offsets from UTC differ.
    offsets = texts.str.extract(r":\d{2}(?:\.\d+)?\s*([+-]\d{2}:?\d{2})$", expand=False).nunique()
    found = []
    for day_first in (
        (True, False) if texts.str.match(r"\d{1,2}\.\d{1,2}\.\d{4}").all() else (False, True)
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the day comes first in no date of the column
                dates = pandas.to_datetime(texts, dayfirst=day_first, utc=offsets > 1)
            found.append(pandas.DatetimeIndex(dates, name=name))
        except (ValueError, TypeError):
            continue
    if not found:
        unread = pandas.to_datetime(texts, errors="coerce", format="mixed", utc=True)
        row = int(np.flatnonzero(unread.isna())[0]) if unread.isna().any() else 0
        raise ValueError(
            f"column {name!r}, row {row} (counted from 0), is {texts[row]!r}, which is neither a number nor a date. "
            "Write dates like 2024-03-31 12:00, all in one way"
        )
    regular = (
        one for one in found if len(one) > 1 and len(set(np.diff(one.to_numpy()).tolist())) == 1
    )
    return next(regular, found[0])


def on_grid(
    values: Any,
    y: Float[np.ndarray, "N Dy"],
    u: Float[np.ndarray, "N Du"],
    name: str | None = None,
    step: Any = None,
    controls: Controls = "hold",
) -> tuple[Clock, Float[np.ndarray, "T Dy"], Float[np.ndarray, "T Du"]]:
    """Rows at any times, put on the grid from the first to the last: the clock, outputs and controls.

    Rows are sorted; each goes to the nearest point of the grid, and of several the latest counts. Where no row is near,
    outputs are NaN, and controls those of the last row before ("hold") or on the line between their neighbours
    ("interpolate").

    :param step: of the grid: a number, or text such as "10min" for dates; by default the median distance.
    """
    import pandas

    check_choice("the rule for controls", controls, ("hold", "interpolate"))
    times = Times.of(values, name)
    if not len(times.ticks) == len(y) == len(u) or not len(y):
        raise ValueError(
            f"there are {len(times.ticks)} times for {len(y)} rows of outputs and {len(u)} of controls"
        )
    order = np.argsort(times.ticks, kind="stable")
    ticks = times.ticks[order] - times.ticks[order[0]]
    if step is None:
        distances = np.diff(ticks)
        step = np.median(distances[distances > 0]) if (distances > 0).any() else 0
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
    if not (rows := ticks[-1] / max(float(step), 1e-290) + 1) < MOST * len(ticks) + 0.5:
        raise ValueError(
            f"a grid with a step of {times.length(step)} from {times.show(order[0])} to {times.show(order[-1])} has "
            f"{rows:.12g} rows for {len(ticks)} that were given: name another step, or cut the data at the long gaps"
        )
    places = np.round(ticks / float(step)).astype(int)
    length = int(places[-1]) + 1
    on_y = np.full((length, y.shape[1]), np.nan)
    on_y[places] = y[order]
    if controls == "hold":
        last = np.searchsorted(places, np.arange(length), side="right") - 1
        on_u = u[order][last]
    else:
        on_u = np.empty((length, u.shape[1]))
        at = np.append(
            np.flatnonzero(np.diff(places)), len(places) - 1
        )  # the latest row at each place
        for column in range(u.shape[1]):
            on_u[:, column] = np.interp(np.arange(length), places[at], u[order][at, column])
    return times.clock(times.ticks[order[0]], step), on_y, on_u
