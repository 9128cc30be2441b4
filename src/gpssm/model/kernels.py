"""Covariance functions k_d(z, z'), one for each state dimension d, batched in one object.

A kernel defines `__call__` (the matrix) and `diagonal`; `+`, `*` and `on` compose. Two families do almost everything:
`Stationary` kernels are a function of the scaled squared distance, `DotProduct` kernels of scaled dot products, and a
member of either is one short function and one line of `KERNELS`. Arrays are unconstrained: `log_variance (Dx,)`,
`log_lengthscale (Dx, Dz)`.

Every kernel is an average over random features, k_d(z, z') = E_ω[ψ_d(z; ω) ψ_d(z'; ω)], so that
g_d(z) = F^{−½} Σ_f ε_df ψ_d(z; ω_f), ε ~ N(0, I), is a function with covariance k_d: `spectrum` draws the ω, `features`
is F^{−½} ψ.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from gpssm.model.wiring import Mask

Spectrum = Any  # the arrays of ω, as the kernel has them


class Kernel(eqx.Module):
    """A positive-definite function k_d(z, z') for d = 1..Dx."""

    @abc.abstractmethod
    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """The matrix of k_d(left_n, right_m)."""

    @abc.abstractmethod
    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """k_d(z_n, z_n)."""

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """S_d(ω) = ∫ k_d(τ) exp(−i ω·τ) dτ, for stationary kernels that have it in closed form."""
        raise TypeError(
            f"{type(self).__name__} has no spectral density in closed form. The Hilbert basis takes "
            "squared-exponential and Matérn kernels and their sums; use inducing points otherwise."
        )

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """Draws from the spectral law of the kernel with unit lengthscales, for random Fourier features."""
        raise TypeError(
            f"{type(self).__name__} has no spectral sampler. Random Fourier features take "
            "squared-exponential, Matérn and rational-quadratic kernels; use inducing points otherwise."
        )

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """F = `num` draws of ω, for inputs with `dim` coordinates."""
        raise TypeError(
            f"{type(self).__name__} has no random features: give it `spectrum` and `features`."
        )

    def features(self, spectrum: Spectrum, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N F"]:
        """F^{−½} ψ_d(z_n; ω_f)."""
        raise TypeError(
            f"{type(self).__name__} has no random features: give it `spectrum` and `features`."
        )

    @property
    def silent(self) -> tuple[bool, ...] | None:
        """The dimensions where the kernel is zero, since nothing enters them; None if there is none."""
        return None

    def wired(self, mask: Mask) -> "Kernel":
        """The same kernel, blind in dimension d to every coordinate where `mask[d]` is false; zero where all are."""
        raise TypeError(
            f"{type(self).__name__} takes no wiring: give it a method `wired`, or use a kernel by name."
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

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """The sum of the two matrices."""
        return self.left(left, right) + self.right(left, right)

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The sum of the two diagonals."""
        return self.left.diagonal(z) + self.right.diagonal(z)

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """The transform is linear: S = S_left + S_right."""
        return self.left.spectral_density(frequencies) + self.right.spectral_density(frequencies)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Those of both."""
        left, right = jax.random.split(key)
        return self.left.spectrum(left, num, dim), self.right.spectrum(right, num, dim)

    def features(self, spectrum: Spectrum, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N F"]:
        """Side by side: g = g_left + g_right."""
        return jnp.concatenate(
            [self.left.features(spectrum[0], z), self.right.features(spectrum[1], z)], -1
        )

    @property
    def silent(self) -> tuple[bool, ...] | None:
        """Those of one side: a wiring is of both."""
        return self.left.silent

    def wired(self, mask: Mask) -> "Kernel":
        """Both sides wired."""
        return Sum(self.left.wired(mask), self.right.wired(mask))


class Product(Kernel):
    """k(z, z') = left(z, z') · right(z, z')."""

    left: Kernel
    right: Kernel

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """The elementwise product of the two matrices."""
        return self.left(left, right) * self.right(left, right)

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The product of the two diagonals."""
        return self.left.diagonal(z) * self.right.diagonal(z)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Those of both."""
        left, right = jax.random.split(key)
        return self.left.spectrum(left, num, dim), self.right.spectrum(right, num, dim)

    def features(self, spectrum: Spectrum, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N F"]:
        """ψ_left ψ_right, whose ω are independent; of sums, each term of one with each of the other."""
        left, right = (
            side.features(drawn, z).reshape(
                self.diagonal(z).shape[0], z.shape[0], _num_terms(side), -1
            )
            for side, drawn in zip((self.left, self.right), spectrum, strict=True)
        )
        # F^{−½} is in both.
        products = math.sqrt(left.shape[-1]) * left[:, :, :, None] * right[:, :, None]
        return products.reshape(*left.shape[:2], -1)

    @property
    def silent(self) -> tuple[bool, ...] | None:
        """Those of one side: a wiring is of both."""
        return self.left.silent

    def wired(self, mask: Mask) -> "Kernel":
        """Both sides wired."""
        return Product(self.left.wired(mask), self.right.wired(mask))


def _num_terms(kernel: Kernel) -> int:
    """How many sets of F features side by side a kernel has."""
    if isinstance(kernel, Active):
        return _num_terms(kernel.inner)
    if not isinstance(kernel, Sum | Product):
        return 1
    left, right = _num_terms(kernel.left), _num_terms(kernel.right)
    return left + right if isinstance(kernel, Sum) else left * right


class Active(Kernel):
    """k(z, z') = inner(z[dims], z'[dims])."""

    inner: Kernel
    dims: tuple[int, ...] = eqx.field(static=True)

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """The inner kernel's matrix on the chosen columns."""
        return self.inner(left[:, self.dims], right[:, self.dims])

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The inner kernel's diagonal on the chosen columns."""
        return self.inner.diagonal(z[:, self.dims])

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """The inner kernel's, for as many coordinates as were chosen."""
        return self.inner.spectrum(key, num, len(self.dims))

    def features(self, spectrum: Spectrum, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N F"]:
        """The inner kernel's on the chosen columns."""
        return self.inner.features(spectrum, z[:, self.dims])

    @property
    def silent(self) -> tuple[bool, ...] | None:
        """Those of the inner kernel."""
        return self.inner.silent

    def wired(self, mask: Mask) -> "Kernel":
        """The inner kernel wired on the chosen columns."""
        return Active(
            self.inner.wired(tuple(tuple(row[dim] for dim in self.dims) for row in mask)), self.dims
        )


class Common(Kernel):
    """k_d(z, z') = s_d² k(z, z'): one kernel for all dimensions, but for their scales, zero where nothing enters."""

    inner: Kernel  # of one dimension
    log_scale: Float[Array, " Dx"]
    nothing: tuple[bool, ...] | None = eqx.field(static=True, default=None)

    @property
    def scale(self) -> Float[Array, " Dx"]:
        """s_d."""
        scale = jnp.exp(self.log_scale)
        return scale if self.nothing is None else jnp.where(np.array(self.nothing), 0.0, scale)

    @property
    def silent(self) -> tuple[bool, ...] | None:
        """Where nothing enters."""
        return self.nothing

    def wired(self, mask: Mask) -> "Kernel":
        """The one kernel wired: what enters must be the same in all dimensions that anything enters."""
        nothing, seen = tuple(not any(row) for row in mask), {row for row in mask if any(row)}
        if len(seen) != 1:
            raise ValueError(
                "coupling='shared' is one kernel, and the wiring lets different inputs enter different transitions: "
                "take coupling='none', or let the same states and controls enter every transition that is learned."
            )
        return Common(self.inner.wired((*seen,)), self.log_scale, nothing if any(nothing) else None)

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """The one matrix, scaled."""
        return self.scale[:, None, None] ** 2 * self.inner(left, right)

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """The one diagonal, scaled."""
        return self.scale[:, None] ** 2 * self.inner.diagonal(z)


class Mixed(Kernel):
    """f = W g, independent g_r ~ GP(0, k_r):  k_d = Σ_r W_dr² k_r,  Cov(f_d(z), f_e(z')) = Σ_r W_dr W_er k_r(z, z').

    The linear model of coregionalisation. What the kernel gives is that of each dimension alone.
    """

    inner: Kernel  # of R dimensions
    mixing: Float[Array, "Dx R"]

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """Σ_r W_dr² k_r."""
        return jnp.einsum("dr,rnm->dnm", self.mixing**2, self.inner(left, right))

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """Σ_r W_dr² k_r(z, z)."""
        return jnp.matmul(self.mixing**2, self.inner.diagonal(z))


class Feature(Kernel):
    """k_d(z, z') = [d = into] g(z) k(φ(z), φ(z')) g(z'):  f_into = g(z) h(φ(z)) with a scalar function h ~ GP(0, k).

    `feature` φ is a function of one state (Dx,) and one control (Du,) that gives a number, or a vector (P,); `factor` g
    gives a number, one without it. By `state_scale` and `inputs` (means and standard deviations) they are functions of
    states and controls in the user's units.
    """

    inner: Kernel  # of one dimension, over φ
    feature: Callable[..., Array]
    factor: Callable[..., Array] | None
    into: int = eqx.field(static=True)
    state_scale: tuple[float, ...] = eqx.field(static=True)
    inputs: tuple[tuple[float, float], ...] = eqx.field(static=True, default=())

    def parts(self, z: Float[Array, "N Dz"]) -> tuple[Float[Array, "N P"], Float[Array, " N"]]:
        """φ and g at every row."""
        x, u = in_units(
            z[:, : len(self.state_scale)],
            z[:, len(self.state_scale) :],
            self.state_scale,
            self.inputs,
        )
        features = jax.vmap(self.feature)(x, u).reshape(z.shape[0], -1)
        factors = (
            jnp.ones(z.shape[0], z.dtype)
            if self.factor is None
            else jax.vmap(self.factor)(x, u).reshape(-1)
        )
        return features, factors

    def spread(self, values: Float[Array, "1 ..."]) -> Float[Array, "Dx ..."]:
        """What is of one dimension in its place among all."""
        nothing = jnp.zeros_like(values)
        rows = [values if row == self.into else nothing for row in range(len(self.state_scale))]
        return jnp.concatenate(rows)

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """The inner kernel's matrix on the features, times both factors."""
        (a, ga), (b, gb) = self.parts(left), self.parts(right)
        return self.spread(self.inner(a, b) * ga[None, :, None] * gb[None, None, :])

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """g² k(φ, φ)."""
        features, factors = self.parts(z)
        return self.spread(self.inner.diagonal(features) * factors[None] ** 2)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """The functions of a path would need h at the inducing features, which are no inputs z."""
        raise TypeError("a function of a feature has no random features of its own.")


def in_units(
    x: Float[Array, "N Dx"],
    u: Float[Array, "N Du"],
    state_scale: tuple[float, ...],
    inputs: tuple[tuple[float, float], ...],
) -> tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]:
    """States and controls as the user has them, from those of the model."""
    moments = jnp.asarray(inputs, u.dtype).reshape(-1, 2)
    return x * jnp.asarray(state_scale, x.dtype)[None], moments[:, 0][None] + moments[:, 1][
        None
    ] * u if inputs else u


class _Scaled(Kernel):
    """What both families share: a variance a dimension and a lengthscale a coordinate, and what is not seen of z."""

    log_variance: Float[Array, " Dx"]
    log_lengthscale: Float[Array, "Dx Dz"]
    wiring: Mask | None = eqx.field(static=True, default=None, kw_only=True)

    @classmethod
    def build(
        cls, state_dim: int, dim: int, variance: ArrayLike = 1.0, lengthscale: ArrayLike = 1.0
    ) -> Self:
        """One variance for all state dimensions or one for each, one lengthscale; extra fields keep their defaults."""
        return cls(
            log_variance=jnp.asarray(
                np.broadcast_to(np.log(np.asarray(variance, float)), (state_dim,))
            ),
            log_lengthscale=jnp.asarray(np.full((state_dim, dim), np.log(lengthscale))),
        )

    @property
    def variance(self) -> Float[Array, " Dx"]:
        """σ²_d; zero in a dimension that sees nothing."""
        variance = jnp.exp(self.log_variance)
        return (
            variance
            if self.wiring is None
            else variance * jnp.asarray([any(row) for row in self.wiring])
        )

    @property
    def inverse_lengthscale(self) -> Float[Array, "Dx Dz"]:
        """1 / ℓ_d; zero for what is not seen."""
        inverse = jnp.exp(-self.log_lengthscale)
        return inverse if self.wiring is None else inverse * jnp.asarray(self.wiring)

    def scaled(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N Dz"]:
        """z / ℓ_d for each state dimension."""
        return z[None] * self.inverse_lengthscale[:, None, :]

    @property
    def silent(self) -> tuple[bool, ...] | None:
        """The dimensions that see nothing."""
        rows = () if self.wiring is None else tuple(not any(row) for row in self.wiring)
        return rows if any(rows) else None

    def wired(self, mask: Mask) -> "Kernel":
        """The same kernel with 1/ℓ_dj = 0 where `mask[d][j]` is false."""
        if (len(mask), len(mask[0])) != self.log_lengthscale.shape:
            raise ValueError(
                f"the wiring has the shape {np.shape(mask)}, the kernel {self.log_lengthscale.shape}."
            )
        return dataclasses.replace(self, wiring=mask)


class Stationary(_Scaled):
    """k_d(z, z') = σ²_d · ρ(r²),  r² = Σ_i (w_i − w'_i)²  with w = `scaled(z)`."""

    @abc.abstractmethod
    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ(r²), with ρ(0) = 1; its gradient must be finite at zero distance."""

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """σ²_d ρ(r²), with r² from dot products: three times faster than broadcast differences."""
        a, b = self.scaled(left), self.scaled(right)
        # r² = |a|² + |b|² − 2 a·b
        squared = (
            jnp.sum(a**2, -1)[:, :, None] + jnp.sum(b**2, -1)[:, None, :] - 2 * jnp.matmul(a, b.mT)
        )
        return self.variance[:, None, None] * self.correlation(_not_below_zero(squared))

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """σ²_d, whatever z."""
        return jnp.broadcast_to(self.variance[:, None], (self.variance.shape[0], z.shape[0]))

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Frequencies from the spectral law, and phases."""
        frequency_key, phase_key = jax.random.split(key)
        phases = jax.random.uniform(phase_key, (num,), self.log_variance.dtype, maxval=2 * jnp.pi)
        return self.unit_frequencies(frequency_key, num, dim), phases

    def features(self, spectrum: Spectrum, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N F"]:
        """ψ = σ √2 cos(ω·w + b),  b ~ U(0, 2π)."""
        frequencies, phases = spectrum
        angles = jnp.matmul(self.scaled(z), frequencies.T) + phases[None, None]
        return jnp.sqrt(2 * self.variance / phases.shape[0])[:, None, None] * jnp.cos(angles)


@jax.custom_jvp
def _not_below_zero(squared: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
    """max(r², 0), with the slope of r² everywhere: it is below zero by rounding alone, and gradients need not look."""
    return jnp.maximum(squared, 0.0)


@_not_below_zero.defjvp
def _not_below_zero_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _not_below_zero(*primals), tangents[0]


class SquaredExponential(Stationary):
    """k(z, z') = σ² exp(−½ r²): infinitely smooth functions."""

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ(r²) = exp(−½ r²)."""
        return jnp.exp(-0.5 * squared_distance)

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """S(ω) = σ² Π_i √(2π) ℓ_i exp(−½ ℓ_i² ω_i²)."""
        exponent = -0.5 * jnp.matmul(jnp.exp(2 * self.log_lengthscale), frequencies.T**2)
        log_scale = jnp.sum(self.log_lengthscale + 0.5 * jnp.log(2 * jnp.pi), -1)
        return jnp.exp((self.log_variance + log_scale)[:, None] + exponent)

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """ω ~ N(0, I)."""
        return jax.random.normal(key, (num, dim), self.log_lengthscale.dtype)


class Matern(Stationary):
    """What the three orders share: their spectral law is a multivariate Student t, 2ν degrees of freedom."""

    @property
    @abc.abstractmethod
    def smoothness(self) -> float:
        """ν."""

    def spectral_density(self, frequencies: Float[Array, "J Dz"]) -> Float[Array, "Dx J"]:
        """S(ω) = σ² Πℓ_i · 2ᴰ π^{D/2} Γ(ν + D/2) (2ν)^ν / Γ(ν) · (2ν + Σ ℓ_i² ω_i²)^{−(ν + D/2)}."""
        nu, dim = self.smoothness, frequencies.shape[1]
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
        """ω = ε √(2ν / χ²_{2ν}),  ε ~ N(0, I)."""
        normal_key, gamma_key = jax.random.split(key)
        dtype = self.log_lengthscale.dtype
        chi_square = 2 * jax.random.gamma(gamma_key, self.smoothness, (num, 1), dtype)
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt(
            2 * self.smoothness / chi_square
        )


class Matern12(Matern):
    """k(z, z') = σ² exp(−r): continuous, rough functions."""

    @property
    def smoothness(self) -> float:
        """ν = 1/2."""
        return 0.5

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = exp(−r)."""
        return jnp.exp(-_distance(squared_distance))


class Matern32(Matern):
    """k(z, z') = σ² (1 + √3 r) exp(−√3 r): once differentiable functions."""

    @property
    def smoothness(self) -> float:
        """ν = 3/2."""
        return 1.5

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = (1 + s) exp(−s),  s = √3 r."""
        s = math.sqrt(3) * _distance(squared_distance)
        return (1 + s) * jnp.exp(-s)


class Matern52(Matern):
    """k(z, z') = σ² (1 + √5 r + 5r²/3) exp(−√5 r): twice differentiable functions."""

    @property
    def smoothness(self) -> float:
        """ν = 5/2."""
        return 2.5

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = (1 + s + s²/3) exp(−s),  s = √5 r."""
        s = math.sqrt(5) * _distance(squared_distance)
        return (1 + s + s**2 / 3) * jnp.exp(-s)


def _distance(squared: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
    """√r² with a zero gradient at r = 0, where the root's own is infinite."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)


class RationalQuadratic(Stationary):
    """k(z, z') = σ² (1 + r² / 2α)^{−α}: a scale mixture of squared exponentials."""

    log_mixture: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ = (1 + r² / 2α)^{−α}."""
        alpha = jnp.exp(self.log_mixture)
        return jnp.exp(-alpha * jnp.log1p(squared_distance / (2 * alpha)))

    def unit_frequencies(self, key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "J Dz"]:
        """ω = ε √τ with τ ~ Gamma(α, rate α), ε ~ N(0, I), at the current α."""
        normal_key, gamma_key = jax.random.split(key)
        alpha, dtype = jnp.exp(self.log_mixture), self.log_lengthscale.dtype
        precision = jax.random.gamma(gamma_key, alpha, (num, 1), dtype) / alpha
        return jax.random.normal(normal_key, (num, dim), dtype) * jnp.sqrt(precision)


class Periodic(Stationary):
    """k(z, z') = σ² exp(−2 Σ_i sin²(π (z_i − z'_i) / p) / ℓ_i²): functions that repeat with period p.

    Every coordinate on a circle, w = [cos(2πz/p), sin(2πz/p)] / ℓ, makes it a squared exponential in w.
    """

    log_period: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))

    def correlation(self, squared_distance: Float[Array, "Dx N M"]) -> Float[Array, "Dx N M"]:
        """ρ(r²) = exp(−½ r²) on the circles."""
        return jnp.exp(-0.5 * squared_distance)

    def scaled(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N 2*Dz"]:
        """Every coordinate on its circle of radius 1/ℓ."""
        angle = 2 * jnp.pi * z * jnp.exp(-self.log_period)
        inverse = self.inverse_lengthscale[:, None, :]
        return jnp.concatenate([jnp.cos(angle)[None] * inverse, jnp.sin(angle)[None] * inverse], -1)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Those of the squared exponential on the circles."""
        frequency_key, phase_key = jax.random.split(key)
        dtype = self.log_variance.dtype
        phases = jax.random.uniform(phase_key, (num,), dtype, maxval=2 * jnp.pi)
        return jax.random.normal(frequency_key, (num, 2 * dim), dtype), phases


class DotProduct(_Scaled):
    """k_d(z, z') = σ²_d · h(s(z, z'), s(z, z), s(z', z')),  s(z, z') = 1 + w·w'  with w = `scaled(z)`."""

    @abc.abstractmethod
    def shape(
        self,
        cross: Float[Array, "Dx N M"],
        left: Float[Array, "Dx N _"],
        right: Float[Array, "Dx _ M"],
    ) -> Float[Array, "Dx N M"]:
        """h of the three dot products."""

    def __call__(
        self, left: Float[Array, "N Dz"], right: Float[Array, "M Dz"]
    ) -> Float[Array, "Dx N M"]:
        """σ²_d h(s(z, z'), s(z, z), s(z', z'))."""
        a, b = self.scaled(left), self.scaled(right)
        left_square, right_square = 1 + jnp.sum(a**2, -1), 1 + jnp.sum(b**2, -1)
        value = self.shape(
            1 + jnp.matmul(a, b.mT), left_square[:, :, None], right_square[:, None, :]
        )
        return self.variance[:, None, None] * value

    def diagonal(self, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N"]:
        """σ²_d h(s, s, s) with s = s(z, z)."""
        square = (1 + jnp.sum(self.scaled(z) ** 2, -1))[:, :, None]
        return self.variance[:, None] * self.shape(square, square, square)[:, :, 0]

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """ω ~ N(0, I), one a factor of the features, with an entry for the 1 in s."""
        return jax.random.normal(key, (self.num_factors, num, dim + 1), self.log_variance.dtype)

    def features(self, spectrum: Spectrum, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N F"]:
        """ψ = σ Π_i a(ω_i·[w; 1])."""
        w = self.scaled(z)
        extended = jnp.concatenate([w, jnp.ones((*w.shape[:2], 1), w.dtype)], -1)
        factors = self.activation(jnp.einsum("dnz,ifz->idnf", extended, spectrum))
        return jnp.sqrt(self.variance / spectrum.shape[1])[:, None, None] * jnp.prod(factors, 0)

    @property
    def num_factors(self) -> int:
        """How many factors a feature has: s^p = E Π_i (ω_i·[w; 1]) (ω_i·[w'; 1]) with p of them."""
        return 1

    def activation(self, dots: Float[Array, "P Dx N F"]) -> Float[Array, "P Dx N F"]:
        """a."""
        return dots


class Linear(DotProduct):
    """k(z, z') = σ² (1 + Σ_i z_i z'_i / ℓ_i²): affine functions."""

    def shape(
        self,
        cross: Float[Array, "Dx N M"],
        left: Float[Array, "Dx N _"],
        right: Float[Array, "Dx _ M"],
    ) -> Float[Array, "Dx N M"]:
        """h = s(z, z')."""
        return cross


class Polynomial(DotProduct):
    """k(z, z') = σ² (1 + Σ_i z_i z'_i / ℓ_i²)^p: polynomials of degree p, two unless told."""

    degree: int = eqx.field(static=True, default=2)

    def shape(
        self,
        cross: Float[Array, "Dx N M"],
        left: Float[Array, "Dx N _"],
        right: Float[Array, "Dx _ M"],
    ) -> Float[Array, "Dx N M"]:
        """h = s(z, z')^p."""
        return cross**self.degree

    @property
    def num_factors(self) -> int:
        """p."""
        return self.degree


class NeuralNetwork(DotProduct):
    """k(z, z') = σ² (2/π) asin( 2 s(z,z') / √((1 + 2 s(z,z)) (1 + 2 s(z',z'))) ).

    Here s(z,z') = 1 + Σ_i z_i z'_i / ℓ_i². A network with infinitely many error-function units
    (Williams 1998): varies near the origin, saturates far away, so forecasts that leave the data flatten out
    instead of returning to the mean.
    """

    def shape(
        self,
        cross: Float[Array, "Dx N M"],
        left: Float[Array, "Dx N _"],
        right: Float[Array, "Dx _ M"],
    ) -> Float[Array, "Dx N M"]:
        """h = (2/π) asin(2 s / √((1 + 2 s_left)(1 + 2 s_right)))."""
        sine = 2 * cross / jnp.sqrt((1 + 2 * left) * (1 + 2 * right))
        # Far from the origin the sine rounds to one, where the slope of asin is infinite.
        limit = 1 - jnp.finfo(sine.dtype).eps
        return (2 / jnp.pi) * jnp.arcsin(jnp.clip(sine, -limit, limit))

    def activation(self, dots: Float[Array, "P Dx N F"]) -> Float[Array, "P Dx N F"]:
        """a = erf: the network's own units."""
        return jax.scipy.special.erf(dots)


KERNELS: dict[str, Callable[..., Kernel]] = {
    "se": SquaredExponential.build,
    "matern12": Matern12.build,
    "matern32": Matern32.build,
    "matern52": Matern52.build,
    "rq": RationalQuadratic.build,
    "periodic": Periodic.build,
    "linear": Linear.build,
    "polynomial": Polynomial.build,
    "neural-network": NeuralNetwork.build,
}


def make_kernel(
    spec: str | Kernel,
    state_dim: int,
    dim: int,
    variance: ArrayLike = 1.0,
    lengthscale: ArrayLike = 1.0,
) -> Kernel:
    """A kernel from its registry name, or from names joined by `+` and `*`: "se+linear*periodic".

    `*` binds before `+`; every part starts from the same variance and lengthscale; kernels pass through.
    """
    if isinstance(spec, Kernel):
        return spec
    for operator, combine in (("+", Sum), ("*", Product)):
        left, found, right = spec.partition(operator)
        if found:
            parts = [
                make_kernel(side, state_dim, dim, variance, lengthscale) for side in (left, right)
            ]
            return combine(*parts)
    if spec.strip() not in KERNELS:
        raise KeyError(
            f"Unknown kernel {spec.strip()!r}. Known: {', '.join(KERNELS)}; combine with + and *, or pass a Kernel."
        )
    return KERNELS[spec.strip()](state_dim, dim, variance=variance, lengthscale=lengthscale)
