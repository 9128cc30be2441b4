"""The one judge: each check by itself, at its thresholds, and what is made of all of them."""

from dataclasses import replace

import numpy as np
import pytest

from builders import make_series
from gpssm.data.series import Series
from gpssm.evaluation import checks
from gpssm.evaluation.assessment import Assessment
from gpssm.evaluation.backtest import Backtest
from gpssm.evaluation.baselines import Entry, RollingComparison, RollingRows
from gpssm.evaluation.checks import LEVELS, Check
from gpssm.evaluation.residuals import Correlation, Residuals
from gpssm.model.types import Info
from gpssm.posterior.diagnostics import Row
from gpssm.posterior.forecast import Forecast, ForecastDiagnostics

HEALTHY = Assessment(
    spread=np.array([2.0]),
    noise_std=np.array([0.2]),
    process_std=np.array([0.3]),
    one_step=np.array([0.4]),
    free_run=np.array([0.9]),
    horizon=30,
    widening=np.array([[0.1], [0.5], [0.95]]),
    covered=0.9,
    one_step_fit=np.array([80.0]),
    free_run_fit=np.array([55.0]),
    nonlinear=0.1,
    nonlinear_change=0.3,
    novelty_tail=0.0,
    left=0.0,
)
FORECAST, OUTPUTS = (Row(name, 30, 1.01, 400, 500, 300) for name in ("30-step forecast mean", "smoothed outputs"))


def check(level="good", name="Something"):
    return Check(name, level, "a figure", "Words.", "some rows")


def test_the_gravest_level_counts_and_doubts_begin_with_it():
    several = [check("caution", "a"), check("good"), check("problem", "b"), check("unknown")]
    assert checks.worst(several) == "problem"
    assert checks.worst([]) == "unknown"
    assert [one.name for one in checks.doubts(several)] == ["b", "a"]
    assert checks.count_up(several) == "1 problem; 1 of 4 checks ask for caution."
    assert checks.count_up([check()]) == "All 1 checks passed."


@pytest.mark.parametrize(
    ("name", "rhat", "ess", "level"),
    [
        ("smoothed outputs", 1.01, 300, "good"),
        ("smoothed outputs", 1.1, 300, "caution"),
        ("30-step forecast mean", 1.5, 300, "problem"),
        ("30-step forecast mean", np.nan, np.nan, "problem"),
        ("log_process_std", 1.5, 3, "caution"),
        ("function values", 1.5, 3, "caution"),
        ("log target", 1.8, 3, "problem"),
        ("states, within chains", 1.3, 50, "caution"),
        ("likelihood.log_std", 1.3, 50, "problem"),
        ("log_process_std", 1.01, 40, "caution"),
    ],
)
def test_mixing_goes_by_what_does_not_depend_on_coordinates(name, rhat, ess, level):
    (found,) = checks.check_mixing([Row(name, 5, rhat, ess, ess, ess)])
    assert found.level == level
    assert ("coordinates" in found.words) == (level == "caution" and rhat == 1.5)


def settled(rhat_between, rhat_within=1.01, ess_within=400):
    """The rows of chains with models of their own: of the forecast between chains, and of two groups within."""
    inside = ("30-step forecast mean, within chains", "log_process_std, within chains", "log target, within chains")
    apart = [Row(name, 1, rhat_between, 5, 5, 5) for name in ("30-step forecast mean", "log target", "log_process_std")]
    return apart + [Row(name, 1, rhat_within, ess_within, ess_within, ess_within) for name in inside]


def test_chains_from_starts_of_their_own_may_differ_if_each_has_settled():
    first, *inside = checks.check_mixing(settled(1.8), "em, em+shooting, noise free")
    assert first.level == "caution"
    assert first.figure == "R-hat 1.800 of 30-step forecast mean"
    for words in ("em, em+shooting, noise free", "average", "posterior.chain(k)"):
        assert words in first.words
    assert "num_warmup" not in first.words
    assert [one.level for one in inside] == ["good"] * 3
    assert checks.sampling_verdict(settled(1.8), [], (), "em") == "fair"
    first, *_ = checks.check_mixing(settled(1.03), "em")
    assert (first.level, "They agree" in first.words) == ("good", True)
    assert checks.sampling_verdict(settled(1.03), [], (), "em") == "good"
    # The same figures of chains that are one posterior.
    assert checks.worst(list(checks.check_mixing(settled(1.8)))) == "problem"


