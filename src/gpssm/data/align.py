"""What a user gives as y or u later on, against the columns that the model was fitted to."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_whole
from gpssm.data.series import Series, default_names, to_columns, where_first


def align_columns(values: Any, names: tuple[str, ...], letter: str) -> Float[np.ndarray, "T D"]:
    """The columns `names` of what a user gave as y or u, in that order.

    Columns with names of their own (of a DataFrame or a Series) go by name; those without go by position. A DataFrame
    may have others too.
    """
    own = None
    if isinstance(values, Series):
        values, own = (values.y, values.outputs) if letter == "y" else (values.u, values.inputs)
    elif names and isinstance(columns := getattr(values, "columns", None), Iterable) and set(names) <= set(columns):
        values = values[list(names)]
    table, given = to_columns(values, own, letter)
    if set(given) == set(names):
        return table[:, [given.index(name) for name in names]]
    expected = f"{letter} must have {len(names)} columns: {', '.join(names)}" if names else f"the model has no {letter}"
    if given != default_names(letter, table):
        missing, unknown = ([name for name in a if name not in b] for a, b in ((names, given), (given, names)))
        raise ValueError(
            f"{expected}. Missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(_with_nearest(name, names) for name in unknown) or 'none'}. "
            "Rename or drop columns, or pass an array to go by position"
        )
    if len(given) != len(names):
        raise ValueError(f"{expected}; got {len(given)}")
    return table


def align_series(series: Any, expected: Series) -> Series:
    """One series of new rows with the columns of the expected one in their order, both in the user's units."""
    given = Series.of(series)
    if isinstance(given, list):
        raise TypeError(f"new data come as one series at a time; got a list of {len(given)}. Call once for each")
    y, u = align_columns(given, expected.outputs, "y"), align_columns(given, expected.inputs, "u")
    names = {"outputs": expected.outputs, "inputs": expected.inputs, "units": expected.units}
    return dataclasses.replace(given, y=y, u=u, **names)


def future_inputs(
    u: Any, names: tuple[str, ...], horizon: int | None, default: int, spare: int = 0
) -> Float[np.ndarray, "H Du"]:
    """The first `horizon` rows of a user's controls, columns in the order of `names`.

    Without a horizon they are all rows, and where there is no u either, `default` of them.

    :param spare: the last rows that act on nothing before the horizon: where they are not given they are NaN.
    """
    check_whole("horizon", horizon, 1, none="for as many steps as u has rows")
    if u is None:
        horizon = horizon or default
        if names and horizon > spare:
            raise ValueError(
                f"the model has {len(names)} controls ({', '.join(names)}), whose values at all steps ahead must be "
                f"known: pass u with {horizon} rows and {len(names)} columns"
            )
        return np.full((horizon, len(names)), np.nan)
    values = align_columns(u, names, "u")
    wanted = max((horizon or 1) - spare, 1)
    if len(values) < wanted:
        after = f", but the last {spare}" if spare else ""
        steps = f"each of the {horizon or 1} steps ahead{after}"
        raise ValueError(f"u must have a row for {steps}; got {len(values)} rows")
    values = values[:horizon]
    if not np.isfinite(values).all():
        raise ValueError(
            f"{where_first(~np.isfinite(values), names)} of u is NaN or infinite: a control is always known"
        )
    return np.pad(values, ((0, max((horizon or 0) - len(values), 0)), (0, 0)), constant_values=np.nan)


def _with_nearest(name: str, known: tuple[str, ...]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"{name} (nearest: {nearest[0]})" if nearest else name
