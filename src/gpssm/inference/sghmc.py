"""Stochastic-gradient Hamiltonian Monte Carlo with adaptive scales (Springenberg et al., NeurIPS
2016).

With U = −log π, its gradient ∇U at θ (or an unbiased estimate), learning rate ε and decay α, step n
is elementwise

    V̂ ← (1 − r) V̂ + r (∇U)²,   r = (n + 1)^{−¾}                      in burn-in only,
    p ← (1 − α) p − ε² V̂^{−½} ∇U + N(0, 2 α ε² V̂^{−½}),
    θ ← θ + p.

The averaging window of V̂ grows with n. That of the authors is as short as the gradient keeps its
sign, so that the scales follow the gradient, steps are largest where it is small, and the
stationary distribution is too wide: on the Gaussian of the tests it has 1.7 times the variance. If
noise levels are learned as well, states with too large a variance increase the noise, which widens
the states further without limit.

Some implementations divide both U and the variance of the noise by the number of rows. V̂^{−½}
compensates for that, and their ε, such as the published .01, is the ε here.

There is no accept step. In a direction of precision λ, with h = ε² V̂^{−½}, the variance is 1/λ · 1
/ (1 − hλ / (4 − 2α)) for exact gradients, so that the error falls with ε². A gradient estimate of
variance S adds a relative error of hS / 2α. The term −ε⁴ that the authors add to the variance of
the noise approximates this correction for minibatches. With exact gradients it would itself be an
error, and it is omitted.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

ValueAndGrad = Callable[[Float[Array, " n"]], tuple[Float[Array, ""], Float[Array, " n"]]]


class State(NamedTuple):
    """θ and p, the average V̂ over n gradients, and log π at the last gradient."""

    position: Float[Array, " n"]
    momentum: Float[Array, " n"]
    V_hat: Float[Array, " n"]
    num_averaged: Int[Array, ""]
    value: Float[Array, ""]


def start(position: Float[Array, " n"]) -> State:
    """Return a state at rest, with unit scales."""
    lowest = jnp.full((), -jnp.inf, position.dtype)
    return State(
        position, jnp.zeros_like(position), jnp.ones_like(position), jnp.zeros((), int), lowest
    )


def step(
    key: PRNGKeyArray,
    state: State,
    grad_fn: ValueAndGrad,
    learning_rate: float,
    decay: float,
    burn_in: Bool[Array, ""],
) -> State:
    """Take one step; `grad_fn` returns log π and its gradient, as `jax.value_and_grad` does."""
    value, slope = grad_fn(state.position)
    num_averaged = state.num_averaged + burn_in
    # An exponent of 1 would never forget the burn-in, and one of ½ or less would follow the noise.
    rate = jnp.where(burn_in, (num_averaged + 1.0) ** -0.75, 0.0)
    V_hat = (1 - rate) * state.V_hat + rate * slope**2
    scale = learning_rate**2 / jnp.sqrt(V_hat)
    noise = jax.random.normal(key, slope.shape, slope.dtype)
    momentum = (1 - decay) * state.momentum + scale * slope + jnp.sqrt(2 * decay * scale) * noise
    return State(state.position + momentum, momentum, V_hat, num_averaged, value)


def energy(state: State, learning_rate: float) -> Float[Array, ""]:
    """Return −log π + ½ Σ p² V̂^½ / ε².

    The variance of the momentum is ε² V̂^{−½} in the limit of small decay.
    """
    return 0.5 * jnp.sum(state.momentum**2 * jnp.sqrt(state.V_hat)) / learning_rate**2 - state.value
