"""What objects look like in a notebook: a title, facts, tables and notes, as HTML in which every text is escaped."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpssm.core.text import figure

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 12


def card(
    title: str,
    facts: Mapping[str, Any] | None = None,
    tables: Mapping[str, "pd.DataFrame"] | None = None,
    texts: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> str:
    """One object for a notebook's `_repr_html_`.

    :param facts: a line each, by name.
    :param tables: data frames by heading; of a long one the first and the last rows.
    :param texts: texts that are laid out already, by heading.
    """
    parts = [f"<strong>{_escaped(title)}</strong>"]
    if facts:
        rows = "".join(
            f"<tr><th>{_escaped(name)}</th><td>{_escaped(value)}</td></tr>"
            for name, value in facts.items()
        )
        parts.append(f"<table><tbody>{rows}</tbody></table>")
    for heading, frame in (tables or {}).items():
        parts += [_heading(heading), _table(frame)]
    for heading, text in (texts or {}).items():
        parts += [_heading(heading), f"<pre>{html.escape(text)}</pre>"]
    parts += [f"<p>&#9888; {html.escape(note)}</p>" for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _heading(text: str) -> str:
    return f"<p><em>{html.escape(text)}</em></p>" if text else ""


def _table(frame: "pd.DataFrame") -> str:
    """A data frame with its index, numbers in four digits; what is left out of a long one is a row of dots."""
    head: list[Any] = [frame.index.name or "", *frame.columns]
    rows: list[Sequence[Any]] = [
        (index, *row) for index, row in zip(frame.index, frame.to_numpy(), strict=True)
    ]
    if len(rows) > MOST_ROWS:
        rows = [*rows[: MOST_ROWS // 2], ["…"] * len(head), *rows[-MOST_ROWS // 2 :]]
    top = "".join(f"<th>{_escaped(name)}</th>" for name in head)
    body = "".join(
        f"<tr><th>{_escaped(first)}</th>{''.join(f'<td>{_escaped(value)}</td>' for value in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _escaped(value: Any) -> str:
    return html.escape(figure(value))
