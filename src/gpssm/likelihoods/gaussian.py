"""Linear-Gaussian emission."""

from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.likelihoods.base import GaussianNoise, LinearPredictor


class Gaussian(LinearPredictor, GaussianNoise):
    """y ~ N(C x + d, R) with R = diag(exp(2 log_std))."""

    @classmethod
    def build(cls, C: Float[Array, "Dy Dx"], d: Float[Array, " Dy"], std: Float[Array, " Dy"]) -> Self:
        """From an output map and noise standard deviations."""
        return cls(C=C, d=d, log_std=jnp.log(std))

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """C x + d."""
        return self.predictor(x)
