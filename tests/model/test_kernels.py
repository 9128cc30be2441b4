"""Covariance functions against scikit-learn, quadrature, Fourier transforms and finite differences."""

from functools import reduce

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import kernels as reference

from gpssm.model.kernels import KERNELS, Active, Kernel, Linear, SquaredExponential, make_kernel

SPECTRAL = ("se", "matern12", "matern32", "matern52")
SAMPLED = (*SPECTRAL, "rq")
RNG = np.random.default_rng(0)
LEFT, RIGHT = RNG.normal(size=(6, 3)), RNG.normal(size=(5, 3))
# Two rows that coincide, and one at the origin.
COINCIDENT = np.vstack([LEFT, LEFT[:1], np.zeros((1, 3))])


def distinct(kernel: Kernel) -> Kernel:
    """Every entry of every leaf set to a value of its own, so that no axis can be mistaken for another."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + 0.3 * jnp.asarray(rng.normal(size=leaf.shape)), kernel)


def registered(name: str, dim: int = 3) -> Kernel:
    return distinct(KERNELS[name](2, dim, variance=0.8, lengthscale=1.3))


def parameters(kernel: Kernel, d: int) -> tuple[float, np.ndarray]:
    return float(kernel.variance[d]), np.exp(np.asarray(kernel.log_lengthscale[d]))


@eqx.filter_jit
def evaluate(kernel: Kernel, left: jax.Array, right: jax.Array) -> jax.Array:
    return kernel(left, right)


@eqx.filter_jit
def slope(kernel: Kernel, left: jax.Array, right: jax.Array) -> tuple[jax.Array, tuple]:
    """The value and the gradient, in leaves and inputs, of a weighted sum over the matrix."""
    weights = jnp.sin(1.0 + jnp.arange(2 * left.shape[0] * right.shape[0])).reshape(
        2, left.shape[0], -1
    )
    return eqx.filter_value_and_grad(lambda args: jnp.sum(weights * args[0](*args[1:])))(
        (kernel, left, right)
    )


@pytest.mark.parametrize("name", KERNELS)
def test_matrix_is_symmetric_positive_and_has_the_diagonal(name):
    kernel, z = registered(name), jnp.asarray(COINCIDENT)
    matrix, part, diagonal = eqx.filter_jit(lambda k, z: (k(z, z), k(z[:3], z), k.diagonal(z)))(
        kernel, z
    )
    assert matrix.shape == (2, 8, 8)
    np.testing.assert_allclose(matrix, matrix.mT, rtol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-7
    # Distances from dot products are zero to √eps only, and Matérn 1/2 is as rough as that.
    np.testing.assert_allclose(np.diagonal(matrix, axis1=1, axis2=2), diagonal, rtol=1e-7)
    assert not np.allclose(matrix[0], matrix[1], rtol=1e-2)
    np.testing.assert_allclose(part[:, :, 4], matrix[:, :3, 4], rtol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_finite_at_coincident_points_and_right_elsewhere(name):
    kernel = registered(name)
    _, gradient = slope(kernel, jnp.asarray(COINCIDENT), jnp.asarray(COINCIDENT))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))

    point = (kernel, jnp.asarray(COINCIDENT), jnp.asarray(COINCIDENT + 0.7))
    rng, step = np.random.default_rng(2), 1e-5
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), point)
    ahead, behind = (
        jax.tree.map(lambda p, d, s=s: p + s * d, point, direction) for s in (step, -step)
    )
    numeric = (slope(*ahead)[0] - slope(*behind)[0]) / (2 * step)
    analytic = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, slope(*point)[1], direction)))
    np.testing.assert_allclose(analytic, numeric, rtol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_single_precision_stays_single(name):
    kernel = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), registered(name))
    matrix = evaluate(kernel, jnp.asarray(LEFT, jnp.float32), jnp.asarray(RIGHT, jnp.float32))
    assert matrix.dtype == jnp.float32
    np.testing.assert_allclose(matrix, evaluate(registered(name), LEFT, RIGHT), rtol=1e-4)
    if name in SAMPLED:
        assert kernel.unit_frequencies(jax.random.key(0), 4, 3).dtype == jnp.float32


def periodic(kernel: Kernel, lengthscale: np.ndarray) -> np.ndarray:
    period = float(np.exp(kernel.log_period))
    factors = [
        reference.ExpSineSquared(lengthscale[i], period)(LEFT[:, [i]], RIGHT[:, [i]])
        for i in range(3)
    ]
    return reduce(np.multiply, factors)


REFERENCES = {
    "se": lambda kernel, scale: reference.RBF(scale)(LEFT, RIGHT),
    "matern12": lambda kernel, scale: reference.Matern(scale, nu=0.5)(LEFT, RIGHT),
    "matern32": lambda kernel, scale: reference.Matern(scale, nu=1.5)(LEFT, RIGHT),
    "matern52": lambda kernel, scale: reference.Matern(scale, nu=2.5)(LEFT, RIGHT),
    "rq": lambda kernel, scale: reference.RationalQuadratic(
        alpha=float(np.exp(kernel.log_mixture))
    )(LEFT / scale, RIGHT / scale),
    "periodic": periodic,
    "linear": lambda kernel, scale: reference.DotProduct()(LEFT / scale, RIGHT / scale),
    "polynomial": lambda kernel, scale: (reference.DotProduct() ** 2)(LEFT / scale, RIGHT / scale),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_scikit_learn_agrees(name):
    kernel = registered(name)
    matrix = evaluate(kernel, LEFT, RIGHT)
    for d in range(2):
        variance, lengthscale = parameters(kernel, d)
        np.testing.assert_allclose(
            matrix[d], variance * REFERENCES[name](kernel, lengthscale), rtol=1e-8, atol=1e-12
        )


def polar_grid(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights for ∫ · dτ over the line or the plane, centred on the cusp of rough kernels."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    edges = np.array([0, 0.1, 0.5, 1, 2, 3, 4.5, 6, 8, 10, 13, 16, 20, 25, 30, 36])
    halves = 0.5 * np.diff(edges)[:, None]
    radius = (edges[:-1, None] + halves * (1 + nodes)).ravel()
    weights = (halves * weights).ravel()
    if dim == 1:
        return np.concatenate([radius, -radius])[:, None], np.tile(weights, 2)
    angle = 2 * np.pi * np.arange(200) / 200
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    points = (radius[:, None, None] * circle).reshape(-1, 2)
    return points, np.repeat(weights * radius * 2 * np.pi / 200, 200)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("name", SPECTRAL)
def test_spectral_density_is_the_fourier_transform(name, dim):
    """S_d(ω) = ∫ k_d(τ) cos(ω·τ) dτ, on a grid stretched by the lengthscales."""
    kernel = registered(name, dim)
    frequencies = np.random.default_rng(3).normal(size=(4, dim))
    density = eqx.filter_jit(lambda k, f: k.spectral_density(f))(kernel, jnp.asarray(frequencies))
    unit, weights = polar_grid(dim)
    for d in range(2):
        _, lengthscale = parameters(kernel, d)
        tau = unit * lengthscale
        covariance = np.asarray(evaluate(kernel, tau, np.zeros((1, dim)))[d, :, 0])
        integral = (weights * np.prod(lengthscale) * covariance) @ np.cos(tau @ frequencies.T)
        np.testing.assert_allclose(density[d], integral, rtol=1e-6)


def test_spectral_densities_of_a_sum_add():
    first, second = registered("se"), registered("matern32")
    total = (first + second).spectral_density(jnp.asarray(LEFT))
    parts = first.spectral_density(jnp.asarray(LEFT)) + second.spectral_density(jnp.asarray(LEFT))
    np.testing.assert_allclose(total, parts, rtol=1e-12)


@pytest.mark.parametrize("name", SAMPLED)
def test_unit_frequencies_follow_the_spectral_law(name):
    """E cos(ω·τ) = ρ(τ) at unit lengthscales."""
    kernel = KERNELS[name](1, 2)
    if name == "rq":
        kernel = eqx.tree_at(lambda k: k.log_mixture, kernel, jnp.log(0.7))
    omega = np.asarray(kernel.unit_frequencies(jax.random.key(4), 40_000, 2))
    tau = np.array([[0.3, 0.0], [0.0, 1.0], [0.7, -0.6], [2.0, 1.0], [-1.0, 0.2]])
    waves = np.cos(omega @ tau.T)
    expected = evaluate(kernel, tau, np.zeros((1, 2)))[0, :, 0]
    assert np.all(np.abs(waves.mean(0) - expected) < 5 * waves.std(0) / np.sqrt(len(omega)))


@pytest.mark.parametrize("name", sorted(set(KERNELS) - set(SPECTRAL)))
def test_no_spectral_density_says_so(name):
    kernel = registered(name)
    for one in (kernel, kernel + registered("se")):
        with pytest.raises(
            TypeError, match=f"{type(kernel).__name__} has no spectral density.*inducing"
        ):
            one.spectral_density(jnp.asarray(LEFT))
    if name not in SAMPLED:
        with pytest.raises(TypeError, match=f"{type(kernel).__name__} has no spectral sampler"):
            kernel.unit_frequencies(jax.random.key(0), 4, 3)


def test_composition():
    first, second, chosen = registered("se"), registered("linear"), registered("linear", 2)

    @eqx.filter_jit
    def compose(first, second, chosen, left, right):
        """Pairs of a composed kernel's values and what they should be."""
        a, b, columns = (
            first(left, right),
            second(left, right),
            (left[:, jnp.array([2, 0])], right[:, jnp.array([2, 0])]),
        )
        c, d = first.diagonal(left), second.diagonal(left)
        return [
            ((first + second)(left, right), a + b),
            ((first * second)(left, right), a * b),
            ((first + second).diagonal(left), c + d),
            ((first * second).diagonal(left), c * d),
            (Active(chosen, (2, 0))(left, right), chosen(*columns)),
            (Active(chosen, (2, 0)).diagonal(left), chosen.diagonal(columns[0])),
        ]

    for found, expected in compose(first, second, chosen, jnp.asarray(LEFT), jnp.asarray(RIGHT)):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_names_join_with_the_usual_precedence():
    def matrix(spec: str) -> jax.Array:
        return evaluate(make_kernel(spec, 2, 3, variance=0.5, lengthscale=2.0), LEFT, RIGHT)

    parts = {name: matrix(name) for name in ("se", "linear", "periodic", "rq")}
    np.testing.assert_allclose(
        parts["se"], 0.5 * np.tile(reference.RBF(2.0)(LEFT, RIGHT), (2, 1, 1))
    )
    np.testing.assert_allclose(
        matrix("se+linear*periodic"), parts["se"] + parts["linear"] * parts["periodic"]
    )
    expected = parts["se"] * parts["linear"] + parts["periodic"] + parts["rq"]
    np.testing.assert_allclose(matrix("se * linear + periodic + rq"), expected)


def test_kernels_pass_through_and_unknown_names_list_the_known():
    kernel = SquaredExponential.build(2, 3) * Linear.build(2, 3)
    assert make_kernel(kernel, 2, 3) is kernel
    with pytest.raises(KeyError) as raised:
        make_kernel("se+rbf", 2, 3)
    assert "'rbf'" in str(raised.value)
    assert all(name in str(raised.value) for name in KERNELS)
