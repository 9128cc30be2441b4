"""State-space models from a regression: nested, in innovations form, and equal to the true
model.
"""

import numpy as np
import pytest
import scipy.linalg

from gpssm.data.series import Series
from gpssm.linear import arx, kalman
from gpssm.linear.arx import innovations_form, reduce, stable_gain
from gpssm.linear.state_space import LinearSSM
from linear_systems import arx_series, simulate


def system():
    """Two resonant modes, two outputs, one input."""
    angles, A = (0.3, 1.1), np.zeros((4, 4))
    for k, angle in enumerate(angles):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        A[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = 0.93 * turn
    rng = np.random.default_rng(0)
    C = rng.normal(size=(2, 4))
    return LinearSSM(
        A, rng.normal(size=(4, 1)), np.zeros(4), C, np.zeros(2), 1e-3 * np.eye(4), np.full(2, 0.05)
    )


def components(series, order=8):
    return reduce(arx.regress_regularised(series), series, order, 30)


def test_components_are_nested_and_have_unit_variance():
    series = [arx_series(300), arx_series(150, seed=1)]
    small, large = components(series, 2), components(series, 6)
    np.testing.assert_allclose(small.before, large.before[:, :2], atol=1e-8)
    np.testing.assert_allclose(large.before.std(0), 1.0, rtol=1e-3)
    first, second = (len(one) - 20 for one in series)
    np.testing.assert_allclose(large.after[: first - 1], large.before[1:first])
    assert len(large.before) == first + second == len(large.y)
    assert (np.diff(large.singular_values) <= 0).all()


def test_the_order_shows_in_the_singular_values_and_the_poles_are_found():
    series = simulate(system(), 1500)
    found = components([series])
    worth = found.singular_values / found.singular_values[0]
    assert worth[3] > 4 * worth[4]
    poles = np.linalg.eigvals(innovations_form(found, 4).transition[:4, :4])
    expected = np.linalg.eigvals(system().transition)
    gaps = np.abs(poles[:, None] - expected[None]).min(1)
    assert gaps.max() < 0.03


def test_innovations_are_those_of_the_components():
    """The filter of the model along the rows makes the errors that least squares left."""
    series = arx_series(300)
    found = components([series], 3)
    model = innovations_form(found, 3)
    z, u, y = found.before, found.u, found.y
    inputs = np.hstack([z, u, np.ones((len(z), 1))])
    errors = y - inputs @ np.linalg.lstsq(inputs, y, rcond=None)[0]
    np.testing.assert_allclose(
        model.process_cov[-1, -1], errors.T @ errors / (len(z) - 5), rtol=1e-4
    )
    filtered = kalman.filter_states(kalman.stack([model]), series)
    means, covariances = kalman.forecast(
        kalman.stack([model]), filtered, series.u, np.arange(100, 300), 1
    )
    np.testing.assert_allclose(covariances[0, :, 0, 0, 0], model.process_cov[-1, -1], rtol=1e-3)
    error = series.y[100:] - means[0, :, 0]
    assert np.mean(error**2) == pytest.approx(np.mean(errors[80:] ** 2), rel=0.05)


def test_the_state_holds_the_output():
    model = innovations_form(components([simulate(system(), 300)]), 3)
    np.testing.assert_array_equal(model.C, np.eye(2, 5, 3))
    assert np.linalg.matrix_rank(model.process_cov) == 2
    assert not model.noise_std.any()


def test_missing_outputs_leave_rows_out():
    series = simulate(system(), 300, missing=0.05)
    model = innovations_form(components([series]), 4)
    assert all(np.isfinite(leaf).all() for leaf in model)


def test_an_order_beyond_what_there_is_is_what_there_is():
    series = Series(np.random.default_rng(0).normal(size=(12, 1)))
    found = components([series], 8)
    assert found.before.shape[1] <= 3
    assert innovations_form(found, 8).transition.shape[0] == found.before.shape[1] + 1


@pytest.mark.parametrize(("order", "width"), [(1, 1), (3, 2), (4, 1)])
def test_a_stable_gain_keeps_the_law_of_the_outputs(order, width):
    """Autocovariances by Lyapunov's equation, before and after."""
    rng = np.random.default_rng(order)
    transition = rng.normal(size=(order, order))
    transition *= 0.8 / np.abs(np.linalg.eigvals(transition)).max()
    emission = rng.normal(size=(width, order))
    gain = 10 * rng.normal(size=(order, width))
    covariance = 0.1 * np.eye(width) + 0.05

    def autocovariances(gain, covariance):
        noise = gain @ covariance @ gain.T
        spread = scipy.linalg.solve_discrete_lyapunov(transition, noise)
        cross = transition @ spread @ emission.T + gain @ covariance
        powers = [np.linalg.matrix_power(transition, lag) for lag in range(5)]
        return [
            emission @ spread @ emission.T + covariance,
            *(emission @ power @ cross for power in powers),
        ]

    def radius(gain):
        return np.abs(np.linalg.eigvals(transition - gain @ emission)).max()

    assert radius(gain) > 1
    stable, larger = stable_gain(transition, emission, gain, covariance)
    assert radius(stable) < 1
    np.testing.assert_allclose(
        autocovariances(stable, larger), autocovariances(gain, covariance), atol=1e-9
    )
    again, same = stable_gain(transition, emission, stable, larger)
    np.testing.assert_array_equal(again, stable)
    np.testing.assert_array_equal(same, larger)


def test_the_filter_of_a_reduction_does_not_diverge():
    """Five tanks that react to five inputs, of which four components leave much out."""
    rng = np.random.default_rng(0)
    u = np.repeat(rng.uniform(-2, 2, size=(30, 5)), 8, axis=0)
    y = np.zeros((240, 5))
    for row in range(1, 240):
        y[row] = 0.8 * y[row - 1] + 0.3 * np.tanh(u[row - 1]) + 0.1 * y[row - 1, ::-1]
    y += 0.1 * rng.normal(size=y.shape)
    long = arx.regress_regularised([Series(y[:120], u[:120])])
    model = innovations_form(reduce(long, [Series(y[:120], u[:120])], 4, 30), 4)
    hidden, gain = model.transition[:4, :4], model.process_cov[:4, 4:]
    gain = gain @ np.linalg.inv(model.process_cov[4:, 4:])
    predictor = hidden - gain @ model.transition[4:, :4]
    assert np.abs(np.linalg.eigvals(predictor)).max() < 1
