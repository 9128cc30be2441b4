"""What goes wrong around a run: disks that fill up or cannot be written, second processes, files that are gone.

Disks are real ones, of the size that a test needs; only root can mount them. Whatever happens, what was computed before
is there afterwards, and `--resume` goes on with it.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

import gpssm
from gpssm.cli import pipeline
from gpssm.cli.app import app
from gpssm.cli.run_folder import Run
from gpssm.data.datasets import simulate
from gpssm.inference.progress import interruption
from posteriors import fitted
from programs import command, run_program

PICTURES = dict.fromkeys(("series", "forecast"), b"picture" * 100)


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"})


@contextmanager
def light():
    """Runs with pictures and a report that are files like others, but take no time, and with baselines in here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "draw_pictures", lambda *_: (PICTURES, []))
        patch.setattr(
            pipeline,
            "write_report",
            lambda _, path, **__: Run(path.parent).write(path.name, "page" * 100),
        )
        patch.setattr(pipeline, "BASELINES", ("last",))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    Run(folder).write_series("tank.csv", simulate("linear_gaussian", num_steps=80, seed=1).series)
    return folder / "tank.csv"


def fit(data, out, *others):
    with light():
        options = ["-y", "y", "--train", 0.5, "-m", "mean", "--draws", 20, "-q", "--out"]
        return call("fit", data, *options, out, *others)


@pytest.fixture(scope="module")
def undisturbed(data):
    out = data.parent / "undisturbed"
    found = fit(data, out)
    assert found.exit_code == 0, found.output
    return out


def told(found):
    """The words of a command that failed: one paragraph, no traceback."""
    assert found.exit_code in (1, 2, 130), found.output
    complaint = "".join(
        line for line in found.stderr.splitlines(keepends=True) if not line.endswith(" ...\n")
    )
    assert complaint.startswith("gpssm: ")
    assert "Traceback" not in found.stderr
    return " ".join(found.stderr.split())


def same_run(first, second):
    assert Run(first).files.keys() == Run(second).files.keys()
    a, b = Run(first).posterior(), Run(second).posterior()
    np.testing.assert_array_equal(a.draws.states[0], b.draws.states[0])
    assert (first / "forecast.csv").read_bytes() == (second / "forecast.csv").read_bytes()


@contextmanager
def disk(folder, size):
    """A file system of that size, and a function that mounts it again with other options."""
    folder.mkdir()

    def mount(options):
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True
        ).returncode

    if mount(f"size={size}"):
        pytest.skip("only root can make a small disk")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("size", ["4k", "16k", "48k", "64k"])
def test_a_disk_that_fills_up_and_is_made_larger(data, undisturbed, tmp_path, size):
    with disk(tmp_path / "disk", size) as remount:
        out = tmp_path / "disk" / "run"
        words = told(fit(data, out))
        assert "No space left" in words
        assert "--resume" in words or "--out" in words
        assert not list(out.rglob("*.part"))
        remount("size=16m")
        found = fit(data, out, "--resume")
        assert found.exit_code == 0, found.output
        same_run(undisturbed, out)


def test_a_disk_that_cannot_be_written(data, undisturbed, tmp_path):
    with disk(tmp_path / "disk", "16m") as remount:
        out = shutil.copytree(undisturbed, tmp_path / "disk" / "run")
        remount("ro,size=16m")
        for command in (
            ["fit", data, "-y", "y", "-m", "mean", "--out", tmp_path / "disk" / "new"],
            ["fit", data, "-y", "y", "-m", "mean", "--overwrite", "--out", out],
            ["forecast", out, "--out", tmp_path / "disk" / "forecast.csv"],
            ["report", out],
        ):
            assert "Read-only file system" in told(call(*command))
        with pytest.raises(OSError, match=r"could not be written \(Read-only"):
            Run(out).posterior().save(tmp_path / "disk" / "again.nc")
        same_run(undisturbed, out)


