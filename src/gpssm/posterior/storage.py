"""Posteriors in netCDF files, bit for bit: no pickle, and no code from a file.

A file has a group for each field of `Posterior` with the field's arrays by dotted name, their dimensions named, and a
root attribute for each field: a *description* in JSON of how the field is put together from its arrays. Other
attributes give the format, the versions of what wrote it, and hashes. Any netCDF tool can read the arrays:

    xarray.open_dataset("run.nc", group="draws")  # states.0 (chain, draw, time, state), weights, leaves.*

A description is made of what JSON has; a tag says what else a thing is:

    {"tuple": [...]}, {"dict": {...}}                        as Python has them
    {"class": "kernels.Sum", "fields": {...}}                a class of `TABLE`: no other is ever made
    {"array": "kernel.left.log_variance", "dtype": ...}      an array of the group, by its dotted name
    {"link": "abs"}                                          a link of `LINKS`
    {"part": "mean.function", "was": "physics.drag", ...}    a user's own function or class

Code cannot be stored. A user's own part is stored by name, with the arrays it holds, and is handed over when a file is
read.

A file may come from a stranger, or have been edited. Nothing of it is run; no array is made that claims to be larger
than what the file can hold; and what was read has the types and shapes of a posterior, and finite numbers, or the file
is refused with the name of the part that is wrong.
"""

import dataclasses
import datetime
import errno
import importlib.metadata
import io
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import gpssm
from gpssm.core.files import digest, write_atomically
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_flag, check_path, demand, demand_shape
from gpssm.data import clock, dataset, scaler, series
from gpssm.methods import METHODS, spec
from gpssm.model import bases, kernels, likelihoods, means, model, priors, types, wiring
from gpssm.model.likelihoods import LINKS, Link
from gpssm.posterior import calibration, draws

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

Arrays = dict[str, np.ndarray]

FORMAT, VERSION = "gpssm posterior", 2
SIGNATURE = b"\x89HDF\r\n\x1a\n"
LARGE = 2**16  # bytes of an array from which compression is worth its time
COMPRESSION = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
DENSEST = 1100  # bytes that gzip can make of one, and a little more

# Axes in front of all arrays of a field, and the axes of an array by a part of its name.
LEADING = {
    "draws": ("chain", "draw"),
    "info": ("chain", "draw"),
    "current": ("chain", "draw"),
    "learned": ("chain", "draw"),
    "warmup": ("chain", "iteration"),
}
AXES = {
    "states": ("time", "state"),
    "weights": ("state", "inducing"),
    "covariance": ("component", "other_component"),
    "particles": ("particle", "state"),
    "log_weights": ("particle",),
    "y": ("time", "output"),
    "u": ("time", "input"),
    "past": ("time", "input"),
    "log_process_std": ("state",),
    "log_variance": ("state",),
    "log_lengthscale": ("state", "coordinate"),
    "locations": ("inducing", "coordinate"),
    "frequencies": ("frequency", "coordinate"),
    "indices": ("inducing", "coordinate"),
    "center": ("coordinate",),
    "half_width": ("coordinate",),
    "log_scale": ("state", "feature"),
    "transition": ("state", "previous"),
    "control": ("state", "input"),
    "offset": ("state",),
    "C": ("output", "state"),
    "d": ("output",),
    "log_std": ("output",),
    "log_excess": ("output",),
    "factors": ("step", "output"),
    "coverage": ("step", "output"),
    "effective": ("step",),
}

HOMES = (
    *(kernels, bases, means, likelihoods, priors, model, types, wiring, spec),
    *(clock, series, scaler, dataset, draws, calibration),
)
# Every class a description may name.
TABLE: dict[str, type] = {
    f"{thing.__module__.rpartition('.')[2]}.{thing.__name__}": thing
    for things in (
        *(vars(home).values() for home in HOMES),
        [type(method) for method in METHODS.values()],
    )
    for thing in things
    if isinstance(thing, type)
    and thing.__module__.startswith("gpssm.")
    and (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields"))
}
LABELS = {cls: label for label, cls in TABLE.items()}
# What each field of a posterior is.
FIELDS: dict[str, tuple[type, ...]] = {
    "model": (model.GPSSM,),
    "draws": (types.Draw,),
    "info": (types.Info,),
    "warmup": (types.Info,),
    "dataset": (dataset.Dataset,),
    "spec": (spec.Spec,),
    "comparison": (tuple,),
    "seconds": (draws.Seconds,),
    "seed": (int, np.integer),
    "notes": (tuple,),
    "current": (type(None), draws.CurrentState),
    "calibration": (type(None), calibration.Calibration),
    "learned": (type(None), draws.Learned),
}


def write(posterior: "Posterior", path: str | Path, overwrite: bool = False) -> None:
    """Save every field of a posterior in a netCDF file, which is there whole or not at all."""
    path = check_path(path)
    check_flag("overwrite", overwrite)
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists. Pass overwrite=True to replace it, or name another file."
        )
    image = _image(posterior)
    write_atomically(path, lambda file: file.write(image))


