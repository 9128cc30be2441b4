"""Selection uses only training data, and finds the settings with the best forecasts."""

import numpy as np
import pytest

from gpssm.data.series import Series
from gpssm.evaluation.held_out import default_candidates, select
from gpssm.methods import ARX
from linear_systems import arx_series


@pytest.fixture(scope="module")
def selection():
    candidates = [{"method": "mean"}, {"method": ARX(orders=(2, 2))}, {"method": "last"}]
    return select(arx_series(200), candidates, horizon=5, num_chains=1, num_draws=20)


def test_the_best_forecast_wins(selection):
    assert selection.best["method"] == ARX(orders=(2, 2))
    assert next(iter(selection.table["method"])).startswith("ARX")
    assert selection.table["crps"].is_monotonic_increasing
    assert "coverage_90" in selection.table
    assert "ARX" in str(selection)


def test_the_highest_fit_wins():
    candidates = [{"method": "last"}, {"method": ARX(orders=(2, 2))}]
    found = select(arx_series(200), candidates, score="fit", horizon=5, num_draws=20)
    assert found.best["method"] == ARX(orders=(2, 2))


def test_it_says_where_nothing_is_better_than_the_mean():
    series = Series(np.random.default_rng(0).normal(size=(200, 1)))
    with pytest.warns(UserWarning, match="No candidate is usable: the best has a ncrps of"):
        select(series, [{"method": "last"}], horizon=5, progress=False)


def test_one_cause_is_one_warning_over_all_candidates():
    series = Series(arx_series(120).y, np.ones((120, 1)))
    candidates = [{"method": "last"}, {"method": "mean"}]
    with pytest.warns(UserWarning, match="is constant") as caught:
        select(series, candidates, horizon=5, num_draws=10, progress=False)
    messages = [str(warning.message) for warning in caught]
    assert len([message for message in messages if "is constant" in message]) == 1


def test_candidates_for_signed_and_unsigned_outputs():
    signed = default_candidates(arx_series(120))
    assert {one["mean"] for one in signed} == {"linear", "linear-fixed"}
    assert sorted({one["state_dim"] for one in signed}) == [2, 3, 4]
    series = arx_series(120)
    unsigned = default_candidates(Series(np.abs(series.y), series.u))
    assert unsigned[-1]["likelihood"] == "abs"
    assert all(
        "likelihood" not in one
        for one in default_candidates(Series(np.abs(series.y) + 10, series.u))
    )


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="at least one candidate"):
        select(arx_series(60), [])
    with pytest.raises(ValueError, match=r"score must be one of .*; got 'rms'"):
        select(arx_series(60), [{"method": "mean"}], score="rms", num_draws=5, num_chains=1)
