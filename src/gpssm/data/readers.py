"""Read a Series from text, Excel, MATLAB, NumPy and Parquet files.

A reader is a function of path and `Options` that returns columns and their units; `READERS` maps
suffixes to readers.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpssm.core.files import read_npz
from gpssm.core.messages import warn
from gpssm.core.text import (
    as_tuple,
    check_installed,
    check_path,
    check_whole,
    is_whole,
    nearest,
    read_csv,
)
from gpssm.data.clock import FillRule
from gpssm.data.iddata import ADVICE, load_struct, read_iddata
from gpssm.data.series import Series
from gpssm.data.times import DATE, TIME_OF_DAY

Column = str | int
Columns = list[tuple[str, Any]]  # name and values of every column, in the order of the file
RawTable = tuple[Columns, Sequence[str]]  # columns and their units in the file ("" if none)

WHITESPACE = r"\s+"
COMMENTS = ("#", "%")  # first characters of comment lines before the data
MISSING = {"", "na", "n/a", "nan", "null", "none", "<na>"}
MARKS = MISSING | {
    "-",
    "--",
    "?",
    "bad",
    "error",
    "missing",
}  # words that a row of units never consists of
FIRST_LINES = 50  # lines of a file by which its layout is detected


class Options(NamedTuple):
    """Options for reading the cells of a file, as in `read`."""

    na: tuple[Any, ...] = ()
    encoding: str | None = None
    skip: int = 0
    thousands: str | None = None
    sheet: Column | None = None


def read(
    path: str | Path,
    outputs: Sequence[Column] | Column | None = None,
    inputs: Sequence[Column] | Column = (),
    *,
    name: str | None = None,
    dt: float | None = None,
    time: Column | Sequence[Column] | None = "auto",
    regrid: bool | float | str = False,
    fill_inputs: FillRule = "hold",
    dayfirst: bool | None = None,
    zone: str | None = None,
    units: Mapping[str, str] | None = None,
    na: Sequence[Any] | str | float = (),
    encoding: str | None = None,
    skip: int = 0,
    thousands: str | None = None,
    sheet: Column | None = None,
) -> Series:
    """Read the columns `outputs` and `inputs` of a file into a Series, one row per time step.

        read("tank.csv", outputs=["level"], inputs=["pump", "valve"], dt=0.1)
        read("logger.xlsx", "level", "pump", time=["date", "time"], na=["Bad", -9999])
        read("iddata.mat")  # an iddata of MATLAB, s = get(data)

    In text files, the delimiter (tab, semicolon, comma; in .dat and .txt also spaces), the header,
    a row of units below it and lines of one cell above it are detected, with a warning if the
    result is doubtful. In .mat and .npz files, a matrix `y` has the columns `y0`, `y1`, ...; a
    matrix with fewer rows than columns is refused. Without `outputs`, a .mat file must contain the
    struct of an iddata object, whose names, units and sampling time are used.

    Parameters
    ----------
    path
        A .csv, .tsv, .dat, .txt, .xlsx, .mat, .npz or .parquet file.
    outputs, inputs
        Columns by name or by number, counted from 0.
    name
        The name of the series; by default, the name of the file.
    dt
        Sampling time, if there is no column of times.
    time
        The column of times, or the two columns of the date and the time of day; "auto" searches the
        columns that are neither outputs nor inputs; None ignores times.
    regrid, fill_inputs, dayfirst, zone
        How times are read and put on a regular grid: see `Series.from_dataframe`.
    units
        Units of columns by name; by default, from the row below the header.
    na
        Markers of missing values other than empty cells, NA, NaN and null, such as "Bad" or [-9999,
        "-"].
    encoding
        Encoding of a text file, such as "latin-1"; by default UTF-8 or UTF-16, otherwise Latin-1
        with a warning.
    skip
        Number of lines before the header, or before the data.
    thousands
        The thousands separator of a text file.
    sheet
        Name or number of an Excel sheet; the first by default.
    """
    path = check_path(path)
    if outputs is None:
        if path.suffix.lower() != ".mat":
            raise ValueError(
                f"{path}: name the outputs by outputs=[...], as column names or numbers"
            )
        return read_iddata(path, _parsed(load_struct, path), name=name, dt=dt, units=units)
    check_whole("skip", skip, 0)
    table, file_units = _load(path, Options(as_tuple(na), encoding, skip, thousands, sheet))
    y = _names(outputs, table, path)
    u = _names(inputs, table, path)
    auto = time is None or (isinstance(time, str) and time == "auto")
    times: Any = time if auto else _names(time, table, path)
    if isinstance(units, Mapping | None):
        chosen = {label: file_units[label] for label in (*y, *u) if file_units.get(label)}
        units = chosen | dict(units or {})
    try:
        return Series.from_dataframe(
            _frame(table, y, u),
            y,
            u,
            time=times,
            regrid=regrid,
            fill_inputs=fill_inputs,
            dayfirst=dayfirst,
            zone=zone,
            name=path.stem if name is None else name,
            dt=dt,
            units=units,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _load(path: Path, options: Options) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the columns of a file and their units by name.

    Columns with the same name, or without one, are distinguished by their number.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{path}: the suffix must be one of {', '.join(READERS)}; got {path.suffix!r}. Save "
            "the table as .csv, or load it yourself and pass a DataFrame to Series.from_dataframe"
        )
    columns, units = _parsed(reader, path, options)
    uses = Counter(label for label, _ in columns)
    names = [
        label if label and uses[label] == 1 else f"{label} column {number}".strip()
        for number, (label, _) in enumerate(columns)
    ]
    values = (cells for _, cells in columns)
    return dict(zip(names, values, strict=True)), dict(zip(names, units, strict=False))


def _parsed(parser: Callable[..., Any], path: Path, *options: Any) -> Any:
    """Return what a parser reads from a file; its problems become clear errors."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; the current folder is {Path.cwd()}")
    try:
        return parser(path, *options)
    except (ImportError, Warning):
        raise
    except MemoryError as error:
        raise MemoryError(
            f"{path} needs more memory than there is, or is damaged: {error}"
        ) from None
    except NotImplementedError:  # what SciPy raises for version 7.3, which is HDF5
        raise ValueError(f"{path} is of version 7.3, which only MATLAB reads. {ADVICE}") from None
    except Exception as error:  # the parsers of damaged files raise whatever they stumble over
        raise ValueError(
            f"{path} cannot be read as a {path.suffix} file: {str(error).strip()}. If there are "
            "lines above the table, pass their number as skip; otherwise it may be damaged, cut "
            "short, or of another format"
        ) from error


