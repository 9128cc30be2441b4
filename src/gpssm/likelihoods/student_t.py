"""Heavy-tailed noise: outputs with outliers."""

from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.likelihoods.base import Likelihood, LinearPredictor


class StudentT(LinearPredictor, Likelihood):
    """y = C x + d + s·t_ν with scale s = exp(log_std) and ν = 2 + exp(log_excess) degrees of freedom.

    ν > 2, so that the variance s² ν / (ν − 2) exists.
    """

    log_std: Float[Array, " Dy"]
    log_excess: Float[Array, " Dy"]

    @classmethod
    def build(
        cls,
        C: Float[Array, "Dy Dx"],
        d: Float[Array, " Dy"],
        std: Float[Array, " Dy"],
        degrees_of_freedom: float = 4.0,
    ) -> Self:
        """From an output map, noise scales and degrees of freedom (above two)."""
        if degrees_of_freedom <= 2:
            raise ValueError(f"The variance needs degrees of freedom above 2, got {degrees_of_freedom}.")
        excess = jnp.full_like(d, degrees_of_freedom - 2)
        return cls(C=C, d=d, log_std=jnp.log(std), log_excess=jnp.log(excess))

    @property
    def degrees_of_freedom(self) -> Float[Array, " Dy"]:
        """ν."""
        return 2 + jnp.exp(self.log_excess)

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """log t_ν((y − C x − d) / s) − log s."""
        standard = (y - self.predictor(x)) * jnp.exp(-self.log_std)[None]
        return jax.scipy.stats.t.logpdf(standard, self.degrees_of_freedom[None]) - self.log_std[None]

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """C x + d and s² ν / (ν − 2)."""
        mean, nu = self.predictor(x), self.degrees_of_freedom
        return mean, jnp.broadcast_to((jnp.exp(2 * self.log_std) * nu / (nu - 2))[None], mean.shape)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """C x + d + s·t."""
        mean = self.predictor(x)
        noise = jax.random.t(key, self.degrees_of_freedom[None], mean.shape, mean.dtype)
        return mean + jnp.exp(self.log_std)[None] * noise
