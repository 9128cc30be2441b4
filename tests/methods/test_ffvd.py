"""The default sampler: against the Kalman smoother, and that it adapts in warm-up only."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.core import linalg
from gpssm.methods.ffvd import FFVD
from gpssm.model.likelihoods import Poisson
from gpssm.start.linear_ssm import LinearSSM, smooth


def run(method, series, num_warmup, num_draws, seed=0):
    """One chain: the last carry and the draws, with the driver's keys."""

    @eqx.filter_jit
    def go(series):
        def warm(carry, i):
            return method.step(jax.random.fold_in(jax.random.key(seed), i), carry, series)

        def sample(carry, i):
            key = jax.random.fold_in(jax.random.key(seed), i)
            carry, info = method.step(key, carry, series)
            return carry, (method.draw(jax.random.fold_in(key, 1), carry, series), info)

        carry, _ = jax.lax.scan(warm, method.init(jax.random.key(seed + 1), series), jnp.arange(num_warmup))
        end, (draws, info) = jax.lax.scan(sample, carry, num_warmup + jnp.arange(num_draws))
        return carry, end, draws, info

    return go(series)


def batch_error(values, batches=40):
    means = values[: len(values) // batches * batches].reshape(batches, -1, *values.shape[1:]).mean(1)
    return values.mean(0), means.std(0, ddof=1) / np.sqrt(batches)


def start(lengths):
    return tuple(jnp.asarray(builders.make_states(n, seed=20 + i)) for i, n in enumerate(lengths))


def test_linear_dynamics_give_the_kalman_smoother():
    """Two series, missing outputs, weights that cannot move: means and variances of every state."""
    model = builders.make_model("linear").with_roles("fix", "*")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, -20.0)})
    series = [builders.make_series(7, missing=True), builders.make_series(4, seed=3)]
    linear = LinearSSM(
        *(model.mean.transition, model.mean.control, model.mean.offset, model.likelihood.C, model.likelihood.d),
        jnp.diag(model.process_variance),
        jnp.exp(model.likelihood.log_std),
    )
    exact = smooth(linear, series)
    variances = np.diagonal(linalg.selected_inverse(exact.factor).diagonal, axis1=1, axis2=2)
    _, _, draws, info = run(FFVD(num_warmup=200, rank=5).build(model, start((7, 4))), series, 200, 4000)
    states = np.concatenate([np.asarray(path) for path in draws.states], 1)
    gap = states - np.asarray(exact.mean)[None]
    for values, expected in ((gap, 0.0), (gap**2, variances)):
        mean, error = batch_error(values)
        assert np.abs((mean - expected) / error).max() < 4.5
    assert float(jnp.mean(info.acceptance)) > 0.7


def test_nothing_adapts_after_the_warm_up():
    model = builders.make_model("stacked").with_roles("sample", "log_process_std", "likelihood.log_std")
    series = [builders.make_series(7, missing=True)]
    method = FFVD(num_warmup=40, rank=5).build(model, start((7,)))
    warm, end, draws, info = run(method, series, 40, 30)
    for name in ("whitening", "step"):
        for before, after in zip(
            jax.tree.leaves(getattr(warm, name)), jax.tree.leaves(getattr(end, name)), strict=True
        ):
            np.testing.assert_array_equal(before, after)
    optimised = {name: draws.leaves[name] for name in model.leaves("optimise")}
    assert all(np.ptp(np.asarray(leaf), axis=0).max() == 0 for leaf in optimised.values())
    assert np.ptp(np.asarray(draws.leaves["log_process_std"]), axis=0).min() > 0
    assert np.isfinite(np.asarray(info.log_target)).all()
    moved = np.abs(np.asarray(optimised["kernel.log_variance"])[0] - np.asarray(model.kernel.log_variance))
    assert moved.min() > 1e-3


def test_other_likelihoods_are_sampled():
    model = builders.make_model("hilbert").with_roles("fix", "*")
    counts = eqx.tree_at(lambda m: m.likelihood, model, Poisson(C=model.likelihood.C, d=model.likelihood.d))
    counts = counts.create(counts.kernel, counts.basis, counts.mean, counts.likelihood, jnp.exp(counts.log_process_std))
    noisy = builders.make_series(7)
    series = [type(noisy)(np.floor(np.abs(noisy.y)), noisy.u)]
    _, _, draws, info = run(
        FFVD(num_warmup=50, rank=5).build(counts.with_roles("fix", "*"), start((7,))), series, 50, 200
    )
    assert np.isfinite(np.asarray(draws.states[0])).all()
    assert float(jnp.mean(info.acceptance)) > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_leapfrog": 0}, "num_leapfrog must be a whole number of at least 1, got 0"),
        ({"target_acceptance": 1.2}, "target_acceptance must lie between 0 and 1"),
        ({"num_draws": 0}, "num_draws must be a whole number of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FFVD(**settings)
