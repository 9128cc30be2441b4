"""Covariance functions k_d(z, z'), one for each state dimension d, batched in one object.

A kernel defines `__call__` (the matrix) and `diagonal`; `+`, `*` and `on` compose. Two families do almost
everything: `Stationary` kernels are a function of the scaled squared distance, `DotProduct` kernels of scaled
dot products, and a member of either is one short function. Arrays are unconstrained: `log_variance (Dx,)`,
`log_lengthscale (Dx, Dz)`.
"""

import abc
from typing import Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray


class Kernel(eqx.Module):
    """A positive-definite function k_d(z, z') for d = 1..Dx."""

    @abc.abstractmethod
    def __call__(self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]) -> Float[Array, "Dx N M"]:
        """The matrix of k_d(left_n, right_m)."""

    @abc.abstractmethod
    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """k_d(z_n, z_n)."""

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """S_d(ω) = ∫ k_d(τ) exp(−i ω·τ) dτ, for stationary kernels that have it in closed form."""
        raise TypeError(
            f"{type(self).__name__} has no spectral density in closed form. The Hilbert basis takes "
            "SquaredExponential, Matern12, Matern32, Matern52 and their sums; use inducing points otherwise."
        )

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draws from the spectral law of the kernel with unit lengthscales, for random Fourier features."""
        raise TypeError(
            f"{type(self).__name__} has no spectral sampler. Random Fourier features take "
            "SquaredExponential, Matern12, Matern32, Matern52 and RationalQuadratic."
        )

    def on(self, *dims: int) -> "Active":
        """The same kernel on the chosen coordinates of z only."""
        return Active(self, dims)

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Sum(Kernel):
    """k(z, z') = left(z, z') + right(z, z')."""

    left: Kernel
    right: Kernel

    def __call__(self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]) -> Float[Array, "Dx N M"]:
        """The sum of the two matrices."""
        return self.left(left, right) + self.right(left, right)

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The sum of the two diagonals."""
        return self.left.diagonal(z) + self.right.diagonal(z)

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """The transform is linear: S = S_left + S_right."""
        return self.left.spectral_density(frequencies) + self.right.spectral_density(frequencies)


class Product(Kernel):
    """k(z, z') = left(z, z') · right(z, z')."""

    left: Kernel
    right: Kernel

    def __call__(self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]) -> Float[Array, "Dx N M"]:
        """The elementwise product of the two matrices."""
        return self.left(left, right) * self.right(left, right)

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The product of the two diagonals."""
        return self.left.diagonal(z) * self.right.diagonal(z)


class Active(Kernel):
    """k(z, z') = inner(z[dims], z'[dims])."""

    inner: Kernel
    dims: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]) -> Float[Array, "Dx N M"]:
        """The inner kernel's matrix on the chosen columns."""
        return self.inner(left[:, self.dims], right[:, self.dims])

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The inner kernel's diagonal on the chosen columns."""
        return self.inner.diagonal(z[:, self.dims])


class _Scaled(Kernel):
    """What both families share: a variance a dimension and a lengthscale a coordinate."""

    log_variance: Float[Array, " Dx"]
    log_lengthscale: Float[Array, "Dx Dz"]

    @classmethod
    def build(cls, state_dim: int, dim: int, variance: ArrayLike = 1.0, lengthscale: ArrayLike = 1.0) -> Self:
        """One variance for all state dimensions or one for each, one lengthscale; extra fields keep their defaults."""
        return cls(
            log_variance=jnp.broadcast_to(jnp.log(jnp.asarray(variance, float)), (state_dim,)),
            log_lengthscale=jnp.full((state_dim, dim), jnp.log(lengthscale)),
        )

    @property
    def variance(self) -> Float[Array, " Dx"]:
        """σ²_d."""
        return jnp.exp(self.log_variance)

    def scaled(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N Dz"]:
        """z / ℓ_d for each state dimension."""
        return z[None] * jnp.exp(-self.log_lengthscale)[:, None, :]


class Stationary(_Scaled):
    """k_d(z, z') = σ²_d · ρ(r²),  r² = Σ_i (w_i − w'_i)²  with w = `scaled(z)`."""

    @abc.abstractmethod
    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ(r²), with ρ(0) = 1; its gradient must be finite at zero distance."""

    def __call__(self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]) -> Float[Array, "Dx N M"]:
        """σ²_d ρ(r²), with r² from dot products: three times faster than broadcast differences."""
        a, b = self.scaled(left), self.scaled(right)
        # r² = |a|² + |b|² − 2 a·b
        squared = jnp.sum(a**2, -1)[:, :, None] + jnp.sum(b**2, -1)[:, None, :] - 2 * jnp.matmul(a, b.mT)
        return self.variance[:, None, None] * self.correlation(jnp.maximum(squared, 0.0))

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """σ²_d, whatever z."""
        return jnp.broadcast_to(self.variance[:, None], (self.variance.shape[0], z.shape[0]))


class DotProduct(_Scaled):
    """k_d(z, z') = σ²_d · h(s(z, z'), s(z, z), s(z', z')),  s(z, z') = 1 + w·w'  with w = `scaled(z)`."""

    @abc.abstractmethod
    def shape(
        self, cross: Float[Array, "Dx N M"], left: Float[Array, "Dx N _"], right: Float[Array, "Dx _ M"]
    ) -> Float[Array, "Dx N M"]:
        """h of the three dot products."""

    def __call__(self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]) -> Float[Array, "Dx N M"]:
        """σ²_d h(s(z, z'), s(z, z), s(z', z'))."""
        a, b = self.scaled(left), self.scaled(right)
        left_square, right_square = 1 + jnp.sum(a**2, -1), 1 + jnp.sum(b**2, -1)
        value = self.shape(1 + jnp.matmul(a, b.mT), left_square[:, :, None], right_square[:, None, :])
        return self.variance[:, None, None] * value

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """σ²_d h(s, s, s) with s = s(z, z)."""
        square = (1 + jnp.sum(self.scaled(z) ** 2, -1))[:, :, None]
        return self.variance[:, None] * self.shape(square, square, square)[:, :, 0]
