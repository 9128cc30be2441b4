"""Sparse Gaussian process regression in NumPy: the bound, its gradient, and inducing points.

    log N(r; 0, A Aᵀ + σ² I) − Σ_t B(z_t) / 2σ²,   A = [k(z, Z) L⁻ᵀ, features]     (Titsias 2009)

is the collapsed target of `model/target.py` for known states, and the evidence of dense regression
if every row is an inducing point. A gradient takes milliseconds, less than its compilation would.
The kernel is squared-exponential, with a lengthscale for each coordinate; the hyper-parameters of
an output are log k(z, z), the logarithms of the lengthscales, and log σ².
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
from jaxtyping import Float

from gpssm.linear.arx import NO_NOISE
from gpssm.model.bases import JITTER

NEGLIGIBLE = 1e-6  # B / k below which another inducing point would not help
VARIANCE_SPREAD = 3.0  # of the prior of log k(z, z) around a quarter of the error variance


class Smoothness(NamedTuple):
    """log ℓ_j ~ N(middle + ½ log Dz, spread²), as distances grow with √Dz."""

    middle: float
    spread: float


def learn_kernel(
    z: Float[np.ndarray, "N Dz"],
    error: Float[np.ndarray, "N Dy"],
    variance: Float[np.ndarray, " Dy"],
    slack: Float[np.ndarray, " Dy"],
    smoothness: Smoothness,
    numbers: Iterable[int],
) -> tuple[Float[np.ndarray, "Dy Dz+2"], Float[np.ndarray, "M Dz"]]:
    """Return the hyper-parameters of all outputs, and inducing points.

    Parameters
    ----------
    z, error
        Inputs, and the errors of a linear regression on them.
    variance
        A first estimate of the variances of the errors.
    slack
        Standard deviations of linear coefficients of the errors.
    smoothness
        The prior of the lengthscales.
    numbers
        Numbers of inducing points, chosen and used one after the other.
    """
    dim = z.shape[1]
    lengthscales = np.full((len(variance), dim), smoothness.middle + 0.5 * np.log(dim))
    middle = np.column_stack([np.log(0.25 * variance), lengthscales, np.log(variance)])
    # The noise has a flat prior: its spread is infinite.
    spread = np.array([VARIANCE_SPREAD, *np.full(dim, smoothness.spread), np.inf])
    hyper, points = middle, z[:0]
    for number in numbers:
        points = choose_points(hyper, z, number)
        hyper = np.stack(
            [
                maximise(start, centre, spread, points, z, r, with_constant(z) * scale)
                for start, centre, r, scale in zip(hyper, middle, error.T, slack, strict=True)
            ]
        )
    return hyper, points


def maximise(
    start: Float[np.ndarray, " Dz+2"],
    middle: Float[np.ndarray, " Dz+2"],
    spread: Float[np.ndarray, " Dz+2"],
    points: Float[np.ndarray, "M Dz"],
    z: Float[np.ndarray, "N Dz"],
    error: Float[np.ndarray, " N"],
    features: Float[np.ndarray, "N Dz+1"],
) -> Float[np.ndarray, " Dz+2"]:
    """Return the hyper-parameters of one output that maximise bound and prior, by L-BFGS."""

    def objective(hyper: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = log_bound(hyper, points, z, error, features)
        distance = (hyper - middle) / spread
        return float(0.5 * distance @ distance) - value, distance / spread - slope

    # Values far outside mean no effect at all, and a noise below `NO_NOISE` is rounding.
    low = np.array([middle[0] - 12, *(middle[1:-1] - 5), 2 * np.log(NO_NOISE)])
    high = np.array([middle[0] + 12, *(middle[1:-1] + 5), max(middle[-1] + 5, low[-1] + 5)])
    return scipy.optimize.minimize(
        objective,
        np.clip(start, low, high),
        jac=True,
        method="L-BFGS-B",
        bounds=np.column_stack([low, high]),
        options={"maxiter": 60, "maxcor": 20},
    ).x


def covariance(
    hyper: Float[np.ndarray, " Dz+2"],
    left: Float[np.ndarray, "N Dz"],
    right: Float[np.ndarray, "M Dz"],
) -> Float[np.ndarray, "N M"]:
    """Return k(z, z') = exp(log k − ½ Σ_j (z_j − z'_j)² / ℓ_j²)."""
    a, b = left * np.exp(-hyper[1:-1]), right * np.exp(-hyper[1:-1])
    squared = np.sum(a**2, 1)[:, None] + np.sum(b**2, 1) - 2 * a @ b.T
    return np.exp(hyper[0] - 0.5 * np.maximum(squared, 0.0))


def inverse_factor(
    hyper: Float[np.ndarray, " Dz+2"], points: Float[np.ndarray, "M Dz"]
) -> Float[np.ndarray, "M M"]:
    """Return L⁻¹ for k(Z, Z) = L Lᵀ, with jitter."""
    square = covariance(hyper, points, points)
    np.fill_diagonal(square, (1 + JITTER) * np.exp(hyper[0]))
    return inverse_lower(np.linalg.cholesky(square))


def inverse_lower(factor: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Return L⁻¹ of a lower-triangular matrix."""
    (invert,) = scipy.linalg.get_lapack_funcs(("trtri",), (factor,))
    return invert(factor, lower=1)[0]


