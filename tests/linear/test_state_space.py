"""The linear-Gaussian model against a dense joint Gaussian and against an independent Kalman smoother."""

import cuthbert
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from cuthbert.gaussian import kalman

from gpssm.core import linalg
from gpssm.data.padding import pad
from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM, log_marginal, noise_floor, run_em, smooth
from linear_systems import simulate


def make_ssm(Dx=3, Dy=2, Du=2, seed=0, radius=0.9):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(Dx, Dx))
    root = rng.normal(size=(Dx, Dx)) / np.sqrt(Dx)
    arrays = (
        A * radius / np.abs(np.linalg.eigvals(A)).max(),
        rng.normal(size=(Dx, Du)),
        rng.normal(size=Dx),
        rng.normal(size=(Dy, Dx)),
        rng.normal(size=Dy),
        0.1 * (root @ root.T + 0.2 * np.eye(Dx)),
        0.2 + 0.3 * rng.random(Dy),
    )
    return LinearSSM(*map(jnp.asarray, arrays))


def dense_posterior(ssm, series):
    """Mean and covariance of all states given the observed outputs, and log p(y), by plain conditioning."""
    A, B, b, C, d, Q, noise = map(np.asarray, ssm)
    T, dim = len(series), len(A)
    # x = F⁻¹(c + w) with F block-bidiagonal: x_t − A x_{t−1} = c_t + w_t.
    F = np.eye((T + 1) * dim) - np.kron(np.eye(T + 1, k=-1), A)
    inverse = np.linalg.inv(F)
    drift = np.concatenate([np.zeros((1, dim)), series.u @ B.T + b]).ravel()
    mean, cov = (
        inverse @ drift,
        inverse @ scipy.linalg.block_diag(np.eye(dim), *[Q] * T) @ inverse.T,
    )
    H = np.kron(np.eye(T + 1)[1:], C)
    seen = ~np.isnan(series.y.ravel())
    H, y, level = H[seen], series.y.ravel()[seen], np.tile(d, T)[seen]
    S = H @ cov @ H.T + np.diag(np.tile(noise**2, T)[seen])
    gain = np.linalg.solve(S, H @ cov).T
    evidence = scipy.stats.multivariate_normal.logpdf(y, H @ mean + level, S) if seen.any() else 0.0
    return mean + gain @ (y - H @ mean - level), cov - gain @ S @ gain.T, evidence


CASES = {
    "plain": (make_ssm(), simulate(make_ssm(), 6)),
    "missing": (make_ssm(), simulate(make_ssm(), 6, missing=0.3)),
    "no controls": (make_ssm(2, 1, 0), simulate(make_ssm(2, 1, 0), 6)),
    "one row": (make_ssm(2, 1, 0), simulate(make_ssm(2, 1, 0), 1)),
    "unobserved": (make_ssm(2, 1, 0), Series(np.full((6, 1), np.nan))),
}


