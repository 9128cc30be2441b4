"""Objects as JSON and arrays, and back: no pickle, and no code from a file.

A description consists of JSON values; tags denote other types:

    {"tuple": [...]}, {"dict": {...}}                        Python tuples and dictionaries
    {"class": "kernels.Sum", "fields": {...}}                a class of `CLASSES`
    {"array": "model/kernel.log_variance", "dtype": ...}     an array by its name
    {"link": "abs"}                                          a link of `LINKS`
    {"part": "mean.function", "was": "physics.drag", ...}    a user-defined function or class

Code is not stored. A user-defined part is stored by name with its arrays, and must be passed when
the object is restored.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm.core.runtime import in_double_precision
from gpssm.data import clock, dataset, scaler, series
from gpssm.methods import METHODS, spec
from gpssm.model import bases, kernels, likelihoods, means, model, priors, types, wiring
from gpssm.model.likelihoods import LINKS, Link
from gpssm.posterior import calibration, draws

Arrays = dict[str, np.ndarray]
Path = tuple[str, ...]

MODULES = (
    *(kernels, bases, means, likelihoods, priors, model, types, wiring, spec),
    *(clock, series, scaler, dataset, draws, calibration),
)
# The classes that a description may name.
CLASSES: dict[str, type] = {
    f"{item.__module__.rpartition('.')[2]}.{item.__name__}": item
    for items in (*(vars(module).values() for module in MODULES), map(type, METHODS.values()))
    for item in items
    if isinstance(item, type)
    and item.__module__.startswith("gpssm.")
    and (dataclasses.is_dataclass(item) or hasattr(item, "_fields"))
}
LABELS = {cls: label for label, cls in CLASSES.items()}


class NotAsSaved(ValueError):
    """The file is valid, but the parts that were passed are not those it requires."""


def describe(
    thing: Any, locate: Callable[[str], str] = lambda name: name.replace("/", "|")
) -> tuple[Any, Arrays]:
    """Return the description of an object as JSON values, and its arrays by name.

    Parameters
    ----------
    thing : object
        Plain values, arrays, objects of `CLASSES`, functions, and containers of these.
    locate : callable, optional
        Function from the dotted name of an array in the object to its name in the file.
    """
    arrays: Arrays = {}

    def visit(thing: Any, path: Path) -> Any:
        kind: Any = type(thing)
        if kind in (type(None), bool, int, float, str):
            return thing
        if isinstance(thing, np.ndarray | np.generic | jax.Array):
            return _describe_array(thing, path, locate, arrays)
        if kind in (list, tuple):
            entries = [visit(entry, (*path, str(i))) for i, entry in enumerate(thing)]
            return entries if kind is list else {"tuple": entries}
        if kind is dict and all(isinstance(key, str) for key in thing):
            return {"dict": {key: visit(entry, (*path, key)) for key, entry in thing.items()}}
        if isinstance(thing, Link) and thing in LINKS.values():
            return {"link": next(name for name, link in LINKS.items() if link == thing)}
        if kind not in LABELS:
            return _describe_part(thing, path, locate, arrays)
        names = getattr(thing, "_fields", ())  # for named tuples
        names = names or [item.name for item in dataclasses.fields(thing)]
        fields = {name: visit(getattr(thing, name), (*path, name)) for name in names}
        return {"class": LABELS[kind], "fields": fields}

    return visit(thing, ()), arrays


@in_double_precision
def restore(
    description: Any, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any] | None = None
) -> Any:
    """Return the described object, with exactly the same arrays.

    Parameters
    ----------
    description
        The result of `describe`, possibly converted to JSON and back.
    arrays
        The arrays by name, possibly with others.
    parts
        User-defined functions and classes by dotted name; see `user_parts`.
    """
    parts = parts or {}
    missing = {name: was for name, was in user_parts(description).items() if name not in parts}
    if missing:
        wanted = ", ".join(f"{name!r}: ..." for name in missing)
        former = "; ".join(f"{name} was {was}" for name, was in missing.items())
        raise NotAsSaved(
            f"User-defined functions are not stored ({former}). Pass them: parts={{{wanted}}}."
        )

    def visit(description: Any) -> Any:
        if isinstance(description, list):
            return [visit(entry) for entry in description]
        if not isinstance(description, dict):
            return description
        match next(iter(description)):
            case "tuple":
                return tuple(visit(entry) for entry in description["tuple"])
            case "dict":
                return {name: visit(entry) for name, entry in description["dict"].items()}
            case "class":
                label = description["class"]
                if label not in CLASSES:
                    raise NotAsSaved(
                        f"This version of gpssm has no class {label!r}. Upgrade gpssm to read it."
                    )
                fields = {name: visit(entry) for name, entry in description["fields"].items()}
                return CLASSES[label](**fields)
            case "array":
                return _restore_array(description, arrays)
            case "link":
                return LINKS[description["link"]]
            case _:
                return _restore_part(description, arrays, parts)

    return visit(description)


def user_parts(description: Any) -> dict[str, str]:
    """Return the user-defined parts that a description requires, and their original names."""
    if isinstance(description, list):
        return {name: was for entry in description for name, was in user_parts(entry).items()}
    if not isinstance(description, dict):
        return {}
    if "part" in description:
        return {description["part"]: description["was"]}
    inner = next(
        (description[tag] for tag in ("tuple", "dict", "fields") if tag in description), []
    )
    return user_parts(list(inner.values()) if isinstance(inner, dict) else inner)


def _describe_array(
    array: Any, path: Path, locate: Callable[[str], str], arrays: Arrays
) -> dict[str, Any]:
    """Return name, dtype and kind of an array; an empty array is described by its shape only."""
    value = np.asarray(array)
    kind = "number" if isinstance(array, np.generic) else "numpy"
    if isinstance(array, jax.Array):
        # A weakly typed number takes the dtype of other operands, so that this is part of it.
        kind = "weak" if array.weak_type and not value.shape else "jax"
    name = locate(".".join(path)) or "value"
    description = {"array": name, "dtype": value.dtype.name, "kind": kind}
    if value.size == 0:
        return description | {"shape": list(value.shape)}
    while name in arrays:  # keys of dictionaries may contain dots
        name += "_"
    arrays[name] = value
    return description | {"array": name}


def _describe_part(
    thing: Any, path: Path, locate: Callable[[str], str], arrays: Arrays
) -> dict[str, Any]:
    """Return the name of a user-defined part, its original name, and its arrays."""
    name = ".".join(path)
    if not callable(thing) and not isinstance(thing, eqx.Module):
        raise TypeError(
            f"{name or 'this'} is a {type(thing).__name__}, which cannot be saved. Use plain "
            "values."
        )
    source = thing if hasattr(thing, "__qualname__") else type(thing)
    leaves = [
        _describe_array(
            leaf, (*path, jax.tree_util.keystr(keys, simple=True, separator=".")), locate, arrays
        )
        for keys, leaf in jax.tree_util.tree_leaves_with_path(thing)
        if isinstance(leaf, np.ndarray | jax.Array)
    ]
    return {"part": name, "was": f"{source.__module__}.{source.__qualname__}", "leaves": leaves}


def _restore_array(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Return an array with its original dtype and kind."""
    dtype = np.dtype(description["dtype"])
    shape = description.get("shape")
    if dtype.kind not in "biuf" or (shape is not None and math.prod(shape) != 0):
        raise ValueError(f"no posterior has an array of {dtype} with the shape {shape}")
    stored = arrays[description["array"]] if shape is None else np.zeros(shape)
    value = np.asarray(stored).astype(dtype)
    match description["kind"]:
        case "weak":
            with jax.enable_x64(dtype.itemsize == 8):
                return jnp.asarray(value.item())
        case "jax":
            return jnp.asarray(value)
        case "number":
            return value[()]
        case _:
            return value


def _restore_part(
    description: Mapping[str, Any], arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any]
) -> Any:
    """Return the user-defined part with the stored arrays."""
    name = description["part"]
    leaves, structure = jax.tree.flatten(parts[name])
    places = [
        place for place, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray | jax.Array)
    ]
    stored = [_restore_array(leaf, arrays) for leaf in description["leaves"]]
    shapes = [leaves[place].shape for place in places]
    expected = [leaf.shape for leaf in stored]
    if shapes != expected:
        raise NotAsSaved(
            f"The part {name!r} was {description['was']} with arrays of shapes {expected}; "
            f"the one passed has {shapes}. Pass one of the same structure."
        )
    for place, leaf in zip(places, stored, strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)
