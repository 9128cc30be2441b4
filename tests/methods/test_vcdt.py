"""VCDT and its factorised start: exact where the family holds the posterior, in order on the kink, any data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.data.datasets import simulate_kink
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.linear.state_space import log_marginal, smooth
from gpssm.methods.linear import as_linear
from gpssm.methods.prssm import PRSSM
from gpssm.methods.variational import VariationalPosterior, weights_at
from gpssm.methods.vcdt import VCDT, VCDTFactorised
from gpssm.model.bases import InducingPoints
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian, Poisson
from gpssm.model.means import Identity
from gpssm.model.model import GPSSM
from linear_systems import forecast_moments
from posteriors import make_posterior

DRAWS = 4000
UNSCALED = Scaler((0.0,), (1.0,), (0.0,), (1.0,))


@pytest.fixture(scope="module")
def linear():
    """A linear-Gaussian model of one state with certain weights, data with a gap, and VCDT's start at its smoother."""
    model = builders.make_model("linear", state_dim=1, output_dim=1)
    model = model.with_leaves({"basis.log_scale": jnp.full((1, 3), -12.0)})
    series = [builders.make_series(8, output_dim=1, missing=True)]
    ssm = as_linear(model)
    smoothed = smooth(ssm, series[0])
    method = VCDT(num_samples=DRAWS).build(model, (smoothed.mean,))

    @jax.jit
    def begin(key):
        law = weights_at(model, method.states, series)
        return VariationalPosterior(model, law, method.paths(key, series))

    return series, ssm, method, begin(jax.random.key(0))


@pytest.mark.parametrize("coupled", [True, False])
def test_bound_is_the_evidence_where_the_posterior_is_in_the_family(linear, coupled):
    series, ssm, method, posterior = linear
    factorised = VCDTFactorised(num_samples=DRAWS).build(posterior.model, method.states)

    @jax.jit
    def bounds(paths):
        q = posterior._replace(paths=paths)
        return jax.lax.map(
            lambda key: (
                method.coupled_bound(key, q, series)
                if coupled
                else factorised.bound(key, q, series, 0)
            ),
            jax.random.split(jax.random.key(1), 25),
        )

    paths = posterior.paths
    evidence, exact = float(log_marginal(ssm, series)), np.asarray(bounds(paths))
    assert abs(exact.mean() - evidence) < 4 * exact.std() / 5 < 0.05
    start, law = paths
    wide = law._replace(log_std=law.log_std + 0.3)
    assert bounds((start, wide)).mean() < evidence - 0.1


def test_draws_and_forecasts_are_those_of_kalman(linear):
    """With q the exact posterior: moments of the states, and of the outputs to come."""
    series, ssm, method, q = linear

    @jax.jit
    def draw(keys):
        return jax.lax.map(
            lambda key: method.draw_states(key, q, jnp.zeros((1, 3)), series)[0], keys
        )

    states = np.asarray(draw(jax.random.split(jax.random.key(2), DRAWS)))
    smoothed = smooth(ssm, series[0])
    inverse = np.linalg.inv(_dense(smoothed.factor))
    covariance = inverse.T @ inverse
    np.testing.assert_allclose(
        states[..., 0].mean(0), smoothed.mean[:, 0], atol=5 * np.sqrt(covariance.max() / DRAWS)
    )
    np.testing.assert_allclose(
        np.cov(states[..., 0].T), covariance, atol=8 * covariance.max() / np.sqrt(DRAWS)
    )
    u = np.random.default_rng(0).normal(size=(6, 1))
    posterior = make_posterior(
        q.model,
        series,
        np.zeros((1, DRAWS, 1, 3)),
        {},
        UNSCALED,
        [states[None]],
        chains=1,
        draws=DRAWS,
    )
    forecast = posterior.forecast(u=u, num_paths=DRAWS, bounds=None)
    mean, variance = forecast_moments(
        ssm, smoothed.mean[-1], jnp.asarray(covariance[-1:, -1:]), jnp.asarray(u)
    )
    np.testing.assert_allclose(forecast.mean, mean, atol=5 * np.sqrt(np.max(variance) / DRAWS))
    np.testing.assert_allclose(np.var(forecast.paths, 0), variance, rtol=0.15)


