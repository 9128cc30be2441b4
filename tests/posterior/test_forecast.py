"""Forecasts: the distribution of paths against exact recursions and brute force, robustness, units,
and plots.
"""

import dataclasses

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

import kalman
from builders import make_model, make_series
from gpssm.core import metrics
from gpssm.core.metrics import fair_crps
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.methods import ARX
from gpssm.methods.spec import Spec
from gpssm.posterior.diagnostics import forecast_mean
from gpssm.posterior.draws import CurrentState, FilterState
from gpssm.posterior.filtering import noise_scale
from gpssm.posterior.forecast import Forecast, ForecastDiagnostics
from posteriors import linear_weights, make_posterior

mpl.use("Agg")
from matplotlib import pyplot

from gpssm.posterior.draws import model_of

CONTROLS = np.random.default_rng(0).normal(size=(40, 1))


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


def linear_posterior(rates, num_series=1, **settings):
    """Draws that differ in one thing: how fast the state grows, x' = rate · rotation · x + control + offset."""
    model = make_model("linear")
    rotation = np.array([[0.8, 0.6], [-0.6, 0.8]])
    control, offset = np.array([[0.3], [-0.2]]), np.array([0.1, -0.05])
    weights = np.stack(
        [linear_weights(model, rate * rotation, control, offset) for rate in np.ravel(rates)]
    )
    weights = weights.reshape(*np.shape(rates), *weights.shape[1:])
    raw = [make_series(8, seed=index) for index in range(num_series)]
    chains, draws = np.shape(rates)
    return make_posterior(model, raw, weights, {}, chains=chains, draws=draws, **settings)


def inside(posterior, u):
    """Inputs cut at the ends of the training range, to which the response is certain."""
    return np.clip(u, *posterior.dataset.input_range["u"])


def gaussian_recursion(posterior, rate, u, start):
    """Mean and covariance of y_t, in the user's units, of a linear model whose start is known."""
    model, scaler = posterior.model, posterior.dataset.scaler
    transition = rate * np.array([[0.8, 0.6], [-0.6, 0.8]])
    control, offset = np.array([[0.3], [-0.2]]), np.array([0.1, -0.05])
    C, d = np.asarray(model.likelihood.C), np.asarray(model.likelihood.d)
    R, Q = np.diag(np.exp(2 * model.likelihood.log_std)), np.diag(model.process_variance)
    mean, covariance, scale = start, np.zeros((2, 2)), np.diag(scaler.output_std)
    for row in scaler.scale_inputs(u):
        mean = transition @ mean + control @ row + offset
        covariance = transition @ covariance @ transition.T + Q
        yield scaler.unscale_mean(C @ mean + d), scale @ (C @ covariance @ C.T + R) @ scale


@pytest.mark.filterwarnings("ignore:Input u outside its training range")
def test_a_linear_model_follows_the_exact_gaussian_recursion():
    states = [np.broadcast_to(np.random.default_rng(1).normal(size=(9, 2)), (1, 2, 9, 2))]
    posterior = linear_posterior(
        [[0.9, 0.9]], states=states, scaler=Scaler((5.0, -1.0), (2.0, 0.3), (1.0,), (4.0,))
    )
    number = 6000
    u = inside(posterior, 1 + 4 * CONTROLS[:8])
    found = posterior.forecast(u=u, num_paths=number, bounds=None)
    free = posterior.forecast(u=u, num_paths=number, bounds=None, noise=False)
    for step, (mean, covariance) in enumerate(
        gaussian_recursion(posterior, 0.9, u, states[0][0, 0, -1])
    ):
        std = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(found.mean[step], mean, atol=4 * np.max(std) / np.sqrt(number))
        sample = np.cov(found.paths[:, step].T) / np.outer(std, std)
        np.testing.assert_allclose(
            sample, covariance / np.outer(std, std), atol=4 * np.sqrt(2 / number)
        )
        noise = np.square(posterior.dataset.scaler.output_std) * np.exp(
            2 * posterior.model.likelihood.log_std
        )
        np.testing.assert_allclose(
            free.std[step] ** 2 + noise, std**2, rtol=5 * np.sqrt(2 / number)
        )
        np.testing.assert_allclose(found.moments[1][:, step], np.broadcast_to(noise, (number, 2)))
        # y_t | x_t has the noise of one transition too, and its mixture over paths the moments of y_t.
        ahead, spread = (part[:, step] for part in found.moments_ahead)
        C = (
            np.asarray(posterior.model.likelihood.C)
            * np.array(posterior.dataset.scaler.output_std)[:, None]
        )
        expected = C**2 @ posterior.model.process_variance + noise
        np.testing.assert_allclose(spread, np.broadcast_to(expected, spread.shape))
        np.testing.assert_allclose(ahead.var(0) + spread[0], std**2, rtol=5 * np.sqrt(2 / number))
    # Both flags run the same states, so the means given the states are the same.
    np.testing.assert_allclose(free.paths, found.moments[0])


