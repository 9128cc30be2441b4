"""IGPSSM against quadrature, Kalman smoothing and finite differences, and the rows that its network
reads.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import builders
from gpssm.core.linalg import selected_inverse
from gpssm.linear.state_space import LinearSSM, log_marginal, smooth
from gpssm.methods.igpssm import IGPSSM, ChainLaw, Recogniser, chain_bound, pad
from gpssm.methods.variational import StartLaw, WeightLaw, cut, readable, take
from gpssm.model.likelihoods import Gaussian
from two_steps import GRID, TwoSteps

LIMIT = 4.5  # standard errors


@eqx.filter_jit
def estimates(model, weights, law, series, count=64, repeats=200):
    """Independent estimates of the bound from `count` paths each."""
    batch = take(series, cut([len(one) for one in series], None))
    keys = jax.random.split(jax.random.key(0), repeats)
    return jax.lax.map(lambda key: chain_bound(key, model, weights, law, batch, count), keys)


def assert_mean(values, expected):
    assert abs(np.mean(values) - expected) < LIMIT * np.std(values) / np.sqrt(len(values))


def as_chain(mean, std, slope, offset, step_std):
    """The law of one series of one state."""
    rows = [jnp.asarray(part, float)[:, None, None] for part in (slope, offset, np.log(step_std))]
    return ChainLaw(StartLaw(jnp.array([[mean]]), jnp.log(jnp.array([[std]]))), *rows)


def test_bound_is_that_of_quadrature_and_below_the_best_states():
    """All of it at once: expectations, entropies and divergences, with uncertain weights and a residual."""
    problem = TwoSteps()
    mean, cov = problem.best
    start, slope, offset, std = (0.1, 0.8), (0.3, -0.2), (0.2, -0.1), (0.4, 0.5)
    first = norm.logpdf(GRID, *start)
    steps = [
        norm.logpdf(GRID[None], s * GRID[:, None] + o, d)
        for s, o, d in zip(slope, offset, std, strict=True)
    ]
    expected = problem.bound_of_states(
        mean, cov, first[:, None, None] + steps[0][:, :, None] + steps[1][None]
    )
    factor = np.linalg.cholesky(cov)
    raw = np.tril(factor, -1) + np.diag(np.log(np.diagonal(factor)))
    weights = WeightLaw(jnp.asarray(mean)[None], jnp.asarray(raw)[None])
    values = estimates(
        problem.model, weights, as_chain(*start, slope, offset, std), [problem.series]
    )
    assert_mean(values, expected)
    assert expected < problem.bound(mean, cov) < problem.free_form < problem.exact


def test_the_smoother_as_a_chain_makes_the_bound_tight():
    """Linear and Gaussian with weights of no prior variance: the family has the posterior."""
    model = builders.make_model("linear", state_dim=1)
    model = model.with_leaves({"basis.log_scale": jnp.full((1, 3), -20.0)})
    series = builders.make_series(6, missing=True)
    likelihood = model.likelihood
    assert isinstance(likelihood, Gaussian)
    parts = (
        model.mean.transition,
        model.mean.input_map,
        model.mean.offset,
        likelihood.C,
        likelihood.d,
    )
    linear = LinearSSM(*parts, jnp.diag(model.process_variance), jnp.exp(likelihood.log_std))
    smoothed = smooth(linear, series)
    mean, cov = np.asarray(smoothed.mean)[:, 0], jax.jit(selected_inverse)(smoothed.factor)
    own, cross = np.asarray(cov.diagonal)[:, 0, 0], np.asarray(cov.lower)[:, 0, 0]
    slope = cross / own[:-1]
    law = as_chain(
        mean[0],
        np.sqrt(own[0]),
        slope,
        mean[1:] - slope * mean[:-1],
        np.sqrt(own[1:] - slope * cross),
    )
    prior = WeightLaw(jnp.zeros((1, 3)), jnp.zeros((1, 3, 3)))
    evidence = float(log_marginal(linear, series))
    assert_mean(estimates(model, prior, law, [series]), evidence)
    others = (law._replace(slope=0.5 * law.slope), law._replace(offset=law.offset + 0.1))
    others += (
        law._replace(log_std=law.log_std + 0.3),
        law._replace(start=StartLaw(*(part + 0.3 for part in law.start))),
    )
    for other in others:
        assert np.mean(estimates(model, prior, other, [series])) < evidence - 0.01


@pytest.fixture(scope="module")
def several():
    """Two series of unequal length with missing outputs, states of each, and a net with effect."""
    model = builders.make_model("stacked").with_roles("sample", "log_process_std", "likelihood.*")
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 4))]
    states = tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate((5, 4)))
    net = Recogniser.start(jax.random.key(0), 5, 3, model.log_process_std)
    rng = np.random.default_rng(0)
    maps = [
        jnp.asarray(0.3 * rng.normal(size=leaf.shape)) for leaf in (net.step_map, net.start_map)
    ]
    return model, series, states, eqx.tree_at(lambda one: (one.step_map, one.start_map), net, maps)


@eqx.filter_jit
def read(net, model, series, states):
    batch = take(series, cut([len(one) for one in series], None))
    seen = readable(model, batch)
    return seen, batch.inside, net.read(seen, batch.inside), net(seen, batch.inside, pad(states))


def test_a_series_is_read_alike_alone_and_beside_a_longer_one(several):
    model, series, states, net = several
    *_, law = read(net, model, series, states)
    for index, one in enumerate(series):
        *_, alone = read(net, model, [one], [states[index]])
        for part, own in zip(law[1:], alone[1:], strict=True):
            np.testing.assert_allclose(part[: len(one), index], own[:, 0], rtol=1e-12)
        np.testing.assert_allclose(law.start.mean[index], alone.start.mean[0], rtol=1e-12)
        np.testing.assert_allclose(law.start.log_std[index], alone.start.log_std[0], rtol=1e-12)


def test_the_net_reads_both_ways_as_cells_do_in_turn(several):
    """Against equinox's cells in a loop; with the cells exchanged, time reversed gives everything reversed."""
    model, series, states, net = several
    seen, inside, features, _ = read(net, model, series[:1], states[:1])
    forward, backward = (jax.tree.map(lambda leaf, way=way: leaf[way], net.cells) for way in (0, 1))
    after, before, hidden = [], [], jnp.zeros(3)
    for row in seen[:, 0]:
        hidden = forward(row, hidden)
        after.append(hidden)
    hidden = jnp.zeros(3)
    for row in seen[::-1, 0]:
        hidden = backward(row, hidden)
        before.append(hidden)
    np.testing.assert_allclose(features[:, 0], np.hstack([after, before[::-1]]), rtol=1e-12)
    exchanged = eqx.tree_at(
        lambda one: one.cells, net, jax.tree.map(lambda leaf: leaf[::-1], net.cells)
    )
    reverse = eqx.filter_jit(exchanged.read)(seen[::-1], inside)
    np.testing.assert_allclose(reverse[::-1, 0], np.roll(features[:, 0], 3, axis=1), rtol=1e-12)


