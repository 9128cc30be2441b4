"""Words, figures and warnings for people, values for JSON, and checks of arguments."""

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

DASH = "–"  # for a figure that does not exist
FORMULA = tuple("=+-@\t\r")  # what a cell begins with that a spreadsheet takes for a formula


def count(number: int, noun: str) -> str:
    """A number of things, the noun in its plural where it should be."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share as "12 %"; two digits below ten per cent, a bound below a hundredth of one."""
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
    """Names as a sentence has them: a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def readable(name: str) -> str:
    """A parameter's dotted name in words: `basis.parts.0.x[3,0]` is `basis x[3,0]`."""
    return re.sub(r"parts\.\d+\.", "", name).replace(".", " ").replace("_", " ")


def figure(value: Any, digits: int = 4) -> str:
    """A number in so many significant digits, a dash for None and NaN, anything else as it is."""
    if value is None or value != value:
        return DASH
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def printable(text: Any) -> str:
    """Text without characters that would control a terminal."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text)


def in_line(text: Any) -> str:
    """Text that stays in its line and controls nothing: a name, a path, the words of an error."""
    return printable(text).replace("\n", "�")


def to_csv(frame: "pd.DataFrame", **options: Any) -> str:
    """A table as CSV, names that a spreadsheet would run as formulas behind an apostrophe."""
    return frame.rename(
        columns=lambda name: f"'{name}" if str(name).startswith(FORMULA) else name
    ).to_csv(**options)


def read_csv(path: Path, **options: Any) -> "pd.DataFrame":
    """`pandas.read_csv`, with numbers as they are written to the last bit."""
    import pandas

    # From pandas 3.1 on it is the default, and the option is deprecated.
    if tuple(map(int, pandas.__version__.split(".")[:2])) < (3, 1):
        options["float_precision"] = "round_trip"
    return pandas.read_csv(path, **options)


def from_csv(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A table that was read from what `to_csv` wrote, with the names it had before."""
    return frame.rename(
        columns=lambda name: name[1:] if name[:1] == "'" and name[1:].startswith(FORMULA) else name
    )


def shortened(text: str, most: int) -> str:
    """A text of at most so many letters, cut in the middle, where names of columns differ least."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[len(text) - half :]}"


def to_json(value: Any, indent: int | None = 1, **options: Any) -> str:
    """A value as JSON, see `jsonable`; options are those of `json.dumps`."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False, **options)


def jsonable(value: Any) -> Any:
    """A value in what JSON has: dicts of text, lists, text, numbers, true, false and null.

    NaN and infinities are None, arrays are lists, paths are text, and what JSON cannot hold is its
    `stable_repr`.
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
    # NumPy's and JAX's arrays, and NumPy's numbers.
    return jsonable(value.tolist()) if hasattr(value, "tolist") else stable_repr(value)


def as_tuple(values: Any) -> tuple[Any, ...]:
    """The entries of a list, an array of one dimension or another iterable; anything else alone."""
    iterable = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    return tuple(values) if iterable and getattr(values, "ndim", 1) == 1 else (values,)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number, NumPy's too; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> TypeGuard[float]:
    """Whether it is a real number, NumPy's too; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int, none: str | None = None) -> None:
    """Refuse what is not a whole number of at least `least`; True and False are none.

    Parameters
    ----------
    name, value
        The argument.
    least
        The smallest number allowed.
    none
        What None stands for, where it is allowed: "for all rows".
    """
    if value is None and none is not None:
        return
    if not is_whole(value) or not least <= value < 2**62:
        or_none = ", " if none is None else f", or None {none}; "
        raise ValueError(
            f"{name} must be a whole number of at least {least}{or_none}got {value!r}."
        )


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False, nor NumPy's."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False; got {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse what is none of the words that may be given."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_output(output: Any, names: Sequence[str]) -> None:
    """Refuse what is the name of no output, and not None either."""
    if output is not None and not (isinstance(output, str) and output in names):
        raise ValueError(f"there is no output {output!r}; there are {', '.join(names)}")


def check_kind(name: str, value: Any, *kinds: type) -> None:
    """Refuse what is no object of these classes."""
    if not isinstance(value, kinds):
        wanted = " or ".join(f"a {kind.__name__}" for kind in kinds)
        raise TypeError(f"{name} must be {wanted}; got {type(value).__name__}")


def check_seed(seed: Any) -> int:
    """The seed as an int, if JAX and NumPy can both take it."""
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1; got {seed!r}")
    return int(seed)


def check_shares(name: str, values: Any, *, ends: bool = False) -> list[float]:
    """One or more levels of intervals as a list; with `ends` they may be 0 and 1."""
    listed = as_tuple(values)
    for value in listed:
        if not is_real(value) or (ends and not 0 <= value <= 1):
            raise ValueError(f"{name} must be numbers between 0 and 1; got {value!r}")
    return [float(value) if ends else as_share(value) for value in listed]


def demand(part: str, holds: Any, reason: str) -> None:
    """Refuse a part of something stored of which something does not hold."""
    if not holds:
        raise ValueError(f"{part} {reason}")


def demand_shape(part: str, array: Any, *shape: int | None) -> None:
    """Refuse a stored array of another shape; None is any length."""
    fits = hasattr(array, "shape") and len(array.shape) == len(shape)
    fits = fits and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    demand(part, fits, f"has the shape {getattr(array, 'shape', None)}, but should have {shape}")


def check_path(path: Any) -> Path:
    """The path of a file, if a file could have it; whether there is one is not asked."""
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


def check_installed(what: str, module: str, extra: str) -> None:
    """Refuse what needs a package that is not installed, and say which extra has it."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{what} needs {module}, which is not installed: pip install 'gpssm[{extra}]'"
        )


def stable_repr(thing: Any) -> str:
    """Its `repr` without memory addresses, which differ from one run to the next."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
