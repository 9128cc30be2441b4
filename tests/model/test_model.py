"""The model: names of its leaves, priors and roles, and its equations against literal NumPy loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpssm.model.bases import (
    JITTER,
    Basis,
    Hilbert,
    InducingPoints,
    LinearFeatures,
    RandomFourier,
    Stacked,
)
from gpssm.model.kernels import SquaredExponential, make_kernel
from gpssm.model.likelihoods import FunctionGaussian, Gaussian
from gpssm.model.means import Function, LinearMap, Mean
from gpssm.model.model import GPSSM
from gpssm.model.priors import Normal

RNG = np.random.default_rng(0)
VARIANCE, LENGTHSCALE = np.array([0.7, 1.5]), np.array([[0.9, 1.4, 2.0], [1.1, 0.6, 3.0]])
LOCATIONS, PROCESS_STD = RNG.normal(size=(4, 3)), np.array([0.1, 0.3])
TRANSITION, CONTROL, OFFSET = (
    np.array([[0.8, 0.2], [-0.3, 0.7]]),
    np.array([[0.5], [-1.0]]),
    np.array([0.1, 0.2]),
)
C, D, STD = RNG.normal(size=(3, 2)), RNG.normal(size=3), np.array([0.2, 0.4, 0.6])
CONTROLS, WEIGHTS, START = RNG.normal(size=(6, 1)), RNG.normal(size=(2, 4)), RNG.normal(size=2)
KERNEL = SquaredExponential(jnp.log(jnp.asarray(VARIANCE)), jnp.log(jnp.asarray(LENGTHSCALE)))
MEAN = LinearMap(jnp.asarray(TRANSITION), jnp.asarray(CONTROL), jnp.asarray(OFFSET))
GAUSSIAN = Gaussian.build(jnp.asarray(C), jnp.asarray(D), jnp.asarray(STD))
INDUCING = InducingPoints(jnp.asarray(LOCATIONS))


class Drift(eqx.Module):
    """A user's function with arrays, one of them named like a leaf that is fixed elsewhere."""

    gain: jax.Array
    offset: jax.Array

    def __call__(self, x: jax.Array, *u: jax.Array) -> jax.Array:
        return self.gain * x + self.offset


DRIFT = Drift(jnp.array([0.9, 0.8]), jnp.array([0.0, 0.1]))


def build(basis: Basis = INDUCING, mean: Mean = MEAN) -> GPSSM:
    return GPSSM.create(KERNEL, basis, mean, GAUSSIAN, jnp.asarray(PROCESS_STD))


MODEL = build()
SHAPES = {
    "kernel.log_variance": (2,),
    "kernel.log_lengthscale": (2, 3),
    "basis.locations": (4, 3),
    "mean.transition": (2, 2),
    "mean.input_map": (2, 1),
    "mean.offset": (2,),
    "likelihood.C": (3, 2),
    "likelihood.d": (3,),
    "likelihood.log_std": (3,),
    "log_process_std": (2,),
}
FIXED = {"mean.transition", "mean.input_map", "mean.offset"}


