"""Files that are whole or not there, and hashes of what goes into them."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from gpssm.core.text import stable_repr


def digest(*things: Any) -> str:
    """A hash of pytrees: of their structure, and of every array in them to the last bit."""
    found = hashlib.sha256()
    for thing in things:
        leaves, structure = jax.tree.flatten(thing)
        found.update(stable_repr(structure).encode())
        for leaf in leaves:
            array = np.asarray(leaf) if isinstance(leaf, (np.ndarray, jax.Array, float, int)) else None
            found.update(stable_repr(leaf if array is None else (array.shape, array.dtype)).encode())
            found.update(b"" if array is None else array.tobytes())
    return found.hexdigest()[:16]


def write_atomically(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Fill a file beside its final name, bring it to the disk, and move it there."""
    beside = path.with_name(path.name + ".part")
    try:
        with open(beside, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
