"""Words for people, and values for JSON."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any


def count(number: int, noun: str) -> str:
    """A number of things, the noun in its plural where it should be."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share as "12 %"; two digits below ten per cent, a bound below a hundredth of one."""
    if not share >= 1e-4:
        return "< 0.01 %" if share > 0 else f"{100 * share:g} %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def join_names(names: Sequence[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def readable(name: str) -> str:
    """A parameter's dotted name in words: `basis.parts.0.locations[3,0]` is `basis locations[3,0]`."""
    return re.sub(r"parts\.\d+\.", "", name).replace(".", " ").replace("_", " ")


def finite(thing: Any) -> Any:
    """Dicts and lists of it with None for what is not a finite number, which JSON does not have."""
    if isinstance(thing, Mapping):
        return {str(name): finite(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [finite(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing
