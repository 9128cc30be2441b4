"""Candidates are compared within the training rows by proper scores, and the best one is chosen."""

import json
import warnings

import numpy as np
import pytest

from gpssm.data.series import Series
from gpssm.fitting import choose
from gpssm.fitting.choose import (
    Trials,
    candidate_noises,
    candidate_row,
    compare_candidates,
    first_candidates,
    start_names,
)
from gpssm.fitting.fit import fit
from gpssm.inference.progress import running_rhat
from gpssm.linear import descent
from gpssm.methods.ffvd import FFVD
from gpssm.methods.spec import ChainStart, Spec
from gpssm.model.likelihoods import make_likelihood
from gpssm.posterior.draws import differ_in_model, model_of
from gpssm.posterior.stack import load
from gpssm.posterior.validation import make_folds
from gpssm.starts import shooting
from gpssm.starts import start as starts

SMALL = {
    "method": FFVD(24, 3, 1, num_leapfrog=2, rank=2),
    "state_dim": 2,
    "num_inducing": 6,
    "num_chains": 1,
}

# Chains of so few draws may well be stuck: what is tested is which start is taken, not how good they are.
pytestmark = pytest.mark.filterwarnings("ignore:Chain .* stuck")


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    u = np.repeat(rng.normal(size=10), 8)[:72, None]
    x, y = np.zeros(2), []
    for control in u[:, 0]:
        x = np.array([[0.9, 0.2], [-0.2, 0.9]]) @ x + np.array([0.1, 0.4]) * control
        y.append(x[0])
    return Series(np.array(y)[:, None] + 0.05 * rng.normal(size=(72, 1)), u)


def be_quick(patch):
    """Few steps, and short chains: what is tested is not how good they are."""
    for name, value in (("NUM_STEPS", 50), ("NUM_STARTS", 4), ("NUM_LBFGS", 20)):
        patch.setattr(descent, name, value)
    patch.setattr(
        starts,
        "shoot_all",
        lambda *pair: [shooting.shoot(*one, num_steps=20) for one in zip(*pair, strict=True)],
    )
    for name, value in (("SKIP", 3), ("WARMUP", 8), ("NUM_DRAWS", 4)):
        patch.setattr(choose, name, value)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


@pytest.fixture(scope="module")
def compared(series):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        be_quick(patch)
        warnings.simplefilter("ignore")  # so short a chain is worse than its start
        return fit(series, start=["em", "em+shooting"], calibrate=True, progress=False, **SMALL)


def test_the_best_of_the_table_is_what_was_fitted(compared):
    posterior = compared
    spec, table = posterior.spec, posterior.comparison
    assert (spec.start, spec.noise, spec.likelihood) == tuple(
        table[0][name] for name in ("start", "noise", "likelihood")
    )
    assert {row["start"] for row in table} == {"em", "em+shooting"}
    assert table[0]["run_of_start"] > 0
    json.dumps(table, allow_nan=False)
    # By the chains of the candidate that was taken: 18 rows at either end, 6 of the first to find the state by.
    assert posterior.calibration.origins == 9 + 6
    shown = str(posterior.summary())
    assert "Starts compared" in shown
    assert all(row["start"] in shown for row in table)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a chain of three draws
@pytest.mark.parametrize(
    ("name", "start", "told"),
    [
        ("gaussian", ["em", "em+shooting"], "Gaussian"),  # by the programs that `compared` has
        pytest.param("student-t", ["em", "output-error"], "StudentT", marks=pytest.mark.slow),
    ],
)
def test_an_emission_of_the_users_own_is_compared_too(series, name, start, told):
    own = make_likelihood(name, np.eye(1, 2), np.zeros(1), np.full(1, 0.1))
    posterior = fit(series, likelihood=own, start=start, progress=False, **SMALL)
    table = posterior.comparison
    assert {row["start"] for row in table} == set(start)
    assert {row["likelihood"] for row in table} == {told}


class Scripted(Trials):
    """Trials of which the errors are written down: 40 paths of three steps, around a bias, by start."""

    def __init__(self, biases):
        self.biases, self.rows, self.results = biases, {}, {}

    def run(self, candidate):
        noise = np.random.default_rng(0).normal(size=(40, 3, 1))
        errors = [choose.Errors(self.biases[candidate.start] + noise, 2, early=True)]
        self.results[candidate] = choose.Trial([], [], [errors, errors])
        verdict = choose.judge([errors])
        self.rows[candidate] = candidate_row(candidate) | {
            "score": verdict.score,
            "run": verdict.run,
        }

    def at_start(self, candidate):
        return 1.0


