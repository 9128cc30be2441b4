"""Atomic writing of files, locks of folders, and hashes."""

import errno
import hashlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from gpssm.core.text import check_flag, check_path, stable_repr


def digest(*things: Any) -> str:
    """Return a hash of pytrees: of their structure and the exact values of all arrays.

    It does not depend on the byte order of arrays.
    """
    hashed = hashlib.sha256()
    for thing in things:
        leaves, structure = jax.tree.flatten(thing)
        hashed.update(stable_repr(structure).encode())
        for leaf in leaves:
            if not isinstance(leaf, (np.ndarray, jax.Array, float, int)):
                hashed.update(stable_repr(leaf).encode())
                continue
            array = np.asarray(leaf)
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            # The repr of a dtype from a file may differ from that of an equal native dtype.
            numeric = array.dtype.kind in "biufc"
            kind = np.dtype(array.dtype.type) if numeric else array.dtype
            hashed.update(stable_repr((array.shape, kind)).encode())
            hashed.update(array.tobytes())
    return hashed.hexdigest()[:16]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; raise if one claims more data than the file contains."""
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as member:
                version = np.lib.format.read_magic(member)
                header = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = header(member)
            if math.prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError(
                    f"{entry.filename} has the shape {shape} but only {entry.file_size} bytes"
                )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)


def check_target(path: Any, overwrite: bool) -> Path:
    """Return the path of a file to write; raise if it exists and must not be replaced."""
    target = check_path(path)
    check_flag("overwrite", overwrite)
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{target} exists. Pass overwrite=True to replace it, or another path."
        )
    return target


def write_atomically(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{path} is a folder: pass the path of a file")
    beside = path.with_name(path.name + ".part")
    try:
        with open(beside, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            message = (
                f"{path} could not be written ({error.strerror}); an existing file is unchanged"
            )
            raise type(error)(error.errno, message) from error
        raise


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno, f"the folder {folder} cannot be created ({error.strerror}): pass another"
        ) from error


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes until the context or the process ends.

    Without support for locks by the system or the disk, this has no effect.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"another process is using {folder}. Wait until it has finished, or pass another "
                "folder"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(opened)
