"""Jumps of the first states between their modes, which gradients cannot cross.

x₀ emits nothing, so that every x with f(x) ≈ x₁ will do for it, and more than one may. Given the
weights and x₁,

    q*(x₀ | x₁, v) ∝ N(x₀; 0, I) w(x₀),
    w(x) = Π_d N(x₁,d; m_d(z) + A_d(z)·v_d, Q_d) exp(−B_d(z) / 2Q_d)

Candidates are drawn from N(0, I), the present x₀ is put among them, and one of all is taken with
probability ∝ w. That leaves the law invariant for any number of them: it is the first generation of
conditional SMC (`inference/csmc.py`), by itself. Where w is narrow in many dimensions the present
one is taken again, and nothing has changed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.core.random import normal
from gpssm.data.series import Series
from gpssm.model.model import GPSSM

CANDIDATES = 50  # of each x₀, the present one among them


def jump(
    key: PRNGKeyArray,
    model: GPSSM,
    weights: Float[Array, "Dx M"],
    states: Float[Array, "N Dx"],
    series: list[Series],
) -> Float[Array, "N Dx"]:
    """The states of all series, one after the other, with x₀ of each drawn anew given all others
    and the weights.
    """
    candidates_key, choice_key = jax.random.split(key)
    first = np.cumsum([0, *(len(rows) + 1 for rows in series[:-1])])
    count, dim = len(series), states.shape[1]
    candidates = normal(candidates_key, (count, CANDIDATES, dim), states.dtype)
    candidates = candidates.at[:, 0].set(states[first])
    u = jnp.stack([jnp.asarray(rows.u[0], states.dtype) for rows in series])
    step = model.transition()(candidates.reshape(-1, dim), jnp.repeat(u, CANDIDATES, 0))
    arrived, variance = jnp.repeat(states[first + 1], CANDIDATES, 0), model.process_variance
    likely = jnp.sum(log_normal(arrived, step.given(weights), variance[None]), -1)
    log_weight = likely - jnp.sum(step.residual / (2 * variance[:, None]), 0)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    # The largest of log w plus Gumbel's noise is one of them with probability ∝ w.
    noisy = log_weight + jax.random.gumbel(choice_key, log_weight.shape, states.dtype)
    chosen = jnp.argmax(noisy.reshape(count, CANDIDATES), 1)
    return states.at[first].set(candidates[np.arange(count), chosen])
