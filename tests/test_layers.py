"""The shape of the code: a file imports only from layers above it, and stays short."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "gpssm"

# From the top down. Files of one folder share a layer: an item imports `base` files and nothing beside it.
LAYERS = [
    "runtime",
    "linalg",
    "columns",
    "series",
    "scaler",
    "readers",
    "linear_ssm",
    "subspace",
    "kernels",
    "bases",
    "means",
    "likelihoods",
    "priors",
    "model",
    "types",
    "target",
    "conditionals",
    "whitening",
    "initialise",
    "output_error",
    "build",
    "moves",
    "methods",
    "diagnostics",
    "chains",
    "checkpoint",
    "progress",
    "loop",
    "metrics",
    "alignment",
    "style",
    "forecast",
    "fitted",
    "thinning",
    "ensemble",
    "cubature",
    "rollout",
    "forecasting",
    "smoothing",
    "dynamics",
    "examination",
    "filtering",
    "conditioning",
    "prediction",
    "update",
    "serialise",
    "storage",
    "exports",
    "assessment",
    "distrust",
    "summary",
    "summarising",
    "plots",
    "posterior",
    "fit",
    "comparison",
    "rolling",
    "backtesting",
    "selection",
    "datasets",
    "benchmark",
    "settings",
    "runs",
    "report",
    "judging",
    "gallery",
    "pipeline",
    "demo",
    "commands",
    "cli",
]
# Folders whose files build on each other, with their own order.
ORDERS = {
    "report": ["words", "contest", "lights", "charts", "pictures", "content", "page"],
    "benchmark": [
        "published",
        "data",
        "protocols",
        "results",
        "cells",
        "auto",
        "workers",
        "monitor",
        "sweep",
        "summary",
        "tables",
        "pictures",
        "report",
    ],
}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path):
    """Every module of the package that a file imports, as a tuple of names under `gpssm`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            own = [f"gpssm.{alias.name}" for alias in node.names if alias.name != "__version__"]
            names = own if node.module == "gpssm" else [node.module]
        yield from (tuple(name.split(".")[1:]) for name in names if name.startswith("gpssm."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upwards(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    for target in imported(path):
        if parts[0] in ORDERS and target[0] == parts[0]:
            order = [*ORDERS[parts[0]], "__init__"]
            assert order.index(target[1]) < order.index(parts[1]), f"{path} imports {target[1]}, a file below it"
        elif len(parts) == 2 and target[0] == parts[0]:
            assert parts[1] == "__init__" or (len(target) == 2 and target[1].startswith("base")), (
                f"{path} imports its sibling {'.'.join(target)}"
            )
        else:
            assert LAYERS.index(target[0]) < LAYERS.index(parts[0]), f"{path} imports {target[0]}, a layer below it"


def test_every_file_has_a_layer_and_a_reasonable_length():
    for path in FILES:
        assert path.relative_to(ROOT).with_suffix("").parts[0] in LAYERS
        assert len(path.read_text().splitlines()) <= 250, f"{path} is too long to read in one go"
