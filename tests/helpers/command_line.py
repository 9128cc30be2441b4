"""The command line as users call it, run in this process, where JAX is already loaded."""

import json
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from gpssm.cli import pipeline
from gpssm.cli.app import app

SMALL = ["--state-dim", 1, "--set", "num_inducing=6", "--chains", 1, "--warmup", 15]
SMALL += ["--set", "start=em"]


def call(*arguments):
    """The result of a command in a terminal of 80 columns."""
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"})


def answer(*arguments):
    """The answer of a command that must succeed, as data."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def complaint(*arguments, code):
    """The error of a command that must fail: one paragraph, nothing on standard output."""
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    message = result.stderr[result.stderr.index("gpssm: ") :]
    assert len(message) < 2000
    return message


@contextmanager
def quick(baselines=("last",)):
    """Runs without pictures and reports, with one naive baseline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "draw_pictures", lambda *_: ({}, []))
        patch.setattr(pipeline, "write_report", lambda *_, **__: None)
        patch.setattr(pipeline, "BASELINES", baselines)
        yield
