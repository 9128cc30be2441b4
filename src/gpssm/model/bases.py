"""A basis turns a kernel into a transition that is linear in whitened Gaussian weights:

    f_d(z) | v_d ~ N( m_d(z) + A_d(z)·v_d , B_d(z) ),   v_d ~ N(0, I)

`gain` is A and `residual` is B. Everything that does not depend on z is computed once by
`factorise`, so that scans over time and gradients only multiply matrices. `InducingPoints` is the
sparse Gaussian process of the free-form posterior; `Hilbert`, `RandomFourier` and `LinearFeatures`
have no residual; `Stacked` concatenates bases, and `Informed` takes its prior from other data.
`starts/build.py` chooses sizes and locations from the data.
"""

import abc
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import gram, inverse_root, product_moments
from gpssm.model.kernels import Feature, Kernel, Masked, Stationary
from gpssm.model.wiring import Mask

JITTER = 1e-6  # of k(Z, Z), relative to its mean diagonal

Factor = Any  # what `factorise` of a basis returns


class Projection(NamedTuple):
    """f_d(z_n) | v_d ~ N(m_d + gain_dn · v_d, residual_dn) at N inputs."""

    gain: Float[Array, "Dx N M"]
    residual: Float[Array, "Dx N"]


# AᵀA, AᵀE with additional columns E, and ΣB, over the rows.
Sums = tuple[Float[Array, "Dx M M"], Float[Array, "Dx M P"], Float[Array, " Dx"]]


class Basis(eqx.Module):
    """A map from (kernel, z) to (A, B); a basis defines `size` and `project`.

    The default implementations of `sums` and `function` use `project`; override them if there is a
    cheaper way.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """M, the number of weights of a state dimension."""

    @property
    def shared(self) -> bool:
        """Whether all state dimensions share one v, f_d | v ~ N(m_d + A_d·v, B_d)."""
        return False

    def factorise(self, kernel: Kernel) -> Factor:
        """Return the part of `project` that does not depend on z."""
        return None

    @abc.abstractmethod
    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A(z) and B(z).

        Parameters
        ----------
        kernel
            The kernel.
        factor
            The result of `factorise` for this kernel.
        z
            Inputs [x; u].
        """

    def projector(self, kernel: Kernel) -> Callable[[Float[Array, "N Dz"]], Projection]:
        """Return the function z → (A(z), B(z)) with all factorisations done."""
        return functools.partial(self.project, kernel, self.factorise(kernel))

    def sums(
        self,
        kernel: Kernel,
        factor: Factor,
        z: Float[Array, "N Dz"],
        columns: Float[Array, "Dx N P"],
        counts: Float[Array, " N"],
    ) -> Sums:
        """Return AᵀA, AᵀE and ΣB over rows, which the collapsed density requires.

        Parameters
        ----------
        kernel, factor, z
            As in `project`.
        columns
            E.
        counts
            1 for rows to include, 0 for rows to ignore.
        """
        gain, residual = self.project(kernel, factor, z)
        gain = counts[None, :, None] * gain
        return gram(gain), jnp.matmul(gain.mT, columns), jnp.sum(counts[None] * residual, -1)

    def function(
        self, kernel: Kernel, factor: Factor, weights: Float[Array, "Dx M"]
    ) -> Callable[[Float[Array, "N Dz"]], Float[Array, "N Dx"]]:
        """Return the function z → A(z)·v for these weights."""

        def evaluate(z: Float[Array, "N Dz"]) -> Float[Array, "N Dx"]:
            gain = self.project(kernel, factor, z).gain
            return jnp.matmul(gain, weights[:, :, None])[:, :, 0].T

        return evaluate


