"""Coordinates in which the collapsed posterior of the states is nearly standard normal.

Linearised at a path, the joint density of states and weights has an arrow-shaped precision: block-tridiagonal Λ in the
states, bordered by the weights. Integrating the weights out leaves Λ − U Uᵀ, with U of low rank. With Λ = L Lᵀ,

    x = centre + L⁻ᵀ (I + V (S − I) Vᵀ) ξ

where V spans the directions that the weights soften (the leading left singular vectors of L⁻¹U), and S is the inverse
root of the true curvature −∇² log q*(x) within that span, averaged over a few paths. All of it costs O(T).
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import (
    BlockCholesky,
    BlockTridiagonal,
    block_cholesky,
    cholesky,
    inverse_lower,
    one_by_one,
    solve_lower,
    solve_upper,
)
from gpssm.core.runtime import on_cpu
from gpssm.data.series import Series
from gpssm.methods.settings import States
from gpssm.model.likelihoods import observed
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed, weights_given_states

SWEEPS = 8  # of subspace iteration
DENSE = 4096  # states × dimensions, up to which a GPU multiplies by the whole matrix
FLOOR = 1e-3  # least curvature that is believed


class Linearisation(NamedTuple):
    """Λ of the stacked states, and what the coupling to the weights is made of: ∂f/∂x and A P^{−½} / Q at each step."""

    precision: BlockTridiagonal
    jacobian: Float[Array, "N-1 Dx Dx"]
    gain: Float[Array, "Dx N-1 M"]


class Whitening(NamedTuple):
    """The map ξ → x of the stacked states of all series."""

    centre: Float[Array, "N Dx"]
    factor: BlockCholesky
    directions: Float[Array, "n r"]
    stretch: Float[Array, "r r"]  # S − I
    shrink: Float[Array, "r r"]  # S⁻¹ − I
    dense: Float[Array, "n n"] | None = None  # L⁻ᵀ (I + V (S − I) Vᵀ), where one product is faster than a recursion

    def to_states(self, position: Float[Array, " n"]) -> Float[Array, "N Dx"]:
        """x = centre + L⁻ᵀ (ξ + V (S − I) Vᵀ ξ)."""
        if self.dense is not None:
            return self.centre + jnp.matmul(self.dense, position).reshape(self.centre.shape)
        return self.centre + _unwhiten(self.factor, _within(self.directions, self.stretch, position))

    def to_position(self, states: Float[Array, "N Dx"]) -> Float[Array, " n"]:
        """ξ = (I + V (S⁻¹ − I) Vᵀ) Lᵀ (x − centre)."""
        gap = states - self.centre
        below = jnp.einsum("tji,tj->ti", self.factor.lower, gap[1:])
        whitened = jnp.einsum("tji,tj->ti", self.factor.diagonal, gap).at[:-1].add(below)
        return _within(self.directions, self.shrink, jnp.ravel(whitened))


def stack(paths: States) -> Float[Array, "N Dx"]:
    """The states of all series, one after the other."""
    return jnp.concatenate(paths)


def unstack(states: Float[Array, "N Dx"], series: list[Series]) -> States:
    """A path for each series again."""
    ends = itertools.accumulate((len(one) + 1 for one in series), initial=0)
    return tuple(states[start:end] for start, end in itertools.pairwise(ends))


def whiten(
    key: PRNGKeyArray,
    model: GPSSM,
    centre: Float[Array, "N Dx"],
    samples: Float[Array, "K N Dx"],
    series: list[Series],
    rank: int,
) -> Whitening:
    """The whitening linearised at `centre`, with the curvature of the soft directions averaged over `samples`."""
    model = model.prepared()
    linear = linearise(model, centre, series)
    factor = block_cholesky(linear.precision)
    directions = _soft_directions(key, linear, factor, min(rank, centre.size))
    curvature = _curvature(model, factor, directions, samples, series)
    values, vectors = jnp.linalg.eigh(curvature)
    # Where the density is not concave the size of the curvature still tells the scale.
    root = jnp.sqrt(jnp.maximum(jnp.abs(values), FLOOR))
    identity = jnp.eye(directions.shape[1], dtype=directions.dtype)
    stretch = jnp.matmul(vectors / root[None], vectors.T) - identity
    shrink = jnp.matmul(vectors * root[None], vectors.T) - identity
    dense = None
    if not on_cpu() and centre.size <= DENSE:
        columns = jax.vmap(lambda column: jnp.ravel(_unwhiten(factor, column)))(
            jnp.eye(centre.size, dtype=centre.dtype)
        )
        dense = columns.T + jnp.matmul(jnp.matmul(columns.T, directions), jnp.matmul(stretch, directions.T))
    return Whitening(centre, factor, directions, stretch, shrink, dense)


def linearise(model: GPSSM, states: Float[Array, "N Dx"], series: list[Series]) -> Linearisation:
    """Gauss–Newton precision of the states given the weights at their posterior mean, and the coupling to the weights.

    Diagonal blocks Q⁻¹ (I for x₀) + FᵀQ⁻¹F + emission, lower blocks −Q⁻¹F with F = ∂f/∂x. Between series all is zero.
    """
    paths = unstack(states, series)
    weights = weights_given_states(model, paths, series)
    # A_d L_P⁻ᵀ / Q_d with P_d = L_P L_Pᵀ, so that U Uᵀ = Λ_xv P⁻¹ Λ_vx
    root = inverse_lower(cholesky(weights.precision, jitter=0.0)).mT / model.process_variance[:, None, None]
    transition = model.transition()
    noise = jnp.diag(1 / model.process_variance)
    blocks, jacobians, gains = [], [], []
    for path, one in zip(paths, series, strict=True):
        u = jnp.asarray(one.u, path.dtype)

        def mean(x: Float[Array, "T Dx"], u: Float[Array, "T Du"] = u) -> Float[Array, "T Dx"]:
            return transition(x, u).given(weights.mean)

        def slope(direction: Float[Array, " Dx"], x: Float[Array, "T Dx"] = path[:-1]) -> Float[Array, "T Dx"]:
            return jax.jvp(mean, (x,), (jnp.broadcast_to(direction[None], x.shape),))[1]

        jacobian = jnp.moveaxis(one_by_one(slope, jnp.eye(path.shape[1], dtype=path.dtype)), 0, -1)
        first = jnp.eye(path.shape[1], dtype=path.dtype)[None]
        arriving = jnp.concatenate([first, noise[None] + emission_information(model, path[1:], one)])
        leaving = jnp.einsum("tik,ij,tjl->tkl", jacobian, noise, jacobian)
        blocks.append(arriving.at[:-1].add(leaving))
        # A last step of zeros stands between this series and the next.
        jacobians.append(jnp.pad(jacobian, ((0, 1), (0, 0), (0, 0))))
        gains.append(jnp.pad(jnp.matmul(transition(path[:-1], u).gain, root), ((0, 0), (0, 1), (0, 0))))
    jacobian, gain = jnp.concatenate(jacobians)[:-1], jnp.concatenate(gains, 1)[:, :-1]
    lower = -jnp.einsum("ij,tjk->tik", noise, jacobian)
    return Linearisation(BlockTridiagonal(jnp.concatenate(blocks), lower), jacobian, gain)


def emission_information(model: GPSSM, x: Float[Array, "T Dx"], series: Series) -> Float[Array, "T Dx Dx"]:
    """Σ_j ∇μ_j ∇μ_jᵀ / σ²_j over the observed outputs: Fisher's information, but for heavy tails.

    A likelihood that cannot tell its moments gives none; the whitening is then that of the dynamics alone.
    """
    present = observed(jnp.asarray(series.y, x.dtype)).present
    try:
        variance = model.likelihood.moments(x)[1]
    except TypeError:
        return jnp.zeros((*x.shape, x.shape[1]), x.dtype)

    def slope(direction: Float[Array, " Dx"]) -> Float[Array, "T Dy"]:
        tangent = jnp.broadcast_to(direction[None], x.shape)
        return jax.jvp(lambda states: model.likelihood.moments(states)[0], (x,), (tangent,))[1]

    slopes = one_by_one(slope, jnp.eye(x.shape[1], dtype=x.dtype))
    return jnp.einsum("ktj,tj,ltj->tkl", slopes, present / variance, slopes)


def _soft_directions(key: PRNGKeyArray, linear: Linearisation, factor: BlockCholesky, rank: int) -> Float[Array, "n r"]:
    """The leading left singular vectors of L⁻¹U by subspace iteration: U is only ever multiplied, never formed."""
    size = linear.precision.diagonal.shape[0] * linear.precision.diagonal.shape[1]

    def apply(column: Float[Array, " n"]) -> Float[Array, " n"]:
        x = _unwhiten(factor, column)
        return jnp.ravel(solve_lower(factor, _couple(linear, _uncouple(linear, x))))

    def sweep(columns: Float[Array, "r n"], _: None) -> tuple[Float[Array, "r n"], None]:
        return jnp.linalg.qr(jax.vmap(apply)(columns).T)[0].T, None

    start = jax.random.normal(key, (rank, size), linear.gain.dtype)
    return jax.lax.scan(sweep, start, None, length=SWEEPS)[0].T


def _uncouple(linear: Linearisation, x: Float[Array, "N Dx"]) -> Float[Array, "Dx M"]:
    """Uᵀx: how a change of the states pulls at each weight."""
    pull = jnp.einsum("tij,tj->ti", linear.jacobian, x[:-1]) - x[1:]
    return jnp.einsum("dtm,td->dm", linear.gain, pull)


def _couple(linear: Linearisation, weights: Float[Array, "Dx M"]) -> Float[Array, "N Dx"]:
    """U v: how a change of the weights pulls at each state."""
    push = jnp.einsum("dtm,dm->td", linear.gain, weights)
    back = jnp.einsum("tij,ti->tj", linear.jacobian, push)
    none = jnp.zeros_like(push[:1])
    return jnp.concatenate([back, none]) - jnp.concatenate([none, push])


def _curvature(
    model: GPSSM,
    factor: BlockCholesky,
    directions: Float[Array, "n r"],
    samples: Float[Array, "K N Dx"],
    series: list[Series],
) -> Float[Array, "r r"]:
    """Vᵀ L⁻¹ (−∇² log q*) L⁻ᵀ V by Hessian-vector products, averaged over the sample paths."""
    columns = jax.vmap(lambda column: _unwhiten(factor, column))(directions.T)
    slope = jax.grad(lambda states: log_collapsed(model, unstack(states, series), series))

    def at(states: Float[Array, "N Dx"]) -> Float[Array, "r r"]:
        products = one_by_one(lambda column: jax.jvp(slope, (states,), (column,))[1], columns)
        return -jnp.einsum("and,bnd->ab", products, columns)

    mean = jnp.mean(jax.lax.map(at, samples), 0)
    return 0.5 * (mean + mean.T)


def _within(directions: Float[Array, "n r"], matrix: Float[Array, "r r"], vector: Float[Array, " n"]) -> Array:
    """(I + V M Vᵀ) vector."""
    return vector + jnp.matmul(directions, jnp.matmul(matrix, jnp.matmul(directions.T, vector)))


def _unwhiten(factor: BlockCholesky, vector: Float[Array, " n"]) -> Float[Array, "N Dx"]:
    """L⁻ᵀ vector, as states."""
    return solve_upper(factor, vector.reshape(factor.diagonal.shape[:2]))
