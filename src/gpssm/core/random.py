"""Normal and gamma variates in programs that compile quickly.

XLA takes several times as long to compile random bits with several axes as with one, and
`jax.random.gamma` runs a nested loop for every entry.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


def normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, "..."]:
    """Draw independent N(0, 1) variates as one row."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def gamma(key: PRNGKeyArray, shape: Float[Array, " n"]) -> Float[Array, " n"]:
    """Draw Gamma(α, 1) for all α > 0 by rejection in one loop (Marsaglia & Tsang 2000).

    With d = α + ⅔, v = (1 + z / √(9d))³ and z ~ N(0, 1), accepted if v > 0 and log u < ½z² + d (1 −
    v + log v), d v is Gamma(α + 1), and u^{1/α} times that is Gamma(α). At most one in twenty is
    rejected.
    """
    d = shape + 2 / 3

    def propose(
        state: tuple[PRNGKeyArray, Bool[Array, " n"], Array],
    ) -> tuple[PRNGKeyArray, Array, Array]:
        key, rejected, v = state
        key, normal_key, uniform_key = jax.random.split(key, 3)
        z = jax.random.normal(normal_key, shape.shape, shape.dtype)
        v = jnp.where(rejected, (1 + z / jnp.sqrt(9 * d)) ** 3, v)
        log_u = jnp.log(jax.random.uniform(uniform_key, shape.shape, shape.dtype))
        return key, rejected & ((v <= 0) | (log_u >= 0.5 * z**2 + d * (1 - v + jnp.log(v)))), v

    begin = (key, jnp.ones(shape.shape, bool), jnp.ones_like(shape))
    key, _, v = jax.lax.while_loop(lambda state: jnp.any(state[1]), propose, begin)
    u = 1 - jax.random.uniform(key, shape.shape, shape.dtype)  # never zero
    return d * v * u ** (1 / shape)
