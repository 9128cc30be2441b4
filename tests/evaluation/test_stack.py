"""Stacks: weights that maximise the log score of the mixture, and the methods of a mixture."""

import copy
import dataclasses
import json
import pickle
import re
import warnings
import zipfile

import numpy as np
import pytest
import scipy.optimize
from scipy.special import logsumexp, softmax

import gpssm
from gpssm.core import metrics
from gpssm.data.series import Series
from gpssm.evaluation.held_out import default_members
from gpssm.methods import ARX
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import (
    Stack,
    leading_member,
    share_out,
    smoothed_outputs,
    stacking_weights,
)
from gpssm.posterior.validation import make_folds
from gpssm.report import write_report
from linear_systems import tank_series

FIRST, SECOND = ARX(orders=(2, 1), num_draws=40), ARX(orders=(1, 1), num_draws=40)
MEMBERS = {"second order": {"method": FIRST}, "first order": {"method": SECOND}}


SERIES = tank_series(160)
TRAIN, TEST = SERIES[:120], SERIES[120:]


@pytest.fixture(scope="module")
def posteriors():
    return {
        name: gpssm.fit(TRAIN, num_chains=1, progress=False, **one) for name, one in MEMBERS.items()
    }


@pytest.fixture(scope="module")
def gaussian_process():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so short a chain has not settled
        return gpssm.fit(
            TRAIN,
            **{"state_dim": 2, "num_inducing": 5, "start": "em", "noise": "free"},
            **{"num_chains": 2, "num_warmup": 8, "num_draws": 6, "thin": 1, "progress": False},
        )


@pytest.fixture(scope="module")
def even(posteriors):
    return Stack.of(posteriors, [0.75, 0.25])


def test_weights_are_those_an_optimiser_finds():
    log_densities = np.random.default_rng(0).normal(-1, 2, size=(4, 50))
    rows = 20

    def loss(free):
        weights = softmax(free)
        mixture = logsumexp(np.log(weights)[:, None] + log_densities, axis=0)
        return -rows * np.mean(mixture) - np.sum(np.log(weights))

    expected = softmax(scipy.optimize.minimize(loss, np.zeros(4), tol=1e-12).x)
    np.testing.assert_allclose(stacking_weights(log_densities, rows), expected, atol=1e-5)


def test_members_that_err_in_different_places_share_the_weight():
    # Each knows half of the entries: neither is better, and the mixture is better than both.
    apart = np.log([[0.9] * 30 + [0.01] * 30, [0.01] * 30 + [0.9] * 30])
    np.testing.assert_allclose(stacking_weights(apart, 60), 0.5)
    worse = np.log([[0.9] * 60, [0.1] * 60])
    np.testing.assert_array_equal(
        stacking_weights(worse, 60), [1, 0]
    )  # the prior's share is to nobody's credit


def test_few_rows_keep_weights_even():
    better = np.log([[0.9] * 60, [0.8] * 60])
    few, many = stacking_weights(better, 2), stacking_weights(better, 200)
    assert 0.5 < few[0] < 0.55
    assert many[0] > 0.9


def test_shares_add_up():
    assert share_out(10, np.array([0.5, 0.3, 0.2])) == [5, 3, 2]
    assert share_out(2, np.array([0.98, 0.01, 0.01])) == [1, 1, 1]
    assert sum(share_out(997, np.array([0.41, 0.39, 0.2]))) == 997


# Of 40 paths the heavier member has 30 of 32 that it makes, and the other one 10 of 16.
SHARES = ((32, 30), (16, 10))


def test_a_forecast_mixes_those_of_the_members(even, posteriors):
    found = even.forecast(10, TEST.u, num_paths=40, seed=3)
    parts = [
        one.forecast(10, TEST.u, num_paths=made, seed=3).thinned(paths)
        for one, (made, paths) in zip(posteriors.values(), SHARES, strict=True)
    ]
    np.testing.assert_array_equal(found.paths, np.concatenate([one.paths for one in parts]))
    np.testing.assert_array_equal(
        found.moments[1], np.concatenate([one.moments[1] for one in parts])
    )
    left = 0.75 * parts[0].diagnostics.left_by_step + 0.25 * parts[1].diagnostics.left_by_step
    np.testing.assert_allclose(found.diagnostics.left_by_step, left)
    assert found.score(TEST)["rmse"] > 0