def read(path: str | Path, parts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `Posterior` from a file; `parts` are the user's own functions of the model by dotted name."""
    if not (parts is None or isinstance(parts, Mapping)):
        raise TypeError(
            f"parts are the user's own functions by dotted name, as a dictionary; got {parts!r}"
        )
    path = check_path(path)
    return put_together(path, *_contents(path), parts)


def put_together(
    path: Path,
    descriptions: Mapping[str, Any],
    arrays: Mapping[str, Arrays],
    parts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields that a file's descriptions and arrays make, if they make a posterior."""
    with _damage(path, "its descriptions do not hold together"):
        known = {name for description in descriptions.values() for name in user_parts(description)}
    unknown = set(parts or {}) - known
    if unknown:
        names, needed = (", ".join(sorted(several)) for several in (unknown, known))
        raise KeyError(f"{path} needs no part {names}. It needs: {needed or 'none'}.")
    fields = {}
    for name, description in descriptions.items():
        with _damage(path, f"its part {name!r} cannot be put together"):
            fields[name] = restore(description, arrays[name], parts)
    _check_fields(path, fields, traceable=not known)
    return fields


def _image(posterior: "Posterior") -> bytes:
    """The file's bytes. They are made in memory: HDF5 itself does not survive a disk that fills up."""
    import h5netcdf

    values = {name: getattr(posterior, name) for name in _fields(type(posterior))}
    values["spec"] = posterior.spec.plain()
    described = {name: describe(value) for name, value in values.items()}
    texts = {field: json.dumps(description) for field, (description, _) in described.items()}
    # netCDF has no booleans; the description knows which arrays were.
    arrays = {
        field: {
            name: array.astype(np.int8) if array.dtype == bool else array
            for name, array in several.items()
        }
        for field, (_, several) in described.items()
    }
    attributes = {
        "format": FORMAT,
        "format_version": VERSION,
        "gpssm_version": gpssm.__version__,
        **{f"{name}_version": importlib.metadata.version(name) for name in ("jax", "numpy")},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data_hash": digest(list(posterior.dataset.experiments)),
        "content_hash": digest(texts, arrays),
    }
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        for name, value in (attributes | texts).items():
            file.attrs[name] = value
        for field, several in arrays.items():
            group, sizes = file.create_group(field), {}
            axes = {
                name: name_axes(name, array.shape, sizes, LEADING.get(field, ()))
                for name, array in several.items()
            }
            group.dimensions = sizes
            for name, array in several.items():
                group.create_variable(
                    name, axes[name], data=array, **(COMPRESSION if array.nbytes >= LARGE else {})
                )
    return buffer.getvalue()


def name_axes(
    name: str, shape: tuple[int, ...], sizes: dict[str, int], leading: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Names for the axes of an array by its dotted name: that of a known leaf, else axis_0, axis_1, ...

    `sizes` collects the sizes of the axes of a group; an axis that differs has its size in its name: time, time_40.
    """
    # The last inputs are the same for all draws.
    leading = leading if len(shape) >= len(leading) and name != "past" else ()
    rank = len(shape) - len(leading)
    known = (
        AXES[part] for part in reversed(name.split(".")) if rank and len(AXES.get(part, ())) == rank
    )
    wanted = (*leading, *next(known, tuple(f"axis_{index}" for index in range(rank))))
    axes = [
        axis if sizes.get(axis, size) == size else f"{axis}_{size}"
        for axis, size in zip(wanted, shape, strict=True)
    ]
    sizes |= zip(axes, shape, strict=True)
    return tuple(axes)


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Descriptions and arrays by field, if the file holds what was written.

    It is opened once: another process may put a newer file in its place meanwhile.
    """
    if not path.exists():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such file; posterior.save(path) writes one", str(path)
        )
    if not path.is_file():
        raise ValueError(f"{path} is no file. Give the path of a file that posterior.save wrote.")
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise type(error)(error.errno, f"{path} cannot be opened ({error.strerror})") from None
    with file:
        return _parts_in(file, path)


def _parts_in(source: BinaryIO, path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """What `_contents` says, of an open file."""
    import h5netcdf
    import h5py

    try:
        signature = source.read(len(SIGNATURE))
    except OSError as error:
        raise type(error)(error.errno, f"{path} cannot be opened ({error.strerror})") from None
    if signature != SIGNATURE:
        raise ValueError(
            f"{path} is not a netCDF-4 file. Give the path of a file that posterior.save wrote."
        )
    # Opened by h5py, a file is closed whatever is found in it; h5netcdf alone keeps hold of a damaged one, and HDF5
    # then shows its contents in place of what is written there later.
    with _damage(path), h5py.File(source, "r") as opened:
        attributes = dict(opened.attrs)
    if attributes.get("format") != FORMAT:
        raise ValueError(
            f"{path} was written by another program. Give the path of a file that posterior.save wrote."
        )
    with _damage(path):
        version = int(np.asarray(attributes["format_version"]).item())
    if version != VERSION:
        raise ValueError(
            f"{path} has format {version}, written by gpssm {attributes.get('gpssm_version')}; this is gpssm "
            f"{gpssm.__version__}, which reads format {VERSION}. Load it with that version, or fit and save again."
        )
    with _damage(path), h5py.File(source, "r") as opened, h5netcdf.File(opened, "r") as file:
        texts = {str(field): str(attributes[field]) for field in opened if field in attributes}
        names = {field: list(file[field].variables) for field in texts}
        found: dict[str, dict[str, Any]] = {
            field: {name: opened[f"{field}/{name}"] for name in names[field]} for field in texts
        }
        for stored in (one for several in found.values() for one in several.values()):
            if (
                stored.dtype.kind not in "biuf"
                or stored.nbytes > DENSEST * stored.id.get_storage_size()
            ):
                raise ValueError(
                    f"{stored.name} claims {stored.shape} of {stored.dtype}, more than the file can hold"
                )
        # HDF5's dtypes are equal to NumPy's own, but not the same to a hash.
        arrays = {
            field: {
                name: (array := stored[...]).astype(array.dtype.name)
                for name, stored in several.items()
            }
            for field, several in found.items()
        }
    if attributes.get("content_hash") != digest(texts, arrays):
        raise _damaged(path, "some of its arrays or descriptions are missing or changed")
    descriptions = {}
    for field, text in texts.items():
        with _damage(path, f"its part {field!r} is no description"):
            descriptions[field] = json.loads(text)
    return descriptions, arrays


class NotAsSaved(ValueError):
    """The file is sound, but what it was loaded with is not what it needs."""


@contextmanager
def _damage(
    path: Path, reason: str = "it cannot be read, perhaps it was cut off"
) -> Iterator[None]:
    """Whatever goes wrong in reading is damage; which error HDF5 makes of it depends on where it is."""
    try:
        yield
    except NotAsSaved:
        raise
    except Exception as error:
        raise _damaged(path, f"{reason}: {str(error)[:200] or type(error).__name__}") from error


def _check_fields(path: Path, fields: Mapping[str, Any], traceable: bool) -> None:
    """Refuse fields that are not those of a posterior: types, shapes that fit together, finite numbers.

    :param traceable: whether the model is all ours, so that its parts can be tried on each other.
    """
    with _damage(path, "its parts do not fit together"):
        demand("it", fields.keys() == FIELDS.keys(), f"has the parts {', '.join(fields)}")
        for name, kinds in FIELDS.items():
            demand(name, isinstance(fields[name], kinds), f"is a {type(fields[name]).__name__}")
        demand("notes", all(isinstance(note, str) for note in fields["notes"]), "are not text")
        demand(
            "seconds",
            all(isinstance(one, int | float | np.number) for one in fields["seconds"]),
            "are no numbers",
        )
        _check_draws(fields)
        if fields["current"] is not None:
            fields["current"].check(fields["draws"], fields["dataset"])
        if fields["learned"] is not None:
            fields["learned"].check(fields["draws"])
        if fields["calibration"] is not None:
            fields["calibration"].check(len(fields["dataset"].outputs))
        _check_model(fields["model"], fields["dataset"].experiments[0], traceable)
        arrays = [
            fields["draws"].weights,
            *fields["draws"].states,
            *fields["draws"].leaves.values(),
        ]
        finite = np.all(
            [np.isfinite(one).all(axis=tuple(range(2, one.ndim))) for one in arrays], axis=0
        )
        demand("draws", finite.any(), "has no draw that is finite")
    if not finite.all():
        warnings.warn(
            f"{path}: {np.sum(~finite)} of {finite.size} draws are not finite, in chain "
            f"{', '.join(map(str, np.flatnonzero(~finite.all(1))))}; posterior.chain(number) takes one chain alone",
            stacklevel=4,
        )


def _check_draws(fields: Mapping[str, Any]) -> None:
    """Draws of the model's states, weights and leaves, and the figures that came with them."""
    own, drawn, data = fields["model"], fields["draws"], fields["dataset"]
    demand_shape("model.log_process_std", own.log_process_std, None)
    demand_shape("draws.weights", drawn.weights, None, None, *own.weights_shape)
    axes = drawn.weights.shape[:2]
    demand("draws", all(axes), "is empty")
    demand(
        "draws.states",
        len(drawn.states) == len(data.experiments),
        "are of another number of series",
    )
    first = data.first_states or (0,) * len(data.experiments)
    for index, states in enumerate(drawn.states):
        length = len(data.experiments[index]) + 1 - first[index]
        demand_shape(f"draws.states.{index}", states, *axes, length, own.state_dim)
    leaves = own.leaves()
    demand(
        "model",
        {name for name, _ in own.roles} == {*leaves} == {*own.priors},
        "has other leaves than roles",
    )
    for name, leaf in drawn.leaves.items():
        demand_shape(f"draws.leaves.{name}", leaf, *axes, *leaves[name].shape)
    warmup = (axes[0], fields["warmup"].log_target.shape[1])
    for part, shape in (("info", axes), ("warmup", warmup)):
        for name, values in fields[part]._asdict().items():
            if not (name == "bias" and values is None):
                demand_shape(f"{part}.{name}", values, *shape)


def _check_model(own: model.GPSSM, one: series.Series, traceable: bool) -> None:
    """Leaves that are finite, and parts that go together, if they can be tried."""
    for name, leaf in own.leaves().items():
        demand(f"model.{name}", np.isfinite(leaf).all(), "is not finite")
    if traceable:
        rows = [
            jax.ShapeDtypeStruct((1, width), own.log_process_std.dtype)
            for width in (own.state_dim, one.input_dim)
        ]
        step = jax.eval_shape(lambda x, u: own.transition()(x, u), *rows)
        demand_shape("model.mean", step.mean, 1, own.state_dim)
        demand_shape("model.basis", step.gain, own.state_dim, 1, own.basis.size)
        demand_shape(
            "model.likelihood",
            jax.eval_shape(own.likelihood.moments, rows[0])[0],
            1,
            one.output_dim,
        )


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged ({reason}). Take a sound copy, or fit and save again.")


def describe(thing: Any) -> tuple[Any, Arrays]:
    """The description of a thing, fit for JSON, and its arrays by dotted name."""
    arrays: Arrays = {}

    def each(entries: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        return {name: of(entry, (*path, name)) for name, entry in entries.items()}

    def of(thing: Any, path: tuple[str, ...]) -> Any:
        if type(thing) in (type(None), bool, int, float, str):
            return thing
        if isinstance(thing, np.ndarray | np.generic | jax.Array):
            return _describe_array(thing, path, arrays)
        if type(thing) in (list, tuple):
            entries = [of(entry, (*path, str(index))) for index, entry in enumerate(thing)]
            return entries if isinstance(thing, list) else {"tuple": entries}
        if type(thing) is dict and all(isinstance(key, str) for key in thing):
            return {"dict": each(thing, path)}
        if isinstance(thing, Link) and thing in LINKS.values():
            return {"link": next(name for name, link in LINKS.items() if link == thing)}
        if type(thing) in LABELS:
            own = {name: getattr(thing, name) for name in _fields(type(thing))}
            return {"class": LABELS[type(thing)], "fields": each(own, path)}
        return _describe_part(thing, path, arrays)

    return of(thing, ()), arrays


@in_double_precision
def restore(
    description: Any, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any] | None = None
) -> Any:
    """The thing that was described, every array as it was to the last bit.

    :param parts: the user's own functions and classes by dotted name; `user_parts` says which are needed.
    """
    parts = parts or {}
    missing = {name: was for name, was in user_parts(description).items() if name not in parts}
    if missing:
        wanted = ", ".join(f"{name!r}: ..." for name in missing)
        found = "; ".join(f"{name} was {was}" for name, was in missing.items())
        raise NotAsSaved(
            f"A user's own functions are not stored ({found}). Hand them over: parts={{{wanted}}}."
        )

    def each(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {name: of(entry) for name, entry in entries.items()}

    def of(description: Any) -> Any:
        if isinstance(description, list):
            return [of(entry) for entry in description]
        if not isinstance(description, dict):
            return description
        match next(iter(description)):
            case "tuple":
                return tuple(of(description["tuple"]))
            case "dict":
                return each(description["dict"])
            case "class":
                return _class(description["class"])(**each(description["fields"]))
            case "array":
                return _restore_array(description, arrays)
            case "link":
                return LINKS[description["link"]]
            case _:
                return _restore_part(description, arrays, parts[description["part"]])

    return of(description)


def user_parts(description: Any) -> dict[str, str]:
    """The user's own parts that a description needs, and what each was when it was described."""
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


def _fields(cls: type) -> list[str]:
    named = getattr(cls, "_fields", None)
    return [field.name for field in dataclasses.fields(cls)] if named is None else list(named)


def _class(label: str) -> type:
    if label not in TABLE:
        raise NotAsSaved(f"This version of gpssm has no class {label!r}. Upgrade gpssm to read it.")
    return TABLE[label]


def _describe_array(array: Any, path: tuple[str, ...], arrays: Arrays) -> dict[str, Any]:
    """Its name, dtype and kind; an array without entries is described by its shape alone."""
    kind = (
        "jax"
        if isinstance(array, jax.Array)
        else "number"
        if isinstance(array, np.generic)
        else "numpy"
    )
    # A slash would name a group of a file.
    name, value = ".".join(path).replace("/", "|") or "value", np.asarray(array)
    # A weak type gives way to the dtype of the leaf it meets, so it is part of the value; JAX has it on numbers.
    if isinstance(array, jax.Array) and array.weak_type and not value.shape:
        kind = "weak"
    description = {"array": name, "dtype": value.dtype.name, "kind": kind}
    if value.size == 0:
        return description | {"shape": list(value.shape)}
    while name in arrays:  # a dictionary's keys may have dots of their own
        name += "_"
    arrays[name] = value
    return description | {"array": name}


def _restore_array(description: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    dtype, kind = np.dtype(description["dtype"]), description["kind"]
    if dtype.kind not in "biuf" or (
        "shape" in description and math.prod(description["shape"]) != 0
    ):
        raise ValueError(
            f"an array of {dtype} with the shape {description.get('shape')} is none of ours"
        )
    value = (
        np.zeros(description["shape"]) if "shape" in description else arrays[description["array"]]
    )
    value = np.asarray(value).astype(dtype)
    if kind == "weak":
        with jax.enable_x64(dtype.itemsize == 8):
            return jnp.asarray(value.item())
    return jnp.asarray(value) if kind == "jax" else value[()] if kind == "number" else value


def _describe_part(thing: Any, path: tuple[str, ...], arrays: Arrays) -> dict[str, Any]:
    """The name of a user's own part, what it was, and the arrays it holds."""
    name = ".".join(path)
    if not callable(thing) and not isinstance(thing, eqx.Module):
        raise TypeError(
            f"{name or 'this'} is a {type(thing).__name__}, which cannot be saved: use plain values."
        )
    source = thing if hasattr(thing, "__qualname__") else type(thing)
    leaves = [
        _describe_array(
            leaf, (*path, jax.tree_util.keystr(keys, simple=True, separator=".")), arrays
        )
        for keys, leaf in jax.tree_util.tree_flatten_with_path(thing)[0]
        if _is_array(leaf)
    ]
    return {"part": name, "was": f"{source.__module__}.{source.__qualname__}", "leaves": leaves}


def _restore_part(description: dict[str, Any], arrays: Mapping[str, np.ndarray], given: Any) -> Any:
    """What the user gave, with the arrays that were stored in place of its own."""
    leaves, tree = jax.tree.flatten(given)
    stored = [_restore_array(leaf, arrays) for leaf in description["leaves"]]
    own, expected = (
        [leaf.shape for leaf in leaves if _is_array(leaf)],
        [leaf.shape for leaf in stored],
    )
    if own != expected:
        raise NotAsSaved(
            f"The part {description['part']!r} was {description['was']} with arrays of shapes {expected}; "
            f"what was given has {own}. Give one of the same structure."
        )
    following = iter(stored)
    return jax.tree.unflatten(
        tree, [next(following) if _is_array(leaf) else leaf for leaf in leaves]
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | jax.Array)
