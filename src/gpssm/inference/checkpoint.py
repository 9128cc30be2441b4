"""Checkpoints, from which a run can continue after a crash, in a folder of .npz files.

    fingerprint.json      the identity of the run: hashes of data, model and settings
    chunk-00000050.npz    results of the chunk that began at block 50, written once
    carry.npz             the state of the algorithm after the last chunk, and the blocks done

Every file is written under a temporary name and then renamed, which is atomic, and `carry.npz`
comes last, so that a run killed at any moment leaves the state after a complete chunk. A chunk is
written once, so writing is linear in the length of the run. Random keys are derived from (seed,
chain, iteration), never stored.
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

CARRY = "carry.npz"


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one run in a folder."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path, fingerprint: Mapping[str, str], resume: bool) -> "Checkpoint":
        """Claim a folder for a run, or check that the run in it is the same one.

        Parameters
        ----------
        folder
            The folder, which is created if it does not exist.
        fingerprint
            The identity of the run by part, for example {"data": hash}.
        resume
            Whether to continue a run in the folder; if False, an existing run is an error.

        Returns
        -------
        Checkpoint
            The checkpoint.
        """
        checkpoint = cls(Path(folder))
        path = checkpoint.folder / "fingerprint.json"
        if not path.exists():
            checkpoint.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(dict(fingerprint), indent=1)
            write_atomically(path, lambda file: file.write(text.encode()))
            return checkpoint
        if not resume:
            raise FileExistsError(
                f"{folder} contains the checkpoint of an earlier run. Pass resume=True to "
                "continue it, or delete the folder or name another one to start again."
            )
        try:
            stored = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise _damaged(path, str(error)) from error
        different = [name for name in fingerprint if stored.get(name) != fingerprint[name]]
        if different:
            pairs = "; ".join(
                f"{name}: {stored.get(name)} there, {fingerprint[name]} here" for name in different
            )
            raise ValueError(
                f"{folder} contains the checkpoint of another run, which differs in "
                f"{', '.join(different)} ({pairs}). Pass the arguments of that run to continue "
                "it, or name another folder."
            )
        return checkpoint

    def save(self, start: int, done: int, chunk: Any, carry: Any) -> None:
        """Write a chunk and the carry after it.

        Parameters
        ----------
        start
            The first block of the chunk.
        done
            The number of blocks done after it.
        chunk
            The results of the chunk.
        carry
            The state of the algorithm after it.
        """
        write_arrays(self.folder / f"chunk-{start:08d}.npz", jax.tree.leaves(chunk), done)
        write_arrays(self.folder / CARRY, jax.tree.leaves(carry), done)

    def load(self, carry: Any, chunk: Callable[[int], Any]) -> tuple[int, list[Any], Any] | None:
        """Read the run in the folder.

        Parameters
        ----------
        carry
            A tree with the shapes of the carry.
        chunk
            A function that returns a tree with the shapes of the chunk that begins at a block, with
            leading axes (chain, block).

        Returns
        -------
        tuple or None
            The number of blocks done, the chunks so far and the carry; None if no chunk was
            finished.
        """
        if not (self.folder / CARRY).exists():
            return None
        done, leaves = _read_arrays(self.folder / CARRY)
        carry = _restore(carry, leaves, self.folder / CARRY, axes=slice(None))
        start = 0
        chunks = []
        while start < done:
            path = self.folder / f"chunk-{start:08d}.npz"
            end, leaves = _read_arrays(path)
            if not start < end <= done:
                raise _damaged(
                    path, f"it should hold blocks from {start} to at most {done}, not to {end}"
                )
            chunks.append(_restore(chunk(start), leaves, path, axes=slice(2, None)))
            start = end
        return done, chunks, carry


def write_arrays(path: Path, leaves: Iterable[Any], done: int) -> None:
    """Write the leaves of a tree and the number of blocks done."""
    arrays: dict[str, Any] = {
        f"leaf_{index}": np.asarray(leaf) for index, leaf in enumerate(leaves)
    }
    # Assembled in memory: on a full disk, closing an archive raises a second error.
    image = io.BytesIO()
    np.savez(image, done=np.asarray(done), **arrays)
    write_atomically(path, lambda file: file.write(image.getbuffer()))


def _read_arrays(path: Path) -> tuple[int, list[np.ndarray]]:
    """Read the number of blocks done and the leaves of a tree."""
    try:
        stored = read_npz(path)
        return int(stored["done"]), [stored[f"leaf_{index}"] for index in range(len(stored) - 1)]
    except Exception as error:  # the type depends on the kind of damage
        raise _damaged(path, str(error)) from error


def _restore(like: Any, leaves: list[np.ndarray], path: Path, axes: slice) -> Any:
    """Return leaves in the tree of `like` if dtypes and shapes along `axes` agree."""
    expected, structure = jax.tree.flatten(like)
    shapes = [(leaf.dtype, leaf.shape[axes]) for leaf in expected]
    if shapes != [(leaf.dtype, leaf.shape[axes]) for leaf in leaves]:
        raise _damaged(path, "its arrays do not have the shapes of this run")
    return jax.tree.unflatten(structure, leaves)


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"The checkpoint file {path} is damaged or missing ({reason}). Restore an intact copy of "
        "the folder, or delete it and start again."
    )
