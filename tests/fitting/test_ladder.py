"""The default fit: `gpssm.fit(series)` as users call it, with nothing replaced."""

import signal
import warnings

import numpy as np
import pytest

import gpssm
from compilations import compilations
from gpssm.fitting import ladder
from gpssm.fitting.ladder import Ladder, climb, is_open
from gpssm.methods.spec import ChainStart, Spec
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import HeldOutScores, Stack, mixture_calibration
from gpssm.posterior.validation import RollingForecast

ROWS = 160
NOISE = 0.05


def make_series(curve, rows=2 * ROWS, seed=0):
    """y_{t+1} = .7 y_t + g(u_t) + noise, for a static curve g."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.uniform(-1.5, 1.5, rows), 2)[:rows, None]
    y = np.zeros(rows + 1)
    for t in range(rows):
        y[t + 1] = 0.7 * y[t] + curve(u[t, 0])
    return gpssm.Series(y[1:] + NOISE * rng.normal(size=rows), u)


def default_fit(train, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = gpssm.fit(train, progress=False, **settings)
    return fitted, [str(warning.message) for warning in caught]


@pytest.fixture(scope="module")
def curved():
    """A default fit to a system with a static curve at its input that no line can follow."""
    train, test = make_series(lambda u: np.sin(2.5 * u)).split(ROWS)
    return *default_fit(train), train, test


@pytest.fixture(scope="module")
def straight():
    """A default fit to a linear system."""
    train, test = make_series(lambda u: u).split(ROWS)
    return *default_fit(train), train, test


def test_a_curve_is_found_and_forecast_better_than_by_any_line(curved):
    fitted, messages, train, test = curved
    members = fitted.members.values() if isinstance(fitted, Stack) else [fitted]
    assert {member.method for member in members} <= {"quick", "gp-narx"}
    assert not any("not clearly better" in message for message in messages)
    forecast = fitted.forecast(u=test.u[:60])
    linear = gpssm.fit(train, method="arx").forecast(u=test.u[:60])
    assert forecast.score(test)["crps"] < 0.5 * linear.score(test)["crps"]
    low, high = forecast.interval(0.9)
    assert 0.75 <= np.mean((test.y[:60] >= low) & (test.y[:60] <= high)) <= 1


def test_what_was_compared_is_kept_and_in_the_summary(curved, tmp_path):
    fitted, *_ = curved
    rows = [row for row in fitted.comparison if "member" in row]
    assert {"quick"} < {row["member"] for row in rows}
    assert sum(row["weight"] for row in rows) == pytest.approx(1)
    assert min(rows, key=lambda row: row["crps"])["member"] in ("quick", "gp-narx")
    text = str(fitted.summary())
    assert all(row["member"] in text for row in rows)
    fitted.save(tmp_path / "fit.nc")
    assert gpssm.load(tmp_path / "fit.nc").comparison == fitted.comparison


def test_on_a_linear_system_the_answer_says_so_and_is_about_as_good(straight):
    fitted, messages, train, test = straight
    assert isinstance(fitted, Stack)
    assert sum("not clearly better than a linear one" in message for message in messages) == 1
    linear = {name for name, member in fitted.members.items() if not member.learns}
    weights = dict(zip(fitted.members, fitted.weights, strict=True))
    assert linear
    assert sum(weights[name] for name in linear) > 0.3
    arx = gpssm.fit(train, method="arx")
    ours, theirs = (
        one.forecast(u=test.u[:60], num_paths=2000).score(test)["crps"] for one in (fitted, arx)
    )
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("case", ["curved", "straight"])
def test_intervals_are_calibrated_on_held_out_rows(case, request):
    fitted, *_ = request.getfixturevalue(case)
    assert fitted.calibration is not None
    assert (fitted.calibration.factors >= 1).all()
    assert "held-out" in fitted.calibration.rows


def test_the_same_seed_gives_the_same_answer_whatever_is_called_back(curved):
    fitted, _, train, test = curved
    answers = []
    again, _ = default_fit(train, callback=answers.append)
    u = test.u[:20]
    assert np.array_equal(again.forecast(u=u).paths, fitted.forecast(u=u).paths)
    # The linear models came first, one after the other, then the nonlinear ones beside them.
    assert len(answers) == 4
    assert not answers[0].learns
    assert "gp-narx" in answers[2].members
    assert "quick" in answers[3].members
    assert np.isfinite(answers[0].forecast(u=u).mean).all()


def test_interrupted_it_returns_the_best_answer_so_far():
    train, _ = make_series(lambda u: np.sin(2.5 * u)).split(ROWS)

    def interrupt(answer):
        signal.raise_signal(signal.SIGINT)

    fitted, messages = default_fit(train, callback=interrupt)
    assert not fitted.learns
    assert any("best result so far" in message for message in messages)
    assert np.isfinite(fitted.forecast(5, u=train.u[:5]).mean).all()


def test_too_few_rows_to_hold_any_out_are_mixed_evenly():
    fitted, _ = default_fit(make_series(lambda u: u, rows=30))
    assert isinstance(fitted, Stack)
    assert np.ptp(fitted.weights) == 0
    assert fitted.calibration is None


def test_folds_share_the_programs_of_the_fit_to_all_rows(curved, straight):
    """Both series have the same shapes, so that the second default fit compiles next to nothing."""
    train, _ = make_series(lambda u: np.sin(2.5 * u), seed=5).split(ROWS)
    with compilations() as programs:
        default_fit(train, state_dim=1)
        first = len(programs)
        default_fit(train, state_dim=1, seed=1)
    assert len(programs) - first <= 3


def test_outputs_with_gaps_and_several_experiments():
    whole = make_series(lambda u: np.sin(2.5 * u), rows=200, seed=3)
    y = whole.y.copy()
    y[::7] = np.nan
    gaps = gpssm.Series(y, whole.u)
    fitted, _ = default_fit([gaps[:100], gaps[100:]], state_dim=1)
    assert np.isfinite(fitted.forecast(u=whole.u[:10]).mean).all()


def test_few_held_out_outputs_leave_intervals_uncalibrated_and_say_so():
    series = make_series(lambda u: u, rows=120, seed=3)
    y = np.full_like(series.y, np.nan)
    y[30:60:2] = series.y[30:60:2]
    y[[5, 110]] = series.y[[5, 110]]
    climbing = Ladder(Spec(), [gpssm.Series(y, series.u)], gpssm.Runtime(progress=False))
    climbing.add_linear()
    climbing.weigh()
    fitted = climbing.answer()
    assert fitted.calibration is None
    assert any(note.startswith("Intervals are not calibrated") for note in fitted.notes)
    assert np.isfinite(fitted.forecast(u=series.u[:10]).mean).all()


def test_for_simulations_posteriors_from_shooting_compete_too():
    train, test = make_series(lambda u: np.sin(2.5 * u)).split(ROWS)
    fitted, _ = default_fit(train, horizon="simulation", state_dim=1)
    table = fitted.table if isinstance(fitted, Stack) else fitted.comparison
    assert {"quick", "quick, shooting"} <= {row.get("member") for row in table}
    assert np.isfinite(fitted.forecast(u=test.u).mean).all()


def test_chains_are_run_where_all_forecasts_are_poor(monkeypatch):
    monkeypatch.setattr(ladder, "CHAINS", ladder.FFVD(num_warmup=40, num_draws=20, thin=1))
    monkeypatch.setattr(ladder, "POOR", 0.0)
    train, test = make_series(lambda u: np.sin(2.5 * u)).split(ROWS)
    fitted, _ = default_fit(train, state_dim=1)
    table = fitted.table if isinstance(fitted, Stack) else fitted.comparison
    assert {"quick", "chains"} <= {row.get("member") for row in table}
    assert np.isfinite(fitted.forecast(u=test.u).mean).all()


def test_fewer_states_are_tried_where_linear_models_need_many():
    for linear, expected in ((1, [1]), (2, [2]), (3, [3, 2]), (8, [8, 2])):
        assert ladder.quick_orders((linear,), 1) == expected
    assert ladder.quick_orders((8, 3), 3) == [8, 3]
    assert ladder.quick_orders((8, 6), 3) == [8, 6, 3]
    assert ladder.quick_orders((2, 1), 4) == [4]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"state_dim": 3, "kernel": "matern32", "horizon": 5}, True),
        ({"likelihood": "gaussian"}, True),
        ({"likelihood": "student-t"}, False),
        ({"start": "em"}, False),
        ({"start": (ChainStart("em", "free"),)}, False),
        ({"noise": "small"}, False),
        ({"wiring": "cascade"}, False),
        ({"num_draws": 10}, False),
    ],
)
def test_a_spec_that_names_one_model_is_not_open(settings, expected):
    assert is_open(Spec().replace(**settings)) is expected


def test_a_model_that_fails_is_left_out_and_named(monkeypatch):
    def fail(self):
        raise RuntimeError("the log target is not finite")

    train, _ = make_series(lambda u: u).split(ROWS)
    monkeypatch.setattr(ladder.Quick, "build", lambda *_: fail(None))
    fitted, messages = default_fit(train)
    assert "quick" not in (fitted.members if isinstance(fitted, Stack) else {})
    assert any("quick failed and was dropped" in message for message in messages)


def test_nothing_that_can_be_fitted_is_an_error(monkeypatch):
    def fail(*_):
        raise RuntimeError("no luck")

    monkeypatch.setattr(ladder, "fit_posterior", fail)
    with pytest.raises(RuntimeError, match="no luck"):
        climb(Spec(), [make_series(lambda u: u, rows=60)], gpssm.Runtime(progress=False))


def test_the_calibration_of_a_mixture_is_that_of_its_paths():
    """Two members whose forecasts are two normals: what their mixture must be widened by."""
    rng = np.random.default_rng(0)
    rows = gpssm.Series(3 * rng.normal(size=(400, 1)))

    def score(std):
        forecasts = tuple(
            RollingForecast(
                origin,
                stand_in(std * rng.normal(size=(400, 4, 1))),
                rows[origin : origin + 4],
                4,
                True,
                4,
            )
            for origin in range(0, 400, 4)
        )
        return HeldOutScores(np.zeros(1), np.zeros(1), 400, forecasts)

    def stand_in(paths):
        return Forecast(paths, ("y",), 0, np.zeros((4, 0)))

    both = mixture_calibration([score(1.0), score(3.0)], np.array([0.5, 0.5]))
    one = mixture_calibration([score(1.0)], np.ones(1))
    right = mixture_calibration([score(3.0)], np.ones(1))
    assert one.factors[-1, 0] == pytest.approx(3, rel=0.2)
    assert right.factors[-1, 0] == pytest.approx(1, abs=0.1)
    assert right.factors[-1, 0] <= both.factors[-1, 0] < one.factors[-1, 0]


def test_orders_come_from_the_council_and_a_simpler_one_is_tried_too():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=300)
    y = np.zeros(302)
    for t in range(300):
        y[t + 2] = 1.6 * y[t + 1] - 0.81 * y[t] + noise[t]
    climbing = Ladder(Spec(), [gpssm.Series(y[2:])], gpssm.Runtime(progress=False))
    climbing.add_linear()
    assert climbing.spec.state_dim == climbing.orders[0] == 2
    assert set(climbing.orders) <= {1, 2}
    assert len(climbing.members) == ladder.LINEAR_MEMBERS


def test_more_states_than_rows_can_teach_leave_the_linear_models_and_a_note():
    fitted, messages = default_fit(make_series(lambda u: u, rows=24), state_dim=24)
    assert not isinstance(fitted, Posterior) or not fitted.learns
    assert any("state_dim=24 is too large for" in message for message in messages)
