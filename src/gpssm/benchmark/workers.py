"""Where tasks run, cells mostly: in this process, in processes of this machine, or on a Dask cluster.

Every way yields each task's results once, as they arrive, and a task that takes its process with it, for want of memory
mostly, becomes a failed result of that task alone.
"""

import abc
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import platformdirs

from gpssm.benchmark.results import Line
from gpssm.runtime import THREADS

JOB_MEGABYTES = 1500.0  # what a task is taken to need where no result tells
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


class Task(Protocol):
    """Something to be done, on any machine."""

    @abc.abstractmethod
    def died(self, error: BaseException) -> list[Line]:
        """Its results where it took its process with it."""


Work = Callable[[Any], list[Line]]


def run_here(tasks: Sequence[Task], work: Work) -> Iterator[list[Line]]:
    """One task after the other, in this process."""
    yield from map(work, tasks)


def run_processes(tasks: Sequence[Task], work: Work, jobs: int) -> Iterator[list[Line]]:
    """`jobs` processes of joblib's, with one thread each for BLAS, XLA and chains, and one compilation cache for all.

    When a process dies joblib gives up all that were running. Tasks that may have been among them are then run again,
    each with a process to itself: one that dies again is to blame.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    waiting = list(tasks)
    while waiting:
        done: set[int] = set()
        try:
            for place, lines in _parallel(waiting, work, jobs):
                done.add(place)
                yield lines
            return
        except TerminatedWorkerError:
            waiting = [task for place, task in enumerate(waiting) if place not in done]
        for task in waiting[:jobs]:
            yield _alone(task, work)
        waiting = waiting[jobs:]


def run_cluster(tasks: Sequence[Task], work: Work, address: str) -> Iterator[list[Line]]:
    """On the workers of the Dask scheduler at an address such as tcp://host:8786; best with one thread a worker.

    The scheduler runs a task elsewhere when its worker dies, and gives a task up when several died of it.
    """
    from distributed import Client, as_completed

    with Client(address, set_as_default=False) as client:
        futures = [client.submit(work, task, pure=False) for task in tasks]
        task_of = {future.key: task for future, task in zip(futures, tasks, strict=True)}
        for future in as_completed(futures, loop=client.loop):
            error = future.exception()
            yield future.result() if error is None else task_of[future.key].died(error)


def affordable(jobs: int, peaks: Sequence[float]) -> int:
    """As many jobs as asked for, or as the free memory holds: by the largest peak seen so far, in megabytes."""
    free = _free_megabytes()
    return jobs if free is None else max(1, min(jobs, int(free / max([*peaks, JOB_MEGABYTES]))))


def _parallel(tasks: Sequence[Task], work: Work, jobs: int) -> Iterator[tuple[int, list[Line]]]:
    """Results with the number of their task, as they arrive; tasks start in their order, as processes get free."""
    from joblib import Parallel, delayed, parallel_config

    def numbered(place: int, task: Task) -> tuple[int, list[Line]]:
        return place, work(task)

    with _environment(), warnings.catch_warnings(), parallel_config(backend="loky", inner_max_num_threads=1):
        # Compiled programs make processes grow; joblib replaces those that have grown much between two tasks.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
        options: dict[str, Any] = {"batch_size": 1, "pre_dispatch": jobs}
        run: Any = Parallel(n_jobs=jobs, return_as="generator_unordered", **options)
        yield from run(delayed(numbered)(place, task) for place, task in enumerate(tasks))


def _alone(task: Task, work: Work) -> list[Line]:
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        # With n_jobs=1 it would run in this process.
        return next(lines for _, lines in _parallel([task], work, 2))
    except TerminatedWorkerError as error:
        return task.died(error)


@contextmanager
def _environment() -> Iterator[None]:
    """Variables that JAX and `chains.py` read, for processes started meanwhile.

    XLA makes its pools of threads as large as NPROC says, or else as the machine, however many processes share it.
    """
    wanted = {
        THREADS: "1",
        "NPROC": "1",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", platformdirs.user_cache_dir("gpssm")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _free_megabytes() -> float | None:
    """Memory that can be had, within the limits of a container if this is one; None where the system does not tell."""
    try:
        free = float(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        return None
    with suppress(OSError, ValueError):
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, (limit - used) / 2**20)
    return free
