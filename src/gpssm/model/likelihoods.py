"""Likelihoods p(y | x): the distribution of the outputs given the state.

Outputs are independent given the state, so a likelihood returns one log density for each entry.
Missing entries (NaN) are masked in `Likelihood.log_prob` and `observed`, and nowhere else in the
library. A likelihood is one class, and one line of `LIKELIHOODS` if it can be built from the
results of a linear fit: C, d and noise standard deviations.
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.core.linalg import log_normal

Scaling = Literal["standard", "scale", "none"]

KNOTS, REACH = 11, 3.0  # a curve has KNOTS knots from −REACH to REACH


def observed(y: Float[Array, "N Dy"]) -> tuple[Float[Array, "N Dy"], Bool[Array, "N Dy"]]:
    """Return the outputs with missing entries set to zero, and the mask of observed entries.

    NaN must be replaced before any arithmetic; otherwise gradients are NaN.
    """
    present = jnp.isfinite(y)
    return jnp.where(present, y, 0.0), present


class Likelihood(eqx.Module):
    """p(y | x) = Π_j p_j(y_j | x)."""

    # How outputs may be transformed beforehand: shifted and scaled, only scaled, or not at all.
    scaling: ClassVar[Scaling] = "standard"

    @abc.abstractmethod
    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return log p_j(y_nj | x_n) for outputs without missing entries."""

    @abc.abstractmethod
    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Return the mean and variance of y given x."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Draw y given x."""

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return outputs on a scale that suits a linear-Gaussian start; NaN stays NaN."""
        return y

    def log_prob(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, " N"]:
        """Return Σ_j log p_j(y_nj | x_n) over the observed entries."""
        value, present = observed(y)
        return jnp.sum(jnp.where(present, self.log_density(x, value), 0.0), -1)


class LinearPredictor(eqx.Module):
    """Base class of likelihoods that depend on the state through η = C x + d."""

    C: Float[Array, "Dy Dx"]
    d: Float[Array, " Dy"]

    @classmethod
    def build(
        cls,
        C: Float[Array, "Dy Dx"],
        d: Float[Array, " Dy"],
        std: Float[Array, " Dy"],
        **parts: Any,
    ) -> Self:
        """Build it from an output map and noise standard deviations.

        Parameters
        ----------
        C, d
            The output map.
        std
            Noise standard deviations, which likelihoods without noise ignore.
        **parts
            Other fields.
        """
        return cls(C=C, d=d, **parts)

    def predictor(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """η = C x + d."""
        return jnp.matmul(x, self.C.T) + self.d[None]


class GaussianNoise(Likelihood):
    """y ~ N(g(x), R) with R = diag(exp(2 log_std)); subclasses define the emission g."""

    log_std: Float[Array, " Dy"]

    @abc.abstractmethod
    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return g(x)."""

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return log N(y; g(x), R)."""
        return log_normal(y, self.emission(x), jnp.exp(2 * self.log_std)[None])

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Return g(x) and R."""
        mean = self.emission(x)
        return mean, jnp.broadcast_to(jnp.exp(2 * self.log_std)[None], mean.shape)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return g(x) + R^½ ε."""
        mean = self.emission(x)
        return mean + jnp.exp(self.log_std)[None] * jax.random.normal(key, mean.shape, mean.dtype)


class PredictorNoise(LinearPredictor, GaussianNoise):
    """y ~ N(h(C x + d), R); subclasses may define the curve h, which is the identity by default."""

    @classmethod
    def build(
        cls,
        C: Float[Array, "Dy Dx"],
        d: Float[Array, " Dy"],
        std: Float[Array, " Dy"],
        **parts: Any,
    ) -> Self:
        """Build it from an output map and noise standard deviations; other fields by name."""
        return super().build(C, d, std, log_std=jnp.log(std), **parts)

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return C x + d."""
        return self.predictor(x)


class Gaussian(PredictorNoise):
    """y ~ N(C x + d, R) with R = diag(exp(2 log_std))."""


