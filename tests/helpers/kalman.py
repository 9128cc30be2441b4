"""A textbook Kalman filter of a linear model, with the model and data of the tests of filters."""

from typing import NamedTuple

import numpy as np

from builders import make_model, make_series
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from posteriors import make_posterior

SCALER = Scaler((10.0, -3.0), (2.0, 0.5), (1.0,), (3.0,))


class Kalman(NamedTuple):
    """Along T rows: moments of x_{t+1} given y_≤t, log p(y_t | y_<t), and eᵀV⁻¹e of the errors of the outputs."""

    means: np.ndarray
    covariances: np.ndarray
    log_density: np.ndarray
    distance: np.ndarray


def linear_model(**leaves):
    """Two states, two outputs, one control, no residual: with zero weights it is linear and Gaussian."""
    return make_model("linear").with_leaves(leaves)


def linear_posterior(raw, model=None, chains=1, draws=2, states=None):
    """Draws with zero weights, which differ only in their states."""
    model = linear_model() if model is None else model
    weights = np.zeros((chains, draws, 2, 4))
    return make_posterior(model, raw, weights, {}, SCALER, states, chains, draws)


def user_series(length, seed=0, missing=True):
    """Rows in the user's units, some outputs missing."""
    scaled = make_series(length, missing=missing, seed=seed)
    return Series(SCALER.unscale_mean(scaled.y), 3.0 * scaled.u + 1.0)


def move(model, mean, cov, control):
    """Moments of the next state."""
    A, B, b = map(np.asarray, (model.mean.transition, model.mean.input_map, model.mean.offset))
    return A @ mean + B @ control + b, A @ cov @ A.T + np.diag(model.process_variance)


def kalman(model, series, mean=None, cov=None) -> Kalman:
    """The filter from x₀ ~ N(0, I), or from the moments given."""
    mean, cov = np.zeros(2) if mean is None else mean, np.eye(2) if cov is None else cov
    likelihood, found = model.likelihood, []
    for y, control in zip(series.y, series.u, strict=True):
        mean, cov = move(model, mean, cov, control)
        seen = np.isfinite(y)
        C, noise = np.asarray(likelihood.C)[seen], np.exp(2 * np.asarray(likelihood.log_std))[seen]
        spread, error = (
            C @ cov @ C.T + np.diag(noise),
            y[seen] - C @ mean - np.asarray(likelihood.d)[seen],
        )
        gain = cov @ C.T @ np.linalg.inv(spread)
        log_density = -0.5 * (
            np.linalg.slogdet(2 * np.pi * spread)[1] + error @ np.linalg.solve(spread, error)
        )
        mean, cov = mean + gain @ error, cov - gain @ C @ cov
        found.append((mean, cov, log_density, error @ np.linalg.solve(spread, error)))
    return Kalman(*(np.array(part) for part in zip(*found, strict=True)))


def output_moments(model, mean, cov):
    """Mean and standard deviation of the outputs in the user's units, given those of the state."""
    C, d = np.asarray(model.likelihood.C), np.asarray(model.likelihood.d)
    variance = np.diagonal(C @ cov @ C.T) + np.exp(2 * np.asarray(model.likelihood.log_std))
    return SCALER.unscale_mean(C @ mean + d), np.sqrt(SCALER.unscale_variance(variance))
