"""Samplers built on different ideas draw from the same posterior: all pairs, on every marginal."""

import functools
import itertools

import numpy as np
import pytest

import sampling
from gpssm.methods import FFVD, FFVDCM, FFVDM, FFVDNUTS, ParticleGibbs
from gpssm.model.priors import InverseGamma

LIMIT = 4.0  # standard errors
DRAWS = 8000

EXACT = {
    "ffvd": FFVD(num_warmup=300, rank=10),
    "ffvd-nuts": FFVDNUTS(num_warmup=500),
    "ffvd-p": ParticleGibbs(num_warmup=100, num_particles=20),
}
STOCHASTIC = {"ffvd-m": FFVDM, "ffvd-c-m": FFVDCM}


def problem():
    """Two series with missing outputs, four inducing points, and both noises to be sampled."""
    model, series, states = sampling.small_problem((8, 5), 2, num=4)
    priors = {
        "log_process_std": InverseGamma(5.0, 0.5),
        "likelihood.log_std": InverseGamma(5.0, 0.5),
    }
    return model.with_priors(priors).with_roles("sample", *priors), series, states


@functools.cache
def draws(name):
    """Draws of an exact sampler, each with a seed of its own."""
    seed = list(EXACT).index(name)
    kept, info, _ = sampling.run(EXACT[name], *problem(), num_draws=DRAWS, thin=2, seed=seed)
    assert np.mean(info.divergent) < 0.001
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("pair", itertools.combinations(EXACT, 2), ids=" and ".join)
def test_every_pair_agrees(pair):
    first, second = map(draws, pair)
    assert sampling.marginal_z(first, second) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", STOCHASTIC)
def test_discretisation_bias_shrinks_with_the_step(name):
    """Stochastic-gradient variances are too large by a share that falls with the square of the step."""
    reference = sampling.flatten(draws("ffvd")).var((0, 1))

    def excess(step_size, thin):
        config = STOCHASTIC[name](num_warmup=10_000, step_size=step_size)
        kept, _, _ = sampling.run(config, *problem(), num_draws=DRAWS, thin=thin, seed=3)
        return sampling.flatten(kept).var((0, 1)) / reference - 1

    small, large = excess(0.05, thin=50), excess(0.3, thin=10)
    assert np.abs(small).max() < 0.1
    assert np.mean(large) > 3 * np.abs(np.mean(small))
