"""Random Fourier features."""

from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.bases.base import Basis, Projection, Projector
from gpssm.kernels import Kernel, Stationary


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
            raise TypeError(f"Random Fourier features need a stationary kernel, got {type(kernel).__name__}.")
        amplitude = jnp.sqrt(kernel.variance / self.frequencies.shape[0])

        def project(z: Float[Array, "N Dz"]) -> Projection:
            angle = jnp.matmul(kernel.scaled(z), self.frequencies.T)
            gain = amplitude[:, None, None] * jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)
            return Projection(gain, jnp.zeros(gain.shape[:2], gain.dtype))

        return project
