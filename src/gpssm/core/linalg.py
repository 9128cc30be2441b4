"""Linear algebra: Cholesky factors, Gaussian updates, block-tridiagonal systems.

A chain of n Gaussian states of dimension D has a block-tridiagonal precision Λ. Its Cholesky factor
L, with Λ = LLᵀ, is block-bidiagonal, so that factoring, solving and the needed blocks of Λ⁻¹ all
cost O(n D³). Every function is differentiable and works under `jit` and `vmap`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, ArrayLike, Float

from gpssm.core.runtime import on_cpu

WIDTH = 16  # rows of a block when a GPU composes the maps of many rows
DENSE = 4096  # states × dimensions up to which a GPU factors a chain as one matrix


def cholesky(
    matrix: Float[Array, "*batch n n"], jitter: float = 1e-8
) -> Float[Array, "*batch n n"]:
    """Return the lower Cholesky factor of K + j·mean(diag K)·I.

    Parameters
    ----------
    matrix
        K.
    jitter
        j, relative to the scale of K.
    """
    return _each(lower_factor, _jittered(matrix, jitter))


def inverse_root(
    matrix: Float[Array, "*batch n n"], jitter: float = 0.0
) -> Float[Array, "*batch n n"]:
    """Return L⁻¹ for LLᵀ = K + j·mean(diag K)·I, compiled as one loop over matrices.

    Parameters
    ----------
    matrix, jitter
        As in `cholesky`.
    """
    return _each(lambda block: inverse_lower(lower_factor(block)), _jittered(matrix, jitter))


def _jittered(matrix: Float[Array, "*batch n n"], jitter: float) -> Float[Array, "*batch n n"]:
    if not jitter:
        return matrix
    scale = jitter * jnp.trace(matrix, axis1=-2, axis2=-1) / matrix.shape[-1]
    identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)
    return matrix + scale[..., None, None] * identity


def lower_factor(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the lower Cholesky factor of a symmetric matrix, without the check of `jnp.linalg`."""
    return lax.linalg.cholesky(matrix, symmetrize_input=False)


