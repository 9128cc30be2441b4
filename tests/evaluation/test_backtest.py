"""Rolling origins: forecasts use only earlier rows, and scores are means over origins."""

from dataclasses import replace

import jax
import numpy as np
import pandas
import pytest

import gpssm
from gpssm.core import metrics
from gpssm.data.series import Series
from gpssm.methods import ARX
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.forecast import Forecast
from linear_systems import tank_series

START, STEP, HORIZON, PATHS = 50, 7, 5, 40
SETTINGS = {"horizon": HORIZON, "step": STEP, "num_paths": PATHS, "progress": False}
METHOD = ARX(orders=(2, 1), num_draws=30)


SERIES = tank_series()


@pytest.fixture(scope="module")
def posterior():
    return gpssm.fit(SERIES[:START], method=METHOD, num_chains=1, progress=False)


@pytest.fixture(scope="module")
def found(posterior):
    return gpssm.backtest(posterior, SERIES[START:], **SETTINGS)


def test_origins_leave_a_horizon_of_rows(found, posterior):
    np.testing.assert_array_equal(found.origins, [0, 7, 14, 21])
    assert [forecast.start for forecast in found.forecasts] == [50, 57, 64, 71]
    assert all(forecast.paths.shape == (PATHS, HORIZON, 1) for forecast in found.forecasts)
    last = gpssm.backtest(posterior, SERIES[START:], start=25, **SETTINGS)
    np.testing.assert_array_equal(last.origins, [25])
    np.testing.assert_array_equal(last.series.y[25:], SERIES.y[-HORIZON:])


def test_each_forecast_is_that_of_the_posterior_conditioned_there(found, posterior):
    fewer = posterior.thinned(200)
    for number, (row, forecast) in enumerate(zip(found.origins, found.forecasts, strict=True)):
        origin = START + row
        there = (
            fewer.condition(SERIES[START:origin])
            if origin > START
            else next(condition_at(fewer, SERIES, [0]))
        )
        expected = there.forecast(HORIZON, SERIES.u[origin:], num_paths=PATHS, seed=number)
        np.testing.assert_allclose(forecast.paths, expected.paths, rtol=1e-9, atol=1e-9)


def test_scores_are_those_of_each_origin_and_their_mean(found):
    for origin, forecast, row in zip(
        found.origins, found.forecasts, found.table.to_dict("records"), strict=True
    ):
        expected = metrics.score(
            forecast.paths,
            SERIES.y[START + origin : START + origin + HORIZON],
            levels=(0.5, 0.8, 0.9),
            moments=forecast.moments_ahead,
        )
        assert {
            name: row[name] for name in ("rmse", "nlpd", "crps", "coverage_80", "width_90")
        } == pytest.approx(
            {name: expected[name] for name in ("rmse", "nlpd", "crps", "coverage_80", "width_90")}
        )
    assert found.scores["crps"] == pytest.approx(np.mean([row["crps"] for row in found.figures]))
    assert list(found.table.index) == list(found.origins)


def test_figures_by_step_are_over_all_origins(found):
    steps = found.by_step()
    assert list(steps.index) == [1, 2, 3, 4, 5]
    for step in (1, 5):
        actual = np.array([SERIES.y[START + origin + step - 1, 0] for origin in found.origins])
        paths = np.stack([forecast.paths[:, step - 1, 0] for forecast in found.forecasts], axis=1)
        assert steps["rmse"][step] == pytest.approx(np.sqrt(np.mean((paths.mean(0) - actual) ** 2)))
        low, high = metrics.central_interval(paths, 0.8)
        assert steps["coverage_80"][step] == pytest.approx(
            np.mean((low[:, 0] <= actual) & (actual <= high[:, 0]))
        )
        assert steps["width_80"][step] == pytest.approx(np.mean(high - low))
        each = [metrics.crps(paths[:, [i]], actual[[i]]) for i in range(len(actual))]
        assert steps["crps"][step] == pytest.approx(np.mean(each))


def test_what_comes_after_an_origin_does_not_change_its_forecast(found, posterior):
    y, u = SERIES.y.copy(), SERIES.u.copy()
    y[57:] += 2.0
    u[57 + HORIZON :] -= 2.0
    spoilt = Series(y, u, outputs="level", inputs="pump")[START:]
    spoilt = gpssm.backtest(posterior, spoilt, **SETTINGS)
    for index in (0, 1):
        np.testing.assert_array_equal(spoilt.forecasts[index].paths, found.forecasts[index].paths)
    assert not np.allclose(spoilt.forecasts[2].paths, found.forecasts[2].paths)


