"""A transition drawn from a sparse Gaussian process: data that a GP state-space model can fit exactly."""

import numpy as np

from gpssm.datasets.base import Simulated, simulate_model


def simulate_sparse_gp(
    num_steps: int = 120,
    seed: int = 0,
    *,
    variance: float = 2.0,
    lengthscale: float = 0.5,
    num_inducing: int = 20,
    identity_mean: bool = False,
    process_std: float = 0.1,
    noise_std: float = 0.1,
) -> Simulated:
    """T steps of a one-dimensional sparse GP state-space model, y_t = x_{t+1} + N(0, noise_std²).

        f(x) = m(x) + k(x, Z) k(Z, Z)⁻¹ (U − m(Z)),    U ~ N(m(Z), k(Z, Z))

    with k squared-exponential, Z evenly spaced in [−2, 2] and m zero, or the identity. Far from Z the
    function returns to m, and |f(x) − m(x)| ≤ √variance · |v| with v the whitened U: with mean zero no path
    can escape, with the identity it can do no worse than a random walk.
    """
    rng = np.random.default_rng(seed)
    locations = np.linspace(-2.0, 2.0, num_inducing)
    covariance = _covariance(locations, locations, variance, lengthscale)
    factor = np.linalg.cholesky(covariance + 1e-8 * variance * np.eye(num_inducing))
    # k(Z,Z)⁻¹(U − m(Z)) = L⁻ᵀ v with v ~ N(0, I)
    coefficients = np.linalg.solve(factor.T, rng.normal(size=num_inducing))

    def transition(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        drawn = _covariance(x, locations, variance, lengthscale) @ coefficients
        return x + drawn if identity_mean else drawn

    return simulate_model(
        rng,
        transition,
        np.zeros((num_steps, 0)),
        process_std=process_std,
        noise_std=noise_std,
        C=np.eye(1),
        name="sparse_gp",
    )


def _covariance(x: np.ndarray, z: np.ndarray, variance: float, lengthscale: float) -> np.ndarray:
    """k(x, z) = variance · exp(−(x − z)² / 2 lengthscale²), with a new last axis for z."""
    return variance * np.exp(-0.5 * np.square((x[..., None] - z) / lengthscale))
