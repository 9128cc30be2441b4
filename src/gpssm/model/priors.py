"""Priors on the unconstrained leaves of a model."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import log_normal


class Prior(eqx.Module):
    """A density of one leaf whose entries are independent."""

    @abc.abstractmethod
    def log_prob(self, value: Float[Array, "..."]) -> Float[Array, ""]:
        """Return the normalised log density of a whole leaf."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw a leaf of this shape."""


class Normal(Prior):
    """value ~ N(mean, std²); mean and std are numbers or arrays of the leaf's shape."""

    mean: Float[Array, "..."] = eqx.field(converter=jnp.asarray)
    std: Float[Array, "..."] = eqx.field(converter=jnp.asarray)

    def log_prob(self, value: Float[Array, "..."]) -> Float[Array, ""]:
        """Return Σ log N(value; mean, std²)."""
        mean = jnp.broadcast_to(self.mean, value.shape)
        std = jnp.broadcast_to(self.std, value.shape)
        return jnp.sum(log_normal(value, mean, std**2))

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Return mean + std·ε."""
        mean = jnp.broadcast_to(self.mean, shape)
        return mean + self.std * jax.random.normal(key, shape, mean.dtype)


class InverseGamma(Prior):
    """exp(2·value) ~ InverseGamma(shape, scale): a prior on a variance, for the log standard
    deviation.

    It is conjugate to Gaussian noise, so that the variance can be drawn exactly given everything
    else.
    """

    shape: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    scale: Float[Array, ""] = eqx.field(converter=jnp.asarray)

    def log_prob(self, value: Float[Array, "..."]) -> Float[Array, ""]:
        """Return Σ a log b − log Γ(a) − 2a·value − b exp(−2·value) + log 2: inverse gamma times
        dσ²/dvalue = 2σ².
        """
        constant = self.shape * jnp.log(self.scale) - gammaln(self.shape) + jnp.log(2.0)
        return jnp.sum(constant - 2 * self.shape * value - self.scale * jnp.exp(-2 * value))

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Return ½ log(b / g) with g ~ Gamma(a, 1)."""
        gamma = jax.random.gamma(key, self.shape, shape, jnp.result_type(self.scale))
        return 0.5 * (jnp.log(self.scale) - jnp.log(gamma))


def default_prior(name: str) -> Prior:
    """Return the default prior of a leaf by the last part of its name, in scaled units.

    The prior is standard normal for unknown names.
    """
    kind = name.rsplit(".", 1)[-1]
    if kind in ("log_process_std", "log_std"):
        return InverseGamma(1.0, 0.001)
    moments = {"log_variance": (-1.0, 1.5), "log_lengthscale": (1.0, 1.0), "locations": (0.0, 2.0)}
    return Normal(*moments.get(kind, (0.0, 1.0)))
