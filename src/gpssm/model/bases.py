"""A basis turns a kernel into a transition that is linear in whitened Gaussian weights:

    f_d(z) | v_d ~ N( m_d(z) + A_d(z)·v_d , B_d(z) ),   v_d ~ N(0, I)

`gain` is A and `residual` is B. Everything that does not depend on z is worked out once by `projector`, so that scans
over time and chains of gradients only multiply matrices. `InducingPoints` is the sparse Gaussian process of the
free-form posterior; `Hilbert`, `RandomFourier` and `LinearFeatures` have no residual; `Stacked` puts several side by
side, and `Informed` has a prior from other data. How many of each and where, for given data, is for `starts/build.py`.
"""

import abc
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import cholesky, gram, inverse_lower, inverse_root, product_moments
from gpssm.model.kernels import Common, Feature, Kernel, Mixed, Stationary
from gpssm.model.wiring import Mask

JITTER = 1e-6  # of k(Z, Z), relative to its mean diagonal


class Projection(NamedTuple):
    """f_d(z_n) | v_d ~ N(m_d + gain_dn · v_d, residual_dn) at N inputs."""

    gain: Float[Array, "Dx N M"]
    residual: Float[Array, "Dx N"]


class BasisSums(NamedTuple):
    """Sums over N inputs: AᵀA, AᵀE with what stands beside the gain, and ΣB."""

    gram: Float[Array, "Dx M M"]
    cross: Float[Array, "Dx M P"]
    residual: Float[Array, " Dx"]


Projector = Callable[[Float[Array, "N Dz"]], Projection]
Summer = Callable[[Float[Array, "N Dz"], Float[Array, "Dx N P"], Float[Array, " N"]], BasisSums]
Folded = Callable[[Float[Array, "N Dz"]], Float[Array, "N Dx"]]
K = TypeVar("K", bound=Kernel)
Function = Callable[[Float[Array, "N Dz"]], Float[Array, "Dx N"]]


