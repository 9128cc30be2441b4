"""Runs whose fit is a stack: every command supports them like those of a single model."""

import numpy as np
import pytest

import gpssm
from command_line import answer, call
from gpssm.cli import pipeline
from gpssm.methods import ARX
from gpssm.posterior.stack import Stack
from linear_systems import tank_series

SERIES = tank_series(160)


def mixture(train, **_):
    """In place of a fit: two linear models and a Gaussian process, of which the last is lightest."""
    shared = {"num_chains": 1, "progress": False}
    small = {"state_dim": 2, "num_inducing": 5, "start": "em", "noise": "free", "thin": 1}
    members = {
        "second order": gpssm.fit(train, method=ARX(orders=(2, 1), num_draws=40), **shared),
        "first order": gpssm.fit(train, method=ARX(orders=(1, 1), num_draws=40), **shared),
        "process": gpssm.fit(train, num_warmup=8, num_draws=6, **small, **shared),
    }
    table = [
        {"member": name, "weight": weight, "log_score": -1.0, "crps": 0.5}
        for name, weight in zip(members, (0.5, 0.3, 0.2), strict=True)
    ]
    return Stack.of(members, [0.5, 0.3, 0.2], table, ["a note of the mixture"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    SERIES.to_dataframe().to_csv(folder / "tank.csv", index=False)
    outputs, inputs = SERIES.outputs[0], SERIES.inputs[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "fit", mixture)
        patch.setattr(pipeline, "BASELINES", ("last",))
        arguments = ["--output", outputs, "--input", inputs, "--train", 120]
        result = call("fit", folder / "tank.csv", *arguments, "--out", folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_the_folder_is_complete_and_its_report_names_the_single_model(run):
    files = {path.name for path in run.iterdir()}
    assert files >= {"posterior.nc", "metrics.json", "forecast.csv", "report.html"}
    page = (run / "report.html").read_text()
    assert "the following paragraphs describe its member process" in page.lower()
    assert "Of process, a member of the mixture." in page
    assert "a note of the mixture" in page
    assert "data:image/png" in page


def test_forecast_report_and_info_answer_for_the_mixture(run):
    stack = gpssm.load(run)
    assert list(stack.members) == ["second order", "first order", "process"]
    found = answer("forecast", run)
    expected = stack.forecast(40, SERIES.u[120:], num_paths=1000).to_dataframe((0.5, 0.9))
    name = f"{SERIES.outputs[0]} mean"
    np.testing.assert_allclose(found[name], expected[name])
    about = answer("info", run)
    assert about["summary"]["leading"] == "process"
    assert [row["member"] for row in about["summary"]["members"]] == list(stack.members)
    assert "stack" in about["scores"]
    assert answer("report", run)["report"].endswith("report.html")
    assert answer("compare", run)["scores"].keys() >= {str(run), "last"}