class Link(eqx.Module):
    """An elementwise emission y = g(η).

    Parameters
    ----------
    forward
        g.
    inverse
        A value of η with g(η) = y.
    one_to_one
        Whether there is only one such η.
    """

    forward: Callable[[Array], Array] = eqx.field(static=True)
    inverse: Callable[[Array], Array] = eqx.field(static=True)
    one_to_one: bool = eqx.field(static=True, default=True)


def _inverse_softplus(y: Array) -> Array:
    positive = jnp.maximum(y, 1e-3)
    return positive + jnp.log(-jnp.expm1(-positive))


# abs and square lose the sign of η: their inverse is the non-negative branch.
LINKS: dict[str, Link] = {
    "abs": Link(jnp.abs, jnp.abs, one_to_one=False),
    "square": Link(jnp.square, lambda y: jnp.sqrt(jnp.maximum(y, 0.0)), one_to_one=False),
    "softplus": Link(jax.nn.softplus, _inverse_softplus),
    "exp": Link(jnp.exp, lambda y: jnp.log(jnp.maximum(y, 1e-3))),
    "tanh": Link(jnp.tanh, lambda y: jnp.arctanh(jnp.clip(y, -0.99, 0.99))),
}


class LinkedGaussian(PredictorNoise):
    """y ~ N(g(C x + d), R), g from `LINKS` or a custom `Link`. Outputs are only scaled."""

    scaling: ClassVar[Scaling] = "scale"
    link: Link

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return g(C x + d)."""
        return self.link.forward(self.predictor(x))

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return g⁻¹(y), on the branch that the link defines."""
        return self.link.inverse(y)


# Settings of the Gaussian process of a scaled output: how far h may deviate from η.
LENGTH = 1.0
AMPLITUDE = 0.7


class Wiener(PredictorNoise):
    """y ~ N(h(C x + d), R) with h(η) = η + A(η) w, w ~ N(0, I).

    Each output has one Gaussian process around the identity: A(η) = a k(η, Z) L⁻ᵀ with knots Z from
    −3 to 3, L Lᵀ = k(Z, Z) and a squared-exponential kernel, so that h(η) returns to η beyond the
    knots. The w are leaves of the model, `likelihood.weights`, which are optimised or sampled like
    the others.
    """

    num_weights: ClassVar[int] = KNOTS
    weights: Float[Array, "Dy K"]

    @classmethod
    def build(
        cls,
        C: Float[Array, "Dy Dx"],
        d: Float[Array, " Dy"],
        std: Float[Array, " Dy"],
        **parts: Any,
    ) -> Self:
        """Build it from an output map and noise standard deviations, starting at the identity."""
        weights = jnp.zeros((C.shape[0], cls.num_weights), C.dtype)
        return super().build(C, d, std, weights=weights, **parts)

    @staticmethod
    def curve(
        predictor: Float[Array, "N Dy"], weights: Float[Array, "Dy K"]
    ) -> Float[Array, "N Dy"]:
        """Return h for each output."""
        knots = np.linspace(-REACH, REACH, KNOTS)
        gram = np.exp(-0.5 * ((knots[:, None] - knots[None]) / LENGTH) ** 2)
        whitener = np.linalg.inv(np.linalg.cholesky(gram + 1e-6 * np.eye(KNOTS))).T
        coefficients = jnp.matmul(jnp.asarray(whitener, predictor.dtype), weights.T)
        gaps = predictor[:, :, None] - jnp.asarray(knots, predictor.dtype)[None, None]
        cross = jnp.exp(-0.5 * (gaps / LENGTH) ** 2)
        return predictor + AMPLITUDE * jnp.einsum("njk,kj->nj", cross, coefficients)

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return h(C x + d)."""
        return self.curve(self.predictor(x), self.weights)


def rising(values: Float[Array, "N D"], weights: Float[Array, "D K"]) -> Float[Array, "N D"]:
    """Return g_d(values_nd) for strictly increasing curves with K = KNOTS − 1 slopes each.

    The slope of a curve is exp(w_k) between the knots c_k and c_{k+1}, smoothly:

        g(η) = c₁ + exp(w₀) (η − c₁) + Σ_{k≥1} (exp(w_k) − exp(w_{k−1})) s(η − c_k),
        s(t) = δ softplus(t / δ)

    The first and the last slope continue beyond the knots, and g(η) = η if all w are zero.
    Variables are of unit scale. The curve serves as a static nonlinearity of an output (Wiener) or
    of an input (Hammerstein).
    """
    knots = jnp.asarray(np.linspace(-REACH, REACH, KNOTS), values.dtype)
    width = 0.3 * 2 * REACH / (KNOTS - 1)
    slopes = jnp.exp(weights)[None]
    ramps = width * jax.nn.softplus((values[:, :, None] - knots[1:-1][None, None]) / width)
    bends = jnp.sum(jnp.diff(slopes, axis=-1) * ramps, -1)
    return knots[1] + slopes[..., 0] * (values - knots[1]) + bends


class MonotoneWiener(Wiener):
    """y ~ N(h(C x + d), R) with an increasing h (`rising`).

    `likelihood.weights` are the logarithms of its slopes, which are zero for h(η) = η.
    """

    num_weights: ClassVar[int] = KNOTS - 1

    @staticmethod
    def curve(
        predictor: Float[Array, "N Dy"], weights: Float[Array, "Dy K"]
    ) -> Float[Array, "N Dy"]:
        """Return h for each output."""
        return rising(predictor, weights)


class FunctionGaussian(GaussianNoise):
    """y ~ N(function(x), R), with a function of one state (Dx,) that returns one output row (Dy,).

    Outputs are in the data's units. The function may be an `equinox.Module`: its arrays are then
    leaves of the model, which can be fixed, optimised or sampled.
    """

    scaling: ClassVar[Scaling] = "none"
    function: Callable[[Float[Array, " Dx"]], Float[Array, " Dy"]]

    def emission(self, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return the function of each row."""
        return jax.vmap(self.function)(x)