def inverse_lower(factor: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """Return L⁻¹ of a lower-triangular matrix L."""
    identity = jnp.eye(factor.shape[-1], dtype=factor.dtype)
    # X L = I takes half the time of L X = I, for which LAPACK first has to transpose.
    return _each(lambda block: lax.linalg.triangular_solve(block, identity, lower=True), factor)


def _each(
    function: Callable[[Array], Array], matrices: Float[Array, "*batch n n"]
) -> Float[Array, "*batch n n"]:
    """Call LAPACK for one matrix at a time on a CPU.

    JAX distributes a batched call over its CPU threads and waits for them in one of these threads:
    as many independent batched calls as there are threads deadlock, on a machine with two cores
    within seconds. Calls for single matrices cannot deadlock, and are faster for the sizes used
    here. A GPU processes the batch.
    """
    if matrices.ndim == 2:
        return function(matrices)
    flat = matrices.reshape(-1, *matrices.shape[-2:])
    return one_by_one(function, flat).reshape(matrices.shape)


def one_by_one(function: Callable[[Array], Any], rows: Array) -> Any:
    """Return the function of each row: one by one on a CPU, which saves memory, otherwise in a
    batch.
    """
    return lax.map(function, rows) if on_cpu() else jax.vmap(function)(rows)


def solve_positive(
    matrix: Float[Array, "*batch n n"], right: Float[Array, "*batch n"]
) -> Float[Array, "*batch n"]:
    """Return P⁻¹b for symmetric positive-definite P = LLᵀ, as L⁻ᵀL⁻¹b."""
    inverse = inverse_root(matrix)
    return jnp.matmul(inverse.mT, jnp.matmul(inverse, right[..., None]))[..., 0]


def root_semidefinite(
    matrix: Float[Array, "*batch n n"], columns: int | None = None
) -> Float[Array, "*batch n columns"]:
    """Return a lower-triangular L with LLᵀ = P for a positive-semidefinite P.

    It uses plain arithmetic, so that a batch needs no LAPACK call, in a loop over the columns, so
    that the size of the program does not depend on their number.

    Parameters
    ----------
    matrix
        P. Directions without variance get a column of zeros.
    columns
        Number of leading columns to compute; all by default.
    """
    size = matrix.shape[-1]
    # Such a pivot consists only of rounding errors.
    least = jnp.finfo(matrix.dtype).eps * jnp.diagonal(matrix, axis1=-2, axis2=-1)

    def eliminate(rest: Array, place: Array) -> tuple[Array, Array]:
        column = jnp.take(rest, place, -1)
        pivot = jnp.take(column, place, -1)[..., None]
        flat = pivot <= jnp.take(least, place, -1)[..., None]
        scale = jnp.where(flat, 0.0, 1 / jnp.sqrt(jnp.where(flat, 1.0, pivot)))
        column = jnp.where(jnp.arange(size) < place, 0.0, column * scale)
        return rest - column[..., :, None] * column[..., None, :], column

    _, factor = lax.scan(eliminate, matrix, jnp.arange(columns or size))
    return jnp.moveaxis(factor, 0, -1)


def cubature_points(
    mean: Float[Array, "*batch n"], covariance: Float[Array, "*batch n n"], dim: int
) -> Float[Array, "*batch 2*dim n"]:
    """Return the points μ ± √D · (columns of L) of x ~ N(μ, P).

    L has the first D columns of a root of P. The other coordinates of a point are their mean given
    its first D. Over the points, mean and covariance of the first D coordinates, and their
    covariances with the others, are exact.

    Parameters
    ----------
    mean, covariance
        μ and P.
    dim
        D.
    """
    spread = jnp.sqrt(float(dim)) * root_semidefinite(covariance, dim).mT
    return mean[..., None, :] + jnp.concatenate([spread, -spread], -2)


def condition_gaussian(
    mean: Float[Array, "*batch n"],
    covariance: Float[Array, "*batch n n"],
    cross: Float[Array, "*batch n"],
    variance: Float[Array, "*batch"],
    error: Float[Array, "*batch"],
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n n"]]:
    """Return the moments of x | y = E[y] + e: μ + k e/q and P − kkᵀ/q.

    Parameters
    ----------
    mean, covariance
        μ and P.
    cross
        k = Cov(x, y) of a scalar y; zero where y is missing.
    variance
        q = Var(y).
    error
        e.
    """
    mean = mean + cross * (error / variance)[..., None]
    return mean, covariance - rank_one(cross, variance)


def rank_one(
    vector: Float[Array, "*batch n"], scale: Float[Array, "*batch"]
) -> Float[Array, "*batch n n"]:
    """Return kkᵀ/q, exactly symmetric."""
    half = vector / jnp.sqrt(scale)[..., None]
    return half[..., :, None] * half[..., None, :]


def log_normal(x: Array, mean: ArrayLike, variance: ArrayLike) -> Array:
    """Return log N(x; mean, variance) of every element; the shapes broadcast."""
    return -0.5 * (jnp.log(2.0 * jnp.pi * variance) + (x - mean) ** 2 / variance)


@jax.custom_jvp
def gram(matrix: Float[Array, "*batch n m"]) -> Float[Array, "*batch m m"]:
    """Return AᵀA."""
    return jnp.matmul(matrix.mT, matrix)


@gram.defjvp
def _gram_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return d(AᵀA) = S + Sᵀ with S = AᵀdA.

    Its transpose takes one product instead of two.
    """
    product = jnp.matmul(primals[0].mT, tangents[0])
    return gram(primals[0]), product + product.mT


@jax.custom_jvp
def product_moments(
    kernel: Float[Array, "*batch n k"],
    weights: Float[Array, "*batch k m"],
    errors: Float[Array, "*batch n p"],
) -> tuple[Float[Array, "*batch m m"], Float[Array, "*batch m p"]]:
    """Return AᵀA and AᵀE of a product A = K W.

    Parameters
    ----------
    kernel, weights, errors
        K, W and E.
    """
    product = jnp.matmul(kernel, weights)
    return jnp.matmul(product.mT, product), jnp.matmul(product.mT, errors)


@functools.partial(product_moments.defjvp, symbolic_zeros=True)
def _product_moments_jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return d(AᵀA) = S + Sᵀ with S = (AᵀdK) W + (AᵀK) dW.

    In this order, its transpose takes one product with n rows, A (S Wᵀ), instead of two.
    """
    kernel, weights, errors = primals
    kernel_dot, weights_dot, errors_dot = tangents
    product = jnp.matmul(kernel, weights)
    values = jnp.matmul(product.mT, product), jnp.matmul(product.mT, errors)
    half, cross_dot = map(jnp.zeros_like, values)
    if not isinstance(kernel_dot, SymbolicZero):
        half += jnp.matmul(jnp.matmul(product.mT, kernel_dot), weights)
        cross_dot += jnp.matmul(weights.mT, jnp.matmul(kernel_dot.mT, errors))
    if not isinstance(weights_dot, SymbolicZero):
        half += jnp.matmul(jnp.matmul(product.mT, kernel), weights_dot)
        cross_dot += jnp.matmul(weights_dot.mT, jnp.matmul(kernel.mT, errors))
    if not isinstance(errors_dot, SymbolicZero):
        cross_dot += jnp.matmul(product.mT, errors_dot)
    return values, (half + half.mT, cross_dot)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_gaussian_integral(
    precision: Float[Array, "*batch n n"], linear: Float[Array, "*batch n"], sign: float = 1.0
) -> Float[Array, "*batch"]:
    """Return −½ log det P + ½ s bᵀP⁻¹b.

    For s = 1 it is log ∫ N(v; 0, I) exp(bᵀv − ½ vᵀ(P − I)v) dv, for s = −1 it is log N(b; 0, P) up
    to a constant.

    Parameters
    ----------
    precision, linear, sign
        P, b and s.
    """
    return _log_gaussian_integral(precision, linear, sign)[0]


def _log_gaussian_integral(
    precision: Array, linear: Array, sign: float
) -> tuple[Array, Array, Array]:
    """Return the value, L⁻¹ and L⁻¹b for P = LLᵀ."""
    inverse = inverse_root(precision)
    whitened = jnp.matmul(inverse, linear[..., None])[..., 0]
    half_log_det = -jnp.sum(jnp.log(jnp.diagonal(inverse, axis1=-2, axis2=-1)), -1)
    return 0.5 * sign * jnp.sum(whitened**2, -1) - half_log_det, inverse, whitened


@log_gaussian_integral.defjvp
def _log_gaussian_integral_jvp(
    sign: float, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Use ∂/∂b = s P⁻¹b = s μ and ∂/∂P = −½(P⁻¹ + s μμᵀ).

    This takes a third of the time of differentiating the factorisation.
    """
    value, inverse, whitened = _log_gaussian_integral(*primals, sign)
    mean = jnp.matmul(inverse.mT, whitened[..., None])
    slope = -0.5 * (jnp.matmul(inverse.mT, inverse) + sign * jnp.matmul(mean, mean.mT))
    precision_dot, linear_dot = tangents
    along = sign * jnp.sum(mean[..., 0] * linear_dot, -1)
    return value, jnp.sum(slope * precision_dot, (-2, -1)) + along


class BlockTridiagonal(NamedTuple):
    """Symmetric block-tridiagonal matrix Λ, (nD, nD).

    Parameters
    ----------
    diagonal
        Blocks (i, i).
    lower
        Blocks (i+1, i), the transposes of blocks (i, i+1).
    """

    diagonal: Float[Array, "n D D"]
    lower: Float[Array, "n-1 D D"]


class BlockCholesky(NamedTuple):
    """Block-bidiagonal Cholesky factor L of Λ = LLᵀ, with matrices for repeated solves.

    Both solves are affine recursions, x_i = G_i x_{i∓1} + c_i, whose matrices are stored as well.

    Parameters
    ----------
    diagonal, lower
        Blocks (i, i), lower-triangular, and (i+1, i).
    inverse
        Inverses of the blocks of `diagonal`.
    forward, backward
        G_i = −inverse[i+1]·lower[i] and G_i = −(lower[i]·inverse[i])ᵀ.
    """

    diagonal: Float[Array, "n D D"]
    lower: Float[Array, "n-1 D D"]
    inverse: Float[Array, "n D D"]
    forward: Float[Array, "n-1 D D"]
    backward: Float[Array, "n-1 D D"]


def block_cholesky(matrix: BlockTridiagonal) -> BlockCholesky:
    """Factor Λ = LLᵀ: L_{i+1,i} = Λ_{i+1,i} L_ii⁻ᵀ and L_ii L_iiᵀ = Λ_ii − L_{i,i−1} L_{i,i−1}ᵀ.

    On a CPU it is a loop. On a GPU, a short chain is factored as one matrix, and a long one in log
    n rounds.
    """

    def factor(
        inverse: Array, blocks: tuple[Array, Array]
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        block, below = blocks
        lower = below @ inverse.T
        diagonal = lower_factor(block - lower @ lower.T)
        inverse = inverse_lower(diagonal)
        return inverse, (diagonal, lower, inverse)

    no_block = jnp.zeros_like(matrix.diagonal[:1])
    below = jnp.concatenate([no_block, matrix.lower])
    if on_cpu():
        _, (diagonal, lower, inverse) = lax.scan(factor, no_block[0], (matrix.diagonal, below))
        lower = lower[1:]
    elif fits_whole(matrix.diagonal.shape[0] * matrix.diagonal.shape[1]):
        diagonal, lower = _dense_cholesky(matrix)
        inverse = inverse_lower(diagonal)
    else:
        start = no_block.at[0].set(jnp.eye(no_block.shape[1], dtype=no_block.dtype))
        links = jnp.concatenate([start, jnp.zeros_like(matrix.lower)]), below.mT, matrix.diagonal
        diagonal = cholesky(_compose_all(_eliminate, links)[2], jitter=0.0)
        inverse = inverse_lower(diagonal)
        lower = matrix.lower @ inverse[:-1].mT
    return BlockCholesky(diagonal, lower, inverse, -inverse[1:] @ lower, -(lower @ inverse[:-1]).mT)


def _eliminate(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, ...]:
    """Compose two links: S → C₂ − B₂ᵀ (A₂ + C₁ − B₁ᵀ (A₁ + S)⁻¹ B₁)⁻¹ B₂.

    S_i = L_ii L_iiᵀ, the Schur complement of Λ_ii after eliminating all previous blocks, follows
    from S_{i−1} by a map S → C − Bᵀ (A + S)⁻¹ B with A = 0, B = Λ_{i,i−1}ᵀ and C = Λ_ii. Two such
    maps compose to one with M = A₂ + C₁ and

        A = A₁ − B₁ M⁻¹ B₁ᵀ,    B = B₁ M⁻¹ B₂,    C = C₂ − B₂ᵀ M⁻¹ B₂.

    M is the Schur complement of a block after eliminating its neighbours on both sides, and
    positive definite like Λ.
    """
    (a, b, c), (a_next, b_next, c_next) = first, second
    root = inverse_root(a_next + c)
    before = root @ b.mT
    after = root @ b_next
    return a - gram(before), before.mT @ after, c_next - gram(after)


def _dense_cholesky(
    matrix: BlockTridiagonal,
) -> tuple[Float[Array, "n D D"], Float[Array, "n-1 D D"]]:
    """Return both bands of L by factoring the whole matrix, which preserves its zeros."""
    count, width = matrix.diagonal.shape[:2]
    at = jnp.arange(count)
    whole = jnp.zeros((count, width, count, width), matrix.diagonal.dtype)
    whole = whole.at[at, :, at, :].set(matrix.diagonal).at[at[1:], :, at[:-1], :].set(matrix.lower)
    factor = jnp.linalg.cholesky(whole.reshape(count * width, -1), symmetrize_input=False)
    factor = factor.reshape(whole.shape)
    return factor[at, :, at, :], factor[at[1:], :, at[:-1], :]


def fits_whole(size: int) -> bool:
    """Return whether a chain of this size (states × dimensions) is factored as one matrix."""
    return not on_cpu() and size <= DENSE


def solve_lower(factor: BlockCholesky, vector: Float[Array, "n D"]) -> Float[Array, "n D"]:
    """Return L⁻¹b."""
    return _recursion(factor.forward, _apply(factor.inverse, vector), reverse=False)


def solve_upper(factor: BlockCholesky, vector: Float[Array, "n D"]) -> Float[Array, "n D"]:
    """Return L⁻ᵀb, which turns b ~ N(0, I) into a draw from N(0, Λ⁻¹)."""
    return _recursion(factor.backward, _apply(factor.inverse.mT, vector), reverse=True)


def multiply_upper(factor: BlockCholesky, vector: Float[Array, "n D *r"]) -> Float[Array, "n D *r"]:
    """Return Lᵀb, the inverse of `solve_upper`; an additional axis holds several b."""
    below = jnp.einsum("nji,nj...->ni...", factor.lower, vector[1:])
    return jnp.einsum("nji,nj...->ni...", factor.diagonal, vector).at[:-1].add(below)


def multiply_lower(factor: BlockCholesky, vector: Float[Array, "n D"]) -> Float[Array, "n D"]:
    """Return Lb, the inverse of `solve_lower`."""
    return _apply(factor.diagonal, vector).at[1:].add(_apply(factor.lower, vector[:-1]))


def _recursion(
    matrices: Float[Array, "n-1 D D"], offsets: Float[Array, "n D"], *, reverse: bool
) -> Float[Array, "n D"]:
    """Return x_i = G x_{i−1} + c_i from the first row on; in reverse, x_i = G x_{i+1} + c_i."""
    no_block = jnp.zeros_like(offsets, shape=(1, *matrices.shape[1:]))
    matrices = jnp.concatenate([matrices, no_block] if reverse else [no_block, matrices])
    if not on_cpu():
        order = slice(None, None, -1 if reverse else 1)
        return _compose_all(_compose, (matrices[order], offsets[order]))[1][order]

    def step(x: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        x = row[0] @ x + row[1]
        return x, x

    return lax.scan(step, jnp.zeros_like(offsets[0]), (matrices, offsets), reverse=reverse)[1]


def _compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return x → G₂(G₁ x + c₁) + c₂."""
    return second[0] @ first[0], _apply(second[0], first[1]) + second[1]


def _compose_all(compose: Callable[[Any, Any], Any], maps: Any) -> Any:
    """Compose each map with all previous ones in parallel, for GPUs.

    Rows are divided into blocks of WIDTH, which are processed in parallel. Their last maps are
    composed recursively and applied to the rows of the next block. This takes WIDTH steps for each
    factor WIDTH of the number of rows, in a loop. `lax.associative_scan` takes half the time, but
    three to five times as long to compile.

    Parameters
    ----------
    compose
        Function that composes rows of maps.
    maps
        A tree of arrays with one row per map.
    """
    count = len(jax.tree.leaves(maps)[0])
    blocks = -(-count // WIDTH)

    def cut(rows: Array) -> Array:
        rows = jnp.pad(
            rows, ((0, blocks * WIDTH - count), *((0, 0),) * (rows.ndim - 1)), mode="edge"
        )
        return jnp.swapaxes(rows.reshape(blocks, WIDTH, *rows.shape[1:]), 0, 1)

    def step(before: Any, rows: Any) -> tuple[Any, Any]:
        following = compose(before, rows)
        return following, following

    rows = jax.tree.map(cut, maps)
    first = jax.tree.map(lambda rows: rows[0], rows)
    last, rest = lax.scan(step, first, jax.tree.map(lambda rows: rows[1:], rows))
    rows = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), first, rest)
    if blocks > 1:
        before = _compose_all(compose, jax.tree.map(lambda rows: rows[:-1], last))
        before = jax.tree.map(
            lambda rows: jnp.broadcast_to(rows[None], (WIDTH, *rows.shape)), before
        )
        later = compose(before, jax.tree.map(lambda rows: rows[:, 1:], rows))
        rows = jax.tree.map(
            lambda rows, later: jnp.concatenate([rows[:, :1], later], 1), rows, later
        )
    return jax.tree.map(
        lambda rows: jnp.swapaxes(rows, 0, 1).reshape(-1, *rows.shape[2:])[:count], rows
    )


def _apply(matrices: Float[Array, "n D D"], vectors: Float[Array, "n D"]) -> Float[Array, "n D"]:
    return jnp.einsum("...ij,...j->...i", matrices, vectors)


def log_det(factor: BlockCholesky) -> Float[Array, ""]:
    """Return log det Λ = 2 Σ log diag L."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor.diagonal, axis1=-2, axis2=-1)))


def selected_inverse(factor: BlockCholesky) -> BlockTridiagonal:
    """Return the diagonal and first lower blocks of Σ = Λ⁻¹, from the last block backwards.

    With G_i = `backward[i]`, Σ_{i+1,i} = Σ_{i+1,i+1} G_iᵀ and
    Σ_ii = L_ii⁻ᵀ L_ii⁻¹ + G_i Σ_{i+1,i+1} G_iᵀ.
    """

    def step(after: Array, blocks: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        conditional, gain = blocks
        lower = after @ gain.T
        diagonal = conditional + gain @ lower
        return diagonal, (diagonal, lower)

    conditional = factor.inverse.mT @ factor.inverse
    last = conditional[-1]
    _, (diagonal, lower) = lax.scan(step, last, (conditional[:-1], factor.backward), reverse=True)
    return BlockTridiagonal(jnp.concatenate([diagonal, last[None]]), lower)
