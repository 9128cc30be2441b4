"""Stochastic-gradient Hamiltonian Monte Carlo that finds its own scales (Springenberg et al.,
NeurIPS 2016).

With U = −log π, the gradient ∇U taken at θ (or an unbiased estimate of it), the learning rate ε and
the decay α, step n is, entry by entry,

    V̂ ← (1 − r) V̂ + r (∇U)²,   r = (n + 1)^{−¾}                      in burn-in only,
    p ← (1 − α) p − ε² V̂^{−½} ∇U + N(0, 2 α ε² V̂^{−½}),
    θ ← θ + p.

The average V̂ grows longer with n. The authors' is as short as the gradient keeps its sign, so that
scales follow the gradient, steps are largest where it is small, and the motion settles too far out:
on the Gaussian of the tests with 1.7 times the variance. States that are too hot by a constant
factor make noises that are learned along with them larger, which lets the states spread further,
without end.

Some codes divide U by the number of rows and the noise's variance with it: V̂^{−½} undoes that, and
their ε, such as the published .01, is the ε here.

There is no accept step. In a direction of precision λ, with h = ε² V̂^{−½}, the variance comes out
as 1/λ · 1 / (1 − hλ / (4 − 2α)) when the gradient is exact, so the error falls with ε². A gradient
estimated with variance S adds hS / 2α, relatively. The −ε⁴ that the authors subtract from the
noise's variance is a guess of this for minibatches, and would itself be an error with exact
gradients: it is left out.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

ValueAndGrad = Callable[[Float[Array, " n"]], tuple[Float[Array, ""], Float[Array, " n"]]]


class State(NamedTuple):
    """θ and p, the average V̂ with the number n of gradients in it, and log π where the last
    gradient was taken.
    """

    position: Float[Array, " n"]
    momentum: Float[Array, " n"]
    V_hat: Float[Array, " n"]
    num_averaged: Int[Array, ""]
    value: Float[Array, ""]


def start(position: Float[Array, " n"]) -> State:
    """At rest, with scales of one."""
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
    """One step up log π; `grad_fn` gives log π and its gradient, as `jax.value_and_grad` does."""
    value, slope = grad_fn(state.position)
    num_averaged = state.num_averaged + burn_in
    # An exponent of 1 would never forget the way in, one of ½ or less would follow the noise.
    rate = jnp.where(burn_in, (num_averaged + 1.0) ** -0.75, 0.0)
    V_hat = (1 - rate) * state.V_hat + rate * slope**2
    scale = learning_rate**2 / jnp.sqrt(V_hat)
    noise = jax.random.normal(key, slope.shape, slope.dtype)
    momentum = (1 - decay) * state.momentum + scale * slope + jnp.sqrt(2 * decay * scale) * noise
    return State(state.position + momentum, momentum, V_hat, num_averaged, value)


def energy(state: State, learning_rate: float) -> Float[Array, ""]:
    """−log π + ½ Σ p² V̂^½ / ε².

    The momentum's variance is ε² V̂^{−½} in the limit of small decay.
    """
    return 0.5 * jnp.sum(state.momentum**2 * jnp.sqrt(state.V_hat)) / learning_rate**2 - state.value