@pytest.mark.parametrize("padded", [False, True], ids=["as it is", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_smoother_and_evidence_match_the_dense_joint(name, padded):
    ssm, series = CASES[name]
    mean, cov, evidence = dense_posterior(ssm, series)
    given = pad(series) if padded else series
    posterior, T, dim = smooth(ssm, given), len(series) + 1, len(ssm.offset)
    blocks = cov.reshape(T, dim, T, dim)
    found = linalg.selected_inverse(posterior.factor)
    np.testing.assert_allclose(posterior.mean[:T].ravel(), mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        found.diagonal[:T], [blocks[t, :, t] for t in range(T)], rtol=1e-8, atol=1e-9
    )
    np.testing.assert_allclose(
        found.lower[: T - 1], [blocks[t + 1, :, t] for t in range(T - 1)], rtol=1e-8, atol=1e-9
    )
    np.testing.assert_allclose(log_marginal(ssm, given), evidence, rtol=1e-8, atol=1e-10)
    assert padded == (len(posterior.mean) > T)


def test_smoother_and_evidence_match_a_kalman_smoother():
    ssm, series = make_ssm(), simulate(make_ssm(), 60, missing=0.2)
    noise, process = jnp.diag(ssm.noise_std), jnp.linalg.cholesky(ssm.process_cov)

    def dynamics(inputs):
        return ssm.transition, ssm.input_map @ inputs[0] + ssm.offset, process

    kalman_filter = kalman.build_filter(
        jnp.zeros(3), jnp.eye(3), dynamics, lambda inputs: (ssm.C, ssm.d, noise, inputs[1])
    )
    inputs = (jnp.asarray(series.u), jnp.asarray(series.y))
    filtered = cuthbert.filter(kalman_filter, inputs, kalman_filter.init_prepare())
    smoothed = cuthbert.smoother(kalman.build_smoother(dynamics), filtered, inputs)
    posterior = smooth(ssm, series)
    covariance = smoothed.chol_cov @ jnp.swapaxes(smoothed.chol_cov, 1, 2)
    np.testing.assert_allclose(posterior.mean, smoothed.mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        linalg.selected_inverse(posterior.factor).diagonal, covariance, rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(
        log_marginal(ssm, series), filtered.log_normalizing_constant[-1], rtol=1e-8
    )


def test_several_series_are_smoothed_apart_and_their_evidence_adds_up():
    ssm = make_ssm()
    several = [simulate(ssm, 6, seed=2, missing=0.3), simulate(ssm, 6, seed=3)]
    joint = smooth(ssm, several)
    np.testing.assert_allclose(
        joint.mean, np.concatenate([smooth(ssm, s).mean for s in several]), atol=1e-9
    )
    np.testing.assert_allclose(
        log_marginal(ssm, several), sum(log_marginal(ssm, s) for s in several), rtol=1e-10
    )


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_every_em_step_raises_the_likelihood(missing):
    series = [simulate(make_ssm(), 60, missing=missing), simulate(make_ssm(), 60, seed=5)]
    ssm, values = make_ssm(seed=7), []
    for _ in range(12):
        values.append(float(log_marginal(ssm, series)))
        ssm, value = run_em(ssm, series, 1)
    np.testing.assert_allclose(value, log_marginal(ssm, series), rtol=1e-10)
    assert np.all(np.diff(values) > 0.0)


def expected_log_joint(ssm, series, mean, cov):
    """E[log p(x, y)] under states ~ N(mean, cov), dense, with constants dropped."""
    T, dim = len(series), len(ssm.offset)
    mean, cov = mean.reshape(T + 1, dim), cov.reshape(T + 1, dim, T + 1, dim)
    total = -0.5 * T * jnp.linalg.slogdet(ssm.process_cov)[1]
    for t in range(T):
        step = jnp.concatenate([-ssm.transition, jnp.eye(dim)], axis=1)
        spread = step @ cov[t : t + 2, :, t : t + 2].reshape(2 * dim, 2 * dim) @ step.T
        error = step @ mean[t : t + 2].ravel() - ssm.input_map @ series.u[t] - ssm.offset
        total -= 0.5 * jnp.trace(
            jnp.linalg.solve(ssm.process_cov, spread + jnp.outer(error, error))
        )
        for k in np.flatnonzero(~np.isnan(series.y[t])):
            error = series.y[t, k] - ssm.C[k] @ mean[t + 1] - ssm.d[k]
            square = error**2 + ssm.C[k] @ cov[t + 1, :, t + 1] @ ssm.C[k]
            total -= jnp.log(ssm.noise_std[k]) + 0.5 * square / ssm.noise_std[k] ** 2
    return total


def test_em_step_maximises_the_expected_log_joint():
    ssm, series = CASES["missing"]
    mean, cov, _ = dense_posterior(ssm, series)
    gradient = jax.jit(jax.grad(lambda ssm: expected_log_joint(ssm, series, mean, cov)))
    before, after = gradient(ssm), gradient(run_em(ssm, series, 1)[0])
    for name, was, now in zip(LinearSSM._fields, before, after, strict=True):
        assert jnp.abs(was).max() > 0.1, name
        assert jnp.abs(now).max() < 1e-5, name


def test_em_recovers_the_system():
    truth = make_ssm(2, 1, 1)
    series = simulate(truth, 500, seed=4, missing=0.05)
    start = truth._replace(
        transition=0.5 * truth.transition, C=truth.C + 0.3, process_cov=jnp.eye(2)
    )
    fitted, value = run_em(start, series, 500)
    assert value > log_marginal(truth, series)
    found, expected = (np.sort_complex(np.linalg.eigvals(s.transition)) for s in (fitted, truth))
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_inert_dimensions_stay_inert():
    series = simulate(make_ssm(2, 1, 1), 60, missing=0.1)
    small = make_ssm(2, 1, 1, seed=3)
    wide = LinearSSM(
        jnp.pad(small.transition, (0, 2)),
        jnp.pad(small.input_map, ((0, 2), (0, 0))),
        jnp.pad(small.offset, (0, 2)),
        jnp.pad(small.C, ((0, 0), (0, 2))),
        small.d,
        jnp.eye(4).at[:2, :2].set(small.process_cov),
        small.noise_std,
    )
    (small, value), (wide, same) = run_em(small, series, 30), run_em(wide, series, 30)
    np.testing.assert_allclose(same, value, rtol=1e-10)
    np.testing.assert_allclose(wide.transition[:2, :2], small.transition, atol=1e-9)
    np.testing.assert_allclose(wide.process_cov[2:], np.eye(4)[2:], atol=1e-12)
    assert jnp.abs(wide.transition[2:]).max() + jnp.abs(wide.C[:, 2:]).max() < 1e-12


def test_floors_hold_on_outputs_without_noise():
    series = Series(np.stack([np.sin(0.3 * np.arange(60)), np.ones(60)], axis=1), np.zeros((60, 1)))
    ssm, value = run_em(make_ssm(2, 2, 1), series, 200)
    assert np.isfinite(value)
    assert np.all(np.asarray(ssm.noise_std) >= np.asarray(noise_floor(series.y)) * (1.0 - 1e-12))
    assert np.linalg.eigvalsh(ssm.process_cov)[0] > 0.9e-6


def test_noise_floor_leaves_missing_entries_out():
    y = np.array([[1.0, np.nan, 2.0], [3.0, np.nan, 2.0], [np.nan, np.nan, 2.0]])
    np.testing.assert_allclose(noise_floor(y), [1e-2, 1e-2, 1e-2])
    np.testing.assert_allclose(noise_floor(10.0 * y), [1e-1, 1e-2, 1e-2])
