"""Subspace identification of a linear state-space model: canonical variates, in closed form.

The state s_t is what the past (outputs and inputs before t) tells about the outputs from t on,
once the effect of the inputs from t on is taken out. With p, f the past and the future after
that,

    Σ_ff^(-1/2) Σ_fp Σ_pp^(-1/2) = U S Vᵀ,        s_t = first Dx rows of Vᵀ Σ_pp^(-1/2) p_t

so the states are nested: those of a smaller order are the first ones of a larger. The parameters
follow by least squares.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from gpssm.data.series import Series, as_list
from gpssm.linear.arx import interpolated
from gpssm.linear.state_space import PROCESS_FLOOR, LinearSSM, noise_floor

RIDGE = 1e-8  # of covariances, relative to their mean diagonal
LEAST_CORRELATION = 1e-6  # between past and future, for a direction to count as a state

Parts = list[tuple[np.ndarray, np.ndarray]]  # (y, u) of each series


class PastStates(NamedTuple):
    """State estimates from data before their time, with inputs and outputs of N steps."""

    before: Float[np.ndarray, "N D"]
    u: Float[np.ndarray, "N Du"]
    after: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, "N Dy"]

    def leading(self, dim: int) -> "PastStates":
        """The first `dim` of the states."""
        return self._replace(before=self.before[:, :dim], after=self.after[:, :dim])


def subspace(
    series: Series | Sequence[Series], state_dim: int, horizon: int | None = None
) -> LinearSSM:
    """A linear state-space model with `state_dim` states, from `horizon` steps of past and future.

    Without a `horizon` it is long enough for the order and short enough for the series. Missing
    outputs are interpolated, for this alone. Dimensions beyond what the series can tell are inert:
    A = 0, C = 0, Q = I.
    """
    return from_states(past_states(series, state_dim, horizon), state_dim)


def past_states(
    series: Series | Sequence[Series], state_dim: int, horizon: int | None = None
) -> PastStates:
    """The leading canonical variates of the past, at most `state_dim` of them, at unit variance."""
    parts = [(interpolated(part).y, np.asarray(part.u)) for part in as_list(series)]
    longest = max(len(y) for y, _ in parts) // 2
    horizon = _horizon(parts, state_dim) if horizon is None else horizon
    if state_dim < 1 or not 1 <= horizon <= longest:
        raise ValueError(
            f"state_dim must be at least 1 and horizon from 1 to {longest}, half of the longest "
            "series; "
            f"got state_dim={state_dim} and horizon={horizon}"
        )
    parts = [(y, u) for y, u in parts if len(y) >= 2 * horizon]
    states = _canonical_variates(parts, state_dim, horizon)
    return PastStates(
        np.concatenate([s[:-1] for s in states]),
        np.concatenate([u[horizon:] for _, u in parts]),
        np.concatenate([s[1:] for s in states]),
        np.concatenate([y[horizon:] for y, _ in parts]),
    )


def _canonical_variates(parts: Parts, state_dim: int, horizon: int) -> list[np.ndarray]:
    """The states of each series at times horizon, ..., T, as many as have a correlation."""
    lags = [(_lags(y, horizon), _lags(u, horizon)) for y, u in parts]
    pasts = [np.concatenate(pair, axis=1) for pair in lags]
    inputs = np.concatenate([u[horizon:] for _, u in lags])
    future = _unexplained(np.concatenate([y[horizon:] for y, _ in lags]), inputs)
    past = _unexplained(np.concatenate([p[:-horizon] for p in pasts]), inputs)
    whitener = _whitener(past)
    _, correlations, directions = np.linalg.svd(
        _whitener(future) @ (future.T @ past) @ whitener.T / len(past)
    )
    dim = min(state_dim, int(np.sum(correlations > LEAST_CORRELATION)))
    centre = np.concatenate(pasts).mean(axis=0)
    return [(p - centre) @ (directions[:dim] @ whitener).T for p in pasts]


def from_states(states: PastStates, state_dim: int) -> LinearSSM:
    """Least squares of x_{t+1} on [x_t; u_t; 1] and y_t on [x_{t+1}; 1]; inert states fill up."""
    dim = states.after.shape[1]
    extra = (0, state_dim - dim)
    ones = np.ones((len(states.y), 1))
    dynamics, error = _least_squares(
        np.concatenate([states.before, states.u, ones], axis=1), states.after
    )
    emission, noise = _least_squares(np.concatenate([states.after, ones], axis=1), states.y)
    process_cov = np.eye(state_dim)
    process_cov[:dim, :dim] = error.T @ error / len(error) + PROCESS_FLOOR * np.eye(dim)
    parameters = {
        "transition": np.pad(dynamics[:, :dim], (extra, extra)),
        "control": np.pad(dynamics[:, dim:-1], (extra, (0, 0))),
        "offset": np.pad(dynamics[:, -1], extra),
        "C": np.pad(emission[:, :-1], ((0, 0), extra)),
        "d": emission[:, -1],
        "process_cov": process_cov,
        "noise_std": np.sqrt((noise**2).mean(axis=0)) + noise_floor(states.y),
    }
    return LinearSSM(**{name: jnp.asarray(value) for name, value in parameters.items()})


def _horizon(parts: Parts, state_dim: int) -> int:
    """The longest horizon up to what the order needs, with twice as many rows as regressors."""
    y, u = parts[0]
    width = y.shape[1] + 2 * u.shape[1]
    wanted = max(10, state_dim + 2)
    for horizon in range(wanted, 1, -1):
        count = sum(max(len(y) - 2 * horizon + 1, 0) for y, _ in parts)
        if count >= 2 * (horizon * width + 1):
            return horizon
    return 1


def _lags(
    values: Float[np.ndarray, "T D"], horizon: int
) -> Float[np.ndarray, "T-horizon+1 horizon*D"]:
    """Row i holds values[i : i + horizon], flattened."""
    count = len(values) - horizon + 1
    return np.concatenate([values[i : i + count] for i in range(horizon)], axis=1)


def _unexplained(values: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """What a regression on the inputs and a constant leaves of the values."""
    return _least_squares(np.concatenate([inputs, np.ones((len(values), 1))], axis=1), values)[1]


def _whitener(values: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "D D"]:
    cov = values.T @ values / len(values)
    ridge = RIDGE * (np.trace(cov) / len(cov) + RIDGE)
    factor = np.linalg.cholesky(cov + ridge * np.eye(len(cov)))
    return scipy.linalg.solve_triangular(factor, np.eye(len(cov)), lower=True)


def _least_squares(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (targets × inputs) of the least-norm solution, and residuals."""
    weights = np.linalg.lstsq(inputs, targets, rcond=RIDGE)[0]
    return weights.T, targets - inputs @ weights
