"""The shape of the code: a folder is a room, and a file imports from its own room and from rooms above it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gpssm

ROOT = Path(gpssm.__file__).parent

# From the top down: the way of the data.
ROOMS = [
    *("core", "data", "model", "linear", "starts", "inference", "methods", "posterior"),
    *("fitting", "evaluation", "plots", "report", "bench", "cli"),
]
# Objects whose verbs are done in rooms below. They reach down in the body of a verb, never when they are imported.
FACES = {
    *("data/series.py", "posterior/posterior.py", "posterior/forecast.py", "posterior/linearisation.py"),
    *("evaluation/compare.py", "evaluation/backtest.py"),
}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imports(path):
    """Every file or room of the package that a file imports, and whether it does so when it is loaded itself."""
    tree = ast.parse(path.read_text())
    typing = {id(node) for block in ast.walk(tree) if _is_type_checking(block) for node in ast.walk(block)}
    loaded = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("gpssm.") and id(node) not in typing:
                yield _home(name.split(".")[1:]), id(node) in loaded


def _is_type_checking(node):
    return isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"


def _home(parts):
    """The file that a dotted name is in, relative to the package; None for a name of the package itself."""
    while parts:
        for candidate in (ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")):
            if candidate.exists():
                return candidate.relative_to(ROOT)
        parts = parts[:-1]
    return None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_to_the_own_room_or_to_rooms_above(path):
    own = path.relative_to(ROOT)
    for target, when_loaded in imports(path):
        if target is None or (str(own) in FACES and not when_loaded):
            continue
        assert ROOMS.index(target.parts[0]) <= ROOMS.index(own.parts[0]), f"{own} imports {target}, from a room below"


@pytest.mark.parametrize("room", ROOMS)
def test_no_cycles_within_a_room(room):
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == room]
    graph = {
        str(path.relative_to(ROOT)): {
            str(target) for target, _ in imports(path) if target and target.parts[0] == room and ROOT / target != path
        }
        for path in files
    }
    list(TopologicalSorter(graph).static_order())


def test_the_package_itself_holds_rooms_and_nothing_else():
    found = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert found == {"__init__.py", "py.typed", *ROOMS}
