"""Each exact conditional against differences of the joint log density along the leaf that it draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import invgamma, kstest, multivariate_normal

import builders
from gpssm.data.padding import pad, pad_path
from gpssm.model import conditionals
from gpssm.model.likelihoods import Poisson
from gpssm.model.priors import Normal
from gpssm.model.target import log_target

LENGTHS = (5, 4)


def problem(basis="stacked"):
    model = builders.make_model(basis)
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate(LENGTHS)]
    states = [jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate(LENGTHS)]
    weights = jnp.asarray(np.random.default_rng(7).normal(size=(2, model.basis.size)))
    priors = {
        "likelihood.C": Normal(0.3, 0.7),
        "likelihood.d": Normal(jnp.asarray([0.1, -0.2]), 0.4),
    }
    return model.with_priors(priors), series, states, weights


@eqx.filter_jit
def log_joint(model, states, weights, series):
    return log_target(model, states, weights, series) + model.log_prior()


process_noise_given, noise_given_emission, emission_given_noise = map(
    eqx.filter_jit,
    (
        conditionals.process_noise_given,
        conditionals.noise_given_emission,
        conditionals.emission_given_noise,
    ),
)


def log_inverse_gamma(conditional, log_std):
    """The conditional's density of log σ: the inverse gamma of σ² times dσ²/d log σ."""
    variance = np.exp(2 * log_std)
    shape, scale = np.asarray(conditional.shape), np.asarray(conditional.scale)
    return np.sum(invgamma.logpdf(variance, shape, scale=scale) + np.log(2 * variance))


def padded(states, series):
    """The same, padded."""
    return [jnp.asarray(pad_path(path)) for path in states], [pad(one) for one in series]


@pytest.mark.parametrize("change", [lambda *data: data, padded], ids=["as they are", "padded"])
@pytest.mark.parametrize(
    ("leaf", "basis"),
    [
        ("log_process_std", "stacked"),
        ("log_process_std", "hilbert"),
        ("likelihood.log_std", "stacked"),
    ],
)
def test_noise_conditionals(leaf, basis, change):
    model, series, states, weights = problem(basis)
    paths, rows = change(states, series)
    conditional = (
        process_noise_given(model, paths, weights, rows)
        if leaf == "log_process_std"
        else noise_given_emission(model, paths, rows)
    )
    points = [np.array([-0.9, -0.4]), np.array([-0.1, -1.3]), np.array([0.4, 0.2])]
    joint = [
        log_joint(model.with_leaves({leaf: jnp.asarray(p)}), states, weights, series)
        for p in points
    ]
    found = [log_inverse_gamma(conditional, point) for point in points]
    np.testing.assert_allclose(np.diff(found), np.diff(joint), rtol=1e-9)


@pytest.mark.parametrize("change", [lambda *data: data, padded], ids=["as they are", "padded"])
def test_emission_conditional(change):
    model, series, states, weights = problem()
    conditional = emission_given_noise(model, *change(states, series))
    points = np.random.default_rng(0).normal(size=(3, 2, 3))
    joint, found = [], []
    for point in points:
        leaves = {
            "likelihood.C": jnp.asarray(point[:, :2]),
            "likelihood.d": jnp.asarray(point[:, 2]),
        }
        joint.append(log_joint(model.with_leaves(leaves), states, weights, series))
        rows = zip(point, conditional.mean, conditional.precision, strict=True)
        found.append(sum(multivariate_normal.logpdf(p, m, np.linalg.inv(h)) for p, m, h in rows))
    np.testing.assert_allclose(np.diff(found), np.diff(joint), rtol=1e-9)


def test_draws_follow_their_conditionals():
    model, series, states, weights = problem()
    noise = process_noise_given(model, states, weights, series)
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = np.exp(
        2 * np.asarray(jax.jit(jax.vmap(lambda k: conditionals.draw_noise(k, noise)))(keys))
    )
    for d in range(2):
        assert kstest(drawn[:, d], invgamma(noise.shape[d], scale=noise.scale[d]).cdf).pvalue > 1e-3
    emission = emission_given_noise(model, states, series)
    rows = np.asarray(jax.jit(jax.vmap(lambda k: conditionals.draw_gaussian(k, emission)))(keys))
    for j in range(2):
        factor = np.linalg.cholesky(np.asarray(emission.precision[j]))
        standard = (rows[:, j] - np.asarray(emission.mean[j])) @ factor
        assert all(kstest(column, "norm").pvalue > 1e-3 for column in standard.T)
        np.testing.assert_allclose(np.corrcoef(standard.T), np.eye(3), atol=5 / np.sqrt(2000))


def test_conjugacy_is_required_and_named():
    model, series, states, weights = problem()
    with pytest.raises(
        TypeError, match=r"log_process_std needs a prior of type InverseGamma, got Normal"
    ):
        conditionals.process_noise_given(
            model.with_priors({"log_process_std": Normal(0.0, 1.0)}), states, weights, series
        )
    counts = eqx.tree_at(
        lambda m: m.likelihood, model, Poisson(C=model.likelihood.C, d=model.likelihood.d)
    )
    with pytest.raises(
        TypeError, match="Only a linear-Gaussian emission can be drawn exactly, not Poisson"
    ):
        conditionals.emission_given_noise(counts, states, series)