def _names(columns: Any, table: Mapping[str, Any], path: Path) -> list[str]:
    """Return the names of columns that are given by name or by number."""
    return [_name(column, list(table), path) for column in as_tuple(columns)]


def _name(column: Column, names: list[str], path: Path) -> str:
    """Return the name of a column, or raise with all columns and the nearest name."""
    if not isinstance(column, str) and not is_whole(column):
        raise TypeError(f"a column must be given by name or by number; got {column!r}")
    if column in names:
        return str(column)
    if str(column).isdecimal() and len(str(column)) < 10 and int(column) < len(names):
        return names[int(column)]
    listed = ", ".join(f"{number}: {label!r}" for number, label in enumerate(names[:50]))
    message = f"{path} has no column {column!r}; it has {listed or 'no column of numbers'}."
    message += nearest(str(column)[:100], names[:1000])
    if len(names) == 1:
        message += " Only one column was found: is the delimiter a comma, a semicolon or a tab?"
    raise ValueError(message)


def _frame(table: Mapping[str, Any], y: list[str], u: list[str]) -> Any:
    """Return the chosen columns, which must be distinct and of equal length, with others of that
    length.
    """
    import pandas

    if not y:
        raise ValueError(f"outputs needs at least one column of {list(table)}")
    chosen = [*y, *u]
    if repeated := [label for label in chosen if chosen.count(label) > 1]:
        raise ValueError(
            f"column {repeated[0]!r} was chosen twice; a column must be either an output or "
            "an input"
        )
    for label in chosen:
        shape = np.shape(table[label])
        if len(shape) == 2:
            raise ValueError(
                f"{label!r} has {shape[0]} rows and {shape[1]} columns, but each row must be a "
                "time step. Transpose it in the file; if the shape is correct, load the array "
                "yourself and pass it to Series"
            )
    lengths = {label: len(table[label]) for label in chosen}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the chosen columns must have equal numbers of rows; got {lengths}")
    rows = (lengths[y[0]],)
    return pandas.DataFrame(
        {name: cells for name, cells in table.items() if np.shape(cells) == rows}
    )


