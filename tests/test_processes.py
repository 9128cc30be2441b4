"""Fits in parallel and with other code: threads, processes, Dask, an event loop, JAX in another
precision.
"""

import asyncio
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from distributed import Client, LocalCluster

import gpssm
from builders import make_series
from gpssm.core.places import Died, run_tasks
from gpssm.fitting.ladder import Ladder
from gpssm.methods import ARX

SETTINGS = {
    "state_dim": 1,
    "num_inducing": 4,
    "num_chains": 1,
    "num_warmup": 10,
    "num_draws": 5,
    "start": "em",
}
FLAGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
)


def draw(seed):
    """The weights of a small fit and its forecast."""
    posterior = gpssm.fit(make_series(20), seed=seed, progress=False, **SETTINGS)
    forecast = posterior.forecast(3, np.zeros((3, 1)), num_paths=5, seed=seed)
    return np.asarray(posterior.draws.weights), forecast.paths


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def draw_baseline(seed):
    """The paths of a model that takes no time to fit."""
    posterior = gpssm.fit(make_series(20), method="last", num_draws=4, seed=seed, progress=False)
    return posterior.forecast(3, np.zeros((3, 1)), num_paths=5, seed=seed).paths


@pytest.fixture(scope="module")
def client():
    """A client of a cluster with one worker, a process of its own."""
    with (
        LocalCluster(1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_a_worker_of_dask_draws_the_same(client):
    found = client.submit(draw_baseline, 3).result(timeout=200)
    np.testing.assert_array_equal(found, draw_baseline(3))


def test_a_cluster_fits_many_series_the_same(client, tmp_path):
    series = {name: make_series(60, 1, 1, seed=seed) for seed, name in enumerate("ab")}
    series["short"] = make_series(5)
    settings = {"method": "last", "num_chains": 1, "num_draws": 4, "progress": False}
    for folder in (None, tmp_path / "fits"):
        with pytest.warns(UserWarning, match="1 of 3 series could not be fitted: 'short'"):
            fits = gpssm.fit_many(series, cluster=client, folder=folder, **settings)
        for name, posterior in fits.items():
            paths = gpssm.fit(series[name], **settings).forecast(3, np.zeros((3, 1))).paths
            np.testing.assert_array_equal(posterior.forecast(3, np.zeros((3, 1))).paths, paths)


def test_a_cluster_selects_and_stacks_the_same(client):
    series, tiny = make_series(60, 1, 1), {"num_chains": 1, "num_draws": 20, "progress": False}
    candidates = [{"method": "mean"}, {"method": "last"}]
    here, there = (
        gpssm.select(series, candidates, cluster=one, **tiny)
        for one in (None, client.scheduler.address)
    )
    assert there.best == here.best
    pandas.testing.assert_frame_equal(there.table, here.table, check_exact=True)
    members = {"mean": "mean", "last": "last", "broken": {"method": ARX(orders=(90, 1))}}
    here, there = (gpssm.stack(series, members, cluster=one, **tiny) for one in (None, client))
    np.testing.assert_array_equal(there.weights, here.weights)
    assert there.notes == here.notes
    assert there.notes[0].startswith("broken failed and was dropped")
    assert (
        client.submit(sum, [1, 2]).result(timeout=200) == 3
    )  # a client that was lent is not closed
    with pytest.raises(KeyError, match="Unknown method 'median'"):
        gpssm.select(series, [{"method": "median"}], cluster=client, **tiny)


def climb_linear(**place):
    """The mixture of the linear candidates of a default fit, which are fast to fit."""
    runtime = gpssm.Runtime(num_chains=1, progress=False, **place)
    ladder = Ladder(gpssm.Spec(), [make_series(60, 1, 1)], runtime)
    ladder.add_linear()
    ladder.weigh()
    return ladder.answer()


@pytest.mark.parametrize("place", ["cluster", pytest.param("processes", marks=pytest.mark.slow)])
def test_the_candidates_of_a_default_fit_are_the_same_elsewhere(place, client):
    here = climb_linear()
    elsewhere = climb_linear(**({"jobs": 2} if place == "processes" else {"cluster": client}))
    assert list(elsewhere.members) == list(here.members)
    np.testing.assert_array_equal(elsewhere.weights, here.weights)
    u = np.zeros((3, 1))
    np.testing.assert_array_equal(elsewhere.forecast(u=u).paths, here.forecast(u=u).paths)


def die_at_first(path):
    """The name of a file, after a kill of the worker that finds no file of a name with "dies"."""
    if "dies" in path.name and not path.exists():
        if "once" in path.name:
            path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def test_tasks_survive_a_worker_that_is_killed(client, tmp_path):
    names = ["a", "dies once", "b"]
    tasks = [tmp_path / name for name in names]
    arrivals = list(run_tasks(tasks, die_at_first, cluster=client))
    assert sorted(arrivals) == list(enumerate(names))  # nothing is lost, and nothing comes twice


@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_given_up(client, tmp_path):
    tasks = [tmp_path / "dies always", tmp_path / "a"]
    arrivals = dict(run_tasks(tasks[:1], die_at_first, cluster=client))
    assert isinstance(arrivals[0], Died)
    assert dict(run_tasks(tasks[1:], die_at_first, cluster=client)) == {0: "a"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
def test_threads_processes_and_an_event_loop_draw_the_same(client):
    alone = [draw(seed) for seed in (0, 1)]
    flags = [getattr(jax.config, name) for name in FLAGS]
    with ThreadPoolExecutor(2) as pool:
        for found, expected in zip(pool.map(draw, (0, 1)), alone, strict=True):
            assert_same(found, expected)

    async def beside():
        ticks, fitted = 0, asyncio.get_running_loop().run_in_executor(None, draw, 0)
        while not fitted.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return ticks, await fitted

    ticks, found = asyncio.run(beside())
    assert ticks > 0
    assert_same(found, alone[0])
    assert_same(client.submit(draw, 1).result(timeout=200), alone[1])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert_same(pool.submit(draw, 1).result(timeout=200), alone[1])
    assert [getattr(jax.config, name) for name in FLAGS] == flags


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
def test_beside_code_in_single_precision_that_runs_meanwhile():
    alone = draw(0)
    with jax.enable_x64(False), ThreadPoolExecutor(1) as pool:
        fitted = pool.submit(draw, 0)
        while not fitted.done():
            assert jnp.sum(jnp.ones(3)).dtype == jnp.float32
        assert_same(fitted.result(), alone)
        assert_same(draw(0), alone)
        assert jnp.ones(3).dtype == jnp.float32
