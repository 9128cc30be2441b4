"""Checkpoints: atomic, specific to a run, and with the same draws after a kill."""

import errno
import itertools
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import rich.console

from gpssm.core.files import digest
from gpssm.core.text import stable_repr
from gpssm.inference import checkpoint
from gpssm.inference.checkpoint import Checkpoint
from programs import command
from random_walk import RandomWalk, small_fit

RUN = {"data": "1", "seed": "0"}
CARRY = {"x": np.arange(6.0).reshape(2, 3), "count": np.array([3, 3])}


def chunk(start, end):
    return {
        "a": np.arange(start, end)[None] + np.array([[0], [100]]),
        "b": np.ones((2, end - start, 4)),
    }


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of two chunks, blocks 0–4 and 5–7."""
    store = Checkpoint.open(tmp_path / "run", RUN, resume=False)
    store.save(0, 5, chunk(0, 5), jax.tree.map(np.zeros_like, CARRY))
    store.save(5, 8, chunk(5, 8), CARRY)
    return store


def load(store):
    return store.load(CARRY, lambda start: chunk(0, 1))


def assert_same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_what_was_saved_is_loaded(saved):
    again = Checkpoint.open(saved.folder, RUN, resume=True)
    done, chunks, carry = load(again)
    assert done == 8
    assert_same(chunks, [chunk(0, 5), chunk(5, 8)])
    assert_same(carry, CARRY)


def test_resuming_where_nothing_was_saved_starts_anew(tmp_path):
    assert load(Checkpoint.open(tmp_path / "new" / "run", RUN, resume=True)) is None


def test_a_chunk_whose_carry_was_never_written_is_not_part_of_the_run(saved):
    checkpoint.write_arrays(saved.folder / "chunk-00000008.npz", jax.tree.leaves(chunk(8, 20)), 20)
    assert load(saved)[0] == 8
    saved.save(8, 10, chunk(8, 10), CARRY)
    assert_same(load(saved)[1][-1], chunk(8, 10))


def test_a_failed_write_leaves_the_file_before(saved, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        saved.save(8, 10, chunk(8, 10), CARRY)
    assert load(saved)[0] == 8
    assert not list(saved.folder.glob("*.part"))


def test_an_earlier_run_is_not_overwritten(saved):
    with pytest.raises(FileExistsError, match="resume=True"):
        Checkpoint.open(saved.folder, RUN, resume=False)


def test_another_run_is_not_continued(saved):
    with pytest.raises(ValueError, match=r"differs in seed \(seed: 0 there, 1 here\)"):
        Checkpoint.open(saved.folder, RUN | {"seed": "1"}, resume=True)


def spoil_end(path):
    path.write_bytes(path.read_bytes()[:-40])


def spoil_middle(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil", [spoil_end, spoil_middle, lambda path: path.write_bytes(b""), Path.unlink]
)
def test_a_damaged_chunk_is_named(saved, spoil):
    spoil(saved.folder / "chunk-00000000.npz")
    with pytest.raises(ValueError, match=r"chunk-00000000.npz is damaged or missing .*start again"):
        load(saved)


@pytest.mark.parametrize("spoil", [spoil_end, lambda path: path.write_bytes(b"{}")])
def test_a_damaged_carry_is_named(saved, spoil):
    spoil(saved.folder / "carry.npz")
    with pytest.raises(ValueError, match=r"carry.npz is damaged"):
        load(saved)


def test_a_damaged_fingerprint_is_named(saved):
    spoil_end(saved.folder / "fingerprint.json")
    with pytest.raises(ValueError, match=r"fingerprint.json is damaged"):
        Checkpoint.open(saved.folder, RUN, resume=True)


def test_a_carry_of_other_shapes_is_refused(saved):
    with pytest.raises(ValueError, match="shapes of this run"):
        saved.load(CARRY | {"x": np.zeros((2, 4))}, lambda start: chunk(0, 1))


def test_digests_see_values_structure_and_no_addresses():
    tree = {"a": np.arange(3.0), "b": (np.ones(2),)}
    assert digest(tree) == digest({"b": (np.ones(2),), "a": np.arange(3.0)})
    changed = [
        {"a": np.arange(3.0) + 1e-15, "b": (np.ones(2),)},
        {"a": np.arange(3.0), "c": (np.ones(2),)},
    ]
    assert len({digest(tree), *map(digest, changed)}) == 3
    assert digest(tree) == digest(
        jax.tree.map(lambda array: array.astype(">f8"), tree)
    )  # as a MAT file may have it
    assert stable_repr(load) == "<function load>"


@pytest.fixture(scope="module")
def whole():
    return small_fit()


def test_a_killed_run_resumes_bit_for_bit(tmp_path, whole):
    """Killed at the worst moment, between a chunk and its carry."""
    folder = str(tmp_path / "run")
    words = command("killed", folder)
    ended = subprocess.run(words, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    resumed = small_fit(checkpoint=folder, resume=True)
    assert_same(
        (resumed.draws, resumed.info, resumed.warmup), (whole.draws, whole.info, whole.warmup)
    )
    # A finished run is only read.
    again = small_fit(checkpoint=folder, resume=True)
    assert_same(again.draws, whole.draws)
    assert again.seconds.compile == 0
    with pytest.raises(ValueError, match=r"differs in method, .*seed"):
        small_fit(RandomWalk(num_draws=2), checkpoint=folder, resume=True, seed=5)


def test_a_run_that_ended_in_its_first_chunk_resumes_bit_for_bit(tmp_path, whole, monkeypatch):
    write = checkpoint.write_arrays

    def fail(path, leaves, done):
        if path.name == "carry.npz":
            raise SystemExit
        write(path, leaves, done)

    monkeypatch.setattr(checkpoint, "write_arrays", fail)
    with pytest.raises(SystemExit):
        small_fit(checkpoint=tmp_path)
    monkeypatch.undo()
    assert_same(small_fit(checkpoint=tmp_path, resume=True).draws, whole.draws)


def test_a_full_disk_costs_the_checkpoint_but_not_the_draws(tmp_path, monkeypatch):
    whole = checkpoint.write_atomically

    def write(path, fill):
        if path.name == "chunk-00000006.npz":
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(path, fill)

    monkeypatch.setattr(checkpoint, "write_atomically", write)
    with pytest.warns(UserWarning, match="No checkpoint could be written .*No space left"):
        posterior = small_fit(checkpoint=tmp_path)
    assert posterior.num_draws == 10
    assert "after iteration 11" in posterior.notes[0]
    monkeypatch.undo()
    assert_same(small_fit(checkpoint=tmp_path, resume=True).draws, posterior.draws)


@pytest.fixture
def jumping_clocks(monkeypatch):
    """Clocks of Python, and of Rich's bars, that jump while chunks are saved, by hours forth or back."""
    offset, hours = [0.0], itertools.cycle([0, 0, 0, 0, 5, 0, -9, 0, 3])
    for home, name in (
        (time, "time"),
        (time, "monotonic"),
        (time, "perf_counter"),
        (rich.console, "monotonic"),
    ):
        clock = getattr(home, name)
        monkeypatch.setattr(home, name, lambda clock=clock: clock() + sum(offset))
    save = Checkpoint.save

    def save_and_jump(*arguments):
        save(*arguments)
        offset.append(3600.0 * next(hours))

    monkeypatch.setattr(Checkpoint, "save", save_and_jump)


