"""Names that are no names but code for whoever reads them: browsers, spreadsheets, terminals, LaTeX, file systems.

One run has them as columns and as the data file's own name, and everything that it writes or prints is looked at; a
posterior has them as the names of its series.
"""

import csv
import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import gpssm
from gpssm.cli import pipeline
from gpssm.cli.app import app
from gpssm.cli.run_folder import Run
from gpssm.core.text import FORMULA
from gpssm.data.datasets import simulate
from gpssm.data.series import Series
from gpssm.evaluation.examine import examine
from gpssm.evaluation.scores import Comparison
from gpssm.plots import plot_series
from gpssm.plots.style import to_png
from gpssm.report import make_report

SCRIPT = "<script>alert(1)</script>"
LINE = "gpssm: all is well"  # what a name may not say in a line of its own
OUTPUT = f"=cmd|' /C calc'!A0 {SCRIPT} \x1b[31m\"quoted\"\n{LINE} $\\frac{{1}}$ [red]x[/red]"
NAME = f"=cmd|' /C calc'!A1 </title>{SCRIPT}\x1b[2J\n{LINE} $\\frac{{1}}$"
INPUT = f"@SUM(1)\x9b31m</script><img src=x onerror=alert(2)>\r\n{LINE}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run, and all that was printed of it."""
    folder = tmp_path_factory.mktemp("hostile")
    series = simulate("linear_gaussian", num_steps=80, seed=1).series
    path = folder / f"{SCRIPT.replace('/', '|')}\x1b[2J=x\n{LINE}.csv"
    table = pd.DataFrame({OUTPUT: series.y[:, 0], INPUT: series.u[:, 0]})
    path.write_text(table.to_csv(index=False))
    out = folder / f"run\n{LINE}"
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "BASELINES", ("last",))
        columns = [
            "-y",
            OUTPUT,
            "-u",
            INPUT,
            "--train",
            "0.5",
            "-m",
            "arx",
            "--draws",
            "20",
            "--out",
            str(out),
        ]
        for words in (
            ["fit", str(path), *columns],
            ["info", str(out)],
            ["forecast", str(out), "--out", str(folder / "forecast.csv")],
            ["compare", str(out)],
            ["fit", str(path), "-y", "nothing"],
        ):
            found = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
            assert found.exit_code == (1 if words[-1] == "nothing" else 0), found.output
            printed.append(found.output)
    return Run(out), "".join(printed)


def lines_of_names(text):
    """Lines that begin with what came after a newline in a name, after spaces and the frames of tables."""
    return [line for line in text.splitlines() if re.match(rf"[\s│|┃#*-]*{LINE}", line)]


def test_the_terminal_is_not_spoken_to(run):
    _, printed = run
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed)
    assert not lines_of_names(printed)


def test_the_page_has_no_elements_but_its_own(run):
    page = (run[0].folder / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\x1b" not in page


def test_no_cell_is_a_formula(run):
    found, _ = run
    tables = [*found.folder.rglob("*.csv"), found.folder.parent / "forecast.csv"]
    assert len(tables) == 4
    for path in tables:
        with path.open(newline="") as file:
            for cell in (cell for row in csv.reader(file) for cell in row):
                number = re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", cell)
                assert number or not cell.startswith(FORMULA), (path, cell)


def test_names_come_back_as_they_were(run):
    found, _ = run
    assert (found.test().outputs, found.test().inputs) == ((OUTPUT,), (INPUT,))
    assert found.posterior().dataset.experiments[0].outputs == (OUTPUT,)
    assert f"{OUTPUT} mean" in found.forecasts()["arx"].columns
    assert json.loads((found.folder / "metrics.json").read_text())


def test_every_picture_is_drawn(run):
    assert not [note for note in run[0].metrics()["notes"] if "could not be drawn" in note]


def test_what_python_prints_does_not_speak_to_the_terminal_either(run):
    posterior = run[0].posterior()
    forecast = posterior.forecast(u=np.zeros((3, 1)), num_paths=20)
    for thing in (
        posterior.summary(),
        forecast,
        posterior.dataset.experiments[0],
        Comparison({OUTPUT: forecast}, posterior.dataset.experiments[0][:3], (0.9,)),
    ):
        for text in (str(thing), repr(thing)):
            assert "\x1b" not in text
            assert not lines_of_names(text)
        assert "<script>" not in thing._repr_html_()


def test_names_of_series_are_no_code_either(run, tmp_path):
    (rows,) = run[0].posterior().dataset.experiments
    several = [
        Series(rows.y[part], rows.u[part], name=NAME) for part in (slice(15), slice(15, None))
    ]
    posterior = gpssm.fit(several, method="arx", num_draws=10, num_chains=1, progress=False)
    pictures = {path.stem: path.read_bytes() for path in (run[0].folder / "figures").iterdir()}
    examined = examine(posterior, baselines=("last",))
    page = make_report(examined, pictures=pictures)
    assert SCRIPT.replace("<", "&lt;").replace(">", "&gt;") in page
    assert page.count("</title>") == 1
    with pytest.raises(ValueError, match="at least") as refused:
        gpssm.fit(several[0][:1], progress=False)
    tree = posterior.to_arviz()
    printed = "\n".join(map(str, (*several, posterior, posterior.summary(), refused.value, tree)))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page + printed)
    assert not lines_of_names(printed)
    for text in (
        page,
        *(thing._repr_html_() for thing in (*several, posterior, posterior.summary())),
    ):
        assert "<script>alert" not in text
    for cell in (
        cell
        for row in csv.reader(examined.forecast.to_dataframe().to_csv().splitlines())
        for cell in row
    ):
        assert not cell.startswith("=")
    assert to_png(plot_series(several))
    posterior.save(tmp_path / "posterior.nc")
    assert gpssm.load(tmp_path / "posterior.nc").dataset.experiments[1].name == NAME