@pytest.mark.parametrize(
    "verb",
    [
        lambda one, n: one.condition(TEST[:5]).forecast(5, TEST.u[5:], num_paths=n),
        lambda one, n: list(condition_at(one, TEST, [0, 5]))[1].forecast(
            5, TEST.u[5:], num_paths=n
        ),
        lambda one, n: one.predict(TEST[:8], 2, num_paths=n),
        lambda one, n: one.simulate(TEST.u[5:10], warmup=TEST[:5], num_paths=n),
    ],
)
def test_other_verbs_are_mixtures_too(even, posteriors, verb):
    expected = [
        verb(one, made).thinned(paths).paths
        for one, (made, paths) in zip(posteriors.values(), SHARES, strict=True)
    ]
    np.testing.assert_allclose(verb(even, 40).paths, np.concatenate(expected))


def test_smoothed_outputs_are_mixed(posteriors):
    stack = Stack.of(posteriors, [0.5, 0.5])
    found = stack.smooth()
    assert found.paths.shape[1:] == (len(TRAIN), 1)
    # An even mixture of two Gaussians per row, by the moments of the members.
    parts = [one.thinned(20).smooth() for one in posteriors.values()]
    np.testing.assert_allclose(found.mean, np.mean([one.mean for one in parts], axis=0))
    assert smoothed_outputs(stack)[1].std.mean() > found.std.mean()


def test_settings_are_weighed_inside_the_training_rows_alone():
    stack = gpssm.stack(TRAIN, MEMBERS, num_chains=1)
    assert stack.weights[0] > 0.6
    assert [row["member"] for row in stack.table] == ["second order", "first order"]
    rows = {row["member"]: row for row in stack.table}
    assert rows["second order"]["log_score"] > rows["first order"]["log_score"]
    # The scores by hand, from the same fits to three quarters of the rows.
    last, first = make_folds([TRAIN])
    scores = []
    for fold, known in ((last, 0), (first, 10)):
        fit = gpssm.fit(fold.series, method=FIRST, num_chains=1, progress=False)
        rows_held = fold.rest[0]
        for origin in range(known, len(rows_held) - (len(rows_held) - known) // 2 + 1, 10):
            (now,) = condition_at(fit.thinned(100), rows_held, [origin], new_experiment=fold.before)
            horizon = (len(rows_held) - known) // 2
            ahead = rows_held[origin : origin + horizon]
            paths = now.forecast(
                len(rows_held),
                np.pad(rows_held.u[origin:], ((0, origin), (0, 0)), mode="edge"),
                num_paths=200,
            )
            scores.append(metrics.log_density(paths.paths[:, :horizon], ahead.y).ravel())
    assert rows["second order"]["log_score"] == pytest.approx(
        np.concatenate(scores).mean(), abs=1e-6
    )


def test_posteriors_are_weighed_by_rows_they_have_not_seen(posteriors):
    stack = gpssm.stack(TEST, posteriors)
    assert stack.members["second order"].draws is posteriors["second order"].draws
    assert stack.weights[0] > 0.6
    assert sum(stack.weights) == pytest.approx(1)


def test_a_member_without_weight_is_dropped_and_named(posteriors):
    spoilt = gpssm.fit(TRAIN, method="mean", num_chains=1, progress=False)
    stack = gpssm.stack(TEST, posteriors | {"mean": spoilt})
    row = next(row for row in stack.table if row["member"] == "mean")
    assert row["weight"] == 0
    assert "mean" not in stack.members
    assert "Dropped (negligible weight): mean." in stack.notes


def test_a_member_that_fails_is_named_and_the_others_stay():
    stack = gpssm.stack(TRAIN, {**MEMBERS, "broken": {"method": ARX(orders=(90, 1))}}, num_chains=1)
    assert set(stack.members) <= set(MEMBERS)
    assert any(note.startswith("broken failed and was dropped") for note in stack.notes)


@pytest.fixture(scope="module")
def opposed(posteriors):
    """A stack of y and −3y + 5, whose mixture is neither."""
    flipped = dataclasses.replace(TRAIN, y=5 - 3 * TRAIN.y)
    other = gpssm.fit(flipped, method=FIRST, num_chains=1, progress=False)
    return Stack.of({"y": posteriors["second order"], "5 - 3 y": other}, [0.5, 0.5])


def test_a_stack_has_nothing_that_belongs_to_one_model(opposed):
    forecast = opposed.forecast(5, TEST.u, num_paths=512)
    parts = [one.forecast(5, TEST.u, num_paths=256).mean for one in opposed.members.values()]
    np.testing.assert_allclose(forecast.mean, np.mean(parts, axis=0))
    own = {name for name in dir(Stack) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(Posterior)}
    absent = {name for name in {*dir(Posterior), *fields} if not name.startswith("_")} - own
    expected = {"to_casadi", "rollout", "linearise", "to_arviz", "diagnostics"}
    assert absent > expected | {"transition", "draws", "model", "spec"}
    for name in absent - {"calibration", "notes"}:
        with pytest.raises(AttributeError, match=rf"stack\.members\['y'\]\.{name}$"):
            getattr(opposed, name)
    with pytest.raises(AttributeError, match="has no attribute 'forcast'"):
        opposed.forcast  # noqa: B018
    for owner in (gpssm.analysis.informative, gpssm.plots.plot_transition, gpssm.plots.plot_traces):
        with pytest.raises((TypeError, AttributeError)):
            owner(opposed, TEST.u)
    copied = pickle.loads(pickle.dumps(opposed.weights)), copy.copy(opposed)
    assert copied[1].members is opposed.members


def test_a_single_model_is_the_heaviest_nonlinear_member(posteriors, gaussian_process):
    stack = Stack.of({"gp": gaussian_process, **posteriors}, [0.2, 0.5, 0.3])
    assert list(stack.members) == ["second order", "first order", "gp"]
    np.testing.assert_array_equal(stack.weights, [0.5, 0.3, 0.2])
    assert stack.leading == "gp"
    assert leading_member(stack) is stack.members["gp"]
    assert leading_member(gaussian_process) is gaussian_process
    assert Stack.of(posteriors, [0.4, 0.6]).leading == "first order"
    summary = stack.summary()
    assert summary.leading == "gp"
    assert (summary.facts["method"], summary.facts["kernel"]) == ("stack", "se")
    assert summary.facts["seconds"] == pytest.approx(
        sum(map(sum, (one.seconds for one in stack.members.values())))
    )
    assert "Fit: gp, the member described below" in str(summary)


def test_one_member_is_a_stack_too(posteriors):
    stack = Stack.of({"only": posteriors["second order"]}, [1.0])
    expected = posteriors["second order"].forecast(5, TEST.u, num_paths=32).paths
    np.testing.assert_array_equal(stack.forecast(5, TEST.u, num_paths=32).paths, expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "one positive weight"), ([1.5, -0.5], "one positive"), ([0.5, 0.6], "sum to one")],
)
def test_weights_must_be_a_distribution(posteriors, weights, message):
    with pytest.raises(ValueError, match=message):
        Stack.of(posteriors, weights)


