"""The dense Gaussian process: its density in NumPy, its draws, and `ffvd` with as many inducing points as needed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.stats import multivariate_normal, norm

import builders
import gpssm
import sampling
from gpssm.data.series import Series
from gpssm.methods import FFVD, Exact
from gpssm.methods.exact import at_own_inputs, inputs, log_dense_normal, log_exact
from gpssm.methods.spec import Spec
from gpssm.model.bases import InducingPoints
from gpssm.model.priors import InverseGamma
from gpssm.model.target import log_collapsed, weights_given_states

LIMIT = 4.0  # standard errors


def problem(lengths, basis="stacked"):
    model = builders.make_model(basis, num=sum(lengths))
    series = [builders.make_series(n, missing=n > 1, seed=i) for i, n in enumerate(lengths)]
    states = tuple(jnp.asarray(builders.make_states(n, seed=10 + i)) for i, n in enumerate(lengths))
    return model, series, states


def dense(model, states, series):
    """r (D, N) and K (D, N, N) entry by entry, and the log density of x₀ and y."""
    variance, scale = (
        np.exp(np.asarray(model.kernel.log_variance)),
        np.exp(np.asarray(model.kernel.log_lengthscale)),
    )
    slopes = np.exp(np.asarray(model.basis.parts[1].log_scale))
    mean, likelihood = model.mean, model.likelihood
    z, error, boundary = [], [], 0.0
    for path, one in zip(states, series, strict=True):
        boundary += norm.logpdf(path[0]).sum()
        for t in range(len(one)):
            z.append(np.concatenate([path[t], one.u[t]]))
            error.append(
                path[t + 1] - mean.transition @ path[t] - mean.input_map @ one.u[t] - mean.offset
            )
            fitted = likelihood.C @ path[t + 1] + likelihood.d
            boundary += np.nansum(norm.logpdf(one.y[t], fitted, np.exp(likelihood.log_std)))
    cov = np.zeros((len(variance), len(z), len(z)))
    for d, i, j in np.ndindex(cov.shape):
        near = np.exp(-0.5 * np.sum(((z[i] - z[j]) / scale[d]) ** 2))
        cov[d, i, j] = variance[d] * near + np.append(z[i], 1.0) @ (
            slopes[d] ** 2 * np.append(z[j], 1.0)
        )
    return np.array(error).T, cov, boundary


@eqx.filter_jit
def at_own(model, states, series):
    """log q*(x), v | x and A of the sparse model with the path's inputs for inducing locations."""
    own, z = at_own_inputs(model, states, series), inputs(states, series)
    gain = own.transition()(z[:, :2], z[:, 2:]).gain
    return log_collapsed(own, states, series), weights_given_states(own, states, series), gain


@pytest.mark.parametrize("lengths", [(5, 4), (1,)])
def test_density_and_conditional_match_numpy(lengths):
    """log p(x, y), and f | x ~ N(K(K + Q)⁻¹r, K − K(K + Q)⁻¹K) from the sparse model at the path's own inputs."""
    model, series, states = problem(lengths)
    error, cov, boundary = dense(model, states, series)
    noise = np.asarray(model.process_variance)
    full = [one + q * np.eye(len(one)) for one, q in zip(cov, noise, strict=True)]
    expected = boundary + sum(
        multivariate_normal.logpdf(r, cov=s) for r, s in zip(error, full, strict=True)
    )
    np.testing.assert_allclose(
        eqx.filter_jit(log_exact)(model, states, series), expected, rtol=1e-10
    )
    collapsed, found, gain = at_own(model, states, series)
    np.testing.assert_allclose(collapsed, expected, rtol=1e-5)
    for d, (r, k, s) in enumerate(zip(error, cov, full, strict=True)):
        np.testing.assert_allclose(gain[d] @ found.mean[d], k @ np.linalg.solve(s, r), atol=1e-4)
        spread = gain[d] @ np.linalg.inv(found.precision[d]) @ gain[d].T
        np.testing.assert_allclose(spread, k - k @ np.linalg.solve(s, k), atol=1e-4)


def test_derivatives_of_the_dense_normal():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 4, 4))
    positive, error = (
        jnp.asarray(root @ root.swapaxes(1, 2) + np.eye(4)),
        jnp.asarray(rng.normal(size=(2, 4))),
    )
    value = jax.jit(lambda half, error: log_dense_normal(half + half.mT, error))
    check_grads(value, (0.5 * positive, error), order=2, modes=["rev"])