def test_chains_from_starts_of_their_own_must_each_have_settled():
    first, forecast, noise, target = checks.check_mixing(settled(1.03, 1.3), "em")
    assert first.level == "good"
    assert (forecast.level, noise.level, target.level) == ("problem", "caution", "problem")
    assert all("each by itself, have not settled" in one.words for one in (forecast, noise, target))
    assert checks.sampling_verdict(settled(1.8, 1.3), [], (), "em") == "poor"
    # What is no more than each wanders by itself is no disagreement.
    assert [next(checks.check_mixing(settled(between, 1.3), "em")).level for between in (1.25, 1.35)] == [
        "good",
        "caution",
    ]
    # With too few draws to tell they are not good.
    too_few = list(checks.check_mixing(settled(np.nan, np.nan, np.nan), "em"))
    assert [one.level for one in too_few] == ["problem", "caution", "problem"]


def test_what_does_not_vary_is_not_sampled_badly():
    assert list(checks.check_mixing([Row("a", 0, np.nan, np.nan, np.nan, np.nan)])) == []


@pytest.mark.parametrize(
    ("rhat", "ess", "sampler", "notes", "verdict"),
    [
        (1.01, 400, "good", (), "good"),
        (1.049, 100, "good", (), "good"),
        (1.05, 400, "good", (), "fair"),
        (1.01, 99, "good", (), "fair"),
        (1.01, 400, "problem", (), "fair"),
        (1.01, 400, "good", ("stopped",), "fair"),
        (1.2, 400, "good", (), "poor"),
        (1.01, 19, "good", (), "poor"),
        (np.nan, np.nan, "good", (), "poor"),
    ],
)
def test_the_verdict_on_the_sampling(rhat, ess, sampler, notes, verdict):
    rows = (FORECAST, OUTPUTS._replace(rhat=rhat, ess_bulk=ess))
    assert checks.sampling_verdict(rows, [check(sampler)], notes) == verdict


def make_info(**changes):
    rng = np.random.default_rng(0)
    plain = {
        "log_target": np.zeros((2, 100)),
        "acceptance": np.full((2, 100), 0.8),
        "divergent": np.zeros((2, 100), bool),
        "energy": rng.normal(size=(2, 100)),
        "gradients": np.ones((2, 100)),
    }
    return Info(**plain | changes)


def with_entries(base, chain, entries, value):
    changed = np.array(base)
    changed[chain, entries] = value
    return changed


@pytest.mark.parametrize(
    ("changes", "name", "level", "figure", "words"),
    [
        (
            {"log_target": with_entries(np.zeros((2, 100)), 1, slice(0, 5), np.nan)},
            "Chain 1",
            "problem",
            "5 %",
            "state_dim",
        ),
        (
            {"acceptance": with_entries(np.full((2, 100), 0.8), 0, slice(10, 62), 0.0)},
            "Chain 0",
            "problem",
            "52 draws",
            "step",
        ),
        (
            {"divergent": with_entries(np.zeros((2, 100), bool), 0, slice(0, 30), True)},
            "Divergent moves",
            "problem",
            "30 (15 %)",
            "prior",
        ),
        (
            {"divergent": with_entries(np.zeros((2, 100), bool), 0, 3, True)},
            "Divergent moves",
            "caution",
            "1 (0.5 %)",
            "Some",
        ),
        ({"acceptance": np.full((2, 100), 0.3)}, "Acceptance", "caution", "0.30 to 0.30", "num_warmup"),
        ({"energy": np.cumsum(np.ones((2, 100)), 1)}, "Energy (E-BFMI)", "caution", "at worst", "num_draws"),
    ],
)
def test_trouble_of_the_sampler_is_named(changes, name, level, figure, words):
    found = checks.doubts(list(checks.check_sampler(make_info(**changes))))[0]
    assert (found.name, found.level) == (name, level)
    assert figure in found.figure
    assert words in found.words


def test_a_sound_sampler_passes_and_independent_draws_have_none():
    assert checks.doubts(list(checks.check_sampler(make_info()))) == []
    short = make_info(acceptance=with_entries(np.full((2, 100), 0.8), 0, slice(10, 59), 0.0))
    assert all(one.level != "problem" for one in checks.check_sampler(short))
    (found,) = checks.check_sampler(make_info(acceptance=np.ones((2, 100)), energy=np.zeros((2, 100))))
    assert found.level == "unknown"
    particles = list(checks.check_sampler(make_info(acceptance=np.full((2, 100), 0.3), gradients=np.zeros((2, 100)))))
    assert particles == []
    exact = list(checks.check_sampler(make_info(acceptance=np.ones((2, 100)))))
    assert [one.name for one in exact] == ["Divergent moves"]