def test_paths_without_noise_are_the_mean_paths_of_their_draws():
    # A Hilbert basis has no residual. With next to no process noise nothing is left to chance, and draws differ in
    # kernel and weights.
    model = make_model("hilbert")
    leaves = {
        "log_process_std": np.full((2, 3, 2), -40.0),
        "kernel.log_variance": -0.1 * np.arange(12.0).reshape(2, 3, 2),
    }
    posterior = make_posterior(model, leaves=leaves)
    u = inside(posterior, CONTROLS[:10])
    found = posterior.forecast(u=u, num_paths=6, noise=False, index=0, bounds=None)
    expected = forecast_mean(posterior, u, index=0)
    np.testing.assert_allclose(found.paths, expected.reshape(6, 10, 2), rtol=1e-8)


def test_a_nonlinear_model_agrees_with_a_literal_loop():
    # With two inducing points the residual is as large as the process noise.
    posterior = make_posterior(make_model(num=2), chains=1, draws=2)
    number, steps = 2000, 4
    found = posterior.forecast(
        steps, CONTROLS, num_paths=2 * number, seed=3, bounds=None, noise=False
    )
    rng, u = np.random.default_rng(7), posterior.dataset.scaler.scale_inputs(CONTROLS)
    for draw in range(2):
        model, weights = model_of(posterior, 0, draw), posterior.draws.weights[0, draw]
        transition = jax.jit(model.transition())
        x = np.repeat(posterior.draws.states[-1][0, draw, -1:], number, axis=0)
        for step in range(steps):
            now = transition(x, np.repeat(u[step : step + 1], number, axis=0))
            variance = np.asarray(now.residual).T + np.asarray(model.process_variance)
            x = np.asarray(now.given(weights)) + np.sqrt(variance) * rng.normal(size=x.shape)
            y = posterior.dataset.scaler.unscale_mean(model.likelihood.moments(x)[0])
            ours = found.paths[draw * number : (draw + 1) * number, step]
            std = y.std(0)
            np.testing.assert_allclose(
                ours.mean(0), y.mean(0), atol=5 * np.sqrt(2 / number) * std.max()
            )
            np.testing.assert_allclose(ours.std(0), std, rtol=5 / np.sqrt(number))
        assert np.mean(now.residual) > 0.5 * np.mean(model.process_variance)


def test_a_shorter_forecast_is_the_beginning_of_a_longer_one():
    posterior = linear_posterior([[0.9, 1.1, 0.8], [1.6, 0.7, 0.9]])
    long, short = (posterior.forecast(horizon, CONTROLS, num_paths=60) for horizon in (20, 7))
    assert 0 < short.diagnostics.share_left < long.diagnostics.share_left < 0.5
    np.testing.assert_array_equal(long.paths[:, :7], short.paths)
    np.testing.assert_array_equal(long[:7].diagnostics.left_by_step, short.diagnostics.left_by_step)
    np.testing.assert_array_equal(long.moments[1][:, :7], short.moments[1])


