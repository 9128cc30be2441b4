"""The linear fit from which all methods start: a linear-Gaussian model and its states.

There are two kinds of fit. Expectation-maximisation from a subspace fit maximises the likelihood
(`linear_fit`). The output-error fit minimises the squared error of a simulation
(`output_error_fit`) and is used if an emission such as y = |η| rules out a filter.

**Canonical variates.** The state s_t summarises the information of the past (outputs and inputs
before t) about the outputs from t on, with the effect of inputs from t on removed. With p and f the
past and the future after this removal,

    Σ_ff^(-1/2) Σ_fp Σ_pp^(-1/2) = U S Vᵀ,        s_t = first Dx rows of Vᵀ Σ_pp^(-1/2) p_t

so that the states are nested: those of a smaller order are the first ones of a larger order. The
parameters follow by least squares. The likelihood is then maximised among stable models, and the
model is transformed to coordinates with states of unit covariance.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from gpssm.core import linalg
from gpssm.core.runtime import in_double_precision, jit, on_host
from gpssm.data.padding import moves, pad
from gpssm.data.series import Series, as_list, check_trainable
from gpssm.linear.arx import interpolated
from gpssm.linear.descent import (
    Emission,
    fit_output_error,
    fit_wired,
    fit_wired_output_error,
    identity,
    minimise,
    stages,
)
from gpssm.linear.state_space import (
    PROCESS_FLOOR,
    RADIUS,
    LinearFit,
    LinearSSM,
    log_marginal,
    noise_floor,
    run_em,
    smoothed_moments,
    spectral_radius,
    stabilise,
)
from gpssm.model.likelihoods import (
    Likelihood,
    LinkedGaussian,
    Wiener,
    make_likelihood,
)
from gpssm.model.wiring import make_wiring

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

Parts = list[tuple[np.ndarray, np.ndarray]]  # (y, u) of each series


@in_double_precision
@on_host()
def linear_fit(series: Any, spec: "Spec") -> LinearFit:
    """Fit a linear model to the outputs, on the scale of the likelihood's linear predictor.

    If the predictor cannot be recovered from the outputs, as for y = |η|, and there are inputs,
    linear dynamics are fitted by the error of their simulation instead.

    Parameters
    ----------
    series
        One scaled series or a list.
    spec
        The specification, of which `state_dim`, `likelihood` and `wiring` are used.

    Returns
    -------
    The model, and the smoothed states of each series.
    """
    experiments = as_list(series)
    check_trainable(experiments)
    likelihood = uninformed_likelihood(spec.likelihood, experiments[0].output_dim)
    folded = isinstance(likelihood, LinkedGaussian) and not likelihood.link.one_to_one
    curved = isinstance(likelihood, Wiener) and spec.wiring is None
    if experiments[0].input_dim and (folded or curved):
        return output_error_fit(experiments, spec)
    pseudo = pseudo_series(experiments, likelihood)
    wiring = _wiring(spec, experiments)
    if wiring is not None:
        return fit_wired(pseudo, wiring, jax.random.key(0))
    model = fit_linear(pseudo, spec.state_dim)
    padded = [pad(item) for item in pseudo]
    ends = np.cumsum([len(item) + 1 for item in padded])[:-1]
    paths = np.split(np.asarray(smoothed_moments(model, padded)[0]), ends)
    states = [path[: len(item) + 1] for path, item in zip(paths, pseudo, strict=True)]
    return LinearFit.of(model, states, pseudo)


@in_double_precision
def output_error_fit(series: list[Series], spec: "Spec") -> LinearFit:
    """Fit the linear model whose simulation, through the link, has the least squared error.

    A curve at the output (Wiener) is fitted jointly with the dynamics, since it cannot be inverted
    beforehand.
    """
    likelihood = uninformed_likelihood(spec.likelihood, series[0].output_dim)
    if isinstance(likelihood, Wiener) and spec.wiring is None:
        return fit_output_error(
            series, spec.state_dim, likelihood.curve, jax.random.key(0), likelihood.weights
        )
    linked = isinstance(likelihood, LinkedGaussian)
    outputs = series if linked else pseudo_series(series, likelihood)
    link: Emission = likelihood.link.forward if linked else identity
    wiring = _wiring(spec, series)
    if wiring is None:
        return fit_output_error(outputs, spec.state_dim, link, jax.random.key(0))
    return fit_wired_output_error(outputs, wiring, link, jax.random.key(0))


def uninformed_likelihood(likelihood: str | Likelihood, num_outputs: int) -> Likelihood:
    """Return a likelihood of the requested class with placeholder parameters."""
    name = "gaussian" if isinstance(likelihood, str) and likelihood == "auto" else likelihood
    zeros = jnp.zeros(num_outputs)
    return make_likelihood(name, jnp.zeros((num_outputs, 1)), zeros, jnp.ones(num_outputs))


def pseudo_series(series: Sequence[Series], likelihood: Likelihood) -> list[Series]:
    """Return the series with outputs on the scale of the likelihood's linear predictor."""
    return [
        Series(np.asarray(likelihood.pseudo_outputs(jnp.asarray(item.y))), item.u)
        for item in series
    ]


