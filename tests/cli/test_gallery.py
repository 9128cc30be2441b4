"""The figures of a run: one that fails costs nothing but itself."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from gpssm.cli import pipeline as gallery
from gpssm.cli.pipeline import Judged
from gpssm.cli.run_folder import Run
from posteriors import make_posterior

NOTHING = Judged({}, {}, {}, ())


def broken():
    raise ZeroDivisionError("no such luck")


def test_a_figure_that_fails_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "_pictures", lambda *_: {"good": Figure, "bad": broken, "last": Figure})
    notes = gallery.draw_figures(Run(tmp_path), make_posterior(), NOTHING, None)
    assert notes == ["The figure bad could not be drawn: no such luck"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"good.png", "last.png"}


def test_without_matplotlib_there_are_none(tmp_path, monkeypatch):
    def missing():
        raise ImportError("pip install 'gpssm[plots]'")

    monkeypatch.setattr(gallery, "_pictures", lambda *_: {"one": missing, "two": missing})
    assert len(gallery.draw_figures(Run(tmp_path), make_posterior(), NOTHING, None)) == 1


def test_a_full_disk_is_no_note(tmp_path, monkeypatch):
    def full():
        raise OSError("No space left on device")

    monkeypatch.setattr(gallery, "_pictures", lambda *_: {"one": full})
    with pytest.raises(OSError, match="No space"):
        gallery.draw_figures(Run(tmp_path), make_posterior(), NOTHING, None)


def test_without_forecasts_those_of_the_fit_remain():
    posterior = make_posterior()
    names = set(gallery._pictures(posterior, NOTHING, None))
    assert names == {"series", "smoothed", "states", "transition", "traces", "ess", "residuals", "parameters"}


def test_test_rows_are_drawn_behind_the_training_rows():
    first, second = make_posterior().raw
    joined = gallery._joined(first, second)
    np.testing.assert_array_equal(joined.y, np.concatenate([first.y, second.y]))
    assert joined.outputs == first.outputs