def test_the_noise_of_a_path_does_not_depend_on_the_paths_beside_it(posterior):
    few, many = (
        posterior.forecast(5, CONTROLS, num_paths=number, bounds=1e9) for number in (30, 60)
    )
    np.testing.assert_allclose(
        many.paths.reshape(6, 10, 5, 2)[:, :5], few.paths.reshape(6, 5, 5, 2), rtol=1e-9
    )
    assert np.all(
        posterior.forecast(5, CONTROLS, num_paths=30, bounds=1e9, seed=1).paths != few.paths
    )


def test_a_few_unstable_draws_do_not_wreck_a_forecast():
    rates = np.full((1, 20), 0.8)
    stable = linear_posterior(rates)
    rates[0, 4] = 2.0
    posterior = linear_posterior(rates)
    found, expected = (one.forecast(30, CONTROLS, num_paths=1500) for one in (posterior, stable))
    assert np.abs(posterior.forecast(30, CONTROLS, num_paths=1500, bounds=1e30).mean).max() > 1e6
    assert found.diagnostics.share_left == pytest.approx(0.05, abs=0.005)
    assert np.all(np.diff(found.diagnostics.left_by_step) >= 0)
    scale = expected.std.max()
    np.testing.assert_allclose(found.mean[8:], expected.mean[8:], atol=0.1 * scale)
    np.testing.assert_allclose(found.std[8:], expected.std[8:], rtol=0.1)


def test_paths_that_left_are_copies_of_paths_that_stayed():
    posterior = linear_posterior([[0.8, 0.8, 0.8], [2.0, 2.0, 2.0]])
    found = posterior.forecast(20, CONTROLS, num_paths=60, bounds=10.0)
    assert found.diagnostics.share_left == 0.5
    assert "outside the training data: 50 %" in found.diagnostics.notes[0]
    same = np.all(found.paths[30:, None, -1] == found.paths[None, :30, -1], axis=-1)
    assert np.all(same.sum(1) == 1)


def test_once_most_paths_have_left_they_start_anew_from_their_own_training_states():
    posterior = linear_posterior([[2.0, 2.5, 2.2], [3.0, 2.0, 2.4]])
    with pytest.warns(UserWarning, match="Do not trust this forecast from step"):
        found = posterior.forecast(30, CONTROLS, num_paths=60, noise=False)
    left = found.diagnostics.left_by_step
    assert left[-1] == 1
    lost = int(np.argmax(left > 0.5))
    assert f"from step {lost + 1} on" in found.diagnostics.notes[0]
    # Each path that has left emits what one of the nine training states of its own draw does, at that step.
    states = np.repeat(posterior.draws.states[0].reshape(6, 1, 9, 2), 10, axis=1).reshape(60, 9, 2)
    emitted = posterior.model.likelihood.moments(states.reshape(-1, 2))[0].reshape(60, 9, 2)
    emitted = posterior.dataset.scaler.unscale_mean(emitted)
    anew = np.isclose(found.paths[:, lost, None], emitted, rtol=1e-9).all(-1).any(-1)
    assert np.mean(anew) == pytest.approx(left[lost])


def test_without_bounds_an_overflow_is_kept_and_reported():
    posterior = linear_posterior([[0.5, 1e30, 0.5]])
    with (
        np.errstate(all="ignore"),
        pytest.warns(UserWarning, match="values of this forecast are not finite"),
    ):
        found = posterior.forecast(20, CONTROLS, num_paths=3, bounds=None)
    assert found.diagnostics.share_left == pytest.approx(1 / 3)
    assert "Paths that overflowed: 33 %" in found.diagnostics.notes[0]
    assert not np.isfinite(found.paths).all()