@pytest.mark.slow
def test_agrees_with_many_inducing_points():
    """`ffvd` with a grid of inducing points that leaves no residual has the same posterior."""
    series = [builders.make_series(n, 0, 1, missing=True, seed=i) for i, n in enumerate((25, 5))]
    states = tuple(
        jnp.asarray(builders.make_states(len(one), 1, seed=i)) for i, one in enumerate(series)
    )
    count = sum(len(one) for one in series)
    model = builders.make_model("inducing", state_dim=1, input_dim=0, output_dim=1, num=count)
    noises = {
        "log_process_std": InverseGamma(5.0, 0.5),
        "likelihood.log_std": InverseGamma(5.0, 0.5),
    }
    model = model.with_roles("fix", "*").with_priors(noises).with_roles("sample", *noises)
    grid = InducingPoints(jnp.linspace(-6.0, 6.0, 30)[:, None])
    sparse = eqx.tree_at(lambda m: m.basis, model, grid)
    assert (
        float(
            jnp.max(
                sparse.transition()(
                    jnp.linspace(-5.0, 5.0, 60)[:, None], jnp.zeros((60, 0))
                ).residual
            )
        )
        < 1e-3
    )
    settings = {"num_warmup": 200, "rank": 5, "num_leapfrog": 4}
    kept = [
        sampling.run(config(**settings), one, series, states, num_draws=8000, seed=seed)[0]
        for seed, (config, one) in enumerate([(Exact, model), (FFVD, sparse)])
    ]
    first, second = (
        (draws.states, {name: draws.leaves[name] for name in noises}) for draws in kept
    )
    assert sampling.marginal_z(first, second) < LIMIT


def make_data():
    """Two series of a linear system with a missing output."""
    rng = np.random.default_rng(2)
    u = rng.normal(size=(40, 1))
    y = np.convolve(u[:, 0], 0.7 ** np.arange(6))[:40, None] + 0.1 * rng.normal(size=(40, 1))
    y[5] = np.nan
    return [Series(y[:25], u[:25]), Series(y[25:], u[25:])]


def test_a_draw_has_locations_of_its_own():
    model, series, states = problem((5, 4))
    method = Exact(num_warmup=10, rank=5).build(
        model.with_roles("fix", "basis.parts.0.locations"), states
    )

    def once(key):
        carry, info = method.step(key, method.init(key, series), series)
        return method.draw(key, carry, series), info

    draw, _ = jax.eval_shape(once, jax.random.key(0))
    assert draw.leaves["basis.parts.0.locations"].shape == (9, 3)
    assert draw.weights.shape == (2, 9 + 4)


@pytest.mark.slow
def test_a_fit_forecasts_and_comes_back_from_a_file(tmp_path):
    """Everything after the fit works from draws with locations of their own."""
    settings = {"num_chains": 2, "num_warmup": 60, "num_draws": 20, "progress": False}
    posterior = gpssm.fit(make_data(), method=Exact(rank=5), state_dim=1, **settings)
    locations = posterior.draws.leaves["basis.parts.0.locations"]
    assert locations.shape == (2, 20, 40, 2)
    np.testing.assert_array_equal(locations[:, :, :25, 0], posterior.draws.states[0][:, :, :-1, 0])
    forecast = posterior.forecast(u=np.random.default_rng(3).normal(size=(30, 1)), num_paths=40)
    assert np.isfinite(forecast.mean).all()
    posterior.save(tmp_path / "fit")
    again = gpssm.load(tmp_path / "fit").forecast(u=forecast.u, num_paths=40)
    np.testing.assert_allclose(again.mean, forecast.mean, rtol=1e-6)


def test_what_it_cannot_do_is_said():
    long = [builders.make_series(300, seed=i) for i in range(2)]
    with pytest.raises(ValueError, match="at most 500 rows over all series, got 600"):
        Exact().prepare(long, Spec(likelihood="gaussian"), jax.random.key(0))
    with pytest.raises(ValueError, match="supports only basis='inducing', got 'hilbert'"):
        Exact().prepare(long, Spec(basis="hilbert", likelihood="gaussian"), jax.random.key(0))
    model, _, states = problem((5, 4))
    with pytest.raises(
        ValueError, match="as many rows and the role 'fix': it has 9 rows and the role 'optimise'"
    ):
        Exact().build(model, states)
    with pytest.raises(ValueError, match="needs a model with inducing points"):
        Exact().build(builders.make_model("hilbert"), states)
