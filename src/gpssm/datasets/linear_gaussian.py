"""A random stable linear-Gaussian state-space model, for which everything is known in closed form."""

import numpy as np

from gpssm.datasets.base import Simulated, simulate_model


def simulate_linear_gaussian(
    num_steps: int = 200,
    seed: int = 0,
    *,
    state_dim: int = 2,
    output_dim: int = 1,
    input_dim: int = 1,
    spectral_radius: float = 0.9,
    process_std: float = 0.1,
    noise_std: float = 0.1,
) -> Simulated:
    """T steps of x_{t+1} = A x_t + B u_t + N(0, process_std² I), y_t = C x_{t+1} + d + N(0, noise_std² I).

    A, B, C, d are drawn standard normal, and A scaled to the spectral radius below 1; u is white noise.
    The transition is linear, so its values at unit vectors are the columns of A and B.
    """
    if not 0 <= spectral_radius < 1:
        raise ValueError(f"a stable system has a spectral radius from 0 to below 1; got {spectral_radius}")
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(state_dim, state_dim))
    A *= spectral_radius / np.abs(np.linalg.eigvals(A)).max()
    B = rng.normal(size=(state_dim, input_dim))
    C = rng.normal(size=(output_dim, state_dim))
    return simulate_model(
        rng,
        lambda x, u: x @ A.T + u @ B.T,
        rng.normal(size=(num_steps, input_dim)),
        process_std=process_std,
        noise_std=noise_std,
        C=C,
        d=rng.normal(size=output_dim),
        name="linear_gaussian",
    )
