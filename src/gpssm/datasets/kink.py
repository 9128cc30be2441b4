"""The kink function: the usual one-dimensional test of GP state-space models."""

import numpy as np

from gpssm.datasets.base import Simulated, simulate_model


def kink(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """f(x) = 0.8 + (x + 0.2)(1 − 5 / (1 + exp(−2x))); u is not used.

    Written with 1 / (1 + exp(−2x)) = (1 + tanh x) / 2, which does not overflow.
    """
    return 0.8 + (x + 0.2) * (1.0 - 2.5 * (1.0 + np.tanh(x)))


def simulate_kink(
    num_steps: int = 20, seed: int = 0, *, process_std: float = 0.05, noise_std: float = 0.2
) -> Simulated:
    """T steps of x_{t+1} = kink(x_t) + N(0, process_std²), y_t = x_{t+1} + N(0, noise_std²), x₀ ~ N(0, 1)."""
    return simulate_model(
        np.random.default_rng(seed),
        kink,
        np.zeros((num_steps, 0)),
        process_std=process_std,
        noise_std=noise_std,
        C=np.eye(1),
        name="kink",
    )
