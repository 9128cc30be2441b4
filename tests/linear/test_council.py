"""The comparison of linear models: candidates, scores, ranking, and difficult systems."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from gpssm.data.series import Series
from gpssm.linear import kalman
from gpssm.linear.council import FOLDS, council, fit_last, fit_mean, fit_members, gaussian_crps
from gpssm.linear.state_space import RADIUS, spectral_radius, stabilise
from linear_systems import arx_series

SCORES = ("crps", "log_score", "rmse", "simulation")


def scaled(series):
    return Series((series.y - series.y.mean(0)) / series.y.std(0), series.u)


def plant(rows, outputs, inputs, seed=0):
    """A stable random plant of four states."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(4, 4))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
    B, C, x = rng.normal(size=(4, inputs)), rng.normal(size=(outputs, 4)), np.zeros(4)
    u, y = rng.normal(size=(rows, inputs)), np.zeros((rows, outputs))
    for t in range(rows):
        x = A @ x + B @ u[t] + 0.1 * rng.normal(size=4)
        y[t] = C @ x + 0.1 * rng.normal(size=outputs)
    return scaled(Series(y, u))


def is_complete(found, series):
    """Every member forecasts with finite moments, and every score is finite."""
    for name, model in found.models.items():
        models = kalman.stack([model])
        filtered = kalman.filter_states(models, series)
        mean, covariance = kalman.forecast(
            models, filtered, series.u, np.array([len(series) // 2]), 5
        )
        assert np.isfinite(mean).all(), name
        assert np.isfinite(covariance).all(), name
        assert all(np.isfinite(getattr(found.scores[name], field)).all() for field in SCORES), name


def test_the_members_and_their_ranks():
    found = council([scaled(arx_series(400))])
    # States beyond those of the plant may be worth nothing at all, and are then left out.
    assert {"arx", "arx-reg", "arx-memory", "last", "mean", "ss-1", "ss-2", "ss-3"} <= set(
        found.models
    )
    losses = [found.losses(name).mean() for name in found.models]
    assert losses == sorted(losses)
    assert found.best in ("arx", "ss-2", "ss-3", "arx-reg")
    assert found.orders[0] == 2
    assert not found.is_better("arx-memory", found.best)
    assert list(found.models)[-2:] == ["mean", "last"]
    assert found.is_better("arx", "mean")
    assert not found.is_better("mean", "arx")


def test_scores_are_those_of_the_windows():
    """The mean member: its forecasts of a window are the other rows' average, from every origin."""
    series = scaled(arx_series(300))
    found = council([series], horizon=10, members=("mean",))
    y = series.y[:, 0]
    for k, (low, high) in enumerate(FOLDS):
        first, end = round(low * 300), round(high * 300)
        rest = np.concatenate([y[:first], y[end:]])
        begin = max(first, 20)
        stride = max(1, (end - 10 - begin) // 40)
        rows = np.arange(begin, end - 9, stride)[:, None] + np.arange(10)
        error, std = y[rows] - rest.mean(), np.hypot(rest.std(), 0)
        np.testing.assert_allclose(
            found.scores["mean"].rmse[k], np.sqrt(np.mean(error**2)), rtol=1e-6
        )
        expected = -scipy.stats.norm.logpdf(y[rows], rest.mean(), std).mean()
        np.testing.assert_allclose(found.scores["mean"].log_score[k], expected, rtol=1e-6)
        np.testing.assert_allclose(
            found.scores["mean"].crps[k], gaussian_crps(error, std).mean(), rtol=1e-6
        )
        simulated = np.sqrt(np.mean((y[begin:end] - rest.mean()) ** 2))
        np.testing.assert_allclose(found.scores["mean"].simulation[k], simulated, rtol=1e-6)


def test_where_the_search_starts_decides_nothing():
    """Folds search from the hyper-parameters of all rows on: the held-out rows must not matter through these."""
    series = [scaled(arx_series(240))]
    far = {name: one + 3.0 for name, one in fit_members(series)[1].items()}
    for members in (("arx-reg",), ("arx-memory",)):
        models = [
            fit_members(series, members=members, start=start)[0][members[0]]
            for start in (None, far)
        ]
        np.testing.assert_allclose(models[0].process_cov, models[1].process_cov, rtol=0.01)
        np.testing.assert_allclose(models[0].transition, models[1].transition, atol=0.02)


def test_the_crps_of_a_gaussian_is_its_integral():
    def integrand(x, y):
        return (scipy.stats.norm.cdf(x, 0.0, 0.7) - (x >= y)) ** 2

    for y in (-1.3, 0.0, 2.0):
        whole = sum(
            scipy.integrate.quad(integrand, *ends, args=(y,))[0] for ends in ((-8, y), (y, 8))
        )
        assert gaussian_crps(np.array(y), np.array(0.7)) == pytest.approx(whole, abs=1e-7)


def test_a_long_dead_time_asks_for_a_long_memory():
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=600), np.zeros(600)
    for t in range(41, 600):
        y[t] = 0.7 * y[t - 1] + u[t - 40] + 0.1 * rng.normal()
    found = council([scaled(Series(y, u))])
    assert found.best == "arx-memory"
    assert all(found.is_better("arx-memory", name) for name in found.models if name != found.best)


def test_simulations_may_decide():
    series = scaled(arx_series(300))
    found = council([series], horizon="simulation", max_order=3)
    losses = [found.scores[name].simulation.mean() for name in found.models]
    assert losses == sorted(losses)
    assert {"ss-1", "ss-2", "ss-3"} == {name for name in found.models if name.startswith("ss")}


def test_several_series_with_missing_rows():
    series = [scaled(arx_series(rows, seed)) for seed, rows in enumerate((150, 90, 40))]
    y = series[0].y.copy()
    y[np.random.default_rng(0).random(150) < 0.1] = np.nan
    y[:40] = np.nan
    found = council([Series(y, series[0].u), *series[1:]], max_order=4)
    is_complete(found, series[1])
    assert found.is_better(found.best, "mean")


def test_six_outputs_and_five_inputs_of_few_rows():
    series = plant(200, 6, 5)
    is_complete(council([series], max_order=6), series)


@pytest.mark.slow
def test_many_rows():
    series = plant(4000, 1, 1)
    found = council([series])
    is_complete(found, series)
    assert found.orders[0] >= 3


def test_constant_and_duplicated_columns():
    series = plant(240, 2, 1)
    u = np.hstack([series.u, series.u, np.full((240, 1), 2.0)])
    y = np.hstack([series.y, series.y[:, :1]])
    y = np.hstack(
        [y, np.where(np.arange(240) < 200, 0.0, 1.0)[:, None]]
    )  # constant but in the last window
    is_complete(council([Series(y, u)], max_order=4), Series(y, u))


def test_an_output_that_never_changes():
    series = Series(np.zeros((120, 1)), np.random.default_rng(0).normal(size=(120, 1)))
    is_complete(council([series], max_order=3), series)


def test_so_few_rows_that_some_members_are_missing():
    series = scaled(arx_series(14))
    found = council([series], max_order=2)
    assert {"mean", "last", "ss-1"} <= set(found.models)


def test_a_random_walk_and_an_average():
    series = [scaled(arx_series(100))]
    walk, average = fit_last(series), fit_mean(series)
    np.testing.assert_allclose(walk.process_cov, [[np.mean(np.diff(series[0].y[:, 0]) ** 2)]])
    np.testing.assert_allclose(average.C, [[1.0]])
    np.testing.assert_allclose(average.d, [0.0], atol=1e-12)


def test_simulations_are_stable():
    """An unstable plant: forecasts follow it, and simulations stay where they are finite."""
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=(160, 1)), np.zeros(160)
    for t in range(1, 160):
        y[t] = 1.03 * y[t - 1] + 0.1 * u[t, 0] + 0.01 * rng.normal()
    models, _ = fit_members([Series(y / y.std(), u)])
    assert spectral_radius(models["arx"]) > RADIUS
    for model in models.values():
        steady = stabilise(model)
        assert spectral_radius(steady) <= RADIUS * (1 + 1e-6)
        long = kalman.simulate(
            kalman.stack([steady]), np.ones((1, 1, len(model.offset))), np.zeros((1, 1, 5000, 1))
        )
        assert np.isfinite(long).all()
