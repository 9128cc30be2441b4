"""A fit with a delay against a fit to inputs shifted by hand: the same draws and results."""

import jax
import numpy as np
import pytest

import gpssm
from gpssm.data.series import Series
from random_walk import RandomWalk

LAGS, TRAIN, H = (3, 1), 40, 8
SMALL = {"state_dim": 1, "num_inducing": 4, "num_chains": 2, "progress": False}


def shifted(series):
    """The same rows with inputs that act later, entry by entry; the first outputs are unknown."""
    y, u = series.y.copy(), series.u.copy()
    y[: max(LAGS)] = np.nan
    for j, lag in enumerate(LAGS):
        for t in range(len(series)):
            u[t, j] = series.u[max(t - lag, 0), j]
    return Series(y, u)


@pytest.fixture(scope="module")
def record():
    rng = np.random.default_rng(4)
    u, x, y = rng.normal(size=(TRAIN + 20, 2)), 0.0, []
    for t in range(len(u)):
        x = 0.7 * x + 0.5 * u[max(t - 3, 0), 0] - 0.3 * u[max(t - 1, 0), 1] + 0.1 * rng.normal()
        y.append(50 + 4 * x + 0.4 * rng.normal())
    return Series(y, 3 + 2 * u)


@pytest.fixture(scope="module")
def rows(record):
    """What follows the training rows, as it was set, and as it arrives."""
    return record[TRAIN:], shifted(record)[TRAIN:]


@pytest.fixture(scope="module")
def late(record):
    return gpssm.fit(record[:TRAIN], method=RandomWalk(), delay={"u0": 3, "u1": 1}, **SMALL)


@pytest.fixture(scope="module")
def plain(record):
    return gpssm.fit(shifted(record)[:TRAIN], method=RandomWalk(), **SMALL)


def assert_same_paths(found, wanted):
    np.testing.assert_array_equal(found.paths, wanted.paths)


def test_the_draws_are_those_of_controls_shifted_by_hand(late, plain, record):
    jax.tree.map(np.testing.assert_array_equal, late.draws, plain.draws)
    np.testing.assert_array_equal(
        late.dataset.experiments[0].u, record.u[:TRAIN]
    )  # as they were given
    assert "u0 (acts 3 rows later), u1 (acts 1 row later)" in str(late.summary())
    assert "u0 (acts 3 rows later)" in late._repr_html_()


def test_forecasts_take_controls_as_they_are_set(late, plain, rows):
    wanted = plain.forecast(u=rows[1].u[:H])
    found = late.forecast(u=rows[0].u[:H])
    assert_same_paths(found, wanted)
    np.testing.assert_array_equal(found.u, rows[0].u[:H])
    # The last row arrives after the horizon. All but the first are needed of the other control.
    assert_same_paths(late.forecast(H, rows[0].u[: H - 1]), wanted)
    assert late.forecast(1).horizon == 1
    with pytest.raises(
        ValueError, match="each of the 8 steps ahead, but the last 1: pass u with 7 rows; got 6"
    ):
        late.forecast(H, rows[0].u[: H - 2])
    with pytest.raises(ValueError, match="pass u with 1 rows"):
        late.forecast(2)


def test_new_rows_go_on_where_the_last_ones_ended(late, plain, rows, tmp_path):
    wanted = plain.condition(rows[1][:6]).forecast(u=rows[1].u[6 : 6 + H])
    future = rows[0].u[6 : 6 + H]
    assert_same_paths(late.condition(rows[0][:6]).forecast(u=future), wanted)
    # In pieces shorter than a delay, with a file in between.
    later = late.condition(rows[0][:1]).condition(rows[0][1:2])
    later.save(tmp_path / "later.nc")
    loaded = gpssm.load(tmp_path / "later.nc")
    assert loaded.dataset.delay == LAGS
    assert_same_paths(loaded.condition(rows[0][2:6]).forecast(u=future), wanted)
    assert_same_paths(late.predict(rows[0][:6], 2), plain.predict(rows[1][:6], 2))
    found, wanted = (
        gpssm.backtest(one, test, horizon=H, step=4, num_paths=20, progress=False)
        for one, test in ((late, rows[0]), (plain, rows[1]))
    )
    for first, second in zip(found.forecasts, wanted.forecasts, strict=True):
        assert_same_paths(first, second)


def test_a_new_experiment_begins_with_what_nobody_knows(late, plain, rows):
    new = shifted(rows[0])
    wanted = plain.simulate(new.u[10 : 10 + H], warmup=new[:10])
    assert_same_paths(late.simulate(rows[0].u[10 : 10 + H], warmup=rows[0][:10]), wanted)
    assert_same_paths(late.simulate(rows[0].u[:H]), plain.simulate(new.u[:H]))
    first = late.condition(rows[0][:2], new_experiment=True)
    assert_same_paths(first.condition(rows[0][2:10]).forecast(u=rows[0].u[10 : 10 + H]), wanted)


def test_learning_goes_on(late, plain, rows):
    found, wanted = late.update(rows[0]), plain.update(rows[1])
    jax.tree.map(np.testing.assert_array_equal, found.draws, wanted.draws)
    jax.tree.map(np.testing.assert_array_equal, found.dataset.scaled, wanted.dataset.scaled)
    later = [
        one.learn(test[:6]).forecast(u=test.u[6 : 6 + H])
        for one, test in ((late, rows[0]), (plain, rows[1]))
    ]
    assert_same_paths(*later)


def test_functions_of_controls(late, plain, rows):
    u, arrived = rows[0].u[:H], rows[1].u[:H]
    first, second = (one.rollout(9, bounds=None) for one in (late, plain))
    np.testing.assert_allclose(first(first.start, u), second(second.start, arrived), rtol=1e-12)
    later = first.states_of(late.condition(rows[0][:6]))
    wanted = second(second.states_of(plain.condition(rows[1][:6])), rows[1].u[6 : 6 + H])
    np.testing.assert_allclose(first(later, rows[0].u[6 : 6 + H]), wanted, rtol=1e-12)
    # The last row of inputs acts on none of these outputs, the one before only with the short lag.
    with jax.enable_x64(True):
        slopes = jax.grad(lambda u: first(first.start, u).sum())(jax.numpy.asarray(u))
    np.testing.assert_array_equal(slopes != 0, np.arange(H)[:, None] < H - np.array(LAGS))


def test_responses_begin_later(late, plain):
    first, second = (one.linearise(row=20) for one in (late, plain))
    steps, wanted = first.step_response(9).values, second.step_response(9).values
    for j, lag in enumerate(LAGS):
        np.testing.assert_allclose(steps[:, lag:, :, j], wanted[:, : 9 - lag, :, j])
        assert not steps[:, :lag, :, j].any()
    f = np.array([0.05, 0.2])
    turned = first.bode(f).values / second.bode(f).values
    np.testing.assert_allclose(
        turned, np.broadcast_to(np.exp(-2j * np.pi * np.outer(f, LAGS))[:, None], turned.shape)
    )


def test_who_is_judged_beside_it_has_the_same_delay(late, plain, rows):
    found, wanted = (
        gpssm.compare({"own": one}, test[:H], baselines=["arx"], progress=False)
        for one, test in ((late, rows[0]), (plain, rows[1]))
    )
    assert_same_paths(found.forecasts["arx"], wanted.forecasts["arx"])
    first, second = late.calibrate(rows[0]), plain.calibrate(rows[1])
    np.testing.assert_array_equal(first.calibration.factors, second.calibration.factors)
