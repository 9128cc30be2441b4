"""Particle Gibbs without weights against samplers of the same posterior, and that every state moves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
import sampling
from gpssm.data.series import Series
from gpssm.methods import Exact, FICParticleGibbs, ParticleGibbs
from gpssm.methods.fic_pg import sweep
from gpssm.model.bases import InducingPoints
from gpssm.model.likelihoods import Poisson
from gpssm.model.priors import InverseGamma

LIMIT = 4.0  # standard errors
NOISES = {"log_process_std": InverseGamma(5.0, 0.5), "likelihood.log_std": InverseGamma(5.0, 0.5)}


def with_counts(model, series):
    """The same with Poisson outputs, which the particles meet by the bootstrap."""
    likelihood = Poisson(C=0.5 * model.likelihood.C, d=model.likelihood.d)
    counts = [
        Series(np.where(np.isfinite(one.y), np.round(np.abs(one.y)), np.nan), one.u)
        for one in series
    ]
    return eqx.tree_at(lambda m: m.likelihood, model, likelihood), counts


def disagreement(model, series, states, num_draws, num_particles=10):
    """From `ffvd-p` with the predictive target, which draws weights and states in turn: the same posterior."""
    settings = {"num_warmup": 50, "num_particles": num_particles}
    configs = (FICParticleGibbs(**settings), ParticleGibbs(target="predictive", **settings))
    found = [
        sampling.run(config, model, series, states, num_draws, seed=seed)[0]
        for seed, config in enumerate(configs)
    ]
    return sampling.marginal_z(*found)


@pytest.mark.slow
def test_agrees_with_particle_gibbs():
    """Two states, and both noises sampled as well."""
    model, series, states = sampling.small_problem((8, 5), 2, num=4)
    model = model.with_priors(NOISES).with_roles("sample", *NOISES)
    assert disagreement(model, series, states, 8000) < LIMIT


@pytest.mark.slow
def test_agrees_with_particle_gibbs_on_counts():
    model, series, states = sampling.small_problem()
    assert (
        disagreement(*with_counts(model, series), states, num_draws=8000, num_particles=20) < LIMIT
    )


@pytest.mark.slow
def test_agrees_with_the_dense_gaussian_process():
    """With a grid of inducing points that leaves no residual FIC is the Gaussian process itself."""
    series = [builders.make_series(30, 0, 1, missing=True)]
    states = (jnp.asarray(builders.make_states(30, 1)),)
    model = builders.make_model("inducing", state_dim=1, input_dim=0, output_dim=1, num=30)
    model = model.with_roles("fix", "*").with_priors(NOISES).with_roles("sample", *NOISES)
    grid = InducingPoints(jnp.linspace(-6.0, 6.0, 30)[:, None])
    runs = {
        FICParticleGibbs(num_warmup=100, num_particles=20): eqx.tree_at(
            lambda m: m.basis, model, grid
        ),
        Exact(num_warmup=300, rank=5): model,
    }
    found = [sampling.run(config, one, series, states, 3000)[0] for config, one in runs.items()]
    assert (
        sampling.marginal_z(
            *((draws.states, [draws.leaves[name] for name in NOISES]) for draws in found)
        )
        < LIMIT
    )


def test_ancestor_sampling_moves_every_state():
    """With ten particles and no new ancestors the first of 200 states would never change."""
    model = builders.make_model("inducing", state_dim=1, input_dim=1, output_dim=1)
    truth = model.simulate(jax.random.key(1), jnp.asarray(builders.make_series(200).u))
    series = Series(np.asarray(truth.y), builders.make_series(200).u)
    prior = jnp.eye(6)[None], jnp.zeros((1, 6))

    @jax.jit
    def chain(path, keys):
        return jax.lax.scan(
            lambda x, key: (sweep(key, model, x, series, 10, *prior),) * 2, path, keys
        )[1]

    paths = np.asarray(chain(truth.states, jax.random.split(jax.random.key(0), 60)))[..., 0]
    moved = np.mean(paths[1:] != paths[:-1], 0)
    assert moved.min() > 0.05
    assert moved[:20].mean() > 0.3
    assert np.isfinite(paths).all()
