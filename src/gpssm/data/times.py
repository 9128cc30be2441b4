"""Columns of times: numbers, dates, or text that can be parsed as dates."""

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.messages import warn
from gpssm.core.text import check_flag

if TYPE_CHECKING:
    import pandas as pd

SECOND = 10**9  # in nanoseconds
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
REMEDY = (
    "A model needs equally spaced rows: correct the times, or pass regrid=True (--regrid auto), "
    "which inserts missing rows with missing outputs, or ignore the times (--time none)"
)

# Patterns for names of columns of times, for dates and for times of day.
TIME = re.compile(
    r"(t|time|times?tamp|date|datetime|date.?time|seconds)"
    r"([ _]?[\[(]?(s|ms|min|h|d|sec|seconds|hours)[\])]?)?",
    re.I,
)
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{8}T")
TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}")


@dataclass(frozen=True)
class Times:
    """The times of rows, not necessarily sorted or regular.

    Parameters
    ----------
    index : pandas.Index
        Floats, or dates in nanoseconds, named after their column.
    """

    index: Any

    @classmethod
    def of(cls, values: Any, name: str | None = None) -> "Times":
        """Create times from numbers, dates or text; raise if one is missing."""
        import pandas

        label = str(name or getattr(values, "name", None) or "time")
        try:
            index: Any = pandas.Index(values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"times must be a column of numbers or dates; got {type(values).__name__} ({error})"
            ) from None
        if index.isna().any():
            row = int(np.argmax(index.isna()))
            raise ValueError(
                f"the time in column {label!r}, row {row} (counted from 0), is missing. {REMEDY}"
            )
        if isinstance(index, pandas.PeriodIndex):
            index = index.to_timestamp()
        elif isinstance(index, pandas.TimedeltaIndex):
            index = index / pandas.Timedelta(seconds=1)
        elif index.dtype.kind not in "Mbiuf":
            index = read_dates(index, label)
        if not isinstance(index, pandas.DatetimeIndex):
            return cls(pandas.Index(index.to_numpy(dtype=np.float64), name=label))
        try:
            return cls(index.as_unit("ns").rename(label))
        except pandas.errors.OutOfBoundsDatetime as error:
            raise ValueError(
                f"column {label!r} has dates outside 1677 to 2262, which are not supported "
                f"({error}): use numbers as times, such as years"
            ) from None

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.index.name

    @property
    def dates(self) -> bool:
        """Whether the times are dates."""
        return self.index.dtype.kind == "M"

    @property
    def zone(self) -> str | None:
        """The time zone of dates."""
        zone = getattr(self.index, "tz", None)
        return None if zone is None else str(zone)

    @property
    def ticks(self) -> Float[np.ndarray, " T"] | Int[np.ndarray, " T"]:
        """The numbers; nanoseconds since 1970 (UTC) for dates."""
        return self.index.asi8 if self.dates else self.index.to_numpy()

    def calendars(self) -> list[str]:
        """Return pandas names of frequencies that increasing dates may have in local time."""
        import pandas

        wall = self.index.tz_localize(None)
        names: list[Any] = []
        if len(wall) > 2:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a change in a later version
                names.append(pandas.infer_freq(wall))
        first, second = wall[:2].to_numpy().astype("datetime64[D]")
        if len(wall) > 2 and (wall.day_of_week < 5).all():
            names.append(f"{max(np.busday_count(first, second), 1)}B")
        step = int(np.median(np.diff(wall.asi8)))
        if self.zone and step:
            units = (DAY, "D"), (HOUR, "h")
            names += [f"{step // unit}{letter}" for unit, letter in units if step % unit == 0]
        return [pandas.tseries.frequencies.to_offset(name).freqstr for name in names if name]

    def complaint(self) -> str:
        """Return an error message for the first row that is not one step after the previous row, or
        "" if all rows are.
        """
        gaps = np.diff(self.ticks)
        step = float(np.median(gaps))
        # Rows out of order also leave a gap where they are missing.
        irregular = (gaps == 0) | (np.abs(gaps - step) > 2 * JITTER * step)
        wrong = np.flatnonzero(gaps < 0 if (gaps < 0).any() else irregular)
        length = self.ticks[-1] - self.ticks[0]
        deviation = np.abs(self.ticks - self.ticks[0] - np.linspace(0, length, len(self.ticks)))
        if not wrong.size and deviation.max() <= JITTER * step:
            return ""
        row = int(wrong[0]) + 1 if wrong.size else int(np.argmax(deviation))
        gap = gaps[row - 1]
        place = f"the time in column {self.name!r}, row {row} (counted from 0), is {self.show(row)}"
        set_back = ""
        if self.dates and not self.zone:
            set_back = " If clocks were set back, name the time zone, such as zone='Europe/Berlin'."
        if gap < 0:
            return (
                f"rows are out of time order: {place}, before that of the previous row, "
                f"{self.show(row - 1)}. Sort them by time.{set_back} {REMEDY}"
            )
        if gap == 0:
            return f"{place}, equal to that of the previous row.{set_back} {REMEDY}"
        if not wrong.size:
            miss = self.length(float(deviation[row]))
            return f"{place}, {miss} off a grid with steps of {self.length(step)}. {REMEDY}"
        return (
            f"{place}, {self.length(gap)} after the previous row; most steps are "
            f"{self.length(step)}. {REMEDY}"
        )

    def show(self, row: int) -> str:
        """The time of a row for people."""
        return str(self.index[row]) if self.dates else number_text(self.index[row], 1)

    def length(self, gap: float) -> str:
        """Return a distance between times as text."""
        return f"{gap / SECOND:g} s" if self.dates else f"{gap:g}"