class InducingPoints(Basis):
    """A_d(z) = k_d(z, Z) L_d⁻ᵀ,  B_d(z) = k_d(z, z) − |A_d(z)|²,  L_d L_dᵀ = k_d(Z, Z).

    The inducing outputs are U_d = m_d(Z) + L_d v_d. The factor is computed in float64 if JAX has it
    enabled, whatever the dtype of everything else, which keeps float32 stable.
    """

    locations: Float[Array, "M Dz"]

    @property
    def size(self) -> int:
        """M, the number of locations."""
        return self.locations.shape[0]

    def factorise(self, kernel: Kernel) -> Float[Array, "Dx M M"]:
        """Return L_d⁻ᵀ for k_d(Z, Z) with jitter."""
        widest = jax.dtypes.canonicalize_dtype(jnp.float64)
        wide, locations = jax.tree.map(lambda leaf: leaf.astype(widest), (kernel, self.locations))
        square = wide(locations, locations)
        if isinstance(kernel, Masked) and any(kernel.silent):
            # These dimensions have no function: A = 0 and B = 0, whatever the factor.
            silent = jnp.asarray(kernel.silent, widest)[:, None, None]
            square = square + silent * jnp.eye(self.size, dtype=widest)[None]
        return inverse_root(square, JITTER).mT.astype(self.locations.dtype)

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A and B from a kernel matrix and one matrix product."""
        gain = jnp.matmul(kernel(z, self.locations), factor)
        return Projection(gain, kernel.diagonal(z) - jnp.sum(gain**2, -1))

    def sums(
        self,
        kernel: Kernel,
        factor: Factor,
        z: Float[Array, "N Dz"],
        columns: Float[Array, "Dx N P"],
        counts: Float[Array, " N"],
    ) -> Sums:
        """Return the sums without computing the gain, which saves one product in gradients.

        ΣB = Σk(z, z) − tr AᵀA.
        """
        matrix = counts[None, :, None] * kernel(z, self.locations)
        square, cross = product_moments(matrix, factor, columns)
        variance = jnp.sum(counts[None] * kernel.diagonal(z), -1)
        return square, cross, variance - jnp.trace(square, axis1=-2, axis2=-1)

    def function(
        self, kernel: Kernel, factor: Factor, weights: Float[Array, "Dx M"]
    ) -> Callable[[Float[Array, "N Dz"]], Float[Array, "N Dx"]]:
        """Return z → k(z, Z)·L⁻ᵀv, which takes one product per point."""
        coefficients = jnp.matmul(factor, weights[:, :, None])
        return lambda z: jnp.matmul(kernel(z, self.locations), coefficients)[:, :, 0].T


class LeadingPoints(InducingPoints):
    """Inducing points for the first dimensions only, for the kernel `Leading`.

    A = B = 0 in the other dimensions.
    """

    sums = Basis.sums

    def factorise(self, kernel: Any) -> Float[Array, "D M M"]:
        """Return the factors of the first dimensions."""
        return super().factorise(kernel.inner)

    def project(self, kernel: Any, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A and B of the first dimensions, and zeros for the others."""
        return Projection(*map(kernel.silence, super().project(kernel.inner, factor, z)))

    def function(
        self, kernel: Any, factor: Factor, weights: Float[Array, "Dx M"]
    ) -> Callable[[Float[Array, "N Dz"]], Float[Array, "N Dx"]]:
        """Return the result for the first dimensions, and zeros for the others."""
        values = super().function(kernel.inner, factor, weights[: factor.shape[0]])
        return lambda z: kernel.silence(values(z).T).T


