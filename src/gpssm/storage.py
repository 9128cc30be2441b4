"""Posteriors in netCDF files, bit for bit, without pickle.

A file has a group for each field of `Fitted` with the field's arrays by dotted name, dimensions named, and a root
attribute for each field that says in JSON how it is put together from them (`serialise.py`). Other attributes give
the format, the versions of what wrote it, and hashes. Any netCDF tool can read the arrays:

    xarray.open_dataset("run.nc", group="draws")  # states.0 (chain, draw, time, state), weights, leaves.*
"""

import dataclasses
import datetime
import errno
import importlib.metadata
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import gpssm
from gpssm.checkpoint import digest, write_atomically
from gpssm.fitted import Fitted
from gpssm.serialise import Arrays, describe, restore, user_parts

FORMAT, VERSION = "gpssm posterior", 1
FIELDS = tuple(field.name for field in dataclasses.fields(Fitted))

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LARGE = 2**16  # bytes of an array from which compression is worth its time
_COMPRESSION = {"compression": "gzip", "compression_opts": 4, "shuffle": True}

# Axes in front of all arrays of a field, and the axes of an array by a part of its name.
_LEADING = {
    "draws": ("chain", "draw"),
    "info": ("chain", "draw"),
    "cloud": ("chain", "draw"),
    "warmup": ("chain", "iteration"),
}
_AXES = {
    "states": ("time", "state"),
    "weights": ("state", "inducing"),
    "particles": ("particle", "state"),
    "log_weights": ("particle",),
    "y": ("time", "output"),
    "u": ("time", "input"),
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
}


def write(fitted: Fitted, path: str | Path, overwrite: bool = False) -> None:
    """Save every field of a posterior in a netCDF file, which is there whole or not at all."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it, or name another file.")
    image = _image(fitted)
    try:
        write_atomically(path, lambda file: file.write(image))
    except OSError as error:
        raise OSError(
            error.errno, f"{path} could not be written ({error.strerror}); what was there before is untouched"
        ) from error


def read(path: str | Path, parts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of `Fitted` from a file; `parts` are the user's own functions of the model by dotted name."""
    descriptions, arrays = _contents(Path(path))
    known = {name for description in descriptions.values() for name in user_parts(description)}
    unknown = set(parts or {}) - known
    if unknown:
        names, needed = (", ".join(sorted(several)) for several in (unknown, known))
        raise KeyError(f"{path} needs no part {names}. It needs: {needed or 'none'}.")
    return {name: restore(description, arrays[name], parts) for name, description in descriptions.items()}


def name_axes(
    name: str, shape: tuple[int, ...], sizes: dict[str, int], leading: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Names for the axes of an array by its dotted name: that of a known leaf, else axis_0, axis_1, ...

    `sizes` collects the sizes of the axes of a group; an axis that differs has its size in its name: time, time_40.
    """
    leading = leading if len(shape) >= len(leading) else ()
    rank = len(shape) - len(leading)
    known = (_AXES[part] for part in reversed(name.split(".")) if rank and len(_AXES.get(part, ())) == rank)
    wanted = (*leading, *next(known, tuple(f"axis_{index}" for index in range(rank))))
    axes = [
        axis if sizes.get(axis, size) == size else f"{axis}_{size}" for axis, size in zip(wanted, shape, strict=True)
    ]
    sizes |= zip(axes, shape, strict=True)
    return tuple(axes)


def _image(fitted: Fitted) -> bytes:
    """The file's bytes. They are made in memory: HDF5 itself does not survive a disk that fills up."""
    import h5netcdf

    described = {name: describe(getattr(fitted, name)) for name in FIELDS}
    texts = {name: json.dumps(description) for name, (description, _) in described.items()}
    arrays = {
        field: {name: _storable(array) for name, array in values.items()} for field, (_, values) in described.items()
    }
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        for name, value in (_attributes(fitted, texts, arrays) | texts).items():
            file.attrs[name] = value
        for field, values in arrays.items():
            _write_arrays(file.create_group(field), values, _LEADING.get(field, ()))
    return buffer.getvalue()


def _attributes(fitted: Fitted, texts: dict[str, str], arrays: dict[str, Arrays]) -> dict[str, Any]:
    versions = {f"{name}_version": importlib.metadata.version(name) for name in ("jax", "numpy")}
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "gpssm_version": gpssm.__version__,
        **versions,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data_hash": digest(list(fitted.raw)),
        "content_hash": digest(texts, arrays),
    }


def _write_arrays(group: Any, arrays: Arrays, leading: tuple[str, ...]) -> None:
    sizes: dict[str, int] = {}
    axes = {name: name_axes(name, array.shape, sizes, leading) for name, array in arrays.items()}
    group.dimensions = sizes
    for name, array in arrays.items():
        options = _COMPRESSION if array.nbytes >= _LARGE else {}
        group.create_variable(name, axes[name], data=array, **options)


def _storable(array: np.ndarray) -> np.ndarray:
    """netCDF has no booleans; the description knows which arrays were."""
    return array.astype(np.int8) if array.dtype == bool else array


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Descriptions and arrays by field, if the file holds what was written."""
    import h5netcdf
    import h5py

    _check_signature(path)
    # Opened by h5py, a file is closed whatever is found in it; h5netcdf alone keeps hold of a damaged one, and HDF5
    # then shows its contents in place of what is written there later.
    with _damage(path), h5py.File(path, "r") as opened:
        attributes = dict(opened.attrs)
    _check_format(path, attributes)
    with _damage(path), h5py.File(path, "r") as opened, h5netcdf.File(opened, "r") as file:
        texts = {name: str(attributes[name]) for name in FIELDS if name in attributes}
        arrays = {name: _read_arrays(file[name]) for name in texts}
    if attributes.get("content_hash") != digest(texts, arrays):
        raise _damaged(path, "some of its arrays or descriptions are missing or changed")
    return {name: json.loads(text) for name, text in texts.items()}, arrays


def _read_arrays(group: Any) -> Arrays:
    arrays = {name: np.asarray(variable[...]) for name, variable in group.variables.items()}
    # HDF5's dtypes are equal to NumPy's own, but not the same to a hash.
    return {name: array.astype(array.dtype.name) for name, array in arrays.items()}


def _check_signature(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file; posterior.save(path) writes one", str(path))
    with open(path, "rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            raise ValueError(f"{path} is not a netCDF-4 file. Give the path of a file that posterior.save wrote.")


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Whatever goes wrong in reading is damage; which error HDF5 makes of it depends on where it is."""
    try:
        yield
    except Exception as error:
        raise _damaged(path, "it cannot be read, perhaps it was cut off") from error


def _check_format(path: Path, attributes: Mapping[str, Any]) -> None:
    if attributes.get("format") != FORMAT:
        raise ValueError(f"{path} was written by another program. Give the path of a file that posterior.save wrote.")
    with _damage(path):
        version = int(np.asarray(attributes["format_version"]).item())
    if version > VERSION:
        raise ValueError(
            f"{path} has format {version}, written by gpssm {attributes.get('gpssm_version')}; this is gpssm "
            f"{gpssm.__version__}, which reads formats up to {VERSION}. Upgrade gpssm to load it."
        )


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged ({reason}). Take a sound copy, or fit and save again.")
