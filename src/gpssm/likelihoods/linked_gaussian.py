"""Gaussian noise around an elementwise nonlinear emission of C x + d."""

from collections.abc import Callable
from typing import ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.likelihoods.base import GaussianNoise, LinearPredictor


class Link(eqx.Module):
    """An elementwise emission y = g(η), a value of η that y could have come from, and whether it is the only one."""

    forward: Callable[[Array], Array] = eqx.field(static=True)
    inverse: Callable[[Array], Array] = eqx.field(static=True)
    one_to_one: bool = eqx.field(static=True, default=True)


def _inverse_square(y: Array) -> Array:
    return jnp.sqrt(jnp.maximum(y, 0.0))


def _inverse_softplus(y: Array) -> Array:
    positive = jnp.maximum(y, 1e-3)
    return positive + jnp.log(-jnp.expm1(-positive))


def _inverse_exp(y: Array) -> Array:
    return jnp.log(jnp.maximum(y, 1e-3))


def _inverse_tanh(y: Array) -> Array:
    return jnp.arctanh(jnp.clip(y, -0.99, 0.99))


# abs and square lose the sign of η: their inverse is the non-negative branch.
LINKS: dict[str, Link] = {
    "abs": Link(jnp.abs, jnp.abs, one_to_one=False),
    "square": Link(jnp.square, _inverse_square, one_to_one=False),
    "softplus": Link(jax.nn.softplus, _inverse_softplus),
    "exp": Link(jnp.exp, _inverse_exp),
    "tanh": Link(jnp.tanh, _inverse_tanh),
}


class LinkedGaussian(LinearPredictor, GaussianNoise):
    """y ~ N(g(C x + d), R) with g from `LINKS` or the user's own `Link`. Outputs are scaled, not shifted."""

    scaling: ClassVar[Literal["standard", "scale", "none"]] = "scale"
    link: Link

    @classmethod
    def build(cls, C: Float[Array, "Dy Dx"], d: Float[Array, " Dy"], std: Float[Array, " Dy"], link: Link) -> Self:
        """From an output map, noise standard deviations and a link."""
        return cls(C=C, d=d, log_std=jnp.log(std), link=link)

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """g(C x + d)."""
        return self.link.forward(self.predictor(x))

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """g⁻¹(y), on the branch that the link names."""
        return self.link.inverse(y)
