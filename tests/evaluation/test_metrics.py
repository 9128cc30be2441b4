"""Scores against `scoringrules`, literal loops and closed forms; calibration against what chance allows."""

import numpy as np
import pytest
import scoringrules
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gpssm.core import metrics

STEPS, OUTPUTS, DRAWS = 7, 2, 40


def example(seed=0, draws=DRAWS, outputs=OUTPUTS, missing=False):
    """Paths (S, H, Dy) and y (H, Dy) from one Gaussian; if asked, a whole step and one more entry are missing."""
    generator = np.random.default_rng(seed)
    paths = 3.0 + generator.normal(size=(draws, STEPS, outputs)) * np.arange(1, outputs + 1)
    y = 3.0 + generator.normal(size=(STEPS, outputs)) * np.arange(1, outputs + 1)
    if missing:
        y[2], y[5, 0] = np.nan, np.nan
    return paths, y


def components(seed=1):
    """Means and variances (S, H, Dy) of a mixture."""
    generator = np.random.default_rng(seed)
    return generator.normal(3.0, 1.0, (DRAWS, STEPS, OUTPUTS)), generator.gamma(
        2.0, 1.0, (DRAWS, STEPS, OUTPUTS)
    )


def last(array):
    """The axis of draws behind the others, where `scoringrules` has it."""
    return np.moveaxis(array, 0, -1)


# Each score as a function of (paths, y) alone, with what a shift by c and a scaling by a > 0 of the units do to it.
SCORES = {
    "rmse": (lambda paths, y, **k: metrics.rmse(paths.mean(0), y, **k), lambda value, a: a * value),
    "mae": (lambda paths, y, **k: metrics.mae(paths.mean(0), y, **k), lambda value, a: a * value),
    "nrmse": (
        lambda paths, y, **k: metrics.nrmse(paths.mean(0), y, paths[0], **k),
        lambda value, a: value,
    ),
    "nlpd": (
        lambda paths, y, **k: metrics.nlpd(
            paths, np.tile(paths.var(0), (len(paths), 1, 1)), y, **k
        ),
        lambda value, a: value + np.log(a),
    ),
    "nmll_paper": (
        lambda paths, y, **k: metrics.nmll_paper(
            paths, np.tile(paths.var(0), (len(paths), 1, 1)), y, **k
        ),
        lambda value, a: value + np.log(a),
    ),
    "crps": (metrics.crps, lambda value, a: a * value),
    "energy": (metrics.energy_score, lambda value, a: a * value),
    "coverage": (metrics.coverage, lambda value, a: value),
    "width": (lambda paths, y, **k: metrics.interval_width(paths, **k), lambda value, a: a * value),
}
WITH_Y = sorted(set(SCORES) - {"width"})


def test_point_scores_are_the_textbook_ones():
    paths, y = example()
    mean, reference = paths.mean(0), paths[0]
    assert metrics.rmse(mean, y) == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)))
    assert metrics.mae(mean, y) == pytest.approx(np.mean(np.abs(mean - y)))
    np.testing.assert_allclose(
        metrics.rmse(mean, y, by_step=True), np.sqrt(np.mean((mean - y) ** 2, axis=1))
    )
    scaled = metrics.rmse(mean / reference.std(0), y / reference.std(0))
    assert metrics.nrmse(mean, y, reference) == pytest.approx(scaled)
    fits = [
        100 * (1 - np.linalg.norm(a - b) / np.linalg.norm(a - a.mean()))
        for a, b in zip(y.T, mean.T, strict=True)
    ]
    assert metrics.fit_percent(mean, y) == pytest.approx(np.mean(fits))