def training(rows_a_point=10.0, **changed):
    return checks.doubts(list(checks.check_training(HEALTHY._replace(**changed), ["level"], rows_a_point)))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (training(noise_std=np.array([1.6])), "Noise of level: 64 % of its variance"),
        (training(process_std=np.array([1.6])), "process noise of one step 64 %"),
        (training(one_step=np.array([1.9]), free_run=np.array([2.0])), "One step ahead it is predicted hardly"),
        (training(free_run=np.array([1.9])), "Over 30 steps it is forecast hardly"),
        (training(covered=0.55), "free runs: 55 % inside"),
        (training(left=0.2), "20 % left the region"),
        (training(novelty_tail=0.4), "40 % of f's prior variance"),
        (training(rows_a_point=1.5), "1.5 rows for each"),
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
    [(0.5, 0.5, ["good", "good"]), (0.01, 0.5, ["caution", "good"]), (0.5, 4e-7, ["good", "caution"])],
)
def test_residuals_that_depend_on_a_control_are_not_good(own, control, levels):
    series = make_series(9, output_dim=1)
    tests = {name: Correlation(np.zeros(3), control) for name in series.inputs}
    found = list(checks.check_residuals(Residuals(series, series.y, (Correlation(np.zeros(3), own),), (tests,))))
    assert [one.level for one in found] == levels


def test_of_residuals_that_were_hardly_observed_nothing_is_said():
    series = make_series(9, output_dim=1)
    (found,) = checks.check_residuals(Residuals(series, series.y, (None,), ({},)))
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
        ([1, 1.1, 0.9, 1], {"arx": [2, 2.1, 2, 1.9], "last": [3, 3, 3, 3]}, "good", "50 % better than the best"),
        ([1, 1, 1, 1], {"arx": [1.02, 1.01, 1.02, 1.03]}, "caution", "ARX forecasts as well: consider the simpler"),
        ([1, 5, 1, 5], {"arx": [5, 1, 5, 2]}, "caution", "as well"),
        ([2, 2.1, 2, 2], {"arx": [1, 1, 1, 1.1], "mean": [3, 3, 3, 3]}, "problem", "ARX forecasts better, by 98 %"),
        ([2, 2, 2, 2], {"arx": [3, 3, 3, 3], "last": [1, 1, 1, 1]}, "problem", "Repeating the last value"),
        ([1, 1], {"arx": [3, 3]}, "caution", "too few rows"),
        ([1], {}, "unknown", "no baseline"),
    ],
)
def test_whether_it_is_worth_it_is_one_plain_sentence(model, others, level, words):
    found = checks.check_worth(rolling(entry("ffvd", model), [entry(name, losses) for name, losses in others.items()]))
    assert found.level == level
    assert words in found.words
    assert found.protocol == "held-out rows, 4 rolling forecasts of 10 steps"
    assert "in sample" in checks.check_worth(rolling(entry("ffvd", model), [], held_out=False)).protocol


@pytest.mark.parametrize(
    ("share", "level"), [(0.9, "good"), (0.7, "caution"), (0.5, "problem"), (0.82, "good"), (1.0, "caution")]
)
def test_coverage_is_judged_with_room_for_few_and_dependent_entries(share, level):
    found = rolling(entry("ffvd", [1, 1], share), [])
    longer = replace(found, own=replace(found.own, origins=np.arange(0, 400, 10)))
    (found,) = checks.check_coverage(longer)
    assert (found.name, found.level) == ("90 % intervals of y", level)


def test_one_free_run_is_a_check_of_its_own():
    paths = np.random.default_rng(0).normal(size=(200, 300, 1))
    forecast = Forecast(paths, ("y",), 0, np.zeros((300, 0)))
    (good,) = checks.check_free_run(forecast, Series(np.random.default_rng(1).normal(size=300)))
    (poor,) = checks.check_free_run(forecast, Series(np.full(300, 5.0)))
    assert (good.level, poor.level) == ("good", "problem")
    assert good.protocol == "held-out rows, one free run of 300 steps"


@pytest.mark.parametrize(
    ("left", "level", "words"),
    [
        ([0.0, 0.02], "good", "stays where"),
        ([0.0, 0.2], "caution", "the paths that stayed"),
        ([0.2, 0.7], "problem", "do not trust this forecast"),
        ([0.5, 1.0], "problem", "from step 2 on"),
    ],
)
def test_paths_that_left(left, level, words):
    found = checks.check_paths(ForecastDiagnostics(np.array(left), np.zeros(2)))
    assert found.level == level
    assert words in found.words
    assert found.level in LEVELS


def test_paths_that_overflowed():
    found = checks.check_paths(ForecastDiagnostics(np.array([0.0, 1 / 3]), np.zeros(2), replaced=False))
    assert (found.name, found.level, found.figure) == ("Paths that overflowed", "problem", "33 %")
