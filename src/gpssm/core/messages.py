"""One warning per cause and call."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from gpssm.core.text import count


@contextmanager
def distinct_warnings(stacklevel: int = 2) -> Iterator[None]:
    """Emit each warning of a context once at its end; those that differ only in numbers are
    combined.

    Parameters
    ----------
    stacklevel
        Frames between the context and the line to which warnings are attributed, as in
        `warnings.warn`.
    """
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
        warnings.warn(first + more, category, stacklevel=stacklevel + 2)
