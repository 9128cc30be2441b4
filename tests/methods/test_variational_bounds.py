"""The common rollout of the variational methods: KL terms, windows, gradients, and bounds against
the evidence.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import norm

import builders
from gpssm.data.series import Series
from gpssm.methods.prssm import PRSSM, follow_prior
from gpssm.methods.variational import (
    StartLaw,
    VariationalPosterior,
    WeightLaw,
    conditional,
    cut,
    divergence_given_function,
    join,
    marginal,
    path_bound,
    roll,
    take,
    weights_at,
    windows,
)
from gpssm.methods.vcdt import (
    VCDT,
    Law,
    VCDTFactorised,
)
from gpssm.model.bases import InducingPoints
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap
from gpssm.model.model import GPSSM
from gpssm.model.target import weights_given_states

METHODS = [PRSSM, VCDTFactorised, VCDT]  # from the loosest bound to the tightest


def random_law(model, seed=0):
    rng = np.random.default_rng(seed)
    shape = (model.state_dim, model.basis.size)
    return WeightLaw(
        jnp.asarray(rng.normal(size=shape)), jnp.asarray(0.3 * rng.normal(size=(*shape, shape[1])))
    )


def test_divergences_match_monte_carlo():
    rng = np.random.default_rng(0)
    law, start = (
        random_law(builders.make_model("linear")),
        StartLaw(*jnp.asarray(rng.normal(size=(2, 3, 2)) * 0.5)),
    )
    v = np.asarray(law.draw(jax.random.key(0), 200_000))
    error = v - np.asarray(law.mean)[:, None]
    factor = np.asarray(law.factor)
    np.testing.assert_allclose(
        np.einsum("dsm,dsn->dmn", error, error) / v.shape[1], factor @ factor.mT, atol=0.05
    )
    whitened = np.einsum("dmn,dsn->dsm", np.linalg.inv(factor), error)
    log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum()
    ratio = (norm.logpdf(whitened) - norm.logpdf(v)).sum((0, 2)) - log_det
    assert abs(ratio.mean() - law.divergence()) < 4 * ratio.std() / np.sqrt(len(ratio))
    x = np.asarray(start.draw(jax.random.key(1), 100_000)).reshape(3, -1, 2)
    mean, std = np.asarray(start.mean)[:, None], np.exp(np.asarray(start.log_std))[:, None]
    ratio = (norm.logpdf(x, mean, std) - norm.logpdf(x)).sum(-1)
    assert np.all(
        np.abs(ratio.mean(1) - start.divergence()) < 4 * ratio.std(1) / np.sqrt(ratio.shape[1])
    )


@pytest.mark.parametrize("slope", [0.0, 0.6, 1.0])
def test_step_divergence_matches_monte_carlo(slope):
    """Against draws of f and then x': the mean of log N(x'; F f + g, S) − log N(x'; f, Q)."""
    rng, centre, spread, offset, noise, variance = (
        np.random.default_rng(0),
        0.7,
        0.3,
        -0.2,
        0.15,
        0.25,
    )
    f = centre + np.sqrt(spread) * rng.normal(size=400_000)
    x = slope * f + offset + np.sqrt(noise) * rng.normal(size=f.size)
    ratio = norm.logpdf(x, slope * f + offset, np.sqrt(noise)) - norm.logpdf(
        x, f, np.sqrt(variance)
    )
    gap = (slope - 1) * centre + offset
    exact = divergence_given_function(gap, slope, noise, spread, variance)
    assert abs(ratio.mean() - exact) < 4 * ratio.std() / np.sqrt(f.size)
    assert divergence_given_function(0.0, 1.0, variance, spread, variance) == pytest.approx(0.0)


@pytest.mark.parametrize("window", [3, 8])
def test_windows_cover_every_row_equally(window):
    """Averaged over all windows, a weighted sum over the rows of one is the sum over the rows of all series."""
    series = [builders.make_series(n, seed=i) for i, n in enumerate((5, 8, 1))]
    every = windows([5, 8, 1], window)
    batches = [take(series, every, jnp.asarray([k])) for k in range(len(every.first))]
    total = sum(float(one.weight) * np.nansum(one.y) for one in batches) / len(batches)
    assert total == pytest.approx(sum(one.y.sum() for one in series))
    whole = take(series, every)
    assert whole.weight * np.nansum(whole.y) == pytest.approx(total)
    assert len(every.first) == (3 if window == 8 else 14 + 3 * (window - 1))


@pytest.mark.parametrize("window", [3, None])
def test_pieces_are_joined_to_paths(window):
    """Cut and joined again, rows stand where they stood; pieces are counted from the end."""
    lengths = [5, 7]
    series = [Series(10.0 * i + np.arange(n)[:, None]) for i, n in enumerate(lengths, 1)]
    pieces = cut(lengths, window)
    batch = take(series, pieces)
    states = jnp.concatenate([jnp.full((1, *batch.y.shape[1:]), -1.0), batch.y])
    for path, one in zip(join(states, pieces, lengths), series, strict=True):
        np.testing.assert_array_equal(path, np.concatenate([[[-1.0]], one.y]))
    if window:
        np.testing.assert_array_equal(pieces.end - pieces.first, [2, 3, 1, 3, 3])


def test_function_moments():
    """Weights drawn and weights integrated out have the same moments of f."""
    model = builders.make_model("inducing")
    law, x = random_law(model), jnp.asarray(builders.make_states(4))

    @jax.jit
    def moments(key):
        step = model.transition()(x, jnp.ones((5, 1)))
        drawn = jax.vmap(lambda v: conditional(v[:, None])(step), 1)(law.draw(key, 4000))
        return drawn, marginal(law)(step), step.residual

    (drawn, drawn_variance), (mean, variance), residual = moments(jax.random.key(0))
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.1)
    np.testing.assert_allclose(drawn.var(0) + drawn_variance[0], variance, rtol=0.1)
    np.testing.assert_allclose(drawn_variance[-1], np.maximum(residual, 0).T)