class Basis(eqx.Module):
    """What turns (kernel, z) into (A, B)."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """M, the number of weights a state dimension."""

    @property
    def shared(self) -> bool:
        """Whether all state dimensions have the same weights, f_d | v ~ N(m_d + A_d·v, B_d): functions are coupled."""
        return False

    @abc.abstractmethod
    def projector(self, kernel: Kernel) -> Projector:
        """The function z → (A(z), B(z)) with all factorisations done."""

    def summer(self, kernel: Kernel) -> Summer:
        """The function (z, E, w) → (AᵀA, AᵀE, ΣB) over the rows with w = 1: all that the collapsed density needs of a
        gain. Others have w = 0."""
        projector = self.projector(kernel)

        def add_up(
            z: Float[Array, "N Dz"], beside: Float[Array, "Dx N P"], counts: Float[Array, " N"]
        ) -> BasisSums:
            gain, residual = projector(z)
            gain = counts[None, :, None] * gain
            return BasisSums(
                gram(gain), jnp.matmul(gain.mT, beside), jnp.sum(counts[None] * residual, -1)
            )

        return add_up

    def folded(self, kernel: Kernel, weights: Float[Array, "Dx M"]) -> Folded:
        """The function z → A(z)·v of these weights."""
        projector = self.projector(kernel)
        return lambda z: jnp.matmul(projector(z).gain, weights[:, :, None])[:, :, 0].T

    def prepared(self, kernel: Kernel) -> "Basis":
        """The basis for as long as the kernel stays as it is, with its factorisations done once for all projectors."""
        return self

    def correction(
        self, kernel: Kernel, function: Function, state_dim: int
    ) -> Float[Array, "Dx M"]:
        """What these weights know of a function g drawn from the kernel's process, in whitened coordinates: c.

        g(z) − A(z) c then has the covariance of what they leave open about f, whose diagonal is B. A basis without a
        residual knows nothing of g: zero.
        """
        return jnp.zeros((state_dim, self.size))


class InducingPoints(Basis):
    """A_d(z) = k_d(z, Z) L_d⁻ᵀ,  B_d(z) = k_d(z, z) − |A_d(z)|²,  L_d L_dᵀ = k_d(Z, Z).

    The inducing outputs are U_d = m_d(Z) + L_d v_d. The factor and its inverse are in float64 where JAX
    has it switched on, whatever the dtype of the rest: that keeps float32 stable.
    """

    locations: Float[Array, "M Dz"]

    @property
    def size(self) -> int:
        """M, the number of locations."""
        return self.locations.shape[0]

    def covariance(self, kernel: Kernel) -> Float[Array, "Dx M M"]:
        """k_d(Z, Z) in the widest float at hand."""
        widest = jax.dtypes.canonicalize_dtype(jnp.float64)
        wide, locations = jax.tree.map(lambda leaf: leaf.astype(widest), (kernel, self.locations))
        square = wide(locations, locations)
        if silent := kernel.silent:
            # No function in these dimensions: A = 0 and B = 0, whatever the factor.
            square = (
                square
                + jnp.asarray(silent, widest)[:, None, None]
                * jnp.eye(self.size, dtype=widest)[None]
            )
        return square

    def factor(self, kernel: Kernel) -> Float[Array, "Dx M M"]:
        """L_d with L_d L_dᵀ = k_d(Z, Z), jittered."""
        return cholesky(self.covariance(kernel), JITTER)

    def whitener(self, kernel: Kernel) -> Float[Array, "Dx M M"]:
        """L_d⁻ᵀ."""
        return inverse_root(self.covariance(kernel), JITTER).mT.astype(self.locations.dtype)

    def prepared(self, kernel: Kernel) -> "InducingPoints":
        """With L_d⁻ᵀ at hand."""
        return Factored(self.locations, self.whitener(kernel))

    def projector(self, kernel: Kernel) -> Projector:
        """Factor once; then a kernel matrix and one product."""
        whiten = self.whitener(kernel)

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gain = jnp.matmul(kernel(z, self.locations), whiten)
            # B = k(z, z) − |A|²
            return Projection(gain, kernel.diagonal(z) - jnp.sum(gain**2, -1))

        return project

    def summer(self, kernel: Kernel) -> Summer:
        """By one product less than by way of the gain in gradients; ΣB = Σk(z, z) − tr AᵀA."""
        whiten = self.whitener(kernel)

        def add_up(
            z: Float[Array, "N Dz"], beside: Float[Array, "Dx N P"], counts: Float[Array, " N"]
        ) -> BasisSums:
            counted = counts[None, :, None] * kernel(z, self.locations)
            square, cross = product_moments(counted, whiten, beside)
            residual = jnp.sum(counts[None] * kernel.diagonal(z), -1) - jnp.trace(
                square, axis1=-2, axis2=-1
            )
            return BasisSums(square, cross, residual)

        return add_up

    def folded(self, kernel: Kernel, weights: Float[Array, "Dx M"]) -> Folded:
        """k(z, Z)·L⁻ᵀv: one product a point."""
        coefficients = self.coefficients(kernel, weights)
        return lambda z: jnp.matmul(kernel(z, self.locations), coefficients)[:, :, 0].T

    def coefficients(self, kernel: Kernel, weights: Float[Array, "Dx M"]) -> Float[Array, "Dx M 1"]:
        """L_d⁻ᵀ v_d."""
        return solve_triangular(self.factor(kernel), weights[:, :, None], lower=True, trans=1)

    def correction(
        self, kernel: Kernel, function: Function, state_dim: int
    ) -> Float[Array, "Dx M"]:
        """L_d⁻¹ g_d(Z): the inducing outputs know k_d(z, Z) k_d(Z, Z)⁻¹ g_d(Z) of g (Wilson et al. 2021)."""
        return jnp.matmul(self.whitener(kernel).mT, function(self.locations)[:, :, None])[:, :, 0]


class Factored(InducingPoints):
    """Inducing points that need not be factorised again: gradients along a trajectory have one kernel."""

    inverse: Float[Array, "Dx M M"]

    def whitener(self, kernel: Kernel) -> Float[Array, "Dx M M"]:
        """L_d⁻ᵀ, as it was found."""
        return self.inverse

    def coefficients(self, kernel: Kernel, weights: Float[Array, "Dx M"]) -> Float[Array, "Dx M 1"]:
        """L_d⁻ᵀ v_d, by a product."""
        return jnp.matmul(self.inverse, weights[:, :, None])


class CommonPoints(Basis):
    """A_d(z) = s_d A(z),  B_d(z) = s_d² B(z), for a kernel `Common`: one factorisation for all dimensions."""

    points: InducingPoints

    @property
    def size(self) -> int:
        """M, the number of locations."""
        return self.points.size

    def prepared(self, kernel: Kernel) -> "Basis":
        """With the one factor at hand."""
        return CommonPoints(self.points.prepared(_of(kernel, Common).inner))

    def projector(self, kernel: Kernel) -> Projector:
        """Once for all, times the scale of each."""
        common = _of(kernel, Common)
        project_inner, scale = self.points.projector(common.inner), common.scale

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gain, residual = project_inner(z)
            return Projection(scale[:, None, None] * gain, scale[:, None] ** 2 * residual)

        return project


class MixedPoints(Basis):
    """f = W g with R latent functions:  A_d(z) = [W_d1 A_1(z), ..., W_dR A_R(z)],  B_d(z) = Σ_r W_dr² B_r(z).

    The weights are those of g, so that all dimensions share them: M = R times the number of locations. For a kernel
    `Mixed`, which has W.
    """

    points: InducingPoints
    rank: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        """Those of all latent functions."""
        return self.rank * self.points.size

    @property
    def shared(self) -> bool:
        """Always."""
        return True

    def prepared(self, kernel: Kernel) -> "Basis":
        """With the factors of the latent functions at hand."""
        return MixedPoints(self.points.prepared(_of(kernel, Mixed).inner), self.rank)

    def projector(self, kernel: Kernel) -> Projector:
        """Those of the latent functions, mixed."""
        mixed_kernel = _of(kernel, Mixed)
        project_inner, mixing = self.points.projector(mixed_kernel.inner), mixed_kernel.mixing

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gain, residual = project_inner(z)
            # (Dx, N, R, M) → (Dx, N, R M)
            mixed = mixing[:, None, :, None] * jnp.moveaxis(gain, 0, 1)[None]
            return Projection(mixed.reshape(*mixed.shape[:2], -1), jnp.matmul(mixing**2, residual))

        return project


class Apart(Basis):
    """A basis with weights for each dimension, beside one whose weights are shared: each has its place among all."""

    inner: Basis
    state_dim: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        """Those of all dimensions."""
        return self.state_dim * self.inner.size

    @property
    def shared(self) -> bool:
        """In form."""
        return True

    def projector(self, kernel: Kernel) -> Projector:
        """A_d in block d, zeros elsewhere."""
        inner = self.inner.projector(kernel)

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gain, residual = inner(z)
            blocks = jnp.einsum("de,dnm->dnem", jnp.eye(self.state_dim, dtype=gain.dtype), gain)
            return Projection(blocks.reshape(*gain.shape[:2], -1), residual)

        return project


def _of(kernel: Kernel, kind: type[K]) -> K:
    """The kernel, of the kind that a basis is made for."""
    if not isinstance(kernel, kind):
        raise TypeError(
            f"this basis is for a kernel `{kind.__name__}`, not {type(kernel).__name__}."
        )
    return kernel


class FeaturePoints(Basis):
    """A_d(z) = [d = into] g(z) A_h(φ(z)),  B_d(z) = [d = into] g(z)² B_h(φ(z)), for a kernel `Feature`.

    A_h and B_h are those of inducing points for h, at values of the feature: h(Z) = L v.
    """

    locations: Float[Array, "M P"]

    @property
    def size(self) -> int:
        """M, the number of values of the feature."""
        return self.locations.shape[0]

    def projector(self, kernel: Kernel) -> Projector:
        """Those of h, in their place and times the factor."""
        own = _of(kernel, Feature)
        inner = InducingPoints(self.locations).projector(own.inner)

        def project(z: Float[Array, "N Dz"]) -> Projection:
            features, factors = own.parts(z)
            gain, residual = inner(features)
            factors = factors[None]
            return Projection(
                own.spread(gain * factors[:, :, None]), own.spread(residual * factors**2)
            )

        return project

    def function(
        self, kernel: "Feature", weights: Float[Array, "Dx M"], values: Float[Array, "N P"]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Mean and variance of h given the weights, at values of the feature."""
        gain, residual = InducingPoints(self.locations).projector(kernel.inner)(values)
        return jnp.matmul(gain[0], weights[kernel.into]), jnp.maximum(residual[0], 0.0)