def log_bound(
    hyper: Float[np.ndarray, " Dz+2"],
    points: Float[np.ndarray, "M Dz"],
    z: Float[np.ndarray, "N Dz"],
    error: Float[np.ndarray, " N"],
    features: Float[np.ndarray, "N F"],
) -> tuple[float, Float[np.ndarray, " Dz+2"]]:
    """Return log N(r; 0, A Aᵀ + σ² I) − Σ B / 2σ², A = [k(z, Z) L⁻ᵀ, features], and its gradient.

    With P = I + AᵀA/σ², μ = P⁻¹Aᵀr/σ² and e = r − Aμ, the derivative by A is (e μᵀ − A P⁻¹ + A)/σ²,
    without the last term for columns without a residual. A depends on k(Z, Z) only through L, up to
    a rotation: the derivative by k(Z, Z) is −½ L⁻ᵀ (derivative by A)ᵀA L⁻¹.
    """
    count, size, variance = len(z), len(points), np.exp(hyper[-1])
    cross = covariance(hyper, z, points)
    inverse = inverse_factor(hyper, points)
    gain = np.hstack([cross @ inverse.T, features])
    gram = gain.T @ gain
    factor = np.linalg.cholesky(np.eye(len(gram)) + gram / variance)
    root = inverse_lower(factor)
    half = root @ (gain.T @ error) / variance
    mean, precision_inverse = root.T @ half, root.T @ root
    misfit = error - gain @ mean
    residual = count * np.exp(hyper[0]) - np.trace(gram[:size, :size])
    log_det = 2 * np.log(np.diagonal(factor)).sum()
    value = -0.5 * (
        count * np.log(2 * np.pi * variance)
        + log_det
        + error @ error / variance
        - half @ half
        + residual / variance
    )
    by_gain = np.outer(misfit, mean[:size]) - gain @ precision_inverse[:, :size] + gain[:, :size]
    by_gain /= variance
    # Derivatives by k(z, Z) and k(Z, Z), each times the kernel, for parameters in log space.
    by_cross = (by_gain @ inverse) * cross
    inner = by_gain.T @ gain[:, :size]
    by_square = -0.25 * inverse.T @ (inner + inner.T) @ inverse * covariance(hyper, points, points)
    scale = np.exp(-2 * hyper[1:-1])
    squares = by_cross.sum(1) @ z**2 + (by_cross.sum(0) + 2 * by_square.sum(0)) @ points**2
    products = np.sum(z * (by_cross @ points), 0) + np.sum(points * (by_square @ points), 0)
    by_variance = by_cross.sum() + by_square.sum() + JITTER * np.trace(by_square)
    fitted = np.sum(precision_inverse * gram)
    by_noise = (fitted + misfit @ misfit + residual) / variance - count
    slope = [
        by_variance - 0.5 * count * np.exp(hyper[0]) / variance,
        *(scale * (squares - 2 * products)),
        0.5 * by_noise,
    ]
    return float(value), np.array(slope)


def choose_points(
    hyper: Float[np.ndarray, "Dy Dz+2"], z: Float[np.ndarray, "N Dz"], number: int
) -> Float[np.ndarray, "M Dz"]:
    """Choose rows of z one by one, each where Σ_d B_d(z) / σ_d² is largest given the previous ones.

    They are the pivots of an incomplete Cholesky factorisation of k(z, z).
    """
    variance = np.exp(hyper[:, 0])
    residual = np.tile(variance[:, None], (1, len(z)))
    columns = np.zeros((len(hyper), min(number, len(z)), len(z)))
    chosen: list[int] = []
    for step in range(columns.shape[1]):
        row = int(np.argmax(np.exp(-hyper[:, -1]) @ residual))
        if np.all(residual[:, row] < NEGLIGIBLE * variance):
            break
        chosen.append(row)
        for output, rows in enumerate(columns):
            across = covariance(hyper[output], z[[row]], z)[0] - rows[:step, row] @ rows[:step]
            pivot = max(residual[output, row], NEGLIGIBLE * variance[output])
            rows[step] = across / np.sqrt(pivot)
            residual[output] = np.maximum(residual[output] - rows[step] ** 2, 0.0)
        residual[:, row] = 0.0
    return z[chosen]


def with_constant(z: Float[np.ndarray, "N Dz"]) -> Float[np.ndarray, "N Dz+1"]:
    """Return [z; 1]."""
    return np.column_stack([z, np.ones(len(z))])
