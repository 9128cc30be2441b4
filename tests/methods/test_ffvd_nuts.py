"""NUTS against itself with the weights integrated out, stochastic gradients against NUTS, and its adaptation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sampling
from gpssm.methods.latents import FFVDCM, FFVDM, FFVDNUTS
from gpssm.model.target import log_collapsed

DRAWS = 2000
BIAS = 0.01  # of stochastic gradients, which have no accept step


@pytest.fixture(scope="module")
def collapsed():
    return sampling.run(FFVDNUTS(num_warmup=500), *sampling.small_problem(), num_draws=DRAWS)


@pytest.mark.slow
def test_joint_and_collapsed_targets_agree(collapsed):
    draws, _, _ = sampling.run(
        FFVDNUTS(num_warmup=500, target="joint"), *sampling.small_problem(), num_draws=DRAWS, seed=1
    )
    assert draws.weights.shape == (4, DRAWS, 1, 3)
    assert draws.leaves == {}
    assert sampling.largest_z(draws, collapsed[0]) < 4.5


@pytest.mark.slow
def test_joint_and_collapsed_targets_agree_with_sampled_leaves():
    problem = sampling.sampled_problem()
    first, _, _ = sampling.run(FFVDNUTS(num_warmup=500), *problem, num_draws=DRAWS)
    second, _, _ = sampling.run(
        FFVDNUTS(num_warmup=500, target="joint"), *problem, num_draws=DRAWS, seed=1
    )
    assert sorted(first.leaves) == [
        "kernel.log_lengthscale",
        "likelihood.log_std",
        "log_process_std",
    ]
    assert sampling.largest_z(first, second) < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FFVDM, FFVDCM])
def test_agrees_with_nuts(kind, collapsed):
    config = kind(num_warmup=10_000, step_size=0.05)
    draws, info, _ = sampling.run(
        config, *sampling.small_problem(), num_draws=DRAWS, thin=25, seed=1
    )
    assert sampling.largest_z(draws, collapsed[0], bias=BIAS) < 4.5
    assert not info.divergent.any()
    np.testing.assert_array_equal(info.gradients, 1.0)
    np.testing.assert_array_equal(info.acceptance, 1.0)


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


@pytest.mark.slow
def test_adaptation_finds_the_scales_and_ends(collapsed):
    draws, info, carry = collapsed
    variance = np.concatenate(draws.states, 2).reshape(4 * DRAWS, -1).var(0)
    np.testing.assert_allclose(carry.metric.inverse_mass_matrix.mean(0), variance, rtol=0.4)
    assert 0.7 < info.acceptance.mean() < 0.97
    assert info.gradients.min() >= 2
    assert np.ptp(np.asarray(carry.iteration)) == 0
    assert carry.iteration[0] == 500 + DRAWS
    assert info.log_target.shape == (4, DRAWS)


def test_steps_one_by_one():
    """Adaptation follows the iteration count in the carry; after warm-up the step and the metric stand still."""
    model, series, states = sampling.small_problem()
    method = FFVDNUTS(num_warmup=30, max_tree_depth=3).build(model, states)
    step, carry = jax.jit(method.step), method.init(jax.random.key(0), series)
    seen = []
    for number in range(34):
        carry, info = step(jax.random.key(number), carry, series)
        seen.append(
            (
                float(carry.step_size.log_step),
                np.asarray(carry.metric.inverse_mass_matrix),
            )
        )
        assert info.gradients <= 2**3
    draw = method.draw(jax.random.key(0), carry, series)
    assert info.log_target == pytest.approx(float(log_collapsed(model, draw.states, series)))
    assert len({size for size, _ in seen[:30]}) == 30
    assert len({size for size, _ in seen[29:]}) == 1
    assert [i for i in range(1, 34) if (seen[i][1] != seen[i - 1][1]).any()] == [26]
    again = method.init(jax.random.key(0), series)
    for number in range(34):
        again, _ = step(jax.random.key(number), again, series)
    jax.tree.map(np.testing.assert_array_equal, again, carry)


def test_without_warm_up():
    """There is a schedule for it, too."""
    model, series, states = sampling.small_problem()
    method = FFVDNUTS(num_warmup=0).build(model, states)
    carry = method.init(jax.random.key(0), series)
    after, _ = jax.eval_shape(method.step, jax.random.key(0), carry, series)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, carry)