@pytest.fixture(scope="module")
def small():
    """Two short series of unequal length with missing entries, and states beside them."""
    model = builders.make_model("inducing")
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 3))]
    states = tuple(jnp.asarray(builders.make_states(n)) for n in (5, 3))
    return model, series, states


def test_gradients_match_finite_differences(small):
    """Of all three bounds in leaves, q(v) and the conditioner's parameters, with common random numbers."""
    model, series, states = small
    rng, key, size = np.random.default_rng(0), jax.random.key(1), 1e-5
    coupled = VCDT(num_samples=3).build(model, states)
    factorised = VCDTFactorised(num_samples=3).build(model, states)
    batch = take(series, cut([5, 3], None))
    start, steps = (
        StartLaw(*0.3 * rng.normal(size=(2, 2, 2))),
        tuple(0.3 * rng.normal(size=(3, 5, 2, 2))),
    )
    anchor = jnp.asarray(rng.normal(size=(3, 5, 2, 2)))
    flat, unravel = ravel_pytree((model.leaves(), random_law(model), start, steps))
    direction = rng.normal(size=flat.size)

    @jax.jit
    @jax.value_and_grad
    def total(flat):
        leaves, law, start, steps = unravel(flat)
        now = model.with_leaves(leaves)
        rolled = roll(key, now, marginal(law), follow_prior, start.draw(key, 3), batch.u)
        q = VariationalPosterior(now, law, (start, Law(*steps, *anchor)))
        bounds = [coupled.coupled_bound(key, q, series), factorised.bound(key, q, series, 0)]
        return path_bound(now, *rolled, start, batch) + 2 * bounds[0] + 3 * bounds[1]

    ahead, behind = (float(total(flat + sign * size * direction)[0]) for sign in (1, -1))
    assert float(total(flat)[1] @ direction) == pytest.approx(
        (ahead - behind) / (2 * size), rel=1e-5
    )


def test_windows_of_the_bound_are_unbiased(small):
    """With certain starts and noise-free dynamics nothing is random: all windows together are all pieces' sums."""
    model, series, _ = small
    model = model.with_leaves(
        {"log_process_std": jnp.full(2, -30.0), "kernel.log_variance": jnp.full(2, -60.0)}
    )
    every, law = windows([5, 3], 2), conditional(jnp.zeros((2, 1, model.basis.size)))

    @jax.jit
    def bound(chosen):
        batch = take(series, every, chosen)
        start = StartLaw(jnp.nan_to_num(batch.y[0]), jnp.full((len(chosen), 2), -20.0))
        rolled = roll(
            jax.random.key(0), model, law, follow_prior, start.draw(jax.random.key(0), 1), batch.u
        )
        return path_bound(model, *rolled, start, batch)

    parts = [bound(jnp.asarray([k])) for k in range(len(every.first))]
    np.testing.assert_allclose(np.mean(parts), bound(jnp.arange(len(every.first))), rtol=1e-6)
    assert np.std(parts) > 1


