"""Prediction along a series against the Kalman filter's, and free runs of new experiments."""

import numpy as np
import pytest

from kalman import SCALER, kalman, linear_model, linear_posterior, move, output_moments, user_series

TRAIN, ROWS = user_series(12, seed=1), user_series(15)


@pytest.fixture(scope="module")
def posterior():
    return linear_posterior([TRAIN], chains=2, draws=4)


def exact_predictions(steps):
    """Means and standard deviations of y_t given the rows up to t − steps of a new experiment."""
    model, scaled = linear_model(), SCALER.scale(ROWS)
    filtered, found = kalman(model, scaled), []
    for row in range(len(ROWS)):
        origin = max(row - steps + 1, 0)
        mean, cov = (np.zeros(2), np.eye(2)) if origin == 0 else (part[origin - 1] for part in filtered[:2])
        for control in scaled.u[origin : row + 1]:
            mean, cov = move(model, mean, cov, control)
        found.append(output_moments(model, mean, cov))
    return map(np.array, zip(*found, strict=True))


@pytest.mark.parametrize("steps", [1, 4, 99])
def test_predictions_are_the_kalman_filters(posterior, steps):
    settings = dict(new_experiment=True, num_paths=4000, num_particles=500)
    predicted = posterior.predict(ROWS, steps, **settings)
    mean, std = exact_predictions(steps)
    np.testing.assert_allclose(predicted.mean / std, mean / std, atol=0.08)
    np.testing.assert_allclose(predicted.std / std, 1, atol=0.06)
    assert predicted.paths.shape == (4000, 15, 2)
    np.testing.assert_array_equal(predicted.u, ROWS.u)
    assert predicted.start == 0
    assert predicted.diagnostics.left_by_step.shape == (15,)


def test_prediction_follows_training_or_what_has_been_conditioned_on(posterior):
    whole = posterior.predict(ROWS, num_paths=3, noise=False)
    rest = posterior.condition(ROWS[:5]).predict(ROWS[5:], num_paths=3, noise=False)
    assert (whole.start, rest.start) == (12, 17)
    # A draw has the same random numbers at a row, whether all draws are filtered or those of three paths.
    np.testing.assert_allclose(rest.paths, whole.paths[:, 5:], rtol=1e-9)
    np.testing.assert_array_equal(whole.paths, whole.moments[0])


def test_without_warmup_the_state_starts_from_the_prior(posterior):
    model, u = linear_model(), ROWS.u[:6]
    run = posterior.simulate(u, num_paths=8000, num_particles=1000)
    mean, cov = np.zeros(2), np.eye(2)
    for step, control in enumerate(SCALER.scale_inputs(u)):
        mean, cov = move(model, mean, cov, control)
        expected, std = output_moments(model, mean, cov)
        np.testing.assert_allclose(run.mean[step] / std, expected / std, atol=0.07)
        np.testing.assert_allclose(run.std[step] / std, 1, atol=0.05)
    assert run.start == 0


def test_simulation_sees_the_warmup_and_nothing_else(posterior):
    run = posterior.simulate(ROWS.u[5:], warmup=ROWS[:5], num_paths=50)
    start = posterior.condition(ROWS[:5], new_experiment=True)
    np.testing.assert_array_equal(run.paths, start.forecast(u=ROWS.u[5:], num_paths=50).paths)
    assert run.start == 5
    short = posterior.condition(user_series(3)).simulate(ROWS.u[5:], warmup=ROWS[:5], num_paths=50, horizon=2)
    np.testing.assert_allclose(short.paths, run.paths[:, :2], rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1; got 0"),
        ({"steps": 1.5}, "steps must be"),
        ({"num_paths": 0}, "num_paths must be"),
        ({"num_particles": 0}, "num_particles must be"),
    ],
)
def test_bad_calls_are_told_what_to_do(posterior, settings, message):
    with pytest.raises(ValueError, match=message):
        posterior.predict(ROWS, **settings)
    with pytest.raises(ValueError, match="the model has 1 controls"):
        posterior.simulate()
