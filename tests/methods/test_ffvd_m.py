"""The stochastic-gradient samplers, joint and collapsed: roles and warm-up."""

import jax
import numpy as np
import pytest

import sampling
from gpssm.inference.settings import pilot_length
from gpssm.methods.latents import FFVDCM, FFVDM
from gpssm.model.target import log_target


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
            trail.append(
                (
                    draw(jax.random.key(1), carry, series),
                    carry.sampler.V_hat,
                    carry.sampler.num_averaged,
                )
            )
        runs.append((trail, info))
    jax.tree.map(np.testing.assert_array_equal, *runs)
    assert sorted(trail[0][0].leaves) == [
        "kernel.log_lengthscale",
        "kernel.log_variance",
        "log_process_std",
    ]
    for i in range(1, 8):
        (before, *averages), (after, *later) = trail[i - 1], trail[i]
        still = [np.array_equal(a, b) for a, b in zip(averages, later, strict=True)]
        still.append(
            np.array_equal(
                before.leaves["kernel.log_variance"], after.leaves["kernel.log_variance"]
            )
        )
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
