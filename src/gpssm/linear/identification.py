"""A linear state-space model from data: stable, in good coordinates, and of an order chosen by BIC.

`state_space.py` has the model itself, `subspace.py` the closed form that the fit starts from.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from gpssm.core import linalg
from gpssm.core.runtime import in_double_precision, jit, on_host
from gpssm.data.padding import moves, pad
from gpssm.data.series import Series, as_list
from gpssm.linear.descent import minimise
from gpssm.linear.excerpts import stages
from gpssm.linear.stability import RADIUS, spectral_radius, stabilise
from gpssm.linear.state_space import (
    PROCESS_FLOOR,
    LinearSSM,
    log_marginal,
    noise_floor,
    run_em,
    smoothed_moments,
)
from gpssm.linear.subspace import from_states, past_states, subspace

# Both were chosen by rolling 30-step forecasts inside the training halves of the benchmarks.
NUM_EM = 50  # steps of expectation-maximisation; with 500, likelihoods rise and forecasts get worse
NUM_LBFGS = 400  # steps among stable models, for a fit that would be unstable


@in_double_precision
def fit_linear(
    series: Series | Sequence[Series], state_dim: int, *, num_em: int = NUM_EM
) -> LinearSSM:
    """Stable linear-Gaussian state-space fit, in the coordinates of `normalise`.

    Subspace identification, then up to `num_em` steps of expectation-maximisation. Where these
    leave ρ(A) > RADIUS, log p(y) is maximised among models with ρ(A) < RADIUS by L-BFGS, and
    expectation-maximisation goes on from there if it then stays stable. Several series share one
    model.

    :returns: A (Dx, Dx), B (Dx, Du), b (Dx,), C (Dy, Dx), d (Dy,), Q (Dx, Dx) diagonal and σ (Dy,),
        for outputs and controls in the units of the series.
    """
    rows = [pad(item) for item in as_list(series)]
    ssm = normalise(run_em(subspace(series, state_dim), rows, num_em)[0], rows)
    if spectral_radius(ssm) > RADIUS:
        for stage in stages(series, NUM_LBFGS):
            ssm = _fit_stable(ssm, [pad(item) for item in stage.series], stage.steps)
        ssm = normalise(ssm, rows)
        refined = normalise(run_em(ssm, rows, num_em)[0], rows)
        ssm = refined if spectral_radius(refined) <= RADIUS else ssm
    covariance = np.maximum(ssm.process_cov, PROCESS_FLOOR * np.eye(state_dim))
    return ssm._replace(process_cov=jnp.asarray(covariance))


def normalise(ssm: LinearSSM, series: Series | Sequence[Series]) -> LinearSSM:
    """The same model where smoothed states have mean 0 and covariance I, and Q is diagonal.

        x' = M(x − m):   A' = M A M⁻¹   B' = M B   b' = M(A m + b − m)   C' = C M⁻¹   d' = d + C m
        Q' = M Q Mᵀ

    with m and S the mean and covariance of the states, over time and the smoothing posterior, and M
    S Mᵀ = I. The largest entry of each column of C' is positive. Only the prior of x₀ differs: it
    is N(0, I) in the new coordinates.
    """
    ssm, (states, uncertainty) = jax.tree.map(np.asarray, (ssm, smoothed_moments(ssm, series)))
    real = np.concatenate([np.r_[True, np.asarray(moves(item, bool))] for item in as_list(series)])
    states, uncertainty = states[real], uncertainty[real]
    mean = states.mean(0)
    covariance = (states - mean).T @ (states - mean) / len(states) + uncertainty.mean(0)
    # Q v = λ S v and vᵀSv = 1: x' = Vᵀ(x − mean) turns S into I and Q into diag(λ).
    variances, vectors = scipy.linalg.eigh(ssm.process_cov, covariance)
    inverse = covariance @ vectors
    C = ssm.C @ inverse
    peaks = np.take_along_axis(C, np.abs(C).argmax(axis=0)[None], axis=0)
    signs = np.where(peaks < 0.0, -1.0, 1.0)
    matrix, inverse = (vectors * signs).T, inverse * signs
    parameters = ssm._replace(
        transition=matrix @ ssm.transition @ inverse,
        control=matrix @ ssm.control,
        offset=matrix @ (ssm.transition @ mean + ssm.offset - mean),
        C=C * signs,
        d=ssm.d + ssm.C @ mean,
        process_cov=np.diag(variances),
    )
    return LinearSSM(*map(jnp.asarray, parameters))


def _fit_stable(ssm: LinearSSM, series: list[Series], num_steps: int) -> LinearSSM:
    """Maximise log p(y) among models with ρ(A) < r = RADIUS, by L-BFGS from the stabilised model.

    With P = (A/r) P (A/r)ᵀ + Q and FFᵀ = P, F⁻¹AF is r times a contraction. As every stable A is
    one in some coordinates, and the model is free to take these, F can stay fixed.
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
    """The stable model of unconstrained parameters: M for A, the log diagonal of Q's factor, log σ.

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
    """The inverse of `_constrain`, but for its floors."""
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
    """−log p(y) and its gradient (p,) in one vector of the unconstrained parameters."""
    return -log_marginal(_constrain(ravel_pytree(like)[1](vector), frame, floor), series)


class OrderSelection(NamedTuple):
    """The state dimension with the least BIC, and the BIC of every dimension tried."""

    best: int
    scores: dict[int, float]


@in_double_precision
@on_host()
def select_order(
    series: Series | Sequence[Series], max_dim: int = 8, *, num_em: int = 100
) -> OrderSelection:
    """The number of states n with the least BIC = k log N − 2 log p(y), N observed rows.

    k = n(2 Dy + Du) + Dy + Dy(Dy + 1)/2 is what outputs can identify: A, B, C and the innovations'
    gain up to the states' coordinates, the mean level and the innovations' covariance. Inert
    dimensions pad every order to `max_dim`, so that one compiled program fits all of them.
    """
    states = past_states(series, max_dim)
    dims = range(1, max_dim + 1)
    starts = [from_states(states.leading(n), max_dim) for n in dims]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    parts = as_list(series)
    _, log_likelihoods = _em_each(stacked, [pad(item) for item in parts], num_em)
    outputs, inputs = parts[0].output_dim, parts[0].input_dim
    count = sum(np.sum(~np.isnan(part.y)) for part in parts) / outputs
    parameters = np.asarray(dims) * (2 * outputs + inputs) + outputs + outputs * (outputs + 1) / 2
    scores = parameters * np.log(count) - 2.0 * np.asarray(log_likelihoods)
    return OrderSelection(
        dims[int(np.nanargmin(scores))], dict(zip(dims, scores.tolist(), strict=True))
    )


@jit
def _em_each(
    starts: LinearSSM, series: list[Series], num_em: int
) -> tuple[LinearSSM, Float[Array, " n"]]:
    """EM from each of the stacked starts, one after the other."""
    return jax.lax.map(lambda ssm: run_em.__wrapped__(ssm, series, num_em), starts)
