"""Likelihoods p(y | x): how a state shows itself in the outputs.

Outputs are independent given the state, so a likelihood gives one log density for each entry. Missing entries
(NaN) are masked in `Likelihood.log_prob` and `observed`, and nowhere else in the library.
"""

import abc
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.linalg import log_normal


class Observed(NamedTuple):
    """Outputs with the missing entries set to zero, and where they were there."""

    y: Float[Array, "N Dy"]
    present: Bool[Array, "N Dy"]


def observed(y: Float[Array, "N Dy"]) -> Observed:
    """Safe values and a mask: NaN must be replaced *before* any arithmetic, or gradients are NaN."""
    present = jnp.isfinite(y)
    return Observed(jnp.where(present, y, 0.0), present)


class Likelihood(eqx.Module):
    """p(y | x) = Π_j p_j(y_j | x)."""

    # How outputs may be scaled before this likelihood sees them: shifted and scaled, only scaled, or left.
    scaling: ClassVar[Literal["standard", "scale", "none"]] = "standard"

    @abc.abstractmethod
    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """log p_j(y_nj | x_n) for outputs that are all there."""

    @abc.abstractmethod
    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Mean and variance of y given x."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Draw y given x."""

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Outputs on a scale where a linear-Gaussian model makes sense, to start from; NaN stays NaN."""
        return y

    def log_prob(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, " N"]:
        """Σ_j log p_j(y_nj | x_n) over the entries that were observed."""
        value, present = observed(y)
        return jnp.sum(jnp.where(present, self.log_density(x, value), 0.0), -1)


class LinearPredictor(eqx.Module):
    """What likelihoods share that see the state through η = C x + d."""

    C: Float[Array, "Dy Dx"]
    d: Float[Array, " Dy"]

    def predictor(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """η = C x + d."""
        return jnp.matmul(x, self.C.T) + self.d[None]


class GaussianNoise(Likelihood):
    """y ~ N(g(x), R) with R = diag(exp(2 log_std)); the emission g is what members define."""

    log_std: Float[Array, " Dy"]

    @abc.abstractmethod
    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """g(x)."""

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """log N(y; g(x), R)."""
        return log_normal(y, self.emission(x), jnp.exp(2 * self.log_std)[None])

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """g(x) and R."""
        mean = self.emission(x)
        return mean, jnp.broadcast_to(jnp.exp(2 * self.log_std)[None], mean.shape)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """g(x) + R^½ ε."""
        mean = self.emission(x)
        return mean + jnp.exp(self.log_std)[None] * jax.random.normal(key, mean.shape, mean.dtype)