def test_novelty_grows_away_from_the_inducing_points(posterior):
    pairs = zip(posterior.dataset.experiments, (0.0, 30.0), strict=True)
    starts = [np.zeros((2, 3, len(one) + 1, 2)) + place for one, place in pairs]
    moved = dataclasses.replace(
        posterior, draws=posterior.draws._replace(states=tuple(map(jnp.asarray, starts)))
    )
    near, far = (moved.forecast(1, CONTROLS, num_paths=30, index=index) for index in (0, 1))
    assert near.diagnostics.novelty[0] < 0.7
    assert far.diagnostics.novelty[0] == pytest.approx(1.0)


def with_scaler(posterior, scaler):
    return dataclasses.replace(
        posterior, dataset=dataclasses.replace(posterior.dataset, scaler=scaler)
    )


@pytest.mark.parametrize(("factor", "shift"), [(1000.0, 0.0), (1e-3, 7.0), (-1.0, 1.0)])
def test_units_are_the_users(posterior, factor, shift):
    old = posterior.dataset.scaler
    means = tuple(factor * value + shift for value in old.output_mean)
    inputs = tuple(factor * value + shift for value in old.input_mean)
    stds = (tuple(factor * value for value in stds) for stds in (old.output_std, old.input_std))
    changed = with_scaler(posterior, Scaler(means, next(stds), inputs, next(stds)))
    rows = tuple(
        dataclasses.replace(one, y=factor * one.y + shift, u=factor * one.u + shift)
        for one in posterior.dataset.experiments
    )
    dataset = dataclasses.replace(changed.dataset, experiments=rows)
    changed = dataclasses.replace(changed, dataset=dataset)
    ours = posterior.forecast(6, CONTROLS, num_paths=30)
    theirs = changed.forecast(6, factor * CONTROLS + shift, num_paths=30)
    np.testing.assert_allclose(theirs.paths, factor * ours.paths + shift, rtol=1e-6)
    np.testing.assert_allclose(theirs.std, abs(factor) * ours.std, rtol=1e-6)
    np.testing.assert_allclose(theirs.moments[1], factor**2 * ours.moments[1], rtol=1e-9)


def test_outputs_may_be_permuted(posterior):
    likelihood, scaler = (
        jax.tree.map(lambda leaf: leaf[::-1], posterior.model.likelihood),
        posterior.dataset.scaler,
    )
    means, stds = scaler.output_mean[::-1], scaler.output_std[::-1]
    turned = with_scaler(posterior, dataclasses.replace(scaler, output_mean=means, output_std=stds))
    turned = dataclasses.replace(
        turned, model=dataclasses.replace(posterior.model, likelihood=likelihood)
    )
    ours, theirs = (
        one.forecast(6, CONTROLS, num_paths=30, noise=False) for one in (posterior, turned)
    )
    np.testing.assert_allclose(theirs.paths, ours.paths[..., ::-1], rtol=1e-9)
    np.testing.assert_allclose(theirs.moments[1], ours.moments[1][..., ::-1], rtol=1e-9)


def test_each_series_has_its_own_end(posterior):
    first, last = (
        posterior.forecast(1, CONTROLS, num_paths=30, noise=False, index=index) for index in (0, -1)
    )
    assert (first.start, last.start) == (9, 5)
    alone = dataclasses.replace(
        posterior, draws=posterior.draws._replace(states=posterior.draws.states[::-1])
    )
    np.testing.assert_array_equal(
        alone.forecast(1, CONTROLS, num_paths=30, noise=False).paths, first.paths
    )
    assert np.all(first.paths != last.paths)


