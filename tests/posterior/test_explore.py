"""Smoothed series against the outputs of each draw; transitions against total variances."""

import numpy as np
import pytest

from gpssm.posterior.draws import model_of
from posteriors import make_posterior

RNG = np.random.default_rng(6)
X, U = RNG.normal(size=(4, 2)), 3 + 2 * RNG.normal(size=(4, 1))


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


def test_outputs_are_those_of_each_draws_own_likelihood():
    base = make_posterior()
    offsets = np.random.default_rng(0).normal(size=(2, 3, 2))
    posterior = make_posterior(leaves={"likelihood.d": offsets})
    found = posterior.smooth(1)
    C, states = np.asarray(base.model.likelihood.C), np.asarray(posterior.draws.states[1])
    expected = posterior.dataset.scaler.unscale_mean(states[:, :, 1:] @ C.T + offsets[:, :, None])
    np.testing.assert_allclose(found.paths, expected.reshape(6, 5, 2), rtol=1e-9)
    assert (found.start, found.horizon, found.outputs) == (0, 5, ("y0", "y1"))
    np.testing.assert_array_equal(posterior.smooth().paths, found.paths)  # the last series


def test_noise_is_that_of_the_outputs():
    states = [np.zeros((2, 1500, 10, 2)), np.zeros((2, 1500, 6, 2))]
    weights = np.zeros((2, 1500, 2, 6))
    posterior = make_posterior(states=states, weights=weights, leaves={}, draws=1500)
    found = posterior.smooth(1, noise=True)
    scale = np.exp(posterior.model.likelihood.log_std) * np.array(
        posterior.dataset.scaler.output_std
    )
    np.testing.assert_allclose(found.std / scale, 1, atol=4 / np.sqrt(6000))
    np.testing.assert_allclose(found.moments[1], np.broadcast_to(scale**2, (3000, 5, 2)))
    flat = found.paths.reshape(3000, -1)
    assert np.abs(np.corrcoef(flat.T) - np.eye(10)).max() < 5 / np.sqrt(3000)
    assert np.all(posterior.smooth(1, noise=True, seed=1).paths != found.paths)


def test_an_unknown_series_is_refused(posterior):
    with pytest.raises(IndexError, match="2 training series, counted from 0; got index 2"):
        posterior.smooth(2)


def each_step(posterior, x, u):
    """m + A v, B and k(z, z) of every draw at scaled controls, one draw after the other."""
    for chain in range(posterior.num_chains):
        for draw in range(posterior.num_draws):
            model = model_of(posterior, chain, draw)
            step = model.transition()(x, u)
            given = np.asarray(step.given(posterior.draws.weights[chain, draw]))
            yield (
                given,
                np.asarray(step.residual).T,
                np.asarray(model.kernel.diagonal(np.hstack([x, u]))).T,
            )


def test_the_spread_is_that_between_draws_and_within(posterior):
    found = posterior.transition(X, U)
    scaled = posterior.dataset.scaler.scale_inputs(U)
    means, residuals, priors = map(np.stack, zip(*each_step(posterior, X, scaled), strict=True))
    np.testing.assert_allclose(found.mean, means.mean(0), rtol=1e-9)
    np.testing.assert_allclose(found.std**2, means.var(0) + residuals.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.novelty, np.mean(residuals / priors, axis=(0, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.draws, means.reshape(2, 3, 4, 2), rtol=1e-9)


def test_far_away_nothing_is_known(posterior):
    far = posterior.transition(X + 100, U)
    np.testing.assert_allclose(far.novelty, 1)
    variance = np.exp(posterior.draws.leaves["kernel.log_variance"]).mean((0, 1))
    assert np.all(far.std**2 >= variance * (1 - 1e-9))


def test_one_state_may_come_alone(posterior):
    np.testing.assert_allclose(
        posterior.transition(X[0], U[0]).mean, posterior.transition(X, U).mean[:1], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("x", "u", "message"),
    [
        (X[:, :1], U, r"x must have shape \(N, 2\), one state per row; got \(4, 1\)"),
        (X, U[:2], "u must have one row for each of the 4 states; got 2"),
        (X, None, "u must have 1 columns: u; got 0"),
        (X, np.zeros((4, 3)), "u must have 1 columns: u; got 3"),
    ],
)
def test_bad_inputs_are_refused(posterior, x, u, message):
    with pytest.raises(ValueError, match=message):
        posterior.transition(x, u)
