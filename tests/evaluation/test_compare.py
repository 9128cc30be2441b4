"""Comparisons: the scores of `gpssm.metrics`, the best model, and invalid calls."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import gpssm
from builders import make_series
from gpssm.core.metrics import coverage, crps, rmse, score
from gpssm.data.series import Series
from gpssm.evaluation.scores import LEVELS, Comparison
from gpssm.posterior.forecast import Forecast
from posteriors import make_posterior

HORIZON = 4


def make_forecast(shift=0.0, outputs=("a", "b"), horizon=HORIZON, seed=0):
    paths = np.random.default_rng(seed).normal(size=(60, horizon, len(outputs))) + shift
    return Forecast(paths, outputs, 0, np.zeros((horizon, 0)))


@pytest.fixture(scope="module")
def test_rows():
    return Series(np.random.default_rng(5).normal(size=(6, 2)), outputs=["a", "b"])


@pytest.fixture(scope="module")
def compared(test_rows):
    forecasts = {"near": make_forecast(0.1), "far": make_forecast(3.0)}
    return Comparison(forecasts, test_rows[:HORIZON], LEVELS)


def test_the_figures_are_those_of_the_metrics(compared, test_rows):
    y = test_rows.y[:HORIZON]
    for name, shift in (("near", 0.1), ("far", 3.0)):
        paths = make_forecast(shift).paths
        found = compared.table.loc[name]
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean((paths.mean(0) - y) ** 2)))
        assert found["crps"] == pytest.approx(crps(paths, y))
        assert found["coverage_80"] == pytest.approx(coverage(paths, y, 0.8))
        assert dict(found) == pytest.approx(score(paths, y, levels=LEVELS), nan_ok=True)
    assert list(compared.table.index) == ["near", "far"]
    assert compared.forecasts["far"].horizon == len(compared.actual) == HORIZON


def test_the_best_is_starred(compared):
    near, far = (
        next(line for line in str(compared).splitlines() if name in line)
        for name in ("near", "far")
    )
    assert near.count("*") >= 6
    assert "*" not in far
    assert "width 50" not in str(compared)
    assert "Comparison(near, far; 4 steps)" in repr(compared)


def test_outputs_in_other_units_rank_the_same(test_rows):
    # The first is better at a, the second at b; in raw units b, which is large, would decide alone.
    units = np.array([1.0, 1000.0])
    rows = Series(test_rows.y * units, outputs=["a", "b"])
    first, second = (make_forecast(np.array(shift)) for shift in ([0.0, 0.5], [2.0, 0.0]))
    found = {}
    for scale, actual in ((np.ones(2), test_rows), (units, rows)):
        scaled = [replace(one, paths=one.paths * scale, scale=scale) for one in (first, second)]
        forecasts = dict(zip(("first", "second"), scaled, strict=True))
        found[scale[1]] = Comparison(forecasts, actual[:HORIZON], LEVELS)
        for name, one in zip(("first", "second"), (first, second), strict=True):
            scores = found[scale[1]].scores[name]
            assert scores["nrmse"] == pytest.approx(rmse(one.mean, test_rows.y[:HORIZON]))
            assert scores["ncrps"] == pytest.approx(crps(one.paths, test_rows.y[:HORIZON]))
    for compared in found.values():
        assert compared.table["ncrps"].idxmin() == "first"
    assert found[1000.0].table["rmse"].idxmin() == "second"
    figures = found[1000.0].by_output.loc[("b", "second")]
    y = rows.y[:HORIZON, 1]
    assert figures["rmse"] == pytest.approx(np.sqrt(np.mean((1000 * second.mean[:, 1] - y) ** 2)))
    error = np.linalg.norm(y - 1000 * second.mean[:, 1])
    assert figures["fit"] == pytest.approx(100 * (1 - error / np.linalg.norm(y - y.mean())))
    text = str(found[1000.0])
    assert [
        text.count(word) for word in ("ncrps", " mae", "all outputs, 4 steps", "b, 4 steps")
    ] == [1, 2, 1, 1]


def test_columns_go_by_name(compared, test_rows):
    swapped = Series(test_rows.y[:, ::-1], outputs=["b", "a"])
    found = Comparison({"near": make_forecast(0.1)}, swapped[:HORIZON], LEVELS)
    assert found.scores["near"] == pytest.approx(compared.scores["near"], nan_ok=True)
    other = make_forecast(0.1)
    turned = Forecast(other.paths[:, :, ::-1], ("b", "a"), 0, other.u)
    both = Comparison({"one": other, "other": turned}, test_rows[:HORIZON], LEVELS)
    assert both.scores["one"]["rmse"] == pytest.approx(both.scores["other"]["rmse"])
    lines = [both.plot("b").axes[0].lines[index].get_ydata() for index in (0, 1, 2)]
    np.testing.assert_allclose(lines[1], lines[2])
    np.testing.assert_allclose(lines[0], test_rows.y[:HORIZON, 1])


def test_posteriors_forecast_the_test_rows():
    posterior, test = make_posterior(), make_series(6, seed=4)
    found = gpssm.compare({"all": posterior}, test, num_paths=30, seed=3)
    expected = posterior.forecast(6, test.u, num_paths=30, seed=3)
    np.testing.assert_array_equal(found.forecasts["all"].paths, expected.paths)
    assert found.scores["all"] == expected.score(test)
    with pytest.raises(
        ValueError, match=r"asked does not fit the test rows: .*u must have 1 columns"
    ):
        gpssm.compare({"asked": posterior}, Series(test.y, np.zeros((6, 2))))
    assert len(found.plot().axes) == 2
    with pytest.raises(ValueError, match="no output 'level'"):
        found.plot("level")


def test_baselines_are_fitted_to_the_same_data():
    rng = np.random.default_rng(1)
    series = Series(np.cumsum(rng.normal(size=60)))
    train, test = series[:50], series[50:]
    posterior = gpssm.fit(train, method="last", num_chains=1, num_draws=40, progress=False)
    found = gpssm.compare({"walk": posterior}, test, baselines=["mean"], num_paths=400)
    assert list(found.scores) == ["walk", "mean"]
    np.testing.assert_allclose(
        found.forecasts["mean"].mean, train.y.mean(), atol=5 * train.y.std() / 20
    )
    assert found.scores["mean"]["rmse"] == pytest.approx(rmse(found.forecasts["mean"].mean, test.y))
    with pytest.raises(ValueError, match="walk is already a candidate"):
        gpssm.compare({"walk": posterior}, test, baselines=["walk"])


def test_bad_calls_are_explained():
    posterior, test = make_posterior(), make_series(6, seed=4)
    with pytest.raises(ValueError, match="at least one posterior by name"):
        gpssm.compare({}, test)
    with pytest.raises(ValueError, match="horizon is 7, and there are 6 test rows"):
        gpssm.compare({"one": posterior}, test, horizon=7)
    with pytest.raises(ValueError, match="one does not fit the test rows: y must have 2 columns"):
        gpssm.compare({"one": posterior}, Series(test.y, test.u, outputs=["a", "c"]))
    with pytest.raises(TypeError, match="one must be a Posterior or a Stack"):
        gpssm.compare({"one": make_forecast()}, test)
    with pytest.raises(TypeError, match="must be a Series or a DataFrame"):
        gpssm.compare({"one": posterior}, [test, test])


def test_test_rows_may_be_a_table_of_any_library():
    posterior = make_posterior(raw=[make_series(9)])
    rows = make_series(6, seed=1)
    frame = rows.to_dataframe()
    expected = gpssm.compare({"fit": posterior}, rows, num_paths=20, progress=False)
    for table in (frame, pl.from_pandas(frame), frame.to_xarray()):
        found = gpssm.compare({"fit": posterior}, table, num_paths=20, progress=False)
        pd.testing.assert_frame_equal(found.table, expected.table)