def test_members_must_have_the_same_columns(posteriors):
    named = dataclasses.replace(TRAIN, outputs=("height",))
    other = gpssm.fit(named, method=FIRST, num_chains=1, progress=False)
    with pytest.raises(ValueError, match="same outputs and inputs"):
        Stack.of({"a": posteriors["second order"], "b": other}, [0.5, 0.5])


def test_members_that_cannot_learn_are_conditioned(posteriors, gaussian_process):
    stack = Stack.of({"gp": gaussian_process, "arx": posteriors["first order"]}, [0.5, 0.5])
    for after in (stack.learn(TEST[:5]), stack.update(TEST[:5], num_warmup=4, num_draws=2)):
        forecast = after.forecast(5, TEST.u[5:], num_paths=32)
        assert forecast.start == len(TRAIN) + 5
        expected = posteriors["first order"].condition(TEST[:5])
        paths = expected.forecast(5, TEST.u[5:], num_paths=16).paths
        np.testing.assert_array_equal(forecast.paths[16:], paths)


def test_saved_and_loaded_it_forecasts_the_same(even, tmp_path):
    stack = dataclasses.replace(even, notes=("a note",))
    stack.save(tmp_path / "stack.zip")
    again = gpssm.load(tmp_path / "stack.zip")
    assert isinstance(again, Stack)
    assert (again.notes, list(again.members)) == (("a note",), list(stack.members))
    expected = stack.forecast(5, TEST.u, num_paths=20).paths
    np.testing.assert_array_equal(again.forecast(5, TEST.u, num_paths=20).paths, expected)
    with pytest.raises(FileExistsError, match="overwrite"):
        stack.save(tmp_path / "stack.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(ValueError, match="not a saved stack"):
        gpssm.load(tmp_path / "other.zip")


def test_a_file_whose_weights_were_edited_is_refused(even, tmp_path):
    even.save(tmp_path / "stack.zip")
    with zipfile.ZipFile(tmp_path / "stack.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    edited = json.loads(contents["stack.json"])
    edited["weights"].reverse()
    for change in (edited, {name: part for name, part in edited.items() if name != "checksum"}):
        with zipfile.ZipFile(tmp_path / "edited.zip", "w") as archive:
            for name, content in (contents | {"stack.json": json.dumps(change)}).items():
                archive.writestr(name, content)
        with pytest.raises(ValueError, match=r"edited.zip is damaged .*checksum"):
            gpssm.load(tmp_path / "edited.zip")


def test_rows_are_taken_by_one_engine(posteriors, gaussian_process):
    stack = Stack.of({"gp": gaussian_process, "arx": posteriors["first order"]}, [0.5, 0.5])
    for relearn, after in ((None, stack.condition(TEST[:5])), ("weights", stack.learn(TEST[:5]))):
        forecasts = [
            each.forecast(5, TEST.u[5:], num_paths=32)
            for each in (after, stack.extend(TEST[:5], relearn))
        ]
        np.testing.assert_array_equal(forecasts[0].paths, forecasts[1].paths)
    with pytest.raises(ValueError, match="relearn must be None, 'weights' or 'all'; got 'noise'"):
        stack.extend(TEST[:5], "noise")


def test_a_mixture_is_calibrated_as_one(even, tmp_path):
    wide = even.calibrate(TEST)
    own, stretched = (
        wide.forecast(5, TEST.u, num_paths=40, calibrated=one) for one in (False, None)
    )
    np.testing.assert_array_equal(own.paths, even.forecast(5, TEST.u, num_paths=40).paths)
    factors = wide.calibration.at(1 + np.arange(5))
    np.testing.assert_allclose(
        stretched.paths - own.mean, factors * (own.paths - own.mean), atol=1e-12
    )
    wide.save(tmp_path / "stack.zip")
    again = gpssm.load(tmp_path / "stack.zip").condition(TEST[:5])
    np.testing.assert_array_equal(again.calibration.factors, wide.calibration.factors)
    assert np.all(even.calibrate().calibration.factors >= 1)


def test_it_goes_wherever_a_posterior_goes(even):
    found = gpssm.backtest(even, TEST, horizon=10, num_paths=20, progress=False)
    assert np.isfinite(found.scores["crps"])
    assert gpssm.compare({"stack": even}, TEST, horizon=5, num_paths=20).scores["stack"]["rmse"] > 0
    assert "second order 0.75" in repr(even)


def test_the_summary_and_the_report_say_what_is_mixed(even, tmp_path):
    table = [{"member": "second order", "weight": 0.75, "log_score": -1.5, "crps": 0.125}]
    stack = Stack.of(even.members, even.weights, table)
    assert re.search(r"second order +0\.75 +-1\.5 +0\.125", str(stack.summary()))
    page = write_report(stack, tmp_path / "report.html", test=TEST, baselines=()).read_text()
    assert "Members of the mixture" in page
    assert "A mixture of second order (75 %) was fitted to" in page
    assert "The following paragraphs describe its member second order, a linear model with" in page
    assert "are shown for second order." in page  # the leading member
    assert "Chains do not agree" not in page  # they are independent draws
    assert '<th scope="row">second order</th><td>0.75</td><td>-1.5</td><td>0.125</td>' in page


@pytest.mark.slow
def test_jobs_change_nothing():
    alone, beside = (gpssm.stack(TRAIN, MEMBERS, num_chains=1, jobs=jobs) for jobs in (1, 2))
    np.testing.assert_allclose(alone.weights, beside.weights, rtol=1e-9)


def test_default_members_know_the_data():
    assert {"method": "arx"} in default_members([TRAIN])
    assert not any("output-error" in str(one) for one in default_members([Series(TRAIN.y)]))
    rectified = Series(np.abs(TRAIN.y), TRAIN.u)
    assert any(one.get("likelihood") == "abs" for one in default_members([rectified]))


@pytest.mark.parametrize(
    ("members", "series", "message"),
    [
        (["arx"], TRAIN, "two members"),
        (["arx", "arx"], TRAIN, "members with different names"),
        (["arx", "lgssm"], TRAIN[:20], "60 rows"),
    ],
)
def test_what_cannot_be_stacked_is_refused(members, series, message):
    with pytest.raises(ValueError, match=message):
        gpssm.stack(series, members)


def test_posteriors_and_settings_do_not_mix(posteriors):
    with pytest.raises(TypeError, match="all posteriors"):
        gpssm.stack(TEST, {**posteriors, "arx": "arx"})
    with pytest.raises(TypeError, match="already fitted"):
        gpssm.stack(TEST, posteriors, state_dim=2)
