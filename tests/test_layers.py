"""The import graph: a package imports only from itself and from the packages before it, anywhere in its code."""

import ast
import importlib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import gpssm
from programs import run_program

ROOT = Path(gpssm.__file__).parent

# In the order of the data.
PACKAGES = [
    *("core", "data", "model", "linear", "starts", "inference", "methods", "posterior"),
    *("fitting", "evaluation", "plots", "report", "bench", "cli"),
]
# Methods that present a result may import what presents it, in their body.
PRESENTING = ("plot", "summary")
# Other functions that may import from later packages in their body, and why.
EXEMPT = {
    ("posterior/posterior.py", "calibrate"): "it fits the model again to parts of the data",
}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)
FACES = sorted(path for path in ROOT.glob("*.py") if path.name != "__init__.py")


class Import(NamedTuple):
    """A file of the package that another one imports, and the function in whose body it does so, if any."""

    target: Path
    function: str


def imports(path):
    """Every import of another file of the package, also inside functions, but not those for type checkers alone."""
    found = []

    def visit(node, scope):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and getattr(child.test, "id", None) == "TYPE_CHECKING":
                continue
            inner = scope
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*scope, child.name)
            names = [alias.name for alias in child.names] if isinstance(child, ast.Import) else []
            if isinstance(child, ast.ImportFrom) and child.module:
                names = [f"{child.module}.{alias.name}" for alias in child.names]
            targets = [_home(name.split(".")[1:]) for name in names if name.startswith("gpssm.")]
            found.extend(Import(target, ".".join(scope)) for target in targets if target)
            visit(child, inner)

    visit(ast.parse(path.read_text()), ())
    return found


def _home(parts):
    """The file that a dotted name is in, relative to the package; None for a name of the package itself."""
    while parts:
        for candidate in (
            ROOT.joinpath(*parts).with_suffix(".py"),
            ROOT.joinpath(*parts, "__init__.py"),
        ):
            if candidate.exists():
                return candidate.relative_to(ROOT)
        parts = parts[:-1]
    return None


def counted(path):
    """The imports of a file without those in the bodies that are exempt."""
    name = path.relative_to(ROOT).as_posix()
    return [
        one
        for one in imports(path)
        if one.function.rpartition(".")[2] not in PRESENTING and (name, one.function) not in EXEMPT
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_imports_from_its_own_package_or_from_packages_before_it(path):
    name = path.relative_to(ROOT)
    for target, function in counted(path):
        assert len(target.parts) > 1, f"{name} imports {target}, which only names what is public"
        before = PACKAGES.index(target.parts[0]) <= PACKAGES.index(name.parts[0])
        assert before, f"{name} imports {target}, from a later package, in {function or 'its body'}"


@pytest.mark.parametrize("package", PACKAGES)
def test_files_of_a_package_do_not_import_each_other_in_a_circle(package):
    graph = {
        path.relative_to(ROOT): {
            target
            for target, _ in counted(path)
            if target.parts[0] == package and ROOT / target != path
        }
        for path in FILES
        if path.relative_to(ROOT).parts[0] == package
    }
    list(TopologicalSorter(graph).static_order())


def test_every_exemption_is_used():
    used = {
        (path.relative_to(ROOT).as_posix(), function)
        for path in FILES
        for target, function in imports(path)
        if PACKAGES.index(target.parts[0]) > PACKAGES.index(path.relative_to(ROOT).parts[0])
    }
    assert set(EXEMPT) <= used
    assert {function.rpartition(".")[2] for _, function in used - set(EXEMPT)} == set(PRESENTING)


def test_beside_the_packages_there_are_only_modules_that_name_what_is_public():
    files = {"__init__.py", "py.typed", *(path.name for path in FACES)}
    assert {path.name for path in ROOT.iterdir() if path.name != "__pycache__"} == {
        *files,
        *PACKAGES,
    }
    modules = set(gpssm.__all__) - set(gpssm._NAMES) - set(PACKAGES)
    assert {path.stem for path in FACES} == modules | set(gpssm._OPTIONAL_MODULES)
    for path in FACES:
        docstring, *statements, names = ast.parse(path.read_text()).body
        assert isinstance(docstring, ast.Expr), path
        assert all(isinstance(statement, ast.ImportFrom) for statement in statements), path
        listed = [alias.name for statement in statements for alias in statement.names]
        assert sorted(listed) == sorted(ast.literal_eval(names.value)), path


@pytest.mark.parametrize("name", [*gpssm.__all__, *gpssm._OPTIONAL_MODULES])
def test_a_public_name_is_found_by_attribute_and_by_import(name):
    thing = getattr(gpssm, name)
    if name in gpssm._NAMES:
        assert thing is getattr(importlib.import_module(f"gpssm.{gpssm._NAMES[name]}"), name)
    else:
        assert thing is importlib.import_module(f"gpssm.{name}")
        assert all(hasattr(thing, listed) for listed in thing.__all__)


def test_type_checkers_are_told_of_the_same_names():
    (block,) = [
        node
        for node in ast.parse((ROOT / "__init__.py").read_text()).body
        if isinstance(node, ast.If)
    ][:1]
    told = {alias.asname: node.module for node in block.body for alias in node.names}
    modules = {name: "gpssm" for name in (*gpssm._MODULES, *gpssm._OPTIONAL_MODULES)}
    assert told == modules | {name: f"gpssm.{home}" for name, home in gpssm._NAMES.items()}


def test_importing_the_package_does_not_import_jax():
    assert run_program("loaded", "gpssm", "jax", "numpy") == "[]\n"


def test_no_two_classes_have_the_same_name():
    homes = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
