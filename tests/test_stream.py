"""The stream of examples/stream.py, killed in the middle, ends where it would have ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpssm

SCRIPT = Path(__file__).parent.parent / "examples" / "stream.py"


def start(folder, *more):
    command = [sys.executable, str(SCRIPT), "--quick", "--state", str(folder / "state.nc"), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)


def rows_in(path):
    return gpssm.load(path).learned.rows if path.exists() else 0


@pytest.mark.slow
def test_a_stream_survives_a_kill_and_notices_a_change(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    told = start(whole).communicate(timeout=300)[0]
    assert "continuing" not in told
    # The rows arrive while it runs: the first half, with a broken line, then a kill, then the rest.
    killed, text = tmp_path / "killed", (whole / "state.csv").read_text().splitlines(keepends=True)
    killed.mkdir()
    rows = killed / "rows.csv"
    rows.write_text("".join(text[:12]) + text[12][:4])
    process = start(killed, "--rows", str(rows))
    until = time.monotonic() + 200
    while rows_in(killed / "state.nc") < 10 and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    reached = rows_in(killed / "state.nc")
    assert 10 <= reached <= 12
    with rows.open("a") as file:
        file.write(text[12][4:] + "".join(text[13:]))
    again = start(killed, "--rows", str(rows)).communicate(timeout=300)[0]
    assert f"after {reached} rows" in again
    one, other = (gpssm.load(folder / "state.nc") for folder in (whole, killed))
    assert one.learned.rows == other.learned.rows == 40
    for first, second in ((one.learned, other.learned), (one.current, other.current)):
        np.testing.assert_allclose(first.state.mean, second.state.mean, rtol=1e-9)
        np.testing.assert_allclose(first.state.covariance, second.state.covariance, atol=1e-12)
    tests = [json.loads((folder / "state.json").read_text()) for folder in (whole, killed)]
    assert tests[0] == tests[1]
    alarms = tests[0]["40"]["alarms"]
    assert alarms
    assert all(row > 20 for row in alarms)
    assert f"row {alarms[0]}: the system has changed" in told
