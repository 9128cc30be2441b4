"""Inducing points: the sparse Gaussian process of the free-form posterior."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.bases.base import Basis, Projection, Projector
from gpssm.kernels import Kernel
from gpssm.linalg import cholesky, inverse_lower

JITTER = 1e-6


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

    def factor(self, kernel: Kernel) -> Float[Array, "Dx M M"]:
        """L_d with L_d L_dᵀ = k_d(Z, Z), jittered, in the widest float at hand."""
        wide, locations = jax.tree.map(_widen, (kernel, self.locations))
        return cholesky(wide(locations, locations), jitter=JITTER)

    def projector(self, kernel: Kernel) -> Projector:
        """Factor once; then a kernel matrix and one product."""
        whiten = inverse_lower(self.factor(kernel)).mT.astype(self.locations.dtype)

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gain = jnp.matmul(kernel(z, self.locations), whiten)
            # B = k(z, z) − |A|²
            return Projection(gain, kernel.diagonal(z) - jnp.sum(gain**2, -1))

        return project


def _widen(leaf: Array) -> Array:
    return leaf.astype(jax.dtypes.canonicalize_dtype(jnp.float64))