def test_fit_is_a_hundred_for_the_truth_and_nought_for_its_average_and_skips_a_constant_output():
    _, y = example(missing=True)
    average = np.tile(np.nanmean(y, axis=0), (STEPS, 1))
    assert metrics.fit_percent(np.nan_to_num(y), y) == pytest.approx(100.0)
    assert metrics.fit_percent(average, y) == pytest.approx(0.0, abs=1e-12)
    flat = np.column_stack([y[:, 0], np.full(STEPS, 0.1)])
    mean = np.ones((STEPS, 2))
    assert metrics.fit_percent(mean, flat) == pytest.approx(
        metrics.fit_percent(mean[:, 0], flat[:, 0])
    )
    assert np.isnan(metrics.fit_percent(mean[:, 0], flat[:, 1]))


def test_log_scores_agree_with_scoringrules_and_with_a_loop():
    mean, variance = components()
    _, y = example()
    mixture = scoringrules.logs_mixnorm(y, last(mean), last(np.sqrt(variance)), backend="numpy")
    assert metrics.nlpd(mean, variance, y) == pytest.approx(np.mean(mixture))
    np.testing.assert_allclose(
        metrics.nlpd(mean, variance, y, by_step=True), np.mean(mixture, axis=1)
    )
    single = [
        np.mean(stats.norm.logpdf(y, m, np.sqrt(v))) for m, v in zip(mean, variance, strict=True)
    ]
    assert metrics.nmll_paper(mean, variance, y) == pytest.approx(-np.mean(single))


def test_the_papers_figure_is_never_below_the_log_score_and_equals_it_for_one_component():
    mean, variance = components()
    _, y = example()
    gap = metrics.nmll_paper(mean, variance, y, by_step=True) - metrics.nlpd(
        mean, variance, y, by_step=True
    )
    assert (gap > 0).all()
    for same in (mean[:1], np.repeat(mean[:1], 5, axis=0)):
        spread = np.broadcast_to(variance[:1], same.shape)
        assert metrics.nmll_paper(same, spread, y) == pytest.approx(metrics.nlpd(same, spread, y))


def test_log_score_far_from_every_component_does_not_underflow():
    assert metrics.nlpd(np.zeros((3, 1)), np.ones((3, 1)), [100.0]) == pytest.approx(
        5000 + 0.5 * np.log(2 * np.pi)
    )


def test_crps_is_the_fair_one_of_scoringrules():
    paths, y = example()
    expected = scoringrules.crps_ensemble(y, last(paths), estimator="fair", backend="numpy")
    assert metrics.crps(paths, y) == pytest.approx(np.mean(expected))
    np.testing.assert_allclose(metrics.crps(paths, y, by_step=True), np.mean(expected, axis=1))


def test_crps_keeps_its_digits_far_from_the_origin():
    paths, y = example()
    assert metrics.crps(paths + 2.0**30, y + 2.0**30) == pytest.approx(
        metrics.crps(paths, y), rel=1e-6
    )


def test_crps_of_a_gaussian_within_monte_carlo_error():
    y = np.array([-1.0, 0.3, 2.0])
    paths = np.random.default_rng(0).normal(0.5, 2.0, (100_000, 3))
    exact = scoringrules.crps_normal(y, 0.5, 2.0, backend="numpy")
    np.testing.assert_allclose(
        metrics.crps(paths, y, by_step=True), exact, atol=4 * 2.0 / np.sqrt(len(paths))
    )


def test_crps_does_not_depend_on_the_number_of_paths_on_average():
    generator = np.random.default_rng(3)
    y = generator.normal(size=40_000)
    few, more = (metrics.crps(generator.normal(size=(draws, y.size)), y) for draws in (2, 10))
    assert few == pytest.approx(1 / np.sqrt(np.pi), abs=0.015)
    assert more == pytest.approx(1 / np.sqrt(np.pi), abs=0.01)


