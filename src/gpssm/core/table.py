"""One table for all results, and the cards by which objects are shown in notebooks."""

import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpssm.core.text import figure, in_line, printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A table of cells with column names, a title and a caption.

    Numbers are shown with four significant digits, None and NaN as a dash. Pass text for cells in
    another format; a cell with an `__html__` method is inserted unchanged in HTML.

        print(Table(["method", "RMSE"], [("arx", 0.4853), ("mean", None)], title="Furnace"))

    Parameters
    ----------
    columns
        Names of the columns.
    rows
        The cells, one sequence per row.
    title
        Heading above the table.
    caption
        Explanation below it.
    words
        Number of leading columns that are text, aligned to the left; the others are numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    caption: str = ""
    words: int = 1

    @classmethod
    def of(cls, frame: "pd.DataFrame", *, starred: bool = False, **settings: Any) -> "Table":
        """Create the table of a data frame, with its index as the first column.

        Parameters
        ----------
        frame
            The data frame.
        starred
            Whether to mark the best numbers of each column by a star, see `loss`.
        **settings
            Title and caption.
        """
        columns = [frame[name].tolist() for name in frame]
        if starred:
            columns = [
                [f"{figure(value)}{mark}" for value, mark in zip(column, marks, strict=True)]
                for column, marks in zip(columns, map(_stars, frame, columns), strict=True)
            ]
        names = [str(frame.index.name or ""), *(str(name).replace("_", " ") for name in frame)]
        index = [str(label) for label in frame.index]
        return cls(names, list(zip(index, *columns, strict=True)), **settings)

    def __rich__(self) -> "RichTable":
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(in_line(self.title), style="bold") if self.title else None,
            caption=Text(self.caption, style="italic") if self.caption else None,
            title_justify="left",
            caption_justify="left",
            header_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for number, name in enumerate(self.columns):
            text = number < self.words
            justify = "left" if text else "right"
            table.add_column(Text(in_line(name)), justify=justify, no_wrap=not text)
        for row in self.rows:
            table.add_row(*(Text(in_line(figure(cell))) for cell in row))
        return table

    def text(self, width: int = 120) -> str:
        """Return the table as text of at most `width` columns."""
        from rich.console import Console

        page = io.StringIO()
        Console(file=page, width=width, force_jupyter=False, color_system=None).print(self)
        lines = (printable(line).rstrip() for line in page.getvalue().split("\n"))
        return "\n".join(lines).strip("\n")

    def __str__(self) -> str:
        return self.text()

    def __html__(self) -> str:
        """Return the table as HTML with escaped text."""
        head = "".join(f'<th scope="col">{_escaped(name)}</th>' for name in self.columns)
        body = "".join(
            f'<tr><th scope="row">{_escaped(first)}</th>'
            + "".join(f"<td>{_escaped(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    _repr_html_ = __html__

    @property
    def markdown(self) -> str:
        """Return the table with its title as Markdown."""
        align = ["---"] * self.words + ["---:"] * (len(self.columns) - self.words)
        rows = [self.columns, align, *([figure(cell) for cell in row] for row in self.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([f"## {self.title}", "", *lines, ""])

    def shortened(self, most: int = 12) -> "Table":
        """Return the table, with dots for the middle rows if there are more than `most`."""
        if len(self.rows) <= most:
            return self
        dots = ["…"] * len(self.columns)
        half = most // 2
        return replace(self, rows=[*self.rows[:half], dots, *self.rows[-half:]])

    def to_dataframe(self) -> "pd.DataFrame":
        """Return the table as a data frame indexed by the first column."""
        import pandas

        frame = pandas.DataFrame(list(self.rows), columns=list(self.columns))
        return frame.set_index(self.columns[0])


def card(
    title: str,
    facts: Mapping[str, Any] | None = None,
    tables: "Mapping[str, pd.DataFrame] | None" = None,
    texts: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> str:
    """Return the HTML of an object, for its `_repr_html_`; all text is escaped.

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
    sections = [("", f"<strong>{html.escape(title)}</strong>")]
    if facts:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(figure(value))}</td></tr>"
            for name, value in facts.items()
        )
        sections.append(("", f"<table><tbody>{rows}</tbody></table>"))
    for heading, frame in (tables or {}).items():
        sections.append((heading, Table.of(frame).shortened().__html__()))
    for heading, text in (texts or {}).items():
        sections.append((heading, f"<pre>{html.escape(text)}</pre>"))
    sections += [("", f"<p>&#9888; {html.escape(note)}</p>") for note in notes]
    parts = [
        (f"<p><em>{html.escape(heading)}</em></p>" if heading else "") + body
        for heading, body in sections
    ]
    return f"<div>{''.join(parts)}</div>"


def loss(name: str, values: Any) -> Any:
    """Return the loss of a score: itself, −fit, or the distance of a coverage from its level."""
    if name.startswith("coverage_"):
        return abs(values - float(name.removeprefix("coverage_")) / 100)
    return -values if name == "fit" else values


def _stars(name: str, column: Sequence[Any]) -> list[str]:
    """Return stars for the best values of a column, but not for widths."""
    losses = [loss(name, float(value)) for value in column]
    best = min((value for value in losses if value == value), default=None)
    shown = len(losses) > 1 and not name.startswith("width")
    return ["*" if shown and value == best else "" for value in losses]


def _escaped(cell: Any) -> str:
    return cell.__html__() if hasattr(cell, "__html__") else html.escape(figure(cell))