def _wiring(spec: "Spec", series: Sequence[Series]) -> Any:
    return make_wiring(spec.wiring, spec.state_dim, series[0].input_dim, series[0].output_dim)


@in_double_precision
def fit_linear(series: Series | Sequence[Series], state_dim: int, *, num_em: int = 50) -> LinearSSM:
    """Stable linear-Gaussian state-space fit, in the coordinates of `normalise`.

    Subspace identification, then up to `num_em` steps of expectation-maximisation. Where these
    leave ρ(A) > RADIUS, log p(y) is maximised among models with ρ(A) < RADIUS by L-BFGS, and
    expectation-maximisation continues from there if it then stays stable. Several series share one
    model. Both numbers of steps were chosen by rolling 30-step forecasts inside the training halves
    of the benchmarks: with 500 steps likelihoods rise, and forecasts get worse.

    Returns
    -------
    LinearSSM
        A (Dx, Dx), B (Dx, Du), b (Dx,), C (Dy, Dx), d (Dy,), Q (Dx, Dx) diagonal and σ (Dy,), for
        outputs and inputs in the units of the series.
    """
    rows = [pad(item) for item in as_list(series)]
    ssm = normalise(run_em(subspace(series, state_dim), rows, num_em)[0], rows)
    if spectral_radius(ssm) > RADIUS:
        for records, steps, _ in stages(series, 400):
            ssm = _fit_stable(ssm, [pad(item) for item in records], steps)
        ssm = normalise(ssm, rows)
        refined = normalise(run_em(ssm, rows, num_em)[0], rows)
        ssm = refined if spectral_radius(refined) <= RADIUS else ssm
    covariance = np.maximum(ssm.process_cov, PROCESS_FLOOR * np.eye(state_dim))
    return ssm._replace(process_cov=jnp.asarray(covariance))


def normalise(ssm: LinearSSM, series: Series | Sequence[Series]) -> LinearSSM:
    """Return the model in coordinates where smoothed states have mean 0 and covariance I.

        x' = M(x − m):   A' = M A M⁻¹   B' = M B   b' = M(A m + b − m)   C' = C M⁻¹   d' = d + C m
        Q' = M Q Mᵀ

    with m and S the mean and covariance of the states, over time and the smoothing posterior, and M
    S Mᵀ = I. The largest entry of each column of C' is positive. Q' is diagonal. Only the prior of
    x₀ changes: it is N(0, I) in the new coordinates.
    """
    ssm, (states, uncertainty) = jax.tree.map(np.asarray, (ssm, smoothed_moments(ssm, series)))
    real = np.concatenate([np.r_[True, np.asarray(moves(item, bool))] for item in as_list(series)])
    states, uncertainty = states[real], uncertainty[real]
    mean = states.mean(0)
    covariance = (states - mean).T @ (states - mean) / len(states) + uncertainty.mean(0)
    # With Q v = λ S v and vᵀSv = 1, x' = Vᵀ(x − mean) turns S into I and Q into diag(λ).
    variances, vectors = scipy.linalg.eigh(ssm.process_cov, covariance)
    inverse = covariance @ vectors
    C = ssm.C @ inverse
    peaks = np.take_along_axis(C, np.abs(C).argmax(axis=0)[None], axis=0)
    signs = np.where(peaks < 0.0, -1.0, 1.0)
    matrix, inverse = (vectors * signs).T, inverse * signs
    parameters = ssm._replace(
        transition=matrix @ ssm.transition @ inverse,
        input_map=matrix @ ssm.input_map,
        offset=matrix @ (ssm.transition @ mean + ssm.offset - mean),
        C=C * signs,
        d=ssm.d + ssm.C @ mean,
        process_cov=np.diag(variances),
    )
    return LinearSSM(*map(jnp.asarray, parameters))


