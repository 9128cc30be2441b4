"""`arx`: linear regression of the outputs on past outputs and controls, in state-space form."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gpssm.linear_ssm import LinearSSM
from gpssm.methods.base_linear import NO_NOISE, Baseline
from gpssm.series import Series

RIDGE = 1e-8  # relative to each regressor's mean square: controls may be constant or collinear
ROWS_A_COEFFICIENT = 3  # rows of data that a coefficient needs at least


class Regression(NamedTuple):
    """y_t = Σ_i outputs[i−1] y_{t−i} + Σ_j inputs[j] u_{t−j} + offset + N(0, variance)."""

    outputs: Float[np.ndarray, "na Dy Dy"]
    inputs: Float[np.ndarray, "nb Dy Du"]
    offset: Float[np.ndarray, " Dy"]
    variance: Float[np.ndarray, " Dy"]


@dataclass(frozen=True)
class ARX(Baseline):
    """Settings of `arx`: y_t = Σ_{i=1..na} a_i y_{t−i} + Σ_{j=0..nb−1} b_j u_{t−j} + c + noise.

    :param orders: (na, nb); None chooses both by the Bayesian information criterion.
    :param max_order: the largest that is tried for either.
    """

    orders: tuple[int, int] | None = None
    max_order: int = 10

    def linear(self, series: list[Series]) -> LinearSSM:
        """The regression in state-space form."""
        na, nb = select_orders(series, self.max_order) if self.orders is None else self.orders
        return to_state_space(regress(series, na, nb, max(na, nb - 1)))


def select_orders(series: list[Series], max_order: int) -> tuple[int, int]:
    """The (na, nb) of least N Σ_j log σ²_j + k log N, all of them judged on the same N rows."""
    has_inputs = series[0].input_dim > 0
    skip = min(max_order, min(len(one) for one in series) // 4)
    rows = sum(len(one) - skip for one in series)

    def score(orders: tuple[int, int]) -> float:
        try:
            found = regress(series, *orders, skip)
        except ValueError:
            return np.inf
        count = found.outputs.size + found.inputs.size + found.offset.size
        return rows * float(np.sum(np.log(np.maximum(found.variance, NO_NOISE**2)))) + count * np.log(rows)

    tried = itertools.product(range(1, skip + 1), range(1, skip + 1) if has_inputs else [1])
    return min(tried, key=score)


def regress(series: list[Series], na: int, nb: int, skip: int) -> Regression:
    """Least squares on the rows after the first `skip` of each series in which nothing is missing."""
    pairs = [_regressors(one, na, nb, skip) for one in series]
    z, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    complete = np.isfinite(z).all(1) & np.isfinite(y).all(1)
    z, y = z[complete], y[complete]
    if len(z) < ROWS_A_COEFFICIENT * z.shape[1]:
        raise ValueError(
            f"A regression on {na} past outputs and {nb} controls has {z.shape[1]} coefficients an output and needs "
            f"{ROWS_A_COEFFICIENT * z.shape[1]} rows without missing outputs; there are {len(z)}."
        )
    square = z.T @ z
    solved = np.linalg.solve(square + RIDGE * np.diag(np.maximum(np.diagonal(square), 1e-12)), z.T @ y)
    width, controls = y.shape[1], series[0].input_dim
    outputs, inputs, offset = np.split(solved, [na * width, na * width + nb * controls])
    variance = np.mean((y - z @ solved) ** 2, 0)
    return Regression(
        outputs.reshape(na, width, width).swapaxes(1, 2),
        inputs.reshape(nb, controls, width).swapaxes(1, 2),
        offset[0],
        variance,
    )


def _regressors(one: Series, na: int, nb: int, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [y_{t−1}, …, y_{t−na}, u_t, …, u_{t−nb+1}, 1] and y_t for t from `skip` on."""
    past = [one.y[skip - lag : len(one) - lag] for lag in range(1, na + 1)]
    controls = [one.u[skip - lag : len(one) - lag] for lag in range(nb)]
    return np.hstack([*past, *controls, np.ones((len(one) - skip, 1))]), one.y[skip:]


def to_state_space(found: Regression) -> LinearSSM:
    """x_t = [y_{t−1}, …, y_{t−na}, u_{t−1}, …, u_{t−nb+1}]: the newest output is regressed, the others move down."""
    na, width, _ = found.outputs.shape
    nb, _, controls = found.inputs.shape
    lags, size = na * width, na * width + (nb - 1) * controls
    transition, control = np.zeros((size, size)), np.zeros((size, controls))
    transition[:width] = np.hstack([*found.outputs, *found.inputs[1:]])
    transition[width:lags, : lags - width] = np.eye(lags - width)
    control[:width] = found.inputs[0]
    if nb > 1:
        control[lags : lags + controls] = np.eye(controls)
        transition[lags + controls :, lags : size - controls] = np.eye(size - lags - controls)
    offset, variance = np.zeros(size), np.full(size, NO_NOISE**2)
    offset[:width], variance[:width] = found.offset, np.maximum(found.variance, NO_NOISE**2)
    shown = np.eye(width, size)
    parts = (transition, control, offset, shown, np.zeros(width), np.diag(variance), np.full(width, NO_NOISE))
    return LinearSSM(*(jnp.asarray(part) for part in parts))
