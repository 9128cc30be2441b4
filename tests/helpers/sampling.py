"""Chains of a method, and comparisons of their results within Monte Carlo error."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import builders
from gpssm.model.priors import InverseGamma, Normal

NUM_CHAINS, NUM_BATCHES = 4, 10


def chain(config, model, series, states, num_draws: int, thin: int, key):
    """One chain after its warm-up: draws, the Info of each iteration kept, and the last carry.

    Warm-up and sampling are one scan, which compiles the step once, so warm-up is a multiple of `thin`.
    """
    method = config.build(model, states)
    assert config.num_warmup % thin == 0
    start_key, key = jax.random.split(key)

    def keep(carry, key):
        step_key, draw_key = jax.random.split(key)
        step_keys = jax.random.split(step_key, thin)
        carry, infos = jax.lax.scan(
            lambda carry, key: method.step(key, carry, series), carry, step_keys
        )
        return carry, (
            method.draw(draw_key, carry, series),
            jax.tree.map(lambda values: values[-1], infos),
        )

    thrown_away = config.num_warmup // thin
    keys = jax.random.split(key, thrown_away + num_draws)
    carry, kept = jax.lax.scan(keep, method.init(start_key, series), keys)
    draws, infos = jax.tree.map(lambda values: values[thrown_away:], kept)
    return draws, infos, carry


def run(config, model, series, states, num_draws: int, thin: int = 1, seed: int = 0):
    """Several chains: draws with leading axes (chain, draw), the Info of each iteration kept, and the last carries."""

    @jax.jit
    def chains(keys, series, states):
        # One chain after the other: a batch of them would batch the factorisations.
        return jax.lax.map(
            lambda key: chain(config, model, series, states, num_draws, thin, key), keys
        )

    return chains(jax.random.split(jax.random.key(seed), NUM_CHAINS), series, states)


def flatten(draws) -> np.ndarray:
    """All drawn quantities: (chain, draw, entry)."""
    parts = [np.asarray(part) for part in jax.tree.leaves(draws)]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], -1)


def features(draws) -> np.ndarray:
    """States, weights and leaves, their squares and the products of neighbours: (chain, draw, feature)."""
    values = flatten(draws)
    return np.concatenate([values, values**2, values[..., 1:] * values[..., :-1]], -1)


def average(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of (chain, draw, feature) and its standard error by batch means."""
    length = values.shape[1] // NUM_BATCHES * NUM_BATCHES
    batches = values[:, :length].reshape(NUM_CHAINS * NUM_BATCHES, -1, values.shape[-1]).mean(1)
    return values.mean((0, 1)), batches.std(0, ddof=1) / np.sqrt(len(batches))


def largest_z(first, second, summarise: Callable = features, bias: float = 0.0) -> float:
    """The largest difference of two sets of draws in standard errors, beyond a tolerated relative
    bias.
    """
    (mean, error), (other, other_error) = average(summarise(first)), average(summarise(second))
    excess = np.maximum(np.abs(mean - other) - bias * np.abs(other), 0.0)
    return float((excess / np.hypot(error, other_error)).max())


def marginal_z(first, second) -> float:
    """The largest difference of the means, variances and 10, 50 and 90 % quantiles of every entry, in standard errors.

    Quantiles are compared by the share of draws below the quantile of both sets together.
    """
    pooled = np.concatenate([flatten(first), flatten(second)], 1)
    centre, cuts = pooled.mean((0, 1)), np.quantile(pooled, (0.1, 0.5, 0.9), axis=(0, 1))

    def marginals(draws):
        values = flatten(draws)
        return np.concatenate(
            [values, (values - centre) ** 2, *(values <= cut for cut in cuts)], -1
        )

    return largest_z(first, second, marginals)


def small_problem(lengths=(5, 3), state_dim=1, num=3):
    """A small model with everything fixed, short series with missing data, and states to start from."""
    dims = {"state_dim": state_dim, "input_dim": 1, "output_dim": state_dim}
    model = builders.make_model("inducing", **dims, num=num).with_roles("fix", "*")
    series = [
        builders.make_series(n, 1, state_dim, missing=True, seed=i) for i, n in enumerate(lengths)
    ]
    starts = [builders.make_states(n, state_dim, seed=i) for i, n in enumerate(lengths)]
    return model, series, tuple(jnp.asarray(path) for path in starts)


def sampled_problem():
    """The same with sampled noise levels and lengthscale, under informative priors for eight
    rows.
    """
    model, series, states = small_problem()
    tight = InverseGamma(5.0, 0.5)
    priors = {
        "log_process_std": tight,
        "likelihood.log_std": tight,
        "kernel.log_lengthscale": Normal(0.5, 0.3),
    }
    return model.with_priors(priors).with_roles("sample", *priors), series, states