def _fit_stable(ssm: LinearSSM, series: list[Series], num_steps: int) -> LinearSSM:
    """Maximise log p(y) among models with ρ(A) < r = RADIUS by L-BFGS, from the stabilised model.

    With P = (A/r) P (A/r)ᵀ + Q and FFᵀ = P, F⁻¹AF is r times a contraction. Every stable A is a
    contraction in some coordinates, and the coordinates of the model are free, so F can remain
    fixed.
    """
    ssm = stabilise(ssm, RADIUS * (1.0 - 1e-4))
    scaled = np.asarray(ssm.transition) / RADIUS
    spread = scipy.linalg.solve_discrete_lyapunov(scaled, np.asarray(ssm.process_cov))
    frame = jnp.asarray(np.linalg.cholesky(spread))
    floor = noise_floor(np.concatenate([part.y for part in series]))
    free = _unconstrain(ssm, frame)
    _, free = minimise(
        _loss_and_gradient, free, series, frame, floor, num_steps=num_steps, maxcor=30
    )
    return _constrain(free, frame, floor)


def _constrain(
    free: LinearSSM, frame: Float[Array, "Dx Dx"], floor: Float[Array, " Dy"]
) -> LinearSSM:
    """Return the stable model of unconstrained parameters: M for A, the factor of Q, log σ.

    M ↦ M L⁻ᵀ with LLᵀ = I + MᵀM maps all matrices onto the contractions.
    """
    identity = jnp.eye(len(free.offset))
    factor = jnp.linalg.cholesky(identity + free.transition.T @ free.transition)
    contraction = free.transition @ linalg.inverse_lower(factor).T
    lower = jnp.tril(free.process_cov, -1) + jnp.diag(jnp.exp(jnp.diagonal(free.process_cov)))
    return free._replace(
        transition=RADIUS * frame @ contraction @ linalg.inverse_lower(frame),
        process_cov=lower @ lower.T + PROCESS_FLOOR * identity,
        noise_std=floor + jnp.exp(free.noise_std),
    )


def _unconstrain(ssm: LinearSSM, frame: Float[Array, "Dx Dx"]) -> LinearSSM:
    """Return the inverse of `_constrain`, up to its lower bounds."""
    contraction = linalg.inverse_lower(frame) @ ssm.transition @ frame / RADIUS
    gap = jnp.linalg.cholesky(jnp.eye(len(frame)) - contraction.T @ contraction)
    lower = jnp.linalg.cholesky(ssm.process_cov)
    return ssm._replace(
        transition=contraction @ linalg.inverse_lower(gap).T,
        process_cov=jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diagonal(lower))),
        noise_std=jnp.log(ssm.noise_std),
    )


@jit
@jax.value_and_grad
def _loss_and_gradient(
    vector: Float[Array, " p"],
    like: LinearSSM,
    series: Series | Sequence[Series],
    frame: Float[Array, "Dx Dx"],
    floor: Float[Array, " Dy"],
) -> Float[Array, ""]:
    """Return −log p(y) and its gradient (p,) for a vector of unconstrained parameters."""
    return -log_marginal(_constrain(ravel_pytree(like)[1](vector), frame, floor), series)


