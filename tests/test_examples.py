"""Every example runs from end to end, with settings that make it quick."""

import os
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
ARGUMENTS = {
    "friction": ["--quick", "--out", "figure.png"],
    "missing_data": ["--quick", "--out", "figure.png"],
    "mpc": ["--quick", "--out", "figure.png"],
    "online": ["--quick"],
    "own_physics": ["--quick", "--out", "figure.png"],
    "quickstart": ["--quick", "--out", "run"],
    "service": ["--quick"],
    "stream": ["--quick"],
    "synthetic": ["--quick", "--out", "figure.png"],
}
WRITTEN = {
    "friction": ["figure.png"],
    "missing_data": ["figure.png"],
    "mpc": ["figure.png"],
    "own_physics": ["figure.png"],
    "quickstart": [
        "run/oscillator.csv",
        "run/posterior.nc",
        "run/forecast.csv",
        "run/forecast.png",
    ],
    "synthetic": ["figure.png"],
}


LONG = (
    "friction",
    "mpc",
    "own_physics",
    "online",
    "service",
    "stream",
    "synthetic",
)  # half a minute each, most of it compiling


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow) if path.stem in LONG else path
        for path in EXAMPLES
    ],
    ids=[path.stem for path in EXAMPLES],
)
def test_runs(path, monkeypatch, tmp_path, capsys):
    if path.stem == "friction" and not os.environ.get("GPSSM_DATA"):
        pytest.skip("it reads real data: set GPSSM_DATA")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [str(path), *ARGUMENTS.get(path.stem, [])])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert all((tmp_path / name).stat().st_size for name in WRITTEN.get(path.stem, []))
