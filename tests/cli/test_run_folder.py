"""The run folder is created, written and read without destroying other files."""

import errno
from dataclasses import replace

import numpy as np
import pytest

from gpssm.cli import run_folder as runs
from gpssm.cli.run_folder import CONFIG, Run, compare_runs
from gpssm.cli.settings import Settings
from gpssm.core.text import to_json
from gpssm.data.series import Series


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("y,u\n" + "\n".join(f"{t},{t % 3}" for t in range(20)))
    return Settings((str(path),), ("y",), ("u",), train=0.5).complete()


def test_a_new_folder_holds_its_configuration(tmp_path, settings):
    run = Run.create(tmp_path / "a" / "b", settings)
    assert run.settings().to_toml() == settings.to_toml()
    assert list(run.files) == [CONFIG]


def test_a_run_is_replaced_only_when_asked(tmp_path, settings):
    run = Run.create(tmp_path / "run", settings)
    run.write("figures/series.png", b"old")
    run.write("posterior.nc", b"old")
    (run.folder / "diary.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="--overwrite"):
        Run.create(run.folder, settings)
    Run.create(run.folder, settings, overwrite=True)
    assert not (run.folder / "figures").exists()
    assert (run.folder / "diary.txt").read_text() == "mine"


def test_a_run_that_never_sampled_anything_is_in_nobodys_way(tmp_path, settings):
    run = Run.create(tmp_path / "run", settings)
    run.write("checkpoint/fingerprint.json", "{}")
    again = Run.create(run.folder, replace(settings, fit={"seed": 5}))
    assert again.settings().runtime.seed == 5
    assert not again.checkpoint.exists()


@pytest.mark.parametrize("name", ["notes.txt", CONFIG])
def test_a_folder_of_other_things_is_never_touched(tmp_path, settings, name):
    folder = tmp_path / "home"
    (folder / "figures").mkdir(parents=True)
    (folder / name).write_text("title = 'not ours'")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(FileExistsError, match="other files"):
            Run.create(folder, settings, **options)
    assert (folder / "figures").is_dir()


def test_a_run_goes_on_only_with_its_own_settings(tmp_path, settings):
    run = Run.create(tmp_path / "run", settings)
    Run.create(run.folder, settings, resume=True)
    other = replace(settings, fit={"seed": 5})
    with pytest.raises(ValueError, match=r"seed \(0 there, 5 here\)"):
        Run.create(run.folder, other, resume=True)
    assert run.settings().runtime.seed == 0


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path, settings):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written .*--out"):
        Run.create(tmp_path / "file" / "run", settings)


def test_a_full_disk_leaves_what_was_there(tmp_path, settings, monkeypatch):
    run = Run.create(tmp_path / "run", settings)
    run.write("metrics.json", '{"method": "arx"}')

    def full(path, fill):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        run.write("metrics.json", "{}")
    assert run.metrics() == {"method": "arx"}


def test_held_out_rows_come_back_to_the_last_bit(tmp_path, settings):
    rng = np.random.default_rng(0)
    y, u = rng.normal(size=(50, 1)) * 1e-7, rng.normal(size=(50, 1)) * 1e9
    y[3] = np.nan
    run = Run.create(tmp_path / "run", settings)
    run.write_series("test.csv", Series(y, u, outputs=["y, [red]"], inputs=["u"]))
    found = run.test()
    np.testing.assert_array_equal(found.y, y)
    np.testing.assert_array_equal(found.u, u)
    assert (found.outputs, found.inputs) == (("y, [red]",), ("u",))


def test_what_is_no_run_or_not_finished_says_so(tmp_path, settings):
    Run.create(tmp_path / "begun", settings)
    with pytest.raises(FileNotFoundError, match="not a run"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="fit --resume --out"):
        Run.open(tmp_path / "begun")


def _judged(folder, settings, method, hash="1", scores=None):
    run = Run.create(folder, settings)
    figures = {method: {"rmse": 1.0}, "arx": {"rmse": 2.0}, "last": {"rmse": 3.0}}
    scores = figures if scores is None else scores
    test = {"hash": hash, "rows": 10}
    content = {"method": method, "scores": scores, "test": test, "units": {}}
    content |= {"rolling": {"methods": figures, "horizon": 30}}
    run.write("metrics.json", to_json(content))
    return run


def test_runs_are_compared_with_the_baselines_once(tmp_path, settings):
    first, second = (_judged(tmp_path / name, settings, "ffvd") for name in ("a", "b"))
    found = compare_runs([first, second])
    methods = [str(tmp_path / "a"), str(tmp_path / "b"), "arx", "last"]
    assert list(found["scores"]) == list(found["rolling"]["methods"]) == methods
    assert found["test"]["rows"] == 10


def test_runs_of_different_rows_are_not_compared(tmp_path, settings):
    runs = [_judged(tmp_path / name, settings, "ffvd", hash=name) for name in ("a", "b")]
    with pytest.raises(ValueError, match="other rows"):
        compare_runs(runs)
    with pytest.raises(ValueError, match="no rows were held out"):
        compare_runs([_judged(tmp_path / "c", settings, "ffvd", scores={})])
