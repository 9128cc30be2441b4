"""Examinations agree with their parts, and every result names its protocol."""

import json

import numpy as np
import pytest

import gpssm
from builders import make_series
from gpssm.core.text import jsonable
from gpssm.data.series import Series
from gpssm.evaluation.examine import choose_rows, examine, judge_baselines
from posteriors import make_posterior

BASELINES = ("last", "mean")


@pytest.fixture(scope="module")
def rows():
    return make_series(60, missing=True).split(40)


@pytest.fixture(scope="module")
def posterior(rows):
    return make_posterior(raw=[rows[0]], draws=20)


@pytest.fixture(scope="module")
def found(posterior, rows):
    return examine(posterior, rows[1], baselines=BASELINES, num_paths=200)


def test_forecasts_and_scores_are_those_of_the_posterior(found, posterior, rows):
    forecast = posterior.forecast(20, rows[1].u, num_paths=200, seed=posterior.seed)
    np.testing.assert_array_equal(found.forecast.paths, forecast.paths)
    assert found.scores[found.method] == forecast.score(rows[1], (0.5, 0.8, 0.9))
    assert list(found.forecasts) == [found.method, *BASELINES]


def test_rolling_figures_are_those_of_a_backtest(found, posterior, rows):
    expected = gpssm.backtest(
        posterior, rows[1], horizon=10, step=10, num_paths=500, max_draws=100, progress=False
    )
    for output, shown in found.rolling.entries[0].by_step.items():
        np.testing.assert_allclose(shown, expected.by_step(output)["rmse"], rtol=1e-12)


def test_one_list_of_checks_feeds_everything(found):
    assert found.checks[0] == found.worth
    assert set(found.summary.checks) <= set(found.checks)
    problems = [one for one in found.checks if one.level == "problem"]
    assert len(found.notes) == len(problems)
    assert all(one.protocol for one in found.checks)
    names = {one.name for one in found.checks}
    assert {f"90 % intervals of {output}" for output in found.test.outputs} <= names


def test_all_of_it_can_be_written_down(found):
    written = json.loads(json.dumps(jsonable(found.to_dict()), allow_nan=False))
    assert written["rolling"]["protocol"] == "held-out rows, 2 rolling forecasts of 10 steps"
    assert written["checks"][0]["name"] == "Simpler models"
    assert written["test"]["first"] == 40


def test_without_test_rows_the_end_of_the_training_data_decides_and_the_checks_say_so(posterior):
    found = examine(posterior, baselines=("mean",), num_paths=50)
    assert not found.rolling.judged.held_out
    assert "in sample" in found.worth.protocol
    assert "the last ones are held" in found.future
    assert found.holds_inputs
    assert found.scores == {}


def test_a_baseline_that_cannot_be_fitted_is_told_of():
    series = make_series(30)
    y = np.array(series.y)
    y[::2] = np.nan
    gappy = Series(y, series.u)
    found = judge_baselines([gappy], gappy.u, choose_rows(gappy, None), ("last",))
    assert not found.forecasts
    assert "Last value could not be fitted" in found.failures[0]


def test_bad_arguments_are_refused(posterior, rows):
    with pytest.raises(ValueError, match="before `condition`"):
        examine(posterior.condition(rows[1][:5]))
    with pytest.raises(TypeError, match="a list of 2"):
        examine(posterior, test=list(rows))
    with pytest.raises(ValueError, match="Missing: "):
        examine(posterior, test=Series(rows[1].y, rows[1].u, outputs=["p", "q"]))


@pytest.mark.parametrize(
    ("length", "horizon", "step"), [(1, 1, 10), (25, 12, 10), (200, 30, 10), (5000, 30, 30)]
)
def test_origins_fit_what_rows_there_are(rows, length, horizon, step):
    judged = choose_rows(rows[0], make_series(length))
    assert (judged.horizon, judged.step, judged.held_out) == (horizon, step, True)
    origins = range(judged.start, len(judged.rows) - judged.horizon + 1, judged.step)
    assert 1 <= len(origins) <= 21
    nothing = Series(np.full((50, 2), np.nan), np.zeros((50, 1)))
    assert not choose_rows(rows[0], nothing).held_out
