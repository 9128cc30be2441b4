"""The free-form posterior against NumPy loops, dense Gaussians, quadrature and Kalman smoothing."""

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import builders
from gpssm.core import loops
from gpssm.data.padding import pad
from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM, log_marginal, smooth
from gpssm.model import target
from gpssm.model.bases import Hilbert

log_target = eqx.filter_jit(target.log_target)
log_collapsed = eqx.filter_jit(target.log_collapsed)
# One without controls: they are columns of z like any other.
CASES = [*itertools.product(builders.BASIS_NAMES, (1,), (False, True)), ("stacked", 0, True)]


def problem(basis, input_dim=1, missing=True, lengths=(7,)):
    model = builders.make_model(basis, input_dim=input_dim)
    series = [
        builders.make_series(n, input_dim, missing=missing, seed=i) for i, n in enumerate(lengths)
    ]
    states = [builders.make_states(n, seed=10 + i) for i, n in enumerate(lengths)]
    weights = np.random.default_rng(7).normal(size=(2, model.basis.size))
    return (
        (model, series, states, weights)
        if len(lengths) > 1
        else (model, series[0], states[0], weights)
    )


@eqx.filter_jit
def transition(model, x, u):
    return model.transition()(x, u)


def numpy_step(model, x, u):
    """m, A and B at one input, as plain NumPy arrays."""
    step = transition(model, jnp.asarray(x)[None], jnp.asarray(u)[None])
    return np.asarray(step.mean[0]), np.asarray(step.gain[:, 0]), np.asarray(step.residual[:, 0])


def numpy_emission(model, x, y):
    mean = np.asarray(model.likelihood.C) @ x + np.asarray(model.likelihood.d)
    terms = norm.logpdf(y, mean, np.exp(np.asarray(model.likelihood.log_std)))
    return np.nansum(terms)


def numpy_log_target(model, states, weights, series):
    """log q*(v, x), a literal loop."""
    variance = np.exp(2 * np.asarray(model.log_process_std))
    total = norm.logpdf(weights).sum() + norm.logpdf(states[0]).sum()
    for t in range(len(series)):
        mean, gain, residual = numpy_step(model, states[t], series.u[t])
        total += numpy_emission(model, states[t + 1], series.y[t])
        for d in range(len(variance)):
            total += norm.logpdf(
                states[t + 1, d], mean[d] + gain[d] @ weights[d], np.sqrt(variance[d])
            )
            total -= residual[d] / (2 * variance[d])
    return total


def numpy_log_collapsed(model, states, series):
    """log q*(x) with the weights marginalised densely: r_d ~ N(0, Q_d I + A_d A_dᵀ)."""
    variance = np.exp(2 * np.asarray(model.log_process_std))
    steps = [numpy_step(model, states[t], series.u[t]) for t in range(len(series))]
    total = norm.logpdf(states[0]).sum()
    total += sum(numpy_emission(model, states[t + 1], series.y[t]) for t in range(len(series)))
    for d in range(len(variance)):
        error = np.array([states[t + 1, d] - steps[t][0][d] for t in range(len(series))])
        gain = np.array([step[1][d] for step in steps])
        covariance = variance[d] * np.eye(len(series)) + gain @ gain.T
        total += multivariate_normal.logpdf(error, np.zeros(len(series)), covariance)
        total -= sum(step[2][d] for step in steps) / (2 * variance[d])
    return total


@pytest.mark.parametrize(("basis", "input_dim", "missing"), CASES)
def test_joint_and_collapsed_match_numpy(basis, input_dim, missing):
    model, series, states, weights = problem(basis, input_dim, missing)
    joint = log_target(model, jnp.asarray(states), jnp.asarray(weights), series)
    collapsed = log_collapsed(model, jnp.asarray(states), series)
    np.testing.assert_allclose(joint, numpy_log_target(model, states, weights, series), rtol=1e-8)
    np.testing.assert_allclose(collapsed, numpy_log_collapsed(model, states, series), rtol=1e-8)


