"""The command line as users call it, on files in a folder, from the first fit to Ctrl-C."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpssm
from command_line import answer, call, complaint, quick
from gpssm.cli.run_folder import Run
from gpssm.data.datasets import simulate
from gpssm.posterior.checks import Check, doubts
from programs import command, run_program

COMMAND = Path(sys.executable).with_name("gpssm")
ENVIRONMENT = os.environ | {"COLUMNS": "80", "TERM": "dumb"}
FIGURES = {
    "series", "forecast", "smoothed", "states", "transition", "calibration", "traces", "residuals",
    "comparison",
}  # fmt: skip


def run(*arguments):
    """The installed command in a process of its own: for what only a process shows."""
    words = [str(COMMAND), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)


# The command itself ---------------------------------------------------------------------------------------------------


def test_help_names_the_commands_within_a_second():
    began = time.perf_counter()
    found = run("--help")
    if time.perf_counter() - began > 1:  # another process may have been in the way
        began = time.perf_counter()
        found = run("--help")
    assert time.perf_counter() - began < 1
    assert found.returncode == 0
    assert re.findall(r"^│ ([a-z]+) ", found.stdout, re.M) == COMMANDS.split()
    assert "--install-completion" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_help_does_not_wait_for_heavy_imports():
    heavy = ("jax", "equinox", "pandas", "scipy", "matplotlib")
    assert run_program("loaded", "gpssm.cli", *heavy) == "[]\n"


COMMANDS = "fit demo forecast compare report info methods kernels likelihoods data bench"
COMMON = ("--json", "--quiet", "--debug")


@pytest.mark.parametrize(
    "words", [*COMMANDS.split()[:-2], "data list", "data fetch", "bench", "bench report"]
)
def test_every_command_has_the_common_options(words):
    shown = call(*words.split(), "--help").stdout
    assert all(option in shown for option in COMMON)


def test_options_of_fit():
    shown = re.findall(r"^│ (--[a-z-]+)", call("fit", "--help").stdout, re.M)
    run = "--output --input --train --out --config --resume --overwrite --no-report"
    model = "--method --state-dim --horizon --chains --warmup --draws --seed --set"
    reading = "--dt --time --regrid --na"
    assert shown == [*run.split(), *COMMON, "--help", *model.split(), *reading.split()]


def test_version():
    assert call("--version").stdout == f"gpssm {gpssm.__version__}\n"


def test_unknown_commands_and_options_are_bad_usage():
    assert call("forcast").exit_code == 2
    assert call("fit", "--drawz", "3").exit_code == 2
    assert call("forecast").exit_code == 2


def test_public_names_resolve():
    for name in gpssm.__all__:
        assert getattr(gpssm, name) is not None
    assert len(gpssm.__all__) <= 40


# What there is to choose from -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["methods", "kernels", "likelihoods"])
def test_catalogues_are_those_of_the_registries(what):
    registry = getattr(getattr(gpssm, what), what.upper())
    words = answer(what)
    assert list(words) == list(registry)
    assert all(len(text) > 10 for text in words.values())
    assert what != "methods" or len(set(words.values())) == len(words)
    assert max(map(len, call(what).stdout.splitlines())) <= 80


def test_series_are_listed_and_written(tmp_path):
    assert "sim:kink" in answer("data", "list")
    found = answer("data", "fetch", "sim:kink:num_steps=30", "-o", tmp_path)
    path = Path(found["sim:kink:num_steps=30"])
    truth = simulate("kink", num_steps=30).series
    np.testing.assert_allclose(gpssm.read(path, "y").y, truth.y, rtol=1e-15)
    assert "--overwrite" in complaint(
        "data", "fetch", "sim:kink:num_steps=30", "-o", tmp_path, code=2
    )
    assert "duffing" in complaint("data", "fetch", "sim:dufing", "-o", tmp_path, code=2)


# Sweeps ---------------------------------------------------------------------------------------------------------------


def test_a_sweep_is_run_and_reported(tmp_path):
    series = "sim:linear_gaussian:num_steps=60"
    words = ["--datasets", series, "--methods", "last, mean", "--protocols", "p30,simulation"]
    words += ["--seeds", 1, "--out", tmp_path, "--set", "num_chains=1", "--set", "num_draws=10"]
    words += ["--set", "last.thin=2"]
    results = {record["method"]: record for record in answer("bench", *words)}
    assert set(results) == {"last", "mean"}
    for name, thin in (("last", 2), ("mean", 1)):
        assert list(results[name]["figures"]) == ["p30", "simulation"]
        method = results[name]["fit"]["spec"]["method"]
        assert (method["num_draws"], method["thin"]) == (10, thin)
    shown = call("bench", *words).stdout
    assert "Other series: simulation of all test rows" in shown
    tables = [line for line in shown.splitlines() if not line.startswith(("Made with", "Report:"))]
    assert max(map(len, tables)) <= 80
    assert answer("bench", "report", tmp_path) == {"report": str(tmp_path / "report.md")}
    assert series in (tmp_path / "report.md").read_text()


def test_bench_alone_shows_its_help():
    shown = call("bench").stdout
    assert shown.strip() == call("bench", "--help").stdout.strip()
    options = (
        "--datasets --methods --seeds --protocols --out --set --retry --jobs --cluster --shard "
        "--json --quiet --debug --help"
    )
    assert re.findall(r"^│ (--[a-z-]+)", shown, re.M) == options.split()
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--methods", "ffvd,arma"], "Known: auto, ffvd"),
        (["--protocols", "p31"], "Did you mean 'p30'"),
        (["--datasets", ","], "at least one data set"),
        (["--set", "ffvd"], "--set must be NAME=VALUE"),
        (["--set", "lgsm.order=2"], "Did you mean 'lgssm'"),
        (["--set", "arx.ordrs=2"], "Did you mean 'orders'"),
        (["--set", "arx.num_draws=0"], "at least 1"),
        (["--shard", "3/2"], "--shard must be I/N"),
        (["--seeds", "2", "report", "."], "--seeds is not an option of 'report'"),
    ],
)
def test_wrong_sweeps_are_bad_usage(arguments, told):
    assert told in complaint("bench", *arguments, code=2)


# Fits -----------------------------------------------------------------------------------------------------------------


def test_a_run_folder_is_complete(linear_run):
    names = {path.name for path in linear_run.iterdir()}
    files = {
        "posterior.nc",
        "config.toml",
        "metrics.json",
        "forecast.csv",
        "test.csv",
        "report.html",
    }
    assert names == files | {"baselines", "figures"}
    assert {path.stem for path in (linear_run / "figures").iterdir()} == FIGURES
    assert {path.stem for path in (linear_run / "baselines").iterdir()} == {"lgssm", "last", "mean"}
    metrics = json.loads((linear_run / "metrics.json").read_text())
    assert metrics["test"]["rows"] == 40
    assert set(metrics["scores"]) == {"arx", "lgssm", "last", "mean"}
    assert metrics["notes"] == []


def test_scores_are_those_of_the_forecast_written(fitted_run, data):
    metrics, forecasts = Run(fitted_run).metrics(), Run(fitted_run).forecasts()
    actual = gpssm.read(data, "y").y[40:, 0]
    assert list(forecasts) == ["ffvd", "last"]
    for name, frame in forecasts.items():
        errors = frame["y mean"].to_numpy() - actual
        np.testing.assert_allclose(
            metrics["scores"][name]["rmse"], np.sqrt(np.mean(errors**2)), rtol=1e-8
        )
        inside = (frame["y 5%"] <= actual) & (actual <= frame["y 95%"])
        np.testing.assert_allclose(
            metrics["scores"][name]["coverage_90"], inside.mean(), rtol=1e-12
        )


def test_a_model_without_inputs_or_test_rows_forecasts_30_steps(data, tmp_path):
    with quick(()):
        options = ["--method", "last", "--draws", 5, "--set", "calibrate=true"]
        shown = call("fit", data, data, "-y", "y", *options, "--out", tmp_path / "run").stdout
    assert "No rows were held out" in shown
    assert "✓" not in shown  # training rows decide nothing
    run = Run(tmp_path / "run")
    metrics = run.metrics()
    assert metrics["scores"] == {}
    assert metrics["test"] is None
    assert len(answer("forecast", run.folder)["step"]) == 30
    posterior = run.posterior()
    assert len(posterior.dataset.experiments) == 2
    assert metrics["summary"]["calibration"] == posterior.calibration.table()
    assert run.settings().spec.calibrate
    assert "no inputs" in complaint("forecast", run.folder, "--inputs", data, code=1)
    assert "--train" in complaint("compare", run.folder, code=1)


def test_a_delay_is_found_and_reported(tmp_path):
    rng = np.random.default_rng(1)
    u, y = np.repeat(rng.normal(size=20), 4), np.zeros(80)
    for t in range(4, 80):
        y[t] = 0.8 * y[t - 1] + u[t - 4] + 0.1 * rng.normal()
    pd.DataFrame({"y": y, "u": u}).to_csv(tmp_path / "late.csv", index=False)
    words = ["fit", tmp_path / "late.csv", "-y", "y", "-u", "u", "--train", "0.5", "-m", "arx"]
    words += ["--draws", 20]
    with quick():
        shown = call(*words, "--set", "delay=auto", "--out", tmp_path / "run").stdout
    assert "Inputs:    u (acts 4 rows later)\n" in shown
    run = Run(tmp_path / "run")
    assert (run.posterior().dataset.delay, run.settings().spec.delay) == ((4,), "auto")
    # The rows held out are given as they were recorded. A simulation errs by the process noise,
    # 0.1 / sqrt(1 - 0.8²), and so many correlated errors know that to a half.
    assert run.metrics()["scores"]["arx"]["rmse"] == pytest.approx(0.1 / 0.6, rel=0.5)
    unknown = ["--set", 'delay={"u": 4, "v": 1}', "--out", tmp_path / "none"]
    assert "no input 'v'" in complaint(*words, *unknown, code=1)
    assert not (tmp_path / "none").exists()


def test_settings_of_fit_and_of_the_method_are_set_by_name(data, tmp_path):
    words = ["fit", data, "-y", "y", "--train", 60, "-m", "last", "--draws", 5]
    words += ["--set", "windows=2", "--set", "keep_states=25", "--set", "thin=2"]
    with quick(()):
        answer(*words, "--out", tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.posterior().dataset.first_states == (35,)
    settings = run.settings()
    assert (settings.spec.windows, settings.runtime.keep_states) == (2, 25)
    assert settings.spec.settings.thin == 2


def test_marks_of_missing_values_are_named(data, tmp_path):
    rows = pd.read_csv(data)
    rows.loc[[5, 9], "y"] = -9999
    rows.to_csv(tmp_path / "marks.csv", index=False)
    with quick(()):
        words = ["fit", tmp_path / "marks.csv", "-y", "y", "-m", "mean", "--out", tmp_path / "run"]
        result = call(*words)
    assert "2 values like -9999 are far from all others" in " ".join(result.stderr.split())
    assert "2 values like -9999" in Run(tmp_path / "run").metrics()["notes"][0]
    text = (tmp_path / "marks.csv").read_text(encoding="utf-8")
    (tmp_path / "marks.csv").write_text(f"Pumpe 3, Süd\n{text}", encoding="latin-1")
    words[-1] = tmp_path / "again"
    reading = ["--na", "-9999", "--set", "encoding=latin-1", "--set", "skip=1"]
    with quick(()):
        assert "like -9999" not in call(*words, *reading).stderr
    again = Run(tmp_path / "again")
    assert np.flatnonzero(np.isnan(again.posterior().dataset.experiments[0].y)).tolist() == [5, 9]
    assert again.settings().reader["encoding"] == "latin-1"


def test_a_run_is_never_replaced_unasked(linear_run, data):
    before = {path: path.stat().st_mtime_ns for path in linear_run.rglob("*")}
    told = complaint("fit", data, "-y", "y", "-m", "mean", "--out", linear_run, code=1)
    assert "--overwrite" in told
    assert "--resume" in told
    assert {path: path.stat().st_mtime_ns for path in linear_run.rglob("*")} == before


def start(folder, data, *arguments, **environment):
    """A fit in a process of its own, as soon as it has saved something."""
    words, pipe = [COMMAND, "fit", *arguments, "--out", folder], subprocess.PIPE
    process = subprocess.Popen(
        words, stderr=pipe, stdout=pipe, text=True, env=ENVIRONMENT | environment
    )
    saved, limit = folder / "checkpoint" / "carry.npz", time.monotonic() + 100
    before = saved.stat().st_mtime_ns if saved.exists() else 0
    while time.monotonic() < limit and process.poll() is None:
        if saved.exists() and saved.stat().st_mtime_ns > before:
            return process
        time.sleep(0.002)
    raise AssertionError(f"nothing was saved: {process.communicate()}")


def test_a_run_that_was_stopped_is_resumed_bit_for_bit(data, fitted_run, tmp_path):
    out = tmp_path / "run"
    process = start(out, data, "--config", fitted_run / "config.toml")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert f"resume with: gpssm fit --resume --out {out}" in stderr.replace("\n", " ")
    assert "Traceback" not in stderr
    assert not (out / "posterior.nc").exists()
    assert "not finished" in complaint("info", out, code=1)
    with quick():
        result = call("fit", "--resume", "--out", out)
    assert result.exit_code == 0, result.output
    assert "Resuming: the draws so far are saved" in result.stderr
    assert not (out / "checkpoint").exists()
    same_run(fitted_run, out)


def same_run(first, second):
    a, b = Run(first).posterior(), Run(second).posterior()
    np.testing.assert_array_equal(a.draws.weights, b.draws.weights)
    np.testing.assert_array_equal(a.draws.states[0], b.draws.states[0])
    assert (first / "forecast.csv").read_bytes() == (second / "forecast.csv").read_bytes()
    assert (first / "config.toml").read_bytes() == (second / "config.toml").read_bytes()


def test_a_configuration_does_the_run_again(linear_run, tmp_path):
    with quick():
        answer("fit", "--config", linear_run / "config.toml", "--out", tmp_path / "again")
    same_run(linear_run, tmp_path / "again")


def test_a_terminal_of_80_columns_shows_scores_first_and_dates_all_along(data, tmp_path):
    frame = gpssm.read(data, "y", "u").to_dataframe()
    dates = pd.date_range("2024-03-31 20:00", periods=80, freq="h", name="when")
    frame.assign(other=1000 * frame["y"] + np.arange(80)).set_index(dates).drop(dates[7]).to_csv(
        tmp_path / "dated.csv"
    )
    words = ["fit", tmp_path / "dated.csv", "-y", "y", "-y", "other", "-u", "u"]
    words += ["--set", 'units={"y": "m"}', "-m", "mean"]
    assert "row 7 (counted from 0)" in complaint(*words, code=1)
    words += ["--regrid", "auto", "--train", "2024-04-02", "--draws", "20", "--no-report"]
    words += ["--out", "run"]
    shown = in_terminal(command("one_baseline", *words), tmp_path)
    order = ["Scaled CRPS of last", "Judging", "y [m]", "All outputs", "Seconds:   baselines"]
    assert sorted(order, key=shown.index) == order
    assert max(len(line) for line in re.split(r"[\r\n]+", shown)) <= 80
    assert not (tmp_path / "run" / "report.html").exists()
    table = pd.read_csv(tmp_path / "run" / "forecast.csv", index_col=0, parse_dates=True)
    assert (table.index == dates[28:]).all()
    assert Run(tmp_path / "run").test().clock.show(0) == "2024-04-02 00:00:00"
    assert np.isnan(Run(tmp_path / "run").posterior().dataset.experiments[0].y[7]).all()
    steps = call("forecast", tmp_path / "run", "--horizon", "5", "--levels", "50,80,90").stdout
    assert "2024-04-02 00:00" in steps
    heads = [line.split() for line in steps.splitlines() if line.split()[:1] == ["when"]]
    assert [(head[1], head[-1], "5%" in head, "95%" in head) for head in heads] == [
        ("mean", "actual", True, True)
    ] * 2
    assert "…" not in steps  # columns are left out, not cut
    assert max(map(len, steps.splitlines())) <= 80


def in_terminal(words, folder):
    """What a command shows in a terminal of 80 columns, without the codes that move the cursor and colour."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    # One thread: its baseline needs no process of its own.
    more = {"TERM": "xterm", "GPSSM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | more
    process = subprocess.Popen(
        list(map(str, words)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment,
    )
    os.close(theirs)
    parts = []
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(parts).decode())
    assert process.wait(timeout=300) == 0, shown
    return shown


# What to do with a run ------------------------------------------------------------------------------------------------


def test_a_forecast_takes_inputs_by_name(linear_run, data, tmp_path):
    out = tmp_path / "new" / "forecast.csv"
    future = data.parent / "future.csv"
    found = answer("forecast", linear_run, "--inputs", future, "--levels", "80", "--out", out)
    assert found["step"] == list(range(40, 80))
    figures = {"y mean", "y std", "y 10%", "y 50%", "y 90%"}
    assert set(found) == {"step", *figures, "trusted", "notes"}
    header, *rows = out.read_text().splitlines()
    assert header == "step,y mean,y std,y 10%,y 50%,y 90%,trusted"
    assert len(rows) == 40
    assert "--overwrite" in complaint("forecast", linear_run, "--out", out, code=2)
    held_out = answer("forecast", linear_run)
    assert list(answer("forecast", linear_run, "--levels", "0.8,90")) == list(
        answer("forecast", linear_run, "--levels", "80,0.9")
    )
    assert answer("forecast", linear_run, "--seed", 1)["y mean"] != held_out["y mean"]
    assert len(held_out["step"]) == 40
    assert held_out["y mean"] != found["y mean"]


def test_a_forecast_is_readable(linear_run):
    shown = call("forecast", linear_run).stdout
    assert "actual" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_inputs_are_matched_by_their_times(tmp_path):
    times = pd.date_range("2024-03-31 20:00", periods=80, freq="h", name="when")
    u = np.sin(np.arange(80.0))
    rows = pd.DataFrame({"y": np.cumsum(u), "u": u}, index=times)
    rows.to_csv(tmp_path / "dated.csv")
    with quick(()):
        words = ["-y", "y", "-u", "u", "--train", 50, "-m", "arx", "--draws", 5]
        answer("fit", tmp_path / "dated.csv", *words, "--out", tmp_path / "run")

    def ahead(first, frequency=1):
        rows[first::frequency].to_csv(tmp_path / "ahead.csv")
        return "forecast", tmp_path / "run", "--inputs", tmp_path / "ahead.csv"

    expected = answer(*ahead(50))
    assert len(expected["step"]) == 30
    assert answer(*ahead(40)) == expected
    assert "the first step ahead is at 2024-04-02 22:00:00" in complaint(*ahead(52), code=1)
    assert "apart" in complaint(*ahead(50, 2), code=1)
    # Rows without times are the steps ahead, which is said.
    rows[50:].to_csv(tmp_path / "ahead.csv", index=False)
    result = call("forecast", tmp_path / "run", "--inputs", tmp_path / "ahead.csv")
    assert result.exit_code == 0
    said = " ".join(result.stderr.split())
    assert "has no times" in said
    assert "first step ahead, 2024-04-02 22:00:00" in said


def test_forecasts_that_cannot_be_made_say_why(linear_run, data, tmp_path):
    assert "such as 50,90 or 0.5,0.9" in complaint(
        "forecast", linear_run, "--levels", "0,50", code=2
    )
    assert "(1 is ambiguous)" in complaint("forecast", linear_run, "--levels", "1", code=2)
    assert "got 40" in complaint("forecast", linear_run, "--horizon", "41", code=1)
    (tmp_path / "wrong.csv").write_text("v\n1\n2\n")
    assert "no column 'u'" in complaint(
        "forecast", linear_run, "--inputs", tmp_path / "wrong.csv", code=1
    )
    (tmp_path / "gap.csv").write_text("t,u\n1,2\n2,\n")
    assert "row 1" in complaint("forecast", linear_run, "--inputs", tmp_path / "gap.csv", code=1)
    assert "not a run" in complaint("forecast", tmp_path, code=1)


def test_runs_are_compared(linear_run, fitted_run):
    scores = answer("compare", fitted_run, linear_run)["scores"]
    assert list(scores) == [str(fitted_run), str(linear_run), "last", "lgssm", "mean"]
    assert scores["lgssm"]["rmse"] > 0
    assert "*" in call("compare", fitted_run, linear_run).stdout


def test_info_and_report(linear_run):
    found = answer("info", linear_run)
    assert found["settings"]["fit"]["method"] == "arx"
    assert found["files"]["posterior.nc"] > 0
    shown = call("info", linear_run).stdout
    assert max(map(len, shown.splitlines())) <= 80 + len(str(linear_run))
    verdicts = doubts([Check(**check) for check in found["checks"]])
    assert verdicts
    assert not [check.words for check in verdicts if check.words not in " ".join(shown.split())]
    (linear_run / "report.html").unlink()
    assert answer("report", linear_run) == {"report": str(linear_run / "report.html")}
    assert "</html>" in (linear_run / "report.html").read_text()


def test_quiet_is_quiet(linear_run):
    found = call("compare", linear_run, "--quiet")
    assert (found.exit_code, found.output) == (0, "")


# What goes wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no lines"),
        (b"level,pump\n", "no rows"),
        (b"level,pump\n1,2\n3\n4,5\n", "line 3"),
        (b"level|pump\n1|2\n3|4\n", "Only one column"),
        (b"level,pump\n1,2\n" + b"x" * 1_000_000 + b",3\n", "cannot be read as a .csv file"),
        (b"level,pump\n1,2\n\xff\xfe\x80,3\n", "column 'level', row 1"),
        (b"level,pump\n1,2\n\x00\x00,3\n", ""),
        (b"level,pump\n1,2\n=cmd|' /C calc'!A0,3\n", "not a number"),
        (b"level,pump\n1,inf\n2,3\n", "infinite"),
        (b"level,pump\n" + b"1,2\n" * 5, "at least 10 rows"),
        (b"level,pump\n" + b"1,2\n" * 50, "constant"),
    ],
)
def test_damaged_and_hostile_files_are_refused_in_one_paragraph(tmp_path, content, told):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    assert told in complaint(
        "fit", path, "-y", "level", "-u", "pump", "-m", "mean", "--out", tmp_path / "run", code=1
    )