@pytest.mark.slow
def test_a_fault_in_any_write(data, undisturbed, tmp_path, monkeypatch):
    """The first write fails, then the second, ...; each run is resumed, and is what it would have been."""
    bring, writes = os.fsync, iter(())

    def fsync(number):
        if next(writes, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        bring(number)

    monkeypatch.setattr(os, "fsync", fsync)
    fine = []
    for failing in range(40):
        out = tmp_path / f"{failing}"
        writes = iter([False] * failing + [True])
        found = fit(data, out)
        fine.append(found.exit_code == 0)
        if not fine[-1]:
            assert "No space left" in told(found)
        if next(writes, None) is not None:
            break  # there are no more writes than that
        again = fit(data, out, "--resume")
        assert again.exit_code == 0, again.output
        same_run(undisturbed, out)
    assert failing > 8
    # What is lost with a checkpoint is only the checkpoint.
    assert fine[-1]
    assert sum(fine) <= 1 + 4


def test_a_second_process_is_told_at_once_and_the_lock_dies_with_the_first(
    data, undisturbed, tmp_path
):
    out = shutil.copytree(undisturbed, tmp_path / "run")
    with subprocess.Popen(command("hold", out), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        for others in ([], ["--resume"], ["--overwrite"]):
            assert f"another process is using {out}" in told(fit(data, out, *others))
        same_run(undisturbed, out)
        first.kill()
    assert fit(data, out, "--resume").exit_code == 0


def test_a_checkpoint_is_for_one_fit_at_a_time(tmp_path):
    series = simulate("linear_gaussian", num_steps=30).series
    with subprocess.Popen(command("hold", tmp_path), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        sizes = {"state_dim": 1, "num_inducing": 4, "num_warmup": 2, "num_draws": 5}
        with pytest.raises(BlockingIOError, match="another process"):
            gpssm.fit(series, method="ffvd-p", **sizes, progress=False, checkpoint=tmp_path)
        first.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_asked_to_end_is_asked_about_and_the_second_time_breaks_off(number):
    before = signal.getsignal(number)
    with interruption() as pressed:
        assert not pressed()
        os.kill(os.getpid(), number)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_a_command_that_is_asked_to_end_keeps_its_draws(data, tmp_path):
    """A real process and a real SIGTERM, in the midst of drawing."""
    out = tmp_path / "run"
    settings = {"num_inducing": 5, "start": "em", "num_warmup": 20, "num_draws": 99999}
    sizes = ["--state-dim", "1", "--chains", "1"]
    for name, value in settings.items():
        sizes += ["--set", f"{name}={value}"]
    fit = [sys.executable, "-m", "gpssm.cli", "fit", str(data), "-y", "y"]
    command = [*fit, *sizes, "--no-report", "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "sampling" in line:
                break
        process.terminate()
        said += process.stdout.readlines()
    words = " ".join("".join(said).split())
    assert process.returncode == 130, words
    assert "Traceback" not in words
    assert "Stopped after" in words
    assert "The draws so far are saved; resume with: gpssm fit --resume" in words
    assert not (out / "posterior.nc").exists()
    assert any(out.rglob("*.npz"))


def test_a_programs_own_plans_for_being_ended_stay():
    asked = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    try:
        with interruption() as pressed:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (asked, pressed()) == ([1], False)
    finally:
        signal.signal(signal.SIGTERM, before)


# What is gone, and the commands that need it, besides going on with the run.
NEEDED = {
    "config.toml": ("info", "forecast"),
    "posterior.nc": ("info", "report"),
    "metrics.json": ("compare",),
    "test.csv": ("forecast",),
    "forecast.csv": ("compare",),
    "baselines": ("compare",),
    "figures": (),
    "report.html": (),
}


@pytest.mark.parametrize("entry", NEEDED)
def test_a_folder_of_which_something_is_gone_or_empty(data, undisturbed, tmp_path, entry):
    """Every command ends well, or says in a paragraph what is missing; resuming brings it back, or says that too."""
    for empty in (False, True):
        out = shutil.copytree(undisturbed, tmp_path / f"run-{empty}")
        path = out / entry
        if path.is_dir():
            shutil.rmtree(path)
        elif empty:
            path.write_bytes(b"")
        else:
            path.unlink()
        with light():
            results = [call(command, out) for command in NEEDED[entry]]
        results.append(fit(data, out, "--resume"))
        for found in results:
            assert found.exit_code == 0 or len(told(found).split()) > 5
        if results[-1].exit_code == 0:
            same_run(undisturbed, out)
        else:
            assert entry in ("config.toml", "posterior.nc")


def test_resuming_says_what_is_there_and_what_is_left(undisturbed, tmp_path):
    out = shutil.copytree(undisturbed, tmp_path / "run")
    said = []
    for change in (lambda: None, lambda: (out / "posterior.nc").unlink()):
        change()
        with light():
            found = call("fit", "--resume", "--out", out)
        assert found.exit_code == 0, found.output
        said.append(" ".join(found.stderr.split()))
    assert "Resuming: the posterior is saved" in said[0]
    assert "Resuming: there are no draws yet" in said[1]
    same_run(undisturbed, out)


def test_clocks_that_jump_back_at_every_write_change_nothing(
    data, undisturbed, tmp_path, monkeypatch
):
    late, write = [0.0], Run.write
    for name in ("time", "monotonic", "perf_counter"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() - sum(late))

    def write_and_jump(*arguments):
        late.append(7200.0)
        return write(*arguments)

    monkeypatch.setattr(Run, "write", write_and_jump)
    for again in ([], ["--resume"]):
        found = fit(data, tmp_path / "run", *again)
        assert found.exit_code == 0, found.output
        same_run(undisturbed, tmp_path / "run")
        seconds = Run(tmp_path / "run").metrics()["seconds"].values()
        assert all(0 <= passed < 600 for passed in seconds)


@pytest.mark.slow
def test_a_cache_of_programs_that_is_corrupt_or_shared_changes_nothing(tmp_path):
    fitted().save(tmp_path / "fitted.nc")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")
    }
    environment |= {"GPSSM_CACHE": str(tmp_path / "cache")}

    def forecast():
        return run_program("forecast", tmp_path / "fitted.nc", env=environment)

    whole = forecast()
    programs = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert programs
    for number, path in enumerate(programs):
        path.write_bytes(
            b"" if number % 3 == 0 else b"rubbish" if number % 3 == 1 else path.read_bytes()[:100]
        )
    assert forecast() == whole
    shutil.rmtree(tmp_path / "cache")
    with ThreadPoolExecutor(3) as pool:  # three processes that find the folder empty
        assert {*pool.map(lambda _: forecast(), range(3))} == {whole}
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file in its place")
    assert forecast() == whole
