"""PR-SSM: its rollout against the moments of a linear model, the recognition net, and its settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.methods.prssm import LOOK, Recognition, follow_prior, recognisable
from gpssm.methods.variational import StartLaw, conditional, path_bound, roll, take, windows

COUNT = 20_000


def test_rollout_bound_matches_the_moments_of_a_linear_model():
    """E log N(y; C x + d, R) in closed form: noise is scaled by its root, and particles are averaged."""
    model = builders.make_model("linear")
    series = builders.make_series(6, missing=True)
    start = StartLaw(jnp.asarray([[0.3, -0.5]]), jnp.asarray([[-0.5, 0.2]]))
    batch = take([series], windows([6], None))

    @jax.jit
    def simulate(key):
        start_key, path_key = jax.random.split(key)
        first = start.draw(start_key, COUNT)
        paths = roll(
            path_key, model, conditional(jnp.zeros((2, 1, 4))), follow_prior, first, batch.u
        )
        return paths[0][-1], path_bound(model, *paths, start, batch)

    mean, cov = np.asarray(start.mean[0]), np.diag(np.exp(2 * np.asarray(start.log_std[0])))
    A, B, b = (
        np.asarray(part)
        for part in (model.mean.transition, model.mean.input_map, model.mean.offset)
    )
    C, d, R = (
        np.asarray(part)
        for part in (model.likelihood.C, model.likelihood.d, np.exp(2 * model.likelihood.log_std))
    )
    total = -float(start.divergence()[0])
    for y, u in zip(series.y, series.u, strict=True):
        mean, cov = A @ mean + B @ u + b, A @ cov @ A.T + np.diag(model.process_variance)
        square = (y - C @ mean - d) ** 2 + np.diagonal(C @ cov @ C.T)
        total += np.nansum(-0.5 * (np.log(2 * np.pi * R) + square / R))
    last, bound = simulate(jax.random.key(0))
    np.testing.assert_allclose(np.cov(np.asarray(last).T), cov, atol=0.03)
    assert float(bound) == pytest.approx(total, rel=0.01)


def test_recognition_starts_at_a_regression_on_the_rows_to_come():
    """It finds states that are a linear function of what the net sees, and a row that is missing is seen as such."""
    model, series = builders.make_model("linear"), builders.make_series(40, missing=True)

    @jax.jit
    def start(key):
        seen = recognisable(model, take([series], windows([40], LOOK)))
        wanted = seen[:, :2, 0] - 0.5 * seen[:, 4, 1:3]
        return seen, wanted, Recognition.start(key, seen, wanted)(seen)

    seen, wanted, law = start(jax.random.key(0))
    assert seen.shape == (40 + LOOK - 1, 5, LOOK)
    np.testing.assert_allclose(law.mean, wanted, atol=0.05)
    np.testing.assert_allclose(np.exp(law.log_std), 0.01)
    first = np.asarray(seen[LOOK - 1])  # the first window that is whole
    np.testing.assert_array_equal(first[:2].T, np.nan_to_num(series.y[:LOOK]))
    np.testing.assert_array_equal(first[2:4].T, np.isfinite(series.y[:LOOK]))
    np.testing.assert_array_equal(first[4], series.u[:LOOK, 0])
    assert not np.any(np.asarray(seen[0])[:, 1:])
