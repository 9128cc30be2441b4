"""Binary outputs."""

from typing import ClassVar, Literal, Self

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.likelihoods.base import Likelihood, LinearPredictor


class Bernoulli(LinearPredictor, Likelihood):
    """y ~ Bernoulli(sigmoid(C x + d)). Outputs are 0 or 1 and are never scaled."""

    scaling: ClassVar[Literal["standard", "scale", "none"]] = "none"

    @classmethod
    def build(cls, C: Float[Array, "Dy Dx"], d: Float[Array, " Dy"], std: Float[Array, " Dy"]) -> Self:
        """From an output map on the logit scale; there is no noise to set."""
        return cls(C=C, d=d)

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """y log π + (1 − y) log(1 − π),  π = sigmoid(η)."""
        predictor = self.predictor(x)
        return y * predictor - jax.nn.softplus(predictor)

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """π and π (1 − π)."""
        chance = jax.nn.sigmoid(self.predictor(x))
        return chance, chance * (1 - chance)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Zeros and ones, as floats."""
        chance = jax.nn.sigmoid(self.predictor(x))
        return jax.random.bernoulli(key, chance).astype(chance.dtype)

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """The logit of y shrunk to [0.1, 0.9]."""
        return jax.scipy.special.logit(0.1 + 0.8 * y)
