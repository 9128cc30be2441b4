"""The installed command, as a user drives it."""

import re
import subprocess
import sys
from pathlib import Path

import gpssm

COMMAND = Path(sys.executable).with_name("gpssm")


def run(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=300)


def test_help_names_the_commands():
    answer = run("--help")
    assert answer.returncode == 0
    assert "demo" in answer.stdout


def test_help_does_not_wait_for_heavy_imports():
    code = (
        "import gpssm.cli, sys; print(sorted({'jax', 'equinox', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_demo_ends_with_a_forecast_and_its_error():
    answer = run("demo", "--seed", "3")
    assert answer.returncode == 0, answer.stderr
    ours, linear = re.search(r"30 steps: ([\d.]+);.*model: ([\d.]+);", " ".join(answer.stdout.split())).groups()
    assert float(ours) < float(linear)


def test_unknown_command_is_bad_usage():
    answer = run("forcast")
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr


def test_public_names_resolve():
    for name in gpssm.__all__:
        assert getattr(gpssm, name) is not None
    assert len(gpssm.__all__) <= 25
