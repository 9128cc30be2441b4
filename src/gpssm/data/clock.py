"""The times of the rows of a series: a regular grid of numbers or dates.

    time of row t = start + t · step

A transition is learned for one step, so that rows must be equally spaced. `Clock.of` determines the
grid of a column of times, or raises an error that names the first row off the grid.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.messages import warn
from gpssm.core.text import check_choice, is_real
from gpssm.data.times import (
    DAY,
    HOUR,
    JITTER,
    MINUTE,
    SECOND,
    Times,
    is_time,
    number_text,
    short_texts,
)

FillRule = Literal["hold", "interpolate"]  # rule for the inputs of missing rows


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
        The pandas name of a frequency whose steps differ in length, such as "MS" for months.
    zone : str, optional
        The time zone in which dates are shown.
    name : str, optional
        The name of the column of times; None if times follow from a sampling time.
    """

    start: float | int
    step: float | int
    dates: bool = False
    calendar: str | None = None
    zone: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, values: Any, name: str | None = None) -> "Clock | None":
        """Return the clock of a column of times, or None for a single row, which has no step.

        Times may deviate from the grid by a tenth of a step. Gaps, repeated times and times out of
        order are errors.
        """
        times = Times.of(values, name)
        ticks = times.ticks
        if len(ticks) < 2:
            return None
        gaps = np.diff(ticks)
        step = np.median(gaps)
        # Days in a time zone differ in length, even if these do not.
        if (gaps == step).all() and step > 0 and not (times.zone and step % DAY == 0):
            return cls.starting(times, step)
        if times.dates and (gaps > 0).all():
            wall = times.index.tz_localize(None)
            for calendar in times.calendars():
                clock = replace(cls.starting(times, np.mean(gaps)), calendar=calendar)
                # For an ambiguous hour either reading works: a day later the hour is unique.
                if clock.index(len(ticks)).tz_localize(None).equals(wall):
                    return clock
        if complaint := times.complaint():
            raise ValueError(complaint)
        return cls.starting(times, (ticks[-1] - ticks[0]) / len(gaps))

    @classmethod
    def starting(cls, times: Times, step: Any) -> "Clock":
        """Return the clock that starts at the first of the times."""
        number = round if times.dates else float
        start = number(times.ticks[0])
        return cls(start, number(step), times.dates, None, times.zone, times.name)

    @property
    def dt(self) -> float:
        """The step as a number, in seconds for dates."""
        return self.step / SECOND if self.dates else self.step

    def shifted(self, rows: int) -> "Clock":
        """Return the clock of a series that starts `rows` rows later."""
        start = self.times(1, rows).astype("int64" if self.dates else "float64")
        return replace(self, start=start.item())

    def every(self, rows: int) -> "Clock":
        """Return the clock of the last row of each block of `rows` rows."""
        calendar = self.calendar and (rows * self._offset).freqstr
        return replace(self.shifted(rows - 1), step=self.step * rows, calendar=calendar)

    def times(self, number: int, first: int = 0) -> np.ndarray:
        """Return the times of `number` rows from row `first` on: float64, or datetime64[ns] in
        UTC.
        """
        index = self.index(number, first)
        return index.as_unit("ns").asi8.astype("datetime64[ns]") if self.dates else index.to_numpy()

    def index(self, number: int, first: int = 0) -> Any:
        """Return the times as a pandas index, with dates in their time zone."""
        import pandas

        name = self.name or "time"
        if not self.dates:
            ticks = self.start + self.step * np.arange(first, first + number)
            # Round 3 · 0.1 to 0.3: a float has 15 significant digits.
            largest = np.abs(ticks).max(initial=self.step)
            digits = int(np.clip(14 - np.floor(np.log10(largest)), 0, 300))
            return pandas.Index(np.round(ticks, digits), name=name)
        begin = pandas.Timestamp(self.start, tz="UTC")
        if self.calendar:  # counts in local time
            begin = begin.tz_convert(self.zone).tz_localize(None)
        try:
            start = begin + first * self._offset if first else begin
            dates = pandas.date_range(start, periods=number, freq=self._offset, name=name)
        except (pandas.errors.OutOfBoundsDatetime, OverflowError):
            raise ValueError(
                f"dates must not exceed 2262; {first + number} rows after {begin} exceed this limit"
            ) from None
        if not self.calendar:
            return dates.tz_convert(self.zone)
        # An hour that is skipped becomes the next one; an ambiguous hour is the first one.
        return dates.tz_localize(
            self.zone, ambiguous=np.ones(number, bool), nonexistent="shift_forward"
        )

    @property
    def _offset(self) -> Any:
        import pandas

        return pandas.tseries.frequencies.to_offset(self.calendar or f"{self.step}ns")

    def rows_before(self, time: Any, number: int) -> int:
        """Return how many of `number` rows are before a date."""
        import pandas

        if not self.dates:
            raise ValueError(
                f"the times of the rows are numbers, so they cannot be split at {time!r}: pass a "
                "row number"
            )
        try:
            date: Any = pandas.Timestamp(time).as_unit("ns")
        except ValueError:
            raise ValueError(
                f"{time!r} is not a date: write it like 2024-03-31 or 2024-03-31 12:00"
            ) from None
        if date.tzinfo is None:
            date = date.tz_localize(self.zone or "UTC")
        return int(np.searchsorted(self.times(number), date.tz_convert(None).to_datetime64()))

    def check_step(self, other: "Clock | None", rows: int) -> None:
        """Raise if `rows` rows of another clock do not have the step of this one."""
        if other is None or rows < 2:
            return
        if self.calendar and other.dates:
            expected = replace(self, start=other.start).times(rows)
            agrees = bool((expected == other.times(rows)).all())
        else:
            # Rounded times of a few rows determine the step only roughly, and months differ in
            # length.
            tolerance = JITTER if self.calendar else max(1e-3, 2 * JITTER / (rows - 1))
            agrees = abs(other.dt - self.dt) <= tolerance * self.dt
        if not agrees:
            raise ValueError(
                f"the rows are {other.step_text()} apart, but those of the training data "
                f"{self.step_text()}: use resample or decimated, or correct dt or the times"
            )

    def step_text(self) -> str:
        """Return the step as text, such as "0.1", "600 s" or "1 MS"."""
        return self.calendar or f"{self.dt:g}{' s' if self.dates else ''}"

    def complaint(self, what: str, rows: Any, row: int) -> str:
        """Return a warning if `rows` should start at a row of this clock and do not; otherwise "".

        Parameters
        ----------
        what
            Name of the rows, at the start of the sentence.
        rows
            A Series, or a DataFrame indexed by dates.
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
            f"{what} begin at {other.show(0)}, but {self.show(row)} would follow the known rows. "
        )

    def texts(self, number: int, first: int = 0) -> list[str]:
        """Return the times of rows as text, without hours or seconds if all are zero."""
        index = self.index(number, first)
        if self.dates:
            return short_texts(index.tz_localize(None))
        return [number_text(value, self.step) for value in index]

    def show(self, row: int) -> str:
        """Return the time of a row as text."""
        time = self.index(1, row)[0]
        return str(time) if self.dates else number_text(time, self.step)


def clock_of(values: Any) -> Clock | None:
    """Return the clock of a series, or of data indexed by times; None for other data.

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


