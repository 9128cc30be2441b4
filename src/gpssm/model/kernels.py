"""Covariance functions k_d(z, z'), one for each state dimension d, batched in one object.

A kernel defines `__call__` (the matrix) and `diagonal`; `+`, `*`, `Active` and `Masked` compose.
`Stationary` kernels are functions of the scaled squared distance, one short function and one entry
of `KERNELS` each; `Polynomial` kernels are powers of a scaled dot product. Arrays are
unconstrained: `log_variance (Dx,)`, `log_lengthscale (Dx, Dz)`.

Inputs are rows z (N, Dz), or rows for each state dimension (Dx, N, Dz).
"""

import abc
import math
from collections.abc import Callable
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from gpssm.model.wiring import Mask

Left = Float[Array, "*D N Dz"]
Right = Float[Array, "*D M Dz"]
Matrix = Float[Array, "Dx N M"]


class Kernel(eqx.Module):
    """A positive-definite function k_d(z, z') for d = 1..Dx."""

    @abc.abstractmethod
    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return the matrix of k_d(left_n, right_m)."""

    @abc.abstractmethod
    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return k_d(z_n, z_n)."""

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """Return S_d(ω) = ∫ k_d(τ) exp(−i ω·τ) dτ, for stationary kernels with a closed form."""
        raise TypeError(
            f"{type(self).__name__} has no spectral density in closed form. The Hilbert basis "
            "supports squared-exponential and Matérn kernels and their sums; use inducing points "
            "for other kernels."
        )

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draw from the normalised spectral density of the kernel with unit lengthscales."""
        raise TypeError(
            f"{type(self).__name__} has no spectral sampler. Random Fourier features "
            "support squared-exponential, Matérn and rational-quadratic kernels; use inducing "
            "points for other kernels."
        )

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Pair(Kernel):
    """A combination of two kernels."""

    left: Kernel
    right: Kernel


class Sum(Pair):
    """k(z, z') = left(z, z') + right(z, z')."""

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return the sum of the two matrices."""
        return self.left(left, right) + self.right(left, right)

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return the sum of the two diagonals."""
        return self.left.diagonal(z) + self.right.diagonal(z)

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """Return S = S_left + S_right: the transform is linear."""
        return self.left.spectral_density(frequencies) + self.right.spectral_density(frequencies)


class Product(Pair):
    """k(z, z') = left(z, z') · right(z, z')."""

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return the elementwise product of the two matrices."""
        return self.left(left, right) * self.right(left, right)

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return the product of the two diagonals."""
        return self.left.diagonal(z) * self.right.diagonal(z)


class Restricted(Kernel):
    """A kernel on a subset of its inputs or dimensions, which subclasses define."""

    inner: Kernel

    @abc.abstractmethod
    def hide(self, z: Left) -> Left:
        """Return the inputs that are passed to the inner kernel."""

    def silence(self, values: Float[Array, "Dx ..."]) -> Float[Array, "Dx ..."]:
        """Return the values of this kernel from those of the inner kernel."""
        return values

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return the inner kernel's matrix at those inputs."""
        return self.silence(self.inner(self.hide(left), self.hide(right)))

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return the inner kernel's diagonal at those inputs."""
        return self.silence(self.inner.diagonal(self.hide(z)))


class Active(Restricted):
    """k(z, z') = inner(z[dims], z'[dims])."""

    dims: tuple[int, ...] = eqx.field(static=True)

    def hide(self, z: Left) -> Left:
        """Return the chosen columns."""
        return z[..., self.dims]


class Masked(Restricted):
    """k_d(z, z') = inner_d(z ∘ W_d, z' ∘ W_d), or zero if W_d = 0: f_d depends only on some inputs.

    Parameters
    ----------
    inner
        The kernel of all inputs. A custom kernel must accept rows for each state dimension, (Dx, N,
        Dz), as the kernels of this module do.
    mask
        W, with one row for each state dimension: whether a coordinate of z enters.
    """

    mask: Mask = eqx.field(static=True)

    @property
    def silent(self) -> tuple[bool, ...]:
        """The dimensions that no input enters, where the kernel is zero."""
        return tuple(not any(row) for row in self.mask)

    def hide(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N Dz"]:
        """Return z ∘ W_d for each dimension."""
        return z[None] * np.asarray(self.mask)[:, None, :]

    def silence(self, values: Float[Array, "Dx ..."]) -> Float[Array, "Dx ..."]:
        """Return the values with zeros in the dimensions that no input enters."""
        sounds = ~np.asarray(self.silent)
        return values * sounds.reshape(-1, *(1,) * (values.ndim - 1))

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draw from the normalised spectral density of the inner kernel."""
        return self.inner.unit_frequencies(key, num, dim)


class Leading(Restricted):
    """The inner kernel for the first dimensions, and zero for the others, whose transition is
    known.

    Unlike `Masked`, nothing is computed where the kernel is zero.

    Parameters
    ----------
    inner
        The kernel of the first dimensions.
    state_dim
        Dx, the total number of dimensions.
    """

    state_dim: int = eqx.field(static=True)

    def hide(self, z: Left) -> Left:
        """Return the inputs unchanged."""
        return z

    def silence(self, values: Float[Array, "D ..."]) -> Float[Array, "Dx ..."]:
        """Return the values of the first dimensions, with zeros for the others."""
        zeros = jnp.zeros((self.state_dim - values.shape[0], *values.shape[1:]), values.dtype)
        return jnp.concatenate([values, zeros])


class Coregionalised(Kernel):
    """k_d(z, z') = Σ_r W_dr² k_r(z, z'), for f_d = Σ_r W_dr g_r with independent g_r ~ GP(0, k_r).

    If all dimensions share the g (the linear model of coregionalisation), Cov(f_d(z), f_e(z')) is
    Σ_r W_dr W_er k_r(z, z'). With R = 1 and a separate g for each dimension, all dimensions have
    the same kernel up to scale. The basis determines which of the two applies
    (`bases.CoregionalisedPoints`).

    Parameters
    ----------
    inner
        The kernel of R dimensions.
    mixing
        W, or its logarithm.
    positive
        Whether `mixing` is the logarithm of W.
    silent
        The dimensions where W is zero; None for none.
    """

    inner: Kernel
    mixing: Float[Array, "Dx R"]
    positive: bool = eqx.field(static=True, default=False)
    silent: tuple[bool, ...] | None = eqx.field(static=True, default=None)

    @property
    def W(self) -> Float[Array, "Dx R"]:
        """Return W."""
        mixing = jnp.exp(self.mixing) if self.positive else self.mixing
        if self.silent is None:
            return mixing
        return jnp.where(np.array(self.silent)[:, None], 0.0, mixing)

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return Σ_r W_dr² k_r."""
        return jnp.einsum("dr,rnm->dnm", self.W**2, self.inner(left, right))

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return Σ_r W_dr² k_r(z, z)."""
        return jnp.matmul(self.W**2, self.inner.diagonal(z))


class Feature(Kernel):
    """k_d(z, z') = [d = into] g(z) k(φ(z), φ(z')) g(z'):  f_into = g(z) h(φ(z)), scalar h ~ GP(0,
    k).

    Parameters
    ----------
    inner
        The kernel k of one dimension, over φ.
    feature
        φ, a function of one state (Dx,) and one input (Du,) that returns a number or a vector (P,).
    factor
        g, a function of the same arguments that returns a number; None for g = 1.
    into
        The state whose transition the function enters.
    state_scale, inputs
        Scales of the states, and means and standard deviations of the inputs: φ and g are functions
        of states and inputs in the user's units.
    """

    inner: Kernel
    feature: Callable[..., Array]
    factor: Callable[..., Array] | None
    into: int = eqx.field(static=True)
    state_scale: tuple[float, ...] = eqx.field(static=True)
    inputs: tuple[tuple[float, float], ...] = eqx.field(static=True, default=())

    def parts(self, z: Float[Array, "N Dz"]) -> tuple[Float[Array, "N P"], Float[Array, " N"]]:
        """Return φ and g for each row."""
        state_dim = len(self.state_scale)
        x, u = in_units(z[:, :state_dim], z[:, state_dim:], self.state_scale, self.inputs)
        features = jax.vmap(self.feature)(x, u).reshape(z.shape[0], -1)
        if self.factor is None:
            return features, jnp.ones(z.shape[0], z.dtype)
        return features, jax.vmap(self.factor)(x, u).reshape(-1)

    def spread(self, values: Float[Array, "1 ..."]) -> Float[Array, "Dx ..."]:
        """Return the values in dimension `into`, with zeros in the other dimensions."""
        zeros = jnp.zeros_like(values)
        rows = [values if row == self.into else zeros for row in range(len(self.state_scale))]
        return jnp.concatenate(rows)

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return the inner kernel's matrix at the features, multiplied by both factors."""
        left_features, left_factors = self.parts(left)
        right_features, right_factors = self.parts(right)
        matrix = self.inner(left_features, right_features)
        return self.spread(matrix * left_factors[None, :, None] * right_factors[None, None, :])

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return g² k(φ, φ)."""
        features, factors = self.parts(z)
        return self.spread(self.inner.diagonal(features) * factors[None] ** 2)


def in_units(
    x: Float[Array, "N Dx"],
    u: Float[Array, "N Du"],
    state_scale: tuple[float, ...],
    inputs: tuple[tuple[float, float], ...],
) -> tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]:
    """Return states and inputs in the user's units, from those of the model.

    Parameters
    ----------
    x, u
        Scaled states and inputs.
    state_scale
        The scale of each state.
    inputs
        Mean and standard deviation of each input; empty if they are not scaled.
    """
    states = x * jnp.asarray(state_scale, x.dtype)[None]
    if not inputs:
        return states, u
    moments = jnp.asarray(inputs, u.dtype)
    return states, moments[:, 0][None] + moments[:, 1][None] * u


class ScaledKernel(Kernel):
    """A kernel with a variance for each dimension and a lengthscale for each coordinate."""

    log_variance: Float[Array, " Dx"]
    log_lengthscale: Float[Array, "Dx Dz"]

    @classmethod
    def build(
        cls, state_dim: int, dim: int, variance: ArrayLike = 1.0, lengthscale: ArrayLike = 1.0
    ) -> Self:
        """Build the kernel; other fields keep their defaults.

        Parameters
        ----------
        state_dim, dim
            Dx and Dz.
        variance
            One value for all state dimensions, or one for each.
        lengthscale
            One value for all coordinates.
        """
        log_variance = np.log(np.asarray(variance, float))
        return cls(
            log_variance=jnp.asarray(np.broadcast_to(log_variance, (state_dim,))),
            log_lengthscale=jnp.asarray(np.full((state_dim, dim), np.log(lengthscale))),
        )

    @property
    def variance(self) -> Float[Array, " Dx"]:
        """σ²_d."""
        return jnp.exp(self.log_variance)

    def scaled(self, z: Left) -> Float[Array, "Dx N Dz"]:
        """Return z / ℓ_d for each state dimension."""
        rows = z[None] if z.ndim == 2 else z
        return rows * jnp.exp(-self.log_lengthscale)[:, None, :]


class Stationary(ScaledKernel):
    """k_d(z, z') = σ²_d · ρ(r²),  r² = Σ_i (w_i − w'_i)²  with w = `scaled(z)`."""

    @abc.abstractmethod
    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ(r²) with ρ(0) = 1; the gradient must be finite at zero distance."""

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return σ²_d ρ(r²), with r² from dot products, which is faster than broadcasting."""
        a = self.scaled(left)
        b = self.scaled(right)
        # r² = |a|² + |b|² − 2 a·b
        squared = (
            jnp.sum(a**2, -1)[:, :, None] + jnp.sum(b**2, -1)[:, None, :] - 2 * jnp.matmul(a, b.mT)
        )
        return self.variance[:, None, None] * self.correlation(_not_below_zero(squared))

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return σ²_d, which does not depend on z."""
        return jnp.broadcast_to(self.variance[:, None], (self.variance.shape[0], z.shape[-2]))


@jax.custom_jvp
def _not_below_zero(squared: Matrix) -> Matrix:
    """Return max(r², 0) with the derivative of r² everywhere, as r² < 0 only by rounding."""
    return jnp.maximum(squared, 0.0)


@_not_below_zero.defjvp
def _not_below_zero_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _not_below_zero(*primals), tangents[0]


class SquaredExponential(Stationary):
    """k(z, z') = σ² exp(−½ r²): infinitely smooth functions."""

    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ(r²) = exp(−½ r²)."""
        return jnp.exp(-0.5 * squared_distance)

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """Return S(ω) = σ² Π_i √(2π) ℓ_i exp(−½ ℓ_i² ω_i²)."""
        exponent = -0.5 * jnp.matmul(jnp.exp(2 * self.log_lengthscale), frequencies.T**2)
        log_scale = jnp.sum(self.log_lengthscale + 0.5 * jnp.log(2 * jnp.pi), -1)
        return jnp.exp((self.log_variance + log_scale)[:, None] + exponent)

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draw ω ~ N(0, I)."""
        return jax.random.normal(key, (num, dim), self.log_lengthscale.dtype)


class Matern(Stationary):
    """A Matérn kernel of order ν, whose spectral density is a Student t with 2ν degrees of
    freedom.
    """

    smoothness: ClassVar[float]  # ν

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """Return S(ω) = σ² Πℓ_i · c · (2ν + Σ ℓ_i² ω_i²)^{−(ν + D/2)}.

        c = 2ᴰ π^{D/2} Γ(ν + D/2) (2ν)^ν / Γ(ν).
        """
        nu = self.smoothness
        dim = frequencies.shape[1]
        constant = (
            dim * math.log(2)
            + 0.5 * dim * math.log(math.pi)
            + math.lgamma(nu + 0.5 * dim)
            - math.lgamma(nu)
            + nu * math.log(2 * nu)
        )
        tail = jnp.log(2 * nu + jnp.matmul(jnp.exp(2 * self.log_lengthscale), frequencies.T**2))
        scale = self.log_variance + jnp.sum(self.log_lengthscale, -1) + constant
        return jnp.exp(scale[:, None] - (nu + 0.5 * dim) * tail)

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draw ω = ε √(2ν / χ²_{2ν}),  ε ~ N(0, I)."""
        normal_key, gamma_key = jax.random.split(key)
        dtype = self.log_lengthscale.dtype
        chi_square = 2 * jax.random.gamma(gamma_key, self.smoothness, (num, 1), dtype)
        normal = jax.random.normal(normal_key, (num, dim), dtype)
        return normal * jnp.sqrt(2 * self.smoothness / chi_square)


class Matern12(Matern):
    """k(z, z') = σ² exp(−r): continuous, rough functions."""

    smoothness = 0.5

    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ = exp(−r)."""
        return jnp.exp(-_distance(squared_distance))


class Matern32(Matern):
    """k(z, z') = σ² (1 + √3 r) exp(−√3 r): once differentiable functions."""

    smoothness = 1.5

    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ = (1 + s) exp(−s),  s = √3 r."""
        s = math.sqrt(3) * _distance(squared_distance)
        return (1 + s) * jnp.exp(-s)


class Matern52(Matern):
    """k(z, z') = σ² (1 + √5 r + 5r²/3) exp(−√5 r): twice differentiable functions."""

    smoothness = 2.5

    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ = (1 + s + s²/3) exp(−s),  s = √5 r."""
        s = math.sqrt(5) * _distance(squared_distance)
        return (1 + s + s**2 / 3) * jnp.exp(-s)


def _distance(squared: Matrix) -> Matrix:
    """Return √r² with a zero gradient at r = 0, where that of the root is infinite."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


class RationalQuadratic(Stationary):
    """k(z, z') = σ² (1 + r² / 2α)^{−α}: a scale mixture of squared exponentials."""

    log_mixture: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ = (1 + r² / 2α)^{−α}."""
        alpha = jnp.exp(self.log_mixture)
        return jnp.exp(-alpha * jnp.log1p(squared_distance / (2 * alpha)))

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draw ω = ε √τ with τ ~ Gamma(α, rate α), ε ~ N(0, I), at the current α."""
        normal_key, gamma_key = jax.random.split(key)
        alpha = jnp.exp(self.log_mixture)
        dtype = self.log_lengthscale.dtype
        precision = jax.random.gamma(gamma_key, alpha, (num, 1), dtype) / alpha
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt(precision)


class Periodic(Stationary):
    """k(z, z') = σ² exp(−2 Σ_i sin²(π (z_i − z'_i) / p) / ℓ_i²): functions of period p.

    It is a squared exponential in w = [cos(2πz/p), sin(2πz/p)] / ℓ, which places every coordinate
    on a circle.
    """

    log_period: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    def correlation(self, squared_distance: Matrix) -> Matrix:
        """Return ρ(r²) = exp(−½ r²) on the circles."""
        return jnp.exp(-0.5 * squared_distance)

    def scaled(self, z: Left) -> Float[Array, "Dx N 2*Dz"]:
        """Return every coordinate as a point on a circle of radius 1/ℓ."""
        angle = 2 * jnp.pi * z * jnp.exp(-self.log_period)
        angle = angle[None] if z.ndim == 2 else angle
        inverse = jnp.exp(-self.log_lengthscale)[:, None, :]
        return jnp.concatenate([jnp.cos(angle) * inverse, jnp.sin(angle) * inverse], -1)


class Polynomial(ScaledKernel):
    """k(z, z') = σ² (1 + Σ_i z_i z'_i / ℓ_i²)^p: polynomials of degree p (default 2)."""

    degree: int = eqx.field(static=True, default=2)

    def __call__(self, left: Left, right: Right) -> Matrix:
        """Return σ²_d (1 + w·w')^p."""
        product = 1 + jnp.matmul(self.scaled(left), self.scaled(right).mT)
        return self.variance[:, None, None] * product**self.degree

    def diagonal(self, z: Left) -> Float[Array, "Dx N"]:
        """Return σ²_d (1 + |w|²)^p."""
        return self.variance[:, None] * (1 + jnp.sum(self.scaled(z) ** 2, -1)) ** self.degree


class Linear(Polynomial):
    """k(z, z') = σ² (1 + Σ_i z_i z'_i / ℓ_i²): affine functions."""

    degree: int = eqx.field(static=True, default=1)


KERNELS: dict[str, Callable[..., Kernel]] = {
    "se": SquaredExponential.build,
    "matern12": Matern12.build,
    "matern32": Matern32.build,
    "matern52": Matern52.build,
    "rq": RationalQuadratic.build,
    "periodic": Periodic.build,
    "linear": Linear.build,
    "polynomial": Polynomial.build,
}


def make_kernel(
    spec: str | Kernel,
    state_dim: int,
    dim: int,
    variance: ArrayLike = 1.0,
    lengthscale: ArrayLike = 1.0,
) -> Kernel:
    """Build a kernel from its name, or from names joined by `+` and `*`: "se+linear*periodic".

    Parameters
    ----------
    spec
        The name, in which `*` binds before `+`; a kernel is returned unchanged.
    state_dim, dim
        Dx and Dz.
    variance, lengthscale
        Initial values for every part.
    """
    if isinstance(spec, Kernel):
        return spec
    for operator, combine in (("+", Sum), ("*", Product)):
        left, separator, right = spec.partition(operator)
        if separator:
            parts = [
                make_kernel(side, state_dim, dim, variance, lengthscale) for side in (left, right)
            ]
            return combine(*parts)
    name = spec.strip()
    if name not in KERNELS:
        raise KeyError(
            f"Unknown kernel {name!r}. Known: {', '.join(KERNELS)}; combine with + and *, or pass "
            "a Kernel."
        )
    return KERNELS[name](state_dim, dim, variance=variance, lengthscale=lengthscale)
