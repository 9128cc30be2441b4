"""The demonstration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpssm.cli.pipeline import run_demo
from gpssm.cli.shell import Screen

COMMAND = Path(sys.executable).with_name("gpssm")


def test_it_replaces_nothing_but_itself(tmp_path):
    (tmp_path / "demo.csv").write_text("mine")
    with pytest.raises(FileExistsError, match="--out"):
        run_demo(tmp_path / "demo", Screen(silent=True))
    assert (tmp_path / "demo.csv").read_text() == "mine"
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_it_forecasts_better_than_linear_models_and_can_be_repeated(tmp_path):
    for _ in range(2):
        words = [COMMAND, "demo", "--out", tmp_path / "demo", "--seed", "3", "--json"]
        answer = subprocess.run(words, capture_output=True, text=True, check=True)
    scores = json.loads(answer.stdout)["metrics"]["scores"]
    assert min(scores, key=lambda name: scores[name]["crps"]) in ("quick", "stack")
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    assert (tmp_path / "demo" / "figures" / "forecast.png").stat().st_size > 10_000
