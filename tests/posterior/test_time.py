"""Times continue in forecasts, after new rows, in new experiments, files and figures."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import gpssm
from builders import make_series
from gpssm.data.clock import Clock
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.stack import Stack
from posteriors import make_posterior

DATES = pd.date_range(
    "2024-03-31", periods=40, freq="15min", tz="Europe/Berlin", name="when", unit="ns"
)


def dated(length, first=0, seed=0):
    rows = make_series(length, seed=seed)
    return replace(rows, clock=Clock.of(DATES).shifted(first), units={"y0": "m"})


def of_forecast(posterior, steps=4):
    return posterior.forecast(u=np.zeros((steps, 1)), num_paths=6).to_dataframe().index


def same(found, wanted):
    pd.testing.assert_index_equal(found, wanted, exact=False)


def test_a_forecast_continues_the_index_also_after_new_rows_and_a_file(tmp_path):
    posterior = make_posterior(raw=[make_series(5), dated(9)])
    same(of_forecast(posterior), DATES[9:13])
    same(
        of_forecast(posterior)[1:3],
        posterior.forecast(u=np.zeros((4, 1)), num_paths=6)[1:3].to_dataframe().index,
    )
    later = posterior.condition(dated(3, 9))
    same(of_forecast(later), DATES[12:16])
    same(posterior.predict(dated(3, 9), num_paths=6).to_dataframe().index, DATES[9:12])
    later.save(tmp_path / "later.nc")
    loaded = gpssm.load(tmp_path / "later.nc")
    same(of_forecast(loaded), DATES[12:16])
    assert loaded.dataset.experiments == later.dataset.experiments
    assert loaded.forecast(u=np.zeros((1, 1)), num_paths=2).units == {"y0": "m"}


def test_a_new_experiment_has_times_of_its_own():
    posterior = make_posterior(raw=[dated(9)])
    rows = dated(3, 20)
    same(of_forecast(posterior.condition(rows, new_experiment=True)), DATES[23:27])
    same(
        posterior.simulate(np.zeros((2, 1)), warmup=rows, num_paths=6).to_dataframe().index,
        DATES[23:25],
    )
    mixture = Stack.of({"one": posterior, "two": posterior}, [0.6, 0.4])
    for extend in (
        posterior.condition,
        posterior.learn,
        mixture.condition,
        lambda rows: posterior.predict(rows, num_paths=6),
        lambda rows: next(condition_at(mixture, rows, [1])),
    ):
        with pytest.warns(
            UserWarning, match=r"begin at 2024-03-31 06:00:00\+02:00, but 2024-03-31 03:15"
        ) as caught:
            extend(rows)
        # It points to the line that passed the rows.
        assert [warning.filename for warning in caught] == [__file__]


def test_controls_of_other_dates_are_warned_about():
    posterior = make_posterior(raw=[dated(9)])
    plan = pd.DataFrame({"u": 0.0, "note": "more than is needed"}, index=DATES)
    posterior.forecast(u=plan[9:], num_paths=6)
    with pytest.warns(UserWarning, match="the inputs begin at 2024-03-31 00:00"):
        posterior.forecast(u=plan, num_paths=6)


def test_axes_have_times_and_units():
    posterior = make_posterior(raw=[dated(9)])
    figure = posterior.forecast(u=np.zeros((4, 1)), num_paths=6).plot(
        history=posterior.dataset.experiments[0]
    )
    assert [panel.get_ylabel() for panel in figure.axes] == ["y0 [m]", "y1", "u"]
    assert figure.axes[-1].get_xlabel() == "when"
    drawn = [np.asarray(line.get_xdata()) for line in figure.axes[0].lines]
    # As the clock on the wall has them.
    assert [line[0] for line in drawn] == [
        DATES[one].tz_localize(None).to_datetime64() for one in (1, 9)
    ]


def test_rows_of_another_sampling_time_are_refused_by_every_method():
    steady = make_series(9)
    posterior = make_posterior(raw=[replace(steady, dt=0.1)])
    rows, slow = (replace(make_series(6), dt=dt) for dt in (0.1, 10.0))
    fitted = gpssm.fit(
        replace(make_series(30), dt=0.1),
        method="rrank",
        state_dim=1,
        num_warmup=4,
        num_draws=4,
        num_chains=1,
    )
    for method in (
        posterior.predict,
        posterior.condition,
        posterior.learn,
        fitted.update,
        lambda rows: posterior.simulate(rows.u[3:], warmup=rows[:3]),
    ):
        with pytest.raises(ValueError, match="rows are 10 apart, but those of the training data 0"):
            method(slow)
    assert posterior.predict(rows, num_paths=4).dt == 0.1
    with pytest.raises(ValueError, match="rows are 10 apart, but those of the training data 900 s"):
        make_posterior(raw=[dated(9)]).condition(slow)


def test_objects_of_benchmarks_are_taken_wherever_a_series_is():
    """They have u, y, a sampling time and a window, but no names: columns go by position."""
    series = replace(make_series(30, output_dim=1), dt=0.2, window=3)
    rows = {
        part: SimpleNamespace(
            u=series.u[begin:end],
            y=series.y[begin:end],
            sampling_time=dt,
            name="",
            state_initialization_window_length=3,
        )
        for part, begin, end, dt in (
            ("train", 0, 24, 0.2),
            ("test", 24, 30, 0.2),
            ("slow", 24, 30, 2.0),
        )
    }
    train, test, slow = rows.values()
    posterior = gpssm.fit(train, method="last", num_draws=4, num_chains=1, progress=False)
    assert posterior.dataset.experiments[0] == series[:24]
    both = gpssm.fit([train, train], method="last", num_draws=4, num_chains=1, progress=False)
    assert both.dataset.experiments == (series[:24], series[:24])
    options = {"num_paths": 8}
    for verb in (posterior.predict, posterior.simulate):
        np.testing.assert_array_equal(
            verb(test, **options).paths, verb(series[24:], **options).paths
        )
    simulated = posterior.simulate(test, warmup=train, **options)
    assert simulated.score(test) == simulated.score(series[24:])
    assert posterior.forecast(u=test, **options).score(test)["rmse"] > 0
    assert posterior.condition(test).current.rows == 30
    compared = gpssm.compare({"last": posterior}, test, num_paths=8, progress=False)
    assert np.isfinite(compared.scores["last"]["crps"])
    simulated.plot(actual=test, history=train)
    for verb in (posterior.predict, posterior.simulate, lambda rows: posterior.forecast(u=rows)):
        with pytest.raises(ValueError, match="rows are 2 apart, but those of the training data 0"):
            verb(slow)


def test_a_forecast_is_a_dataset_of_xarray():
    posterior = make_posterior(raw=[dated(9)])
    forecast = posterior.forecast(u=np.ones((4, 1)), num_paths=6)
    dataset = forecast.to_xarray()
    assert dict(dataset.sizes) == {"path": 6, "time": 4}
    assert dataset["y0"].attrs == {"units": "m"}
    np.testing.assert_array_equal(dataset["y0"], forecast.paths[:, :, 0])
    np.testing.assert_array_equal(dataset["u"], np.ones(4))
    mean = gpssm.Series.of(dataset[["y0"]].mean("path"), outputs="y0")
    np.testing.assert_array_equal(mean.time, forecast.time)
    np.testing.assert_allclose(mean.y[:, 0], forecast.mean[:, 0])
    plain = make_posterior(raw=[make_series(9)]).forecast(u=np.ones((4, 1)), num_paths=6)
    np.testing.assert_array_equal(plain.to_xarray()["step"], plain.steps)