def on_grid(
    values: Any,
    y: Float[np.ndarray, "N Dy"],
    u: Float[np.ndarray, "N Du"],
    step: Any = None,
    fill_inputs: FillRule = "hold",
) -> tuple[Clock, Float[np.ndarray, "T Dy"], Float[np.ndarray, "T Du"]]:
    """Move rows at any times to a regular grid; return its clock, outputs and inputs.

    Each row moves to the nearest point of the grid, and rows at the same point are averaged. At
    points without a row, outputs are NaN, and inputs are held or interpolated.

    Parameters
    ----------
    values
        The time of each row, in any order.
    y, u
        Outputs and inputs.
    step
        Step of the grid: a number, or text such as "10min" for dates; by default the most common
        distance between rows.
    fill_inputs
        The rule for inputs of missing rows: "hold" or "interpolate".
    """
    import pandas

    check_choice("fill_inputs", fill_inputs, ("hold", "interpolate"))
    times = Times.of(values)
    if not len(y):
        raise ValueError("there are no rows to put on a grid")
    order = np.argsort(times.ticks, kind="stable")
    times = Times(times.index[order])
    ticks = times.ticks - times.ticks[0]
    calendar = _calendar_grid(times) if step is None and times.dates else None
    step = _checked_step(times, ticks, step)
    clock = Clock.starting(times, step)
    points = np.round(ticks / float(step)).astype(int)
    if calendar is not None:
        clock, points = calendar
    means: Any = pandas.DataFrame(np.hstack([y, u])[order]).groupby(points).mean()
    if len(means) < len(points):
        repeated = int(np.argmin(np.diff(points))) + 1
        message = (
            f"Rows at the same grid point were averaged: {len(points)} rows fell on {len(means)} "
            f"points, the first at {times.show(repeated)}"
        )
        if times.dates and not times.zone:
            message += ". If clocks were set back, name the time zone, such as zone='Europe/Berlin'"
        warn(message)
    grid = np.arange(points[-1] + 1)
    outputs = means.iloc[:, : y.shape[1]]
    inputs = means.iloc[:, y.shape[1] :]
    if fill_inputs == "hold":
        on_u = inputs.reindex(grid, method="ffill").to_numpy()
    else:
        columns = [np.interp(grid, means.index, inputs[name]) for name in inputs]
        on_u = np.reshape(columns, (u.shape[1], len(grid))).T
    return clock, outputs.reindex(grid).to_numpy(), on_u


