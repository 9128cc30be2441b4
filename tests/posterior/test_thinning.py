"""Fewer draws: which are kept, with all that belongs to them."""

import numpy as np
import pytest

from builders import make_series
from gpssm.posterior.posterior import ALIKE
from posteriors import make_posterior


@pytest.mark.parametrize(("most", "kept"), [(100, 10), (20, 10), (10, 5), (7, 4), (1, 1)])
def test_draws_are_evenly_spaced_along_each_chain(most, kept):
    posterior = make_posterior(chains=2, draws=10)
    fewer = posterior.thinned(most)
    assert (fewer.num_chains, fewer.num_draws) == (2, kept)
    every = -(-20 // most)
    for path, whole in zip(fewer.draws.states, posterior.draws.states, strict=True):
        np.testing.assert_array_equal(path, whole[:, ::every])
    assert fewer.info.log_target.shape == (2, kept)
    assert posterior.num_draws == 10


def test_the_cloud_is_thinned_too():
    posterior = make_posterior(draws=6)
    rows = make_series(4, seed=3)
    fewer = posterior.condition(rows).thinned(4)
    assert fewer.cloud.particles.shape[:2] == fewer.cloud.log_weights.shape[:2] == (2, 2)
    np.testing.assert_array_equal(fewer.cloud.particles, posterior.condition(rows).cloud.particles[:, ::3])
    assert fewer.cloud.rows == 5 + 4


def test_draws_that_differ_in_states_alone_are_few():
    weights = np.ones((2, 30, 2, 6))
    assert make_posterior(draws=30, weights=weights, leaves={}).thinned(50).num_draws == ALIKE // 2
    assert make_posterior(draws=30, leaves={}).thinned(50).num_draws == 15