def subspace(series: Series | Sequence[Series], state_dim: int) -> LinearSSM:
    """Fit a linear state-space model with `state_dim` states to some steps of past and future.

    The parameters are least-squares regressions of x_{t+1} on [x_t; u_t; 1] and of y_t on [x_{t+1};
    1]. Missing outputs are interpolated for this fit only. Dimensions that the series cannot
    determine are inert: A = 0, C = 0, Q = I.
    """
    parts = [(interpolated(part).y, np.asarray(part.u)) for part in as_list(series)]
    horizon = _horizon(parts, state_dim)
    parts = [(y, u) for y, u in parts if len(y) >= 2 * horizon]
    states = canonical_variates(parts, state_dim, horizon)
    before = np.concatenate([path[:-1] for path in states])
    after = np.concatenate([path[1:] for path in states])
    u = np.concatenate([u[horizon:] for _, u in parts])
    y = np.concatenate([y[horizon:] for y, _ in parts])
    dim = after.shape[1]
    extra = (0, state_dim - dim)
    ones = np.ones((len(y), 1))
    dynamics, error = _least_squares(np.concatenate([before, u, ones], axis=1), after)
    emission, noise = _least_squares(np.concatenate([after, ones], axis=1), y)
    process_cov = np.eye(state_dim)
    process_cov[:dim, :dim] = error.T @ error / len(error) + PROCESS_FLOOR * np.eye(dim)
    parameters = LinearSSM(
        transition=np.pad(dynamics[:, :dim], (extra, extra)),
        input_map=np.pad(dynamics[:, dim:-1], (extra, (0, 0))),
        offset=np.pad(dynamics[:, -1], extra),
        C=np.pad(emission[:, :-1], ((0, 0), extra)),
        d=emission[:, -1],
        process_cov=process_cov,
        noise_std=np.sqrt((noise**2).mean(axis=0)) + noise_floor(y),
    )
    return LinearSSM(*map(jnp.asarray, parameters))


def canonical_variates(parts: Parts, state_dim: int, horizon: int) -> list[np.ndarray]:
    """Return the states of each series at times horizon, ..., T, with unit variance.

    There are at most `state_dim`, and fewer if fewer correlations between past and future are
    positive.
    """
    lags = [(_lags(y, horizon), _lags(u, horizon)) for y, u in parts]
    pasts = [np.concatenate(pair, axis=1) for pair in lags]
    inputs = np.concatenate([u[horizon:] for _, u in lags])
    future = _unexplained(np.concatenate([y[horizon:] for y, _ in lags]), inputs)
    past = _unexplained(np.concatenate([p[:-horizon] for p in pasts]), inputs)
    whitener = _whitener(past)
    _, correlations, directions = np.linalg.svd(
        _whitener(future) @ (future.T @ past) @ whitener.T / len(past)
    )
    dim = min(state_dim, int(np.sum(correlations > 1e-6)))
    centre = np.concatenate(pasts).mean(axis=0)
    return [(p - centre) @ (directions[:dim] @ whitener).T for p in pasts]


def _horizon(parts: Parts, state_dim: int) -> int:
    """Return the longest horizon, up to the one the order needs, with twice as many rows as
    regressors.
    """
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
    """Return rows values[i : i + horizon], flattened."""
    count = len(values) - horizon + 1
    return np.concatenate([values[i : i + count] for i in range(horizon)], axis=1)


def _unexplained(values: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return the residuals of a regression of the values on the inputs and a constant."""
    return _least_squares(np.concatenate([inputs, np.ones((len(values), 1))], axis=1), values)[1]


def _whitener(values: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "D D"]:
    cov = values.T @ values / len(values)
    ridge = 1e-8 * (np.trace(cov) / len(cov) + 1e-8)
    factor = np.linalg.cholesky(cov + ridge * np.eye(len(cov)))
    return scipy.linalg.solve_triangular(factor, np.eye(len(cov)), lower=True)


def _least_squares(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (targets × inputs) of the least-norm solution, and residuals."""
    weights = np.linalg.lstsq(inputs, targets, rcond=1e-8)[0]
    return weights.T, targets - inputs @ weights
