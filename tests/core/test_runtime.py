"""The runtime environment."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.core import runtime
from gpssm.core.runtime import (
    CACHE,
    THREADS,
    in_step,
    jit,
    max_maps,
    num_maps,
    num_threads,
    release_programs,
)
from programs import run_program


def test_threads_are_the_cores_unless_a_variable_says_how_many(monkeypatch):
    monkeypatch.delenv(THREADS, raising=False)
    assert num_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv(THREADS, "3")
    assert num_threads() == 3
    monkeypatch.setenv(THREADS, "none")
    with pytest.raises(ValueError, match="GPSSM_THREADS must be a whole number"):
        num_threads()


def run_kept(folder, **more):
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_COMP", "JAX_PERS"))
    }
    return json.loads(run_program("kept", env=ours | {CACHE: str(folder)} | more))


def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    first, second = run_kept(tmp_path), run_kept(tmp_path)
    assert first[0] == second[0]
    assert first[0].startswith(str(tmp_path))
    assert second[1] > first[1] == 0


def test_processes_that_fill_one_folder_at_once(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run_kept, [tmp_path] * 2)
    assert first[2] == second[2]


def test_a_process_forked_before_jax_was_used_draws_the_same_and_one_forked_later_is_refused():
    refusal = "this process was forked from a process that had already used JAX"
    assert run_program("forked", timeout=120).startswith(refusal)


def test_programs_are_kept_where_the_user_says_or_not_at_all(tmp_path):
    elsewhere = str(tmp_path / "mine")
    assert run_kept(tmp_path, JAX_COMPILATION_CACHE_DIR=elsewhere)[0] == elsewhere
    assert run_kept("off")[0] is None


def test_a_folder_that_cannot_be_written_costs_a_warning_not_the_result(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert run_kept(occupied)[1] == 0


def test_programs_are_released_before_memory_maps_run_out(monkeypatch):
    program = jit(lambda x: jnp.sin(x) + 1)
    program(jnp.ones(7))
    assert 0 < num_maps() < max_maps()
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    release_programs(interval=0.0)
    assert not cleared
    monkeypatch.setattr(runtime, "max_maps", lambda: num_maps() - 1)
    release_programs()
    assert not cleared, "it looked again too soon"
    release_programs(interval=0.0)
    assert cleared


def test_chains_in_step_take_one_way_of_a_condition():
    """With a flag of each chain's own there is no condition left: both ways are taken."""

    def one(flag, x):
        return jax.lax.cond(in_step(flag), lambda: x, lambda: x / 0.0)

    batched = jax.make_jaxpr(jax.vmap(one))(jnp.ones(3, bool), jnp.ones(3))
    assert "cond[" in str(batched)
    assert "cond[" not in str(
        jax.make_jaxpr(jax.vmap(lambda flag, x: jax.lax.cond(flag, lambda: x, lambda: -x)))(
            jnp.ones(3, bool), jnp.ones(3)
        )
    )
    np.testing.assert_array_equal(jax.vmap(one)(jnp.ones(3, bool), jnp.arange(3.0)), np.arange(3.0))
    assert one(jnp.asarray(True), jnp.asarray(2.0)) == 2.0
