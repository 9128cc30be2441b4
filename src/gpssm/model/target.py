"""The free-form posterior q*, joint and collapsed, and its conditionals: one function per equation.

Every function accepts one series or a list of series that share weights and parameters, whose terms
add up. All constants are included, so that values can be compared across models.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from gpssm.core.linalg import log_gaussian_integral, log_normal, solve_positive
from gpssm.core.loops import sum_rows
from gpssm.data.padding import moves, num_moves
from gpssm.data.series import Series, as_list
from gpssm.model.model import GPSSM, Step
from gpssm.model.types import Data, FeynmanKac, GaussianWeights, States, Statistics

Rows = tuple[Float[Array, "N Dx"], Float[Array, "N Du"], Float[Array, "N Dx"], Float[Array, " N"]]


def log_target(
    model: GPSSM, states: States, weights: Float[Array, "Dx M"], series: Data
) -> Float[Array, ""]:
    """Return log q*(v, x) = Σ_d log N(v_d; 0, I) + log p(x₀) + Σ_t [ log p(y_t | x_{t+1})
    + Σ_d { log N(x_{t+1,d}; m_d(z_t) + A_d(z_t)·v_d, Q_d) − B_d(z_t) / 2Q_d } ].
    """
    variance = model.process_variance
    noise = num_moves(as_list(series)) * jnp.log(2 * jnp.pi * variance)
    noise = noise + noise_squares(model, states, weights, series) / variance
    prior = jnp.sum(log_normal(weights, 0.0, 1.0))
    return prior + log_boundary(model, states, series) - 0.5 * jnp.sum(noise)


def log_collapsed(model: GPSSM, states: States, series: Data) -> Float[Array, ""]:
    """Return log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d { log N(r_d; 0, Q_d I) − ½ log
    det P_d + ½ b_dᵀ P_d⁻¹ b_d − ½ Σ_t B_d(z_t) / Q_d },  P_d = I + A_dᵀA_d / Q_d,  b_d = A_dᵀ r_d /
    Q_d.
    """
    statistics = transition_statistics(model, states, series)
    count = num_moves(as_list(series))
    evidence = log_evidence(statistics, model.process_variance, count, model.basis.shared)
    return log_boundary(model, states, series) + evidence


def log_evidence(
    statistics: Statistics, variance: Float[Array, " Dx"], count: ArrayLike, shared: bool = False
) -> Float[Array, ""]:
    """Return Σ_d { log N(r_d; 0, Q_d I) − ½ log det P_d + ½ b_dᵀ P_d⁻¹ b_d − ½ ΣB_d / Q_d } from
    the sums over time.

    If all dimensions share their weights, there is one P = I + Σ_d A_dᵀA_d / Q_d and one b = Σ_d
    A_dᵀ r_d / Q_d.
    """
    gaussian = log_gaussian_integral(
        weight_precision(statistics, variance, shared), _information(statistics, variance, shared)
    )
    noise = -0.5 * (
        count * jnp.log(2 * jnp.pi * variance)
        + (statistics.square + statistics.residual) / variance
    )
    return jnp.sum(noise) + jnp.sum(gaussian) if shared else jnp.sum(noise + gaussian)


def log_boundary(model: GPSSM, states: States, series: Data) -> Float[Array, ""]:
    """Return log p(x₀) + Σ_t log p(y_t | x_{t+1}): the part of the target without the
    transition.
    """
    parts = [
        jnp.sum(log_normal(path[0], 0.0, 1.0))
        + jnp.sum(model.likelihood.log_prob(path[1:], jnp.asarray(rows.y, path.dtype)))
        for path, rows in pairs(states, series)
    ]
    return sum(parts[1:], parts[0])


def weights_given_states(model: GPSSM, states: States, series: Data) -> GaussianWeights:
    """v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹), exact, with one v if all dimensions share it."""
    return weights_given(
        transition_statistics(model, states, series), model.process_variance, model.basis.shared
    )


def weights_given(
    statistics: Statistics, variance: Float[Array, " Dx"], shared: bool = False
) -> GaussianWeights:
    """Return v_d | x from the sums over time."""
    precision = weight_precision(statistics, variance, shared)
    return GaussianWeights(
        solve_positive(precision, _information(statistics, variance, shared)), precision
    )


def transition_statistics(model: GPSSM, states: States, series: Data) -> Statistics:
    """AᵀA, Aᵀr, rᵀr and ΣB over all transitions, r = x_{t+1} − m(z_t)."""
    factor = model.factorise()

    def evaluate(rows: Rows) -> Statistics:
        x, u, following, counts = rows
        error = (following - model.mean(x, u)).T * counts[None]
        gram, cross, residual = model.basis.sums(
            model.kernel, factor, jnp.concatenate([x, u], -1), error[:, :, None], counts
        )
        return Statistics(gram, cross[:, :, 0], jnp.sum(error**2, -1), residual)

    return _sum_over_rows(evaluate, states, series)


def noise_squares(
    model: GPSSM, states: States, weights: Float[Array, "Dx M"], series: Data
) -> Float[Array, " Dx"]:
    """Return Σ_t (x_{t+1,d} − m_d(z_t) − A_d(z_t)·v_d)² + Σ_t B_d(z_t), the sum of squares for the
    process noise.
    """

    def terms(step: Step, following: Float[Array, "N Dx"]) -> Float[Array, " Dx"]:
        return jnp.sum((following - step.given(weights)) ** 2, 0) + jnp.sum(step.residual, -1)

    return sum_over_time(model, states, series, terms)


def feynman_kac(model: GPSSM, weights: Float[Array, "Dx M"], series: Series) -> FeynmanKac:
    """Return q*(x | v) for particles.

    M_{t+1} = N(m + A v, Q),  G_{t+1} = p(y_t | x_{t+1}) exp(−Σ_d B_d(z_t) / 2Q_d).
    """
    variance = model.process_variance
    return path_measure(
        model,
        series,
        lambda step: (step.given(weights), variance[None]),
        lambda step: jnp.sum(step.residual / (2 * variance[:, None]), 0),
    )


def feynman_kac_predictive(
    model: GPSSM, weights: Float[Array, "Dx M"], series: Series
) -> FeynmanKac:
    """Return the sparse model's path distribution given v, as in the paper's particle algorithm.

    It differs from q*: M_{t+1} = N(m + A v, B + Q),  G_{t+1} = p(y_t | x_{t+1}).
    """
    variance = model.process_variance[None]
    return path_measure(
        model,
        series,
        lambda step: (step.given(weights), jnp.maximum(step.residual.T, 0.0) + variance),
    )


def path_measure(
    model: GPSSM,
    series: Series,
    moments: Callable[[Step], tuple[Array, Array]],
    penalty: Callable[[Step], Float[Array, " N"]] | None = None,
) -> FeynmanKac:
    """Return M_{t+1} = N(moments) with G_{t+1} = p(y_t | x_{t+1}) exp(−penalty) along a series.

    Parameters
    ----------
    model
        The model.
    series
        The scaled series.
    moments
        The function that returns the mean and variance of M for a transition.
    penalty
        The function that returns the penalty of a transition; None for no penalty.
    """
    transition = model.transition()
    u = jnp.asarray(series.u, model.log_process_std.dtype)
    log_output = output_potential(model, series)

    def step_moments(t: Array, x: Float[Array, "N Dx"]) -> tuple[Array, Array]:
        mean, variance = moments(transition(x, _repeat(u[t], x)))
        return mean, jnp.broadcast_to(variance, mean.shape)

    if penalty is None:
        return FeynmanKac(step_moments, log_output)

    def log_potential(
        t: Array, x: Float[Array, "N Dx"], following: Float[Array, "N Dx"]
    ) -> Float[Array, " N"]:
        return log_output(t, x, following) - penalty(transition(x, _repeat(u[t], x)))

    return FeynmanKac(step_moments, log_potential)


def output_potential(
    model: GPSSM, series: Series
) -> Callable[[Array, Float[Array, "N Dx"], Float[Array, "N Dx"]], Float[Array, " N"]]:
    """Return log p(y_t | x_{t+1}) as a function (t, x_t, x_{t+1}) of N particles."""
    y = jnp.asarray(series.y, model.log_process_std.dtype)
    return lambda t, x, following: model.likelihood.log_prob(following, _repeat(y[t], following))


def weight_precision(
    statistics: Statistics, variance: Float[Array, " Dx"], shared: bool = False
) -> Float[Array, "Dx|1 M M"]:
    """P_d = I + A_dᵀA_d / Q_d, summed over d if weights are shared."""
    identity = jnp.eye(statistics.gram.shape[-1], dtype=statistics.gram.dtype)
    terms = statistics.gram / variance[:, None, None]
    return identity[None] + (jnp.sum(terms, 0, keepdims=True) if shared else terms)


def _information(
    statistics: Statistics, variance: Float[Array, " Dx"], shared: bool
) -> Float[Array, "Dx|1 M"]:
    """b_d = A_dᵀ r_d / Q_d, summed over d if weights are shared."""
    terms = statistics.cross / variance[:, None]
    return jnp.sum(terms, 0, keepdims=True) if shared else terms


def _repeat(row: Float[Array, " D"], x: Float[Array, "N Dx"]) -> Float[Array, "N D"]:
    return jnp.broadcast_to(row[None], (x.shape[0], row.shape[0]))


def pairs(states: States, series: Data) -> list[tuple[Float[Array, "T+1 Dx"], Series]]:
    """Return pairs of states and series, for one series or several, and check their lengths."""
    experiments = as_list(series)
    paths = (
        [jnp.asarray(states)]
        if isinstance(series, Series)
        else [jnp.asarray(path) for path in states]
    )
    if [len(path) - 1 for path in paths] != [len(rows) for rows in experiments]:
        raise ValueError(
            "A series of T rows has T + 1 states: x₀ and one for each output. Got series of "
            f"{[len(rows) for rows in experiments]} rows and states of "
            f"{[len(path) for path in paths]}."
        )
    return list(zip(paths, experiments, strict=True))


def sum_over_time(
    model: GPSSM, states: States, series: Data, terms: Callable[[Step, Float[Array, "N Dx"]], Any]
) -> Any:
    """Return Σ `terms(step, following)` over series and time, in chunks if a series is long.

    Padded transitions are replaced by ones whose residual, gain and variance are zero.
    """
    transition = model.transition()

    def evaluate(rows: Rows) -> Any:
        x, u, following, counts = rows
        mean, gain, residual = transition(x, u)
        mean = jnp.where(counts[:, None] > 0, mean, following)
        return terms(Step(mean, counts[None, :, None] * gain, counts[None] * residual), following)

    return _sum_over_rows(evaluate, states, series)


def _sum_over_rows(evaluate: Callable[[Rows], Any], states: States, series: Data) -> Any:
    """Return the sum over the rows of all series, concatenated to compile for a single length."""
    parts = [
        (path[:-1], jnp.asarray(rows.u, path.dtype), path[1:], moves(rows, path.dtype))
        for path, rows in pairs(states, series)
    ]
    return sum_rows(
        evaluate,
        parts[0] if len(parts) == 1 else tuple(map(jnp.concatenate, zip(*parts, strict=True))),
    )