def test_a_cloud_says_where_the_paths_start(posterior):
    last = np.asarray(posterior.draws.states[-1])[:, :, -1:]
    weights = np.log(np.broadcast_to([1.0, 1e-300], (2, 3, 2)))
    particles = np.concatenate([last, last + 100], axis=2)
    state = FilterState(last[:, :, 0], np.zeros((2, 3, 2, 2)), np.ones((2, 3)), particles, weights)
    cloud = CurrentState(state, 12, None, np.zeros((0, 1)))
    found = dataclasses.replace(posterior, current=cloud).forecast(5, CONTROLS, num_paths=30)
    assert found.start == 12
    np.testing.assert_array_equal(found.paths, posterior.forecast(5, CONTROLS, num_paths=30).paths)


def test_a_model_without_controls_needs_none():
    raw = [make_series(8, input_dim=0, output_dim=1)]
    found = make_posterior(raw=raw).forecast(num_paths=6)
    assert found.paths.shape == (6, 30, 1)
    assert found.u.shape == (30, 0)


def test_controls_go_by_name_and_set_the_horizon():
    y, u = np.random.default_rng(3).normal(size=(2, 10, 2))
    posterior = make_posterior(
        make_model(input_dim=2), [Series(y, u, inputs=("pump", "valve"), outputs=("a", "b"))]
    )
    frame = pd.DataFrame({"valve": u[:, 1], "pump": u[:, 0]})
    by_name = posterior.forecast(u=frame, num_paths=6)
    assert by_name.horizon == 10
    assert (by_name.outputs, by_name.inputs) == (("a", "b"), ("pump", "valve"))
    np.testing.assert_array_equal(by_name.u, u)
    np.testing.assert_array_equal(posterior.forecast(4, u, num_paths=6).paths, by_name.paths[:, :4])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(horizon=5), r"\(u\) must be known at each of the 5 steps ahead: pass u with 5 rows"),
        (
            dict(horizon=41, u=CONTROLS),
            "at each of the 41 steps ahead: pass u with 41 rows; got 40",
        ),
        (dict(horizon=0, u=CONTROLS), "horizon must be a whole number of at least 1.*got 0"),
        (dict(u=np.zeros((5, 2))), "u must have 1 columns: u; got 2"),
        (dict(u=np.full((5, 1), np.nan)), "row 0 .counted from 0., of u is NaN or infinite"),
        (dict(u=CONTROLS, num_paths=0), "num_paths must be a whole number of at least 1, got 0"),
        (
            dict(u=CONTROLS, bounds=-1.0),
            "bounds must be a positive number or None; got -1",
        ),
        (dict(u=CONTROLS, index=2), "2 training series, counted from 0; got index 2"),
    ],
)
def test_bad_calls_say_what_was_expected_and_given(posterior, settings, message):
    with pytest.raises((ValueError, IndexError), match=message):
        posterior.forecast(**settings)


def test_surprise_widens_a_forecast_and_leaves_its_middle():
    """Paths of a linear model move apart by √s: equal steps of √s give equal steps of the paths."""
    posterior = kalman.linear_posterior([kalman.user_series(9)])
    rng = np.random.default_rng(0)
    mean, root = rng.normal(size=(1, 2, 2)), rng.normal(size=(1, 2, 2, 2))
    found = []
    for surprise in (1.0, 4.0, 9.0):
        state = FilterState(mean, root @ root.mT, np.full((1, 2), surprise))
        cloud = CurrentState(state, 9, None, np.zeros((0, 1)))
        forecast = dataclasses.replace(posterior, current=cloud).forecast(
            6, np.ones((6, 1)), num_paths=20
        )
        found.append((np.sqrt(float(noise_scale(jnp.array([surprise]))[0])), forecast.paths))
    (a, one), (b, two), (c, three) = found
    assert b > 1.9
    np.testing.assert_allclose((three - two) / (c - b), (two - one) / (b - a), atol=1e-9)


STEPS, WIDTH = 12, 2


