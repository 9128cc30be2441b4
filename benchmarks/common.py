"""Parts that the benchmarks share; import it before JAX, because it gives BLAS one thread."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Cell = dict[str, Any]  # the result of one cell of a table


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of the script."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


class Timer:
    """The seconds of a `with` block: `wall` on the clock, and `cpu` of this process."""

    wall: float
    cpu: float

    def __enter__(self) -> Self:
        self.wall = time.perf_counter()
        self.cpu = time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wall = time.perf_counter() - self.wall
        self.cpu = time.process_time() - self.cpu


def read_cells(path: Path) -> list[Cell]:
    """Return the finished cells of a file of JSON lines; a line cut off by a kill is left out."""
    cells = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            cells.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return cells


def append_cell(path: Path, cell: Cell) -> None:
    """Append a finished cell, on a new line even if a kill has cut off the last one."""
    with path.open("a") as file:
        file.write(f"\n{json.dumps(cell)}\n")
