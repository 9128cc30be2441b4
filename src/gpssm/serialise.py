"""Objects of this package as plain descriptions and arrays, and back: no pickle, and no code from a file.

    description, arrays = describe(model)
    model = restore(description, arrays)

A description is made of what JSON has; a tag says what else a thing is:

    {"tuple": [...]}, {"dict": {...}}                        as Python has them
    {"class": "kernels.Sum", "fields": {...}}                a class of `TABLE`: no other is ever made
    {"array": "kernel.left.log_variance", "dtype": ...}      an entry of `arrays`, by its dotted name
    {"link": "abs"}                                          a link of `LINKS`
    {"part": "mean.function", "was": "physics.drag", ...}    a user's own function or class

Code cannot be stored. A user's own part is stored by name, with the arrays it holds, and is handed over to `restore`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm import bases, fitted, kernels, likelihoods, means, model, priors, scaler, series, types
from gpssm.likelihoods import LINKS, Link
from gpssm.runtime import numerical

Path = tuple[str, ...]
Arrays = dict[str, np.ndarray]

_MODULES = (kernels, bases, means, likelihoods, priors, model, types, series, scaler, fitted)
_PLAIN = (type(None), bool, int, float, str)


def _label(cls: type) -> str:
    return f"{cls.__module__.split('.')[1]}.{cls.__name__}"


def _is_record(thing: Any) -> bool:
    own = isinstance(thing, type) and thing.__module__.startswith("gpssm.")
    return own and (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields"))


# Every class a description may name.
TABLE: dict[str, type] = {_label(cls): cls for home in _MODULES for cls in vars(home).values() if _is_record(cls)}


def describe(thing: Any) -> tuple[Any, Arrays]:
    """The description of a thing, fit for JSON, and its arrays by dotted name."""
    arrays: Arrays = {}
    return _describe(thing, (), arrays), arrays


@numerical
def restore(description: Any, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any] | None = None) -> Any:
    """The thing that was described, every array as it was to the last bit.

    :param parts: the user's own functions and classes by dotted name; `user_parts` says which are needed.
    """
    parts = parts or {}
    missing = {name: was for name, was in user_parts(description).items() if name not in parts}
    if missing:
        wanted = ", ".join(f"{name!r}: ..." for name in missing)
        found = "; ".join(f"{name} was {was}" for name, was in missing.items())
        raise ValueError(f"A user's own functions are not stored ({found}). Hand them over: parts={{{wanted}}}.")
    return _restore(description, arrays, parts)


def user_parts(description: Any) -> dict[str, str]:
    """The user's own parts that a description needs, and what each was when it was described."""
    if isinstance(description, list):
        return {name: was for entry in description for name, was in user_parts(entry).items()}
    if not isinstance(description, dict):
        return {}
    if "part" in description:
        return {description["part"]: description["was"]}
    inner = next((description[tag] for tag in ("tuple", "dict", "fields") if tag in description), [])
    return user_parts(list(inner.values()) if isinstance(inner, dict) else inner)


def _describe(thing: Any, path: Path, arrays: Arrays) -> Any:
    if type(thing) in _PLAIN:
        return thing
    if isinstance(thing, np.ndarray | np.generic | jax.Array):
        return _describe_array(thing, path, arrays)
    if type(thing) in (list, tuple):
        entries = [_describe(entry, (*path, str(index)), arrays) for index, entry in enumerate(thing)]
        return entries if isinstance(thing, list) else {"tuple": entries}
    if type(thing) is dict and all(isinstance(key, str) for key in thing):
        return {"dict": {key: _describe(value, (*path, key), arrays) for key, value in thing.items()}}
    if isinstance(thing, Link) and thing in LINKS.values():
        return {"link": next(name for name, link in LINKS.items() if link == thing)}
    if type(thing) in TABLE.values():
        fields = {name: _describe(getattr(thing, name), (*path, name), arrays) for name in _fields(type(thing))}
        return {"class": _label(type(thing)), "fields": fields}
    return _describe_part(thing, path, arrays)


