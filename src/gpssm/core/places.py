"""Parallel tasks: in this process and its threads, in processes, or on a Dask cluster.

In every case, the result of each task is yielded once, as it arrives. If a task fails or kills its
process, usually for lack of memory, its result is an exception, and other tasks are not affected.
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
    """The result of a task whose process died."""

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
    """Run tasks in threads of this process; on an early stop, wait only for running tasks."""
    pool = ThreadPoolExecutor(jobs)
    try:
        attempts = [pool.submit(_attempt, place, task, work) for place, task in enumerate(tasks)]
        for attempt in as_completed(attempts):
            yield attempt.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_processes(tasks: Sequence[Any], work: Work, jobs: int) -> Iterator[Arrival]:
    """Run tasks in processes of joblib, with one thread each for BLAS, XLA and chains.

    If a process dies, joblib gives up all running tasks. Those that may have been among them are
    run again, each in a separate process, and a task whose process dies again has failed.
    """
    check_installed("work in several processes", "joblib")
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
                # With n_jobs=1, the task would run in this process.
                yield next(_parallel({place: waiting.pop(place)}, work, 2))
            except TerminatedWorkerError as error:
                yield place, Died(error)


def _parallel(tasks: dict[int, Any], work: Work, jobs: int) -> Iterator[Arrival]:
    """Yield results as they arrive; tasks start in order, as processes become free."""
    from joblib import Parallel, delayed, parallel_config

    with (
        _environment(),
        warnings.catch_warnings(),
        parallel_config(backend="loky", inner_max_num_threads=1),
    ):
        # Compiled programs make processes grow, and joblib restarts those that have grown much.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
        options: dict[str, Any] = {"batch_size": 1, "pre_dispatch": jobs}
        run: Any = Parallel(n_jobs=jobs, return_as="generator_unordered", **options)
        yield from run([delayed(_attempt)(place, task, work) for place, task in tasks.items()])


@contextmanager
def _environment() -> Iterator[None]:
    """Set variables that JAX and `inference/chains.py` read, for processes started in the context.

    XLA sizes its thread pools by NPROC or, by default, for the whole machine, however many
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
    """Run tasks on the workers of a Dask cluster, preferably with one thread each.

    If a worker dies, the scheduler runs its tasks elsewhere; a task that kills several workers is
    given up.
    """
    check_installed("work on a cluster", "distributed")
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
