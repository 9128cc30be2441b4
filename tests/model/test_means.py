"""Mean functions against their equations, row by row."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.model.means import MEANS, Mean

RNG = np.random.default_rng(0)
A, B, OFFSET = RNG.normal(size=(2, 2)), RNG.normal(size=(2, 1)), RNG.normal(size=2)
STATES, CONTROLS = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 1))


class Pendulum(eqx.Module):
    """x₁ + h x₂,  x₂ − h g sin x₁ + Σu, with g to be learned."""

    gravity: jax.Array

    def __call__(self, x: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.stack(
            [x[0] + 0.1 * x[1], x[1] - 0.1 * self.gravity * jnp.sin(x[0]) + jnp.sum(u)]
        )


# How to build each mean for Du controls, and the same equation for one row in NumPy.
EXAMPLES: dict[
    str, tuple[Callable[[int], tuple], Callable[[np.ndarray, np.ndarray], np.ndarray]]
] = {
    "identity": (lambda du: (), lambda x, u: x),
    "zero": (lambda du: (), lambda x, u: 0 * x),
    "linear": (
        lambda du: (jnp.asarray(A), jnp.asarray(B[:, :du]), jnp.asarray(OFFSET)),
        lambda x, u: A @ x + B[:, : len(u)] @ u + OFFSET,
    ),
    "function": (
        lambda du: (Pendulum(jnp.array(9.81)),),
        lambda x, u: np.array([x[0] + 0.1 * x[1], x[1] - 0.981 * np.sin(x[0]) + u.sum()]),
    ),
}


def build(name: str, control_dim: int) -> Mean:
    return MEANS[name](*EXAMPLES[name][0](control_dim))


def test_every_mean_is_tested():
    assert set(EXAMPLES) == set(MEANS)


@pytest.mark.parametrize("control_dim", [0, 1])
@pytest.mark.parametrize("name", MEANS)
def test_equation_holds_row_by_row(name, control_dim):
    mean, u = build(name, control_dim), CONTROLS[:, :control_dim]
    value = eqx.filter_jit(mean)(jnp.asarray(STATES), jnp.asarray(u))
    expected = [EXAMPLES[name][1](x, control) for x, control in zip(STATES, u, strict=True)]
    np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize("name", MEANS)
def test_single_precision_stays_single(name):
    mean, x, u = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32), (build(name, 1), STATES, CONTROLS)
    )
    assert mean(x, u).dtype == jnp.float32


def test_a_function_learns_through_its_arrays():
    mean = build("function", 1)
    gradient = eqx.filter_grad(lambda m: jnp.sum(m(jnp.asarray(STATES), jnp.asarray(CONTROLS))))(
        mean
    )
    np.testing.assert_allclose(
        gradient.function.gravity, -0.1 * np.sin(STATES[:, 0]).sum(), rtol=1e-12
    )


def test_a_plain_function_will_do():
    mean = MEANS["function"](lambda x, u: 0.9 * x + u)
    value = eqx.filter_jit(mean)(jnp.asarray(STATES), jnp.asarray(CONTROLS))
    np.testing.assert_allclose(value, 0.9 * STATES + CONTROLS, rtol=1e-12)
