"""Simulated series with the truth they come from, and the one loop that makes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.series import Series

Transition = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Simulated:
    """A series and the model that made it.

        x₀ ~ N(0, I)
        x_{t+1} = f(x_t, u_t) + N(0, diag(process_std²))
        y_t = C x_{t+1} + d + N(0, diag(noise_std²))

    `states[0]` is x₀; `u[t]` drives `states[t] → states[t+1]`; `states[t+1]` emits `y[t]`. `transition` is f,
    without noise, for states (..., Dx) and controls (..., Du) of any equal leading axes.
    """

    series: Series
    states: Float[np.ndarray, "T+1 Dx"] = field(repr=False)
    transition: Transition = field(repr=False)
    process_std: Float[np.ndarray, " Dx"]
    noise_std: Float[np.ndarray, " Dy"]
    C: Float[np.ndarray, "Dy Dx"]
    d: Float[np.ndarray, " Dy"]


def simulate_model(
    rng: np.random.Generator,
    transition: Transition,
    u: Float[np.ndarray, "T Du"],
    *,
    process_std: Any,
    noise_std: Any,
    C: Float[np.ndarray, "Dy Dx"],
    d: Any = 0.0,
    **metadata: Any,
) -> Simulated:
    """Simulate T steps of the model of `Simulated`, driven by `u`.

    A scalar standard deviation or d stands for every component; `metadata` (name, dt) goes to the Series.
    """
    output_dim, state_dim = C.shape
    process_std = np.full(state_dim, process_std, dtype=float)
    noise_std, d = (np.full(output_dim, value, dtype=float) for value in (noise_std, d))
    if min(process_std.min(), noise_std.min()) < 0:
        raise ValueError(f"standard deviations must not be negative; got {process_std} and {noise_std}")
    states = rng.normal(size=(len(u) + 1, state_dim))
    for t, control in enumerate(u):
        states[t + 1] = transition(states[t], control) + process_std * states[t + 1]
    y = states[1:] @ C.T + d + noise_std * rng.normal(size=(len(u), output_dim))
    return Simulated(Series(y, u, **metadata), states, transition, process_std, noise_std, C, d)
