"""Bases: the kernel they stand for, against direct solves, dense matrices and Monte Carlo."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.core.linalg import inverse_lower
from gpssm.model.bases import (
    BASES,
    JITTER,
    Basis,
    Hilbert,
    InducingPoints,
    LeadingPoints,
    LinearFeatures,
    Projection,
    RandomFourier,
    Stacked,
    total_degree_indices,
)
from gpssm.model.kernels import Kernel, Leading, SquaredExponential, make_kernel

RNG = np.random.default_rng(0)
Z = jnp.asarray(RNG.normal(size=(7, 3)))
LOCATIONS = jnp.asarray(RNG.normal(size=(5, 3)))
KERNEL = SquaredExponential(
    log_variance=jnp.log(jnp.array([0.7, 2.0])),
    log_lengthscale=jnp.log(jnp.array([[0.9, 1.4, 2.0], [1.1, 0.6, 3.0]])),
)
LINEAR = LinearFeatures(jnp.asarray(0.3 * RNG.normal(size=(2, 4))))

EXAMPLES: dict[str, Basis] = {
    "inducing": InducingPoints(LOCATIONS),
    "hilbert": Hilbert.build(jnp.array([0.1, 0.0, -0.2]), jnp.array([3.0, 4.0, 5.0]), 20),
    "fourier": RandomFourier.build(KERNEL, 10, 3, jax.random.key(0)),
    "linear": LINEAR,
    "stacked": Stacked((InducingPoints(LOCATIONS), LINEAR)),
}


@eqx.filter_jit
def project(basis: Basis, kernel: Kernel, z: jax.Array) -> Projection:
    return basis.projector(kernel)(z)


@eqx.filter_jit
def matrix_of(kernel: Kernel, left: jax.Array, right: jax.Array) -> jax.Array:
    return kernel(left, right)


@eqx.filter_jit
def factor_of(basis: InducingPoints, kernel: Kernel) -> jax.Array:
    return inverse_lower(basis.factorise(kernel).mT)


@pytest.mark.parametrize("name", EXAMPLES)
def test_sums_and_functions_are_those_of_the_gain(name: str) -> None:
    """AᵀA, AᵀE and ΣB over the rows that count, and A·v, by their own ways: also where there is one part."""
    beside, weights = RNG.normal(size=(2, 7, 3)), RNG.normal(size=(2, EXAMPLES[name].size))
    whole, residual = map(np.asarray, project(EXAMPLES[name], KERNEL, Z))
    counts = np.array([1, 1, 0, 1, 1, 0, 0.0])
    gain = whole * counts[:, None]
    for basis in (EXAMPLES[name], Stacked((EXAMPLES[name],))):
        factor = basis.factorise(KERNEL)
        square, cross, total = basis.sums(
            KERNEL, factor, Z, jnp.asarray(beside), jnp.asarray(counts)
        )
        np.testing.assert_allclose(square, gain.transpose(0, 2, 1) @ gain, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(cross, gain.transpose(0, 2, 1) @ beside, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(total, residual @ counts, rtol=1e-10, atol=1e-12)
        expected = np.einsum("dnm,dm->nd", whole, weights)
        np.testing.assert_allclose(
            basis.function(KERNEL, factor, jnp.asarray(weights))(Z), expected, rtol=1e-9, atol=1e-11
        )


def gram(projection: Projection) -> np.ndarray:
    """A·Aᵀ between all inputs, (Dx, N, N)."""
    gain = np.asarray(projection.gain)
    return gain @ gain.swapaxes(-2, -1)


def single(tree: object) -> object:
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def test_every_basis_is_tested():
    assert set(EXAMPLES) == set(BASES)
    assert all(type(EXAMPLES[name]) is kind for name, kind in BASES.items())


@pytest.mark.parametrize("name", BASES)
def test_contract(name):
    basis = EXAMPLES[name]
    gain, residual = project(basis, KERNEL, Z)
    assert gain.shape == (2, 7, basis.size)
    assert residual.shape == (2, 7)
    assert np.all(residual >= 0)
    assert np.abs(gain).max() > 0.1
    # A row has its projection, whichever rows are beside it.
    other = project(basis, KERNEL, jnp.vstack([Z[2:3], Z[:6] + 1.0]))
    np.testing.assert_allclose(other.gain[:, 0], gain[:, 2], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.residual[:, 0], residual[:, 2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BASES)
def test_gradients_are_finite_in_leaves_and_inputs(name):
    # The inputs include the inducing locations, where the residual vanishes.
    z = jnp.vstack([Z[:2], LOCATIONS])
    objective = eqx.filter_grad(lambda args: sum(jnp.sum(jnp.sin(part)) for part in project(*args)))
    gradient = objective((EXAMPLES[name], KERNEL, z))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("name", BASES)
def test_single_precision_stays_single(name):
    low = project(*single((EXAMPLES[name], KERNEL, Z)))
    high = project(EXAMPLES[name], KERNEL, Z)
    assert low.gain.dtype == low.residual.dtype == jnp.float32
    np.testing.assert_allclose(low.gain, high.gain, atol=1e-4)
    np.testing.assert_allclose(low.residual, high.residual, atol=1e-4)


@pytest.mark.parametrize("name", ["inducing", "fourier", "stacked"])
def test_gain_and_residual_make_up_the_variance(name):
    projection = project(EXAMPLES[name], KERNEL, Z)
    total = np.diagonal(gram(projection), axis1=1, axis2=2) + projection.residual
    features = np.hstack([Z, np.ones((7, 1))]) if name == "stacked" else np.zeros((7, 4))
    expected = KERNEL.diagonal(Z) + np.exp(2 * LINEAR.log_scale) @ features.T**2
    np.testing.assert_allclose(total, expected, rtol=1e-12)


def covariance(d: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """KERNEL's matrix for state dimension d, by differences."""
    scaled = (left[:, None] - right[None]) / np.exp(KERNEL.log_lengthscale[d])
    return np.exp(KERNEL.log_variance[d]) * np.exp(-0.5 * np.sum(scaled**2, -1))