class StudentT(LinearPredictor, Likelihood):
    """y = C x + d + s·t_ν with s = exp(log_std) and ν = 2 + exp(log_excess).

    The degrees of freedom ν are above 2, so that the variance s² ν / (ν − 2) exists.
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
        **parts: Any,
    ) -> Self:
        """Build it from an output map, noise scales and degrees of freedom above two."""
        if degrees_of_freedom <= 2:
            raise ValueError(f"degrees_of_freedom must exceed 2, got {degrees_of_freedom}.")
        excess = jnp.full_like(d, degrees_of_freedom - 2)
        return super().build(C, d, std, log_std=jnp.log(std), log_excess=jnp.log(excess), **parts)

    @property
    def degrees_of_freedom(self) -> Float[Array, " Dy"]:
        """ν."""
        return 2 + jnp.exp(self.log_excess)

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return log t_ν((y − C x − d) / s) − log s."""
        standard = (y - self.predictor(x)) * jnp.exp(-self.log_std)[None]
        return (
            jax.scipy.stats.t.logpdf(standard, self.degrees_of_freedom[None]) - self.log_std[None]
        )

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Return C x + d and s² ν / (ν − 2)."""
        mean = self.predictor(x)
        nu = self.degrees_of_freedom
        variance = jnp.exp(2 * self.log_std) * nu / (nu - 2)
        return mean, jnp.broadcast_to(variance[None], mean.shape)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return C x + d + s·t."""
        mean = self.predictor(x)
        noise = jax.random.t(key, self.degrees_of_freedom[None], mean.shape, mean.dtype)
        return mean + jnp.exp(self.log_std)[None] * noise


