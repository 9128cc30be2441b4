"""From a table on disk to a Series: text (CSV, TSV, DAT, TXT), MATLAB, NumPy and Parquet files.

A reader is a function of the path that returns a Table; `READERS` says which suffix has which.
"""

import csv
import difflib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpssm.core.files import read_npz
from gpssm.core.text import check_path, is_whole, read_csv
from gpssm.data.clock import Controls, is_time
from gpssm.data.iddata import read_iddata
from gpssm.data.series import Series

Column = str | int
Table = list[tuple[str, Any]]  # name and values of every column, in the order of the file

WHITESPACE = r"\s+"
COMMENTS = ("#", "%")  # that lines before the data may begin with
MOST_COLUMNS = 20_000  # a file with more was written the wrong way round
MISSING = {"", "na", "n/a", "nan", "null", "none", "<na>"}


def read(
    path: str | Path,
    outputs: Sequence[Column] | Column | None = None,
    inputs: Sequence[Column] | Column = (),
    *,
    name: str | None = None,
    dt: float | None = None,
    time: Column | None = "auto",
    regrid: bool | float | str = False,
    controls: Controls = "hold",
    units: Mapping[str, str] | None = None,
) -> Series:
    """Read the columns `outputs` and `inputs` of a file into a Series, one row per time step.

        read("tank.csv", outputs=["level"], inputs=["pump", "valve"], dt=0.1)
        read("ballbeam.dat", outputs=1, inputs=0)
        read("iddata.mat")  # an iddata of MATLAB, s = get(data)

    A column is chosen by its name or by its number, counted from 0. In text files the delimiter (tab,
    semicolon, comma, in .dat and .txt also spaces) and whether there is a header are found out, with a warning that
    says what was taken for one where it is doubtful; empty cells of an output are missing values. In .mat and .npz
    files a matrix `y` has the columns `y0`, `y1`, ...; one with fewer rows than columns is not taken to pieces.
    Without `outputs` a .mat file must have the struct of an iddata, whose names, units and sampling time are taken.
    The series is called `name`, by default as the file; `dt` is its sampling time where there is no column of times.

    :param time: the column of times, numbers or dates; "auto" looks for one among the columns that were not chosen: one
        with dates, or with numbers and a name like time, t, timestamp; None counts rows.
    :param regrid, controls: what to do with times that are not regular: see `Series.from_dataframe`.
    :param units: of columns by name, for axes and tables.
    """
    path = check_path(path)
    if outputs is None:
        if path.suffix.lower() != ".mat":
            raise ValueError(f"{path}: name its outputs, outputs=[...], by column name or number")
        _check_file(path)
        return read_iddata(path, name=name, dt=dt, units=units)
    table = _load(path)
    chosen_outputs = [_index(table, column, path) for column in _listed(outputs)]
    chosen_inputs = [_index(table, column, path) for column in _listed(inputs)]
    try:
        if not chosen_outputs:
            raise ValueError(
                f"outputs needs at least one column of {[label for label, _ in table]}"
            )
        chosen = _select(table, chosen_outputs + chosen_inputs)
        y, u = chosen[: len(chosen_outputs)], chosen[len(chosen_outputs) :]
        settings: dict[str, Any] = {"name": path.stem if name is None else name, "units": units}
        settings |= {"outputs": [label for label, _ in y], "inputs": [label for label, _ in u]}
        columns = [
            np.column_stack([values for _, values in part]) if part else None for part in (y, u)
        ]
        rest = [
            one for number, one in enumerate(table) if number not in chosen_outputs + chosen_inputs
        ]
        found = (
            _find_time(rest)
            if time == "auto"
            else None
            if time is None
            else table[_index(table, time, path)]
        )
        if found is None and regrid:
            raise ValueError(
                "regrid needs a column of times, and none was found: name it with time (--time)"
            )
        if found is None:
            return Series(*columns, dt=dt, **settings)
        label, times = found
        times = times if not hasattr(times, "rename") else times.rename(label)
        if regrid:
            return Series.on_grid(times, *columns, regrid=regrid, controls=controls, **settings)
        return Series(*columns, time=times, dt=dt, **settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _find_time(table: Table) -> tuple[str, Any] | None:
    """The first column that holds times."""
    import pandas

    for label, values in table:
        if np.ndim(values) == 1 and is_time(pandas.Series(values, name=label)):
            return label, values
    return None


def _listed(columns: Sequence[Column] | Column) -> list[Column]:
    listed = (
        [columns]
        if isinstance(columns, str | int) or not isinstance(columns, Iterable)
        else list(columns)
    )
    if wrong := [
        column for column in listed if not isinstance(column, str) and not is_whole(column)
    ]:
        raise TypeError(f"a column is chosen by its name or by its number; got {wrong[0]!r}")
    return listed


def _load(path: Path) -> Table:
    """The table of a file, with columns of the same name told apart by their number."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{path}: the suffix must be one of {', '.join(READERS)}; got {path.suffix!r}"
        )
    _check_file(path)
    try:
        table = reader(path)
    except (ImportError, Warning):
        raise
    except MemoryError as error:
        raise MemoryError(
            f"{path} holds, or claims to hold, more than the memory does: {error}"
        ) from None
    except Exception as error:  # the parsers of damaged files raise whatever they stumble over
        raise ValueError(
            f"{path} cannot be read as a {path.suffix} file: {str(error).strip()}. "
            "It may be damaged, cut short, or of another format"
        ) from error
    number_of = Counter(label for label, _ in table)
    return [
        (label if label and number_of[label] == 1 else f"{label} column {number}".strip(), values)
        for number, (label, values) in enumerate(table)
    ]


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; the working folder is {Path.cwd()}")


def _index(table: Table, column: Column, path: Path) -> int:
    """Number of a column; for one that is not there, an error with the known ones and the nearest."""
    names = [label for label, _ in table]
    if column in names:
        return names.index(str(column))
    if str(column).isdecimal() and len(str(column)) < 10 and int(column) < len(names):
        return int(column)
    known = ", ".join(f"{number}: {label!r}" for number, label in enumerate(names[:50]))
    message = f"{path} has no column {column!r}; it has {known or 'no column of numbers'}."
    if nearest := difflib.get_close_matches(str(column)[:100], names[:1000], n=1):
        message += f" Did you mean {nearest[0]!r}?"
    if len(names) == 1:
        message += " Only one column was found: is the delimiter a comma, a semicolon or a tab?"
    raise ValueError(message)


def _select(table: Table, indices: list[int]) -> Table:
    """The columns with these numbers: none twice, all of the same length."""
    chosen = [table[index] for index in indices]
    if twice := [table[index][0] for index in set(indices) if indices.count(index) > 1]:
        raise ValueError(
            f"column {twice[0]!r} was chosen twice; a column is either an output or an input"
        )
    for label, values in chosen:
        if np.ndim(values) == 2:
            rows, columns = np.shape(values)
            raise ValueError(
                f"{label!r} has {rows} rows and {columns} columns, but a row is a time step. Write it to the file "
                f"transposed; if it is as it should be, load the array yourself and pass it to Series"
            )
    lengths = {label: len(values) for label, values in chosen}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the chosen columns must have as many rows each; got {lengths}")
    return chosen


class Layout(NamedTuple):
    """How a text file is laid out; `names` is empty without a header, `start` is the first line of data."""

    separator: str
    decimal: str
    names: list[str]
    start: int


def _read_text(path: Path, default_separator: str) -> Table:
    """Table of a text file; the names of columns without a header are empty."""
    layout = _layout(path, default_separator)
    frame = read_csv(
        path,
        sep=layout.separator,
        decimal=layout.decimal,
        header=None,
        skiprows=layout.start,
        skipinitialspace=True,
        encoding="utf-8-sig",
        low_memory=False,
    )
    # A delimiter at the end of every line makes a last column with neither a name nor a value.
    filled = np.flatnonzero(frame.notna().any())
    frame = frame.iloc[:, : max(len(layout.names) or 1, *(filled[-1:] + 1))]
    names = layout.names or [""] * frame.shape[1]
    if len(names) != frame.shape[1]:
        raise ValueError(
            f"the header names {len(names)} columns, the rows have {frame.shape[1]} cells"
        )
    if frame.iloc[:, -1].isna().any():
        # pandas fills up with missing values a line that has fewer cells than the others.
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, cells in enumerate(_cells(file, layout.separator), start=1):
                if any(cells) and len(cells) < frame.shape[1]:
                    raise ValueError(f"line {number} has {len(cells)} of {frame.shape[1]} cells")
    return [(label, frame[number]) for number, label in enumerate(names)]


def _layout(path: Path, default_separator: str) -> Layout:
    """Layout as the first lines show it; without a tab, semicolon or comma the default separator holds."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        written = ((number, line) for number, line in enumerate(file) if line.strip())
        comments, lines = [], list(islice(written, 1))
        while lines and lines[0][1].lstrip().startswith(COMMENTS):
            comments, lines = lines, list(islice(written, 1))
        lines += islice(written, 49)
    if not lines:
        raise ValueError("it has no lines")
    unquoted = re.sub(r'"[^"]*"', "", lines[0][1])
    separator = next((mark for mark in "\t;," if mark in unquoted), default_separator)
    # Within semicolons, as spreadsheets write them in half of Europe, a comma is the decimal mark.
    decimal = "," if separator == ";" and any("," in line for _, line in lines[1:]) else "."
    cells = list(
        islice(_cells((line for _, line in lines), separator), 2)
    )  # a quoted name may take several lines
    if len(cells[0]) > MOST_COLUMNS:
        raise ValueError(
            f"it has {len(cells[0])} columns, but a row is a time step: write it the other way round"
        )
    # A header has text above a number, or is nothing but text.
    names = _without_blank_end(cells[0])
    above = any(
        _is_text(a) and b and not _is_text(b) for a, b in zip(cells[0], cells[-1], strict=False)
    )
    if above or (any(names) and all(map(_is_text, names))):
        if len(lines) == 1:
            raise ValueError("it has a header and no rows")
        # Names may be years, and some may be left out; measurements and marks are none.
        if any(map(_is_doubtful, names)):
            _doubt(
                path,
                lines[0],
                f"was taken for the header, with the columns {_shown(names)}. Where it holds data",
            )
        return Layout(separator, decimal, names, lines[0][0] + 1)
    if not comments:
        return Layout(separator, decimal, [], 0)
    number, line = comments[0]
    names = _without_blank_end(
        next(_cells([line.strip().lstrip("".join(COMMENTS)).strip()], separator))
    )
    if len(names) == len(_without_blank_end(cells[0])) and all(map(_is_text, names)):
        _doubt(
            path,
            (number, line),
            f"was taken for the header, with the columns {_shown(names)}. If it is none",
        )
        return Layout(separator, decimal, names, lines[0][0])
    _doubt(
        path, (number, line), "and lines like it above were taken for comments. If they are none"
    )
    return Layout(separator, decimal, [], lines[0][0])


def _is_doubtful(name: str) -> bool:
    """Whether a name is a number with a fraction or an exponent, or has neither letters nor digits."""
    return bool(name) and not (any(map(str.isalnum, name)) if _is_text(name) else name.isdigit())


def _shown(names: list[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


def _doubt(path: Path, line: tuple[int, str], words: str) -> None:
    """Warn of a line whose part in the file had to be guessed."""
    text = line[1].strip()
    text = text if len(text) <= 60 else f"{text[:60]}…"
    warnings.warn(
        f"{path}: line {line[0] + 1} ({text!r}) {words}, correct or delete it", stacklevel=7
    )


def _cells(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Cells of every line, stripped; quoted cells may hold separators."""
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


def _read_mat(path: Path) -> Table:
    from scipy.io import loadmat

    return _numeric_columns(
        {name: array for name, array in loadmat(path).items() if name[:2] != "__"}
    )


def _read_npz(path: Path) -> Table:
    return _numeric_columns(read_npz(path))


def _numeric_columns(arrays: Mapping[str, Any]) -> Table:
    """Columns of the vectors and matrices of numbers; a row vector counts as a column.

    A matrix that is wider than high stays whole: which way time runs in it is asked when it is chosen.
    """
    table: Table = []
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.ndim in (1, 2):
            wide = array.ndim == 2 and 1 < array.shape[0] < array.shape[1]
            columns = (
                [array]
                if wide
                else [array.ravel()]
                if array.ndim == 1 or 1 in array.shape
                else list(array.T)
            )
            labels = (
                [name]
                if len(columns) == 1
                else [f"{name}{number}" for number in range(len(columns))]
            )
            table += zip(labels, columns, strict=True)
    return table


def _read_parquet(path: Path) -> Table:
    import pandas

    frame = pandas.read_parquet(path)
    return [(str(label), frame.iloc[:, number]) for number, label in enumerate(frame.columns)]


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": partial(_read_text, default_separator=","),
    ".tsv": partial(_read_text, default_separator="\t"),
    ".dat": partial(_read_text, default_separator=WHITESPACE),
    ".txt": partial(_read_text, default_separator=WHITESPACE),
    ".mat": _read_mat,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
