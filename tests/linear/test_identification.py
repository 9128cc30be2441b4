"""The linear fit and its coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.core import linalg
from gpssm.data.padding import pad
from gpssm.data.series import Series
from gpssm.linear.fit import fit_linear, normalise
from gpssm.linear.state_space import (
    RADIUS,
    LinearSSM,
    log_marginal,
    run_em,
    smooth,
    spectral_radius,
    stabilise,
)
from linear_systems import simulate

TRUTH = LinearSSM(
    transition=jnp.array([[0.9, 0.4], [-0.4, 0.7]]),
    input_map=jnp.array([[1.0], [0.2]]),
    offset=jnp.array([0.1, -0.2]),
    C=jnp.array([[1.0, 0.3]]),
    d=jnp.array([3.0]),
    process_cov=jnp.array([[0.05, 0.02], [0.02, 0.03]]),
    noise_std=jnp.array([0.2]),
)


SERIES = simulate(TRUTH, 500)


def output_law(ssm, series, start_mean, start_cov):
    """Mean and covariance of all outputs for a given law of x₀, by plain recursion on dense matrices."""
    A, B, b, C, d, Q, noise = map(np.asarray, ssm)
    T = len(series)
    mean, cov = start_mean, start_cov
    means, crosses = [], np.zeros((T, len(d), T, len(d)))
    for t in range(T):
        mean, cov = A @ mean + B @ series.u[t] + b, A @ cov @ A.T + Q
        means.append(C @ mean + d)
        for k in range(t, T):
            block = C @ np.linalg.matrix_power(A, k - t) @ cov @ C.T
            crosses[k, :, t], crosses[t, :, k] = block, block.T
        crosses[t, :, t] += np.diag(noise**2)
    return np.array(means), crosses


def test_normalise_changes_coordinates_only():
    series = SERIES[:40]
    ssm = normalise(TRUTH, series)
    posterior = smooth(ssm, series)
    states = np.asarray(posterior.mean)
    uncertainty = np.asarray(linalg.selected_inverse(posterior.factor).diagonal).mean(axis=0)
    # The prior of x₀ is another one now, so that its smoothed states differ, little.
    np.testing.assert_allclose(np.cov(states.T, bias=True) + uncertainty, np.eye(2), atol=0.1)
    np.testing.assert_allclose(states.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_array_equal(ssm.process_cov, np.diag(np.diag(ssm.process_cov)))
    assert np.all(np.take_along_axis(ssm.C, np.abs(ssm.C).argmax(axis=0)[None], axis=0) > 0.0)
    # x₀ ~ N(0, I) in the old coordinates, seen in the new ones: find x' = Mx + c from A, b, C, d alone.
    old, new = (
        np.concatenate([np.asarray(s.C), np.asarray(s.C @ s.transition)], axis=0)
        for s in (TRUTH, ssm)
    )
    matrix = np.linalg.solve(new, old)
    shift = np.linalg.solve(new, np.array([TRUTH.d[0], (TRUTH.d + TRUTH.C @ TRUTH.offset)[0]]))
    shift -= np.linalg.solve(new, np.array([ssm.d[0], (ssm.d + ssm.C @ ssm.offset)[0]]))
    before = output_law(TRUTH, series, np.zeros(2), np.eye(2))
    after = output_law(ssm, series, shift, matrix @ matrix.T)
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_padded_series_has_the_same_fit():
    """A step of expectation-maximisation and the moments of the states, over the rows of the series alone."""
    series = SERIES[:37]
    plain, padded = (normalise(run_em(TRUTH, one, 1)[0], one) for one in (series, pad(series)))
    for expected, found in zip(plain, padded, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


def test_normalise_is_deterministic_in_its_signs():
    flip = jnp.array([[-1.0, 0.0], [0.0, 1.0]])
    flipped = TRUTH._replace(
        transition=flip @ TRUTH.transition @ flip,
        input_map=flip @ TRUTH.input_map,
        offset=flip @ TRUTH.offset,
        C=TRUTH.C @ flip,
        process_cov=flip @ TRUTH.process_cov @ flip,
    )
    for one, other in zip(normalise(TRUTH, SERIES), normalise(flipped, SERIES), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_stabilise_pulls_only_what_is_outside():
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(5, 5))
    blocks = np.zeros((5, 5))
    blocks[:2, :2] = 1.2 * np.array([[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]])
    blocks[2:, 2:] = np.diag([-1.1, 0.5, 0.9])
    A = basis @ blocks @ np.linalg.inv(basis)
    found = np.sort_complex(
        np.linalg.eigvals(stabilise(TRUTH._replace(transition=jnp.asarray(A)), 0.99).transition)
    )
    pair = 0.99 * np.exp([1j, -1j])
    np.testing.assert_allclose(found, np.sort_complex([*pair, -0.99, 0.5, 0.9]), atol=1e-10)


def test_stabilise_keeps_stable_and_handles_defective_matrices():
    np.testing.assert_allclose(stabilise(TRUTH).transition, TRUTH.transition, atol=1e-12)
    integrators = TRUTH._replace(transition=jnp.array([[1.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_allclose(
        stabilise(integrators, 0.9).transition, [[0.9, 1.0], [0.0, 0.9]], atol=1e-12
    )


def test_fit_recovers_a_simulated_system():
    ssm = fit_linear(SERIES, 2)
    assert log_marginal(ssm, SERIES) > log_marginal(TRUTH, SERIES) - 2.0
    found, expected = (np.sort_complex(np.linalg.eigvals(s.transition)) for s in (ssm, TRUTH))
    np.testing.assert_allclose(found, expected, atol=0.05)
    np.testing.assert_array_equal(ssm.process_cov, np.diag(np.diag(ssm.process_cov)))


def test_fit_of_an_unstable_series_is_stable_and_better_than_pulling_eigenvalues():
    growing = TRUTH._replace(
        transition=jnp.array([[1.01, 0.1], [0.0, 0.95]]), process_cov=0.01 * jnp.eye(2)
    )
    series = simulate(growing, 120)
    ssm = fit_linear(series, 2)
    pulled = normalise(stabilise(growing), series)
    assert spectral_radius(ssm) <= RADIUS
    assert log_marginal(ssm, series) > log_marginal(pulled, series) + 5.0


@pytest.mark.parametrize("length", [2, 4, 12])
def test_fit_survives_short_series(length):
    rng = np.random.default_rng(length)
    ssm = fit_linear(Series(rng.normal(size=(length, 2))), 3, num_em=20)
    assert all(np.isfinite(values).all() for values in ssm)
    assert spectral_radius(ssm) <= RADIUS


def test_fit_is_in_float64_whatever_the_global_setting():
    with jax.enable_x64(False):
        ssm = fit_linear(SERIES[:100], 2, num_em=5)
    assert all(values.dtype == np.float64 for values in ssm)