@pytest.mark.parametrize("basis", ["inducing", "stacked", "hilbert"])
def test_rows_that_pad_add_nothing(basis):
    """Values and slopes of padded series are those of NumPy's loops over their own rows; states that pad have none."""
    model, series, states, weights = problem(basis, lengths=(5, 9))
    padded = [pad(one) for one in series]
    # Anywhere: a state that pads tells nothing, wherever it is.
    rng = np.random.default_rng(8)
    paths = [
        np.concatenate([path, rng.normal(size=(len(one) + 1 - len(path), 2))])
        for path, one in zip(states, padded, strict=True)
    ]
    ways = [rng.normal(size=path.shape) for path in paths]

    def loops(function, size):
        moved = [path + size * way[: len(path)] for path, way in zip(states, ways, strict=True)]
        return sum(function(path, one) for path, one in zip(moved, series, strict=True))

    @jax.jit
    @partial(jax.value_and_grad, argnums=1)
    def joint(series, paths):
        return target.log_target(model, paths, jnp.asarray(weights), series)

    value, slopes = joint(padded, [jnp.asarray(path) for path in paths])
    twice = norm.logpdf(
        weights
    ).sum()  # the loops have the prior of the weights once for each series

    def expected(size):
        return loops(lambda path, one: numpy_log_target(model, path, weights, one), size) - twice

    np.testing.assert_allclose(value, expected(0.0), rtol=1e-10)
    along = sum(np.sum(np.asarray(slope) * way) for slope, way in zip(slopes, ways, strict=True))
    np.testing.assert_allclose(along, (expected(1e-5) - expected(-1e-5)) / 2e-5, rtol=1e-6)
    for slope, path in zip(slopes, states, strict=True):
        assert np.all(np.asarray(slope)[len(path) :] == 0)


@pytest.mark.parametrize("basis", ["inducing", "stacked", "hilbert"])
def test_rows_that_pad_add_nothing_when_weights_are_integrated_out(basis):
    model, series, states, _ = problem(basis, lengths=(9,))
    padded, rng = pad(series), np.random.default_rng(8)
    path, way = np.concatenate([states, rng.normal(size=(3, 2))]), rng.normal(size=(13, 2))
    value, slope = jax.jit(jax.value_and_grad(partial(target.log_collapsed, model)))(
        jnp.asarray(path), padded
    )

    def expected(size):
        return numpy_log_collapsed(model, states + size * way[:10], series)

    np.testing.assert_allclose(value, expected(0.0), rtol=1e-10)
    np.testing.assert_allclose(
        np.sum(np.asarray(slope) * way), (expected(1e-5) - expected(-1e-5)) / 2e-5, rtol=1e-6
    )
    assert np.all(np.asarray(slope)[10:] == 0)


@pytest.mark.parametrize("basis", builders.BASIS_NAMES)
def test_collapsing_integrates_the_weights_out(basis):
    """The joint is Gaussian in v: its mode, value and dense Hessian give ∫ exp(log q*(v, x)) dv."""
    model, series, states, weights = problem(basis, lengths=(5, 3))
    paths = [jnp.asarray(path) for path in states]

    def joint(flat):
        return target.log_target(model, paths, flat.reshape(weights.shape), series)

    @jax.jit
    def everything(flat):
        exact = (
            target.log_collapsed(model, paths, series),
            target.weights_given_states(model, paths, series),
        )
        return joint(flat), jax.grad(joint)(flat), jax.hessian(joint)(flat), *exact

    _, slope, hessian, collapsed, found = everything(jnp.zeros(weights.size))
    mode = np.linalg.solve(-hessian, slope)
    log_det = np.linalg.slogdet(-hessian)[1]
    integral = everything(jnp.asarray(mode))[0] + 0.5 * (weights.size * np.log(2 * np.pi) - log_det)
    np.testing.assert_allclose(collapsed, integral, rtol=1e-8)
    np.testing.assert_allclose(np.ravel(found.mean), mode, rtol=1e-8, atol=1e-10)
    blocks = -np.asarray(hessian).reshape(*weights.shape, *weights.shape)
    for d in range(len(weights)):
        np.testing.assert_allclose(found.precision[d], blocks[d, :, d], rtol=1e-8, atol=1e-10)
    assert np.abs(blocks[0, :, 1]).max() < 1e-10


