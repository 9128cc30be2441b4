"""Likelihoods against scipy.stats, quadrature of their own densities, and Monte Carlo."""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from gpssm.model.likelihoods import (
    LIKELIHOODS,
    LINKS,
    Custom,
    FunctionGaussian,
    Likelihood,
    StudentT,
    make_likelihood,
    observed,
)

C, D, STD = np.array([[0.8, -0.3], [0.2, 0.6]]), np.array([0.4, -0.1]), np.array([0.3, 0.7])
STATES = np.random.default_rng(0).normal(size=(5, 2))
LINEAR = STATES @ C.T + D
DISCRETE = {"poisson": np.arange(80.0), "bernoulli": np.arange(2.0)}


class Cubic(eqx.Module):
    """An emission of the user's, with an array to learn."""

    strength: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.strength * x**3


class Laplace(eqx.Module):
    """A log density of the user's: y_j ~ Laplace(x_j, scale_j)."""

    log_scale: jax.Array

    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return -jnp.abs(y - x) * jnp.exp(-self.log_scale) - jnp.log(2.0) - self.log_scale

    def moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x, 2 * jnp.exp(2 * self.log_scale)

    def sample(self, key: jax.Array, x: jax.Array) -> jax.Array:
        return x + jnp.exp(self.log_scale) * jax.random.laplace(key, x.shape, x.dtype)


def linked(forward: Callable[[np.ndarray], np.ndarray]) -> object:
    return stats.norm(forward(LINEAR), STD)


LAPLACE = Laplace(jnp.log(jnp.asarray(STD)))
USERS: dict[str, Likelihood] = {
    "function": FunctionGaussian(jnp.log(jnp.asarray(STD)), Cubic(jnp.array([0.1, 0.2]))),
    "custom": Custom(LAPLACE, LAPLACE.moments, LAPLACE.sample),
}
EVERY = (*LIKELIHOODS, *USERS)
# What y follows at STATES, entry by entry.
REFERENCES = {
    "gaussian": linked(lambda eta: eta),
    "student-t": stats.t(4.0, LINEAR, STD),
    "poisson": stats.poisson(np.exp(LINEAR)),
    "bernoulli": stats.bernoulli(special.expit(LINEAR)),
    "abs": linked(np.abs),
    "square": linked(np.square),
    "softplus": linked(lambda eta: np.logaddexp(eta, 0)),
    "exp": linked(np.exp),
    "tanh": linked(np.tanh),
    # The identity, until something is learned.
    "wiener": linked(lambda eta: eta),
    "wiener-monotone": linked(lambda eta: eta),
    "function": stats.norm(STATES + np.array([0.1, 0.2]) * STATES**3, STD),
    "custom": stats.laplace(STATES, STD),
}


def build(name: str) -> Likelihood:
    return USERS[name] if name in USERS else make_likelihood(name, *map(jnp.asarray, (C, D, STD)))


def outputs(name: str) -> np.ndarray:
    return np.asarray(REFERENCES[name].rvs(size=(5, 2), random_state=1), float)


