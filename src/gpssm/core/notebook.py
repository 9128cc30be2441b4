"""HTML representations of objects for notebooks, with all text escaped."""

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpssm.core.table import Table
from gpssm.core.text import figure

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 12


def card(
    title: str,
    facts: Mapping[str, Any] | None = None,
    tables: "Mapping[str, pd.DataFrame] | None" = None,
    texts: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> str:
    """Return the HTML of an object, for its `_repr_html_`.

    Parameters
    ----------
    title
        Description of the object.
    facts
        Values by name, one per line.
    tables
        Data frames by heading; long ones show their first and last rows.
    texts
        Preformatted texts by heading.
    notes
        Warnings at the end.
    """
    parts = [f"<strong>{html.escape(title)}</strong>"]
    if facts:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(figure(value))}</td></tr>"
            for name, value in facts.items()
        )
        parts.append(f"<table><tbody>{rows}</tbody></table>")
    for heading, frame in (tables or {}).items():
        parts += [_heading(heading), Table.of(frame).shortened(MOST_ROWS).__html__()]
    for heading, text in (texts or {}).items():
        parts += [_heading(heading), f"<pre>{html.escape(text)}</pre>"]
    parts += [f"<p>&#9888; {html.escape(note)}</p>" for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _heading(text: str) -> str:
    return f"<p><em>{html.escape(text)}</em></p>" if text else ""
