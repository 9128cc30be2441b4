"""Data from a linear-Gaussian state-space model, for the tests of linear methods."""

import numpy as np

from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM


def simulate(ssm: LinearSSM, length: int, seed: int = 0, missing: float = 0.0) -> Series:
    """A draw driven by white-noise controls; `missing` removes that share of entries, and one whole row."""
    rng = np.random.default_rng(seed)
    A, B, b, C, d, Q, noise = map(np.asarray, ssm)
    u = rng.normal(size=(length, B.shape[1]))
    x, outputs = rng.normal(size=len(A)), []
    for control in u:
        x = A @ x + B @ control + b + rng.multivariate_normal(np.zeros(len(A)), Q)
        outputs.append(C @ x + d + noise * rng.normal(size=len(d)))
    y = np.array(outputs)
    if missing:
        y[rng.random(y.shape) < missing] = np.nan
        y[length // 2] = np.nan
    return Series(y, u)


def arx_series(length=400, seed=0, noise=0.1):
    """y_t = 1.2 y_{t−1} − 0.5 y_{t−2} + 0.8 u_{t−1} + noise."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=length), np.zeros(length)
    for t in range(2, length):
        y[t] = 1.2 * y[t - 1] - 0.5 * y[t - 2] + 0.8 * u[t - 1] + noise * rng.normal()
    return Series(y, u)


def tank_series(length=80, seed=0):
    """y_t = 1.2 y_{t−1} − 0.5 y_{t−2} + 0.8 u_t + noise: a level, and the pump that acts on it at once."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=length), np.zeros(length)
    for t in range(2, length):
        y[t] = 1.2 * y[t - 1] - 0.5 * y[t - 2] + 0.8 * u[t] + 0.3 * rng.normal()
    return Series(y, u, outputs="level", inputs="pump")


def forecast_moments(ssm: LinearSSM, mean: np.ndarray, covariance: np.ndarray, u: np.ndarray):
    """Means and variances (H, Dy) of the next H outputs, from a state x ~ N(mean, covariance) under the controls u."""
    A, B, b, C, d, Q, noise = map(np.asarray, ssm)
    means, variances = [], []
    for control in np.asarray(u):
        mean = A @ mean + B @ control + b
        covariance = A @ covariance @ A.T + Q
        means.append(C @ mean + d)
        variances.append(np.diag(C @ covariance @ C.T) + noise**2)
    return np.array(means), np.array(variances)
