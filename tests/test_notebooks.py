"""Notebooks: representations of objects, the progress bar, and the notebooks of the docs."""

import html
import importlib.util
import json
import os
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas
import pytest

import gpssm
from gpssm.core.table import card
from gpssm.evaluation.held_out import Selection
from gpssm.evaluation.scores import Backtest
from posteriors import make_posterior

HOSTILE = "<img src=x onerror=alert(1)>"
DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
# Run first: fits that are quick, and a report that is only asked for.
QUICK = """
import sys, warnings
import gpssm, gpssm.report, gpssm.fitting.fit
warnings.simplefilter("ignore")
module = sys.modules["gpssm.fitting.fit"]
fit = module.fit
small = {"num_inducing": 8, "num_chains": 2, "num_warmup": 20, "num_draws": 10, "progress": False}
module.fit = lambda rows, **given: fit(rows[:100], **given | (small if given.get("method", "ffvd") == "ffvd" else {}))
gpssm.report.write_report = lambda *args, **options: None
"""


class Tags(HTMLParser):
    """The tags of a text, which must close in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_card_escapes_what_it_shows_and_leaves_out_the_middle_of_long_tables():
    frame = pandas.DataFrame(
        {HOSTILE: np.arange(40.0), "b": [None] * 40}, index=pandas.Index(range(40), name="row")
    )
    text = card(HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: frame}, {HOSTILE: HOSTILE}, [HOSTILE])
    assert "img" not in Tags(text).seen
    assert text.count(html.escape(HOSTILE)) == 8
    assert text.count("<tr>") == 1 + 1 + 12 + 1
    assert '<th scope="row">39</th><td>39</td><td>–</td>' in text


def test_everything_that_people_hold_shows_itself():
    rng = np.random.default_rng(0)
    series = gpssm.Series(
        rng.normal(size=(30, 2)), rng.normal(size=30), outputs=["level", HOSTILE], inputs="pump"
    )
    posterior = make_posterior(raw=[series])
    forecast = posterior.forecast(u=series.u[:20], num_paths=20)
    comparison = gpssm.compare({"model": posterior, HOSTILE: posterior}, series[:20])
    figures = {
        name: float(value) for name, value in comparison.table.iloc[0].items() if np.isscalar(value)
    }
    backtest = Backtest(
        series, np.array([0, 5]), (forecast[:10],) * 2, (figures,) * 2, (0.9,), "never"
    )
    table = pandas.DataFrame({"crps": [1.0]}, index=[HOSTILE])
    things = {
        "2 chains of 3": posterior,
        "role": series,
        "level mean": forecast,
        "crps": comparison,
        "by step ahead": backtest,
        "best first": Selection({"state_dim": 2}, table),
        "rhat": posterior.diagnostics(),
        "Convergence": posterior.summary(),
    }
    for words, thing in things.items():
        text = thing._repr_html_()
        assert "img" not in Tags(text).seen
        assert words in text, type(thing)
    pattern = r'<th scope="row">pump</th><td>input</td><td></td><td>(.*?)</td>'
    mean = re.search(pattern, series._repr_html_()).group(1)
    assert float(mean) == pytest.approx(series.u.mean(), rel=1e-3)


needs_kernel = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None,
    reason="there is no nbclient or no ipykernel here: notebooks are not executed",
)


def execute(book, folder):
    """The notebook after all of its cells, none of which may fail."""
    from nbclient import NotebookClient

    options = {"timeout": 240, "startup_timeout": 240, "kernel_name": "python3"}
    NotebookClient(book, resources={"metadata": {"path": str(folder)}}, **options).execute()
    return book


@needs_kernel
def test_the_bar_shows_in_a_notebook_without_widgets(tmp_path):
    import nbformat

    code = """
import warnings
warnings.simplefilter("error")
from gpssm.inference.progress import Status, reporter
with reporter(True, 10) as report:
    report(Status("sampling", 10, 10, 0.8, -1.0, float("nan")))
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    outputs = execute(book, tmp_path).cells[0].outputs
    assert {one.output_type for one in outputs} == {"stream"}
    assert "10/10" in "".join(one.text for one in outputs)


def test_the_notebooks_are_those_of_the_pages():
    namespace = runpy.run_path(str(DOCS / "make_notebooks.py"))
    assert sorted(map(namespace["path_of"], namespace["PAGES"])) == NOTEBOOKS
    for page in namespace["PAGES"]:
        assert json.loads(namespace["path_of"](page).read_text()) == namespace["notebook"](page), (
            page
        )


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_run(path, tmp_path):
    import nbformat

    if path.stem == "tutorial" and not os.environ.get("GPSSM_DATA"):
        pytest.skip("the tutorial is about real data: set GPSSM_DATA")
    book = nbformat.read(path, 4)
    book.cells.insert(0, nbformat.v4.new_code_cell(QUICK))
    execute(book, tmp_path)