MONTH = 30.44 * DAY  # mean length


def _calendar_grid(times: Times) -> tuple[Clock, Int[np.ndarray, " N"]] | None:
    """Return the clock of which sorted dates are some rows, and their row numbers, for months and
    for days in a time zone, whose lengths differ; None if there is no such clock.
    """
    import pandas

    gaps = np.diff(times.ticks)
    if not (gaps > 0).any():
        return None
    for unit, length in (("MS", MONTH), ("ME", MONTH), *([("D", DAY)] if times.zone else [])):
        number = round(np.median(gaps[gaps > 0]) / length)
        if number < 1:
            continue
        name = pandas.tseries.frequencies.to_offset(f"{number}{unit}").freqstr
        clock = replace(Clock.starting(times, number * length), calendar=name)
        rows = round((times.ticks[-1] - times.ticks[0]) / clock.step) + 2
        index = clock.index(rows)
        points = index.get_indexer(times.index) if index.is_unique else np.array([-1])
        if (points >= 0).all():
            return clock, points
    return None


def _checked_step(times: Times, ticks: np.ndarray, step: Any) -> float:
    """Return the step of the grid, by default that of sorted times; raise if there are too many
    rows.
    """
    import pandas

    if step is None:
        step = _typical_step(ticks, times.dates)
    elif not times.dates and isinstance(step, str):
        raise ValueError(f"the times are numbers, so regrid must be a number; got {step!r}")
    elif times.dates:
        try:
            step = pandas.Timedelta(step if isinstance(step, str) else f"{step}s").value
        except ValueError as error:
            raise ValueError(
                f"regrid={step!r} is not a time step such as '10min': {error}"
            ) from None
    if not is_real(step) or not 0 < step < 1e300:
        raise ValueError(f"regrid needs different times and a positive step; got {step!r}")
    # The step may be so small that the number of rows overflows.
    rows = ticks[-1] / max(float(step), 1e-290) + 1
    if not rows < 20 * len(ticks) + 0.5:
        raise ValueError(
            f"a grid with a step of {times.length(step)} from {times.show(0)} to {times.show(-1)} "
            f"would have {rows:.12g} rows for {len(ticks)} in the data: pass another step, or "
            "split the data at the long gaps"
        )
    return step


def _typical_step(ticks: np.ndarray, dates: bool) -> float:
    """Return the step of sorted times with jitter and gaps.

    It is the median distance, or the slope of the times over the row numbers estimated from it,
    rounded to the simplest value that keeps all rows in place.
    """
    ticks = np.unique(ticks)
    gaps = np.diff(ticks)
    gaps = gaps[gaps > 0]
    if not gaps.size:
        return 0.0
    median = float(np.median(gaps))
    rows = np.concatenate([[0], np.cumsum(np.round(np.diff(ticks) / median))])
    if (gaps == median).all() or not rows[-1]:
        return median
    slope = np.polyfit(rows, ticks, 1)[0]
    unit = SECOND if dates else 1
    # Distances that are equal but for gaps need no rounding: 86000 s is not simpler than a day.
    steps = [median] if np.isclose(gaps, median, rtol=1e-9).mean() > 0.5 else []
    if dates:
        steps += [round(slope / length) * length for length in (DAY, HOUR, MINUTE)]
    steps += [float(f"{slope / unit:.{digits}g}") * unit for digits in (1, 2, 3)]
    in_place = (step for step in steps if abs(step - slope) * rows[-1] < 0.25 * slope)
    return float(next(in_place, slope))
