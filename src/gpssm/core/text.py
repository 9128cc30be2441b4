"""Words, figures and warnings for people, values for JSON, and checks of arguments."""

import difflib
import errno
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import pandas as pd

DASH = "–"  # for missing numbers
FORMULA = tuple("=+-@\t\r")  # first characters by which spreadsheets recognise formulas


def count(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural if necessary."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share as "12 %", with two digits below 10 %, and a bound below 0.01 %."""
    if not share >= 1e-4:
        return "< 0.01 %" if share > 0 else f"{100 * share:g} %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def as_share(level: float) -> float:
    """Return the level of an interval as a float; raise unless it is a share between 0 and 1."""
    if not is_real(level) or not 0 < level < 1:
        is_percent = is_real(level) and 1 < level < 100
        hint = f". For {level:g} % give {level / 100:g}" if is_percent else ""
        raise ValueError(
            "The level of an interval must be a fraction between 0 and 1, such as 0.9; got "
            f"{level!r}{hint}."
        )
    return float(level)


def join_names(names: Sequence[str]) -> str:
    """Return names for a sentence: a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def readable(name: str) -> str:
    """Return a parameter's dotted name in words: `basis.parts.0.x[3,0]` is `basis x[3,0]`."""
    return re.sub(r"parts\.\d+\.", "", name).replace(".", " ").replace("_", " ")


def figure(value: Any, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, a dash for None and NaN, or other text."""
    if value is None or value != value:
        return DASH
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def printable(text: Any) -> str:
    """Return text without control characters."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text)


def in_line(text: Any) -> str:
    """Return text without line breaks and control characters."""
    return printable(text).replace("\n", "�")


def to_csv(frame: "pd.DataFrame", **options: Any) -> str:
    """Return a table as CSV, with an apostrophe before names that spreadsheets would run as
    formulas.
    """
    return frame.rename(
        columns=lambda name: f"'{name}" if str(name).startswith(FORMULA) else name
    ).to_csv(**options)


def read_csv(path: Path, **options: Any) -> "pd.DataFrame":
    """Read a CSV file by `pandas.read_csv`, with exact numbers."""
    import pandas

    # From pandas 3.1 on it is the default, and the option is deprecated.
    if tuple(map(int, pandas.__version__.split(".")[:2])) < (3, 1):
        options["float_precision"] = "round_trip"
    return pandas.read_csv(path, **options)


def from_csv(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table from `to_csv` with its original names."""
    return frame.rename(
        columns=lambda name: name[1:] if name[:1] == "'" and name[1:].startswith(FORMULA) else name
    )


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` letters, cut in the middle, where column names differ
    least.
    """
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[len(text) - half :]}"


def to_json(value: Any, indent: int | None = 1, **options: Any) -> str:
    """Return a value as JSON, see `jsonable`; options are those of `json.dumps`."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False, **options)


def jsonable(value: Any) -> Any:
    """Return a value in the types of JSON.

    NaN and infinities become None, arrays lists, paths text, and other objects their `stable_repr`.
    """
    if isinstance(value, Mapping):
        return {str(name): jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # Arrays of NumPy and JAX, and numbers of NumPy.
    return jsonable(value.tolist()) if hasattr(value, "tolist") else stable_repr(value)


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Return the entries of a list, a one-dimensional array or another iterable, or a single
    value.
    """
    iterable = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    return tuple(values) if iterable and getattr(values, "ndim", 1) == 1 else (values,)


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer of Python or NumPy, but not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> TypeGuard[float]:
    """Return whether a value is a real number of Python or NumPy, but not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int, none: str | None = None) -> None:
    """Raise unless a value is an integer, not a boolean, of at least `least`.

    Parameters
    ----------
    name, value
        The argument.
    least
        The smallest number allowed.
    none
        Meaning of None, if it is allowed: "for all rows".
    """
    if value is None and none is not None:
        return
    if not is_whole(value) or not least <= value < 2**62:
        or_none = ", " if none is None else f", or None {none}; "
        raise ValueError(
            f"{name} must be a whole number of at least {least}{or_none}got {value!r}."
        )


def check_flag(name: str, value: Any) -> None:
    """Raise unless a value is a boolean of Python or NumPy."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False; got {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise unless a value is one of the choices; name the most similar one."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        hint = nearest(str(value)[:100], choices)
        raise ValueError(
            f"{name} must be one of {', '.join(choices)}; got {value!r}{hint and '.'}{hint}"
        )


# Names that other libraries use.
ALIASES = {"n_states": "state_dim", "order": "state_dim", "chains": "num_chains"}


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a hint at the most similar choice, or an empty string."""
    choices = list(choices)
    matches = difflib.get_close_matches(str(name), choices, n=1)
    suggestion = ALIASES.get(name) if ALIASES.get(name) in choices else next(iter(matches), None)
    return f" Did you mean {suggestion!r}?" if suggestion else ""


def check_output(output: Any, names: Sequence[str]) -> None:
    """Raise unless a value is the name of an output, or None."""
    if output is not None and not (isinstance(output, str) and output in names):
        raise ValueError(f"there is no output {output!r}; the outputs are {', '.join(names)}")


def check_kind(name: str, value: Any, *kinds: type) -> None:
    """Raise unless a value is an instance of these classes."""
    if not isinstance(value, kinds):
        wanted = " or ".join(f"a {kind.__name__}" for kind in kinds)
        raise TypeError(f"{name} must be {wanted}; got {type(value).__name__}")


def check_seed(seed: Any) -> int:
    """Return a seed as an int; raise unless both JAX and NumPy support it."""
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1; got {seed!r}")
    return int(seed)


def check_shares(name: str, values: Any, *, ends: bool = False) -> list[float]:
    """Return one or more levels of intervals as a list; with `ends`, 0 and 1 are allowed."""
    listed = as_tuple(values)
    for value in listed:
        if not is_real(value) or (ends and not 0 <= value <= 1):
            raise ValueError(f"{name} must be numbers between 0 and 1; got {value!r}")
    return [float(value) if ends else as_share(value) for value in listed]


def demand(part: str, holds: Any, reason: str) -> None:
    """Raise if a stored part does not satisfy a condition."""
    if not holds:
        raise ValueError(f"{part} {reason}")


def demand_shape(part: str, array: Any, *shape: int | None) -> None:
    """Raise if a stored array has another shape; None is any length."""
    fits = hasattr(array, "shape") and len(array.shape) == len(shape)
    fits = fits and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    demand(part, fits, f"has the shape {getattr(array, 'shape', None)}, but should have {shape}")


def check_path(path: Any) -> Path:
    """Return a valid path of a file, which need not exist."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a path must be text or a pathlib.Path; got {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(
            f"a path must be text that is not empty and has no zero bytes; got {text!r}"
        )
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise ValueError(
                f"no file can have the path {text[:80]!r}…: {error.strerror}"
            ) from None
    except UnicodeEncodeError:
        raise ValueError(
            f"no file can have the path {text!r}: it has characters that file names must not "
            "contain"
        ) from None
    return Path(text)


def check_installed(what: str, package: str) -> None:
    """Raise if an optional package is not installed, with the command that installs it."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install {package}")


def stable_repr(thing: Any) -> str:
    """Return the `repr` without memory addresses, which differ between runs."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
