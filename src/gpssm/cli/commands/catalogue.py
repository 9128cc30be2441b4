"""`gpssm methods`, `kernels` and `likelihoods`, and `gpssm data`: lists of available choices."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpssm.cli.shell import Answer, Screen, check_paths, usage
from gpssm.core.table import Table


def methods(screen: Screen) -> Answer:
    """List the methods."""
    from gpssm.methods import METHODS

    homes = {name: inspect.getmodule(type(config)) for name, config in METHODS.items()}
    # Methods that share a file are described by their classes.
    shared = {name for name, home in homes.items() if list(homes.values()).count(home) > 1}
    described = {
        name: type(METHODS[name]) if name in shared else home for name, home in homes.items()
    }
    return _listed("Methods", described)


def kernels(screen: Screen) -> Answer:
    """List the kernels; names join with + and *."""
    from gpssm.model.kernels import KERNELS

    title = "Kernels: combine them with + and *, as in se+linear"
    return _listed(title, {name: _class(kernel) for name, kernel in KERNELS.items()})


def likelihoods(screen: Screen) -> Answer:
    """List the likelihoods."""
    from gpssm.model.likelihoods import LIKELIHOODS

    return _listed("Likelihoods", {name: _class(build) for name, build in LIKELIHOODS.items()})


def _listed(title: str, things: Mapping[str, Any]) -> Answer:
    """Return a table of names and the first paragraphs of their documentation."""
    words = {name: _first_paragraph(name, thing) for name, thing in things.items()}
    return _described(title, words)


def _described(title: str, words: Mapping[str, str]) -> Answer:
    return Answer(words, [Table(["name", "description"], list(words.items()), title, words=2)])


def _class(build: Any) -> Any:
    """Return the class of a method `build` or of a partial application of it."""
    return getattr(build, "func", build).__self__


def _first_paragraph(name: str, thing: Any) -> str:
    words = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    for head in (f"`{name}`: ", f"`{name}`, ", f"{name.upper()}: ", f"{name.upper()}, "):
        words = words.removeprefix(head)
    words = words.replace("g from `LINKS` or the user's own `Link`", f"g = {name}")
    # Formulas are not changed.
    return words if words[1:2] in "( " else words[:1].upper() + words[1:]


def list_data(screen: Screen) -> Answer:
    """List the series that `gpssm data fetch` knows."""
    from gpssm.data.datasets import REGISTRY, SIMULATORS

    entries = {name: entry.description for name, entry in REGISTRY.items()}
    entries |= {
        f"sim:{name}": (inspect.getdoc(simulator) or "").split("\n")[0]
        for name, simulator in SIMULATORS.items()
    }
    return _described("Series", entries)


def fetch(
    screen: Screen,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names listed by `gpssm data list`."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the CSV files.")] = Path(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> Answer:
    """Write series as CSV files, after downloading them if necessary.

    \b
    gpssm data fetch furnace sim:duffing
    """
    from gpssm.cli.run_folder import Run
    from gpssm.data.datasets import load

    paths = {name: out / f"{name.removeprefix('sim:').replace(':', '-')}.csv" for name in names}
    check_paths(out, *paths.values())
    with usage():
        present = [str(path) for path in paths.values() if path.exists()]
        if present and not overwrite:
            raise ValueError(f"{', '.join(present)} exists: pass --overwrite to replace it")
        loaded = {name: load(name) for name in names}
    files = {}
    shown = []
    for name, series in loaded.items():
        files[name] = str(Run(out).write_series(paths[name].name, series))
        columns = [f"-y {output!r}" for output in series.outputs]
        columns += [f"-u {column!r}" for column in series.inputs]
        shown.append(f"{files[name]}: {len(series)} rows, {' '.join(columns)}")
    return Answer(files, shown)