def _read_text(path: Path, options: Options, default_separator: str) -> RawTable:
    """Return the table of a text file, after detecting its encoding."""
    with path.open("rb") as file:
        head = file.read(4096)
    marked = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    encoding = options.encoding or ("utf-16" if marked else "utf-8-sig")
    if encoding == "utf-8-sig" and b"\0" in head:
        raise ValueError(
            "it contains zero bytes, like UTF-16 without a byte order mark: pass "
            "encoding='utf-16-le' if it is text"
        )
    try:
        return _parse(path, options, default_separator, encoding)
    except UnicodeDecodeError:
        if encoding != "utf-8-sig":
            raise
    table = _parse(path, options, default_separator, "latin-1")
    warn(
        f"{path} is not UTF-8 and was read as Latin-1. Pass encoding='latin-1', or another "
        "encoding, to avoid this warning"
    )
    return table


def _parse(path: Path, options: Options, default_separator: str, encoding: str) -> RawTable:
    """Return the table of a text file; without a header, column names are empty."""
    separator, decimal, names, units, start = _layout(path, options, default_separator, encoding)
    frame = read_csv(
        path,
        sep=separator,
        decimal=decimal,
        thousands=options.thousands,
        na_values=[str(mark) for mark in options.na],
        header=None,
        skiprows=start,
        skipinitialspace=True,
        encoding=encoding,
        low_memory=False,
    )
    # Delimiters at the ends of lines create a last column without name or values.
    filled = np.flatnonzero(frame.notna().any())
    frame = frame.iloc[:, : max(len(names) or 1, *(filled[-1:] + 1))]
    names = names or [""] * frame.shape[1]
    if len(names) != frame.shape[1]:
        raise ValueError(
            f"the header names {len(names)} columns, the rows have {frame.shape[1]} cells"
        )
    if frame.iloc[:, -1].isna().any():
        # pandas fills lines with fewer cells with missing values.
        with path.open(encoding=encoding, newline="") as file:
            rows = _cells(islice(file, start, None), separator)
            for number, cells in enumerate(rows, start=start + 1):
                if any(cells) and len(cells) < frame.shape[1]:
                    raise ValueError(f"line {number} has {len(cells)} of {frame.shape[1]} cells")
    return [(label, frame[number]) for number, label in enumerate(names)], units


