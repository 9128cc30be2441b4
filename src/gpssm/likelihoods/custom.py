"""A user's own log density."""

from collections.abc import Callable
from typing import ClassVar, Literal

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.likelihoods.base import Likelihood


class Custom(Likelihood):
    """log p(y | x) = function(x, y), for one state (Dx,) and one output row (Dy,): one value an output (Dy,).

    Inference needs `function` alone. Forecasts need `emission(x) → (mean (Dy,), variance (Dy,))` and
    `sampler(key, x) → y (Dy,)` as well. Any of the three may be an `equinox.Module` with arrays to learn.
    Outputs are left in the units of the data. A missing entry reaches `function` as zero: what it gives there
    is not used, but it and its gradient must be finite.
    """

    scaling: ClassVar[Literal["standard", "scale", "none"]] = "none"
    function: Callable[[Float[Array, " Dx"], Float[Array, " Dy"]], Float[Array, " Dy"]]
    emission: Callable[[Float[Array, " Dx"]], tuple[Float[Array, " Dy"], Float[Array, " Dy"]]] | None = None
    sampler: Callable[[PRNGKeyArray, Float[Array, " Dx"]], Float[Array, " Dy"]] | None = None

    def log_density(self, x: Float[Array, "N Dx"], y: Float[Array, "N Dy"]) -> Float[Array, "N Dy"]:
        """The function at every row."""
        return jax.vmap(self.function)(x, y)

    def moments(self, x: Float[Array, "N Dx"]) -> tuple[Float[Array, "N Dy"], Float[Array, "N Dy"]]:
        """The user's mean and variance at every row."""
        if self.emission is None:
            raise TypeError("Predicted moments need Custom(function, emission=...): x → (mean, variance).")
        return jax.vmap(self.emission)(x)

    def sample(self, key: PRNGKeyArray, x: Float[Array, "N Dx"]) -> Float[Array, "N Dy"]:
        """The user's draw at every row."""
        if self.sampler is None:
            raise TypeError("Simulating outputs needs Custom(function, sampler=...): (key, x) → y.")
        return jax.vmap(self.sampler)(jax.random.split(key, x.shape[0]), x)
