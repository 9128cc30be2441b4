"""Counts."""

from typing import ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.likelihoods.base import Likelihood, LinearPredictor

_LARGE = 1e9


class Poisson(LinearPredictor, Likelihood):
    """y ~ Poisson(exp(C x + d)). Outputs are counts and are never scaled."""

    scaling: ClassVar[Literal["standard", "scale", "none"]] = "none"

    @classmethod
    def build(cls, C: Float[Array, "Dy Dx"], d: Float[Array, " Dy"], std: Float[Array, " Dy"]) -> Self:
        """From an output map on the log scale; there is no noise to set."""
        return cls(C=C, d=d)

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """y η − exp(η) − log y!."""
        predictor = self.predictor(x)
        return y * predictor - jnp.exp(predictor) - jax.scipy.special.gammaln(y + 1)

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """The rate, twice."""
        rate = jnp.exp(self.predictor(x))
        return rate, rate

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Counts at the rate, as floats."""
        rate = jnp.exp(self.predictor(x))
        count = jax.random.poisson(key, jnp.minimum(rate, _LARGE)).astype(rate.dtype)
        # A count that large is its rate to four digits, and integers end; a diverged state stays visible.
        return jnp.where(rate < _LARGE, count, rate)

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """log(y + ½)."""
        return jnp.log(y + 0.5)
