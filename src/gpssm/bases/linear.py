"""Linear features: a learned linear map, marginalised like any other weight."""

from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.bases.base import Basis, Projection, Projector
from gpssm.kernels import Kernel


class LinearFeatures(Basis):
    """A_d(z) = σ_d ∘ [x; u; 1],  B = 0: a linear map's weights, Gaussian around the model's mean function."""

    log_scale: Float[Array, "Dx Dz+1"]

    @classmethod
    def build(cls, state_dim: int, dim: int, scale: float) -> Self:
        """The same prior standard deviation for every coefficient and the offset."""
        return cls(jnp.full((state_dim, dim + 1), jnp.log(scale)))

    @property
    def size(self) -> int:
        """M = Dz + 1."""
        return self.log_scale.shape[1]

    def projector(self, kernel: Kernel) -> Projector:
        """The features alone; the kernel has no part in them."""
        scale = jnp.exp(self.log_scale)

        def project(z: Float[Array, "N Dz"]) -> Projection:
            features = jnp.concatenate([z, jnp.ones((z.shape[0], 1), z.dtype)], -1)
            gain = scale[:, None, :] * features[None]
            return Projection(gain, jnp.zeros(gain.shape[:2], gain.dtype))

        return project
