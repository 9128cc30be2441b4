"""The forecaster for sktime: in sktime's own checks, and against the posterior that it wraps."""

import numpy as np
import pandas as pd
import pytest
from sktime.forecasting.compose import ForecastingPipeline, TransformedTargetForecaster
from sktime.forecasting.model_evaluation import evaluate
from sktime.performance_metrics.forecasting.probabilistic import PinballLoss
from sktime.split import ExpandingWindowSplitter, SlidingWindowSplitter
from sktime.transformations.difference import Differencer
from sktime.utils.estimator_checks import check_estimator

import gpssm
from gpssm.sktime import GPSSMForecaster
from linear_systems import tank_series

ROWS, HORIZON = 60, 5
FIT = {"method": "arx", "num_chains": 2, "num_draws": 10}
NAIVE = {"method": "last", "num_chains": 1, "num_draws": 4, "num_paths": 20}
LEARNING = {
    "method": "quick",
    "state_dim": 1,
    "num_inducing": 4,
    "start": "em",
    "noise": "free",
    "num_chains": 1,
    "num_warmup": 10,
    "num_draws": 5,
}
INDICES = {
    "dates": pd.date_range("2024-03-30", periods=80, freq="6h"),
    "periods": pd.period_range("2020-01", periods=80, freq="M"),
    "range": pd.RangeIndex(7, 87),
    "integers": pd.Index(np.arange(80) + 3),
}


def make_frames(index=INDICES["range"], missing=False):
    """The rows of a level and of its pump."""
    series = tank_series()
    y = pd.DataFrame(np.where(np.arange(80)[:, None] == 9, np.nan, series.y), index, ["level"])
    X = pd.DataFrame(series.u, index, ["pump"])
    return y if missing else pd.DataFrame(series.y, index, ["level"]), X


def rows_of(y, X):
    return gpssm.Series(y.to_numpy(), X.to_numpy(), outputs="level", inputs="pump")