def literal_step(x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """m (2,), A (2, 4) and B (2,) at one input, from the definitions."""
    z, gain, residual = np.append(x, u), np.zeros((2, 4)), np.zeros(2)
    for d in range(2):

        def covariance(a: np.ndarray, b: np.ndarray, d: int = d) -> float:
            return VARIANCE[d] * np.exp(-0.5 * np.sum(((a - b) / LENGTHSCALE[d]) ** 2))

        matrix = np.array([[covariance(a, b) for b in LOCATIONS] for a in LOCATIONS])
        factor = np.linalg.cholesky(matrix + JITTER * VARIANCE[d] * np.eye(4))
        gain[d] = np.linalg.solve(factor, [covariance(z, b) for b in LOCATIONS])
        residual[d] = VARIANCE[d] - gain[d] @ gain[d]
    return TRANSITION @ x + CONTROL @ u + OFFSET, gain, residual


def test_leaves_have_the_agreed_names_and_shapes():
    assert {name: leaf.shape for name, leaf in MODEL.leaves().items()} == SHAPES
    np.testing.assert_allclose(MODEL.leaves()["kernel.log_variance"], np.log(VARIANCE))
    np.testing.assert_allclose(MODEL.leaves()["log_process_std"], np.log(PROCESS_STD))
    np.testing.assert_allclose(MODEL.process_variance, PROCESS_STD**2)
    assert MODEL.state_dim == 2


def test_nested_parts_and_users_functions_give_leaves_too():
    stacked = Stacked((INDUCING, LinearFeatures.build(2, 3, 0.1)))
    likelihood = FunctionGaussian(jnp.zeros(2), DRIFT)
    kernel = KERNEL + make_kernel("periodic", 2, 3)
    model = GPSSM.create(kernel, stacked, Function(DRIFT), likelihood, jnp.asarray(PROCESS_STD))
    assert set(model.leaves()) == {
        *(
            f"kernel.{side}.{leaf}"
            for side in ("left", "right")
            for leaf in ("log_variance", "log_lengthscale")
        ),
        *("kernel.right.log_period", "basis.parts.0.locations", "basis.parts.1.log_scale"),
        *("mean.function.gain", "mean.function.offset", "likelihood.function.gain"),
        *("likelihood.function.offset", "likelihood.log_std", "log_process_std"),
    }
    # Weakly typed leaves would turn strong at their first update, and compile everything again.
    assert not any(leaf.weak_type for leaf in model.leaves().values())
    assert set(model.leaves("fix")) == {"basis.parts.1.log_scale"}
    plain = build(mean=Function(lambda x, u: 0.9 * x))
    assert set(plain.leaves()) == set(SHAPES) - FIXED


def test_roles_are_set_by_name_and_pattern():
    assert set(MODEL.leaves("fix")) == FIXED
    assert set(MODEL.leaves("optimise")) == set(SHAPES) - FIXED
    hilbert = build(Hilbert.build(jnp.zeros(3), jnp.ones(3), 5))
    assert set(hilbert.leaves("fix")) == {*FIXED, "basis.center", "basis.half_width"}
    fourier = build(RandomFourier.build(KERNEL, 4, 3, jax.random.key(0)))
    assert set(fourier.leaves("fix")) == {*FIXED, "basis.frequencies"}

    model = MODEL.with_roles("sample", "kernel.*", "log_process_std").with_roles(
        "fix", "*log_std", "*.C"
    )
    assert set(model.leaves("sample")) == {
        "kernel.log_variance",
        "kernel.log_lengthscale",
        "log_process_std",
    }
    assert set(model.leaves("fix")) == {*FIXED, "likelihood.log_std", "likelihood.C"}
    assert set(MODEL.leaves("fix")) == FIXED
    with pytest.raises(ValueError, match="fix, optimise, sample, got 'optimize'"):
        MODEL.with_roles("optimize", "kernel.*")  # pyright: ignore[reportArgumentType]


def test_leaves_are_replaced_by_name():
    value = RNG.normal(size=(2, 3))
    model = MODEL.with_leaves({"kernel.log_lengthscale": value, "likelihood.d": jnp.zeros(3)})
    np.testing.assert_array_equal(model.kernel.log_lengthscale, value)
    np.testing.assert_array_equal(model.likelihood.d, np.zeros(3))
    unchanged = {"kernel.log_lengthscale", "likelihood.d"} ^ set(SHAPES)
    assert all(model.leaves()[name] is MODEL.leaves()[name] for name in unchanged)
    np.testing.assert_allclose(MODEL.kernel.log_lengthscale, np.log(LENGTHSCALE))
    periodic = eqx.tree_at(lambda m: m.kernel, MODEL, make_kernel("periodic", 2, 3))
    assert (
        periodic.with_leaves({"kernel.log_period": 0.5}).leaves()["kernel.log_period"].shape == ()
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda name: MODEL.with_leaves({name: jnp.zeros(2)}),
        lambda name: MODEL.with_priors({name: Normal(0.0, 1.0)}),
        lambda name: MODEL.with_roles("fix", name),
    ],
)
def test_unknown_names_list_the_known(change):
    with pytest.raises(KeyError) as raised:
        change("kernel.lengthscale*")
    assert all(name in str(raised.value) for name in ("'kernel.lengthscale*'", *SHAPES))


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"likelihood.d has shape \(3,\), got \(1, 3\)"):
        MODEL.with_leaves({"likelihood.d": jnp.zeros((1, 3))})


def test_log_prior_sums_over_the_leaves_that_are_not_fixed():
    model = MODEL.with_priors(
        {"kernel.*": Normal(0.2, 0.7), "likelihood.C": Normal(C + 1, np.full((3, 2), 0.3))}
    )
    expected = (
        stats.norm.logpdf(np.log(VARIANCE), 0.2, 0.7).sum()
        + stats.norm.logpdf(np.log(LENGTHSCALE), 0.2, 0.7).sum()
        + stats.norm.logpdf(LOCATIONS, 0.0, 2.0).sum()
        + stats.norm.logpdf(C, C + 1, 0.3).sum()
    )
    for std in (STD, PROCESS_STD):
        expected += np.sum(stats.invgamma.logpdf(std**2, 1.0, scale=0.001) + np.log(2 * std**2))
    np.testing.assert_allclose(model.with_roles("fix", "likelihood.d").log_prior(), expected)
    with_offset = expected + stats.norm.logpdf(D).sum()
    np.testing.assert_allclose(model.with_roles("sample", "likelihood.*").log_prior(), with_offset)
    assert model.with_roles("fix", "*").log_prior() == 0