class Hilbert(Basis):
    """A_j(z) = √S(√λ_j) φ_j(z),  B = 0, on the box |z_i − c_i| ≤ L_i:

        φ_j(z) = Π_i L_i^{−½} sin(√λ_{j,i} (z_i − c_i + L_i)),   √λ_{j,i} = π j_i / (2 L_i)

    The index set is of total degree, so that it does not explode with the number of inputs. Beyond the box
    inputs are moved to its wall, where every φ_j is zero: the function returns to its mean there, and stays
    continuous.
    """

    center: Float[Array, " Dz"]
    half_width: Float[Array, " Dz"]
    indices: Int[Array, "M Dz"]

    @classmethod
    def build(cls, center: Float[Array, " Dz"], half_width: Float[Array, " Dz"], num: int) -> Self:
        """The `num` functions of lowest total degree on the box."""
        return cls(center, half_width, jnp.asarray(total_degree_indices(center.shape[0], num)))

    @property
    def size(self) -> int:
        """M, the number of basis functions."""
        return self.indices.shape[0]

    def projector(self, kernel: Kernel) -> Projector:
        """√S at every frequency once; then products of sines."""
        width = self.half_width[None]
        frequencies = 0.5 * jnp.pi * self.indices / width
        scale = jnp.sqrt(kernel.spectral_density(frequencies) / jnp.prod(self.half_width))

        def project(z: Float[Array, "N Dz"]) -> Projection:
            offset = jnp.clip(z - self.center[None] + width, 0.0, 2 * width)
            sines = jnp.prod(jnp.sin(frequencies[None] * offset[:, None, :]), -1)
            gain = scale[:, None, :] * sines[None]
            return Projection(gain, jnp.zeros(gain.shape[:2], gain.dtype))

        return project


