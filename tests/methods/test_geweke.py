"""The samplers against the distribution of simulated data: Geweke's joint test, simulation-based
calibration.

Where the basis has no residual, B = 0, q* is the posterior of the very model that `simulate` draws from; where it has
one, that model is the predictive target.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import builders
import sampling
from gpssm.data import padding
from gpssm.data.padding import num_moves
from gpssm.inference.hmc import StepSize
from gpssm.methods import (
    FFVD,
    FFVDNUTS,
    FICParticleGibbs,
    MethodSettings,
    ParticleGibbs,
    ReducedRank,
)
from gpssm.model.priors import InverseGamma, Normal
from gpssm.model.types import Draw

LIMIT = 4.0  # standard errors

NOISES = {"log_process_std": InverseGamma(5.0, 0.5), "likelihood.log_std": InverseGamma(5.0, 0.5)}
HYPER = {"kernel.log_lengthscale": Normal(0.3, 0.4), "kernel.log_variance": Normal(0.0, 0.5)}


def make_model(state_dim, priors, basis="hilbert"):
    """Sines for a basis, or another, and these leaves to be sampled under these priors."""
    model = builders.make_model(
        basis, state_dim=state_dim, input_dim=1, output_dim=state_dim, num=4
    )
    return model.with_roles("fix", "*").with_priors(priors).with_roles("sample", *priors)


def make_series(lengths, dim):
    return [builders.make_series(n, 1, dim, missing=True, seed=i) for i, n in enumerate(lengths)]


def unit(model, now):
    """v_d ~ N(0, I)."""
    return 1.0


def draw_prior(key, model, series, scale=unit):
    """Leaves from their priors, weights, and states for each series: the joint law without the outputs."""
    leaves_key, weights_key, states_key = jax.random.split(key, 3)
    sampled = model.leaves("sample")
    keys = jax.random.split(leaves_key, len(sampled))
    leaves = {
        name: model.priors[name].sample(k, sampled[name].shape)
        for name, k in zip(sampled, keys, strict=True)
    }
    now, keys = model.with_leaves(leaves), jax.random.split(states_key, len(series))
    weights = scale(model, now) * jax.random.normal(
        weights_key, (model.state_dim, model.basis.size)
    )
    paths = [
        now.simulate(k, jnp.asarray(one.u), weights).states
        for k, one in zip(keys, series, strict=True)
    ]
    return Draw(tuple(paths), weights, leaves)


def draw_outputs(key, model, draw, series):
    """y | x anew, with the same entries missing."""
    likelihood, renewed = model.with_leaves(draw.leaves).likelihood, []
    for one_key, path, one in zip(
        jax.random.split(key, len(series)), draw.states, series, strict=True
    ):
        y = jnp.where(jnp.isfinite(one.y), likelihood.sample(one_key, path[1:]), jnp.nan)
        renewed.append(eqx.tree_at(lambda series: series.y, one, y))
    return renewed


def summarise(draw, series):
    """Functions of everything that is drawn: first and second moments, and products that tie the parts together."""
    first, second = draw.states
    y, noises = series[0].y[1], jnp.concatenate([draw.leaves[name] for name in NOISES])
    steps = jnp.sum((first[1:] - first[:-1]) ** 2, 0)
    single = [
        first[0],
        first[-1],
        second[-1],
        draw.weights.ravel(),
        y,
        *map(jnp.ravel, jax.tree.leaves(draw.leaves)),
    ]
    pairs = [
        first[0] * first[1],
        second[0] * second[1],
        first[2] * y,
        first[1] * draw.weights[:, 0],
    ]
    ties = [
        jnp.tile(steps, 2) * noises,
        draw.leaves["kernel.log_variance"] * draw.weights[:, 0] ** 2,
    ]
    values = jnp.concatenate(single)
    return jnp.concatenate([values, values**2, *pairs, *ties])


def simulate_marginal(model, series, num_draws, scale):
    """Functions of independent draws from the joint law."""

    def one(key):
        draw_key, outputs_key = jax.random.split(key)
        draw = draw_prior(draw_key, model, series, scale)
        return summarise(draw, draw_outputs(outputs_key, model, draw, series))

    keys = jax.random.split(jax.random.key(0), (sampling.NUM_CHAINS, num_draws))
    return jax.jit(jax.vmap(jax.vmap(one)))(keys)


def simulate_successive(config, freeze, model, series, num_draws, thin):
    """Functions along chains that draw the latents given the outputs and the outputs given the latents in turn.

    Of series that are padded, what pads is left out.
    """
    lengths = [int(num_moves([one])) + 1 for one in series]
    states = tuple(jnp.zeros((len(one) + 1, model.state_dim)) for one in series)
    method = config.build(model, states)

    def alternate(state, key):
        carry, series = state
        step_key, draw_key, outputs_key = jax.random.split(key, 3)
        carry, _ = method.step(step_key, carry, series)
        draw = method.draw(draw_key, carry, series)
        series = draw_outputs(outputs_key, model, draw, series)
        paths = tuple(path[:length] for path, length in zip(draw.states, lengths, strict=True))
        return (carry, series), summarise(draw._replace(states=paths), series)

    def keep(state, keys):
        state, values = jax.lax.scan(alternate, state, keys)
        return state, values[-1]

    def chain(key):
        start_key, key = jax.random.split(key)
        carry = freeze(method.init(start_key, series))
        carry = carry._replace(parameters=carry.parameters._replace(step=StepSize.start(0.5)))
        return jax.lax.scan(keep, (carry, series), jax.random.split(key, (num_draws, thin)))[1]

    keys = jax.random.split(jax.random.key(1), sampling.NUM_CHAINS)
    # The start at zero is forgotten.
    return jax.jit(lambda keys: jax.lax.map(chain, keys))(keys)[:, num_draws // 20 :]


class Case(NamedTuple):
    """A sampler, the basis of its model, the scale of its prior of the weights, and its step size: nothing adapts here.

    The step is large, so that a wrong accept step shows.
    """

    settings: MethodSettings
    freeze: Callable[[Any], Any] = lambda carry: carry
    basis: str = "hilbert"
    scale: Callable[[Any, Any], Any] = unit


CASES = {
    "ffvd": Case(
        FFVD(num_warmup=0, rank=5), lambda carry: carry._replace(step=StepSize.start(0.4))
    ),
    "ffvd-nuts": Case(
        FFVDNUTS(num_warmup=0, max_tree_depth=6),
        lambda carry: carry._replace(
            adaptation=carry.adaptation._replace(step=StepSize.start(0.2))
        ),
    ),
    "ffvd-p": Case(ParticleGibbs(num_warmup=0, num_particles=10)),
    "ffvd-p, predictive": Case(
        ParticleGibbs(num_warmup=0, num_particles=10, target="predictive"), basis="inducing"
    ),
    "fic-pg": Case(FICParticleGibbs(num_warmup=0, num_particles=6), basis="inducing"),
    # v_d | Q_d ~ N(0, (Q_d/Q°_d) I), unlike the prior of the other methods
    "rrank": Case(
        ReducedRank(num_warmup=0, num_particles=6),
        scale=lambda model, now: jnp.exp(now.log_process_std - model.log_process_std)[:, None],
    ),
}


def geweke_z(name, state_dim, num_draws, thin, change=lambda one: one):
    """The largest difference of the joint law along the chain from that of independent draws.

    :param change: what becomes of a series before it is given to the sampler.
    """
    case, series = CASES[name], make_series((4, 2), state_dim)
    model = make_model(state_dim, NOISES | HYPER, case.basis)
    expected = simulate_marginal(model, series, 5 * num_draws, case.scale)
    given = [jax.tree.map(jnp.asarray, change(one)) for one in series]
    found = simulate_successive(case.settings, case.freeze, model, given, num_draws, thin)
    return sampling.largest_z(found, expected, np.asarray)


def test_geweke_ffvd_quickly(monkeypatch):
    """With padding, of four rows to six and of two to three."""
    monkeypatch.setattr(padding, "LEAST", 3)
    assert geweke_z("ffvd", 1, 1000, thin=4, change=padding.pad) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_geweke(name):
    assert geweke_z(name, 2, 4000, thin=10 if name == "rrank" else 5) < LIMIT


CALIBRATED = {
    "ffvd": FFVD(num_warmup=200, rank=5),
    "ffvd-nuts": FFVDNUTS(num_warmup=200),
    "ffvd-p": ParticleGibbs(num_warmup=200, num_particles=20),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALIBRATED)
def test_ranks_of_the_truth_are_uniform(name):
    """Simulation-based calibration: the truth behind a data set ranks anywhere among draws given that data set."""
    series, num_draws, thin, bins = make_series((10,), 1), 31, 20, 8
    model = make_model(1, NOISES)

    def quantities(draw, series):
        path = draw.states[0]
        fit = model.with_leaves(draw.leaves).likelihood.log_prob(path[1:], series[0].y)
        noises = [draw.leaves[leaf] for leaf in NOISES]
        return jnp.concatenate([path[::5, 0], draw.weights[0], *noises, jnp.sum(fit)[None]])

    def rank(key):
        truth_key, outputs_key, start_key, chain_key = jax.random.split(key, 4)
        truth = draw_prior(truth_key, model, series)
        data = draw_outputs(outputs_key, model, truth, series)
        start = draw_prior(start_key, model, series).states
        draws, _, _ = sampling.chain(
            CALIBRATED[name], model, data, start, num_draws, thin, chain_key
        )
        below = jax.vmap(lambda draw: quantities(draw, data))(draws) < quantities(truth, data)[None]
        return jnp.sum(below, 0)

    # Data sets of their own for each sampler: shared ones would make one unlucky set of truths fail all.
    keys = jax.random.split(jax.random.key(2 + list(CALIBRATED).index(name)), 400)
    ranks = np.asarray(jax.jit(lambda keys: jax.lax.map(rank, keys))(keys))
    counts = np.stack(
        [np.bincount(column // ((num_draws + 1) // bins), minlength=bins) for column in ranks.T]
    )
    assert chisquare(counts, axis=1).pvalue.min() > 1e-3
