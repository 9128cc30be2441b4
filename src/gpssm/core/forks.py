"""Forked processes, which have a copy of the state of JAX without its threads.

Any call of JAX in such a process deadlocks. A process that was forked before JAX was used, or that
was spawned, creates its own threads. Nothing heavy is imported here, as the hook must be installed
early.
"""

import os
import sys

_lost = False


def watch() -> None:
    """Record in forked processes whether the threads of JAX were running in the parent."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_note)


def check_threads() -> None:
    """Raise if JAX would deadlock in this process."""
    if _lost:
        raise RuntimeError(
            "this process was forked from a process that had already used JAX, and would "
            "deadlock because JAX's threads are missing. Start processes by spawn: "
            "multiprocessing.get_context('spawn'), joblib or Dask"
        )


def _note() -> None:
    global _lost
    _lost = bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))
