"""FFVD-M, the paper's sampler: stochastic-gradient HMC jointly on states and whitened weights.

    log q*(v, x) = Σ_d log N(v_d; 0, I) + log p(x₀)
                 + Σ_t [ log p(y_t | x_{t+1}) + Σ_d { log N(x_{t+1,d}; m_d + A_d·v_d, Q_d) − B_d / 2Q_d } ]

The sum over time may be estimated from a window of it. Noises are leaves like the others, with no exact draws.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.linalg import log_normal
from gpssm.methods.base import States
from gpssm.methods.base_sghmc import Latents, SGHMCConfig, build_sghmc
from gpssm.model import GPSSM
from gpssm.series import Series
from gpssm.target import log_target, pairs
from gpssm.types import Method


@dataclass(frozen=True)
class FFVDM(SGHMCConfig):
    """SGHMC on log q*(v, x); Fan, Bonilla, O'Kane, Sisson (2023).

    :param window: transitions in each gradient, next to each other in time; None takes all of them.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and (not isinstance(self.window, int) or self.window < 1):
            raise ValueError(f"window must be a whole number of at least 1, or None for all rows; got {self.window!r}.")

    def build(self, model: GPSSM, states: States) -> Method:
        """The sampler for a model, started at these states and a draw of the weights given them."""
        rows = sum(len(path) - 1 for path in states)
        length = rows if self.window is None else self.window
        if length > rows:
            raise ValueError(f"window must be at most the {rows} rows of the data, got {length}.")

        def density(key: PRNGKeyArray, model: GPSSM, latents: Latents, series: list[Series]) -> Float[Array, ""]:
            assert latents.weights is not None
            if length == rows:
                return log_target(model, latents.states, latents.weights, series)
            first = jax.random.randint(key, (), 0, rows)
            return log_target_window(model, latents.states, latents.weights, series, first, length)

        return build_sghmc(self, model, states, density, collapsed=False, cost=length / rows)


def log_target_window(
    model: GPSSM,
    states: States,
    weights: Float[Array, "Dx M"],
    series: list[Series],
    first: Int[Array, ""],
    length: int,
) -> Float[Array, ""]:
    """Σ_d log N(v_d; 0, I) + log p(x₀) + N/length Σ_t [ … ] over t = first, …, first + length − 1, modulo N.

    The N transitions of all series stand in one row, and a window that leaves its end goes on at its beginning. So each
    transition is in a uniformly drawn window with the same probability, length/N: the estimate is unbiased.
    """
    parts = pairs(states, series)
    rows = sum(len(one) for _, one in parts)
    chosen = (first + jnp.arange(length)) % rows

    def take(arrays: list[Any]) -> Float[Array, "length _"]:
        return jnp.concatenate([jnp.asarray(array, weights.dtype) for array in arrays])[chosen]

    x, following = take([path[:-1] for path, _ in parts]), take([path[1:] for path, _ in parts])
    u, y = take([one.u for _, one in parts]), take([one.y for _, one in parts])
    step, variance = model.transition()(x, u), model.process_variance
    terms = (
        jnp.sum(log_normal(following, step.given(weights), variance[None]))
        - jnp.sum(step.residual / (2 * variance[:, None]))
        + jnp.sum(model.likelihood.log_prob(following, y))
    )
    starts = sum(jnp.sum(log_normal(path[0], 0.0, 1.0)) for path, _ in parts)
    return jnp.sum(log_normal(weights, 0.0, 1.0)) + starts + rows / length * terms
