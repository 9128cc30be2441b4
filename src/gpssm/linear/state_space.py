"""The linear-Gaussian state-space model: smoothing, likelihood, EM, and stability.

    x₀ ~ N(0, I)   x_{t+1} = A x_t + B u_t + b + N(0, Q)   y_t = C x_{t+1} + d + N(0, diag(σ²))

A series of T outputs has T+1 states: `u[t]` drives `states[t] → states[t+1]`, and `states[t+1]`
emits `y[t]`. The smoothing posterior is Gaussian with a block-tridiagonal precision, the only
matrix that is factored. NaN in y means missing: the row of C of that output is dropped at that
time.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import lax
from jaxtyping import Array, Float

from gpssm.core import linalg
from gpssm.core.linalg import BlockCholesky, BlockTridiagonal
from gpssm.core.runtime import jit_for_once
from gpssm.data.padding import moves
from gpssm.data.series import Series, as_list

PROCESS_FLOOR = 1e-6  # minimum eigenvalue of Q, for states of unit scale
# Minimum σ, as a share of the output's standard deviation: expectation-maximisation converges
# slowly for smaller σ. Chosen by rolling 30-step forecasts within the training halves of the
# benchmarks.
NOISE_FLOOR = 1e-2
# Maximum modulus of the eigenvalues of A, chosen by forecasts within the training halves of the
# benchmarks.
RADIUS = 0.999
RIDGE = 1e-8  # relative to each regressor: inputs may be constant or collinear


class LinearSSM(NamedTuple):
    """Parameters of the linear-Gaussian state-space model: A, B, b, C, d, Q, σ in this order.

    They are JAX arrays in compiled programs and NumPy arrays in `kalman.py`.
    """

    transition: Float[Any, "Dx Dx"]
    input_map: Float[Any, "Dx Du"]
    offset: Float[Any, " Dx"]
    C: Float[Any, "Dy Dx"]
    d: Float[Any, " Dy"]
    process_cov: Float[Any, "Dx Dx"]
    noise_std: Float[Any, " Dy"]


class LinearFit(NamedTuple):
    """A linear model fitted to some series, and the states of these series.

    Parameters
    ----------
    model
        The model, in coordinates where states have mean 0 and usually covariance I.
    states
        States (T+1, Dx) of each series: smoothed, or those of the best simulation.
    z
        [x_t; u_t] over all transitions (N, Dx+Du).
    curve
        Weights (Dy, K) of a curve at the output, if the likelihood has one.
    """

    model: LinearSSM
    states: list[Float[np.ndarray, "_ Dx"]]
    z: Float[np.ndarray, "N Dz"]
    curve: Float[Array, "Dy K"] | None = None

    @classmethod
    def of(
        cls,
        model: LinearSSM,
        states: list[Float[np.ndarray, "_ Dx"]],
        series: Sequence[Series],
        curve: Float[Array, "Dy K"] | None = None,
    ) -> Self:
        """Return the fit of a model with these states of these series."""
        pairs = zip(states, series, strict=True)
        z = np.concatenate([np.hstack([path[:-1], item.u]) for path, item in pairs])
        return cls(model, states, z, curve)

    @property
    def state_dim(self) -> int:
        """Dx."""
        return self.model.offset.shape[0]


def spectral_radius(ssm: LinearSSM) -> float:
    """Return the spectral radius of A; the model is stable if it is below 1."""
    return float(np.abs(np.linalg.eigvals(np.asarray(ssm.transition))).max())


def stabilise(ssm: LinearSSM, radius: float = RADIUS) -> LinearSSM:
    """Replace each eigenvalue λ of A with |λ| > radius by λ · radius / |λ|, and keep the others.

    It scales the diagonal blocks of the real Schur form of A, which exists even if A is not
    diagonalisable. A stable model is returned unchanged.
    """
    if spectral_radius(ssm) <= radius:
        return ssm
    form, basis = scipy.linalg.schur(np.asarray(ssm.transition), output="real")[:2]
    edges = [0, *(i for i in range(1, len(form)) if form[i, i - 1] == 0.0), len(form)]
    for first, end in pairwise(edges):
        block = form[first:end, first:end]
        modulus = np.abs(np.linalg.det(block)) ** (1 / (end - first))
        block *= radius / max(modulus, radius)
    return ssm._replace(transition=basis @ form @ basis.T)


class SmoothedStates(NamedTuple):
    """The posterior of the states, N(mean, (LLᵀ)⁻¹), with L the block-bidiagonal `factor`."""

    mean: Float[Array, "T+1 Dx"]
    factor: BlockCholesky


@jax.jit
def smooth(ssm: LinearSSM, series: Series | Sequence[Series]) -> SmoothedStates:
    """Return the exact posterior of the states given all outputs, as a Kalman smoother does.

    The states of several series are concatenated: T₁+1 states of the first series, and so on.
    """
    return _smooth(ssm, _rows(series))


@jit_for_once
def smoothed_moments(
    ssm: LinearSSM, series: Series | Sequence[Series]
) -> tuple[Float[Array, "N Dx"], Float[Array, "N Dx Dx"]]:
    """Return the mean and covariance of each state in that posterior."""
    posterior = smooth(ssm, series)
    return posterior.mean, linalg.selected_inverse(posterior.factor).diagonal


@jax.jit
def log_marginal(ssm: LinearSSM, series: Series | Sequence[Series]) -> Float[Array, ""]:
    """Return log p(y), summed over the series: log p(y, x) − log p(x | y) at the smoothed mean x =
    μ.

    log p(μ | y) = ½ log det Λ − ½ N Dx log 2π, with N = Σ(T_i + 1) states.
    """
    rows = _rows(series)
    return _log_marginal(ssm, rows, _smooth(ssm, rows))


@jit_for_once
def run_em(
    ssm: LinearSSM, series: Series | Sequence[Series], num_steps: int, tolerance: float = 1e-6
) -> tuple[LinearSSM, Float[Array, ""]]:
    """Return the model after at most `num_steps` steps of expectation-maximisation, and log p(y).

    With E over the smoothing posterior and z = [x_t; u_t; 1], a step sets [A B b] = E[x_{t+1} zᵀ]
    E[z zᵀ]⁻¹ and Q to the expected outer product of the residuals; each output is regressed on [x;
    1] over the rows where it is observed. It stops when the relative increase of log p(y) falls
    below `tolerance`. Inert state dimensions (no dynamics, no emission, unit noise) stay inert.
    """
    rows = _rows(series)

    def update(carry: tuple) -> tuple:
        """Evaluate a model and compute the next; the last round only evaluates.

        The program contains the evaluation only once, since smoothing dominates compilation.
        """
        step, _, ssm, before, current, _ = carry
        is_last = (step == num_steps) | (jnp.abs(current - before) < tolerance * jnp.abs(current))
        posterior = _smooth(ssm, rows)
        covariance = linalg.selected_inverse(posterior.factor)
        following = LinearSSM(
            **_fit_dynamics(rows, posterior.mean, covariance),
            **_fit_emission(rows, posterior.mean, covariance.diagonal),
        )
        value = _log_marginal(ssm, rows, posterior)
        return step + 1, ssm, following, current, value, is_last

    infinity = jnp.asarray(jnp.inf, ssm.d.dtype)
    carry = (0, ssm, ssm, -infinity, infinity, jnp.asarray(False))
    _, ssm, _, _, value, _ = lax.while_loop(lambda carry: ~carry[-1], update, carry)
    return ssm, value


def noise_floor(y: Any) -> Any:
    """Return the minimum σ of each output, relative to its standard deviation, or to 1 if constant.

    NumPy arrays are handled by NumPy, and arrays of compiled programs by JAX.
    """
    numpy = y.__array_namespace__()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unobserved output has no deviation
        std = numpy.nanstd(y, axis=0)
    return NOISE_FLOOR * numpy.where(std > 0.0, std, 1.0)


class Rows(NamedTuple):
    """Series with one row per state, such that several series form a single sequence of N states.

    A row contains the input that leads to its state and the output that the state emits. For the
    first state of a series and for padding, `moves` is 0, since no transition leads to it, and no
    output is observed. y is 0 where `observed` is 0.
    """

    y: Float[Array, "N Dy"]
    observed: Float[Array, "N Dy"]
    u: Float[Array, "N Du"]
    moves: Float[Array, " N"]


def _rows(series: Series | Sequence[Series]) -> Rows:
    """Return series of T₁, T₂, ... outputs as N = Σ(T_i + 1) rows."""
    parts = as_list(series)
    before = ((1, 0), (0, 0))
    y = jnp.concatenate([jnp.pad(part.y, before, constant_values=np.nan) for part in parts])
    u = jnp.concatenate([jnp.pad(part.u, before) for part in parts])
    arrives = jnp.concatenate([jnp.pad(moves(part, y.dtype), (1, 0)) for part in parts])
    missing = jnp.isnan(y)
    return Rows(jnp.where(missing, 0.0, y), 1.0 - missing.astype(y.dtype), u, arrives)


def _precision(ssm: LinearSSM, rows: Rows) -> tuple[BlockTridiagonal, Float[Array, "N Dx"]]:
    """Return precision Λ and linear term η of the posterior of the states, N(Λ⁻¹η, Λ⁻¹).

    Diagonal blocks are Q⁻¹ (I for x₀) + AᵀQ⁻¹A (not for the last state) + CᵀR⁻¹C, and lower blocks
    are −Q⁻¹A, or zero between two series. η = Q⁻¹c_t − AᵀQ⁻¹c_{t+1} + CᵀR⁻¹(y_t − d), with one row
    per state and c_t = B u + b of the transition that leads to it.
    """
    identity = jnp.eye(ssm.offset.shape[0], dtype=ssm.offset.dtype)
    whitener = linalg.inverse_lower(jnp.linalg.cholesky(ssm.process_cov))
    process_precision = whitener.T @ whitener
    to_next = process_precision @ ssm.transition
    arrives = rows.moves[:, None, None]
    leaves = jnp.append(rows.moves[1:], 0.0)[:, None, None]
    weight = rows.observed / ssm.noise_std[None] ** 2
    diagonal = (
        jnp.where(arrives > 0.0, process_precision[None], identity[None])
        + leaves * (ssm.transition.T @ to_next)[None]
        + jnp.einsum("ki,nk,kj->nij", ssm.C, weight, ssm.C)
    )
    drift = rows.moves[:, None] * (rows.u @ ssm.input_map.T + ssm.offset[None])
    next_drift = jnp.concatenate([drift[1:], jnp.zeros_like(drift[:1])])
    linear = (
        drift @ process_precision - next_drift @ to_next + (weight * (rows.y - ssm.d[None])) @ ssm.C
    )
    return BlockTridiagonal(diagonal, -arrives[1:] * to_next[None]), linear


def _smooth(ssm: LinearSSM, rows: Rows) -> SmoothedStates:
    precision, linear = _precision(ssm, rows)
    factor = linalg.block_cholesky(precision)
    return SmoothedStates(linalg.solve_upper(factor, linalg.solve_lower(factor, linear)), factor)


def _log_marginal(ssm: LinearSSM, rows: Rows, posterior: SmoothedStates) -> Float[Array, ""]:
    states = posterior.mean
    predicted = states[:-1] @ ssm.transition.T + rows.u[1:] @ ssm.input_map.T + ssm.offset[None]
    whitener = linalg.inverse_lower(jnp.linalg.cholesky(ssm.process_cov))
    whitened = (states[1:] - predicted) @ whitener.T
    zero, item = jnp.zeros(()), jnp.ones(())
    log_starts = linalg.log_normal(states, zero, item)
    log_steps = linalg.log_normal(whitened, zero, item) + jnp.log(jnp.diagonal(whitener))[None]
    log_outputs = linalg.log_normal(
        rows.y, states @ ssm.C.T + ssm.d[None], ssm.noise_std[None] ** 2
    )
    log_joint = (
        jnp.sum((1.0 - rows.moves)[:, None] * log_starts)
        + jnp.sum(rows.moves[1:, None] * log_steps)
        + jnp.sum(rows.observed * log_outputs)
    )
    return log_joint + 0.5 * (
        states.size * jnp.log(2.0 * jnp.pi) - linalg.log_det(posterior.factor)
    )


def _fit_dynamics(
    rows: Rows, mean: Float[Array, "N Dx"], covariance: BlockTridiagonal
) -> dict[str, Array]:
    """Return [A B b] by regression, and Q = E[e eᵀ] with e = x_{t+1} − A x_t − B u_t − b.

    The uncertainty of the states adds [−A I] Cov([x_t; x_{t+1}]) [−A I]ᵀ to the square of the mean
    residual.
    """
    dim, moves = mean.shape[1], rows.moves[1:]
    before = jnp.tensordot(moves, covariance.diagonal[:-1], 1)
    cross = jnp.tensordot(moves, covariance.lower, 1)
    after = jnp.tensordot(moves, covariance.diagonal[1:], 1)
    inputs = jnp.concatenate([mean[:-1], rows.u[1:], jnp.ones_like(mean[1:, :1])], axis=1)
    weighted = moves[:, None] * inputs
    wider = (0, inputs.shape[1] - dim)
    square = weighted.T @ inputs + jnp.pad(before, (wider, wider))
    product = mean[1:].T @ weighted + jnp.pad(cross, ((0, 0), wider))
    weights = _regress(square, product)
    transition, input_map, offset = weights[:, :dim], weights[:, dim:-1], weights[:, -1]
    residual = mean[1:] - inputs @ weights.T
    shared = cross @ transition.T
    spread = after - shared - shared.T + transition @ before @ transition.T
    values, vectors = jnp.linalg.eigh(
        ((moves[:, None] * residual).T @ residual + spread) / jnp.sum(moves)
    )
    process_cov = (vectors * jnp.maximum(values, PROCESS_FLOOR)[None]) @ vectors.T
    return {
        "transition": transition,
        "input_map": input_map,
        "offset": offset,
        "process_cov": process_cov,
    }


def _fit_emission(
    rows: Rows, mean: Float[Array, "N Dx"], covariance: Float[Array, "N Dx Dx"]
) -> dict[str, Array]:
    """Return C, d and σ by regression over observed rows; uncertainty adds c·Cov(x)·c to σ²."""
    inputs = jnp.concatenate([mean, jnp.ones_like(mean[:, :1])], axis=1)
    spread = jnp.einsum("nk,nij->kij", rows.observed, covariance)
    square = jnp.einsum("nk,ni,nj->kij", rows.observed, inputs, inputs)
    square = square + jnp.pad(spread, ((0, 0), (0, 1), (0, 1)))
    weights = lax.map(lambda item: _regress(*item), (square, (rows.y.T @ inputs)[:, None]))[:, 0]
    C, d = weights[:, :-1], weights[:, -1]
    count = jnp.maximum(jnp.sum(rows.observed, axis=0), 1.0)
    residual = jnp.sum(rows.observed * (rows.y - inputs @ weights.T) ** 2, axis=0)
    noise_std = jnp.sqrt((residual + jnp.einsum("ki,kij,kj->k", C, spread, C)) / count)
    floor = noise_floor(jnp.where(rows.observed > 0.0, rows.y, jnp.nan))
    return {"C": C, "d": d, "noise_std": jnp.maximum(noise_std, floor)}


def _regress(square: Float[Array, "p p"], product: Float[Array, "m p"]) -> Float[Array, "m p"]:
    """Return W = E[x zᵀ] E[z zᵀ]⁻¹, with a small ridge."""
    ridge = RIDGE * (jnp.diagonal(square) + 1.0)
    inverse = linalg.inverse_root(square + jnp.diag(ridge))
    return product @ inverse.T @ inverse
