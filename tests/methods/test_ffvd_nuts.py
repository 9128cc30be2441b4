"""NUTS against Kalman smoothing, against itself with the weights integrated out, and its adaptation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
import sampling
from gpssm.methods.ffvd_nuts import FFVDNUTS
from gpssm.model.target import log_collapsed
from gpssm.start.linear_ssm import LinearSSM, smooth

DRAWS = 4000


@pytest.fixture(scope="module")
def collapsed():
    return sampling.run(FFVDNUTS(num_warmup=500), *sampling.small_problem(), num_draws=DRAWS)


def test_linear_dynamics_give_the_kalman_smoother():
    """A linear basis with weights of no size: the states' posterior is the smoother's, over two series."""
    model = builders.make_model("linear").with_roles("fix", "*")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, -40.0)})
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((4, 2))]
    states = tuple(jnp.asarray(builders.make_states(n)) for n in (4, 2))
    draws, info, _ = sampling.run(FFVDNUTS(num_warmup=500), model, series, states, num_draws=DRAWS)
    posterior = smooth(
        LinearSSM(
            transition=model.mean.transition,
            control=model.mean.control,
            offset=model.mean.offset,
            C=model.likelihood.C,
            d=model.likelihood.d,
            process_cov=jnp.diag(model.process_variance),
            noise_std=jnp.exp(model.likelihood.log_std),
        ),
        series,
    )
    factor = dense(posterior.factor)
    covariance = np.linalg.inv(factor @ factor.T)
    paths = np.concatenate(draws.states, 2)
    error = paths.reshape(*paths.shape[:2], -1) - np.ravel(posterior.mean)
    mean, mean_error = sampling.average(error)
    assert np.abs(mean / mean_error).max() < 4.5
    products = error[..., :, None] * error[..., None, :]
    second, second_error = sampling.average(products.reshape(*error.shape[:2], -1))
    assert np.abs((second - covariance.ravel()) / second_error).max() < 4.5
    assert not info.divergent.any()


def dense(factor):
    """The block-bidiagonal L as one matrix."""
    diagonal, lower = np.asarray(factor.diagonal), np.asarray(factor.lower)
    size = diagonal.shape[-1]
    matrix = np.zeros((len(diagonal) * size,) * 2)
    for i, block in enumerate(diagonal):
        matrix[i * size : (i + 1) * size, i * size : (i + 1) * size] = block
    for i, block in enumerate(lower):
        matrix[(i + 1) * size : (i + 2) * size, i * size : (i + 1) * size] = block
    return matrix


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
    second, _, _ = sampling.run(FFVDNUTS(num_warmup=500, target="joint"), *problem, num_draws=DRAWS, seed=1)
    assert sorted(first.leaves) == ["kernel.log_lengthscale", "likelihood.log_std", "log_process_std"]
    assert sampling.largest_z(first, second) < 4.5


def test_adaptation_finds_the_scales_and_ends(collapsed):
    draws, info, carry = collapsed
    variance = np.concatenate(draws.states, 2).reshape(4 * DRAWS, -1).var(0)
    np.testing.assert_allclose(carry.adaptation.metric.inverse_mass_matrix.mean(0), variance, rtol=0.4)
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
        seen.append((float(carry.adaptation.step.log_step), np.asarray(carry.adaptation.metric.inverse_mass_matrix)))
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
    model, series, states = sampling.small_problem()
    method = FFVDNUTS(num_warmup=0).build(model, states)
    carry, info = jax.jit(method.step)(jax.random.key(0), method.init(jax.random.key(0), series), series)
    assert np.isfinite(carry.position).all()
    assert np.exp(carry.adaptation.step.log_average) == pytest.approx(0.1)
    assert not info.divergent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "marginal"}, "one of collapsed, joint, got 'marginal'"),
        ({"max_tree_depth": 0}, "max_tree_depth must be a whole number of at least 1, got 0"),
        ({"target_acceptance": 1.0}, "target_acceptance must be between 0 and 1, got 1.0"),
        ({"num_warmup": -1}, "num_warmup"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        FFVDNUTS(**options)