def test_names_that_would_control_a_terminal_do_not(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("\x1b[31mlevel,pump\n" + "1,2\n" * 3)
    told = complaint("fit", path, "-y", "\x1b[31mlevl", code=1)
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-y", "levl"], "Did you mean 'level'"),
        (["-y", "level", "-u", "level"], "chosen twice"),
        (["-y", "level", "--train", "60"], "none for testing"),
    ],
)
def test_wrong_columns_and_splits_suggest_what_to_do(tmp_path, arguments, told):
    path = tmp_path / "tank.csv"
    path.write_text("level,pump\n" + "".join(f"{t % 7},{t}\n" for t in range(60)))
    assert told in complaint("fit", path, *arguments, code=1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-y", "level", "-m", "fvd"], "Did you mean 'ffvd'"),
        (["-y", "level", "--set", "kernel=se+rbf"], "one of se,"),
        (["-y", "level", "--train", "half"], "train must be a number of rows"),
        (["-y", "level", "--state-dim", "two"], "state_dim must be a whole number"),
        (["-y", "level", "--horizon", "soon"], "horizon must be a whole number"),
        (["-y", "level", "--set", "statedim=2"], "Did you mean 'state_dim'"),
        (["-y", "level", "--set", "kernel"], "--set must be NAME=VALUE"),
        (["-y", "level", "--draws", "0"], "num_draws"),
        (["--method", "arx"], "'level', 'pump'"),
    ],
)
def test_wrong_options_are_bad_usage(tmp_path, arguments, told):
    (tmp_path / "tank.csv").write_text("level,pump\n1,2\n")
    assert told in complaint("fit", tmp_path / "tank.csv", *arguments, code=2)


def test_no_file_and_no_run_are_told_of(tmp_path):
    assert "there is no file" in complaint("fit", tmp_path / "none.csv", "-y", "level", code=1)
    assert "DATA" in complaint("fit", "--resume", "--out", tmp_path / "none", code=2)
    assert "config" in complaint("fit", "--config", tmp_path / "none.toml", code=1)


def test_an_unwritable_folder_is_told_of_before_anything_is_done(data, tmp_path):
    (tmp_path / "file").write_text("")
    told = complaint("fit", data, "-y", "y", "--out", tmp_path / "file" / "run", code=1)
    assert "cannot be created" in told


def test_a_full_disk_ends_with_how_to_go_on(data, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can make a small disk")
    try:
        with quick():
            told = complaint(
                "fit", data, "-y", "y", "-m", "mean", "--quiet", "--out", disk / "run", code=1
            )
    finally:
        subprocess.run(["umount", disk], check=True)
    assert "No space left" in told
    assert "--resume" in told


def test_debug_shows_the_traceback(tmp_path):
    found = call("info", tmp_path, "--debug")
    assert isinstance(found.exception, FileNotFoundError)
