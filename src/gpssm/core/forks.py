"""Processes that were forked: they have a copy of all that JAX holds, and none of its threads.

Whatever JAX is asked to do there waits for those threads for ever. A process that was forked before
JAX was used, or that was started by spawn, makes its own. Nothing heavy is imported here: the note
must be made from the beginning.
"""

import os
import sys

_lost = False


def watch() -> None:
    """Have new processes note whether JAX's threads ran in the one they were forked from."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_note)


def check_threads() -> None:
    """Refuse to use JAX where it could only wait."""
    if _lost:
        raise RuntimeError(
            "this process was forked from a process that had already used JAX, and would "
            "deadlock because JAX's threads are missing. Start processes by spawn: "
            "multiprocessing.get_context('spawn'), joblib or Dask"
        )


def _note() -> None:
    global _lost
    _lost = bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))