def test_energy_score_agrees_with_scoringrules_step_by_step_and_jointly(monkeypatch):
    paths, y = example()
    expected = scoringrules.es_ensemble(
        y, np.moveaxis(paths, 0, 1), estimator="fair", backend="numpy"
    )
    flat = scoringrules.es_ensemble(
        y.ravel(), paths.reshape(DRAWS, -1), estimator="fair", backend="numpy"
    )
    for block in (metrics.BLOCK, 3 * DRAWS, 1):
        monkeypatch.setattr(metrics, "BLOCK", block)
        np.testing.assert_allclose(metrics.energy_score(paths, y, by_step=True), expected)
        assert metrics.energy_score(paths, y, joint=True) == pytest.approx(float(flat))
    assert metrics.energy_score(paths, y) == pytest.approx(np.mean(expected))


def test_energy_score_of_one_output_is_the_crps():
    paths, y = example(outputs=1)
    assert metrics.energy_score(paths, y) == pytest.approx(metrics.crps(paths, y))
    assert metrics.energy_score(paths[:, :1], y[:1], joint=True) == pytest.approx(
        metrics.crps(paths[:, :1], y[:1])
    )


def test_joint_energy_score_sees_dependence_between_steps():
    generator = np.random.default_rng(4)
    walks = np.cumsum(generator.normal(size=(400, STEPS)), axis=1)
    shuffled = np.stack([generator.permutation(column) for column in walks.T], axis=1)
    actual = np.cumsum(generator.normal(size=(200, STEPS)), axis=1)
    right, wrong = (
        np.mean([metrics.energy_score(p, y, joint=True) for y in actual]) for p in (walks, shuffled)
    )
    assert right < wrong
    assert metrics.crps(walks, actual[0]) == pytest.approx(metrics.crps(shuffled, actual[0]))


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("draws", [19, 200])
def test_intervals_of_a_calibrated_forecast_cover_within_binomial_error(level, draws):
    generator = np.random.default_rng(draws)
    paths, y = generator.normal(size=(draws, 4000, 2)), generator.normal(size=(4000, 2))
    assert abs(metrics.coverage(paths, y, level) - level) < 3.5 * np.sqrt(
        level * (1 - level) / y.size
    )
    gaussian = 2 * stats.norm.ppf((1 + level) / 2)
    assert metrics.interval_width(paths[:, :500], level) == pytest.approx(
        gaussian, rel=0.02 if draws > 100 else 0.2
    )


def test_coverage_and_width_of_known_intervals():
    paths = np.arange(1.0, 20.0)[:, None] * np.array(
        [1.0, 10.0]
    )  # 19 paths, so that 90 % runs from first to last
    lower, upper = metrics.central_interval(paths, 0.9)
    np.testing.assert_allclose([lower.ravel(), upper.ravel()], [[1.0, 10.0], [19.0, 190.0]])
    np.testing.assert_allclose(metrics.interval_width(paths, 0.9, by_step=True), [18.0, 180.0])
    np.testing.assert_allclose(metrics.coverage(paths, [19.5, 15.0], 0.9, by_step=True), [0.0, 1.0])


def test_pit_is_uniform_when_calibrated_and_not_when_too_narrow():
    generator = np.random.default_rng(5)
    y = generator.normal(size=(1000, 2))
    paths = generator.normal(size=(500, 1000, 2))
    assert stats.kstest(metrics.pit(paths, y).ravel(), "uniform").pvalue > 0.01
    assert stats.kstest(metrics.pit(0.5 * paths, y).ravel(), "uniform").pvalue < 1e-6


def test_pit_counts_paths_below_and_half_of_those_equal():
    values = metrics.pit([[1.0] * 5, [2.0] * 5, [2.0] * 5], [0.0, 1.5, 2.0, 9.0, np.nan])
    np.testing.assert_allclose(values.ravel(), [0.125, 0.375, 0.625, 0.875, np.nan])


@pytest.mark.parametrize("name", sorted(SCORES))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(-100, 100), scale=st.floats(0.01, 100))
def test_a_change_of_units_changes_a_score_as_it_must(name, seed, shift, scale):
    function, change = SCORES[name]
    paths, y = example(seed)
    expected = change(function(paths, y), scale)
    assert function(scale * paths + shift, scale * y + shift) == pytest.approx(
        expected, rel=1e-6, abs=1e-9
    )


