"""The tutorial as a notebook, and the pictures of pages.

python docs/make_notebooks.py                       write docs/notebooks from the pages
python docs/make_notebooks.py --draw tutorial.md    run a page, and save the figures that it shows
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES = ("tutorial.md",)
FENCE = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"\s*!\[.*?\]\((.*?)\)")


def split_page(text: str) -> list[tuple[str, str]]:
    """The parts of a page in order, each "markdown" or "code"."""
    parts = []
    place = 0
    for block in FENCE.finditer(text):
        parts.append(("markdown", text[place : block.start()].strip()))
        parts.append(("code", block[1].strip()))
        place = block.end()
    parts.append(("markdown", text[place:].strip()))
    return [(kind, part) for kind, part in parts if part]


def notebook(page: str) -> dict[str, Any]:
    """A page as a notebook without outputs; pictures that its cells draw are left out."""
    cells = []
    for number, (kind, part) in enumerate(split_page((DOCS / page).read_text(encoding="utf-8"))):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        source = re.sub(r"^!\[.*?\]\(.*?\)$\n*", "", part, flags=re.MULTILINE).strip()
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
            # A figure that a cell makes is shown by naming it at the end.
            source += "\nfigure" if "figure = " in source else ""
        else:
            source = re.sub(r"\]\((?!https?:|#)(.*?)\)", r"](../\1)", source)
        if source:
            cells.append(cell | {"source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def path_of(page: str) -> Path:
    """Path of the notebook of a page."""
    return DOCS / "notebooks" / f"{Path(page).stem}.ipynb"


def write() -> None:
    """Write all notebooks."""
    for page in PAGES:
        text = json.dumps(notebook(page), indent=1, ensure_ascii=False)
        path_of(page).write_text(text + "\n", encoding="utf-8")


def draw(page: str) -> None:
    """Run the blocks of a page, and save `figure` after each block followed by a picture."""
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in FENCE.finditer(text):
        exec(compile(block[1], page, "exec"), namespace)
        if image := IMAGE.match(text, block.end()):
            namespace["figure"].savefig(DOCS / image[1], dpi=110)


if __name__ == "__main__":
    draw(sys.argv[-1]) if "--draw" in sys.argv else write()