def _dense(factor):
    """L of the smoother's precision as a matrix, one state a block."""
    return np.diag(factor.diagonal[:, 0, 0]) + np.diag(factor.lower[:, 0, 0], -1)


@pytest.mark.parametrize(
    "config",
    [
        PRSSM(num_warmup=6, num_samples=2, window=3, batch=2),
        pytest.param(VCDT(num_warmup=6, num_samples=2), marks=pytest.mark.slow),
    ],
)
def test_counts_gaps_and_series_of_unequal_length(config):
    """Finite draws of the right shapes from Poisson outputs; leaves are learned, and nothing after the warm-up."""
    rng = np.random.default_rng(0)
    y = rng.poisson(3.0, size=(8, 1)).astype(float)
    y[4:6] = np.nan
    series, lengths = [Series(y), Series(y[:5])], (8, 5)
    model = GPSSM.create(
        SquaredExponential(jnp.asarray([-1.0]), jnp.zeros((1, 1))),
        InducingPoints(jnp.linspace(-2.0, 2.0, 4)[:, None]),
        Identity(),
        Poisson(C=jnp.asarray([[0.5]]), d=jnp.ones(1)),
        jnp.asarray([0.3]),
    )
    method = config.build(model, tuple(jnp.asarray(builders.make_states(n, 1)) for n in lengths))

    @jax.jit
    def run(key):
        def step(carry, key):
            carry, info = method.step(key, carry, series)
            return carry, (carry.guess, info)

        carry, along = jax.lax.scan(step, method.init(key, series), jax.random.split(key, 7))
        return *along, method.draw(key, carry, series)

    guesses, info, draw = run(jax.random.key(1))
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf[5], leaf[6]), guesses)
    assert np.isfinite(info.log_target).all()
    assert info.log_target[5] == info.log_target[6]
    np.testing.assert_array_equal(info.gradients, [1.0] * 6 + [0.0])
    assert [path.shape for path in draw.states] == [(9, 1), (6, 1)]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(draw))
    assert set(draw.leaves) == {name for name, role in model.roles if role != "fix"}
    assert not any(np.array_equal(leaf, model.leaves()[name]) for name, leaf in draw.leaves.items())
    assert config.num_shared(model) == 6


@pytest.mark.slow
@pytest.mark.parametrize("process_std", [0.05, 0.2])
def test_bounds_on_the_kink_are_in_order(process_std):
    """PR-SSM < factorised < VCDT, on the same model, parameters fixed."""
    simulated = simulate_kink(20, seed=1, process_std=process_std)
    series = [simulated.series]
    model = GPSSM.create(
        SquaredExponential(jnp.log(jnp.asarray([1.0])), jnp.zeros((1, 1))),
        InducingPoints(jnp.linspace(-3.0, 1.5, 8)[:, None]),
        Identity(),
        Gaussian.build(jnp.eye(1), jnp.zeros(1), jnp.asarray([0.2])),
        jnp.asarray([process_std]),
    ).with_roles("fix", "*")
    states = (jnp.asarray(np.concatenate([simulated.states[:1], series[0].y])),)
    bounds = []
    for kind in (PRSSM, VCDTFactorised, VCDT):
        method = kind(num_warmup=3000, learning_rate=0.03, num_samples=20).build(model, states)

        @jax.jit
        def run(key, method=method):
            keys = jax.random.split(key, 3000)
            return jax.lax.scan(
                lambda c, k: method.step(k, c, series), method.init(key, series), keys
            )[1].log_target

        bounds.append(np.asarray(run(jax.random.key(0)))[-300:])
    means, errors = np.mean(bounds, 1), np.std(bounds, 1) / np.sqrt(300)
    assert means[0] < means[1] - 1
    assert means[2] - means[1] > 4 * np.hypot(*errors[1:])
