"""Checks of training and held-out rows: each by itself, at its thresholds."""

from dataclasses import replace

import numpy as np
import pytest

from builders import make_series
from gpssm.data.dataset import Dataset
from gpssm.data.series import Series
from gpssm.evaluation import checks
from gpssm.evaluation.examine import Entry, RollingComparison, RollingRows, rmse_of_ends
from gpssm.evaluation.scores import Backtest
from gpssm.evaluation.training import Assessment, Correlation, OutputSummary, Residuals
from gpssm.posterior.checks import doubts
from gpssm.posterior.forecast import Forecast

OUTPUT = OutputSummary("level", 2.0, 0.2, 0.3, 0.4, 0.9, 2, 3, 80.0, 55.0)
HEALTHY = Assessment((OUTPUT,), 30, np.array([[0.1], [0.5], [0.95]]), 0.9, 0.1, 0.3, 0.0, 0.0)


def training(rows_a_point=10.0, **changed):
    own = {name: changed.pop(name) for name in vars(OUTPUT) if name in changed}
    figures = replace(HEALTHY, outputs=(replace(OUTPUT, **own),), **changed)
    return doubts(list(checks.check_training(figures, rows_a_point)))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (training(noise=1.6), "Noise of level: 64 % of its variance"),
        (training(process_noise=1.6), "process noise of one step 64 %"),
        (
            training(one_step_error=1.9, simulation_error=2.0),
            "One step ahead, predictions are hardly",
        ),
        (training(simulation_error=1.9), "Over 30 steps, forecasts are hardly"),
        (training(covered=0.55), "simulations: 55 % inside"),
        (training(left=0.2), "20 % left the region"),
        (training(novelty_tail=0.4), "40 % of the prior variance of f"),
        (training(rows_a_point=1.5), "1.5 rows per point"),
    ],
)
def test_figures_of_the_training_rows_are_doubted_one_by_one(found, words):
    (one,) = found
    assert words in f"{one.name}: {one.figure}. {one.words}"
    assert one.protocol == checks.IN_SAMPLE


def test_nothing_is_doubted_where_all_is_well():
    assert training() == []


@pytest.mark.parametrize(
    ("own", "control", "levels"),
    [
        (0.5, 0.5, ["good", "good"]),
        (0.01, 0.5, ["caution", "good"]),
        (0.5, 4e-7, ["good", "caution"]),
    ],
)
def test_residuals_that_depend_on_a_control_are_not_good(own, control, levels):
    series = make_series(9, output_dim=1)
    tests = {name: Correlation(np.zeros(3), control) for name in series.inputs}
    found = list(
        checks.check_residuals(
            Residuals(series, series.y, series.y, (Correlation(np.zeros(3), own),), (tests,))
        )
    )
    assert [one.level for one in found] == levels


def test_of_residuals_that_were_hardly_observed_nothing_is_said():
    series = make_series(9, output_dim=1)
    (found,) = checks.check_residuals(Residuals(series, series.y, series.y, (None,), ({},)))
    assert found.level == "unknown"


def entry(method, losses, coverage=0.9):
    return Entry(method, {"y": {"coverage_90": coverage}}, np.asarray(losses, float), {})


def rolling(model, others, held_out=True):
    rows = RollingRows(make_series(40, output_dim=1), 0, 10, 10, held_out)
    own = Backtest(rows.rows, np.arange(0, 31, 10), (), (), (), "never")
    return RollingComparison(rows, (model, *others), own)


