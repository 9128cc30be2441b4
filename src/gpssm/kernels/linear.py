"""The linear kernel."""

from jaxtyping import Array, Float

from gpssm.kernels.base import DotProduct


class Linear(DotProduct):
    """k(z, z') = σ² (1 + Σ_i z_i z'_i / ℓ_i²): affine functions."""

    def shape(
        self, cross: Float[Array, "Dx N M"], left: Float[Array, "Dx N _"], right: Float[Array, "Dx _ M"]
    ) -> Float[Array, "Dx N M"]:
        """h = s(z, z')."""
        return cross