def two_step_problem():
    """One state, two outputs in time, three inducing points near the path, a kernel that leaves a residual."""
    kernel = SquaredExponential(jnp.log(jnp.asarray([0.5])), jnp.zeros((1, 1)))
    mean = LinearMap(jnp.asarray([[0.6]]), jnp.zeros((1, 0)), jnp.asarray([0.2]))
    likelihood = Gaussian.build(jnp.asarray([[1.2]]), jnp.asarray([0.1]), jnp.asarray([0.4]))
    basis = InducingPoints(jnp.asarray([[-1.0], [0.5], [1.5]]))
    model = GPSSM.create(kernel, basis, mean, likelihood, jnp.asarray([0.5])).with_roles("fix", "*")
    return model, Series(np.array([[0.9], [-0.4]]))


def two_step_evidence(model, series):
    """log ∫ p(y, x, v), x_{t+1} ~ N(m + A v, B + Q): v and x₂ in closed form, x₀ and x₁ by quadrature."""
    grid = np.linspace(-7, 7, 701)
    step = model.transition()(jnp.asarray(grid)[:, None], jnp.zeros((grid.size, 0)))
    mean, gain, extra = (
        np.asarray(step.mean[:, 0]),
        np.asarray(step.gain[0]),
        np.asarray(step.residual[0]),
    )
    C, d, R = (
        float(np.ravel(a)[0])
        for a in (model.likelihood.C, model.likelihood.d, jnp.exp(2 * model.likelihood.log_std))
    )
    noise = extra + float(model.process_variance[0])
    variance, cross = (gain**2).sum(1) + noise, gain @ gain.T
    first, second = np.meshgrid(np.arange(grid.size), np.arange(grid.size), indexing="ij")  # x₀, x₁
    pull = cross / variance[:, None]
    centre = mean[second] + pull * (grid[second] - mean[first])
    spread = variance[second] - pull * cross
    density = norm.logpdf(grid)[:, None] + norm.logpdf(
        grid[second], mean[first], np.sqrt(variance[first])
    )
    density += norm.logpdf(series.y[0, 0], C * grid[second] + d, np.sqrt(R))
    density += norm.logpdf(series.y[1, 0], C * centre + d, np.sqrt(C**2 * spread + R))
    return np.log(np.sum(np.exp(density)) * (grid[1] - grid[0]) ** 2)


def climb(config, model, series, states, seed=0):
    """The bound along an optimisation of q."""
    method = config.build(model, states)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, config.num_warmup)
        return jax.lax.scan(
            lambda carry, key: method.step(key, carry, series), method.init(key, series), keys
        )

    return np.asarray(run(jax.random.key(seed))[1].log_target)


@pytest.mark.slow
def test_bounds_of_two_steps_are_below_the_evidence_and_in_order():
    """PR-SSM < factorised < VCDT < evidence; the last is not far off."""
    model, series = two_step_problem()
    states, rate = (
        (jnp.asarray([[0.2], [0.4], [-0.2]]),),
        {"num_warmup": 300, "learning_rate": 0.03},
    )
    found = [climb(kind(num_samples=100, **rate), model, [series], states) for kind in METHODS]
    settled = np.array([bounds[-100:] for bounds in found])
    error = settled.std(1) / 10
    assert np.all(settled.mean(1) > [bounds[:10].mean() for bounds in found])
    ladder = np.array([*settled.mean(1), two_step_evidence(model, series)])
    assert np.all(np.diff(ladder) > 4 * error)
    assert ladder[3] - ladder[2] < 0.5


def test_weights_start_at_their_law_given_the_states(small):
    model, series, states = small
    law, exact = jax.jit(
        lambda: (weights_at(model, states, series), weights_given_states(model, states, series))
    )()
    np.testing.assert_allclose(law.mean, exact.mean)
    covariance = np.asarray(law.factor @ law.factor.mT)
    np.testing.assert_allclose(
        covariance @ np.asarray(exact.precision),
        np.eye(len(covariance[0]))[None].repeat(2, 0),
        atol=1e-6,
    )
