"""`gpssm methods`, `kernels` and `likelihoods`, and `gpssm data`: lists of available choices."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpssm.cli.shell import Answer, Screen, check_paths, usage
from gpssm.core.table import Table


def methods(screen: Screen) -> Answer:
    """List the methods."""
    from gpssm.methods import METHODS

    kinds = {name: type(config) for name, config in METHODS.items()}
    # Where the class only has settings, its module describes the method.
    shared = (inspect.getdoc(kind) or "" for kind in kinds.values())
    described = {
        name: inspect.getmodule(kind) if text.startswith("Settings of") else kind
        for (name, kind), text in zip(kinds.items(), shared, strict=True)
    }
    return _listed("Methods", {name: _words(name, thing) for name, thing in described.items()})


def kernels(screen: Screen) -> Answer:
    """List the kernels; names join with + and *."""
    from gpssm.model.kernels import KERNELS

    title = "Kernels: combine them with + and *, as in se+linear"
    return _listed(title, {name: _words(name, build) for name, build in KERNELS.items()})


def likelihoods(screen: Screen) -> Answer:
    """List the likelihoods."""
    from gpssm.model.likelihoods import LIKELIHOODS

    words = {name: _words(name, build) for name, build in LIKELIHOODS.items()}
    return _listed("Likelihoods", words)


def _listed(title: str, words: Mapping[str, str]) -> Answer:
    return Answer(words, [Table(["name", "description"], list(words.items()), title, words=2)])


def _words(name: str, thing: Any) -> str:
    """Return the first paragraph of the documentation of a class or module.

    In place of a class, its method `build` may be given, or a partial application of it.
    """
    thing = getattr(getattr(thing, "func", thing), "__self__", thing)
    words = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    words = re.sub(rf"^`?{re.escape(name)}`?[:,] ", "", words, flags=re.I)
    words = words.replace("g from `LINKS` or a custom `Link`", f"g = {name}")
    # Formulas are not changed.
    return words if re.match("[ky][( ]", words) else words[:1].upper() + words[1:]


def list_data(screen: Screen) -> Answer:
    """List the series that `gpssm data fetch` knows."""
    from gpssm.data.datasets import REGISTRY, SIMULATORS

    entries = {name: entry.description for name, entry in REGISTRY.items()}
    entries |= {
        f"sim:{name}": (inspect.getdoc(simulator) or "").split("\n")[0]
        for name, simulator in SIMULATORS.items()
    }
    return _listed("Series", entries)


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