@pytest.mark.parametrize("basis", builders.BASIS_NAMES)
def test_feynman_kac_forms(basis):
    """Σ log M + Σ log G + log p(v) + log p(x₀) is log q*(v, x); the predictive form has B + Q and no penalty."""
    model, series, states, weights = problem(basis)
    variance = np.exp(2 * np.asarray(model.log_process_std))
    exact = target.feynman_kac(model, jnp.asarray(weights), series)
    predictive = target.feynman_kac_predictive(model, jnp.asarray(weights), series)
    exact, predictive = (type(form)(*map(jax.jit, form)) for form in (exact, predictive))
    start = norm.logpdf(weights).sum() + norm.logpdf(states[0]).sum()
    totals = {"exact": start, "predictive": start}
    expected = start
    for t in range(len(series)):
        now, following = jnp.asarray(states[t : t + 1]), jnp.asarray(states[t + 1 : t + 2])
        for name, form in (("exact", exact), ("predictive", predictive)):
            mean, spread = form.moments(jnp.asarray(t), now)
            totals[name] += norm.logpdf(following, mean, np.sqrt(spread)).sum()
            totals[name] += form.log_potential(jnp.asarray(t), now, following)[0]
        mean, gain, residual = numpy_step(model, states[t], series.u[t])
        centre = mean + np.einsum("dm,dm->d", gain, weights)
        expected += norm.logpdf(states[t + 1], centre, np.sqrt(residual + variance)).sum()
        expected += numpy_emission(model, states[t + 1], series.y[t])
    np.testing.assert_allclose(
        totals["exact"], numpy_log_target(model, states, weights, series), rtol=1e-8
    )
    np.testing.assert_allclose(totals["predictive"], expected, rtol=1e-8)


def test_several_series_add_up():
    model, series, states, weights = problem("stacked", lengths=(5, 3))
    joint = log_target(model, states, jnp.asarray(weights), series)
    prior = norm.logpdf(weights).sum()
    parts = [
        numpy_log_target(model, path, weights, one) - prior
        for path, one in zip(states, series, strict=True)
    ]
    np.testing.assert_allclose(joint, prior + sum(parts), rtol=1e-8)


def test_linear_dynamics_give_the_kalman_smoother():
    """With a linear basis and fixed weights the posterior over states is Gaussian: the smoother's."""
    model, series, states, weights = problem("linear", missing=True)
    linear = builders.linear_given(model, weights)

    def joint(flat):
        return target.log_target(model, flat.reshape(states.shape), jnp.asarray(weights), series)

    flat = jnp.ravel(smooth(linear, series).mean)
    value, slope, hessian = jax.jit(
        lambda x: (joint(x), jax.grad(joint)(x), jax.hessian(joint)(x))
    )(flat)
    assert np.abs(slope).max() < 1e-8
    evidence = value + 0.5 * (flat.size * np.log(2 * np.pi) - np.linalg.slogdet(-hessian)[1])
    np.testing.assert_allclose(
        evidence - norm.logpdf(weights).sum(), log_marginal(linear, series), rtol=1e-8
    )


@pytest.mark.parametrize("length", [1, 2])
def test_quadrature_over_weights_of_a_short_series(length):
    """∫ exp(log q*(v, x)) dv by Gauss–Hermite quadrature in the two weights of a one-dimensional model."""
    model = builders.make_model("inducing", state_dim=1, input_dim=0, output_dim=1, num=2)
    series, states = (
        builders.make_series(length, 0, 1),
        jnp.asarray(builders.make_states(length, 1)),
    )
    nodes, mass = np.polynomial.hermite_e.hermegauss(60)
    grid = jnp.asarray(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 1, 2))
    values = np.asarray(jax.vmap(lambda v: log_target(model, states, v, series))(grid))
    # The quadrature's weight function is exp(−½|v|²), which the prior in the target already holds.
    log_mass = np.log(np.outer(mass, mass).ravel()) + 0.5 * np.asarray(jnp.sum(grid**2, (1, 2)))
    integral = np.logaddexp.reduce(values + log_mass)
    np.testing.assert_allclose(log_collapsed(model, states, series), integral, rtol=1e-8)


@pytest.mark.parametrize("length", [1, 2])
def test_quadrature_over_states_of_a_short_series(length):
    """exp(log q*(x)) integrates over the states to p(y) when the dynamics are linear with fixed weights."""
    model = builders.make_model("linear", state_dim=1, input_dim=0, output_dim=1)
    model = model.with_leaves({"basis.log_scale": jnp.full((1, 2), -40.0)})
    series = builders.make_series(length, 0, 1)
    linear = LinearSSM(
        model.mean.transition,
        model.mean.input_map,
        model.mean.offset,
        model.likelihood.C,
        model.likelihood.d,
        jnp.diag(model.process_variance),
        jnp.exp(model.likelihood.log_std),
    )
    axis = np.linspace(-7, 7, 141)
    grid = jnp.asarray(
        np.stack(np.meshgrid(*[axis] * (length + 1), indexing="ij"), -1).reshape(-1, length + 1, 1)
    )
    values = np.asarray(
        jax.lax.map(lambda x: log_collapsed(model, x, series), grid, batch_size=20_000)
    )
    integral = np.logaddexp.reduce(values) + (length + 1) * np.log(axis[1] - axis[0])
    np.testing.assert_allclose(integral, log_marginal(linear, series), rtol=1e-8)