JITTER = 0.1  # tolerated deviation of times from the grid, in steps


def number_text(value: float, step: float) -> str:
    """Return a number with enough digits to distinguish it from the next one a step away."""
    digits = 6
    if value and step:
        digits = max(6, int(np.ceil(np.log10(abs(value) / step))) + 2)
    return f"{value:.{min(digits, 15)}g}"


def short_texts(times: Any) -> list[str]:
    """Return steps or times as text, without hours or seconds if all are zero."""
    texts = [str(time) for time in times]
    for end in (":00", " 00:00"):
        if all(len(text) > 10 and text.endswith(end) for text in texts):
            texts = [text.removesuffix(end) for text in texts]
    return texts


def is_time(column: "pd.Index | pd.Series") -> bool:
    """Return whether a column contains times: dates, or numbers with a name such as time or t.

    Text counts as times if its first entry begins with a date.
    """
    from pandas.api import types

    kind: Any = column.dtype
    if types.is_numeric_dtype(kind):
        named = TIME.fullmatch(str(column.name or "").strip())
        return bool(named and column.notna().all())
    if types.is_object_dtype(kind) or types.is_string_dtype(kind):
        return _begins_with(column, DATE)
    dates = types.is_datetime64_any_dtype(kind) or types.is_timedelta64_dtype(kind)
    return bool(dates or str(kind).startswith("period"))


def is_time_of_day(column: "pd.Series") -> bool:
    """Return whether the first entry of a column begins with a time of day such as 12:30."""
    return column.dtype.kind in "OTU" and _begins_with(column, TIME_OF_DAY)


def _begins_with(column: "pd.Index | pd.Series", pattern: re.Pattern[str]) -> bool:
    cells = (str(cell).strip() for cell in column if cell is not None and cell == cell)
    return bool(pattern.match(next(cells, "")))


def join_date_and_time(date: "pd.Series", time: "pd.Series") -> "pd.Series":
    """Join a column of dates and a column of times of day as text."""
    days = date.astype(str).str.replace(r"[ T]00:00(:00)?$", "", regex=True)
    return (days + " " + time.astype(str).str.strip()).rename(date.name)