class CoregionalisedPoints(Basis):
    """A_d(z) = [W_d1 A_1(z), ..., W_dR A_R(z)],  B_d(z) = Σ_r W_dr² B_r(z), for f_d = Σ_r W_dr g_r.

    For the kernel `Coregionalised`, which holds W and the kernels of the g. If the g are `common`,
    all dimensions share the weights of the g. Otherwise each dimension has separate weights.

    Parameters
    ----------
    points
        The inducing points, the same for every g.
    rank
        R, the number of latent functions.
    common
        Whether there is one set of latent functions for all dimensions.
    """

    points: InducingPoints
    rank: int = eqx.field(static=True)
    common: bool = eqx.field(static=True, default=True)

    @property
    def size(self) -> int:
        """The number of weights of all latent functions."""
        return self.rank * self.points.size

    @property
    def shared(self) -> bool:
        """Whether the latent functions are common to all dimensions."""
        return self.common

    def factorise(self, kernel: Any) -> Factor:
        """Return the factors of the latent functions."""
        return self.points.factorise(kernel.inner)

    def project(self, kernel: Any, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A and B of the latent functions, combined by W."""
        gain, residual = self.points.project(kernel.inner, factor, z)
        # (Dx, N, R, M) → (Dx, N, R M)
        mixed = kernel.W[:, None, :, None] * jnp.moveaxis(gain, 0, 1)[None]
        variance = jnp.matmul(kernel.W**2, residual)
        return Projection(mixed.reshape(*mixed.shape[:2], -1), variance)


class BlockDiagonal(Basis):
    """A_d in block d and zeros elsewhere: separate weights for each dimension, in the form of a
    shared basis.
    """

    inner: Basis
    state_dim: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        """The number of weights of all dimensions."""
        return self.state_dim * self.inner.size

    @property
    def shared(self) -> bool:
        """True, although each dimension uses a separate block."""
        return True

    def factorise(self, kernel: Kernel) -> Factor:
        """Return the factor of the inner basis."""
        return self.inner.factorise(kernel)

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return the inner gain with one block for each dimension."""
        gain, residual = self.inner.project(kernel, factor, z)
        blocks = jnp.einsum("de,dnm->dnem", jnp.eye(self.state_dim, dtype=gain.dtype), gain)
        return Projection(blocks.reshape(*gain.shape[:2], -1), residual)


class FeaturePoints(Basis):
    """A_d(z) = [d = into] g(z) A_h(φ(z)),  B_d(z) = [d = into] g(z)² B_h(φ(z)), for the kernel
    `Feature`.

    A_h and B_h belong to inducing points for h at values of the feature: h(Z) = L v.
    """

    locations: Float[Array, "M P"]

    @property
    def size(self) -> int:
        """M, the number of inducing values of the feature."""
        return self.locations.shape[0]

    def factorise(self, kernel: Any) -> Factor:
        """Return the factor of the inducing points for h."""
        return InducingPoints(self.locations).factorise(kernel.inner)

    def project(self, kernel: Any, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A and B of h, multiplied by g and g², in dimension `into`."""
        features, factors = kernel.parts(z)
        gain, residual = InducingPoints(self.locations).project(kernel.inner, factor, features)
        return Projection(
            kernel.spread(gain * factors[None, :, None]),
            kernel.spread(residual * factors[None] ** 2),
        )

    def unknown(
        self, kernel: Feature, weights: Float[Array, "Dx M"], values: Float[Array, "N P"]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Return the mean and variance of h given the weights, at values of the feature."""
        gain, residual = InducingPoints(self.locations).projector(kernel.inner)(values)
        return jnp.matmul(gain[0], weights[kernel.into]), jnp.maximum(residual[0], 0.0)


class Hilbert(Basis):
    """A_j(z) = √S(√λ_j) φ_j(z),  B = 0, on the box |z_i − c_i| ≤ L_i:

        φ_j(z) = Π_i L_i^{−½} sin(√λ_{j,i} (z_i − c_i + L_i)),   √λ_{j,i} = π j_i / (2 L_i)

    The index set is limited by total degree, so that it does not explode with the number of inputs.
    Inputs outside the box are moved to its boundary, where every φ_j is zero: the function returns
    to its mean there and remains continuous.
    """

    center: Float[Array, " Dz"]
    half_width: Float[Array, " Dz"]
    indices: Int[Array, "M Dz"]

    @classmethod
    def build(cls, center: Float[Array, " Dz"], half_width: Float[Array, " Dz"], num: int) -> Self:
        """Return the `num` functions of lowest total degree on the box."""
        return cls(center, half_width, jnp.asarray(total_degree_indices(center.shape[0], num)))

    @property
    def size(self) -> int:
        """M, the number of basis functions."""
        return self.indices.shape[0]

    def factorise(self, kernel: Kernel) -> tuple[Float[Array, "M Dz"], Float[Array, "Dx M"]]:
        """Return √λ_j, and √S at these frequencies, divided by the volume of the box."""
        frequencies = 0.5 * jnp.pi * self.indices / self.half_width[None]
        scale = jnp.sqrt(kernel.spectral_density(frequencies) / jnp.prod(self.half_width))
        return frequencies, scale

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return products of sines."""
        frequencies, scale = factor
        width = self.half_width[None]
        offset = jnp.clip(z - self.center[None] + width, 0.0, 2 * width)
        sines = jnp.prod(jnp.sin(frequencies[None] * offset[:, None, :]), -1)
        return _without_residual(scale[:, None, :] * sines[None])


def total_degree_indices(dim: int, num: int) -> np.ndarray:
    """Return the first `num` multi-indices j ≥ 1 in `dim` coordinates, integers (num, dim).

    They are ordered by Σ_i (j_i − 1), then by their largest entry; the constant-like function
    (1, ..., 1) comes first.
    """
    rows: list[tuple[int, ...]] = []
    degree = 0
    while len(rows) < num:
        choices = itertools.combinations_with_replacement(range(dim), degree)
        layer = [tuple(1 + choice.count(i) for i in range(dim)) for choice in choices]
        rows += sorted(layer, key=lambda row: (max(row), row))
        degree += 1
    return np.array(rows[:num])


class RandomFourier(Basis):
    """A_d(z) = σ_d J^{−½} [cos(ω_j·z/ℓ_d), sin(ω_j·z/ℓ_d)]_{j=1..J},  B = 0,  M = 2J.

    ω_j is drawn once from the normalised spectral density of the kernel with unit lengthscales, so
    that A·Aᵀ is an unbiased estimate of k, exact on the diagonal.
    """

    frequencies: Float[Array, "J Dz"]

    @classmethod
    def build(cls, kernel: Kernel, num: int, dim: int, key: PRNGKeyArray) -> Self:
        """Draw frequencies for `num` weights, rounded up to an even number."""
        return cls(kernel.unit_frequencies(key, (num + 1) // 2, dim))

    @property
    def size(self) -> int:
        """M = 2J."""
        return 2 * self.frequencies.shape[0]

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return the features at the kernel's current lengthscales and variance."""
        if isinstance(kernel, Masked):
            gain, residual = self.project(kernel.inner, factor, kernel.hide(z))
            return Projection(kernel.silence(gain), residual)
        if not isinstance(kernel, Stationary):
            raise TypeError(
                f"Random Fourier features need a stationary kernel, got {type(kernel).__name__}."
            )
        amplitude = jnp.sqrt(kernel.variance / self.frequencies.shape[0])
        angle = jnp.matmul(kernel.scaled(z), self.frequencies.T)
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)
        return _without_residual(amplitude[:, None, None] * waves)


class LinearFeatures(Basis):
    """A_d(z) = σ_d ∘ [x; u; 1],  B = 0: a linear map with Gaussian weights, added to the mean
    function.

    With a mask, σ_d is zero for coordinates that do not enter, and for all coordinates of a
    dimension that no input enters.
    """

    log_scale: Float[Array, "Dx Dz+1"]
    mask: Mask | None = eqx.field(static=True, default=None)

    @classmethod
    def build(cls, state_dim: int, dim: int, scale: float, mask: Mask | None = None) -> Self:
        """Return the same prior standard deviation for every coefficient and the offset."""
        return cls(jnp.asarray(np.full((state_dim, dim + 1), np.log(scale))), mask)

    @property
    def size(self) -> int:
        """M = Dz + 1."""
        return self.log_scale.shape[1]

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return the features, which do not depend on the kernel."""
        scale = jnp.exp(self.log_scale)
        if self.mask is not None:
            scale = scale * jnp.asarray([(*row, any(row)) for row in self.mask])
        features = jnp.concatenate([z, jnp.ones((z.shape[0], 1), z.dtype)], -1)
        return _without_residual(scale[:, None, :] * features[None])


def _without_residual(gain: Float[Array, "Dx N M"]) -> Projection:
    return Projection(gain, jnp.zeros(gain.shape[:2], gain.dtype))


class Stacked(Basis):
    """Independent parts side by side: gains are concatenated, residuals add up."""

    parts: tuple[Basis, ...]

    @property
    def size(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.size for part in self.parts)

    @property
    def shared(self) -> bool:
        """Whether the weights of the parts are shared, which holds for all parts or none."""
        return self.parts[0].shared

    def factorise(self, kernel: Kernel) -> Factor:
        """Return the factors of the parts."""
        return tuple(part.factorise(kernel) for part in self.parts)

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A = [A₁, A₂, ...] and B = ΣB_i."""
        projections = [
            part.project(kernel, part_factor, z)
            for part, part_factor in zip(self.parts, factor, strict=True)
        ]
        gains, residuals = zip(*projections, strict=True)
        return Projection(jnp.concatenate(gains, -1), functools.reduce(jnp.add, residuals))

    def sums(
        self,
        kernel: Kernel,
        factor: Factor,
        z: Float[Array, "N Dz"],
        columns: Float[Array, "Dx N P"],
        counts: Float[Array, " N"],
    ) -> Sums:
        """Return the sums of all parts; the gains of the narrow parts are columns E of the
        first.
        """
        first = self.parts[0]
        if len(self.parts) == 1:
            return first.sums(kernel, factor[0], z, columns, counts)
        gain, residual = Stacked(self.parts[1:]).project(kernel, factor[1:], z)
        gain = counts[None, :, None] * gain
        beside = jnp.concatenate([gain, columns], -1)
        square, cross, first_residual = first.sums(kernel, factor[0], z, beside, counts)
        mixed, cross = jnp.split(cross, [gain.shape[-1]], -1)
        upper = jnp.concatenate([square, mixed], -1)
        lower = jnp.concatenate([mixed.mT, gram(gain)], -1)
        return (
            jnp.concatenate([upper, lower], -2),
            jnp.concatenate([cross, jnp.matmul(gain.mT, columns)], -2),
            first_residual + jnp.sum(counts[None] * residual, -1),
        )

    def function(
        self, kernel: Kernel, factor: Factor, weights: Float[Array, "Dx M"]
    ) -> Callable[[Float[Array, "N Dz"]], Float[Array, "N Dx"]]:
        """Return the sum of the parts' functions."""
        ends = np.cumsum([part.size for part in self.parts])[:-1]
        functions = [
            part.function(kernel, part_factor, block)
            for part, part_factor, block in zip(
                self.parts, factor, jnp.split(weights, ends, -1), strict=True
            )
        ]
        return lambda z: functools.reduce(jnp.add, (function(z) for function in functions))


class Informed(Basis):
    """Another basis in coordinates in which the current distribution of its weights is N(0, I):

        v_d = m_d + F_d w_d,  w_d ~ N(0, I):   A'_d(z) = A_d(z) F_d,  B' = B

    The remaining term A_d(z) m_d is part of the mean function (`means.Shifted`). It is valid only
    for the kernel with which (m, F) were computed.
    """

    basis: Basis
    factor: Float[Array, "Dx M M"]

    @property
    def size(self) -> int:
        """The size of the other basis."""
        return self.basis.size

    @property
    def shared(self) -> bool:
        """Whether the weights of the other basis are shared."""
        return self.basis.shared

    def factorise(self, kernel: Kernel) -> Factor:
        """Return the factor of the other basis."""
        return self.basis.factorise(kernel)

    def project(self, kernel: Kernel, factor: Factor, z: Float[Array, "N Dz"]) -> Projection:
        """Return A F and B for A and B of the other basis."""
        gain, residual = self.basis.project(kernel, factor, z)
        return Projection(jnp.matmul(gain, self.factor), residual)


def parts_of(basis: Basis) -> list[Basis]:
    """Return the parts of a basis as a flat list."""
    if not isinstance(basis, Stacked):
        return [basis]
    return [piece for part in basis.parts for piece in parts_of(part)]


BASES: dict[str, type[Basis]] = {
    "inducing": InducingPoints,
    "hilbert": Hilbert,
    "fourier": RandomFourier,
    "linear": LinearFeatures,
    "stacked": Stacked,
}
