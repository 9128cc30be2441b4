"""Stochastic-gradient Hamiltonian Monte Carlo that finds its own scales (Springenberg et al., NeurIPS 2016).

With U = −log π, the gradient ∇U taken at θ (or an unbiased estimate of it), the learning rate ε and the decay α,
one step is, entry by entry,

    r = 1 / (τ + 1),   τ ← τ + 1 − τ g² / V̂,   g ← (1 − r) g + r ∇U,   V̂ ← (1 − r) V̂ + r (∇U)²      in burn-in only,
    p ← (1 − α) p − ε² V̂^{−½} ∇U + N(0, 2 α ε² V̂^{−½}),
    θ ← θ + p.

All of the first line's right-hand sides are the old values: τ is the length of an average, and shrinks while the
gradient keeps its sign. After burn-in τ, g and V̂ stand still. Some codes divide U by the number of rows and the noise's
variance with it: V̂^{−½} undoes that, and their ε, such as the published .01, is the ε here.

There is no accept step. In a direction of precision λ, with h = ε² V̂^{−½}, the variance comes out as
1/λ · 1 / (1 − hλ / (4 − 2α)) when the gradient is exact, so the error falls with ε². A gradient estimated with
variance S adds hS / 2α, relatively. The −ε⁴ that the authors subtract from the noise's variance is a guess of this for
minibatches, and would be an error of its own with exact gradients: it is left out.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

ValueAndGrad = Callable[[Float[Array, " n"]], tuple[Float[Array, ""], Float[Array, " n"]]]


class State(NamedTuple):
    """θ and p, the averages τ, g and V̂, and log π where the last gradient was taken."""

    position: Float[Array, " n"]
    momentum: Float[Array, " n"]
    tau: Float[Array, " n"]
    g: Float[Array, " n"]
    V_hat: Float[Array, " n"]
    value: Float[Array, ""]


def start(position: Float[Array, " n"]) -> State:
    """At rest, with averages over one step of unit size."""
    one = jnp.ones_like(position)
    return State(position, jnp.zeros_like(position), one, one, one, jnp.full((), -jnp.inf, position.dtype))


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
    averages = _averages(state, -slope)
    tau, g, V_hat = (jnp.where(burn_in, new, old) for new, old in zip(averages, state[2:5], strict=True))
    scale = learning_rate**2 / jnp.sqrt(V_hat)
    noise = jax.random.normal(key, slope.shape, slope.dtype)
    momentum = (1 - decay) * state.momentum + scale * slope + jnp.sqrt(2 * decay * scale) * noise
    return State(state.position + momentum, momentum, tau, g, V_hat, value)


def energy(state: State, learning_rate: float) -> Float[Array, ""]:
    """−log π + ½ Σ p² V̂^½ / ε²: the momentum's variance is ε² V̂^{−½} in the limit of small decay."""
    return 0.5 * jnp.sum(state.momentum**2 * jnp.sqrt(state.V_hat)) / learning_rate**2 - state.value


def _averages(
    state: State, gradient: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    """τ, g and V̂ after one more gradient."""
    rate = 1 / (state.tau + 1)
    tau = state.tau + 1 - state.tau * state.g**2 / state.V_hat
    return tau, (1 - rate) * state.g + rate * gradient, (1 - rate) * state.V_hat + rate * gradient**2