@pytest.fixture(scope="module")
def posterior():
    y, X = make_frames()
    return gpssm.fit(rows_of(y[:ROWS], X[:ROWS]), **FIT, progress=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_passes_the_checks_of_sktime():
    results = check_estimator(GPSSMForecaster, verbose=False)
    assert len(results) > 300
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_predictions_are_statistics_of_the_paths_of_the_posterior(posterior, index):
    y, X = make_frames(index)
    forecaster = GPSSMForecaster(**FIT, num_paths=40, seed=0)
    forecaster.fit(y["level"][:ROWS], X[:ROWS], fh=np.arange(1, HORIZON + 1))
    forecast = posterior.forecast(HORIZON, X[ROWS:].to_numpy(), num_paths=40)
    mean = forecaster.predict(X=X[ROWS:])
    assert mean.name == "level"
    assert mean.index.equals(index[ROWS : ROWS + HORIZON])
    np.testing.assert_array_equal(mean, forecast.mean[:, 0])
    variance = forecaster.predict_var(X=X[ROWS:])
    np.testing.assert_allclose(variance["level"], forecast.std[:, 0] ** 2)
    interval = forecaster.predict_interval(X=X[ROWS:], coverage=[0.5, 0.9])
    for coverage in (0.5, 0.9):
        for name, limit in zip(("lower", "upper"), forecast.interval(coverage), strict=True):
            np.testing.assert_allclose(interval["level", coverage, name], limit[:, 0])
    quantiles = forecaster.predict_quantiles(X=X[ROWS:], alpha=[0.1, 0.5])
    np.testing.assert_array_equal(quantiles["level", 0.5], forecast.median[:, 0])
    np.testing.assert_allclose(forecaster.predict([2], X[ROWS:]), mean[1:2], rtol=1e-12)


def test_steps_before_the_cutoff_are_one_step_predictions(posterior):
    y, X = make_frames()
    forecaster = GPSSMForecaster(**FIT, num_paths=40).fit(y[:ROWS], X[:ROWS])
    predicted = posterior.predict(
        rows_of(y[:ROWS], X[:ROWS]), new_experiment=True, num_paths=40
    ).mean
    mixed = forecaster.predict([-3, 0, 2], X[ROWS:])
    np.testing.assert_allclose(mixed["level"][:2], predicted[[-4, -1], 0], rtol=1e-12)
    np.testing.assert_allclose(mixed[2:], forecaster.predict([2], X[ROWS:]), rtol=1e-12)
    with pytest.raises(ValueError, match="60 steps before the cutoff, and only 60 rows"):
        forecaster.predict([-60])


def test_several_outputs_keep_their_names():
    y, _ = make_frames()
    both = y.assign(double=2 * y["level"])
    forecaster = GPSSMForecaster(**NAIVE).fit(both, fh=[1, 3])
    quantiles = forecaster.predict_quantiles(alpha=[0.2, 0.7])
    expected = [("level", 0.2), ("level", 0.7), ("double", 0.2), ("double", 0.7)]
    assert list(quantiles.columns) == expected
    paths = forecaster.posterior_.forecast(3, num_paths=20).paths
    expected = np.quantile(paths[:, [0, 2]], 0.7, axis=0, method="weibull")
    np.testing.assert_array_equal(quantiles.xs(0.7, axis=1, level=1), expected)


def test_inputs_are_needed_at_every_step():
    y, X = make_frames(INDICES["dates"], missing=True)
    forecaster = GPSSMForecaster(**FIT).fit(y[:ROWS], X[:ROWS])
    with pytest.raises(ValueError, match=r"\(pump\) must be known at each of the 3 steps ahead"):
        forecaster.predict([1, 3])
    with pytest.raises(ValueError, match="got 2"):
        forecaster.predict([1, 3], X[ROWS : ROWS + 2])
    with pytest.raises(ValueError, match=r"column 'pump', row 1 .* inputs must be known"):
        forecaster.predict([1, 3], X[ROWS:].drop(X.index[ROWS + 1]))


@pytest.mark.parametrize("update_params", [False, True])
def test_update_follows_the_rows_with_the_state_or_the_function(update_params):
    y, X = make_frames(INDICES["dates"])
    forecaster = GPSSMForecaster(**LEARNING, num_paths=10)
    forecaster.fit(y[:ROWS], X[:ROWS])
    before = forecaster.posterior_
    for last in (65, 66, 66):  # rows that are known already change nothing
        forecaster.update(y[40:last], X[40:last], update_params=update_params)
    follow = before.learn if update_params else before.condition
    expected = follow(rows_of(y[ROWS:66], X[ROWS:66]))
    paths = expected.forecast(3, X[66:69].to_numpy(), num_paths=10).paths
    np.testing.assert_allclose(
        forecaster.predict([1, 2, 3], X[66:]), paths.mean(0), rtol=1e-6, atol=1e-8
    )
    assert forecaster.posterior_.current.rows == 66
    assert forecaster.cutoff[0] == y.index[65]


def test_what_cannot_learn_is_fitted_again(posterior):
    y, X = make_frames()
    forecaster = GPSSMForecaster(**FIT, num_paths=40).fit(y[:40], X[:40])
    forecaster.update(y[40:ROWS], X[40:ROWS])
    forecast = posterior.forecast(2, X[ROWS:].to_numpy(), num_paths=40)
    np.testing.assert_array_equal(forecaster.predict([1, 2], X[ROWS:]), forecast.mean[:2])
    with pytest.raises(ValueError, match="u must have 1 columns: pump"):
        forecaster.update(y[ROWS:])


def test_a_cutoff_that_is_moved_back_sees_no_later_rows(posterior):
    y, X = make_frames()
    forecaster = GPSSMForecaster(**FIT, num_paths=40).fit(y[:ROWS], X[:ROWS])
    splitter = ExpandingWindowSplitter(fh=[1, 2], initial_window=20, step_length=20)
    found = forecaster.update_predict(y["level"][:50], splitter, X, update_params=False)
    for first in (20, 40):
        earlier = posterior.condition(rows_of(y[:first], X[:first]), new_experiment=True)
        expected = earlier.forecast(2, X[first:].to_numpy(), num_paths=40).mean[:, 0]
        column = found[y.index[first - 1]].dropna()
        assert column.index.equals(y.index[first : first + 2])
        np.testing.assert_allclose(column, expected, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["refit", "update", "no-update_params"])
@pytest.mark.parametrize("index", ["dates", "range"])
def test_sktime_evaluates_it(strategy, index):
    y, X = make_frames(INDICES[index])
    splitter = SlidingWindowSplitter(fh=[1, 2, 3], window_length=50, step_length=10)
    table = evaluate(
        GPSSMForecaster(**NAIVE),
        splitter,
        y,
        X,
        strategy=strategy,
        scoring=PinballLoss(),
        error_score="raise",
    )
    assert len(table) == 3
    assert np.isfinite(table["test_PinballLoss"]).all()


def test_it_is_the_last_step_of_pipelines():
    y, X = make_frames(INDICES["dates"])
    plain = GPSSMForecaster(**NAIVE)
    pipeline = TransformedTargetForecaster([("differences", Differencer()), ("gpssm", plain)])
    forecast = pipeline.fit(y["level"][:ROWS], fh=[1, 2]).predict()
    assert forecast.index.equals(y.index[ROWS : ROWS + 2])
    scaled = ForecastingPipeline(
        [("again", Differencer(na_handling="fill_zero")), ("gpssm", plain)]
    )
    scaled.fit(y[:ROWS], X[:ROWS], fh=[1, 2]).predict(X=X[ROWS:])
    assert pipeline.get_params()["gpssm__method"] == "last"
    changed = pipeline.clone().set_params(gpssm__num_paths=7)
    assert (changed.get_params()["gpssm__num_paths"], plain.num_paths) == (7, 20)


def test_settings_are_those_of_fit_by_name():
    forecaster = GPSSMForecaster(state_dim=3, method="quick", num_draws=9)
    params = forecaster.get_params()
    assert (params["state_dim"], params["num_draws"], params["num_chains"]) == (3, 9, 4)
    assert not params["progress"]
    twin = forecaster.clone().set_params(seed=4)
    assert (twin.seed, twin.state_dim, forecaster.seed) == (4, 3, 0)
    with pytest.raises(TypeError, match="state_dims"):
        GPSSMForecaster(state_dims=3)
    with pytest.raises(ValueError, match="num_paths must be a whole number"):
        GPSSMForecaster(**{**NAIVE, "num_paths": 0}).fit(make_frames()[0])