def support(name: str, center: float) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights for sums or integrals over one output; the sinh reaches far into heavy tails."""
    if name in DISCRETE:
        return DISCRETE[name], np.ones(len(DISCRETE[name]))
    t = np.linspace(-16, 16, 4001)
    return center + np.sinh(t), np.cosh(t) * (t[1] - t[0])


def test_every_likelihood_is_tested():
    assert set(REFERENCES) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_scipy_agrees(name):
    likelihood, y, law = build(name), outputs(name), REFERENCES[name]
    expected = law.logpmf(y) if name in DISCRETE else law.logpdf(y)
    log_density, moments = eqx.filter_jit(lambda p, x, y: (p.log_density(x, y), p.moments(x)))(
        likelihood, jnp.asarray(STATES), jnp.asarray(y)
    )
    np.testing.assert_allclose(log_density, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(moments[0], law.mean(), rtol=1e-9)
    np.testing.assert_allclose(moments[1], np.broadcast_to(law.var(), (5, 2)), rtol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_density_has_mass_one_and_the_moments(name):
    likelihood, x = build(name), jnp.asarray(STATES[:1])
    mean, variance = (np.asarray(moment)[0] for moment in likelihood.moments(x))
    for j in range(2):
        y, weights = support(name, mean[j])
        tiled = jnp.tile(x, (len(y), 1))
        mass = weights * np.exp(likelihood.log_density(tiled, jnp.tile(y[:, None], (1, 2)))[:, j])
        # Laplace has a kink at the centre, which costs the trapezoidal rule a few digits.
        digits = 1e-4 if name == "custom" else 1e-8
        moments = mass.sum(), mass @ y, mass @ (y - mean[j]) ** 2
        np.testing.assert_allclose(moments, (1.0, mean[j], variance[j]), rtol=digits)


@pytest.mark.parametrize("name", EVERY)
def test_draws_follow_the_law(name):
    """Means and E cos, E sin of the centred draws: bounded, so that heavy tails cannot hide an error."""
    num, law = 20_000, REFERENCES[name]
    x = jnp.tile(jnp.asarray(STATES[:1]), (num, 1))
    draws = np.asarray(build(name).sample(jax.random.key(2), x))
    assert draws.shape == (num, 2)
    centered = draws - law.mean()[0]
    assert np.all(np.abs(centered.mean(0)) < 5 * centered.std(0) / np.sqrt(num))
    for j, function in itertools.product(range(2), (np.cos, np.sin)):
        y, weights = support(name, law.mean()[0, j])
        density = law.pmf if name in DISCRETE else law.pdf
        mass = weights * density(y[:, None, None])[:, 0, j]
        values = function(centered[:, j])
        expected = mass @ function(y - law.mean()[0, j])
        assert abs(values.mean() - expected) < 5 * values.std() / np.sqrt(num)
    assert abs(np.corrcoef(np.tanh(centered.T))[0, 1]) < 5 / np.sqrt(num)


@pytest.mark.parametrize("name", EVERY)
def test_missing_entries_are_left_out(name):
    likelihood, x, y = build(name), jnp.asarray(STATES), outputs(name)
    entries = np.array(likelihood.log_density(x, jnp.asarray(y)))
    missing = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [0, 0]], bool)

    @eqx.filter_jit
    def value_and_slope(p: Likelihood, x: jax.Array, y: jax.Array) -> tuple:
        return p.log_prob(x, y), eqx.filter_grad(
            lambda args: jnp.sum(args[0].log_prob(args[1], y))
        )((p, x))

    value, slope = value_and_slope(likelihood, x, jnp.asarray(np.where(missing, np.nan, y)))
    np.testing.assert_allclose(value, np.where(missing, 0, entries).sum(1), rtol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    assert np.all(slope[1][3] == 0)
    assert np.abs(slope[1][:3]).max(1).min() > 0


@pytest.mark.parametrize("name", EVERY)
def test_single_precision_stays_single(name):
    p, x, y = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32), (build(name), STATES, outputs(name))
    )
    results = jax.eval_shape(
        lambda: (
            p.log_prob(x, y),
            *p.moments(x),
            p.sample(jax.random.key(0), x),
            p.pseudo_outputs(y),
        )
    )
    assert all(result.dtype == jnp.float32 for result in results)


@pytest.mark.parametrize("name", EVERY)
def test_pseudo_outputs_are_finite_and_keep_gaps(name):
    y = jnp.asarray(np.where(np.eye(5, 2), np.nan, outputs(name)))
    pseudo = build(name).pseudo_outputs(y)
    np.testing.assert_array_equal(np.isnan(pseudo), np.isnan(y))
    assert np.isfinite(pseudo[2:]).all()


@pytest.mark.parametrize("name", LINKS)
def test_pseudo_outputs_invert_the_link(name):
    noiseless = LINKS[name].forward(jnp.asarray(LINEAR))
    pseudo = build(name).pseudo_outputs(noiseless)
    np.testing.assert_allclose(LINKS[name].forward(pseudo), noiseless, rtol=1e-9)
    branch = np.abs(LINEAR) if name in ("abs", "square") else LINEAR
    np.testing.assert_allclose(pseudo, branch, rtol=1e-9)


def test_pseudo_outputs_of_counts_and_classes_are_on_the_scale_of_the_predictor():
    y = jnp.array([[0.0, 1.0]])
    np.testing.assert_allclose(jnp.exp(build("poisson").pseudo_outputs(y)), [[0.5, 1.5]])
    np.testing.assert_allclose(jax.nn.sigmoid(build("bernoulli").pseudo_outputs(y)), [[0.1, 0.9]])
    np.testing.assert_allclose(build("gaussian").pseudo_outputs(y), y)


def test_observed_gives_safe_values_and_a_mask():
    value, present = observed(jnp.array([[1.0, jnp.nan], [jnp.nan, -2.0]]))
    np.testing.assert_array_equal(value, [[1, 0], [0, -2]])
    np.testing.assert_array_equal(present, [[True, False], [False, True]])


def test_custom_says_what_it_lacks():
    bare = Custom(LAPLACE)
    assert np.isfinite(bare.log_prob(jnp.asarray(STATES), jnp.asarray(STATES))).all()
    with pytest.raises(TypeError, match=r"emission=\.\.\."):
        bare.moments(jnp.asarray(STATES))
    with pytest.raises(TypeError, match=r"sampler=\.\.\."):
        bare.sample(jax.random.key(0), jnp.asarray(STATES))


def test_counts_at_extreme_rates():
    x = jnp.array([1000.0, jnp.nan, -1000.0, 30.0, 20.0])[:, None]
    likelihood = make_likelihood("poisson", jnp.ones((1, 1)), jnp.zeros(1), jnp.ones(1))
    counts = likelihood.sample(jax.random.key(0), x)[:, 0]
    np.testing.assert_array_equal(counts[:3], [np.inf, np.nan, 0.0])
    np.testing.assert_allclose(counts[3:], np.exp([30.0, 20.0]), rtol=5 * np.exp(-10))


def test_names_pass_through_and_errors_say_what_to_do():
    likelihood = build("gaussian")
    assert make_likelihood(likelihood, likelihood.C, likelihood.d, likelihood.d) is likelihood
    with pytest.raises(KeyError) as raised:
        make_likelihood("cauchy", likelihood.C, likelihood.d, likelihood.d)
    assert all(name in str(raised.value) for name in ("'cauchy'", *LIKELIHOODS))
    with pytest.raises(ValueError, match=r"must exceed 2, got 1\.5"):
        StudentT.build(likelihood.C, likelihood.d, likelihood.d, degrees_of_freedom=1.5)
