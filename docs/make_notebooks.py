"""Pages as notebooks, and the pictures of pages: what is shown is what runs.

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
INCLUDED = re.compile(r'^--8<-- "(.*?):(.*?)"$', re.MULTILINE)
IMAGE = re.compile(r"\s*!\[.*?\]\((.*?)\)")


def cells(text: str) -> list[tuple[str, str]]:
    """The parts of a page in order, "markdown" or "code"; what is included has another fence, and is not run."""
    found, place = [], 0
    for block in FENCE.finditer(text):
        found.append(("markdown", text[place : block.start()].strip()))
        found.append(("code", block[1].strip()))
        place = block.end()
    found.append(("markdown", text[place:].strip()))
    return [(kind, part) for kind, part in found if part]


def included(text: str) -> str:
    """The page with the parts of files that it includes, as MkDocs shows them."""

    def part(found: re.Match[str]) -> str:
        whole = (DOCS.parent / found[1]).read_text(encoding="utf-8")
        inside = re.search(
            rf"# --8<-- \[start:{found[2]}\]\n(.*?)# --8<-- \[end:{found[2]}\]", whole, re.DOTALL
        )
        assert inside, f"{found[1]} has no part {found[2]}"
        return inside[1].rstrip()

    return INCLUDED.sub(part, text)


def notebook(page: str) -> dict[str, Any]:
    """A page as a notebook without outputs; pictures that its cells draw anew are left out."""
    text = (DOCS / page).read_text(encoding="utf-8")
    parts = []
    for number, (kind, part) in enumerate(cells(text)):
        source = re.sub(r"^!\[.*?\]\(.*?\)$\n*", "", part, flags=re.MULTILINE).strip()
        source = included(source.replace("``` { .python }", "```python"))
        source = (
            re.sub(r"\]\((?!https?:|#)(.*?)\)", r"](../\1)", source)
            if kind == "markdown"
            else source
        )
        # A figure that a cell makes is shown by its name at the end.
        source += "\nfigure" if kind == "code" and "figure = " in source else ""
        code = {"execution_count": None, "outputs": []} if kind == "code" else {}
        if source:
            parts.append(
                {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source} | code
            )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": parts, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def path_of(page: str) -> Path:
    """Where the notebook of a page is."""
    return DOCS / "notebooks" / f"{Path(page).stem}.ipynb"


def write() -> None:
    """Write all notebooks."""
    for page in PAGES:
        path_of(page).write_text(
            json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def draw(page: str) -> None:
    """Run the blocks of a page, and save `figure` after each that is followed by a picture."""
    text, namespace = (DOCS / page).read_text(encoding="utf-8"), {"__name__": "page"}
    for block in FENCE.finditer(text):
        exec(compile(block[1], page, "exec"), namespace)
        if image := IMAGE.match(text, block.end()):
            namespace["figure"].savefig(DOCS / image[1], dpi=110)


if __name__ == "__main__":
    draw(sys.argv[-1]) if "--draw" in sys.argv else write()
