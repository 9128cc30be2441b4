"""Beliefs of particles about the weights against batch formulas and ratios of evidences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from gpssm.methods import fic_pg
from gpssm.methods.fic_pg import Look

STEPS, COUNT, DIM, SIZE = 6, 3, 2, 3
AHEAD = (slice(None, -1), slice(1, None))  # where transitions begin, and where they end


class Problem:
    """A made-up transition with a prior, a held path, and particles with random parents."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.slope, self.shift = rng.normal(size=(DIM, SIZE)), rng.normal(size=(DIM, SIZE))
        root = rng.normal(size=(DIM, SIZE, SIZE))
        self.precision, self.linear = (
            root @ root.swapaxes(1, 2) + np.eye(SIZE),
            rng.normal(size=(DIM, SIZE)),
        )
        self.held = rng.normal(size=(STEPS + 1, DIM))
        self.start, self.following = (
            rng.normal(size=(COUNT, DIM)),
            rng.normal(size=(STEPS, COUNT, DIM)),
        )
        self.parents = rng.integers(COUNT, size=(STEPS, COUNT))

    def look(self, x):
        """Gain, mean and spread that depend on the state, (N, ...)."""
        gain = np.tanh(x[:, :, None] * self.slope + self.shift)
        return Look(0.5 * x, gain, 0.05 + 0.1 * x**2)

    def paths(self):
        """The path of every particle at each time, 0 to T."""
        grown = [self.start[:, None]]
        for following, parents in zip(self.following, self.parents, strict=True):
            grown.append(np.concatenate([grown[-1][parents], following[:, None]], 1))
        return grown

    def future(self):
        """The transitions of the held path after each, the last without gain, and their values."""
        look = self.look(self.held[1:])
        look.gain[-1] = 0.0
        return look, np.concatenate([self.held[2:], self.held[:1]])

    def posterior(self, x, following):
        """Mean and covariance of the weights given transitions, by the batch formula."""
        look, error = self.look(x), following - self.look(x).mean
        precision, linear = self.precision.copy(), self.linear.copy()
        for d in range(DIM):
            scaled = look.gain[:, d] / look.spread[:, d, None]
            precision[d] += scaled.T @ look.gain[:, d]
            linear[d] += scaled.T @ error[:, d]
        covariance = np.linalg.inv(precision)
        return np.einsum("dij,dj->di", covariance, linear), covariance

    def log_evidence(self, x, following):
        """log p(transitions), the weights integrated out: a dense normal."""
        look, total = self.look(x), 0.0
        for d in range(DIM if len(x) else 0):
            gain, prior = look.gain[:, d], np.linalg.inv(self.precision[d])
            mean = look.mean[:, d] + gain @ prior @ self.linear[d]
            total += multivariate_normal.logpdf(
                following[:, d], mean, gain @ prior @ gain.T + np.diag(look.spread[:, d])
            )
        return total


@pytest.fixture(scope="module")
def problem():
    return Problem()


@pytest.fixture(scope="module")
def run(problem):
    """The lineage at each time, and what each particle expects of its next transition."""
    future, values = jax.tree.map(jnp.asarray, problem.future())
    begin = jax.jit(fic_pg.begin, static_argnums=4)
    look_ahead, advance = jax.jit(fic_pg.look_ahead), jax.jit(fic_pg.advance)
    lineage = begin(
        jnp.asarray(problem.precision), jnp.asarray(problem.linear), future, values, COUNT
    )
    lineages, outlooks, x = [lineage], [], problem.start
    for t in range(STEPS):
        outlooks.append(look_ahead(lineage, jax.tree.map(jnp.asarray, problem.look(x))))
        leaving = jax.tree.map(lambda part, t=t: part[t : t + 1], future)
        x = problem.following[t]
        parents, value = jnp.asarray(problem.parents[t]), values[t : t + 1]
        lineage = advance(lineage, outlooks[-1], parents, jnp.asarray(x), leaving, value)
        lineages.append(lineage)
    return lineages, outlooks