class Poisson(LinearPredictor, Likelihood):
    """y ~ Poisson(exp(C x + d)). Outputs are counts and are never scaled."""

    scaling: ClassVar[Scaling] = "none"

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return y η − exp(η) − log y!."""
        predictor = self.predictor(x)
        return y * predictor - jnp.exp(predictor) - jax.scipy.special.gammaln(y + 1)

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Return the rate, which is both mean and variance."""
        rate = jnp.exp(self.predictor(x))
        return rate, rate

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Draw counts, as floats."""
        rate = jnp.exp(self.predictor(x))
        large = 1e9  # such a count equals its rate to four digits, and would overflow
        count = jax.random.poisson(key, jnp.minimum(rate, large)).astype(rate.dtype)
        # Keep a diverged state visible.
        return jnp.where(rate < large, count, rate)

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """log(y + ½)."""
        return jnp.log(y + 0.5)


class Bernoulli(LinearPredictor, Likelihood):
    """y ~ Bernoulli(sigmoid(C x + d)). Outputs are 0 or 1 and are never scaled."""

    scaling: ClassVar[Scaling] = "none"

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return y log π + (1 − y) log(1 − π),  π = sigmoid(η)."""
        predictor = self.predictor(x)
        return y * predictor - jax.nn.softplus(predictor)

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Return π and π (1 − π)."""
        chance = jax.nn.sigmoid(self.predictor(x))
        return chance, chance * (1 - chance)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Draw zeros and ones, as floats."""
        chance = jax.nn.sigmoid(self.predictor(x))
        return jax.random.bernoulli(key, chance).astype(chance.dtype)

    def pseudo_outputs(self, y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return the logit of y shrunk to [0.1, 0.9]."""
        return jax.scipy.special.logit(0.1 + 0.8 * y)


class Custom(Likelihood):
    """log p(y | x) = function(x, y), one value per output (Dy,).

    Inference needs only `function`; forecasts need the other two as well. Any of the three may be
    an `equinox.Module` with arrays to learn. Outputs remain in the units of the data. A missing
    entry is passed to `function` as zero: the result is not used, but it and its gradient must be
    finite.

    Parameters
    ----------
    function
        (x, y) → log density, for one state (Dx,) and one output row (Dy,).
    emission
        x → mean and variance (Dy,).
    sampler
        (key, x) → y (Dy,).
    """

    scaling: ClassVar[Scaling] = "none"
    function: Callable[[Float[Array, " Dx"], Float[Array, " Dy"]], Float[Array, " Dy"]]
    emission: (
        Callable[[Float[Array, " Dx"]], tuple[Float[Array, " Dy"], Float[Array, " Dy"]]] | None
    ) = None
    sampler: Callable[[PRNGKeyArray, Float[Array, " Dx"]], Float[Array, " Dy"]] | None = None

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """Return the function of each row."""
        return jax.vmap(self.function)(x, y)

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """Return the user's mean and variance for each row."""
        if self.emission is None:
            raise TypeError(
                "Predicted moments need Custom(function, emission=...): x → (mean, variance)."
            )
        return jax.vmap(self.emission)(x)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """Return the user's draw for each row."""
        if self.sampler is None:
            raise TypeError("Simulating outputs needs Custom(function, sampler=...): (key, x) → y.")
        return jax.vmap(self.sampler)(jax.random.split(key, x.shape[0]), x)


# Each can be built from the output map, offset and noise standard deviations of a linear fit.
LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    "gaussian": Gaussian.build,
    "student-t": StudentT.build,
    "poisson": Poisson.build,
    "bernoulli": Bernoulli.build,
    "wiener": Wiener.build,
    "wiener-monotone": MonotoneWiener.build,
    **{name: partial(LinkedGaussian.build, link=link) for name, link in LINKS.items()},
}


def make_likelihood(
    spec: str | Likelihood,
    C: Float[Array, "Dy Dx"],
    d: Float[Array, " Dy"],
    std: Float[Array, " Dy"],
) -> Likelihood:
    """Return a likelihood from its registry name; a likelihood is returned unchanged.

    Parameters
    ----------
    spec
        The name, or a likelihood.
    C, d, std
        Output map, offset and noise standard deviations.
    """
    if isinstance(spec, Likelihood):
        return spec
    if spec not in LIKELIHOODS:
        raise KeyError(
            f"Unknown likelihood {spec!r}. Known: {', '.join(LIKELIHOODS)}; or pass a Likelihood."
        )
    return LIKELIHOODS[spec](C, d, std)
