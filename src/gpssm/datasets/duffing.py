"""A driven, damped Duffing oscillator: a mass on a spring that stiffens, pushed by a multisine."""

import numpy as np
from jaxtyping import Float

from gpssm.datasets.base import Simulated, simulate_model


def simulate_duffing(
    num_steps: int = 400,
    seed: int = 0,
    *,
    damping: float = 0.3,
    stiffness: float = 1.0,
    cubic: float = 1.0,
    force: float = 1.0,
    dt: float = 0.1,
    process_std: float = 0.01,
    noise_std: float = 0.05,
) -> Simulated:
    """T steps of an oscillator with states (position p, velocity ṗ) and outputs y_t = p + N(0, noise_std²).

        p̈ + damping · ṗ + stiffness · p + cubic · p³ = u

    A step is one of the classical Runge–Kutta method over dt with u held; u is a random-phase multisine of
    root mean square `force`, with angular frequencies up to 4, around the resonance.
    """
    rng = np.random.default_rng(seed)

    def derivative(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        position, velocity = x[..., 0], x[..., 1]
        acceleration = u[..., 0] - damping * velocity - stiffness * position - cubic * position**3
        return np.stack([velocity, acceleration], axis=-1)

    def transition(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        k1 = derivative(x, u)
        k2 = derivative(x + 0.5 * dt * k1, u)
        k3 = derivative(x + 0.5 * dt * k2, u)
        k4 = derivative(x + dt * k3, u)
        return x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return simulate_model(
        rng,
        transition,
        force * _multisine(rng, dt * np.arange(num_steps)),
        process_std=process_std,
        noise_std=noise_std,
        C=np.array([[1.0, 0.0]]),
        name="duffing",
        dt=dt,
    )


def _multisine(rng: np.random.Generator, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T 1"]:
    """Sum of 20 sines with angular frequencies 0.2, 0.4, ..., 4 and random phases, of root mean square 1."""
    phases = rng.uniform(0.0, 2.0 * np.pi, size=20)
    waves = np.sin(times[:, None] * np.linspace(0.2, 4.0, 20) + phases)
    return waves.sum(axis=1, keepdims=True) / np.sqrt(10.0)
