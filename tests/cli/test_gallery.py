"""The figures of a run: a failed figure does not affect the others."""

import base64
import sys

from matplotlib.figure import Figure

from builders import make_series
from examinations import make_examination
from gpssm.cli import pipeline
from gpssm.cli.run_folder import Run
from gpssm.cli.shell import Screen
from gpssm.cli.tables import verdicts
from gpssm.plots.style import to_png
from gpssm.posterior.checks import Check
from gpssm.report.content import WORDS, draw_pictures, figures_of
from posteriors import make_posterior


def broken():
    raise ZeroDivisionError("no such luck")


def missing():
    raise ImportError("pip install matplotlib")


def test_a_figure_that_fails_is_a_note():
    pictures, notes = draw_pictures({"good": Figure, "bad": broken, "last": Figure})
    assert notes == ["The picture bad could not be drawn: no such luck"]
    assert list(pictures) == ["good", "last"]


def test_without_matplotlib_there_are_none():
    assert len(draw_pictures({"one": missing, "two": missing})[1]) == 1


def test_figures_are_drawn_from_what_was_computed():
    train, test = make_series(60).split(40)
    figures = figures_of(make_examination(make_posterior(raw=[train], draws=20), test))
    for name in ("series", "forecast", "comparison", "calibration", "smoothed", "residuals"):
        assert figures[name]().axes, name


def test_without_matplotlib_the_report_is_written_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    train, test = make_series(60).split(40)
    examination = make_examination(make_posterior(raw=[train], draws=4), test)
    notes = pipeline.write_pages(Run(tmp_path), examination, Screen(silent=True))
    assert "pip install matplotlib" in notes[0]
    page = (tmp_path / "report.html").read_text()
    assert "No picture was drawn" in page
    assert 'id="diagnostics"' in page


def test_the_report_shows_the_figures_of_the_folder(tmp_path, monkeypatch):
    picture = to_png(Figure((4, 3)), 50)
    monkeypatch.setattr(pipeline, "draw_pictures", lambda *_: (dict.fromkeys(WORDS, picture), []))
    train, test = make_series(60).split(40)
    examination = make_examination(make_posterior(raw=[train], draws=4), test)
    assert pipeline.write_pages(Run(tmp_path), examination, Screen(silent=True)) == []
    page = (tmp_path / "report.html").read_text()
    assert page.count(base64.b64encode(picture).decode()) >= len(WORDS) - 1


def test_verdicts_have_one_line_per_cause_and_the_gravest_leads():
    checks = [
        Check("Simpler models", "good", "0.1", "The model forecasts 50 % better.", "held-out rows"),
        Check("Residuals of y", "caution", "p = 0.01", "Look again.", "training rows"),
        Check("Outputs", "problem", "R-hat 1.3", "Chains disagree.", "all draws"),
        Check("States", "caution", "R-hat 1.1", "Chains disagree.", "all draws"),
    ]
    metrics = {"checks": [check._asdict() for check in checks], "notes": ["Outputs: R-hat 1.3."]}
    grid, *notes = verdicts(metrics)
    marks, words = (list(column.cells) for column in grid.columns)
    assert marks == ["✕", "!", "✓"]
    assert str(words[0]).startswith("Outputs and States: Chains disagree. (R-hat 1.3")
    assert str(words[2]).startswith("The model forecasts 50 % better.")
    assert notes == []
    # What was judged in sample has no tick.
    flattered = checks[0]._replace(level="unknown")
    (grid,) = verdicts({"checks": [flattered._asdict()], "notes": []})
    assert str(next(iter(grid.columns[1].cells))) == "All 1 checks passed."