@pytest.mark.parametrize("name", sorted(SCORES))
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_paths_outputs_and_steps_does_not_matter(name, seed):
    function, _ = SCORES[name]
    paths, y = example(seed)
    generator = np.random.default_rng(seed)
    steps = generator.permutation(STEPS)
    # The first path stays: it stands in for the reference of nrmse.
    draws = np.concatenate([[0], 1 + generator.permutation(DRAWS - 1)])
    permuted = function(paths[draws][:, steps][:, :, ::-1], y[steps][:, ::-1], by_step=True)
    np.testing.assert_allclose(permuted, function(paths, y, by_step=True)[steps])


@pytest.mark.parametrize("name", WITH_Y)
def test_a_missing_step_is_as_if_it_were_dropped(name):
    function, _ = SCORES[name]
    paths, y = example(missing=True)
    y[5, 0] = 1.0
    # nrmse takes its reference from the paths themselves, so steps are dropped from y alone there.
    kept = np.arange(STEPS) != 2
    by_step = function(paths, y, by_step=True)
    assert np.isnan(by_step[2])
    assert np.isfinite(by_step[kept]).all()
    if name != "nrmse":
        assert function(paths, y) == pytest.approx(function(paths[:, kept], y[kept]))
        np.testing.assert_allclose(by_step[kept], function(paths[:, kept], y[kept], by_step=True))


@pytest.mark.parametrize("name", WITH_Y)
def test_a_missing_entry_leaves_the_other_output(name):
    function, _ = SCORES[name]
    paths, y = example(missing=True)
    alone = function(paths[:, :, 1:], y[:, 1:], by_step=True)
    assert function(paths, y, by_step=True)[5] == pytest.approx(alone[5])


def test_joint_energy_score_drops_missing_entries():
    paths, y = example(missing=True)
    seen = ~np.isnan(y)
    expected = scoringrules.es_ensemble(y[seen], paths[:, seen], estimator="fair", backend="numpy")
    assert metrics.energy_score(paths, y, joint=True) == pytest.approx(float(expected))


def test_one_output_may_leave_out_the_last_axis():
    paths, y = example(outputs=1)
    assert metrics.score(paths[:, :, 0], y[:, 0]) == metrics.score(paths, y)
    assert metrics.rmse(list(paths[0, :, 0]), y) == metrics.rmse(paths[0], y[:, 0])


def test_score_gathers_what_the_functions_give():
    paths, y = example(missing=True)
    mean, variance = components()
    figures = metrics.score(paths, y, levels=(0.5, 0.975), moments=(mean, variance))
    seen = ~np.isnan(y)
    assert figures == pytest.approx(
        {
            "rmse": metrics.rmse(paths.mean(0), y),
            "mae": metrics.mae(paths.mean(0), y),
            "fit": metrics.fit_percent(paths.mean(0), y),
            "nlpd": metrics.nlpd(mean, variance, y),
            "nmll_paper": metrics.nmll_paper(mean, variance, y),
            "crps": metrics.crps(paths, y),
            "energy": metrics.energy_score(paths, y),
            "coverage_50": metrics.coverage(paths, y, 0.5),
            "width_50": metrics.interval_width(paths[:, seen], 0.5),
            "coverage_97.5": metrics.coverage(paths, y, 0.975),
            "width_97.5": metrics.interval_width(paths[:, seen], 0.975),
        }
    )
    assert all(type(figure) is float for figure in figures.values())


