"""Invalid arguments, and the outcome of calls with them."""

import collections
import dataclasses
import datetime
import decimal
import dis
import fractions
import pathlib
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

import gpssm
from gpssm.posterior.forecast import Forecast

OURS = str(pathlib.Path(gpssm.__file__).parent)
RAISE = dis.opmap["RAISE_VARARGS"]


class Anything:
    """An object with every attribute, none of them meaningful."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "minus one": lambda: -1,
    "zero": lambda: 0,
    "one": lambda: 1,
    "a half": lambda: 0.5,
    "a fraction": lambda: 1.5,
    "minus zero": lambda: -0.0,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "1e300": lambda: 1e300,
    "5e-324": lambda: 5e-324,
    "2**31": lambda: 2**31,
    "2**64": lambda: 2**64,
    "10**400": lambda: 10**400,
    "complex": lambda: 1 + 2j,
    "Decimal": lambda: decimal.Decimal("0.3"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "int64": lambda: np.int64(2),
    "uint8": lambda: np.uint8(255),
    "float16": lambda: np.float16(0.5),
    "datetime64": lambda: np.datetime64("2020-01-01"),
    "date": lambda: datetime.date(2020, 1, 1),
    "NA": lambda: pd.NA,
    "NaT": lambda: pd.NaT,
    "empty text": lambda: "",
    "a digit": lambda: "2",
    "text": lambda: "nothing of that name",
    "control characters": lambda: "\x1b[31m\x00\n\r\u202e",
    "half a letter": lambda: "\ud800",
    "long text": lambda: "a" * 5000,
    "bytes": lambda: b"bytes",
    "a path": lambda: pathlib.Path("/nowhere/at/all.csv"),
    "a folder": lambda: pathlib.Path("/"),
    "a list": lambda: [],
    "a list of nothing": lambda: [None],
    "a list of text": lambda: ["a", "b"],
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "numbers": lambda: [1, 2, 3],
    "shares": lambda: [0.1, 0.9],
    "percentages": lambda: [10, 90],
    "a tuple": lambda: (),
    "a set": lambda: {1, 2},
    "a dict": lambda: {},
    "a dict of numbers": lambda: {"y": 1.0},
    "a generator": lambda: (n for n in range(3)),
    "a function": lambda: lambda *args: None,
    "a class": lambda: dict,
    "an object": object,
    "anything": Anything,
    "deque": lambda: collections.deque([1.0, 2.0]),
    "empty array": lambda: np.zeros(0),
    "no columns": lambda: np.zeros((9, 0)),
    "a scalar array": lambda: np.array(3.0),
    "one dimension": lambda: np.arange(9.0),
    "a column": lambda: np.arange(9.0)[:, None],
    "two columns": lambda: np.arange(18.0).reshape(9, 2),
    "three columns": lambda: np.arange(27.0).reshape(9, 3),
    "four dimensions": lambda: np.zeros((2, 2, 2, 2)),
    "NaNs": lambda: np.full((9, 2), np.nan),
    "infinities": lambda: np.full((9, 1), -np.inf),
    "far out": lambda: np.full((9, 2), 1e300),
    "tiny": lambda: np.full((9, 2), 5e-324),
    "booleans": lambda: np.ones((9, 2), bool),
    "letters": lambda: np.full((9, 2), "a"),
    "complex numbers": lambda: np.full((9, 1), 1j),
    "dates": lambda: np.full((9, 1), np.datetime64("2020-01-01")),
    "objects": lambda: np.full((9, 2), None),
    "structured": lambda: np.zeros(9, dtype=[("a", float), ("b", int)]),
    "masked": lambda: np.ma.masked_all((9, 2)),
    "jax": lambda: jnp.ones((9, 1)),
    "frame": lambda: pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}),
    "frame of one name": lambda: pd.DataFrame(np.zeros((9, 2)), columns=["y0", "y0"]),
    "series of pandas": lambda: pd.Series([1.0, None, 3.0]),
    "a series": lambda: gpssm.Series(np.arange(9.0), np.arange(9.0)),
    "a series far out": lambda: gpssm.Series(np.full((9, 2), 1e300), np.zeros(9)),
    "controls far out": lambda: gpssm.Series(np.zeros((9, 2)), np.full(9, 1e300)),
    "a series of gaps": lambda: gpssm.Series(np.full((9, 2), np.nan), np.zeros(9)),
    "a list of series": lambda: [gpssm.Series(np.arange(9.0)), gpssm.Series(np.zeros((9, 2)))],
    "a slice": lambda: slice(3, None, 2),
    "an ellipsis": lambda: ...,
    "an error": lambda: ValueError("no"),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a call: "fine", "refused" by our message, "raw" by that of another library, or
    "silent"ly wrong.
    """

    kind: str
    words: str = ""


def attempt(call: Callable[[], Any]) -> Outcome:
    """Call a function and classify the outcome: errors must be raised by this library."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = call()
            found = next(found, None) if isinstance(found, Iterator) else found
        except Exception as error:
            where = error.__traceback__
            while where.tb_next is not None:
                where = where.tb_next
            code = where.tb_frame.f_code
            ours = (
                code.co_filename.startswith(OURS)
                and code.co_code[where.tb_lasti] == RAISE
                and str(error)
            )
            last = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {str(error)[:150]} ({last.filename.split('/')[-1]}:{last.lineno})"
            return Outcome("refused" if ours else "raw", words)
    if isinstance(found, Forecast) and not np.isfinite(found.paths).all() and not said:
        return Outcome("silent", "a forecast that is not finite")
    return Outcome("fine")
