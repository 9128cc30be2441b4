"""Where many tasks run: in this process and its threads, in processes, or on a Dask cluster.

Every way yields each task's result once, as it arrives. A task that fails, or takes its process
with it, for want of memory mostly, gives an exception in place of its result, and costs no other.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from typing import Any

from gpssm.core.runtime import THREADS
from gpssm.core.text import check_installed, check_whole

Work = Callable[[Any], Any]
Arrival = tuple[int, Any]  # the number of a task, and its result or its exception


class Died(RuntimeError):
    """What is in the place of a result when a task's process died."""

    def __init__(self, error: object) -> None:
        super().__init__(f"the worker process died, probably because it ran out of memory. {error}")


def run_tasks(
    tasks: Sequence[Any], work: Work, jobs: int = 1, cluster: Any = None, threads: bool = False
) -> Iterator[Arrival]:
    """Return the number and result of each task, as they arrive.

    Parameters
    ----------
    tasks, work
        Arguments, and the function of each of them.
    jobs
        Tasks at a time on this machine; 1 runs them in this process.
    cluster
        The address of a Dask scheduler, as tcp://host:8786, a Dask cluster, or a client.
    threads
        Whether jobs are threads of this process, which share compiled programs.
    """
    check_whole("jobs", jobs, 1)
    if cluster is not None:
        return run_cluster(tasks, work, cluster)
    if jobs == 1:
        return (_attempt(place, task, work) for place, task in enumerate(tasks))
    return (run_threads if threads else run_processes)(tasks, work, jobs)


def _attempt(place: int, task: Any, work: Work) -> Arrival:
    try:
        return place, work(task)
    except Exception as error:
        return place, error


def run_threads(tasks: Sequence[Any], work: Work, jobs: int) -> Iterator[Arrival]:
    """`jobs` threads of this process; whoever stops taking results waits for those begun alone."""
    pool = ThreadPoolExecutor(jobs)
    try:
        attempts = [pool.submit(_attempt, place, task, work) for place, task in enumerate(tasks)]
        for attempt in as_completed(attempts):
            yield attempt.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_processes(tasks: Sequence[Any], work: Work, jobs: int) -> Iterator[Arrival]:
    """`jobs` processes of joblib's, with one thread each for BLAS, XLA and chains.

    When a process dies joblib gives up all that were running. Tasks that may have been among them
    are then run again, each with a process to itself: one that dies again is to blame.
    """
    check_installed("work in several processes", "joblib", "bench")
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    waiting = dict(enumerate(tasks))
    while waiting:
        try:
            for place, result in _parallel(waiting, work, jobs):
                del waiting[place]
                yield place, result
            return
        except TerminatedWorkerError:
            first = list(waiting)[:jobs]
        for place in first:
            try:
                # With n_jobs=1 it would run in this process.
                yield next(_parallel({place: waiting.pop(place)}, work, 2))
            except TerminatedWorkerError as error:
                yield place, Died(error)


def _parallel(tasks: dict[int, Any], work: Work, jobs: int) -> Iterator[Arrival]:
    """Results as they arrive; tasks start in their order, as processes get free."""
    from joblib import Parallel, delayed, parallel_config

    with (
        _environment(),
        warnings.catch_warnings(),
        parallel_config(backend="loky", inner_max_num_threads=1),
    ):
        # Compiled programs make processes grow; joblib replaces those that have grown much between
        # two tasks.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
        options: dict[str, Any] = {"batch_size": 1, "pre_dispatch": jobs}
        run: Any = Parallel(n_jobs=jobs, return_as="generator_unordered", **options)
        yield from run([delayed(_attempt)(place, task, work) for place, task in tasks.items()])


@contextmanager
def _environment() -> Iterator[None]:
    """Variables that JAX and `inference/chains.py` read, for processes started meanwhile.

    XLA makes its pools of threads as large as NPROC says, or else as the machine, however many
    processes share it.
    """
    wanted = {
        THREADS: "1",
        "NPROC": "1",
        "XLA_FLAGS": " ".join(
            [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_multi_thread_eigen=false"]
        ).strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def run_cluster(tasks: Sequence[Any], work: Work, cluster: Any) -> Iterator[Arrival]:
    """On the workers of a Dask cluster; best with one thread a worker.

    The scheduler runs a task elsewhere when its worker dies, and gives a task up when several died
    of it.
    """
    check_installed("work on a cluster", "distributed", "cluster")
    from distributed import Client, KilledWorker
    from distributed import as_completed as completed

    is_client = isinstance(cluster, Client)
    with nullcontext(cluster) if is_client else Client(cluster, set_as_default=False) as client:
        futures = [client.submit(work, task, pure=False) for task in tasks]
        places = {future.key: place for place, future in enumerate(futures)}
        for future in completed(futures, loop=client.loop):
            error = future.exception()
            result = (
                future.result()
                if error is None
                else Died(error)
                if isinstance(error, KilledWorker)
                else error
            )
            yield places[future.key], result