def test_missing_outputs_look_like_nothing(several):
    model, series, states, net = several
    seen, *_ = read(net, model, series, states)
    assert np.all(np.isfinite(seen))
    np.testing.assert_array_equal(seen[:, 0, 2:4], np.isfinite(series[0].y))
    np.testing.assert_array_equal(seen[2, 0, :4], 0.0)
    np.testing.assert_array_equal(seen[4, 1], 0.0)


def test_gradients_match_finite_differences(several):
    """Of the whole bound, along random directions, in the net, in q(v) and in the model's leaves."""
    model, series, states, net = several
    batch, around = take(series, cut([5, 4], None)), pad(states)
    weights = WeightLaw(
        jnp.full((2, model.basis.size), 0.1),
        0.1 * jnp.ones((2, model.basis.size, model.basis.size)),
    )

    @eqx.filter_jit
    def value(point):
        net, weights, leaves = point
        now = model.with_leaves(leaves)
        law = net(readable(now, batch), batch.inside, around)
        return chain_bound(jax.random.key(1), now, weights, law, batch, 2)

    point = (net, weights, model.leaves("optimise") | model.leaves("sample"))
    gradient = eqx.filter_jit(jax.grad(value))(point)
    rng = np.random.default_rng(1)
    for part in range(3):
        direction = jax.tree.map(jnp.zeros_like, point)
        random = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), point[part])
        direction = (*direction[:part], random, *direction[part + 1 :])
        ends = [
            jax.tree.map(lambda leaf, way, size=size: leaf + size * way, point, direction)
            for size in (1e-5, -1e-5)
        ]
        slope = (value(ends[0]) - value(ends[1])) / 2e-5
        product = sum(
            jnp.sum(a * b)
            for a, b in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True)
        )
        np.testing.assert_allclose(product, slope, rtol=1e-5)


@pytest.mark.slow
def test_iterations_learn_everything_that_is_free_and_draws_fit_the_series(several):
    model, series, states, _ = several
    config = IGPSSM(num_warmup=3, hidden=3)
    method = config.build(model, states)
    step, carry = jax.jit(method.step), jax.jit(method.init)(jax.random.key(0), series)
    before = carry.guess
    for iteration in range(3):
        carry, info = step(jax.random.key(iteration), carry, series)
        assert np.isfinite(info.log_target)
    changed = jax.tree.map(lambda new, old: bool(np.any(new != old)), carry.guess, before)
    assert all(jax.tree.leaves(changed))
    assert set(carry.guess.leaves) == {name for name, role in model.roles if role != "fix"}
    draw = jax.jit(method.draw)(jax.random.key(4), carry, series)
    assert [path.shape for path in draw.states] == [(6, 2), (5, 2)]
    assert draw.weights.shape == (2, model.basis.size)
    centred = [np.abs(path - start).max() for path, start in zip(draw.states, states, strict=True)]
    assert max(centred) < 1.0