def localised(times: Any, dayfirst: bool | None = None, zone: str | None = None) -> Any:
    """Parse dates, and localise those without a time zone.

    Parameters
    ----------
    times
        Dates, or text that can be parsed as dates.
    dayfirst
        See `read_dates`.
    zone
        Name of a time zone. Ambiguous hours are resolved by the order of the rows.
    """
    import pandas

    if dayfirst is not None:
        check_flag("dayfirst", dayfirst)
    index: Any = pandas.Index(times)
    if pandas.api.types.is_numeric_dtype(index):
        raise ValueError(
            "dayfirst and zone apply to dates, but the times are numbers: leave them out"
        )
    try:
        pandas.Timestamp("2024-01-01", tz=zone)
    except Exception as error:  # of many types
        raise ValueError(
            f"zone is the name of a time zone, like 'Europe/Berlin'; got {zone!r} ({error})"
        ) from None
    if not isinstance(index, pandas.DatetimeIndex):
        index = read_dates(index, str(index.name or "time"), dayfirst)
    if zone is None or index.tz is not None:
        return index
    settings: Any = {"nonexistent": "shift_forward"}
    try:
        return index.tz_localize(zone, ambiguous="infer", **settings)
    except ValueError:  # the order of the rows does not resolve it
        return index.tz_localize(zone, ambiguous=np.ones(len(index), bool), **settings)


def read_dates(values: Any, name: str = "time", dayfirst: bool | None = None) -> "pd.DatetimeIndex":
    """Parse text as dates, with the same format for all.

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
    # With summer and winter time in one column, offsets from UTC at the end of dates differ.
    offset = r":\d{2}(?:\.\d+)?\s*([+-]\d{2}:?\d{2})$"
    in_utc = texts.str.extract(offset, expand=False).nunique() > 1
    unclear = dayfirst is None and texts.str.match(r"\d{1,2}([./-]\d{1,2}){2}").all()
    readings = {}
    by_year = texts.str.match(r"\d{4}").any()
    for first in (False, True) if unclear else (bool(dayfirst) and not by_year,):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the day comes first in no date of the column
            dates: Any = pandas.to_datetime(texts, dayfirst=first, utc=in_utc, errors="coerce")
        readings[first] = pandas.DatetimeIndex(dates, name=name)
    unread = {
        first: int(dates.isna().argmax()) for first, dates in readings.items() if dates.hasnans
    }
    if len(unread) == len(readings):
        row = max(unread.values())
        raise ValueError(
            f"column {name!r}, row {row} (counted from 0), is {texts[row]!r}, which is neither a "
            f"number nor a date like that of row 0, {texts[0]!r}. Write all dates in one format, "
            "such as 2024-03-31 12:00"
        )
    readings = {first: dates for first, dates in readings.items() if first not in unread}
    if len(readings) == 1 or readings[False].equals(readings[True]):
        return next(iter(readings.values()))
    regular = [dates for dates in readings.values() if _is_regular(dates)]
    if len(regular) == 1:
        return regular[0]
    if texts.str.match(r"\d{1,2}\.\d{1,2}\.\d{4}").all():
        return readings[True]
    month, day = (f"{readings[first][-1]:%d %B %Y}" for first in (False, True))
    warn(
        f"column {name!r} ends with {texts[-1]!r}, which was read with the month before the day, "
        f"as {month}; with the day first it would be {day}. Pass dayfirst=True or dayfirst=False "
        "to avoid this warning"
    )
    return readings[False]


def _is_regular(dates: "pd.DatetimeIndex") -> bool:
    """Whether distances are alike, as those of months are, or follow a calendar."""
    import pandas

    gaps = np.diff(dates.asi8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alike = len(gaps) > 0 and 0 < gaps.max() < 1.5 * gaps.min()
        return alike or (len(gaps) > 1 and pandas.infer_freq(dates) is not None)
