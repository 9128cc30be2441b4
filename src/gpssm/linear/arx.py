"""Regressions of outputs on past outputs and inputs: with orders by BIC, regularised, and reduced.

    y_t = Σ_{i=1..na} a_i y_{t−i} + Σ_{j=0..nb−1} b_j u_{t−j} + c + N(0, σ²)

u_t is a regressor since, by the convention of this library, u[t] drives states[t] → states[t+1],
which emits y[t]. Both kinds of regression depend on the data only through the inner products of the
regressors, which are computed once.

**Regularised** (Pillonetto, Dinuzzo, Chen, De Nicolao & Ljung 2014): so many lags that no order has
to be chosen, under a Gaussian prior on smooth and decaying impulse responses. The prior of the
response θ of an output to a signal has the TC kernel, Cov(θ_i, θ_j) = σ² c λ^max(i, j), where c, λ
and σ² maximise the marginal likelihood of that output. The increments ε_i = θ_i − θ_{i+1} (with
θ_{n+1} = 0) are independent, of variance σ² c (λ^i − λ^{i+1}), and σ² c λ^n for the last, so that
the regression on the increments is a ridge regression: with r their prior variances over σ², and S
and s the inner products of the centred regressors with each other and with the output,

    M = I + r^½ S r^½,   m = r^½ M⁻¹ r^½ s,   σ² = (yᵀy − sᵀm) / N
    −log p(y) = ½ N log σ² + ½ log det M + const

**Reduced.** State-space models of all low orders are obtained from a long regularised regression.
Its state f_t = [y_{t−1}, …, y_{t−na}, u_{t−1}, …] contains all information of the past about future
outputs. The states of a smaller model are the principal components, over the training rows, of the
weighted forecasts of the next H outputs, Σ_h^(-½) C A^h f_t, where Σ_h is the covariance of the
forecast h rows ahead:

    z_t = T f_t,   T = first n rows of Vᵀ L⁻¹,   U S Vᵀ = [Σ_h^(-½) C A^h]_h L,   L Lᵀ = Cov(f)

The states are nested: those of order n are the first n of any larger order. The weights measure
errors at each horizon relative to the unpredictable part of the output. The other parameters follow
by least squares in innovations form, as the states are known at every row:

    y_t = H z_t + D u_t + d + e_t,   z_{t+1} = F z_t + G u_t + g + K e_t,   e_t ~ N(0, Σ)

This is SSARX (Jansson 2003), subspace identification by a long regression, with a regularised
regression.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
from jaxtyping import Float

from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM

# Minimum standard deviation of the error of a regression, in units of the scaled data. At this size
# a measurement is exact for all practical purposes; without the minimum, the likelihood of
# perfectly smooth data has no maximum.
NO_NOISE = 1e-4
# Ridge of a plain regression, relative to the mean square of each regressor, as inputs may be
# constant.
RIDGE = 1e-8
ROWS_A_COEFFICIENT = 3  # minimum rows of data per coefficient of a plain regression
LAGS = 20  # of outputs and of inputs in a regularised regression


class Regression(NamedTuple):
    """y_t = Σ_i outputs[i−1] y_{t−i} + Σ_j inputs[j] u_{t−j} + offset + N(0, covariance).

    `hyper` contains the hyper-parameters of a regularised regression: for each output, log c of its
    responses to outputs and then to inputs, followed by logit λ of each.
    """

    outputs: Float[np.ndarray, "na Dy Dy"]
    inputs: Float[np.ndarray, "nb Dy Du"]
    offset: Float[np.ndarray, " Dy"]
    covariance: Float[np.ndarray, "Dy Dy"]
    hyper: Float[np.ndarray, "Dy 2*(Dy+Du)"] | None = None


class Products(NamedTuple):
    """Inner products over N rows of the regressors z = [y_{t−1}, …, u_t, …, 1] and the outputs."""

    square: Float[np.ndarray, "p p"]
    cross: Float[np.ndarray, "p Dy"]
    target: Float[np.ndarray, "Dy Dy"]
    rows: int


def regressors(series: Series, na: int, nb: int, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows [y_{t−1}, …, y_{t−na}, u_t, …, u_{t−nb+1}, 1] and y_t for t from `skip` on."""
    past = [series.y[skip - lag : len(series) - lag] for lag in range(1, na + 1)]
    inputs = [series.u[skip - lag : len(series) - lag] for lag in range(nb)]
    return np.hstack([*past, *inputs, np.ones((len(series) - skip, 1))]), series.y[skip:]


