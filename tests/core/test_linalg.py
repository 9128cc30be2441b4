"""Linear algebra against dense NumPy."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from gpssm.core import linalg
from gpssm.core.linalg import BlockTridiagonal
from programs import run_program


def random_chain(n, dim, seed=0):
    """A random block-tridiagonal SPD matrix LLᵀ as blocks, and its block-bidiagonal L, dense."""
    rng = np.random.default_rng(seed)
    dense = np.zeros((n, dim, n, dim))
    for i in range(n):
        dense[i, :, i] = np.tril(rng.normal(size=(dim, dim)), -1) / 2 + np.diag(
            1.0 + rng.random(dim)
        )
        if i:
            dense[i, :, i - 1] = rng.normal(size=(dim, dim)) / 2
    factor = dense.reshape(n * dim, n * dim)
    blocks = (factor @ factor.T).reshape(n, dim, n, dim)
    diagonal = np.stack([blocks[i, :, i] for i in range(n)])
    lower = (
        np.stack([blocks[i + 1, :, i] for i in range(n - 1)]) if n > 1 else np.zeros((0, dim, dim))
    )
    return BlockTridiagonal(jnp.asarray(diagonal), jnp.asarray(lower)), factor


def dense_blocks(matrix, n, dim):
    blocks = matrix.reshape(n, dim, n, dim)
    return [blocks[i, :, i] for i in range(n)], [blocks[i + 1, :, i] for i in range(n - 1)]


@jax.jit
def all_of(matrix, vector):
    factor = linalg.block_cholesky(matrix)
    solved = linalg.solve_lower(factor, vector), linalg.solve_upper(factor, vector)
    return factor, linalg.log_det(factor), *solved, linalg.selected_inverse(factor)


@pytest.mark.parametrize(("n", "dim"), [(1, 3), (2, 1), (6, 3)])
def test_block_cholesky_does_what_the_dense_factor_does(n, dim):
    matrix, dense = random_chain(n, dim)
    vector = np.random.default_rng(1).normal(size=(n, dim))
    factor, log_det, down, up, found = all_of(matrix, jnp.asarray(vector))
    diagonal, lower = dense_blocks(dense, n, dim)
    np.testing.assert_allclose(factor.diagonal, diagonal, atol=1e-10)
    np.testing.assert_allclose(factor.lower, np.reshape(lower, (n - 1, dim, dim)), atol=1e-10)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(dense @ dense.T)[1], rtol=1e-10)
    np.testing.assert_allclose(dense @ down.ravel(), vector.ravel(), atol=1e-8)
    np.testing.assert_allclose(dense.T @ up.ravel(), vector.ravel(), atol=1e-8)
    np.testing.assert_allclose(
        linalg.multiply_lower(factor, vector).ravel(), dense @ vector.ravel(), atol=1e-8
    )
    np.testing.assert_allclose(
        linalg.multiply_upper(factor, vector).ravel(), dense.T @ vector.ravel(), atol=1e-8
    )
    diagonal, lower = dense_blocks(np.linalg.inv(dense @ dense.T), n, dim)
    scale = np.abs(diagonal).max()
    np.testing.assert_allclose(found.diagonal, diagonal, atol=1e-9 * scale)
    np.testing.assert_allclose(found.lower, np.reshape(lower, (n - 1, dim, dim)), atol=1e-9 * scale)


@pytest.mark.parametrize(("n", "dim"), [(1, 3), (2, 1), (7, 3), (200, 4)])
@pytest.mark.parametrize("noise", [1.0, 1e-5])
def test_a_chain_eliminated_in_rounds_is_the_one_eliminated_in_turn(n, dim, noise, monkeypatch):
    """The precision of states with an output that says next to all of one of them, and without."""
    rng = np.random.default_rng(7)
    transition = 0.9 * np.linalg.qr(rng.normal(size=(n, dim, dim)))[0]
    diagonal = np.tile(100 * np.eye(dim), (n, 1, 1))
    diagonal[:-1] += 100 * np.swapaxes(transition, 1, 2)[:-1] @ transition[:-1]
    diagonal[:, 0, 0] += 1 / noise**2
    matrix = BlockTridiagonal(jnp.asarray(diagonal), jnp.asarray(-100 * transition[:-1]))
    expected = jax.jit(linalg.block_cholesky)(matrix)
    monkeypatch.setattr(linalg, "on_cpu", lambda: False)
    monkeypatch.setattr(linalg, "DENSE", 0)
    found = jax.jit(lambda matrix: linalg.block_cholesky(matrix))(matrix)
    for name, one in expected._asdict().items():
        np.testing.assert_allclose(getattr(found, name), one, rtol=1e-9, atol=1e-9, err_msg=name)


def test_gradients_of_a_block_factor_match_finite_differences():
    matrix, _ = random_chain(3, 2)
    vector = jnp.asarray(np.random.default_rng(2).normal(size=(3, 2)))

    def energy(diagonal, lower, vector):
        symmetric = 0.5 * (diagonal + jnp.swapaxes(diagonal, 1, 2))
        factor = linalg.block_cholesky(BlockTridiagonal(symmetric, lower))
        solved = linalg.solve_upper(factor, linalg.solve_lower(factor, vector))
        inverse = linalg.selected_inverse(factor)
        return (
            linalg.log_det(factor)
            + jnp.sum(jnp.sin(solved))
            + jnp.sum(inverse.diagonal)
            + jnp.sum(inverse.lower)
        )

    check_grads(jax.jit(energy), (*matrix, vector), order=1, modes=("fwd", "rev"), rtol=1e-5)


def test_one_factor_serves_a_batch_of_vectors():
    matrix, _ = random_chain(6, 3)
    vectors = jnp.asarray(np.random.default_rng(3).normal(size=(4, 6, 3)))
    batched = jax.jit(jax.vmap(linalg.solve_upper, (None, 0)))(
        all_of(matrix, vectors[0])[0], vectors
    )
    np.testing.assert_allclose(batched[2], all_of(matrix, vectors[2])[3], atol=1e-9)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 4, 4)])
def test_cholesky_jitter_is_relative(shape):
    low_rank = np.random.default_rng(4).normal(size=(*shape[:-1], 2))
    matrix = 1e6 * low_rank @ np.swapaxes(low_rank, -1, -2)
    factor = np.asarray(linalg.cholesky(jnp.asarray(matrix), jitter=1e-6))
    gap = factor @ np.swapaxes(factor, -1, -2) - matrix
    jitter = 1e-6 * np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] / 4 * np.eye(4)
    np.testing.assert_allclose(gap, jitter, atol=1e-6)
    assert np.all(np.triu(factor, 1) == 0.0)


def test_inverse_lower_and_log_normal():
    rng = np.random.default_rng(5)
    factor = np.tril(rng.normal(size=(2, 4, 4))) + 3.0 * np.eye(4)
    np.testing.assert_allclose(
        linalg.inverse_lower(jnp.asarray(factor)) @ factor, np.stack([np.eye(4)] * 2), atol=1e-12
    )
    x, mean, variance = rng.normal(size=5), rng.normal(size=5), rng.random(5) + 0.1
    expected = scipy.stats.norm.logpdf(x, mean, np.sqrt(variance))
    np.testing.assert_allclose(
        linalg.log_normal(*map(jnp.asarray, (x, mean, variance))), expected, rtol=1e-12
    )


def test_gram_and_gaussian_integral_match_their_plain_formulas():
    """Their values, and the derivatives that they define themselves, up to the second."""
    rng = np.random.default_rng(6)
    matrix, linear = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=3))

    def ours(matrix, linear):
        return linalg.log_gaussian_integral(jnp.eye(3) + linalg.gram(matrix), linear)

    def plain(matrix, linear):
        precision = jnp.eye(3) + matrix.T @ matrix
        return (
            0.5 * linear @ jnp.linalg.solve(precision, linear)
            - 0.5 * jnp.linalg.slogdet(precision)[1]
        )

    found, expected = (
        jax.jit(lambda *z, f=f: (f(*z), jax.grad(f, (0, 1))(*z), jax.hessian(f, (0, 1))(*z)))(
            matrix, linear
        )
        for f in (ours, plain)
    )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12),
        found,
        expected,
    )
    several = jax.jit(lambda P, b: linalg.log_gaussian_integral(P, b))
    precision = jnp.eye(3) + linalg.gram(matrix)
    batched = several(jnp.stack([precision, 2 * precision]), jnp.stack([linear, linear]))
    np.testing.assert_allclose(batched[0], found[0], rtol=1e-12)


@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 1, 2)])
def test_moments_of_a_product_match_their_plain_formulas(given):
    """Values and derivatives up to the second, in all arguments or in one alone."""
    rng = np.random.default_rng(7)
    point = [jnp.asarray(rng.normal(size=shape)) for shape in ((6, 4), (4, 3), (6, 2))]
    at_square, at_cross = jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.normal(size=(3, 2)))

    def plain(left, right, beside):
        product = left @ right
        return product.T @ product, product.T @ beside

    def both(function):
        def value(*chosen):
            square, cross = function(
                *(dict(zip(given, chosen, strict=True)).get(i, one) for i, one in enumerate(point))
            )
            return jnp.sum(jnp.sin(at_square * square)) + jnp.sum(jnp.sin(at_cross * cross))

        places = tuple(range(len(given)))
        return jax.jit(
            lambda *z: (value(*z), jax.grad(value, places)(*z), jax.hessian(value, places)(*z))
        )

    found, expected = (
        both(function)(*(point[i] for i in given)) for function in (linalg.product_moments, plain)
    )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10),
        found,
        expected,
    )


def test_many_batches_of_factorisations_at_once_do_not_wait_for_each_other():
    """With `jnp.linalg.cholesky` of a whole batch, two threads never end (jaxlib 0.10.2)."""
    environment = os.environ | {
        "NPROC": "2",
        "JAX_ENABLE_X64": "1",
    }  # NPROC: how many threads XLA makes
    assert run_program("many_factorisations", env=environment, timeout=120) == "ended\n"