def test_inducing_points_give_the_conditional_of_the_process():
    """E[f(z) | U] = k(z,Z) K⁻¹ U and var = k(z,z) − k(z,Z) K⁻¹ k(Z,z), with U = L v and the jitter in K."""
    basis, weights = InducingPoints(LOCATIONS), RNG.normal(size=(2, 5))
    gain, residual = project(basis, KERNEL, Z)
    for d in range(2):
        variance = np.exp(KERNEL.log_variance[d])
        cross = covariance(d, np.asarray(Z), np.asarray(LOCATIONS))
        matrix = covariance(
            d, np.asarray(LOCATIONS), np.asarray(LOCATIONS)
        ) + JITTER * variance * np.eye(5)
        factor = np.linalg.cholesky(matrix)
        np.testing.assert_allclose(factor_of(basis, KERNEL)[d], factor, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            gain[d] @ weights[d], cross @ np.linalg.solve(matrix, factor @ weights[d]), rtol=1e-8
        )
        explained = np.sum(cross * np.linalg.solve(matrix, cross.T).T, -1)
        np.testing.assert_allclose(residual[d], variance - explained, rtol=1e-8)


def test_leading_points_are_inducing_points_with_zeros_below():
    """Of four dimensions two have a process: everything is theirs, and zero for the others."""
    kernel, points, plain = Leading(KERNEL, 4), LeadingPoints(LOCATIONS), InducingPoints(LOCATIONS)
    factor = points.factorise(kernel)
    weights, beside = jnp.asarray(RNG.normal(size=(4, 5))), jnp.asarray(RNG.normal(size=(4, 7, 2)))
    counts = jnp.asarray([1, 1, 0, 1, 1, 0, 0.0])
    pairs = [
        (points.project(kernel, factor, Z), plain.project(KERNEL, factor, Z)),
        (
            points.sums(kernel, factor, Z, beside, counts),
            plain.sums(KERNEL, factor, Z, beside[:2], counts),
        ),
        (
            points.function(kernel, factor, weights)(Z).T,
            plain.function(KERNEL, factor, weights[:2])(Z).T,
        ),
        (kernel(Z, LOCATIONS), KERNEL(Z, LOCATIONS)),
        (kernel.diagonal(Z), KERNEL.diagonal(Z)),
    ]
    for found, expected in pairs:
        for whole, part in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(whole[:2], part, rtol=1e-9, atol=1e-12)
            assert whole.shape[0] == 4
            assert not np.any(whole[2:])


def test_residual_vanishes_at_the_inducing_points():
    gain, residual = project(InducingPoints(LOCATIONS), KERNEL, LOCATIONS)
    assert np.all(np.abs(residual / KERNEL.variance[:, None]) < 2 * JITTER)
    np.testing.assert_allclose(gain, factor_of(InducingPoints(LOCATIONS), KERNEL), atol=1e-4)


def test_single_precision_survives_an_ill_conditioned_matrix():
    crowded = jnp.asarray(RNG.normal(size=(120, 3)))
    kernel = eqx.tree_at(lambda k: k.log_lengthscale, KERNEL, jnp.full((2, 3), jnp.log(20.0)))
    # A float32 factor of this matrix, jittered as it is, would be NaN.
    assert np.linalg.cond(matrix_of(kernel, crowded, crowded)).min() > 1e12
    basis = InducingPoints(crowded)
    low, high = project(*single((basis, kernel, Z))), project(basis, kernel, Z)
    assert low.gain.dtype == jnp.float32
    assert np.isfinite(low.gain).all()
    np.testing.assert_allclose(low.residual, high.residual, atol=1e-4)


def hilbert_error(
    kernel: Kernel, z: jax.Array, center: jax.Array, half_width: jax.Array, num: int
) -> float:
    """The largest entry of A·Aᵀ − k(z, z)."""
    projection = project(Hilbert.build(center, half_width, num), kernel, z)
    return np.abs(gram(projection) - matrix_of(kernel, z, z)).max()


