"""Numeric columns of arrays and of tables of pandas, polars and xarray."""

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from gpssm.core.text import as_tuple

if TYPE_CHECKING:
    import pandas as pd


def to_columns(
    values: Any, names: Sequence[str] | str | None, letter: str
) -> tuple[Float[np.ndarray, "T D"], tuple[str, ...]]:
    """Return a read-only float64 copy (T, D) of `values`, and the names of its columns.

    A one-dimensional array becomes one column. None, masked entries and pandas.NA become NaN.

    Parameters
    ----------
    values
        The array or table.
    names
        Names of the columns; by default those of the table, or y0, y1, ...
    letter
        Letter of the values in messages, "y" or "u".
    """
    table = _table(values, letter)
    labels = () if names is None else as_tuple(names)
    if not all(isinstance(name, str) for name in labels):
        raise TypeError(f"the column names of {letter} must be text, one per column; got {names!r}")
    labels = labels or _own_names(values) or default_names(letter, table)
    if len(labels) != table.shape[1] or len(set(labels)) != len(labels):
        raise ValueError(
            f"{letter} has {table.shape[1]} columns and needs the same number of different "
            f"names; got {labels}"
        )
    numbers = np.array(_numbers(table, labels), dtype=np.float64)
    numbers.flags.writeable = False
    return numbers.view(), labels  # a view of a read-only array cannot be made writeable again


def align_columns(values: Any, names: tuple[str, ...], letter: str) -> Float[np.ndarray, "T D"]:
    """Return the columns `names` of the user's y or u, in that order.

    Columns are matched by name, or by position if they have no names. A table may have further
    columns.
    """
    table = as_frame(values)
    columns = None
    if table is not None:
        values = table[list(names)] if names and set(names) <= set(table.columns) else table
    elif hasattr(values, "y") and hasattr(
        values, "u"
    ):  # a Series, or an object that `Series.of` accepts
        columns = getattr(values, "outputs" if letter == "y" else "inputs", None)
        values = values.y if letter == "y" else values.u
    numbers, labels = to_columns(values, columns, letter)
    if set(labels) == set(names):
        return numbers[:, [labels.index(name) for name in names]]
    expected = (
        f"{letter} must have {len(names)} columns: {', '.join(names)}"
        if names
        else f"the model has no {letter}"
    )
    if labels != default_names(letter, numbers):
        missing = [name for name in names if name not in labels]
        unknown = [_with_nearest(name, names) for name in labels if name not in names]
        raise ValueError(
            f"{expected}. Missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(unknown) or 'none'}. Rename or drop columns, or pass an array to match "
            "by position"
        )
    if len(labels) != len(names):
        raise ValueError(f"{expected}; got {len(labels)}")
    return numbers


def as_frame(data: Any) -> "pd.DataFrame | None":
    """Return a DataFrame of pandas or polars, or a Dataset of xarray, as a pandas DataFrame; else
    None.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "pandas" in packages and hasattr(data, "columns"):
        return data
    if "polars" in packages and hasattr(data, "lazy"):  # not a single column
        import pandas

        data = data.lazy().collect()
        table = pandas.DataFrame({name: data[name].to_numpy() for name in data.columns})
        for name, kind in zip(data.columns, data.dtypes, strict=True):
            if zone := getattr(kind, "time_zone", None):
                table[name] = table[name].dt.tz_localize("UTC").dt.tz_convert(zone)
        return table
    if "xarray" in packages and hasattr(data, "data_vars"):
        if len(data.dims) != 1:
            raise ValueError(
                "an xarray Dataset must have one dimension, the time; got "
                f"{', '.join(map(str, data.dims))}: select one entry of the others, such as "
                "dataset.isel(station=0)"
            )
        return data.to_dataframe()
    return None


def default_names(letter: str, values: Any) -> tuple[str, ...]:
    """Return names for the columns of an array: y0, y1, ..., or y for a single column."""
    width = (getattr(values, "shape", None) or (0,))[-1]
    return (letter,) if width == 1 else tuple(f"{letter}{column}" for column in range(width))


def where_first(bad: Bool[np.ndarray, "T D"], names: Sequence[str]) -> str:
    """Return column and row of the first bad entry, as the start of an error message."""
    row, column = np.argwhere(bad)[0]
    return f"column {names[column]!r}, row {row} (counted from 0),"


def _own_names(values: Any) -> tuple[str, ...] | None:
    """Return the column names of a pandas or xarray object; None unless they are text."""
    names = getattr(values, "columns", [getattr(values, "name", None)])
    if hasattr(values, "coords") and values.ndim == 2:
        names = values.coords[values.dims[1]].values if values.dims[1] in values.coords else [None]
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else None


def _table(values: Any, letter: str) -> Shaped[np.ndarray, "T D"]:
    """Return the values as a two-dimensional array of any type."""
    try:
        if isinstance(values, np.ma.MaskedArray):
            values = np.ma.filled(values.astype(np.float64), np.nan)
        table = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{letter} must be an array of numbers, with rows of the same length; got "
            f"{type(values).__name__}: {error}"
        ) from None
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2:
        raise ValueError(
            f"{letter} must have shape (T,) or (T, columns), one row per time step; got "
            f"{table.shape}"
        )
    return table


def _numbers(table: Shaped[np.ndarray, "T D"], names: tuple[str, ...]) -> Shaped[np.ndarray, "T D"]:
    """Return the table as numbers; raise for an entry that is neither a number nor missing."""
    if table.dtype.kind in "biuf":
        return table
    if table.dtype.kind == "V":
        raise TypeError(
            f"columns must contain numbers; got records with the fields {table.dtype.names}"
        )
    import pandas

    cells = pandas.DataFrame(table, dtype=object)
    numbers = cells.apply(pandas.to_numeric, errors="coerce").to_numpy(dtype=np.complex128)
    wrong = np.isnan(numbers) & ~cells.isna().to_numpy() | (np.imag(numbers) != 0)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{where_first(wrong, names)} is {str(table[row, column])!r}, which is not a number. "
            f"{_remedy(table[row, column])}, use NaN for missing outputs, or leave out the column"
        )
    return np.real(numbers)


def _remedy(cell: Any) -> str:
    """Return advice about a cell of a file."""
    if re.fullmatch(r"[+-]?\d{1,3}([,.' ]\d{3})+([.,]\d*)?", str(cell).strip()):
        mark = next(letter for letter in str(cell).strip() if letter in ",.' ")
        return f"If {mark!r} separates thousands, pass thousands={mark!r} to gpssm.read"
    return f"If it marks a missing value in a file, pass na={cell!r} (--na); otherwise correct it"


def _with_nearest(name: str, names: tuple[str, ...]) -> str:
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"{name} (nearest: {nearest[0]})" if nearest else name