def make_forecast(number=400, **settings):
    rng = np.random.default_rng(2)
    mean = np.cumsum(rng.normal(size=(STEPS, WIDTH)), axis=0) + np.array([20, 0])
    paths = mean + np.sqrt(np.arange(1, STEPS + 1))[:, None] * rng.normal(
        size=(number, STEPS, WIDTH)
    )
    known = dict(
        dt=0.5,
        moments=(paths, np.full(paths.shape, 0.3)),
        diagnostics=make_diagnostics(np.linspace(0, 0.03, STEPS)),
    )
    return Forecast(
        paths, ("level", "flow"), 50, np.ones((STEPS, 1)), ("pump",), **known | settings
    )


def make_diagnostics(left, **settings):
    return ForecastDiagnostics(np.asarray(left, float), np.zeros(len(left)), **settings)


def test_statistics_are_over_paths():
    forecast = make_forecast()
    assert forecast.horizon == STEPS
    np.testing.assert_allclose(forecast.mean, forecast.paths.mean(0))
    np.testing.assert_allclose(forecast.std, forecast.paths.std(0))
    np.testing.assert_allclose(forecast.median, np.median(forecast.paths, axis=0))
    low, high = forecast.interval(0.8)
    np.testing.assert_allclose(np.stack([low, high]), forecast.quantile([0.1, 0.9]))
    inside = np.mean((forecast.paths >= low) & (forecast.paths <= high), axis=0)
    np.testing.assert_allclose(inside, 0.8, atol=0.01)
    for level in (1, 1.5, 80):
        with pytest.raises(ValueError, match="a fraction between 0 and 1"):
            forecast.interval(level)


def test_a_table_has_a_row_a_step_and_named_columns():
    forecast = make_forecast()
    table = forecast.to_dataframe((0.9,))
    expected = [
        f"{name} {figure}"
        for name in ("level", "flow")
        for figure in ("mean", "std", "5%", "50%", "95%")
    ]
    assert list(table.columns) == ["time", *expected, "trusted"]
    assert table["trusted"].all()
    assert list(table.index) == list(range(50, 62))
    np.testing.assert_allclose(table["time"], 0.5 * table.index)
    np.testing.assert_allclose(table["flow 95%"], forecast.interval(0.9)[1][:, 1])
    assert "time" not in make_forecast(dt=None).to_dataframe()


def test_a_slice_cuts_everything():
    forecast = make_forecast()
    part = forecast[3:7]
    assert (part.horizon, part.start, len(part.u), part.dt) == (4, 53, 4, 0.5)
    np.testing.assert_array_equal(part.paths, forecast.paths[:, 3:7])
    np.testing.assert_array_equal(part.moments[1], forecast.moments[1][:, 3:7])
    assert part.diagnostics.share_left == forecast.diagnostics.left_by_step[6]
    assert make_forecast(moments=None, diagnostics=None)[:2].moments is None
    assert forecast[-2:].start == 60
    for wrong in (slice(None, None, 2), slice(5, 5)):
        with pytest.raises(ValueError, match="must be contiguous and not empty"):
            forecast[wrong]
    with pytest.raises(TypeError, match=r"supports slices, forecast\[a:b\]; got 3"):
        forecast[3]


def test_scores_are_those_of_the_metrics():
    forecast = make_forecast()
    actual = forecast.paths[7] + 0.1
    expected = metrics.score(forecast.paths, actual, levels=(0.9,), moments=forecast.moments)
    longer = np.vstack([actual, np.full((5, 2), 1e9)])
    assert forecast.score(longer, levels=(0.9,)) == expected
    swapped = Series(longer[:, ::-1], outputs=("flow", "level"))
    assert forecast.score(swapped, levels=(0.9,)) == expected
    with pytest.raises(
        ValueError,
        match=r"12 steps and needs the same number .* got 5. Cut the forecast, forecast\[:5\]",
    ):
        forecast.score(actual[:5])


