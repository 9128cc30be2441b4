"""From what a user passes as y or u (lists, NumPy, JAX, pandas, xarray) to named float64 columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped


def to_columns(
    values: Any, names: Sequence[str] | str | None, letter: str
) -> tuple[Float[np.ndarray, "T D"], tuple[str, ...]]:
    """A read-only float64 copy (T, D) of `values`, and its columns' names: those given, its own, or defaults.

    A one-dimensional array becomes one column. None, masked entries and pandas' NA become NaN.
    """
    table = _table(values, letter)
    names = (names,) if isinstance(names, str) else names
    names = tuple(names or _own_names(values) or default_names(letter, table))
    if len(names) != table.shape[1] or len(set(names)) != len(names):
        raise ValueError(f"{letter} has {table.shape[1]} columns and needs as many different names; got {names}")
    numbers = np.array(_numbers(table, names), dtype=np.float64)
    numbers.flags.writeable = False
    return numbers, names


def _table(values: Any, letter: str) -> Shaped[np.ndarray, "T D"]:
    """The values as an array of two dimensions and of whatever type they have."""
    try:
        table = np.ma.filled(values.astype(np.float64), np.nan) if np.ma.isMA(values) else np.asarray(values)
    except ValueError as error:
        raise ValueError(f"the rows of {letter} must all have the same length: {error}") from None
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2:
        raise ValueError(f"{letter} must have shape (T,) or (T, columns), one row a time step; got {table.shape}")
    return table


def _numbers(table: Shaped[np.ndarray, "T D"], names: tuple[str, ...]) -> Shaped[np.ndarray, "T D"]:
    """The table as numbers; whatever is neither a number nor missing is an error."""
    if table.dtype.kind in "biuf":
        return table
    import pandas

    cells = pandas.DataFrame(table, dtype=object)
    numbers = cells.apply(pandas.to_numeric, errors="coerce").to_numpy(dtype=np.complex128)
    wrong = np.isnan(numbers) & ~cells.isna().to_numpy() | (np.imag(numbers) != 0)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{place(wrong, names)} is {str(table[row, column])!r}, which is not a number. "
            "Correct it, use NaN where an output is missing, or leave the column out"
        )
    return np.real(numbers)


def place(where: Bool[np.ndarray, "T D"], names: Sequence[str]) -> str:
    """Column and row of the first entry that is true, for an error message."""
    row, column = np.argwhere(where)[0]
    return f"column {names[column]!r}, row {row} (counted from 0),"


def _own_names(values: Any) -> tuple[str, ...] | None:
    """Column names that a pandas or xarray object carries; None when it has none that are text."""
    if hasattr(values, "columns"):
        names = values.columns
    elif hasattr(values, "coords") and values.ndim == 2:
        names = values.coords[values.dims[1]].values if values.dims[1] in values.coords else [None]
    else:
        names = [getattr(values, "name", None)]
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else None


def default_names(letter: str, values: Any) -> tuple[str, ...]:
    """Names for the columns of an array: y0, y1, ...; y for a single one; none for what has no shape."""
    width = (getattr(values, "shape", None) or (0,))[-1]
    return (letter,) if width == 1 else tuple(f"{letter}{column}" for column in range(width))