def _layout(
    path: Path, options: Options, default_separator: str, encoding: str
) -> tuple[str, str, list[str], list[str], int]:
    """Return the layout of the file, from its first lines.

    Returns
    -------
    separator, decimal
        The delimiter (the default if there is no tab, semicolon or comma) and the decimal mark.
    names, units
        Names and units of columns; empty if there are none.
    start
        The first line of the data.
    """
    with path.open(encoding=encoding, newline="") as file:
        written = (
            (number, line)
            for number, line in enumerate(file)
            if number >= options.skip and line.strip()
        )
        comments = []
        lines = list(islice(written, 1))
        while lines and lines[0][1].lstrip().startswith(COMMENTS):
            comments = lines
            lines = list(islice(written, 1))
        lines += islice(written, FIRST_LINES - 1)
    if not lines:
        raise ValueError("it has no lines")
    separator = _separator(lines[0][1]) or _separator(lines[-1][1]) or default_separator
    # With semicolons as delimiters, as in many European spreadsheets, a comma is the decimal mark.
    commas = separator == ";" and any("," in line for _, line in lines[1:])
    decimal = "," if commas and options.thousands != "," else "."
    rows = list(_cells((line for _, line in lines), separator))
    if len(rows[0]) > 20_000:
        raise ValueError(
            f"it has {len(rows[0])} columns, but each row must be a time step: transpose the file"
        )
    above, names, units = _head(rows, options)
    if above:
        _say_skipped(path, lines[above - 1][0] + 1)
    first = lines[above]
    if names:
        if len(rows) == above + 1:
            raise ValueError("it has a header and no rows")
        # Names may be years and may be missing, but are never measurements or markers.
        if any(map(_is_doubtful, names)):
            _doubt(path, first, f"was used as the header, {_shown(names)}. If it contains data")
        start = lines[above + 1][0] if units else first[0]
        return separator, decimal, names, units, start + 1
    if comments:
        text = comments[0][1].strip().lstrip("".join(COMMENTS)).strip()
        names = _without_blank_end(next(_cells([text], separator)))
        if len(names) == len(_without_blank_end(rows[above])) and all(map(_is_text, names)):
            _doubt(path, comments[0], f"was used as the header, {_shown(names)}. If it is not")
            return separator, decimal, names, [], first[0]
        message = "and similar lines above were treated as comments. If they are not"
        _doubt(path, comments[0], message)
    return separator, decimal, [], [], first[0] if above or comments else options.skip


def _head(rows: list[list[str]], options: Options) -> tuple[int, list[str], list[str]]:
    """Return the number of rows above the table, the names of its columns, and their units."""
    rows = [_without_blank_end(cells) for cells in rows]
    single = (len(cells) == 1 < len(rows[-1]) for cells in rows[:-2])
    above = sum(takewhile(bool, single))
    names, *below = rows[above : above + 3]
    second = below[0] if below else names
    pairs = zip(names, second, strict=False)
    # A header has text above a number, or consists of text only.
    text_above_number = any(_is_text(a) and b and not _is_text(b) for a, b in pairs)
    if not text_above_number and not (any(names) and all(map(_is_text, names))):
        return above, [], []
    marks = MARKS | {str(mark).lower() for mark in options.na}
    filled = [cell for cell in second if cell]
    if (
        len(below) == 2
        and len(second) <= len(names)
        and not any(DATE.match(cell) or TIME_OF_DAY.match(cell) for cell in filled)
        and all(map(_is_text, filled))
        and any(cell.lower() not in marks for cell in filled)
        and any(a and b and not _is_text(b) for a, b in zip(second, below[1], strict=False))
    ):
        units = [cell.strip("[]()") for cell in second]
        return above, names, ["" if unit == "-" else unit for unit in units]
    return above, names, []


def _say_skipped(path: Path, last: int) -> None:
    text = "Line 1 was" if last == 1 else f"Lines 1 to {last} were"
    warn(f"{path}: {text} skipped above the table. Pass skip to avoid this warning")


def _separator(line: str) -> str | None:
    unquoted = re.sub(r'"[^"]*"', "", line)
    return next((mark for mark in "\t;," if mark in unquoted), None)


def _is_doubtful(name: str) -> bool:
    """Whether a name looks like a number with a fraction or exponent, or has no letters or
    digits."""
    return bool(name) and not (any(map(str.isalnum, name)) if _is_text(name) else name.isdigit())


def _shown(names: list[str]) -> str:
    more = ", ..." if len(names) > 10 else ""
    return f"with the columns {', '.join(map(repr, names[:10]))}{more}"


def _doubt(path: Path, line: tuple[int, str], message: str) -> None:
    """Warn of a line whose role in the file had to be guessed."""
    text = line[1].strip()
    text = text if len(text) <= 60 else f"{text[:60]}…"
    warn(f"{path}: line {line[0] + 1} ({text!r}) {message}, correct or delete it")


