"""Subspace identification of known systems."""

import numpy as np
import pytest

from gpssm.data.series import Series
from gpssm.linear.fit import canonical_variates, subspace
from gpssm.linear.state_space import LinearSSM, log_marginal
from linear_systems import simulate

A = np.array([[0.9, 0.3], [-0.3, 0.7]])
B = np.array([[1.0], [0.5]])
C = np.array([[1.0, 0.5], [-0.4, 1.0]])


def make_series(length, outputs=1, inputs=1, noise=0.0, seed=0):
    offset, d = np.array([0.5, -0.2]), np.full(outputs, 2.0)
    ssm = LinearSSM(
        A, B[:, :inputs], offset, C[:outputs], d, noise**2 * np.eye(2), np.full(outputs, noise)
    )
    return simulate(ssm, length, seed)


def impulse_response(ssm, steps=8):
    """Outputs after a unit pulse of the control: C Aᵏ B."""
    A, B, C = (np.asarray(values) for values in (ssm.transition, ssm.input_map, ssm.C))
    return np.stack([C @ np.linalg.matrix_power(A, k) @ B for k in range(steps)])


@pytest.mark.parametrize("outputs", [1, 2])
def test_without_noise_the_system_is_found_exactly(outputs):
    ssm = subspace(make_series(300, outputs), 2)
    truth = [C[:outputs] @ np.linalg.matrix_power(A, k) @ B for k in range(8)]
    np.testing.assert_allclose(impulse_response(ssm), truth, atol=1e-5)
    np.testing.assert_allclose(np.linalg.eigvals(ssm.transition), np.linalg.eigvals(A), atol=1e-5)


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 0), (2, 1)])
def test_noisy_eigenvalues_are_close(outputs, inputs):
    series = [make_series(1500, outputs, inputs, 0.3, seed) for seed in range(2)]
    found = np.sort_complex(np.linalg.eigvals(subspace(series, 2).transition))
    np.testing.assert_allclose(found, np.sort_complex(np.linalg.eigvals(A)), atol=0.06)


def test_missing_outputs_cost_little():
    series = make_series(600, 2, 1, 0.1)
    y = np.where(np.random.default_rng(1).random(series.y.shape) < 0.05, np.nan, series.y)
    gap = impulse_response(subspace(Series(y, series.u), 2)) - impulse_response(subspace(series, 2))
    assert np.abs(gap).max() < 0.2


def test_states_are_nested_and_of_unit_variance():
    series = make_series(300, 2, 1, 0.3)
    wide, narrow = (canonical_variates([(series.y, series.u)], number, 10)[0] for number in (5, 2))
    np.testing.assert_allclose(wide[:, :2], narrow, atol=1e-8)
    np.testing.assert_allclose(wide.std(axis=0), 1.0, atol=0.2)


def test_dimensions_the_series_cannot_tell_are_inert():
    ssm = subspace(make_series(300), 4)
    np.testing.assert_allclose(ssm.transition[2:], 0.0, atol=1e-12)
    np.testing.assert_allclose(ssm.C[:, 2:], 0.0, atol=1e-12)
    np.testing.assert_allclose(np.asarray(ssm.process_cov)[2:], np.eye(4)[2:])


@pytest.mark.parametrize("length", [2, 3, 5])
def test_short_series_give_a_usable_model(length):
    for inputs in (0, 1):
        series = make_series(length, 2, inputs, 0.3)
        assert np.isfinite(log_marginal(subspace(series, 3), series))
