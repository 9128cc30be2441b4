"""The figures of a run: one that fails costs nothing but itself."""

import pytest
from matplotlib.figure import Figure

from builders import make_series
from examinations import make_examination
from gpssm.cli import pipeline
from gpssm.cli.run_folder import Run
from gpssm.cli.shell import Screen
from gpssm.report.figures import figures_of
from posteriors import make_posterior


def broken():
    raise ZeroDivisionError("no such luck")


def missing():
    raise ImportError("pip install 'gpssm[plots]'")


def full():
    raise OSError("No space left on device")


def draw(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "figures_of", lambda found: figures)
    return pipeline.draw_figures(Run(tmp_path), None, Screen(silent=True))


def test_a_figure_that_fails_is_a_note(tmp_path, monkeypatch):
    notes = draw({"good": Figure, "bad": broken, "last": Figure}, tmp_path, monkeypatch)
    assert notes == ["The figure bad could not be drawn: no such luck"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"good.png", "last.png"}


def test_without_matplotlib_there_are_none(tmp_path, monkeypatch):
    assert len(draw({"one": missing, "two": missing}, tmp_path, monkeypatch)) == 1


def test_a_full_disk_is_no_note(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="No space"):
        draw({"one": full}, tmp_path, monkeypatch)


def test_figures_are_drawn_from_what_was_computed():
    train, test = make_series(60).split(40)
    figures = figures_of(make_examination(make_posterior(raw=[train], draws=20), test))
    for name in ("series", "forecast", "comparison", "calibration", "smoothed", "residuals", "ess"):
        assert figures[name]().axes, name