@pytest.mark.parametrize(
    ("model", "others", "level", "words"),
    [
        (
            [1, 1.1, 0.9, 1],
            {"arx": [2, 2.1, 2, 1.9], "last": [3, 3, 3, 3]},
            "good",
            "50 % better than the best",
        ),
        (
            [1, 1, 1, 1],
            {"arx": [1.02, 1.01, 1.02, 1.03]},
            "caution",
            "ARX forecasts as well: consider the simpler",
        ),
        ([1, 5, 1, 5], {"arx": [5, 1, 5, 2]}, "caution", "as well"),
        (
            [2, 2.1, 2, 2],
            {"arx": [1, 1, 1, 1.1], "mean": [3, 3, 3, 3]},
            "problem",
            "ARX forecasts better, by 98 %",
        ),
        (
            [2, 2, 2, 2],
            {"arx": [3, 3, 3, 3], "last": [1, 1, 1, 1]},
            "problem",
            "Repeating the last value",
        ),
        ([1, 1], {"arx": [3, 3]}, "caution", "too few rows"),
        ([1], {}, "unknown", "no baseline"),
    ],
)
def test_whether_it_is_worth_it_is_one_plain_sentence(model, others, level, words):
    found = checks.check_worth(
        rolling(entry("ffvd", model), [entry(name, losses) for name, losses in others.items()])
    )
    assert found.level == level
    assert words in found.words
    assert found.protocol == "held-out rows, 4 rolling forecasts of 10 steps"
    assert (
        "in sample"
        in checks.check_worth(rolling(entry("ffvd", model), [], held_out=False)).protocol
    )


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.9, "good"), (0.7, "caution"), (0.5, "problem"), (0.82, "good"), (1.0, "caution")],
)
def test_coverage_is_judged_with_room_for_few_and_dependent_entries(share, level):
    found = rolling(entry("ffvd", [1, 1], share), [])
    longer = replace(found, own=replace(found.own, origins=np.arange(0, 400, 10)))
    (found,) = checks.check_coverage(longer)
    assert (found.name, found.level) == ("90 % intervals of y", level)


def test_one_simulation_is_a_separate_check():
    paths = np.random.default_rng(0).normal(size=(200, 300, 1))
    forecast = Forecast(paths, ("y",), 0, np.zeros((300, 0)))
    (good,) = checks.check_simulation(forecast, Series(np.random.default_rng(1).normal(size=300)))
    (poor,) = checks.check_simulation(forecast, Series(np.full(300, 5.0)))
    assert (good.level, poor.level) == ("good", "problem")
    assert good.protocol == "held-out rows, one simulation of 300 steps"


def test_in_sample_a_model_is_never_said_to_be_better():
    others = [entry("arx", [2, 2.1, 2, 1.9])]
    flattered = checks.check_worth(rolling(entry("ffvd", [1, 1.1, 0.9, 1]), others, held_out=False))
    assert flattered.level == "unknown"
    assert "No rows were held out" in flattered.words


def test_advice_about_states_does_not_contradict_that_about_chains():
    series = make_series(9, output_dim=1)
    residuals = Residuals(series, series.y, series.y, (Correlation(np.zeros(3), 0.01),), ({},))
    (check,) = checks.check_residuals(residuals)
    assert "larger state_dim" in check.words
    (check,) = checks.check_residuals(residuals, converged=False)
    assert "state_dim" not in check.words


def test_errors_of_first_and_last_steps_are_of_the_same_rows():
    rng = np.random.default_rng(0)
    origins = np.arange(5, 46, 10)
    by_row = rng.normal(size=100)
    # An error that depends on the row alone is the same at every step of the same rows.
    errors = by_row[origins + np.arange(30)[:, None]]
    ends = rmse_of_ends(errors, origins)
    expected = np.sqrt(np.mean(by_row[25:55] ** 2))
    assert ends == pytest.approx({"rmse_first": expected, "rmse_last": expected})
    errors[:10] *= 3
    assert rmse_of_ends(errors, origins)["rmse_first"] == pytest.approx(3 * expected)
    assert np.isnan(list(rmse_of_ends(errors[:, :2], origins[:2]).values())).all()


def test_inputs_that_never_change_are_named():
    series = make_series(9, output_dim=1)
    assert list(checks.check_constant_inputs([series])) == []
    still = replace(series, u=np.full_like(series.u, 3.0))
    (check, *_) = checks.check_constant_inputs([still, still])
    assert (check.level, check.figure) == ("caution", "constant at 3")
    # Two levels in two experiments are something to learn from.
    assert list(checks.check_constant_inputs([still, replace(still, u=still.u + 1)])) == []


def test_a_marker_of_missing_values_is_named():
    series = make_series(60, output_dim=1)
    assert list(checks.check_outliers([series])) == []
    marked = series.y.copy()
    marked[[7, 30]] = -9999
    with pytest.warns(UserWarning, match=r"y: 2 values like -9999 are far.*na=-9999"):
        Dataset.of(replace(series, y=marked))
    (check,) = checks.check_outliers([replace(series, y=marked)])
    assert (check.level, check.name) == ("problem", series.outputs[0])
    # A pulse and a switch are no outliers.
    pulse = np.zeros((60, 1))
    pulse[5] = 1.0
    for u in (pulse, np.where(np.arange(60)[:, None] < 30, 0.0, 100.0)):
        assert list(checks.check_outliers([replace(series, u=u, inputs=("u",))])) == []
