"""Warnings: attributed to the user's line, and one per cause and call."""

import contextlib
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from gpssm.core.text import count

# Files whose lines no warning is attributed to: those of this package, and what runs them.
INSIDE = (str(Path(__file__).parents[1]), contextlib.__file__)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of something, attributed to the line outside of this package that led to it."""
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        level += 1
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level)


@contextlib.contextmanager
def distinct_warnings() -> Iterator[None]:
    """Give each warning of a block once when it ends, those that differ in numbers together."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    causes: dict[tuple[type[Warning], str], list[str]] = {}
    for warning in caught:
        message = str(warning.message)
        cause = (warning.category, re.sub(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", "#", message))
        causes.setdefault(cause, []).append(message)
    for (category, _), (first, *others) in causes.items():
        more = f" ({count(len(others), 'more warning')} like this one.)" if others else ""
        warn(first + more, category)
