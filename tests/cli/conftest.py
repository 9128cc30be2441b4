"""One data file and two runs that all tests of the command line share: a fit takes seconds."""

import pytest

from command_line import SMALL, answer, call, quick
from gpssm.cli.run_folder import Run
from gpssm.data.datasets import simulate


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A driven series of 80 rows, and the inputs of the rows that follow it."""
    folder = tmp_path_factory.mktemp("data")
    series = simulate("linear_gaussian", num_steps=120, seed=1).series
    Run(folder).write_series("tank.csv", series[:80])
    Run(folder).write_series("future.csv", series[80:])
    return folder / "tank.csv"


@pytest.fixture(scope="session")
def linear_run(data):
    """A run of ARX with all baselines, figures and the report."""
    out = data.parent / "linear"
    words = ["-y", "y", "-u", "u", "--train", "0.5", "--method", "arx", "--draws", 20]
    assert answer("fit", data, *words, "--out", out)["run"] == str(out)
    return out


@pytest.fixture(scope="session")
def fitted_run(data):
    """A run of `ffvd` with few points and iterations."""
    out = data.parent / "small"
    words = ["-y", "y", "-u", "u", "--train", 40, "--seed", 2, *SMALL, "--draws", 300]
    with quick():
        result = call("fit", data, *words, "--out", out)
    assert result.exit_code == 0, result.output
    assert "forecast" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80 + len(str(out))
    return out