def total_degree_indices(dim: int, num: int) -> np.ndarray:
    """The first `num` multi-indices j ≥ 1 in `dim` coordinates, by Σ_i (j_i − 1), then by largest entry.

    :returns: integers (num, dim); the constant-like function (1, ..., 1) comes first.
    """
    rows: list[tuple[int, ...]] = []
    degree = 0
    while len(rows) < num:
        choices = itertools.combinations_with_replacement(range(dim), degree)
        layer = [tuple(1 + chosen.count(i) for i in range(dim)) for chosen in choices]
        rows += sorted(layer, key=lambda row: (max(row), row))
        degree += 1
    return np.array(rows[:num])


class RandomFourier(Basis):
    """A_d(z) = σ_d J^{−½} [cos(ω_j·z/ℓ_d), sin(ω_j·z/ℓ_d)]_{j=1..J},  B = 0,  M = 2J.

    ω_j is drawn once from the spectral law of the kernel with unit lengthscales, so A·Aᵀ is an unbiased
    estimate of k, and exact on the diagonal.
    """

    frequencies: Float[Array, "J Dz"]

    @classmethod
    def build(cls, kernel: Kernel, num: int, dim: int, key: PRNGKeyArray) -> Self:
        """`num` weights, rounded up to an even number."""
        return cls(kernel.unit_frequencies(key, (num + 1) // 2, dim))

    @property
    def size(self) -> int:
        """M = 2J."""
        return 2 * self.frequencies.shape[0]

    def projector(self, kernel: Kernel) -> Projector:
        """The features at the kernel's current lengthscales and variance."""
        if not isinstance(kernel, Stationary):
            raise TypeError(
                f"Random Fourier features need a stationary kernel, got {type(kernel).__name__}."
            )
        amplitude = jnp.sqrt(kernel.variance / self.frequencies.shape[0])

        def project(z: Float[Array, "N Dz"]) -> Projection:
            angle = jnp.matmul(kernel.scaled(z), self.frequencies.T)
            gain = amplitude[:, None, None] * jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)
            return Projection(gain, jnp.zeros(gain.shape[:2], gain.dtype))

        return project


class LinearFeatures(Basis):
    """A_d(z) = σ_d ∘ [x; u; 1],  B = 0: a linear map's weights, Gaussian around the model's mean function.

    With a wiring, σ_d is zero for what does not enter, and for all of a dimension into which nothing does.
    """

    log_scale: Float[Array, "Dx Dz+1"]
    wiring: Mask | None = eqx.field(static=True, default=None)

    @classmethod
    def build(cls, state_dim: int, dim: int, scale: float, wiring: Mask | None = None) -> Self:
        """The same prior standard deviation for every coefficient and the offset."""
        return cls(jnp.asarray(np.full((state_dim, dim + 1), np.log(scale))), wiring)

    @property
    def size(self) -> int:
        """M = Dz + 1."""
        return self.log_scale.shape[1]

    def projector(self, kernel: Kernel) -> Projector:
        """The features alone; the kernel has no part in them."""
        scale = jnp.exp(self.log_scale)
        if self.wiring is not None:
            scale = scale * jnp.asarray([(*row, any(row)) for row in self.wiring])

        def project(z: Float[Array, "N Dz"]) -> Projection:
            features = jnp.concatenate([z, jnp.ones((z.shape[0], 1), z.dtype)], -1)
            gain = scale[:, None, :] * features[None]
            return Projection(gain, jnp.zeros(gain.shape[:2], gain.dtype))

        return project


class Stacked(Basis):
    """Independent parts side by side: gains are concatenated, residuals add up."""

    parts: tuple[Basis, ...]

    @property
    def size(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.size for part in self.parts)

    @property
    def shared(self) -> bool:
        """Whether the parts' weights are: of all of them or of none."""
        return self.parts[0].shared

    def prepared(self, kernel: Kernel) -> "Basis":
        """Each part prepared."""
        return Stacked(tuple(part.prepared(kernel) for part in self.parts))

    def projector(self, kernel: Kernel) -> Projector:
        """A = [A₁, A₂, ...],  B = ΣB_i."""
        projectors = [part.projector(kernel) for part in self.parts]

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gains, residuals = zip(*(one(z) for one in projectors), strict=True)
            return Projection(jnp.concatenate(gains, -1), functools.reduce(jnp.add, residuals))

        return project

    def summer(self, kernel: Kernel) -> Summer:
        """The first part's, beside which all others stand as they are: they are narrow ones."""
        first = self.parts[0].summer(kernel)
        if len(self.parts) == 1:
            return first
        others = Stacked(self.parts[1:]).projector(kernel)

        def add_up(
            z: Float[Array, "N Dz"], beside: Float[Array, "Dx N P"], counts: Float[Array, " N"]
        ) -> BasisSums:
            gain, residual = others(z)
            gain = counts[None, :, None] * gain
            square, cross, own = first(z, jnp.concatenate([gain, beside], -1), counts)
            mixed, cross = jnp.split(cross, [gain.shape[-1]], -1)
            upper = jnp.concatenate([square, mixed], -1)
            lower = jnp.concatenate([mixed.mT, gram(gain)], -1)
            cross = jnp.concatenate([cross, jnp.matmul(gain.mT, beside)], -2)
            return BasisSums(
                jnp.concatenate([upper, lower], -2),
                cross,
                own + jnp.sum(counts[None] * residual, -1),
            )

        return add_up

    def folded(self, kernel: Kernel, weights: Float[Array, "Dx M"]) -> Folded:
        """The sum of the parts'."""
        ends = itertools.accumulate((part.size for part in self.parts), initial=0)
        places = zip(self.parts, itertools.pairwise(ends), strict=True)
        parts = [part.folded(kernel, weights[:, begin:end]) for part, (begin, end) in places]
        return lambda z: functools.reduce(jnp.add, (part(z) for part in parts))

    def correction(
        self, kernel: Kernel, function: Function, state_dim: int
    ) -> Float[Array, "Dx M"]:
        """Those of the parts side by side, of which one at most has a residual."""
        return jnp.concatenate(
            [part.correction(kernel, function, state_dim) for part in self.parts], -1
        )


class Informed(Basis):
    """The weights of another basis in coordinates in which what is known of them already is N(0, I):

        v_d = m_d + F_d w_d,  w_d ~ N(0, I):   A'_d(z) = A_d(z) F_d,  B' = B

    The model's mean function has the rest, A_d(z) m_d (`means.Shifted`). It holds for the kernel that (m, F) were found
    with.
    """

    basis: Basis
    factor: Float[Array, "Dx M M"]

    @property
    def size(self) -> int:
        """That of the other basis."""
        return self.basis.size

    @property
    def shared(self) -> bool:
        """As in the other basis."""
        return self.basis.shared

    def prepared(self, kernel: Kernel) -> "Basis":
        """With the other basis prepared."""
        return Informed(self.basis.prepared(kernel), self.factor)

    def projector(self, kernel: Kernel) -> Projector:
        """The other basis's, and one product more."""
        other = self.basis.projector(kernel)

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gain, residual = other(z)
            return Projection(jnp.matmul(gain, self.factor), residual)

        return project

    def correction(
        self, kernel: Kernel, function: Function, state_dim: int
    ) -> Float[Array, "Dx M"]:
        """F_d⁻¹ c_d, so that A' c' = A c."""
        found = self.basis.correction(kernel, function, state_dim)
        return jnp.matmul(inverse_lower(self.factor), found[:, :, None])[:, :, 0]


def parts_of(basis: Basis) -> list[Basis]:
    """What a basis is made of, side by side, however it was stacked; itself if it is one piece."""
    return (
        [one for part in basis.parts for one in parts_of(part)]
        if isinstance(basis, Stacked)
        else [basis]
    )


BASES: dict[str, type[Basis]] = {
    "inducing": InducingPoints,
    "hilbert": Hilbert,
    "fourier": RandomFourier,
    "linear": LinearFeatures,
    "stacked": Stacked,
}