def test_rows_are_matched_by_time():
    dates = pd.date_range("2024-03-31", periods=100, freq="h", tz="Europe/Berlin", name="when")
    rows = Series(np.arange(200.0).reshape(100, 2), outputs=("level", "flow"), time=dates)
    forecast = make_forecast(clock=rows.clock)
    np.testing.assert_array_equal(forecast.rows_of(rows), rows.y[50:62])
    np.testing.assert_array_equal(forecast.rows_of(rows[45:]), rows.y[50:62])
    np.testing.assert_array_equal(forecast[3:5].rows_of(rows.to_dataframe()), rows.y[53:55])
    np.testing.assert_array_equal(forecast.rows_of(rows.y), rows.y[:12])
    gaps = rows.to_dataframe().drop(index=dates[48])
    np.testing.assert_array_equal(forecast.rows_of(gaps), rows.y[50:62])
    message = r"of 2024-04-02 03:00:00\+02:00 to .* have no entry at 2024-04-02 03:00:00\+02:00"
    for other in (rows[70:], rows[:40], gaps.iloc[60:]):
        with pytest.raises(ValueError, match=message):
            forecast.score(other)
    with pytest.raises(ValueError, match=r"have no entry at 2024-04-02 13:00"):
        forecast.score(rows[:60])
    # Rows that are only counted by their sampling time have no time to match.
    counted = Series(rows.y, outputs=rows.outputs, dt=1.0)
    np.testing.assert_array_equal(forecast.rows_of(counted[70:]), rows.y[70:82])
    by_step = make_forecast(clock=Series(rows.y, dt=0.1).axis)
    with pytest.raises(ValueError, match="rows are 1 apart"):
        by_step.score(counted)


def test_steps_outside_of_the_training_data_are_marked():
    u = np.ones((STEPS, 1))
    u[4:6] = 3.5
    left = np.where(np.arange(STEPS) < 9, 0.02, 0.1)
    shown = make_diagnostics(left, u=u, input_range={"pump": (0.0, 2.0)})
    forecast = make_forecast(diagnostics=shown)
    expected = ~np.isin(np.arange(STEPS), [4, 5, 9, 10, 11])
    np.testing.assert_array_equal(forecast.trusted, expected)
    np.testing.assert_array_equal(forecast.to_dataframe()["trusted"], expected)
    np.testing.assert_array_equal(forecast[5:10].trusted, expected[5:10])
    np.testing.assert_allclose(shown.excursion[4], 0.75)
    assert "Input pump outside its training range: 1 to 3.5, in training 0 to 2" in str(forecast)
    slight = dataclasses.replace(shown, u=np.full((STEPS, 1), 2.05))
    assert make_forecast(diagnostics=slight).trusted[:9].all()


@pytest.mark.filterwarnings("ignore:Input u outside its training range")
def test_the_response_to_inputs_outside_of_training_is_between_none_and_twice_that_of_the_model():
    posterior = linear_posterior([[0.9]])
    low, high = posterior.dataset.input_range["u"]
    edge = np.array([[high], [low], [high]])
    u = edge + np.array([[1.0], [-2.0], [0.0]])
    settings = {"num_paths": 3000, "bounds": None, "noise": False}
    at_edge, beyond = (posterior.forecast(u=inputs, **settings).paths for inputs in (edge, u))
    # A linear model without noise: the response to the excess by its own recursion.
    model = posterior.model
    state, response = np.zeros(2), []
    for row in (u - edge) / np.array(posterior.dataset.scaler.input_std):
        state = 0.9 * np.array([[0.8, 0.6], [-0.6, 0.8]]) @ state + np.array([0.3, -0.2]) * row
        response.append(np.asarray(model.likelihood.C) @ state)
    response = np.array(response) * np.array(posterior.dataset.scaler.output_std)
    gains = (beyond - at_edge) / response
    np.testing.assert_allclose(gains, np.broadcast_to(gains[:, :1, :1], gains.shape), rtol=1e-6)
    gain = gains[:, 0, 0]
    assert kstest(gain, "uniform", (0, 2)).pvalue > 1e-3
    assert abs(np.corrcoef(gain, at_edge[:, 0, 0])[0, 1]) < 4 / np.sqrt(len(gain))