def _cells(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Return the stripped cells of every line; quoted cells may contain separators."""
    if separator == WHITESPACE:
        return (line.split() for line in lines)
    return ([cell.strip() for cell in cells] for cells in csv.reader(lines, delimiter=separator))


def _without_blank_end(cells: list[str]) -> list[str]:
    width = max((number + 1 for number, cell in enumerate(cells) if cell), default=0)
    return cells[:width]


def _is_text(cell: str) -> bool:
    """Whether a cell is neither a number nor a mark for a missing value."""
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return cell.lower() not in MISSING
    return False


def _read_excel(path: Path, options: Options) -> RawTable:
    check_installed("reading an Excel file", "openpyxl")
    import pandas

    with pandas.ExcelFile(path) as book:
        sheet = book.sheet_names[0] if options.sheet is None else options.sheet
        if options.sheet is None and len(book.sheet_names) > 1:
            others = ", ".join(map(repr, book.sheet_names[1:]))
            warn(f"{path}: sheet {sheet!r} was read, and {others} ignored. Pass sheet to select")
        cells: Any = book.parse(sheet, header=None, dtype=object, skiprows=options.skip)
    cells = cells.dropna(how="all").dropna(how="all", axis=1).reset_index(drop=True)
    if cells.empty:
        raise ValueError(f"sheet {sheet!r} is empty")
    first = cells.head(FIRST_LINES)
    rows = [["" if cell != cell else str(cell).strip() for cell in row] for row in first.to_numpy()]
    above, names, units = _head(rows, options)
    if above:
        _say_skipped(path, above)
    body = cells.iloc[above + bool(names) + bool(units) :].reset_index(drop=True)
    labels = names + [""] * (body.shape[1] - len(names))
    columns = [
        (label, _without_marks(body.iloc[:, number].infer_objects(), options))
        for number, label in enumerate(labels)
    ]
    return columns, units


def _read_arrays(path: Path, options: Options) -> RawTable:
    """Return the columns of all numeric vectors and matrices; a row vector is a column.

    A matrix that is wider than high stays whole, because the direction of time in it is unclear;
    choosing it is an error.
    """
    from scipy.io import loadmat

    table: Columns = []
    arrays = read_npz(path) if path.suffix.lower() == ".npz" else loadmat(path)
    for name, array in arrays.items():
        if not (isinstance(array, np.ndarray) and array.dtype.kind in "biuf"):
            continue
        # pandas requires the native byte order, which the file may not have.
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.ndim == 1 or (array.ndim == 2 and 1 in array.shape):
            table.append((name, _without_marks(array.ravel(), options)))
        elif array.ndim == 2 and array.shape[0] < array.shape[1]:
            table.append((name, array))
        elif array.ndim == 2:
            table += [
                (f"{name}{number}", _without_marks(column, options))
                for number, column in enumerate(array.T)
            ]
    return table, ()


def _read_parquet(path: Path, options: Options) -> RawTable:
    import pandas

    frame = pandas.read_parquet(path)
    frame = frame if isinstance(frame.index, pandas.RangeIndex) else frame.reset_index()
    columns = [
        (str(label), _without_marks(frame.iloc[:, number], options))
        for number, label in enumerate(frame.columns)
    ]
    return columns, ()


def _without_marks(values: Any, options: Options) -> Any:
    """Return the values with markers of missing values replaced by NaN."""
    if not options.na:
        return values
    import pandas

    column = pandas.Series(values)
    marks = pandas.Series(options.na, dtype=object)
    numbers: Any = pandas.to_numeric(marks, errors="coerce")
    texts = column.astype(str).str.strip().isin(marks.astype(str))
    return column.mask(column.isin(numbers.dropna()) | texts)


READERS: dict[str, Callable[[Path, Options], RawTable]] = {
    ".csv": partial(_read_text, default_separator=","),
    ".tsv": partial(_read_text, default_separator="\t"),
    ".dat": partial(_read_text, default_separator=WHITESPACE),
    ".txt": partial(_read_text, default_separator=WHITESPACE),
    ".xlsx": _read_excel,
    ".mat": _read_arrays,
    ".npz": _read_arrays,
    ".parquet": _read_parquet,
}
