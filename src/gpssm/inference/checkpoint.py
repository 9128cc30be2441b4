"""Checkpoints: what a run needs to go on after a crash, in a folder of plain .npz files.

    fingerprint.json      what the run was: hashes of data, model and settings, so that nothing else is continued
    chunk-00000050.npz    what the chunk that began at block 50 gave, written once
    carry.npz             the algorithm's state after the last chunk, and the number of blocks done

Every file is written beside its final name and then moved there, which is atomic, and `carry.npz` comes last: a run
killed at any moment leaves the state after some whole chunk. A chunk is written once, so writing is linear in the
length of the run. Random keys are derived from (seed, chain, iteration), never stored.
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gpssm.core.files import read_npz, write_atomically

FINGERPRINT, CARRY = "fingerprint.json", "carry.npz"


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one run in a folder."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path, fingerprint: Mapping[str, str], resume: bool) -> "Checkpoint":
        """Claim a folder for a run, or find the run there to be the same one if it is to be resumed."""
        checkpoint = cls(Path(folder))
        path = checkpoint.folder / FINGERPRINT
        if not path.exists():
            checkpoint.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: file.write(json.dumps(dict(fingerprint), indent=1).encode()))
            return checkpoint
        if not resume:
            raise FileExistsError(
                f"{folder} holds the checkpoint of an earlier run. Pass resume=True to continue it, "
                "or delete the folder or name another to start anew."
            )
        try:
            found = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise _damaged(path, str(error)) from error
        differ = [name for name in fingerprint if found.get(name) != fingerprint[name]]
        if differ:
            pairs = "; ".join(f"{name}: {found.get(name)} there, {fingerprint[name]} here" for name in differ)
            raise ValueError(
                f"{folder} holds the checkpoint of another run, with another {', '.join(differ)} ({pairs}). "
                "Give the arguments of that run to continue it, or name another folder."
            )
        return checkpoint

    def save(self, start: int, done: int, chunk: Any, carry: Any) -> None:
        """Add a chunk, blocks `start` to `done`, and the carry after it."""
        _write_arrays(self.folder / f"chunk-{start:08d}.npz", jax.tree.leaves(chunk), done)
        _write_arrays(self.folder / CARRY, jax.tree.leaves(carry), done)

    def load(self, carry: Any, chunk: Callable[[int], Any]) -> tuple[int, list[Any], Any] | None:
        """The number of blocks done, the chunks so far and the carry; None if no chunk was finished.

        `carry` is a tree of the right shapes; `chunk(start)` is one for the chunk that begins at a block, with axes
        (chain, block) in front.
        """
        if not (self.folder / CARRY).exists():
            return None
        done, leaves = _read_arrays(self.folder / CARRY)
        carry = _restore(carry, leaves, self.folder / CARRY, axes=slice(None))
        start, chunks = 0, []
        while start < done:
            path = self.folder / f"chunk-{start:08d}.npz"
            end, leaves = _read_arrays(path)
            if not start < end <= done:
                raise _damaged(path, f"it should hold blocks from {start} to at most {done}, not to {end}")
            chunks.append(_restore(chunk(start), leaves, path, axes=slice(2, None)))
            start = end
        return done, chunks, carry


def _write_arrays(path: Path, leaves: Iterable[Any], done: int) -> None:
    arrays: dict[str, Any] = {f"leaf_{index}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
    image = io.BytesIO()  # an archive on a disk that fills up complains once more when it is thrown away
    np.savez(image, done=np.asarray(done), **arrays)
    write_atomically(path, lambda file: file.write(image.getbuffer()))


def _read_arrays(path: Path) -> tuple[int, list[np.ndarray]]:
    try:
        stored = read_npz(path)
        return int(stored["done"]), [stored[f"leaf_{index}"] for index in range(len(stored) - 1)]
    except Exception as error:  # which one depends on where the damage is
        raise _damaged(path, str(error)) from error


def _restore(like: Any, leaves: list[np.ndarray], path: Path, axes: slice) -> Any:
    """The leaves in the tree of `like`, if their dtypes and their shapes along `axes` are the same."""
    expected, structure = jax.tree.flatten(like)
    shapes = [(leaf.dtype, leaf.shape[axes]) for leaf in expected]
    if shapes != [(leaf.dtype, leaf.shape[axes]) for leaf in leaves]:
        raise _damaged(path, "its arrays do not have the shapes of this run")
    return jax.tree.unflatten(structure, leaves)


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"The checkpoint file {path} is damaged or missing ({reason}). Put back a sound copy of its folder, "
        "or delete the folder and start anew."
    )