def chosen(num_chains, **biases):
    """The comparison of candidates whose forecasts have these biases."""
    trials = Scripted({name.replace("_", "+"): bias for name, bias in biases.items()})
    first = [Spec(start=name, noise="free", likelihood="gaussian") for name in trials.biases]
    return compare_candidates(trials, first, ["free"], num_chains)


def test_chains_are_shared_out_among_what_is_better_together():
    def starts(*given, **biases):
        return [candidate.start for candidate in chosen(*given, **biases).candidates]

    # Errors to either side cancel; what is far off in the same direction as another does nothing for it.
    assert starts(4, em=1.0, em_shooting=-1.1) == ["em", "em", "em+shooting", "em+shooting"]
    assert starts(1, em=1.0, em_shooting=-1.1) == ["em"]
    assert starts(4, em=1.0, em_shooting=2.0) == ["em"] * 4
    assert starts(3, em=3.0, em_shooting=0.1) == ["em+shooting"] * 3
    comparison = chosen(2, em=2.0, em_shooting=5.0)
    assert [row.get("chains") for row in comparison.rows] == [2, None]
    assert "worse than those of its start" in comparison.notes[0]


def test_a_mixture_is_judged_as_one_forecast():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(30, 5, 2)), 1 + rng.normal(size=(30, 5, 2))
    found = choose.judge([[choose.Errors(one, 3, early=True)] for one in (first, second)])
    both = np.concatenate([first, second])
    crps = np.abs(both).mean(0) - 0.5 * np.abs(both[:, None] - both).sum((0, 1)) / (60 * 59)
    np.testing.assert_allclose(found, (crps[:3].mean(), crps.mean()))