def test_rank_one_updates_equal_the_batch_formula(problem, run):
    for t, (paths, lineage) in enumerate(zip(problem.paths(), run[0], strict=True)):
        for n, path in enumerate(paths):
            for belief, rest in ((lineage.past, STEPS), (lineage.whole, t + 1)):
                x, following = (
                    np.concatenate([path[part], problem.held[rest:][part]]) for part in AHEAD
                )
                mean, covariance = problem.posterior(x, following)
                np.testing.assert_allclose(belief.mean[n], mean, rtol=1e-9, atol=1e-11)
                np.testing.assert_allclose(belief.covariance[n], covariance, rtol=1e-9, atol=1e-11)
                np.testing.assert_array_equal(belief.covariance[n], belief.covariance[n].mT)


def test_the_product_of_predictives_is_the_evidence(problem, run):
    totals = np.zeros(COUNT)
    for t, outlook in enumerate(run[1]):
        own = jax.tree.map(lambda part, t=t: part[problem.parents[t]], outlook[0])
        totals = totals[problem.parents[t]] + np.asarray(
            own.log_prob(jnp.asarray(problem.following[t]))
        )
    expected = [problem.log_evidence(path[:-1], path[1:]) for path in problem.paths()[-1]]
    np.testing.assert_allclose(totals, expected, rtol=1e-10)


def test_ancestor_weights_are_ratios_of_path_evidences(problem, run):
    """log p(x'_{t+1:T} | x₀:t) by each particle's past, up to a constant that they share."""
    for t, (paths, lineage, outlook) in enumerate(zip(problem.paths(), *run, strict=False)):
        found = lineage.log_future + outlook[1].log_prob(jnp.asarray(problem.held[t + 1 : t + 2]))
        expected = []
        for path in paths:
            joined = np.concatenate([path, problem.held[t + 1 :]])
            whole = problem.log_evidence(joined[:-1], joined[1:])
            expected.append(whole - problem.log_evidence(path[:-1], path[1:]))
        np.testing.assert_allclose(
            found - found[0], np.array(expected) - expected[0], rtol=1e-8, atol=1e-9
        )
        assert np.ptp(expected) > 0.1


def test_long_paths_lose_little_to_rounding():
    """500 transitions learned and 500 others forgotten, with noise of 1e-5 of the signal."""
    rng = np.random.default_rng(1)
    steps, size = 500, 30
    places = np.linspace(-2, 2, size)
    x = rng.uniform(-2, 2, size=(2, steps, 1, 1))
    gain = np.exp(-2 * (x - places) ** 2)
    spread, value = np.full((2, steps, 1), 1e-5), rng.normal(size=(2, steps, 1))
    own, other = (Look(np.zeros((steps, 1)), *pair) for pair in zip(gain, spread, strict=True))

    @jax.jit
    def go(own, other, following, values):
        start = fic_pg.begin(jnp.eye(size)[None], jnp.zeros((1, size)), other, values, 1)

        def step(lineage, now):
            look, leaving, x, value = jax.tree.map(lambda part: part[None], now)
            outlook = fic_pg.look_ahead(lineage, look)
            return fic_pg.advance(lineage, outlook, jnp.zeros(1, int), x, leaving, value), None

        return jax.lax.scan(step, start, (own, other, following, values))[0]

    end = go(own, other, *value)
    exact = np.linalg.inv(np.eye(size) + gain[0, :, 0].T @ gain[0, :, 0] / 1e-5)
    for belief in (end.past, end.whole):
        np.testing.assert_allclose(belief.covariance[0, 0], exact, atol=1e-7)
    np.testing.assert_allclose(end.whole.mean, end.past.mean, atol=1e-5)
    # With an empty future the rest is the constant that `begin` omits: minus its evidence under the
    # prior.
    dense = gain[1, :, 0] @ gain[1, :, 0].T + 1e-5 * np.eye(steps)
    np.testing.assert_allclose(
        end.log_future[0], -multivariate_normal.logpdf(value[1, :, 0], cov=dense), rtol=1e-9
    )