def test_hilbert_basis_tends_to_the_dense_process():
    """The collapsed target with a growing Hilbert basis approaches the exact Gaussian process on the states."""
    model = builders.make_model("hilbert", state_dim=1, input_dim=0, output_dim=1)
    series, states = builders.make_series(6, 0, 1), builders.make_states(6, 1)
    kernel = np.asarray(model.kernel(jnp.asarray(states[:-1]), jnp.asarray(states[:-1])))[0]
    error = states[1:] - np.asarray(model.mean(jnp.asarray(states[:-1]), jnp.asarray(series.u)))
    covariance = kernel + np.exp(2 * float(model.log_process_std[0])) * np.eye(6)
    exact = multivariate_normal.logpdf(error[:, 0], np.zeros(6), covariance) + norm.logpdf(
        states[0, 0]
    )
    exact += sum(numpy_emission(model, states[t + 1], series.y[t]) for t in range(6))
    gaps = []
    for num in (6, 12, 48):
        basis = Hilbert.build(jnp.zeros(1), jnp.full(1, 10.0), num)
        grown = eqx.tree_at(lambda m: m.basis, model, basis)
        gaps.append(abs(float(log_collapsed(grown, jnp.asarray(states), series)) - exact))
    assert gaps[-1] < 1e-6
    assert gaps[-1] < gaps[1] < gaps[0]


@pytest.mark.parametrize("basis", ["stacked", "hilbert"])
def test_gradients_match_finite_differences(basis):
    model, series, states, weights = problem(basis)
    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1, 2))
    def both(arrays, states, weights):
        whole = eqx.combine(arrays, static)
        return target.log_collapsed(whole, states, series) + target.log_target(
            whole, states, weights, series
        )

    point = (arrays, jnp.asarray(states), jnp.asarray(weights))
    _, slopes = both(*point)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), point)
    direction = (
        eqx.tree_at(lambda m: m.priors, direction[0], jax.tree.map(jnp.zeros_like, arrays.priors)),
        *direction[1:],
    )

    def along(size):
        return both(*jax.tree.map(lambda p, d: p + size * d, point, direction))[0]

    expected = (8 * (along(1e-4) - along(-1e-4)) - (along(2e-4) - along(-2e-4))) / 12e-4
    found = sum(
        jnp.sum(s * d)
        for s, d in zip(jax.tree.leaves(slopes), jax.tree.leaves(direction), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_long_series_in_chunks(monkeypatch):
    model, series, states, weights = problem("stacked")

    def everything():
        def both(x):
            collapsed = target.log_collapsed(model, x, series)
            joint = target.log_target(model, x, jnp.asarray(weights), series)
            return collapsed + joint, (collapsed, joint)

        (_, values), slope = jax.jit(jax.value_and_grad(both, has_aux=True))(jnp.asarray(states))
        return np.asarray(values), slope

    values, slope = everything()
    monkeypatch.setattr(loops, "CHUNK", 3)
    values_again, slope_again = everything()
    np.testing.assert_allclose(values_again, values, rtol=1e-12)
    np.testing.assert_allclose(slope_again, slope, rtol=1e-9, atol=1e-10)


def test_same_shapes_compile_once():
    model, series, states, _ = problem("inducing")
    traces = []

    @eqx.filter_jit
    def density(model, states, series):
        traces.append(1)
        return target.log_collapsed(model, states, series)

    density(model, jnp.asarray(states), series)
    renamed = Series(series.y + 1.0, series.u, name="another", dt=0.5)
    moved = model.with_leaves({"log_process_std": model.log_process_std + 0.1})
    density(moved, jnp.asarray(states) + 1.0, renamed)
    assert len(traces) == 1


def test_float32_is_close_to_float64():
    model, series, states, _ = problem("stacked")
    narrow = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, model
    )
    value = log_collapsed(narrow, jnp.asarray(states, jnp.float32), series)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, log_collapsed(model, jnp.asarray(states), series), rtol=1e-4)


def test_wrong_number_of_states_is_named():
    model, series, states, _ = problem("inducing")
    with pytest.raises(
        ValueError, match=r"T rows has T \+ 1 states.*\[7\] rows and states of \[7\]"
    ):
        target.log_collapsed(model, jnp.asarray(states[:-1]), series)