def test_hilbert_basis_tends_to_the_kernel_on_a_line():
    z = jnp.linspace(0.5, 2.5, 9)[:, None]
    kernel = SquaredExponential(jnp.log(jnp.array([0.7, 2.0])), jnp.log(jnp.array([[0.5], [0.8]])))
    errors = [
        hilbert_error(kernel, z, jnp.array([1.5]), jnp.array([3.5]), num) for num in (4, 12, 32)
    ]
    assert np.all(np.diff(errors) < 0)
    assert errors[-1] < 1e-5


def test_hilbert_basis_tends_to_a_rough_kernel():
    """The tail of Matérn 5/2 falls as M⁻⁵: doubling the basis divides the error by 2⁵."""
    z, kernel = jnp.linspace(-1, 1, 9)[:, None], make_kernel("matern52", 1, 1, lengthscale=0.4)
    errors = [hilbert_error(kernel, z, jnp.zeros(1), jnp.full(1, 4.0), num) for num in (32, 64)]
    assert errors[1] < 2e-4
    assert 20 < errors[0] / errors[1] < 45


def test_hilbert_basis_tends_to_the_kernel_on_a_plane():
    z = jnp.asarray(RNG.uniform(-1, 1, size=(9, 2)))
    kernel = eqx.tree_at(
        lambda k: k.log_lengthscale, KERNEL, jnp.log(jnp.array([[0.8, 1.0], [0.9, 0.7]]))
    )
    errors = [
        hilbert_error(kernel, z, jnp.zeros(2), jnp.array([3.0, 2.8]), num) for num in (40, 400)
    ]
    assert np.all(np.diff(errors) < 0)
    assert errors[-1] < 1e-3


def test_hilbert_basis_is_zero_from_the_wall_of_the_box_on():
    basis = EXAMPLES["hilbert"]
    beyond = jnp.array([[3.1, 0.0, 0.0], [0.0, -4.5, 0.0], [50.0, 50.0, -50.0]])
    assert np.abs(project(basis, KERNEL, beyond).gain).max() < 1e-12


@pytest.mark.parametrize(("dim", "num"), [(1, 6), (2, 1), (2, 17), (3, 20), (5, 40)])
def test_total_degree_indices(dim, num):
    indices = total_degree_indices(dim, num)
    degree = (indices - 1).sum(1)
    assert indices.shape == (num, dim)
    assert indices.min() == 1
    assert np.all(indices[0] == 1)
    assert len({tuple(row) for row in indices}) == num
    assert np.all(np.diff(degree) >= 0)
    largest = indices.max(1)
    assert np.all(np.diff(largest)[np.diff(degree) == 0] >= 0)
    # Every lower degree is complete.
    grid = itertools.product(range(1, degree[-1] + 2), repeat=dim)
    below = {row for row in grid if sum(row) - dim < degree[-1]}
    assert below <= {tuple(row) for row in indices}


def test_linear_features_scale_the_inputs_and_the_offset():
    gain, residual = project(LINEAR, KERNEL, Z)
    for d, n in itertools.product(range(2), range(7)):
        np.testing.assert_allclose(gain[d, n], np.exp(LINEAR.log_scale[d]) * np.append(Z[n], 1.0))
    assert np.all(residual == 0)
    np.testing.assert_allclose(
        np.exp(LinearFeatures.build(2, 3, 0.25).log_scale), np.full((2, 4), 0.25)
    )


def test_stacked_parts_stand_side_by_side():
    parts = (InducingPoints(LOCATIONS), LINEAR, InducingPoints(LOCATIONS[:3]))
    gain, residual = project(Stacked(parts), KERNEL, Z)
    separate = [project(part, KERNEL, Z) for part in parts]
    assert Stacked(parts).size == 5 + 4 + 3
    np.testing.assert_allclose(
        gain, np.concatenate([part.gain for part in separate], -1), atol=1e-12
    )
    np.testing.assert_allclose(residual, sum(part.residual for part in separate), atol=1e-12)


def test_fourier_features_estimate_the_kernel():
    pairs = 20_000
    basis = RandomFourier.build(KERNEL, 2 * pairs - 1, 3, jax.random.key(1))
    assert basis.size == 2 * pairs
    error = (gram(project(basis, KERNEL, Z)) - matrix_of(KERNEL, Z, Z)) / KERNEL.variance[
        :, None, None
    ]
    # Each entry is a mean of `pairs` cosines of variance ½ (1 − ρ²)².
    assert np.abs(error).max() < 5 * np.sqrt(0.5 / pairs)


def test_kernels_that_do_not_fit_a_basis_are_refused():
    with pytest.raises(TypeError, match="stationary kernel, got Linear"):
        EXAMPLES["fourier"].projector(make_kernel("linear", 2, 3))(Z)
    with pytest.raises(TypeError, match="no spectral sampler"):
        RandomFourier.build(make_kernel("periodic", 2, 3), 10, 3, jax.random.key(0))
    with pytest.raises(TypeError, match="no spectral density"):
        EXAMPLES["hilbert"].projector(make_kernel("linear", 2, 3))