def products(
    series: Sequence[Series], na: int, nb: int, skip: int, output: int | None = None
) -> Products:
    """The inner products over complete rows, after the first `skip` of each series.

    With the number of an output, over the rows at which it is observed; other missing outputs are
    interpolated.
    """
    width, input_dim = series[0].output_dim, series[0].input_dim
    pairs = [(np.zeros((0, na * width + nb * input_dim + 1)), np.zeros((0, width)))]
    for item in series:
        if len(item) > skip:
            z, y = regressors(item if output is None else interpolated(item), na, nb, skip)
            present = np.isfinite(z).all(1) & np.isfinite(y).all(1)
            if output is not None:
                present = np.isfinite(item.y[skip:, output])
            pairs.append((z[present], y[present]))
    z, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return Products(z.T @ z, z.T @ y, y.T @ y, len(z))


def select_orders(series: Sequence[Series], max_order: int = 10) -> tuple[int, int]:
    """Return the (na, nb) of least BIC = N Σ_j log σ²_j + k log N, over the same N complete rows.

    Every candidate uses a block of one matrix of inner products. If too few rows are complete for
    all lags, fewer lags are tried.
    """
    outputs, input_dim = series[0].output_dim, series[0].input_dim
    most = max(1, min(max_order, min(len(item) for item in series) // 4))
    all_lags = products(series, most, most, most)
    while most > 1 and all_lags.rows < ROWS_A_COEFFICIENT * (outputs + input_dim + 1):
        most -= 1
        all_lags = products(series, most, most, most)
    scores = {}
    for na in range(1, most + 1):
        for nb in range(1, (most if input_dim else 1) + 1):
            inputs = most * outputs + np.arange(nb * input_dim)
            chosen = np.concatenate([np.arange(na * outputs), inputs, [len(all_lags.square) - 1]])
            if all_lags.rows < ROWS_A_COEFFICIENT * len(chosen):
                continue
            part = Products(
                all_lags.square[np.ix_(chosen, chosen)],
                all_lags.cross[chosen],
                all_lags.target,
                all_lags.rows,
            )
            variance = np.diagonal(_least_squares(part)[1])
            error = np.sum(np.log(np.maximum(variance, NO_NOISE**2)))
            cost = len(chosen) * outputs * np.log(all_lags.rows)
            scores[na, nb] = all_lags.rows * error + cost
    return min(scores, key=lambda orders: scores[orders], default=(1, 1))


def regress(series: Sequence[Series], na: int, nb: int, skip: int | None = None) -> Regression:
    """Fit by least squares on complete rows, without the first `skip` of each series."""
    parts = products(series, na, nb, max(na, nb - 1) if skip is None else skip)
    needed = ROWS_A_COEFFICIENT * len(parts.square)
    if parts.rows < needed:
        raise ValueError(
            f"A regression on {na} past outputs and {nb} inputs has {len(parts.square)} "
            f"coefficients per output and needs {needed} rows without missing outputs; there are "
            f"{parts.rows}."
        )
    coefficients, covariance = _least_squares(parts)
    variance = np.maximum(np.diagonal(covariance), NO_NOISE**2)
    return _regression(coefficients, _positive(covariance, variance), na, nb, series[0])


def _least_squares(parts: Products) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (p, Dy) and the mean outer product of the errors (Dy, Dy)."""
    diagonal = np.maximum(np.diagonal(parts.square), 1e-12)
    coefficients = np.linalg.solve(parts.square + RIDGE * np.diag(diagonal), parts.cross)
    return coefficients, _error_covariance(parts, coefficients)


def _error_covariance(parts: Products, coefficients: np.ndarray) -> Float[np.ndarray, "Dy Dy"]:
    """Return Σ e eᵀ / N for the errors e = y − Wᵀz, from the inner products."""
    fitted = coefficients.T @ parts.cross
    total = parts.target - fitted - fitted.T + coefficients.T @ parts.square @ coefficients
    return 0.5 * (total + total.T) / max(parts.rows, 1)


def _regression(
    coefficients: np.ndarray, covariance: np.ndarray, na: int, nb: int, like: Series
) -> Regression:
    width, input_dim = like.output_dim, like.input_dim
    outputs, inputs, offset = np.split(coefficients, [na * width, na * width + nb * input_dim])
    return Regression(
        outputs.reshape(na, width, width).swapaxes(1, 2),
        inputs.reshape(nb, input_dim, width).swapaxes(1, 2),
        offset[0],
        covariance,
    )


def _positive(
    covariance: Float[np.ndarray, "Dy Dy"], variance: Float[np.ndarray, " Dy"]
) -> np.ndarray:
    """Return the covariance with these variances, and with correlations made non-singular."""
    correlation = covariance / np.sqrt(np.outer(variance, variance))
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    # Outputs may be identical.
    correlation = (vectors * np.maximum(values, 1e-6)) @ vectors.T
    scale = np.sqrt(variance / np.diagonal(correlation))
    return scale[:, None] * correlation * scale


def regress_regularised(
    series: Sequence[Series],
    na: int = LAGS,
    nb: int = LAGS,
    start: Float[np.ndarray, "Dy 2*(Dy+Du)"] | None = None,
) -> Regression:
    """Return the posterior mean under TC kernels with hyper-parameters of maximum marginal
    likelihood.

    Parameters
    ----------
    series
        Scaled series. Missing outputs among the regressors are interpolated; rows with a missing
        output, and lags longer than a quarter of the longest series, are omitted.
    na, nb
        Lags of outputs and of inputs.
    start
        Initial hyper-parameters, from a regression on other rows of the same system.
    """
    width, input_dim = series[0].output_dim, series[0].input_dim
    most = max(1, max(len(item) for item in series) // 4)
    na, nb = min(na, most), min(nb, most)
    lags = np.array([na] * width + [nb] * input_dim)
    columns = [np.arange(k, na * width, width) for k in range(width)]
    columns += [na * width + np.arange(k, nb * input_dim, input_dim) for k in range(input_dim)]
    order = np.concatenate(columns)
    sums: np.ndarray = np.asarray(
        scipy.linalg.block_diag(*(np.triu(np.ones((n, n))) for n in lags))
    )
    coefficients, variance = np.empty((len(order) + 1, width)), np.empty(width)
    result = []
    shared = products([interpolated(item) for item in series], na, nb, max(na, nb - 1))
    incomplete = any(np.isnan(item.y).any() for item in series)
    for k in range(width):
        parts = products(series, na, nb, max(na, nb - 1), k) if incomplete else shared
        rows = max(parts.rows, 1)
        mean, level = parts.square[-1, :-1] / rows, parts.cross[-1, k] / rows
        centred = parts.square[:-1, :-1] - parts.rows * np.outer(mean, mean)
        square = sums.T @ centred[np.ix_(order, order)] @ sums
        cross = sums.T @ (parts.cross[:-1, k] - parts.rows * mean * level)[order]
        target = max(parts.target[k, k] - parts.rows * level**2, 0.0)
        problem = Ridge(square, cross, target + rows * NO_NOISE**2, max(rows - 1, 1), lags)
        best = problem.maximise(None if start is None else start[k])
        increments, variance[k] = problem.posterior_mean(best)
        coefficients[order, k] = sums @ increments
        coefficients[-1, k] = level - mean @ coefficients[:-1, k]
        result.append(best)
    # Correlations of the errors are those of the residuals; their variances account for the
    # effective parameters.
    residual = _error_covariance(shared, coefficients)
    scale = np.sqrt(variance / np.maximum(np.diagonal(residual), NO_NOISE**2))
    covariance = _positive(scale[:, None] * residual * scale, variance)
    regression = _regression(coefficients, covariance, na, nb, series[0])
    return regression._replace(hyper=np.stack(result))


class Ridge(NamedTuple):
    """The ridge regression of one centred output, with `lags` increments for each signal."""

    square: Float[np.ndarray, "p p"]
    cross: Float[np.ndarray, " p"]
    target: float
    rows: int
    lags: np.ndarray

    def variances(self, hyper: Float[np.ndarray, " h"]) -> tuple[np.ndarray, np.ndarray]:
        """Return the prior variances over σ², and the derivatives of their logarithms by logit
        λ.
        """
        log_scale, decay = hyper[: len(self.lags)], 1.0 / (1.0 + np.exp(-hyper[len(self.lags) :]))
        values, slopes = [], []
        for scale, rate, count in zip(np.exp(log_scale), decay, self.lags, strict=True):
            lag = np.arange(1, count + 1)
            value, slope = rate**lag * (1.0 - rate), lag * (1.0 - rate) - rate
            value[-1], slope[-1] = rate**count, count * (1.0 - rate)
            values.append(scale * value)
            slopes.append(slope)
        return np.concatenate(values), np.concatenate(slopes)

    def loss(self, hyper: Float[np.ndarray, " h"]) -> tuple[float, np.ndarray]:
        """Return −log p(y) up to a constant, and its gradient.

        ∂/∂ log r_j = ½ (1 − (M⁻¹)_jj − m_j² / (r_j σ²)).
        """
        values, slopes = self.variances(hyper)
        root = np.sqrt(values)
        factor = np.linalg.cholesky(np.eye(len(root)) + root[:, None] * self.square * root)
        half = scipy.linalg.solve_triangular(
            factor, root * self.cross, lower=True, check_finite=False
        )
        variance = max(self.target - half @ half, NO_NOISE**2 * self.rows) / self.rows
        (invert,) = scipy.linalg.get_lapack_funcs(("potri",), (factor,))
        inverse = invert(factor, lower=1)[0]
        solved = scipy.linalg.solve_triangular(
            factor, half, lower=True, trans=1, check_finite=False
        )
        slope = 0.5 * (1.0 - np.diagonal(inverse) - solved**2 / variance)
        ends = np.cumsum(self.lags)[:-1]
        by_scale = [part.sum() for part in np.split(slope, ends)]
        by_decay = [part.sum() for part in np.split(slope * slopes, ends)]
        value = 0.5 * self.rows * np.log(variance) + np.log(np.diagonal(factor)).sum()
        return float(value), np.array([*by_scale, *by_decay])

    def maximise(self, start: Float[np.ndarray, " h"] | None = None) -> Float[np.ndarray, " h"]:
        """Return the hyper-parameters of maximum marginal likelihood, which is flat around its
        maximum.

        log c ranges from no response to an uninformative prior, and λ from a decay within one row
        to a decay over 400 rows.
        """
        start = np.repeat([2.0, 1.5], len(self.lags)) if start is None else start
        bounds = [(-25.0, 25.0)] * len(self.lags) + [(-4.0, 6.0)] * len(self.lags)
        objective: Callable[[np.ndarray], tuple[float, np.ndarray]] = self.loss
        # A relative tolerance of 1e-5 is a hundredth of a nat for 500 rows.
        options = {"maxiter": 60, "ftol": 1e-5}
        return scipy.optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        ).x

    def posterior_mean(
        self, hyper: Float[np.ndarray, " h"]
    ) -> tuple[Float[np.ndarray, " p"], float]:
        """Return m and σ²."""
        root = np.sqrt(self.variances(hyper)[0])
        factor = scipy.linalg.cho_factor(np.eye(len(root)) + root[:, None] * self.square * root)
        mean = root * scipy.linalg.cho_solve(factor, root * self.cross)
        return mean, max(self.target - self.cross @ mean, NO_NOISE**2 * self.rows) / self.rows


def interpolated(series: Series) -> Series:
    """Linear interpolation over missing outputs; one that is never observed is zero."""
    if not np.isnan(series.y).any():
        return series
    time, y = np.arange(len(series)), np.zeros_like(series.y)
    for k, column in enumerate(series.y.T):
        observed = ~np.isnan(column)
        if observed.any():
            y[:, k] = np.interp(time, time[observed], column[observed])
    return Series(y, series.u)


def to_state_space(regression: Regression) -> LinearSSM:
    """Return the regression in state-space form, x_t = [y_{t−1}, …, y_{t−na}, u_{t−1}, …,
    u_{t−nb+1}].

    The latest output follows the regression and the others are shifted. Only the latest output has
    process noise, and there is no measurement noise.
    """
    na, width, _ = regression.outputs.shape
    nb, _, input_dim = regression.inputs.shape
    lags, size = na * width, na * width + (nb - 1) * input_dim
    transition, input_map = np.zeros((size, size)), np.zeros((size, input_dim))
    transition[:width] = np.hstack([*regression.outputs, *regression.inputs[1:]])
    transition[width:lags, : lags - width] = np.eye(lags - width)
    input_map[:width] = regression.inputs[0]
    if nb > 1:
        input_map[lags : lags + input_dim] = np.eye(input_dim)
        transition[lags + input_dim :, lags : size - input_dim] = np.eye(size - lags - input_dim)
    offset, process_cov = np.zeros(size), np.zeros((size, size))
    offset[:width] = regression.offset
    process_cov[:width, :width] = regression.covariance
    emission = np.eye(width, size)
    return LinearSSM(
        transition, input_map, offset, emission, np.zeros(width), process_cov, np.zeros(width)
    )


class Reduction(NamedTuple):
    """The components z_t and z_{t+1}, inputs and outputs of each row, and the singular values."""

    before: Float[np.ndarray, "N n"]
    after: Float[np.ndarray, "N n"]
    u: Float[np.ndarray, "N Du"]
    y: Float[np.ndarray, "N Dy"]
    singular_values: Float[np.ndarray, " n"]


def reduce(
    regression: Regression, series: Sequence[Series], max_order: int, horizon: int
) -> Reduction:
    """Return the principal components of the weighted forecasts of a regression."""
    na, nb = len(regression.outputs), len(regression.inputs)
    rows = [_lags(item, na, nb) for item in series if len(item) > max(na, nb - 1)]
    before, after = (
        np.concatenate([part[shift : len(part) - 1 + shift] for part, _ in rows])
        for shift in (0, 1)
    )
    centre = before.mean(0)
    covariance = (before - centre).T @ (before - centre) / len(before)
    # The lags of smooth signals are collinear.
    ridge = 1e-9 * (np.trace(covariance) / len(covariance) + 1e-9)
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
    """Return the state before each row with complete lags and after the last, and these rows."""
    skip = max(na, nb - 1)
    longer = Series(np.vstack([series.y, series.y[-1:]]), np.vstack([series.u, series.u[-1:]]))
    z, _ = regressors(interpolated(longer), na, nb, skip)
    width, input_dim = series.output_dim, series.input_dim
    state = np.delete(z, [*range(na * width, na * width + input_dim), z.shape[1] - 1], axis=1)
    return state, series[skip:]


def _weighted_observability(model: LinearSSM, horizon: int) -> Float[np.ndarray, "H*Dy Dx"]:
    """Return rows Σ_h^(-½) C A^(h+1), h = 0..H−1, with the forecast covariance Σ_h."""
    reach, noise, rows = model.C, np.zeros((len(model.d), len(model.d))), []
    for _ in range(horizon):
        noise = noise + reach @ model.process_cov @ reach.T
        reach = reach @ model.transition
        factor = np.linalg.cholesky(noise)
        rows.append(scipy.linalg.solve_triangular(factor, reach, lower=True))
    return np.concatenate(rows)


def innovations_form(reduction: Reduction, order: int) -> LinearSSM:
    """Return the model whose states are the first `order` components.

    Its state is x_{t+1} = [z_{t+1}; y_t], whose process noise is the innovation:

        A = [F 0; H 0]   B = [G; D]   b = [g; d]   C = [0 I]   Q = [K; I] Σ [K; I]ᵀ   R = 0
    """
    width, input_dim = reduction.y.shape[1], reduction.u.shape[1]
    order = min(order, reduction.before.shape[1])
    observed = np.isfinite(reduction.y).all(1)
    z, after, u, y = (
        part[observed]
        for part in (reduction.before[:, :order], reduction.after[:, :order], *reduction[2:4])
    )
    inputs = np.hstack([z, u, np.ones((len(z), 1))])
    outputs = _regress_rows(inputs, y)
    errors = y - inputs @ outputs.T
    dynamics = _regress_rows(np.hstack([inputs, errors]), after)
    freedom = max(len(errors) - inputs.shape[1], 1)
    covariance = errors.T @ errors / freedom + NO_NOISE**2 * np.eye(width)
    gain, covariance = stable_gain(
        dynamics[:, :order], outputs[:, :order], dynamics[:, -width:], covariance
    )
    gain = np.vstack([gain, np.eye(width)])
    transition = np.zeros((order + width, order + width))
    transition[:, :order] = np.vstack([dynamics[:, :order], outputs[:, :order]])
    of_input = slice(order, order + input_dim)
    input_map = np.vstack([dynamics[:, of_input], outputs[:, of_input]])
    offset = np.concatenate([dynamics[:, order + input_dim], outputs[:, -1]])
    emission = np.eye(width, order + width, order)
    noise = gain @ covariance @ gain.T
    return LinearSSM(
        transition, input_map, offset, emission, np.zeros(width), noise, np.zeros(width)
    )


def stable_gain(
    transition: Float[np.ndarray, "n n"],
    emission: Float[np.ndarray, "Dy n"],
    gain: Float[np.ndarray, "n Dy"],
    covariance: Float[np.ndarray, "Dy Dy"],
) -> tuple[Float[np.ndarray, "n Dy"], Float[np.ndarray, "Dy Dy"]]:
    """The gain K and innovation covariance Σ of the same process with a stable predictor.

        z_{t+1} = F z_t + K e_t,   y_t = H z_t + e_t,   e_t ~ N(0, Σ)

    A filter computes z_{t+1} = Φ z_t + K y_t with Φ = F − K H, and an error of its state grows if Φ
    is unstable, as it may be after a reduction. The stationary Kalman filter has another gain and a
    larger innovation covariance,

        K' = (F P Hᵀ + K Σ) Σ'⁻¹,   Σ' = H P Hᵀ + Σ,   P = Φ (P⁻¹ + Hᵀ Σ⁻¹ H)⁻¹ Φᵀ

    where P is zero but on the unstable subspace of Φ, and there the last equation is linear in P⁻¹.
    The law of the outputs is the same.
    """
    predictor = transition - gain @ emission
    if np.abs(np.linalg.eigvals(predictor)).max() < 1:
        return gain, covariance
    schur: Any = scipy.linalg.schur(predictor, output="real", sort="ouc")
    form, basis, size = schur
    basis = basis[:, :size]
    inverse = np.linalg.inv(form[:size, :size])
    seen = emission @ basis
    information = seen.T @ scipy.linalg.solve(covariance, seen, assume_a="pos")
    precision = scipy.linalg.solve_discrete_lyapunov(inverse.T, inverse.T @ information @ inverse)
    spread = basis @ np.linalg.inv(precision) @ basis.T
    innovation = emission @ spread @ emission.T + covariance
    cross = transition @ spread @ emission.T + gain @ covariance
    return scipy.linalg.solve(innovation, cross.T, assume_a="pos").T, innovation


def _regress_rows(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(inputs, targets, rcond=1e-10)[0].T