def test_other_columns_are_refused(posterior):
    swapped = Series(
        SERIES.y, np.hstack([SERIES.u, SERIES.u]), outputs="level", inputs=["pump", "valve"]
    )
    with pytest.raises(ValueError, match="unknown: valve"):
        gpssm.backtest(posterior, swapped[START:], **SETTINGS)


def test_a_frame_is_taken_where_a_series_is(found, posterior):
    frame = pandas.DataFrame({"pump": SERIES.u[:, 0], "other": 0.0, "level": SERIES.y[:, 0]})
    again = gpssm.backtest(posterior, frame[START:], **SETTINGS)
    assert again.scores == pytest.approx(found.scores)
    compared = gpssm.compare({"arx": posterior}, frame[START:60], num_paths=20, progress=False)
    plain = gpssm.compare({"arx": posterior}, SERIES[START:60], num_paths=20, progress=False)
    assert compared.scores["arx"] == pytest.approx(plain.scores["arx"])


def test_a_new_experiment_starts_afresh(posterior):
    other = tank_series(40, seed=1)
    found = gpssm.backtest(posterior, other, start=0.5, new_experiment=True, **SETTINGS)
    expected = (
        posterior.thinned(200)
        .condition(other[:27], new_experiment=True)
        .forecast(HORIZON, other.u[27:], num_paths=PATHS, seed=1)
    )
    np.testing.assert_array_equal(found.origins, [20, 27, 34])
    np.testing.assert_allclose(found.forecasts[1].paths, expected.paths, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("new_experiment", [False, True])
def test_updating_is_given_the_rows_since_the_last_origin(posterior, monkeypatch, new_experiment):
    given = []

    def update(posterior, rows, *, new_experiment=False):
        given.append((rows, new_experiment))
        return posterior.condition(rows, new_experiment=new_experiment)

    monkeypatch.setattr(type(posterior), "update", update)
    rows = SERIES[START:75]
    found = gpssm.backtest(
        posterior, rows, refit="update", new_experiment=new_experiment, **SETTINGS
    )
    assert [len(one) for one, _ in given] == [7, 7]
    np.testing.assert_array_equal(np.concatenate([one.y for one, _ in given]), rows.y[:14])
    assert [new for _, new in given] == [new_experiment, False]
    expected = posterior.condition(rows[:14], new_experiment=new_experiment)
    expected = expected.forecast(HORIZON, rows.u[14:], num_paths=PATHS, seed=2)
    np.testing.assert_allclose(found.forecasts[2].paths, expected.paths, rtol=1e-9, atol=1e-9)


def test_learning_is_given_the_rows_since_the_last_origin(posterior, monkeypatch):
    given = []

    def learn(posterior, rows, *, max_draws, seed, forgetting=None, new_experiment=False):
        given.append((len(rows), forgetting, new_experiment, max_draws))
        return posterior.condition(rows, new_experiment=new_experiment)

    monkeypatch.setattr(type(posterior), "learn", learn)
    rows = SERIES[START:75]
    found = gpssm.backtest(
        posterior, rows, refit="learn", forgetting="auto", max_draws=9, **SETTINGS
    )
    assert given == [(7, "auto", False, 9), (7, None, False, 9)]
    expected = posterior.condition(rows[:14]).forecast(
        HORIZON, rows.u[14:], num_paths=PATHS, seed=2
    )
    np.testing.assert_allclose(found.forecasts[2].paths, expected.paths, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="forgetting needs refit='learn'"):
        gpssm.backtest(posterior, rows, forgetting=0.9, **SETTINGS)


def test_what_cannot_be_updated_says_so_and_where(posterior):
    with pytest.raises(ValueError, match="row 7 failed: 'arx' cannot be updated: fit it again"):
        gpssm.backtest(posterior, SERIES[START:], refit="update", **SETTINGS)


def test_origins_compile_once(posterior):
    compiled = []
    longer = tank_series(140)[START:]
    gpssm.backtest(posterior, longer[:20], **SETTINGS)

    def listen(event, *_, **__):
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert len(gpssm.backtest(posterior, longer, **SETTINGS).origins) == 13
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in compiled if "compile" in event]