def _fields(cls: type) -> list[str]:
    named = getattr(cls, "_fields", None)
    return [field.name for field in dataclasses.fields(cls)] if named is None else list(named)


def _describe_array(array: Any, path: Path, arrays: Arrays) -> dict[str, Any]:
    """Its name, dtype and kind; an array without entries is described by its shape alone."""
    kind = "jax" if isinstance(array, jax.Array) else "number" if isinstance(array, np.generic) else "numpy"
    # A slash would name a group of a file.
    name, value = ".".join(path).replace("/", "|") or "value", np.asarray(array)
    description = {"array": name, "dtype": value.dtype.name, "kind": kind}
    # A weak type gives way to the dtype of the leaf it meets, so it is part of the value; JAX has it on numbers.
    if isinstance(array, jax.Array) and array.weak_type and not value.shape:
        description["kind"] = "weak"
    if value.size == 0:
        return description | {"shape": list(value.shape)}
    while name in arrays:  # a dictionary's keys may have dots of their own
        name += "_"
    arrays[name] = value
    return description | {"array": name}


def _restore_array(description: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    dtype, kind = np.dtype(description["dtype"]), description["kind"]
    value = np.zeros(description["shape"]) if "shape" in description else arrays[description["array"]]
    value = np.asarray(value).astype(dtype)
    if kind == "weak":
        with jax.enable_x64(dtype.itemsize == 8):
            return jnp.asarray(value.item())
    return jnp.asarray(value) if kind == "jax" else value[()] if kind == "number" else value


def _describe_part(thing: Any, path: Path, arrays: Arrays) -> dict[str, Any]:
    name = ".".join(path)
    if not callable(thing) and not isinstance(thing, eqx.Module):
        raise TypeError(f"{name or 'this'} is a {type(thing).__name__}, which cannot be saved: use plain values.")
    source = thing if hasattr(thing, "__qualname__") else type(thing)
    leaves = [
        _describe_array(leaf, (*path, jax.tree_util.keystr(keys, simple=True, separator=".")), arrays)
        for keys, leaf in jax.tree_util.tree_flatten_with_path(thing)[0]
        if _is_array(leaf)
    ]
    return {"part": name, "was": f"{source.__module__}.{source.__qualname__}", "leaves": leaves}


def _restore_part(description: dict[str, Any], arrays: Mapping[str, np.ndarray], given: Any) -> Any:
    """What the user gave, with the arrays that were stored in place of its own."""
    leaves, tree = jax.tree.flatten(given)
    stored = [_restore_array(leaf, arrays) for leaf in description["leaves"]]
    own, expected = (_shapes(filter(_is_array, several)) for several in (leaves, stored))
    if own != expected:
        raise ValueError(
            f"The part {description['part']!r} was {description['was']} with arrays of shapes {expected}; "
            f"what was given has {own}. Give one of the same structure."
        )
    following = iter(stored)
    return jax.tree.unflatten(tree, [next(following) if _is_array(leaf) else leaf for leaf in leaves])


def _shapes(leaves: Any) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in leaves]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array)


def _restore(description: Any, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any]) -> Any:
    def each(entries: dict[str, Any]) -> dict[str, Any]:
        return {name: _restore(entry, arrays, parts) for name, entry in entries.items()}

    if isinstance(description, list):
        return [_restore(entry, arrays, parts) for entry in description]
    if not isinstance(description, dict):
        return description
    makers: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(_restore(description["tuple"], arrays, parts)),
        "dict": lambda: each(description["dict"]),
        "class": lambda: _class(description["class"])(**each(description["fields"])),
        "array": lambda: _restore_array(description, arrays),
        "link": lambda: LINKS[description["link"]],
        "part": lambda: _restore_part(description, arrays, parts[description["part"]]),
    }
    return makers[next(iter(description))]()


def _class(label: str) -> type:
    if label not in TABLE:
        raise ValueError(f"This version of gpssm has no class {label!r}. Upgrade gpssm to read it.")
    return TABLE[label]
