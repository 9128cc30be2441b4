"""Many series: posteriors equal those of separate fits, failures do not affect others, and folders
are resumed.
"""

import dataclasses
import warnings

import numpy as np
import pytest

import gpssm
from builders import make_series
from gpssm.fitting import many
from gpssm.methods import ARX
from linear_systems import arx_series, tank_series

FIT = {"method": ARX(orders=(2, 2)), "num_chains": 1, "num_draws": 4, "progress": False}
SERIES = {
    "north": arx_series(40),
    "south/1": arx_series(40, seed=1),
    "east": arx_series(40, seed=2),
}


def paths(posterior):
    return posterior.forecast(3, np.zeros((3, 1)), num_paths=5).paths


def fit_all(series=SERIES, **settings):
    return gpssm.fit_many(series, **{**FIT, **settings})


@pytest.fixture(scope="module")
def alone():
    return {name: paths(gpssm.fit(series, **FIT)) for name, series in SERIES.items()}


@pytest.mark.parametrize("place", [{}, {"jobs": 2, "threads": True}, {"jobs": 2}], ids=str)
def test_each_posterior_is_that_of_a_fit_alone(place, alone):
    fits = fit_all(**place)
    assert list(fits) == list(SERIES)
    assert repr(fits) == "Fits(3 posteriors)"
    for name, posterior in fits.items():
        np.testing.assert_array_equal(paths(posterior), alone[name])


def test_failures_are_set_aside_and_named(alone):
    series = {"short": make_series(4), "none": None, **SERIES}
    with pytest.warns(UserWarning, match=r"2 of 5 series .*: 'none' \(TypeError: .*'short' \(Val"):
        fits = fit_all(series)
    assert list(fits) == list(SERIES)
    assert "10 rows" in str(fits.failures["short"])
    assert repr(fits) == "Fits(3 posteriors, 2 failures)"
    with pytest.raises(KeyError, match="'short' was not fitted: ValueError: training needs"):
        fits["short"]
    with pytest.raises(KeyError, match="west"):
        fits["west"]
    np.testing.assert_array_equal(paths(fits["north"]), alone["north"])


def test_a_folder_has_what_was_fitted_and_the_same_call_continues(tmp_path, monkeypatch, alone):
    first = {name: SERIES[name] for name in ("north", "south/1")}
    fit_all(first, folder=tmp_path / "fits")
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "fits").iterdir()}
    assert len(saved) == 2
    tasks = []
    run_tasks = many.run_tasks

    def counted(listed, *settings):
        tasks.extend(listed)
        return run_tasks(listed, *settings)

    monkeypatch.setattr(many, "run_tasks", counted)
    fits = fit_all(folder=tmp_path / "fits")
    assert tasks == [[SERIES["east"]]]
    assert {path: path.stat().st_mtime_ns for path in saved} == saved
    for name, posterior in fits.items():
        np.testing.assert_array_equal(paths(posterior), alone[name])
    tasks.clear()
    fit_all(folder=tmp_path / "fits", seed=1)
    fit_all({"north": SERIES["east"]}, folder=tmp_path / "fits")
    assert len(tasks) == 4  # other settings or data are another fit


def test_frames_are_taken_with_the_names_of_their_columns():
    frames = {str(seed): tank_series(seed=seed).to_dataframe() for seed in (0, 1)}
    fits = fit_all(frames, outputs="level", inputs=["pump"])
    assert fits["1"].dataset.inputs == ("pump",)
    np.testing.assert_array_equal(fits["1"].dataset.experiments[0].y, tank_series(seed=1).y)


@pytest.mark.parametrize("threads", [False, True])
def test_notes_of_fits_are_not_warnings_and_filters_stay(threads):
    short = {**FIT, "method": "ffvd", "state_dim": 1, "num_inducing": 4, "start": "em"}
    settings = {**short, "noise": "free", "num_warmup": 8, "num_draws": 6, "num_chains": 2}
    before = list(warnings.filters)
    fits = fit_all({"a": make_series(40, output_dim=1)}, **settings, threads=threads)
    assert warnings.filters == before
    assert fits["a"].notes


def test_an_interrupted_fit_is_no_result(monkeypatch, tmp_path):
    def interrupted(experiments, **settings):
        fitted = gpssm.fit(experiments, **FIT)
        return dataclasses.replace(fitted, spec=fitted.spec.replace(num_draws=99))

    monkeypatch.setattr("gpssm.fitting.many.fit", interrupted)
    with pytest.raises(KeyboardInterrupt, match="while 'north' was fitted"):
        fit_all(folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(TypeError, match=r"dictionary of series by name, .* got list"):
        gpssm.fit_many([make_series(20)])
    with pytest.raises(TypeError, match="state_dims"):
        fit_all(state_dims=2)
    with pytest.raises(ValueError, match="does not support checkpoint"):
        fit_all(checkpoint=tmp_path)
    with pytest.raises(ValueError, match="jobs must be"):
        fit_all(jobs=0)
