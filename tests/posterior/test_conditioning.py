"""New rows: the state after them, predictions along them and simulations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model, make_series
from gpssm.core import linalg
from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM, smooth
from gpssm.posterior.conditioning import LOOKBACK, condition_at
from gpssm.posterior.filtering import run_filter
from kalman import SCALER, kalman, linear_model, linear_posterior, move, output_moments, user_series
from posteriors import make_posterior


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


@pytest.fixture(scope="module")
def rows():
    return make_series(6, missing=True, seed=3)


@pytest.fixture(scope="module")
def conditioned(posterior, rows):
    return posterior.condition(rows)


def assert_same_cloud(first, second):
    assert first.current.clock == second.current.clock
    assert first.current.rows == second.current.rows
    np.testing.assert_array_equal(first.current.past, second.current.past)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
        first.current.state,
        second.current.state,
    )


def moments(posterior):
    """Mean and covariance of the state over all draws."""
    state = jax.tree.map(np.concatenate, posterior.current.state)
    between = np.cov(state.mean.T, bias=True)
    return state.mean.mean(0), state.covariance.mean(0) + between


def test_the_old_posterior_is_left_as_it_was_and_shares_its_draws(posterior, rows, conditioned):
    assert posterior.current is None
    assert conditioned.draws is posterior.draws
    assert conditioned.current.state.mean.shape == (2, 3, 2)
    assert conditioned.current.state.particles is None
    assert conditioned.current.rows == 5 + 6
    assert posterior.condition(rows, index=0).current.rows == 9 + 6
    before = jax.tree.map(np.copy, conditioned.current.state)
    conditioned.condition(rows)
    jax.tree.map(np.testing.assert_array_equal, conditioned.current.state, before)


def test_rows_one_at_a_time_give_the_same_cloud_and_compile_once(posterior, rows, conditioned):
    current = posterior.condition(rows[:1])
    compiled = []

    def listen(event, *_, **__):
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for row in range(1, 6):
            current = current.condition(rows[row : row + 1])
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in compiled if "compile" in event]
    assert_same_cloud(current, conditioned)


def test_other_seeds_give_other_particles(posterior, rows, conditioned):
    first, second = (
        posterior.condition(rows, seed=seed, num_particles=8).current.state for seed in (0, 1)
    )
    assert np.all(first.particles != second.particles)
    assert_same_cloud(
        posterior.condition(rows, seed=1), conditioned
    )  # a Gaussian is not left to chance


def test_a_new_experiment_starts_from_the_prior():
    rows = user_series(20)
    posterior = linear_posterior([user_series(12, seed=1)], draws=4)
    found = posterior.condition(rows, new_experiment=True, num_particles=2000)
    exact = kalman(linear_model(), SCALER.scale(rows))
    mean, cov = moments(found)
    np.testing.assert_allclose(mean, exact.means[-1], atol=0.02)
    np.testing.assert_allclose(cov, exact.covariances[-1], atol=0.015)
    assert found.current.rows == 20
    forecast = found.forecast(u=rows.u[:1], num_paths=8000)
    state = move(linear_model(), exact.means[-1], exact.covariances[-1], SCALER.scale(rows).u[0])
    expected, std = output_moments(linear_model(), *state)
    np.testing.assert_allclose(forecast.mean[0] / std, expected / std, atol=0.05)
    np.testing.assert_allclose(forecast.std[0] / std, 1, atol=0.04)
    assert forecast.start == 20
    assert_same_cloud(found, found.condition(rows, new_experiment=True, num_particles=2000))


def test_after_training_the_state_is_what_a_filter_of_all_rows_finds():
    # A slow system, and outputs missing at the end: new data must be able to correct the last
    # training states.
    turning = 0.98 * np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])
    model = linear_model(**{"mean.transition": turning, "log_process_std": np.log([0.1, 0.1])})
    u = user_series(44).u
    y = model.simulate(jax.random.key(5), jnp.asarray(SCALER.scale_inputs(u)), jnp.zeros((2, 4))).y
    missing = np.abs(np.arange(44) - 34.5)[:, None] < 5
    train, rows = Series(np.where(missing, np.nan, SCALER.unscale_mean(y)), u).split(40)
    states = smoothed_draws(model, SCALER.scale(train), 300)
    assert 10 < LOOKBACK < 40
    found = linear_posterior([train], model, draws=300, states=[states[None]]).condition(rows)
    before = kalman(model, SCALER.scale(train))
    exact = kalman(model, SCALER.scale(rows), before.means[-1], before.covariances[-1])
    mean, cov = moments(found)
    spread = np.sqrt(np.diagonal(exact.covariances[-1]))
    np.testing.assert_allclose(mean / spread, exact.means[-1] / spread, atol=0.1)
    np.testing.assert_allclose(
        cov / np.outer(spread, spread), exact.covariances[-1] / np.outer(spread, spread), atol=0.1
    )


def smoothed_draws(model, series, number):
    """Paths from the exact smoothing posterior of the linear model."""
    mean, likelihood = model.mean, model.likelihood
    noises = jnp.diag(model.process_variance), jnp.exp(likelihood.log_std)
    linear = LinearSSM(
        mean.transition, mean.input_map, mean.offset, likelihood.C, likelihood.d, *noises
    )
    smoothed = smooth(linear, series)
    draws = jax.random.normal(jax.random.key(4), (number, *smoothed.mean.shape))
    return np.asarray(
        smoothed.mean[None] + jax.vmap(lambda one: linalg.solve_upper(smoothed.factor, one))(draws)
    )


def test_condition_at_is_condition_on_the_first_rows(posterior, rows, conditioned):
    at = list(condition_at(posterior, rows, [0, 1, 6]))
    assert [one.current.rows for one in at] == [5, 6, 11]
    assert_same_cloud(at[1], posterior.condition(rows[:1]))
    assert_same_cloud(at[2], conditioned)


def test_condition_at_passes_over_the_series_once(posterior, rows, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "gpssm.posterior.conditioning.run_filter",
        lambda *args: seen.append(len(args[3])) or run_filter(*args),
    )
    passing = condition_at(posterior, rows, range(1, 7))
    next(passing)
    assert seen == [5, 1]  # the training series' rows, and the first new one
    assert len(list(passing)) == 5
    assert seen == [5] + 6 * [1]


def test_columns_go_by_name_and_no_controls_will_do():
    names = {"outputs": ("level", "flow")}
    train, rows = (Series(make_series(6, 0, seed=seed).y, **names) for seed in (0, 1))
    posterior = make_posterior(make_model(input_dim=0), [train])
    swapped = Series(rows.y[:, ::-1], outputs=("flow", "level"))
    assert_same_cloud(posterior.condition(rows), posterior.condition(swapped))
    with pytest.raises(ValueError, match=r"must have 2 columns: level, flow.*unknown: depth"):
        posterior.condition(Series(rows.y, outputs=("level", "depth")))
    with pytest.raises(ValueError, match="the model has no u"):
        posterior.condition(make_series(6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, s: p.condition([s, s]), TypeError, "one series at a time.*list of 2"),
        (lambda p, s: p.condition(s.y), ValueError, "u must have 1 columns: u; got 0"),
        (
            lambda p, s: p.condition(make_series(6, output_dim=1)),
            ValueError,
            "y must have 2 columns.*got 1",
        ),
        (
            lambda p, s: p.condition(s, num_particles=1),
            ValueError,
            "num_particles must be .* at least 2, got 1",
        ),
        (lambda p, s: p.condition(s, index=2), IndexError, "2 training series.*got index 2"),
        (
            lambda p, s: p.condition(s).condition(s, num_particles=8),
            ValueError,
            "a Gaussian stands for the.*got 8",
        ),
        (
            lambda p, s: p.condition(s, num_particles=8).condition(s, num_particles=9),
            ValueError,
            "8 particles stand for the.*got 9",
        ),
        (
            lambda p, s: condition_at(p, s, [2, 1]),
            ValueError,
            "rows must increase from 0 to at most 6.*got \\[2, 1\\]",
        ),
        (lambda p, s: condition_at(p, s, [7]), ValueError, "at most 6"),
    ],
)
def test_bad_calls_are_told_what_to_do(posterior, rows, call, error, message):
    with pytest.raises(error, match=message):
        call(posterior, rows)


TRAIN, ROWS = user_series(12, seed=1), user_series(15)


@pytest.fixture(scope="module")
def linear():
    return linear_posterior([TRAIN], chains=2, draws=4)


def exact_predictions(steps):
    """Means and standard deviations of y_t given the rows up to t − steps of a new experiment."""
    model, scaled = linear_model(), SCALER.scale(ROWS)
    filtered, found = kalman(model, scaled), []
    for row in range(len(ROWS)):
        origin = max(row - steps + 1, 0)
        mean, cov = (
            (np.zeros(2), np.eye(2)) if origin == 0 else (part[origin - 1] for part in filtered[:2])
        )
        for control in scaled.u[origin : row + 1]:
            mean, cov = move(model, mean, cov, control)
        found.append(output_moments(model, mean, cov))
    return map(np.array, zip(*found, strict=True))


@pytest.mark.parametrize("steps", [1, 4, 99])
def test_predictions_are_the_kalman_filters(linear, steps):
    settings = dict(new_experiment=True, num_paths=2000, num_particles=400)
    predicted = linear.predict(ROWS, steps, **settings)
    mean, std = exact_predictions(steps)
    np.testing.assert_allclose(predicted.mean / std, mean / std, atol=0.08)
    np.testing.assert_allclose(predicted.std / std, 1, atol=0.06)
    assert predicted.paths.shape == (2000, 15, 2)
    np.testing.assert_array_equal(predicted.u, ROWS.u)
    assert predicted.start == 0
    assert predicted.diagnostics.left_by_step.shape == (15,)


def test_prediction_follows_training_or_what_has_been_conditioned_on(linear):
    whole = linear.predict(ROWS, num_paths=3, noise=False)
    rest = linear.condition(ROWS[:5]).predict(ROWS[5:], num_paths=3, noise=False)
    assert (whole.start, rest.start) == (12, 17)
    # A draw has the same random numbers at a row, whether all draws are filtered or those of three
    # paths.
    np.testing.assert_allclose(rest.paths, whole.paths[:, 5:], rtol=1e-9)
    np.testing.assert_array_equal(whole.paths, whole.moments[0])


def test_without_warmup_the_state_starts_from_the_prior(linear):
    model, u = linear_model(), ROWS.u[:6]
    run = linear.simulate(u, num_paths=8000, num_particles=1000)
    mean, cov = np.zeros(2), np.eye(2)
    for step, control in enumerate(SCALER.scale_inputs(u)):
        mean, cov = move(model, mean, cov, control)
        expected, std = output_moments(model, mean, cov)
        np.testing.assert_allclose(run.mean[step] / std, expected / std, atol=0.07)
        np.testing.assert_allclose(run.std[step] / std, 1, atol=0.05)
    assert run.start == 0


def test_simulation_sees_the_warmup_and_nothing_else(linear):
    run = linear.simulate(ROWS.u[5:], warmup=ROWS[:5], num_paths=50)
    start = linear.condition(ROWS[:5], new_experiment=True)
    np.testing.assert_array_equal(run.paths, start.forecast(u=ROWS.u[5:], num_paths=50).paths)
    assert run.start == 5
    short = linear.condition(user_series(3)).simulate(
        ROWS.u[5:], warmup=ROWS[:5], num_paths=50, horizon=2
    )
    np.testing.assert_allclose(short.paths, run.paths[:, :2], rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1.5}, "steps must be"),
        ({"num_paths": 0}, "num_paths must be"),
        ({"num_particles": 0}, "num_particles must be"),
    ],
)
def test_bad_predictions_are_told_what_to_do(linear, settings, message):
    with pytest.raises(ValueError, match=message):
        linear.predict(ROWS, **settings)
    with pytest.raises(ValueError, match=r"the inputs of the model \(u\) must be known"):
        linear.simulate()
