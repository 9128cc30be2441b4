"""Smoothed series: the draws' own states and outputs, and what was missing filled in."""

import numpy as np
import pytest

from posteriors import make_posterior


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


def test_outputs_are_those_of_each_draws_own_likelihood():
    base = make_posterior()
    offsets = np.random.default_rng(0).normal(size=(2, 3, 2))
    posterior = make_posterior(leaves={"likelihood.d": offsets})
    found = posterior.smooth(1)
    C, states = np.asarray(base.model.likelihood.C), np.asarray(posterior.draws.states[1])
    expected = posterior.scaler.unscale_mean(states[:, :, 1:] @ C.T + offsets[:, :, None])
    np.testing.assert_allclose(found.outputs.paths, expected.reshape(6, 5, 2), rtol=1e-9)
    np.testing.assert_allclose(posterior.outputs(1), expected, rtol=1e-9)
    assert (found.outputs.start, found.outputs.horizon) == (0, 5)


def test_states_are_in_scaled_units_with_the_initial_one(posterior):
    found = posterior.smooth()
    states = np.asarray(posterior.draws.states[0]).reshape(6, 10, 2)
    np.testing.assert_array_equal(found.states, states)
    np.testing.assert_allclose(found.state_mean, states.mean(0))
    np.testing.assert_allclose(found.state_std, states.std(0))


def test_only_missing_outputs_are_imputed(posterior):
    found, y = posterior.smooth(), posterior.raw[0].y
    missing = np.isnan(y)
    assert missing.sum() == 3
    np.testing.assert_array_equal(found.imputed[~missing], y[~missing])
    np.testing.assert_allclose(found.imputed[missing], found.outputs.mean[missing])


def test_noise_is_that_of_the_outputs():
    states = [np.zeros((2, 1500, 10, 2)), np.zeros((2, 1500, 6, 2))]
    weights = np.zeros((2, 1500, 2, 6))
    posterior = make_posterior(states=states, weights=weights, leaves={}, draws=1500)
    found = posterior.smooth(1, noise=True)
    scale = np.exp(posterior.model.likelihood.log_std) * np.array(posterior.scaler.output_std)
    np.testing.assert_allclose(found.outputs.std / scale, 1, atol=4 / np.sqrt(6000))
    np.testing.assert_allclose(found.outputs.moments[1], np.broadcast_to(scale**2, (3000, 5, 2)))
    flat = found.outputs.paths.reshape(3000, -1)
    assert np.abs(np.corrcoef(flat.T) - np.eye(10)).max() < 5 / np.sqrt(3000)
    assert np.all(posterior.smooth(1, noise=True, seed=1).outputs.paths != found.outputs.paths)


def test_an_unknown_series_is_refused(posterior):
    with pytest.raises(IndexError, match="2 training series, counted from 0; got index 2"):
        posterior.smooth(2)
