"""Objects as JSON and arrays, and back: no pickle, and no code from a file.

A description is made of what JSON has; a tag says what else a value is:

    {"tuple": [...]}, {"dict": {...}}                        as Python has them
    {"class": "kernels.Sum", "fields": {...}}                a class of `CLASSES`, and no other
    {"array": "model/kernel.log_variance", "dtype": ...}     an array by its name
    {"link": "abs"}                                          a link of `LINKS`
    {"part": "mean.function", "was": "physics.drag", ...}    a user's own function or class

Code cannot be stored. A user's own part is stored by name, with the arrays it holds, and is passed
again when the object is restored.
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
# Every class that a description may name.
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
    """The file is sound, but what it was loaded with is not what it needs."""


def describe(
    thing: Any, locate: Callable[[str], str] = lambda name: name.replace("/", "|")
) -> tuple[Any, Arrays]:
    """Return the description of an object, fit for JSON, and its arrays by name.

    Parameters
    ----------
    thing : object
        Plain values, arrays, objects of `CLASSES`, functions, and containers of these.
    locate : callable, optional
        The name of an array, from the dotted name of its place in the object.
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
        names = getattr(thing, "_fields", ())  # of a named tuple
        names = names or [item.name for item in dataclasses.fields(thing)]
        fields = {name: visit(getattr(thing, name), (*path, name)) for name in names}
        return {"class": LABELS[kind], "fields": fields}

    return visit(thing, ()), arrays


@in_double_precision
def restore(
    description: Any, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any] | None = None
) -> Any:
    """Return the object that was described, every array as it was to the last bit.

    Parameters
    ----------
    description
        What `describe` returned, perhaps by way of JSON.
    arrays
        Its arrays by name; it may hold others.
    parts
        The user's own functions and classes by dotted name; see `user_parts`.
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
    """Return the user's own parts that a description needs, and what each was."""
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
    """Name, dtype and kind of an array; one without entries is described by its shape alone."""
    value = np.asarray(array)
    kind = "number" if isinstance(array, np.generic) else "numpy"
    if isinstance(array, jax.Array):
        # A weak type gives way to the dtype of the leaf it meets, so it is part of a number.
        kind = "weak" if array.weak_type and not value.shape else "jax"
    name = locate(".".join(path)) or "value"
    description = {"array": name, "dtype": value.dtype.name, "kind": kind}
    if value.size == 0:
        return description | {"shape": list(value.shape)}
    while name in arrays:  # a dictionary's keys may contain dots
        name += "_"
    arrays[name] = value
    return description | {"array": name}


def _describe_part(
    thing: Any, path: Path, locate: Callable[[str], str], arrays: Arrays
) -> dict[str, Any]:
    """The name of a user's own part, what it was, and the arrays it holds."""
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
    """An array of the dtype and kind that it had."""
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
    """The user's part, with the arrays that were stored in place of its own."""
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