@pytest.mark.filterwarnings("ignore:Input u outside its training range")
def test_linear_models_extrapolate_by_assumption():
    posterior = dataclasses.replace(linear_posterior([[0.9]]), spec=Spec(method=ARX()))
    edge = np.full((3, 1), posterior.dataset.input_range["u"][1])
    settings = {"num_paths": 50, "bounds": None, "noise": False}
    at_edge, beyond = (
        posterior.forecast(u=inputs, **settings).paths for inputs in (edge, edge + 1)
    )
    np.testing.assert_allclose(np.ptp(beyond - at_edge, axis=0), 0, atol=1e-9)


def test_a_forecast_far_outside_of_the_inputs_of_training_warns():
    posterior = make_posterior()
    low, high = posterior.dataset.input_range["u"]
    u = np.full((4, 1), high)
    u[2] = high + 1.1 * (high - low)
    with pytest.warns(UserWarning, match="Input u outside its training range.* from step 3 on"):
        found = posterior.forecast(u=u, num_paths=6)
    np.testing.assert_array_equal(found.trusted[:3], [True, True, False])
    delayed = dataclasses.replace(
        posterior, dataset=dataclasses.replace(posterior.dataset, delay=(1,))
    )
    with pytest.warns(UserWarning, match="from step 4 on"):
        found = delayed.forecast(u=u, num_paths=6)
    np.testing.assert_array_equal(found.trusted, [True, True, True, False])


def test_text_says_what_it_is():
    forecast = make_forecast(diagnostics=make_diagnostics(np.full(STEPS, 0.1)))
    assert repr(forecast) == "Forecast(12 steps from row 50, 400 paths, outputs=('level', 'flow'))"
    text = str(forecast)
    assert "level 95%" in text
    assert "note: Paths outside the training data: 10 %" in text
    assert len(text.splitlines()) == 1 + 2 + STEPS + 1


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ([0.0, 0.05], []),
        ([0.0, 0.06], ["outside the training data: 6 %"]),
        ([0.2, 0.6], ["outside the training data: 60 %", "Do not trust"]),
        ([0.2, 1.0, 1.0], ["outside the training data: 100 %", "Do not trust", "from step 2 on"]),
    ],
)
def test_notes_get_louder(left, words):
    notes = make_diagnostics(left).notes
    assert len(notes) == bool(words)
    assert all(word in notes[0] for word in words)


def test_a_plot_has_a_panel_an_output_with_all_that_was_asked_for():
    forecast = make_forecast()
    history = Series(np.arange(100.0).reshape(50, 2), outputs=("level", "flow"))
    figure = forecast.plot(actual=forecast.paths[0], history=history, levels=(0.5, 0.8, 0.95))
    assert [panel.get_ylabel() for panel in figure.axes] == ["level", "flow", "pump"]
    for column, panel in enumerate(figure.axes[:2]):
        lines = {line.get_label(): line for line in panel.lines}
        np.testing.assert_allclose(lines["median"].get_ydata(), forecast.median[:, column])
        np.testing.assert_allclose(lines["actual"].get_ydata(), forecast.paths[0, :, column])
        np.testing.assert_allclose(lines["history"].get_ydata(), history.y[-2 * STEPS :, column])
        assert lines["history"].get_xdata()[-1] == 49 * 0.5
        assert lines["median"].get_xdata()[0] == 50 * 0.5
        assert len(panel.collections) == 3
    pyplot.close(figure)


def test_the_crps_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    paths, actual = rng.normal(size=(7, 3, 2)), rng.normal(size=(3, 2))
    actual[1, 0] = np.nan
    pairs = np.abs(paths[:, None] - paths[None]).sum((0, 1)) / (7 * 6)
    expected = np.abs(paths - actual).mean(0) - 0.5 * pairs
    np.testing.assert_allclose(fair_crps(paths - actual), expected)
