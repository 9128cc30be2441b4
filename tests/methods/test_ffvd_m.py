"""The stochastic-gradient samplers, joint and collapsed, against NUTS; windows of time against the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
import sampling
from gpssm.methods.ffvd_m import FFVDCM, FFVDM, log_target_window
from gpssm.methods.ffvd_nuts import FFVDNUTS
from gpssm.methods.settings import pilot_length
from gpssm.model.target import log_target

DRAWS = 4000
BIAS = 0.01


@pytest.fixture(scope="module")
def reference():
    return sampling.run(FFVDNUTS(num_warmup=500), *sampling.small_problem(), num_draws=DRAWS)[0]


@pytest.mark.parametrize("length", [1, 3, 8])
def test_windows_are_unbiased(length):
    """The value and the gradient in states, weights and leaves, averaged over all windows, are those of the target."""
    model = builders.make_model("stacked")
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((5, 3))]
    states = tuple(jnp.asarray(builders.make_states(n)) for n in (5, 3))
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(2, model.basis.size)))
    point = states, weights, model.leaves()

    @jax.jit
    def part(first, point):
        def estimate(point):
            return log_target_window(model.with_leaves(point[2]), *point[:2], series, first, length)

        return jax.value_and_grad(estimate)(point)

    @jax.jit
    def whole(point):
        return jax.value_and_grad(lambda point: log_target(model.with_leaves(point[2]), *point[:2], series))(point)

    parts = [part(jnp.asarray(first), point) for first in range(8)]
    averaged = jax.tree.map(lambda *values: sum(values) / 8, *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), averaged, whole(point))
    spread = np.std([float(value) for value, _ in parts])
    assert spread < 1e-10 if length == 8 else spread > 0.1


@pytest.mark.parametrize("kind", [FFVDM, FFVDCM])
def test_agrees_with_nuts(kind, reference):
    config = kind(num_warmup=10_000, step_size=0.05)
    draws, info, _ = sampling.run(config, *sampling.small_problem(), num_draws=DRAWS, thin=25, seed=1)
    assert sampling.largest_z(draws, reference, bias=BIAS) < 4.5
    assert not info.divergent.any()
    np.testing.assert_array_equal(info.gradients, 1.0)
    np.testing.assert_array_equal(info.acceptance, 1.0)


def test_window_agrees_with_nuts(reference):
    config = FFVDM(num_warmup=10_000, step_size=0.02, window=4)
    draws, info, _ = sampling.run(config, *sampling.small_problem(), num_draws=DRAWS, thin=50, seed=1)
    assert sampling.largest_z(draws, reference, bias=0.03) < 4.5
    np.testing.assert_array_equal(info.gradients, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FFVDM, FFVDCM])
def test_sampled_leaves_agree_with_nuts(kind):
    """Noises and a lengthscale inside the sampler have the law that exact draws and HMC with an accept step give."""
    problem = sampling.sampled_problem()
    reference, _, _ = sampling.run(FFVDNUTS(num_warmup=500), *problem, num_draws=DRAWS)
    config = kind(num_warmup=20_000, step_size=0.03)
    draws, _, _ = sampling.run(config, *problem, num_draws=DRAWS, thin=50, seed=1)
    assert sorted(draws.leaves) == sorted(reference.leaves)
    assert sampling.largest_z(draws, reference, bias=BIAS) < 4.5


@pytest.mark.parametrize("kind", [FFVDM, FFVDCM])
def test_roles_and_the_end_of_warm_up(kind):
    """Optimised leaves move while the pilot learns, averages in warm-up, sampled leaves always; fixed ones are gone."""
    model, series, states = sampling.small_problem()
    model = model.with_roles("optimise", "kernel.*").with_roles("sample", "log_process_std")
    method = kind(num_warmup=5, learning_rate=0.1).build(model, states)
    step, draw = jax.jit(method.step), jax.jit(method.draw)
    runs = []
    for _ in range(2):
        carry = method.init(jax.random.key(0), series)
        trail = []
        for number in range(8):
            carry, info = step(jax.random.key(number), carry, series)
            trail.append((draw(jax.random.key(1), carry, series), carry.sampler.V_hat, carry.sampler.num_averaged))
        runs.append((trail, info))
    jax.tree.map(np.testing.assert_array_equal, *runs)
    assert sorted(trail[0][0].leaves) == ["kernel.log_lengthscale", "kernel.log_variance", "log_process_std"]
    for i in range(1, 8):
        (before, *averages), (after, *later) = trail[i - 1], trail[i]
        still = [np.array_equal(a, b) for a, b in zip(averages, later, strict=True)]
        still.append(np.array_equal(before.leaves["kernel.log_variance"], after.leaves["kernel.log_variance"]))
        assert still == [i >= 5, i >= 5, i >= pilot_length(5)]
        assert not np.array_equal(before.leaves["log_process_std"], after.leaves["log_process_std"])
        assert not np.array_equal(before.states[1], after.states[1])
    assert info.log_target.shape == info.energy.shape == ()
    assert np.isfinite(info.energy)


def test_log_target_is_that_of_the_start():
    model, series, states = sampling.small_problem()
    method = FFVDM().build(model, states)
    carry = method.init(jax.random.key(0), series)
    draw = method.draw(jax.random.key(0), carry, series)
    _, info = jax.jit(method.step)(jax.random.key(1), carry, series)
    np.testing.assert_array_equal(draw.states[0], states[0])
    assert info.log_target == pytest.approx(float(log_target(model, states, draw.weights, series)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "step_size must be positive, got 0.0"),
        ({"decay": 0.0}, "decay must be above 0 and at most 1, got 0.0"),
        ({"window": 0}, "window must be a whole number of at least 1, or None for all rows; got 0"),
        ({"thin": 0}, "thin"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        FFVDM(**options)


def test_window_longer_than_the_data_is_named():
    model, _, states = sampling.small_problem()
    with pytest.raises(ValueError, match="window must be at most the 8 rows of the data, got 9"):
        FFVDM(window=9).build(model, states)
