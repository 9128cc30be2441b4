"""Results in a folder: one JSON object a line, in a file that is only ever appended to.

A line is the outcome of one (dataset, method, seed, protocol). What it must agree in to be the same result is its
`key`. A line goes into the file in one write; where a crash broke the last one off, it is passed over when read, and
cut away before the next is written.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpssm.checkpoint import describe

FILE = "results.jsonl"
KEY = ("dataset", "method", "seed", "protocol", "config_hash", "data_hash")

Line = dict[str, Any]
Key = tuple[Any, ...]


def key(line: Mapping[str, Any]) -> Key:
    """What makes a line this result and no other: its cell, protocol, settings and data."""
    return tuple(line[name] for name in KEY)


def load_results(folder: str | Path) -> list[Line]:
    """All results of a folder in the order of the file, each once.

    Where a cell was run again because it had failed, the later line counts, and one that is "ok" before any that is
    not. Figures that do not exist (NaN) are None.
    """
    found: dict[Key, Line] = {}
    for line in _lines(Path(folder) / FILE):
        before = found.get(key(line))
        if before is None or before["status"] != "ok":
            found.pop(key(line), None)
            found[key(line)] = line
    return list(found.values())


def append(folder: str | Path, lines: Iterable[Line]) -> None:
    """Add lines to the folder's results, on the disk when this returns."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    _cut_broken_end(path)
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())
        os.fsync(file.fileno())


def plain(value: Any) -> Any:
    """A value as JSON has it: NaN and infinities are None, and what JSON cannot hold is its `repr`."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else describe(value)


def _lines(path: Path) -> Iterable[Line]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {FILE} in {path.parent}: run a sweep with that folder as `out` first")
    *whole, _ = path.read_text().split("\n")
    for number, text in enumerate(whole, start=1):
        try:
            yield json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path} is not JSON ({error}): mend it or take it out") from None


def _cut_broken_end(path: Path) -> None:
    """Cut the file after its last whole line."""
    with path.open("a+b") as file:
        size = file.tell()
        file.seek(max(size - 1, 0))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