def test_clocks_that_jump_change_no_draw_and_show_no_time_that_cannot_be(
    tmp_path, whole, jumping_clocks, monkeypatch, capsys
):
    jumps = Checkpoint.save

    def save_and_end(store, start, done, *arguments):
        jumps(store, start, done, *arguments)
        if done == 9:
            raise SystemExit

    how = {"checkpoint": tmp_path / "run", "chunk": 1, "progress": "plain"}
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_and_end)
        with pytest.raises(SystemExit):
            small_fit(**how)
    resumed = small_fit(**how, resume=True)
    with_a_bar = small_fit(**how | {"checkpoint": tmp_path / "bar", "progress": True})
    shown = capsys.readouterr()
    left = [float(seconds) for seconds in re.findall(r"(\S+) s left", shown.err)]
    assert len(left) == 13
    assert all(0 <= seconds < 60 for seconds in left)
    assert re.search(r"\d:\d\d:\d\d", shown.out)
    assert not re.search(r"-\d", re.sub(r"target -", "", shown.out))
    for posterior in (resumed, with_a_bar):
        assert_same(
            (posterior.draws, posterior.info, posterior.warmup),
            (whole.draws, whole.info, whole.warmup),
        )
        assert min(posterior.seconds.compile, posterior.seconds.run) >= 0