def test_log_prior_is_differentiable_by_name():
    free = MODEL.leaves("optimise")
    slope = jax.jit(jax.grad(lambda leaves: MODEL.with_leaves(leaves).log_prior()))(free)
    assert set(slope) == set(free)
    np.testing.assert_allclose(slope["basis.locations"], -LOCATIONS / 4, rtol=1e-12)


def test_transition_is_the_literal_one():
    x, u = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 1))
    step = eqx.filter_jit(lambda model, x, u: model.transition()(x, u))(
        MODEL, jnp.asarray(x), jnp.asarray(u)
    )
    given = step.given(jnp.asarray(WEIGHTS))
    for n in range(5):
        mean, gain, residual = literal_step(x[n], u[n])
        np.testing.assert_allclose(step.mean[n], mean, rtol=1e-12)
        np.testing.assert_allclose(step.gain[:, n], gain, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(step.residual[:, n], residual, rtol=1e-8)
        np.testing.assert_allclose(given[n], mean + np.sum(gain * WEIGHTS, -1), rtol=1e-8)


@eqx.filter_jit
def simulate(model: GPSSM, key: jax.Array, u: jax.Array, weights: object, start: object) -> tuple:
    return model.simulate(key, u, weights, start)


@pytest.mark.parametrize(("weights", "start"), [(None, None), (WEIGHTS, START)])
def test_simulate_is_the_literal_loop(weights, start):
    key = jax.random.key(3)
    chosen = [None if part is None else jnp.asarray(part) for part in (weights, start)]
    drawn, states, y = simulate(MODEL, key, jnp.asarray(CONTROLS), *chosen)
    weight_key, start_key, path_key, output_key = jax.random.split(key, 4)
    weights = np.asarray(jax.random.normal(weight_key, (2, 4))) if weights is None else weights
    x = np.asarray(jax.random.normal(start_key, (2,))) if start is None else start
    noises, output_noises = (
        jax.random.normal(path_key, (6, 2)),
        jax.random.normal(output_key, (6, 3)),
    )
    np.testing.assert_allclose(drawn, weights)
    np.testing.assert_allclose(states[0], x)
    for t in range(6):
        mean, gain, residual = literal_step(x, CONTROLS[t])
        x = mean + np.sum(gain * weights, -1) + np.sqrt(residual + PROCESS_STD**2) * noises[t]
        np.testing.assert_allclose(states[t + 1], x, rtol=1e-8)
        np.testing.assert_allclose(y[t], C @ x + D + STD * output_noises[t], rtol=1e-8)


def test_simulated_moments_are_those_of_the_predictive_step():
    """x₁ | x₀, v ~ N(m + A v, B + Q) and y₀ ~ N(C E x₁ + d, C var(x₁) Cᵀ + R)."""
    num = 20_000
    run = jax.vmap(
        lambda key: MODEL.simulate(
            key, jnp.asarray(CONTROLS[:1]), jnp.asarray(WEIGHTS), jnp.asarray(START)
        )
    )
    draws = jax.jit(run)(jax.random.split(jax.random.key(4), num))
    mean, gain, residual = literal_step(START, CONTROLS[0])
    mean, variance = mean + np.sum(gain * WEIGHTS, -1), residual + PROCESS_STD**2
    output_variance = np.diag(C @ np.diag(variance) @ C.T) + STD**2
    for sample, center, spread in (
        (draws.states[:, 1], mean, variance),
        (draws.y[:, 0], C @ mean + D, output_variance),
    ):
        assert np.all(np.abs(sample.mean(0) - center) < 5 * np.sqrt(spread / num))
        assert np.all(np.abs(sample.var(0) / spread - 1) < 5 * np.sqrt(2 / num))


@pytest.mark.parametrize("basis", [INDUCING, RandomFourier.build(KERNEL, 4, 3, jax.random.key(0))])
def test_single_precision_stays_single(basis):
    model, u = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (build(basis), CONTROLS))
    assert jax.eval_shape(model.log_prior).dtype == jnp.float32
    drawn = jax.eval_shape(lambda: model.simulate(jax.random.key(0), u))
    assert all(part.dtype == jnp.float32 for part in drawn)