def test_score_without_moments_smooths_the_paths_as_scoringrules_does():
    paths, y = example()
    figures = metrics.score(paths, y)
    assert figures["nlpd"] == pytest.approx(
        np.mean(scoringrules.logs_ensemble(y, last(paths), backend="numpy"))
    )
    assert np.isnan(figures["nmll_paper"])
    many, truth = (
        np.random.default_rng(6).normal(size=(20_000, 50)),
        np.random.default_rng(7).normal(size=50),
    )
    assert metrics.score(many, truth)["nlpd"] == pytest.approx(
        -np.mean(stats.norm.logpdf(truth)), abs=0.03
    )


def test_score_of_paths_that_all_agree_has_no_density_but_the_rest():
    figures = metrics.score(np.full((3, 3), 0.1), [0.1, 1.1, 2.1])
    assert np.isnan(figures["nlpd"])
    assert figures["crps"] == pytest.approx(1.0)
    assert figures["width_90"] == pytest.approx(0.0, abs=1e-12)


PATHS, ACTUAL = example()
WRONG = [
    (
        lambda: metrics.rmse(PATHS[0, :-1], ACTUAL),
        r"mean must have the shape \(7, 2\), as y is \(7, 2\); got \(6, 2\)",
    ),
    (
        lambda: metrics.crps(PATHS[:, :-1], ACTUAL),
        r"paths must have the shape \(S, 7, 2\), .* got \(40, 6, 2\)",
    ),
    (lambda: metrics.energy_score(PATHS[:, :, :1], ACTUAL), r"\(S, 7, 2\), .* got \(40, 7, 1\)"),
    (
        lambda: metrics.pit(PATHS[0, 0], ACTUAL),
        r"paths must have the shape \(S, H, Dy\) or \(S, H\); got \(2,\)",
    ),
    (
        lambda: metrics.mae(PATHS, ACTUAL),
        r"mean must have the shape \(H, Dy\) or \(H,\); got \(40, 7, 2\)",
    ),
    (
        lambda: metrics.crps(PATHS, ACTUAL * np.nan),
        r"observed at least once; of 14 entries 0 are infinite, 14 missing",
    ),
    (lambda: metrics.crps(PATHS, ACTUAL * np.inf), r"of 14 entries 14 are infinite, 0 missing"),
    (
        lambda: metrics.crps(PATHS[:1], ACTUAL),
        r"paths must have at least 2 draws along its first axis; got 1",
    ),
    (lambda: metrics.score(PATHS[:1], ACTUAL), r"at least 2 draws"),
    (lambda: metrics.interval_width(PATHS[:1]), r"at least 2 draws"),
    (
        lambda: metrics.coverage(np.where(PATHS > 5, np.inf, PATHS), ACTUAL),
        r"paths must be finite; \d+ of 560 values",
    ),
    (
        lambda: metrics.coverage(PATHS, ACTUAL, 100),
        r"a fraction between 0 and 1, such as 0.9; got 100",
    ),
    (lambda: metrics.interval_width(PATHS, 0.0), r"a fraction between 0 and 1"),
    (lambda: metrics.score(PATHS, ACTUAL, levels=(1.0,)), r"got 1.0"),
    (
        lambda: metrics.nlpd(PATHS, PATHS[:3] ** 2, ACTUAL),
        r"the shape of mean, \(40, 7, 2\); got \(3, 7, 2\)",
    ),
    (
        lambda: metrics.nmll_paper(PATHS, 0 * PATHS, ACTUAL),
        r"variance must be positive .* smallest value 0",
    ),
    (
        lambda: metrics.nrmse(PATHS[0], ACTUAL, ACTUAL[:, 0]),
        r"reference must have the 2 outputs of y",
    ),
    (
        lambda: metrics.nrmse(PATHS[0], ACTUAL, np.full((9, 2), 0.1)),
        r"all varying; their std is \[0. 0.\]",
    ),
    (
        lambda: metrics.energy_score(PATHS, ACTUAL, joint=True, by_step=True),
        r"joint=True returns one score",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_bad_calls_are_answered_with_what_was_expected_and_given(call, message):
    with pytest.raises(ValueError, match=message):
        call()
