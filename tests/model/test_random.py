"""Random numbers against their distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpssm.model.conditionals import gamma, normal

ALPHA = np.array([0.05, 0.5, 1.0, 2.5, 75.0, 1e5])


@pytest.fixture(scope="module")
def gammas():
    keys = jax.random.split(jax.random.key(0), 4000)
    return np.asarray(jax.jit(jax.vmap(lambda key: gamma(key, jnp.asarray(ALPHA))))(keys))


def test_gamma_has_its_law_for_small_and_large_shapes(gammas):
    for alpha, drawn in zip(ALPHA, gammas.T, strict=True):
        assert stats.kstest(drawn, stats.gamma(alpha).cdf).pvalue > 1e-3


def test_gammas_of_one_call_are_independent(gammas):
    ranks = stats.spearmanr(gammas).statistic
    np.testing.assert_allclose(ranks, np.eye(len(ALPHA)), atol=4.5 / np.sqrt(len(gammas)))


def test_gamma_of_no_number_is_none_and_ends():
    assert np.isnan(np.asarray(gamma(jax.random.key(0), jnp.asarray([jnp.nan])))).all()


def test_normal_is_standard_in_every_place():
    drawn = np.asarray(normal(jax.random.key(0), (3, 1000, 2), jnp.dtype(float)))
    for column in np.moveaxis(drawn, 1, 0).reshape(1000, -1).T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
