"""Checks of a sampler's run and of paths: each by itself, at its thresholds, and the verdict on all of them."""

import numpy as np
import pytest

from gpssm.model.types import Info
from gpssm.posterior import checks
from gpssm.posterior.checks import LEVELS, Check
from gpssm.posterior.diagnostics import Row
from gpssm.posterior.forecast import ForecastDiagnostics

FORECAST, OUTPUTS = (
    Row(name, 30, 1.01, 400, 500, 300) for name in ("30-step forecast mean", "smoothed outputs")
)


def check(level="good", name="Something"):
    return Check(name, level, "a figure", f"About {name}.", "some rows")


def test_the_gravest_level_counts_and_doubts_begin_with_it():
    several = [check("caution", "a"), check("good"), check("problem", "b"), check("unknown")]
    assert checks.worst(several) == "problem"
    assert checks.worst([]) == "unknown"
    assert [one.name for one in checks.doubts(several)] == ["b", "a"]
    assert checks.headline(several) == "b: a figure. About b. (1 more warning.)"
    assert checks.headline([check()]) == "All 1 checks passed."


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
        ("log target", 1.01, 40, "good"),
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
    inside = (
        "30-step forecast mean, within chains",
        "log_process_std, within chains",
        "log target, within chains",
    )
    apart = [
        Row(name, 1, rhat_between, 5, 5, 5)
        for name in ("30-step forecast mean", "log target", "log_process_std")
    ]
    return apart + [
        Row(name, 1, rhat_within, ess_within, ess_within, ess_within) for name in inside
    ]


def test_advice_for_the_default_names_no_setting_that_it_lacks():
    rows = [Row(name, 5, 1.5, 9, 9, 9) for name in ("30-step forecast mean", "log target")]
    for check_ in checks.check_mixing(rows, remedy=checks.CHOOSE_METHOD):
        assert check_.sentence == (
            f"{check_.name}: R-hat 1.500, 9 effective draws. Chains disagree. "
            "Fit with method='ffvd' and more draws, or with a smaller state_dim."
        )
    for changes in (
        {"log_target": np.full((2, 100), np.nan)},
        {"acceptance": np.zeros((2, 100))},
        {"divergent": np.ones((2, 100), bool)},
    ):
        for check_ in checks.check_sampler(make_info(**changes), checks.CHOOSE_METHOD):
            assert "num_" not in check_.sentence


def test_checks_with_one_cause_are_one_doubt():
    rows = [Row(name, 5, 1.5, 9, 9, 9) for name in ("log_process_std", "log target", "states")]
    several = [*checks.check_mixing([*rows, OUTPUTS._replace(rhat=1.31, ess_bulk=35)]), check()]
    (found,) = checks.doubts(several)
    assert found.sentence == (
        "Smoothed outputs, Log target and 2 more: R-hat 1.310, 35 effective draws. "
        "Chains disagree. Increase num_warmup or reduce state_dim."
    )


def test_chains_from_different_starts_may_differ_a_little_if_each_has_converged():
    first, *inside = checks.check_mixing(settled(1.8), "em, em+shooting, noise free")
    assert first.level == "problem"
    assert first.figure == "R-hat 1.800 of 30-step forecast mean"
    for words in ("em, em+shooting, noise free", "averages", "posterior.thinned(chain=k)"):
        assert words in first.words
    assert "num_warmup" not in first.words
    assert [one.level for one in inside] == ["good"] * 3
    assert checks.sampling_verdict(settled(1.8), [], (), "em") == "poor"
    assert checks.sampling_verdict(settled(1.15), [], (), "em") == "fair"
    first, *_ = checks.check_mixing(settled(1.03), "em")
    assert (first.level, " agree." in first.words) == ("good", True)
    assert checks.sampling_verdict(settled(1.03), [], (), "em") == "good"
    # The same figures of chains that are one posterior.
    assert checks.worst(list(checks.check_mixing(settled(1.8)))) == "problem"


def test_chains_from_starts_of_their_own_must_each_have_settled():
    first, forecast, noise, target = checks.check_mixing(settled(1.03, 1.3), "em")
    assert first.level == "good"
    assert (forecast.level, noise.level, target.level) == ("problem", "caution", "problem")
    assert all("Chains have not converged" in one.words for one in (forecast, noise, target))
    assert checks.sampling_verdict(settled(1.8, 1.3), [], (), "em") == "poor"
    # What is no more than each wanders by itself is no disagreement.
    assert [
        next(checks.check_mixing(settled(between, 1.3), "em")).level for between in (1.25, 1.35)
    ] == [
        "good",
        "problem",
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
        (1.01, 79, "good", (), "fair"),
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
            "Divergent transitions",
            "problem",
            "30 (15 %)",
            "prior",
        ),
        (
            {"divergent": with_entries(np.zeros((2, 100), bool), 0, 3, True)},
            "Divergent transitions",
            "caution",
            "1 (0.5 %)",
            "Some",
        ),
        (
            {"acceptance": np.full((2, 100), 0.3)},
            "Acceptance",
            "caution",
            "0.30 to 0.30",
            "num_warmup",
        ),
        (
            {"energy": np.cumsum(np.ones((2, 100)), 1)},
            "Energy (E-BFMI)",
            "caution",
            "at worst",
            "num_draws",
        ),
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
    (found,) = checks.check_sampler(
        make_info(acceptance=np.ones((2, 100)), energy=np.zeros((2, 100)))
    )
    assert found.level == "unknown"
    particles = list(
        checks.check_sampler(
            make_info(acceptance=np.full((2, 100), 0.3), gradients=np.zeros((2, 100)))
        )
    )
    assert particles == []
    exact = list(checks.check_sampler(make_info(acceptance=np.ones((2, 100)))))
    assert [one.name for one in exact] == ["Divergent transitions"]


@pytest.mark.parametrize(
    ("left", "level", "words"),
    [
        ([0.0, 0.02], "good", "stays in the region"),
        ([0.0, 0.2], "caution", "the paths that stayed inside"),
        ([0.2, 0.7], "problem", "Do not trust this forecast"),
        ([0.5, 1.0], "problem", "from step 2 on"),
    ],
)
def test_paths_that_left(left, level, words):
    found = checks.check_paths(ForecastDiagnostics(np.array(left), np.zeros(2)))
    assert found.level == level
    assert words in found.words
    assert found.level in LEVELS


def test_paths_that_overflowed():
    found = checks.check_paths(
        ForecastDiagnostics(np.array([0.0, 1 / 3]), np.zeros(2), replaced=False)
    )
    assert (found.name, found.level, found.figure) == ("Paths that overflowed", "problem", "33 %")
