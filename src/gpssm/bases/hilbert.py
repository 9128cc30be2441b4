"""The Hilbert-space (reduced-rank) basis: Laplacian eigenfunctions on a box."""

import itertools
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpssm.bases.base import Basis, Projection, Projector
from gpssm.kernels import Kernel


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
