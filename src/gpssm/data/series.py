"""An observed time series: outputs y, inputs u, and their names, units and times.

Time: `u[t]` drives `states[t] → states[t+1]` and `states[t+1]` emits `y[t]`, so y and u have T rows
each. NaN in y marks missing entries; inputs must not be missing.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float

from gpssm.core.table import card
from gpssm.core.text import as_tuple, count, is_real, is_whole
from gpssm.data.clock import Clock, FillRule, clock_of, on_grid
from gpssm.data.columns import align_columns, as_frame, default_names, to_columns, where_first
from gpssm.data.times import is_time, is_time_of_day, join_date_and_time, localised

if TYPE_CHECKING:
    import pandas as pd

S = TypeVar("S", bound="Series")
# A column with less variation, relative to its size, contains only rounding errors.
RELATIVE_SPREAD = 1e-12
FEWEST_ROWS = 10  # of each series to train on


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Series:
    """Outputs y (T, Dy) and inputs u (T, Du) with names, units and times; Du may be 0.

        series = Series(frame[["level"]], frame[["pump", "valve"]], name="tank", dt=0.1)
        train, test = series.split(0.5)

    Values are stored as read-only float64 arrays. Slices, splits and forecasts keep the times. For
    JAX, a Series is a pytree of the two leaves (y, u). The names are deliberately not part of its
    structure, so that equal shapes never compile twice; results of `jit` or `tree.map` have default
    names.

    Parameters
    ----------
    y, u
        Arrays, lists, or objects of pandas or xarray, whose column names are kept. One-dimensional
        data are a single column.
    name
        Name of the series.
    dt
        The sampling time, if there are no times; in seconds if rows have dates.
    outputs, inputs
        Names of the columns.
    window
        Number of first rows from which a model may determine its initial state.
    time
        A column of equally spaced numbers or dates, one per row; by default the index of y or u if
        it contains times.
    clock
        The times as a `Clock`.
    units
        Units of columns by name, for axes and tables.
    """

    y: Float[np.ndarray, "T Dy"]
    u: Float[np.ndarray, "T Du"]
    name: str | None
    dt: float | None
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    window: int | None
    clock: Clock | None
    units: Mapping[str, str]

    def __init__(
        self,
        y: Any,
        u: Any = None,
        *,
        name: str | None = None,
        dt: float | None = None,
        outputs: Sequence[str] | str | None = None,
        inputs: Sequence[str] | str | None = None,
        window: int | None = None,
        time: Any = None,
        clock: Clock | None = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        y_values, outputs = to_columns(y, outputs, "y")
        u_values, inputs = to_columns(np.zeros((len(y_values), 0)) if u is None else u, inputs, "u")
        _check_values(y_values, outputs, u_values, inputs)
        if dt is not None and not (is_real(dt) and 0 < dt <= sys.float_info.max):
            raise ValueError(f"dt, the sampling time, must be positive and finite; got {dt!r}")
        if window is not None and not (is_real(window) and window >= 0 and window % 1 == 0):
            raise ValueError(f"window must be a number of rows, 0 or more; got {window!r}")
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"name must be text or None; got {name!r}")
        clock = _clock(y, u, time, len(y_values)) if clock is None else clock
        if clock is not None and dt is not None and not math.isclose(dt, clock.dt, rel_tol=1e-3):
            unit = " s" if clock.dates else ""
            raise ValueError(
                f"the rows are {clock.dt:g}{unit} apart according to their times, but "
                f"dt={float(dt):g}: leave out one of them"
            )
        _set(
            self,
            y=y_values,
            u=u_values,
            name=name,
            dt=clock.dt if clock is not None else dt and float(dt),
            outputs=outputs,
            inputs=inputs,
            window=None if window is None else int(window),
            clock=clock,
            units=_checked_units({} if units is None else units, (*outputs, *inputs)),
        )

    @property
    def output_dim(self) -> int:
        """Number of outputs Dy."""
        return self.y.shape[-1]

    @property
    def input_dim(self) -> int:
        """Number of inputs Du; may be 0."""
        return self.u.shape[-1]

    @property
    def axis(self) -> Clock | None:
        """The clock, or a clock that counts rows by `dt`; None if neither is known."""
        return self.clock or (None if self.dt is None else Clock(0.0, self.dt))

    @property
    def time(self) -> np.ndarray:
        """The time of each row (T,): dates (datetime64[ns], UTC), numbers, or row numbers."""
        return np.arange(len(self)) if self.axis is None else self.axis.times(len(self))

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        outputs: Sequence[str] | str,
        inputs: Sequence[str] | str = (),
        *,
        time: str | Sequence[str] | None = "auto",
        regrid: bool | float | str = False,
        fill_inputs: FillRule = "hold",
        dayfirst: bool | None = None,
        zone: str | None = None,
        **settings: Any,
    ) -> "Series":
        """Create a series from columns of a table, with times from a column or the index.

            Series.from_dataframe(frame, outputs=["level"], inputs=["pump"], units={"level": "m"})

        Parameters
        ----------
        frame
            A DataFrame of pandas or polars, or a Dataset of xarray.
        outputs, inputs
            Names of the columns.
        time
            The column of times, or the two columns of the date and the time of day. "auto" uses the
            index if it contains dates, or numbers under a name such as time or t; otherwise the
            first other column that does. None ignores times.
        regrid
            Whether to move rows to the nearest point of a regular grid, with missing outputs where
            there is no row. A number of seconds (or of the unit of `time`), or text such as
            "10min", sets the step of the grid.
        fill_inputs
            How to fill inputs in missing rows: "hold" or "interpolate".
        dayfirst
            Whether dates such as 01/02/2024 begin with the day.
        zone
            The time zone of dates that have none, such as "Europe/Berlin".
        **settings
            Other parameters of `Series`: name, dt, window, units.
        """
        table = as_frame(frame)
        if table is None:
            raise TypeError(
                "frame must be a DataFrame of pandas or polars, or a Dataset of xarray; "
                f"got {type(frame).__module__}.{type(frame).__name__}"
            )
        outputs = as_tuple(outputs)
        inputs = as_tuple(inputs)
        if not isinstance(regrid, bool | str) and not is_real(regrid):
            raise TypeError(
                f"regrid must be True, False, a number, or text such as '10min'; got {regrid!r}"
            )
        times = _times_of(table, (*outputs, *inputs), time)
        if times is None and regrid:
            if type(table.index).__name__ == "RangeIndex":
                raise ValueError(
                    "regrid needs a column of times, but none was found: name it by time (--time)"
                )
            times = table.index
        if times is not None and (dayfirst is not None or zone is not None):
            times = localised(times, dayfirst, zone)
        table = table.reset_index(drop=True)
        y, _ = to_columns(table[list(outputs)], outputs, "y")
        u, _ = to_columns(table[list(inputs)], inputs, "u")
        if not regrid:
            return cls(y, u, time=times, outputs=outputs, inputs=inputs, **settings)
        clock, y, u = on_grid(times, y, u, None if regrid is True else regrid, fill_inputs)
        return cls(y, u, clock=clock, outputs=outputs, inputs=inputs, **settings)

    def to_dataframe(self) -> "pd.DataFrame":
        """Return a pandas DataFrame of outputs and inputs, indexed by time or row number."""
        import pandas

        rows = pandas.RangeIndex(len(self), name="row")
        index = rows if self.axis is None else self.axis.index(len(self))
        names = [*self.outputs, *self.inputs]
        return pandas.DataFrame(np.hstack([self.y, self.u]), index=index, columns=names)

    def describe(self) -> "pd.DataFrame":
        """Return a table with one row per signal: role, unit, mean, std, min, max, missing
        values."""
        import pandas

        frame = self.to_dataframe()
        return pandas.DataFrame(
            {
                "role": ["output"] * self.output_dim + ["input"] * self.input_dim,
                "unit": [self.units.get(name, "") for name in frame.columns],
                "mean": frame.mean(),
                "std": frame.std(ddof=0),
                "min": frame.min(),
                "max": frame.max(),
                "missing": frame.isna().sum(),
            }
        )

    def plot(self, train: Any = None) -> Any:
        """Plot outputs and inputs over time; see `gpssm.plots.plot_series`."""
        from gpssm.plots.forecasts import plot_series

        return plot_series(self, train)

    def __len__(self) -> int:
        return self.y.shape[0]

    def __getitem__(self, rows: slice) -> "Series":
        if not isinstance(rows, slice):
            raise TypeError(
                f"a Series supports slices, series[a:b]; got {rows!r}. For a single row use "
                "series.y[t]"
            )
        if rows.step not in (None, 1):
            raise ValueError(
                "a slice of a Series must not have a step, because the sampling time is "
                f"fixed; got {rows.step!r}"
            )
        clock = self.axis and self.axis.shifted(rows.indices(len(self))[0])
        return replace(self, y=self.y[rows], u=self.u[rows], clock=clock)

    def split(self, at: Any) -> tuple["Series", "Series"]:
        """Split into the rows before `at` and the rest; neither may be empty.

        Parameters
        ----------
        at
            A row number; a fraction of the length, rounded down; or, if rows have dates, a date
            such as "2024-03-31 12:00".
        """
        axis = self.axis
        last = len(self) - 1
        if is_whole(at):
            cut = int(at)
        elif is_real(at):
            # The margin keeps 0.29 · 100 from falling to 28.
            cut = math.floor(at * len(self) + 1e-9) if 0 < at < 1 else 0
        elif axis is None:
            raise ValueError(
                f"split at {at!r} needs rows with dates, but there are none: pass a row number or "
                "a fraction"
            )
        else:
            cut = axis.rows_before(at, len(self))
        if not 0 < cut <= last:
            between = ""
            if axis is not None and axis.dates:
                between = f", or a date after {axis.show(0)} up to {axis.show(last)}"
            raise ValueError(
                f"split(at) needs an index from 1 to {last}, or a fraction between 0 and 1, such "
                f"that both parts have rows{between}; got {at!r} for {len(self)} rows"
            )
        return self[:cut], self[cut:]

    def decimated(self, every: int) -> "Series":
        """Return the last output of each block of `every` rows, and the mean of its inputs.

        Outputs are thus measured values, and inputs are averaged over the time between them. Rows
        at the end that do not fill a block are dropped. `window` becomes the number of blocks that
        lie within it, at least one.
        """
        if not (is_real(every) and 1 <= every <= len(self) and every % 1 == 0):
            raise ValueError(
                f"every must be a whole number from 1 to the {len(self)} rows; got {every!r}"
            )
        every = int(every)
        blocks = len(self) // every
        u = self.u[: blocks * every].reshape(blocks, every, self.input_dim).mean(axis=1)
        clock = self.axis and self.axis.every(every)
        window = self.window and max(self.window // every, 1)
        return replace(self, y=self.y[every - 1 :: every], u=u, dt=None, clock=clock, window=window)

    @staticmethod
    def of(
        data: Any,
        u: Any = None,
        outputs: Sequence[str] | str | None = None,
        inputs: Sequence[str] | str | None = None,
    ) -> "Series | list[Series]":
        """Create a series from any supported data; a list or tuple of such data gives a list.

            Series.of(y, u)
            Series.of(frame, outputs=["level"], inputs=["pump"])
            Series.of([first, second])

        Parameters
        ----------
        data
            A Series; outputs as an array; a DataFrame of pandas or polars or a Dataset of xarray,
            with columns named by `outputs` and `inputs`; or an object with attributes `u` and `y`,
            such as those of `nonlinear_benchmarks`, whose `sampling_time` and
            `state_initialization_window_length` become `dt` and `window`.
        u
            Inputs, if the outputs are an array.
        outputs, inputs
            Column names of a table, or names for the columns of arrays.
        """
        if type(data) in (list, tuple) and (not data or any(map(_holds_series, data))):
            return [_single(item, u, outputs, inputs) for item in data]
        return _single(data, u, outputs, inputs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Series):
            return NotImplemented
        names = ("name", "axis", "outputs", "inputs", "window")
        return (
            np.array_equal(self.y, other.y, equal_nan=True)
            and np.array_equal(self.u, other.u)
            and all(getattr(self, name) == getattr(other, name) for name in names)
            and dict(self.units) == dict(other.units)
        )

    def __repr__(self) -> str:
        facts = [] if self.name is None else [repr(self.name)]
        rows = (getattr(self.y, "shape", None) or "?")[0]
        facts += [f"T={rows}", f"outputs={self.outputs}", f"inputs={self.inputs}"]
        settings = {"dt": self.dt, "window": self.window}
        facts += [f"{name}={value}" for name, value in settings.items() if value is not None]
        clock = self.clock
        if clock is not None and clock.name is not None and isinstance(rows, int):
            facts.append(f"{clock.name} from {clock.show(0)} to {clock.show(rows - 1)}")
        if isinstance(self.y, np.ndarray) and (missing := int(np.isnan(self.y).sum())):
            facts.append(f"missing={missing}")
        return f"Series({', '.join(facts)})"

    def _repr_html_(self) -> str:
        facts = {"rows": len(self)} | ({} if self.dt is None else {"sampling time": self.dt})
        return card(f"Series {self.name or ''}".strip(), facts, {"": self.describe()})


def as_list(
    data: Any,
    u: Any = None,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
) -> list[Series]:
    """Return data for `Series.of` as a non-empty list, with the columns, units and step of the
    first."""
    series = Series.of(data, u, outputs, inputs)
    if isinstance(series, Series):
        return [series]
    if not series:
        raise ValueError("at least one series is needed; got an empty list")
    experiments = series[:1]
    for number, other in enumerate(series[1:], start=1):
        try:
            experiments.append(align_rows(other, series[0]))
        except ValueError as error:
            raise ValueError(f"series {number} is not compatible with series 0: {error}") from None
    return experiments


def align_rows(rows: Any, like: Series) -> Series:
    """Return rows of one experiment with the columns and units of another.

    Columns are matched by name, or by position if they have no names. Units and sampling times must
    agree if both experiments have them.

    Parameters
    ----------
    rows
        One experiment, as accepted by `Series.of`; from a table, the columns of `like` are used.
    like
        The other experiment.
    """
    is_table = as_frame(rows) is not None
    series = Series.of(rows, None, *((like.outputs, like.inputs) if is_table else ()))
    if isinstance(series, list):
        raise TypeError(
            f"pass new data one series at a time; got a list of {len(series)}. Call the "
            "function once for each"
        )
    for name, unit in series.units.items():
        if like.units.get(name, unit) != unit:
            raise ValueError(
                f"{name!r} is in {unit}, but in {like.units[name]} before: convert one of them "
                "first"
            )
    if like.axis is not None:
        like.axis.check_step(series.axis, len(series))
    if (series.outputs, series.inputs, series.units) == (like.outputs, like.inputs, like.units):
        return series
    y = align_columns(series, like.outputs, "y")
    u = align_columns(series, like.inputs, "u")
    names = (*like.outputs, *like.inputs)
    units = {name: unit for name, unit in series.units.items() if name in names} | dict(like.units)
    return replace(series, y=y, u=u, outputs=like.outputs, inputs=like.inputs, units=units)


def _times_of(table: "pd.DataFrame", chosen: Sequence[str], time: Any) -> Any:
    """Return the times of the rows of a table by the rules of `from_dataframe`, or None.

    "auto" uses the index if it contains times, otherwise the first such column that is neither
    output nor input, joined with the first column of times of the day, if there is one.
    """
    auto = isinstance(time, str) and time == "auto"
    columns = () if time is None or auto else as_tuple(time)
    texts = all(isinstance(name, str) for name in (*chosen, *columns))
    if not texts or len(columns) > 2 or not (time is None or auto or columns):
        raise TypeError(
            "columns are given by their names, and time by one name, two names, 'auto', or None; "
            f"got {[*chosen]} and time={time!r}"
        )
    present = {*table.columns, table.index.name}
    if missing := [name for name in (*chosen, *columns) if name not in present]:
        raise ValueError(
            f"the frame has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(str, table.columns))}"
        )
    parts: list[Any] = [table[n] if n in table.columns else table.index for n in columns]
    if auto and table.index.nlevels == 1 and is_time(table.index):
        return table.index
    if auto:
        others: list[Any] = [table[name] for name in table.columns if name not in chosen]
        parts = list(filter(is_time, others))[:1]
        if parts and parts[0].dtype.kind not in "fiu":
            parts += list(filter(is_time_of_day, others))[:1]
    return join_date_and_time(*parts) if len(parts) == 2 else next(iter(parts), None)


def check_trainable(experiments: Sequence[Series]) -> None:
    """Raise if series are too short to train on, or if an output never varies.

    With several series, an output may be constant or missing in some of them, but not in all.
    Forecasting does not need this, so the constructor of Series does not check it.
    """
    for index, rows in enumerate(experiments):
        if len(rows) < FEWEST_ROWS:
            label = repr(rows.name) if rows.name else f"number {index}"
            raise ValueError(
                f"training needs at least {FEWEST_ROWS} rows; series {label} has {len(rows)}"
            )
    y = np.concatenate([rows.y for rows in experiments])
    for name, column, varies in zip(experiments[0].outputs, y.T, varying(y), strict=True):
        if np.isnan(column).all():
            raise ValueError(
                f"output {name!r} is missing in every row: leave it out, or pass its values"
            )
        if not varies:
            raise ValueError(f"output {name!r} is constant, {np.nanmax(column):g}: leave it out")


class Outliers(NamedTuple):
    """Values of a column that are far from all others, and what to do about them."""

    column: str
    figure: str
    advice: str

    @property
    def sentence(self) -> str:
        """One line for a warning."""
        return f"{self.column}: {self.figure}. {self.advice}"


def find_outliers(rows: Series) -> Iterator[Outliers]:
    """Find values that are probably errors or markers of missing values, such as -9999.

    Their distance from the median is more than 20 times the range of the middle 90 % of the values.
    """
    columns = np.hstack([rows.y, rows.u]).T
    for name, values in zip(rows.outputs + rows.inputs, columns, strict=True):
        observed = values[~np.isnan(values)]
        if not observed.size:
            continue
        low, middle, high = np.quantile(observed, [0.05, 0.5, 0.95])
        is_far = np.abs(observed - middle) > 20 * (high - low)
        if high > low and is_far.any():
            marks, counts = np.unique(observed[is_far], return_counts=True)
            mark = f"{marks[np.argmax(counts)]:g}"
            yield Outliers(
                name,
                f"{count(int(is_far.sum()), 'value')} like {mark} are far from all others, which "
                f"range from {low:.4g} to {high:.4g}",
                f"If they mark missing values, replace them by NaN, or pass na={mark} "
                f"(--na {mark}) with the file.",
            )


def varying(rows: Float[np.ndarray, "T D"]) -> Bool[np.ndarray, " D"]:
    """Return which columns vary by more than rounding errors; NaN entries are ignored.

    A column varies if max − min > RELATIVE_SPREAD · max |x|; a column of only NaN does not.
    """
    highest = np.max(rows, axis=0, where=~np.isnan(rows), initial=-np.inf)
    lowest = np.min(rows, axis=0, where=~np.isnan(rows), initial=np.inf)
    return highest - lowest > RELATIVE_SPREAD * np.maximum(np.abs(highest), np.abs(lowest))


def _holds_series(thing: Any) -> bool:
    return as_frame(thing) is not None or (hasattr(thing, "y") and hasattr(thing, "u"))


def _single(data: Any, u: Any, outputs: Any, inputs: Any) -> Series:
    """Return the single series for data that are not a list."""
    table = as_frame(data)
    if table is not None and outputs is None:
        raise ValueError(
            "name the outputs of the frame: gpssm.Series.from_dataframe(frame, outputs=[...], "
            f"inputs=[...]); it has {', '.join(map(str, table.columns))}"
        )
    if table is not None and u is not None:
        raise ValueError("the inputs of a frame are named by inputs=[...]; u is for arrays")
    if table is not None:
        return Series.from_dataframe(table, outputs, () if inputs is None else inputs)
    if data is None or isinstance(data, str):
        raise TypeError(f"expected a Series, an array or a DataFrame; got {data!r}")
    if not _holds_series(data):
        return Series(data, u, outputs=outputs, inputs=inputs)
    if not (u is None and outputs is None and inputs is None):
        raise ValueError(
            "outputs, inputs and u apply to arrays and frames only: leave them out for a Series"
        )
    if isinstance(data, Series):
        return data
    return Series(
        data.y,
        data.u,
        name=getattr(data, "name", None) or None,
        dt=getattr(data, "sampling_time", None),
        window=getattr(data, "state_initialization_window_length", None),
    )


def _check_values(
    y: np.ndarray, outputs: tuple[str, ...], u: np.ndarray, inputs: tuple[str, ...]
) -> None:
    """Raise for values that no model can use; NaN in y is missing, NaN in u is an error."""
    if y.size == 0:
        raise ValueError(f"y must have at least one row and one column; got shape {y.shape}")
    if len(y) != len(u):
        raise ValueError(
            f"y and u must have one row per time step; got {len(y)} rows of y, {len(u)} of u"
        )
    if np.isinf(y).any():
        raise ValueError(
            f"{where_first(np.isinf(y), outputs)} is infinite. Use NaN where an output is missing"
        )
    if not np.isfinite(u).all():
        raise ValueError(
            f"{where_first(~np.isfinite(u), inputs)} is NaN or infinite, but inputs must be known "
            "at every step. Fill the gap (repeat the last value, interpolate), or leave out the "
            "column"
        )


def _clock(y: Any, u: Any, time: Any, rows: int) -> Clock | None:
    """Return the clock of the column of times, or of the index of y or u."""
    if time is not None:
        if len(time) != rows:
            raise ValueError(
                f"time must have an entry for each of the {rows} rows; got {len(time)}"
            )
        return Clock.of(time)
    clock, other = (clock_of(values) if rows > 1 else None for values in (y, u))
    if clock and other and replace(clock, name=None, zone=other.zone) != replace(other, name=None):
        raise ValueError(
            f"y begins at {clock.show(0)} with a step of {clock.step_text()}, u at "
            f"{other.show(0)} with a step of {other.step_text()}: pass both with the same times, "
            "or as arrays"
        )
    return clock or other


def _checked_units(units: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(units, Mapping):
        raise TypeError(
            "units must be a mapping from columns to units, such as {'level': 'm'}; got "
            f"{units!r}"
        )
    if unknown := [name for name in units if name not in names]:
        raise ValueError(
            f"units of {', '.join(map(repr, unknown))} were given, but the columns are "
            f"{', '.join(names)}"
        )
    return {str(name): str(unit) for name, unit in units.items()}


def _set(series: Series, **fields: Any) -> None:
    """Set the fields of a frozen series during its construction."""
    for key, value in fields.items():
        object.__setattr__(series, key, value)


def bare(kind: type[S], y: Any, u: Any, **more: Any) -> S:
    """Return a series of leaves that may be tracers or placeholders, without checks."""
    series = object.__new__(kind)
    names = {"outputs": default_names("y", y), "inputs": default_names("u", u)}
    _set(series, y=y, u=u, name=None, dt=None, window=None, clock=None, units={}, **names, **more)
    return series


def register_leaves(kind: type[S], *names: str) -> None:
    """Register a class of series as a JAX pytree with leaves of these names."""
    keys = tuple(map(jax.tree_util.GetAttrKey, names))
    jax.tree_util.register_pytree_with_keys(
        kind,
        lambda series: (tuple((key, getattr(series, key.name)) for key in keys), None),
        lambda _, leaves: bare(kind, **dict(zip(names, leaves, strict=True))),
    )


register_leaves(Series, "y", "u")