def test_windows_without_outputs_have_no_score(posterior):
    y = SERIES.y[START:].copy()
    y[7:12] = np.nan
    y[14] = np.nan
    found = gpssm.backtest(
        posterior, Series(y, SERIES.u[START:], outputs="level", inputs="pump"), **SETTINGS
    )
    rmse = found.table["rmse"].to_numpy()
    assert np.isnan(rmse[1])
    assert np.isfinite(rmse[[0, 2, 3]]).all()
    assert found.scores["rmse"] == pytest.approx(rmse[[0, 2, 3]].mean())
    assert np.isfinite(found.by_step()["rmse"]).all()
    assert "nan" not in str(found)


def test_pages_and_figures(found, capsys, posterior):
    assert repr(found) == "Backtest(4 origins, rows 0 to 21, 5 steps, refit=never)"
    assert "over origins, by step ahead" in str(found)
    figure = found.plot()
    forecasts, errors, coverages = figure.axes
    np.testing.assert_allclose(errors.lines[0].get_ydata(), found.by_step()["rmse"])
    # Each of the four forecasts has a median and a mark of its origin; they do not overlap. The data are the last line.
    assert len(forecasts.lines) == 9
    assert len(coverages.lines) == 6
    with pytest.raises(ValueError, match="no output 'depth'; the outputs are level"):
        found.plot("depth")
    gpssm.backtest(posterior, SERIES[START:64], **SETTINGS | {"progress": "plain"})
    assert "backtest 2/2, origin at row 7" in capsys.readouterr().err
    gpssm.backtest(posterior, SERIES[START:64], **SETTINGS | {"progress": True})
    assert "2/2" in capsys.readouterr().out


def test_a_failing_origin_is_named(posterior, monkeypatch):
    calls = []

    def fail(forecast, actual, levels):
        calls.append(forecast.start)
        if len(calls) == 3:
            raise ValueError("paths must be finite")
        return {"rmse": 1.0}

    monkeypatch.setattr(Forecast, "score", fail)
    with pytest.raises(ValueError, match="forecast from row 14 failed: paths must be finite"):
        gpssm.backtest(posterior, SERIES[START:], **SETTINGS)


def test_bad_calls_are_explained(posterior):
    rows = SERIES[START:]
    for settings, message in (
        ({"refit": "often"}, "refit must be one of never, learn, update; got 'often'"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1"),
        ({"step": 2.5}, "step must be a whole number"),
        ({"start": 28}, "leaves 5 rows to forecast; got 28"),
        ({"start": -1}, "got -1"),
        ({"start": 1.5}, r"got 1\.5"),
        ({"horizon": 31}, "leaves 31 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            gpssm.backtest(posterior, rows, **SETTINGS | settings)
    with pytest.raises(TypeError, match="must be a Posterior or a Stack"):
        gpssm.backtest(rows, posterior, **SETTINGS)
    with pytest.raises(TypeError, match="one series at a time"):
        gpssm.backtest(posterior, [rows, rows], **SETTINGS)


def test_outputs_are_judged_apart_and_in_units_of_their_spread(found):
    both = Series(
        np.hstack([SERIES.y, 1000 * SERIES.y]), SERIES.u, outputs=["level", "in mm"], inputs="pump"
    )
    forecasts = tuple(
        replace(
            one,
            paths=one.paths * [1.0, 1000.0],
            outputs=both.outputs,
            scale=one.scale * [1.0, 1000.0],
            moments=None,
        )
        for one in (
            replace(one, paths=np.repeat(one.paths, 2, -1), moments_ahead=None)
            for one in found.forecasts
        )
    )
    twice = replace(found, series=both[START:], forecasts=forecasts)
    assert twice.by_output["rmse"]["level"] == pytest.approx(found.scores["rmse"])
    assert twice.by_output["rmse"]["in mm"] == pytest.approx(1000 * found.scores["rmse"])
    assert found.scores["ncrps"] == pytest.approx(found.scores["crps"] / SERIES.y[:START].std())
    np.testing.assert_allclose(
        twice.by_step()["crps"], found.by_step()["crps"] / SERIES.y[:START].std()
    )
    np.testing.assert_allclose(twice.by_step("in mm")["crps"], 1000 * found.by_step()["crps"])
    assert "in units of each output" in str(twice)
