"""State-space models of all low orders out of a long regularised regression.

The regression's state f_t = [y_{t−1}, …, y_{t−na}, u_{t−1}, …] is all that the past says about the
outputs to come. Of what it says about the next H of them, Σ_h^(-½) C A^h f_t with Σ_h the
covariance of the forecast h rows ahead, the principal components over the training rows are the
states of a smaller model:

    z_t = T f_t,   T = first n rows of Vᵀ L⁻¹,   U S Vᵀ = [Σ_h^(-½) C A^h]_h L,   L Lᵀ = Cov(f)

They are nested, so that the states of order n are the first of those of a larger order, and errors
count at the horizon of use by how large they are beside what cannot be forecast anyway. The rest is
least squares in innovations form, for which the states are known at every row:

    y_t = H z_t + D u_t + d + e_t,   z_{t+1} = F z_t + G u_t + g + K e_t,   e_t ~ N(0, Σ)

This is subspace identification by a long regression (Jansson 2003; SSARX), with a regression that
is regularised.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

from gpssm.data.series import Series
from gpssm.linear.arx import NO_NOISE, Regression, interpolated, regressors, to_state_space
from gpssm.linear.state_space import LinearSSM

# Of the covariance of the lags, relative to its mean diagonal: smooth signals are collinear.
RIDGE = 1e-9


class Reduction(NamedTuple):
    """Components z_t of each row and of the next one, its inputs and outputs; singular values."""

    before: Float[np.ndarray, "N n"]
    after: Float[np.ndarray, "N n"]
    u: Float[np.ndarray, "N Du"]
    y: Float[np.ndarray, "N Dy"]
    singular_values: Float[np.ndarray, " n"]


def reduce(
    regression: Regression, series: Sequence[Series], max_order: int, horizon: int
) -> Reduction:
    """The leading components of what the regression's state says about the next outputs."""
    na, nb = len(regression.outputs), len(regression.inputs)
    rows = [_lags(item, na, nb) for item in series if len(item) > max(na, nb - 1)]
    before, after = (
        np.concatenate([part[shift : len(part) - 1 + shift] for part, _ in rows])
        for shift in (0, 1)
    )
    centre = before.mean(0)
    covariance = (before - centre).T @ (before - centre) / len(before)
    ridge = RIDGE * (np.trace(covariance) / len(covariance) + RIDGE)
    factor = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))
    weighted = _weighted_observability(to_state_space(regression), horizon) @ factor
    _, singular_values, directions = np.linalg.svd(weighted, full_matrices=False)
    order = min(max_order, int(np.sum(singular_values > 1e-9 * singular_values[0])))
    projection = scipy.linalg.solve_triangular(factor, directions[:order].T, lower=True, trans=1)
    u, y = (
        np.concatenate(parts) for parts in zip(*((item.u, item.y) for _, item in rows), strict=True)
    )
    return Reduction(
        (before - centre) @ projection, (after - centre) @ projection, u, y, singular_values[:order]
    )


def _lags(series: Series, na: int, nb: int) -> tuple[np.ndarray, Series]:
    """The regression's state before each row with all its lags, and after the last; these rows."""
    skip = max(na, nb - 1)
    longer = Series(np.vstack([series.y, series.y[-1:]]), np.vstack([series.u, series.u[-1:]]))
    z, _ = regressors(interpolated(longer), na, nb, skip)
    width, controls = series.output_dim, series.input_dim
    state = np.delete(z, [*range(na * width, na * width + controls), z.shape[1] - 1], axis=1)
    return state, series[skip:]


def _weighted_observability(model: LinearSSM, horizon: int) -> Float[np.ndarray, "H*Dy Dx"]:
    """Rows Σ_h^(-½) C A^(h+1), h = 0..H−1, with Σ_h the covariance of outputs h + 1 rows ahead."""
    reach, noise, rows = model.C, np.zeros((len(model.d), len(model.d))), []
    for _ in range(horizon):
        noise = noise + reach @ model.process_cov @ reach.T
        reach = reach @ model.transition
        factor = np.linalg.cholesky(noise)
        rows.append(scipy.linalg.solve_triangular(factor, reach, lower=True))
    return np.concatenate(rows)


def innovations_form(reduction: Reduction, order: int) -> LinearSSM:
    """The model with the first `order` components as states.

    Its state is x_{t+1} = [z_{t+1}; y_t], so that innovations, which move both, are its noise:

        A = [F 0; H 0]   B = [G; D]   b = [g; d]   C = [0 I]   Q = [K; I] Σ [K; I]ᵀ   R = 0
    """
    width, controls = reduction.y.shape[1], reduction.u.shape[1]
    order = min(order, reduction.before.shape[1])
    observed = np.isfinite(reduction.y).all(1)
    z, after, u, y = (
        part[observed]
        for part in (reduction.before[:, :order], reduction.after[:, :order], *reduction[2:4])
    )
    inputs = np.hstack([z, u, np.ones((len(z), 1))])
    outputs = _least_squares(inputs, y)
    errors = y - inputs @ outputs.T
    dynamics = _least_squares(np.hstack([inputs, errors]), after)
    freedom = max(len(errors) - inputs.shape[1], 1)
    covariance = errors.T @ errors / freedom + NO_NOISE**2 * np.eye(width)
    gain = np.vstack([dynamics[:, -width:], np.eye(width)])
    transition, control = (
        np.zeros((order + width, order + width)),
        np.empty((order + width, controls)),
    )
    transition[:, :order] = np.vstack([dynamics[:, :order], outputs[:, :order]])
    control[:] = np.vstack(
        [dynamics[:, order : order + controls], outputs[:, order : order + controls]]
    )
    offset = np.concatenate([dynamics[:, order + controls], outputs[:, -1]])
    emission = np.eye(width, order + width, order)
    noise = gain @ covariance @ gain.T
    return LinearSSM(transition, control, offset, emission, np.zeros(width), noise, np.zeros(width))


def _least_squares(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(inputs, targets, rcond=1e-10)[0].T