def test_starts_that_all_fail_are_named_with_their_reasons(series, monkeypatch, capsys):
    def fail(trials, candidate):
        raise ArithmeticError(f"{candidate.start} went astray")

    monkeypatch.setattr(Trials, "_begin", fail)
    with pytest.raises(
        RuntimeError,
        match=r"em: em went astray. em\+shooting: em\+shooting went astray.*start='em'",
    ):
        fit(series, start=["em", "em+shooting"], progress="plain", **SMALL)
    assert (
        "gpssm: starts, em, noise free\ngpssm: starts, em+shooting, noise free\n"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:On held-out training rows")  # so short a chain is worse
def test_the_choice_is_the_same_twice(compared, series):
    first, second = compared, fit(series, start=["em", "em+shooting"], progress=False, **SMALL)

    def figures(posterior):
        return [
            {k: v for k, v in row.items() if k != "cpu_seconds"} for row in posterior.comparison
        ]

    assert figures(first) == figures(second)
    np.testing.assert_array_equal(first.draws.weights, second.draws.weights)


def test_folds_are_equally_long_and_hold_out_either_end():
    rng = np.random.default_rng(0)
    long, short = (
        Series(rng.normal(size=(rows, 1)), rng.normal(size=(rows, 1))) for rows in (100, 20)
    )
    after, before = make_folds([long, short])
    assert [len(one) for one in after.series] == [len(one) for one in before.series] == [75, 20]
    np.testing.assert_array_equal(after.rest[0].y, long.y[75:])
    np.testing.assert_array_equal(before.rest[0].y, long.y[:25])
    np.testing.assert_array_equal(before.series[0].y, long.y[25:])
    assert list(after.rest) == [0]
    assert make_folds([short]) == []


def test_what_is_compared_follows_from_the_data(series):
    rectified = Series(np.abs(series.y), series.u)

    def rows(spec, series):
        return [
            tuple(candidate_row(candidate).values())
            for candidate in first_candidates(spec, [series])
        ]

    ffvd = Spec(method="ffvd")
    assert start_names(ffvd, [series]) == ["em", "output-error+shooting"]
    assert start_names(ffvd, [Series(series.y, None)]) == ["em", "em+shooting"]
    assert start_names(Spec(method="ffvd-m"), [series]) == ["em"]
    assert rows(ffvd, series) == [
        ("em", "free", "gaussian"),
        ("output-error+shooting", "free", "gaussian"),
    ]
    assert rows(Spec(start=["em", "em+shooting"]), rectified) == [
        ("em", "free", "gaussian"),
        ("em+shooting", "free", "gaussian"),
        ("em", "free", "abs"),
    ]
    assert rows(Spec(start="em"), rectified) == [("em", "free", "gaussian")]
    assert rows(
        Spec(start=[ChainStart("em", 0.02), ChainStart("em+shooting", "free")]), rectified
    ) == [
        ("em", 0.02, "gaussian"),
        ("em+shooting", "free", "gaussian"),
    ]
    assert candidate_noises(Spec(), compared=True)[0] == "free"
    assert candidate_noises(Spec(), compared=False) == ["free"]
    assert candidate_noises(Spec(noise="small"), compared=True) == ["small"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a chain of three draws
def test_a_start_may_be_named_or_given_as_states(series):
    states = 0.1 * np.random.default_rng(0).normal(size=(73, 2))
    given = fit(series, start=states, noise="small", progress=False, **SMALL)
    np.testing.assert_array_equal(given.spec.start, states)
    assert given.spec.noise == "small"
    named = fit(series, start="output-error", progress=False, **SMALL)
    assert named.spec.start == "output-error"
    assert named.comparison == ()
    with pytest.raises(ValueError, match=r"states of shapes \[\(73, 2\)\]"):
        fit(series, start=states[:-1], progress=False, **SMALL)
    with pytest.raises(KeyError, match="Known: auto, em"):
        fit(series, start="magic", progress=False, **SMALL)


@pytest.fixture(scope="module")
def apart(series):
    """A fit whose two chains each begin with a shot of their own."""
    with pytest.MonkeyPatch.context() as patch:
        be_quick(patch)
        return fit(
            series, start="em+shooting", noise=0.02, progress=False, **SMALL | {"num_chains": 2}
        )


def test_chains_after_shooting_have_starts_of_their_own(apart, series, tmp_path):
    alone = fit(series, start="em+shooting", noise=0.02, progress=False, **SMALL)
    np.testing.assert_array_equal(alone.draws.weights[0], apart.draws.weights[0])
    assert "basis.parts.0.locations" not in alone.draws.leaves
    places = apart.draws.leaves["basis.parts.0.locations"]
    assert places.shape == (2, 3, 6, 3)
    np.testing.assert_array_equal(places, np.broadcast_to(places[:, :1], places.shape))
    assert np.abs(places[0] - places[1]).max() > 0.01
    # The output map is fixed while chains run, but each was shot at its own.
    assert np.abs(np.diff(apart.draws.leaves["likelihood.C"][:, 0], axis=0)).max() > 0
    first = apart.thinned(chain=0)
    assert tuple(map(differ_in_model, (apart, first, alone))) == (True, False, False)
    assert {leaf.dtype for leaf in first.model.leaves().values()} == {np.dtype(float)}
    assert set(first.draws.leaves) == set(alone.draws.leaves)
    u = series.u[:5]
    np.testing.assert_allclose(
        first.forecast(u=u).paths, alone.forecast(u=u).paths, rtol=1e-6, atol=1e-9
    )
    np.testing.assert_array_equal(
        apart.thinned(chain=1).model.leaves()["basis.parts.0.locations"],
        model_of(apart, 1, 0).leaves()["basis.parts.0.locations"],
    )
    apart.save(tmp_path / "apart.nc")
    again = load(tmp_path / "apart.nc")
    np.testing.assert_array_equal(
        again.forecast(u=u, seed=3).paths, apart.forecast(u=u, seed=3).paths
    )


def test_the_running_figure_of_chains_apart_is_that_of_each_by_itself():
    log_target = np.random.default_rng(0).normal(size=(2, 400)) + np.array([[0.0], [9.0]])
    assert running_rhat(log_target, separate_models=False) > 1.5
    assert running_rhat(log_target, separate_models=True) < 1.05
    assert np.isnan(running_rhat(log_target[:, :7], separate_models=True))


def test_an_update_lets_each_chain_go_on_from_its_own_model(apart, series):
    went_on = apart.update(series[:20], new_experiment=True, num_warmup=0, num_draws=2)
    np.testing.assert_array_equal(
        went_on.draws.leaves["basis.parts.0.locations"][:, -1],
        apart.draws.leaves["basis.parts.0.locations"][:, -1],
    )


def test_chains_apart_are_the_same_when_run_together(apart, series):
    together = fit(
        series,
        start="em+shooting",
        noise=0.02,
        progress=False,
        batching="vmap",
        **SMALL | {"num_chains": 2},
    )
    np.testing.assert_allclose(together.draws.weights, apart.draws.weights, rtol=1e-5, atol=1e-6)


def test_methods_with_a_start_of_their_own_keep_it(series):
    with pytest.raises(ValueError, match="determines its start"):
        fit(series, method="arx", start="output-error", progress=False)
