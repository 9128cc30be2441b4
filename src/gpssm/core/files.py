"""Files that are whole or not there, and hashes of what goes into them."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np


def digest(*things: Any) -> str:
    """A hash of pytrees: of their structure, and of every array in them to the last bit."""
    found = hashlib.sha256()
    for thing in things:
        leaves, structure = jax.tree.flatten(thing)
        found.update(describe(structure).encode())
        for leaf in leaves:
            array = np.asarray(leaf) if isinstance(leaf, (np.ndarray, jax.Array, float, int)) else None
            found.update(describe(leaf if array is None else (array.shape, array.dtype)).encode())
            found.update(b"" if array is None else array.tobytes())
    return found.hexdigest()[:16]


def describe(thing: Any) -> str:
    """Its `repr` without memory addresses, which differ from one run to the next."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


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
