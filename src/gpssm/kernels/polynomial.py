"""The polynomial kernel."""

import equinox as eqx
from jaxtyping import Array, Float

from gpssm.kernels.base import DotProduct


class Polynomial(DotProduct):
    """k(z, z') = σ² (1 + Σ_i z_i z'_i / ℓ_i²)^p: polynomials of degree p, two unless told."""

    degree: int = eqx.field(static=True, default=2)

    def shape(
        self, cross: Float[Array, "Dx N M"], left: Float[Array, "Dx N _"], right: Float[Array, "Dx _ M"]
    ) -> Float[Array, "Dx N M"]:
        """h = s(z, z')^p."""
        return cross**self.degree
