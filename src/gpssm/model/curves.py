"""Static curves of one variable that rise everywhere: of an output (Wiener) or of a control
(Hammerstein).

The slope of the curve is exp(w_k) between the knots c_k and c_{k+1}, smoothly:

    g(η) = c₁ + exp(w₀) (η − c₁) + Σ_{k≥1} (exp(w_k) − exp(w_{k−1})) s(η − c_k),
    s(t) = δ softplus(t / δ)

The first and the last slope go on for ever, and g(η) = η where all w are zero. Variables are of
unit scale.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

KNOTS, REACH = 11, 3.0  # how many, from −REACH to REACH


def rising(values: Float[Array, "N D"], weights: Float[Array, "D K"]) -> Float[Array, "N D"]:
    """g_d(values_nd), with K = KNOTS − 1 slopes each."""
    knots = jnp.asarray(np.linspace(-REACH, REACH, KNOTS), values.dtype)
    width = 0.3 * 2 * REACH / (KNOTS - 1)
    slopes = jnp.exp(weights)[None]
    ramps = width * jax.nn.softplus((values[:, :, None] - knots[1:-1][None, None]) / width)
    bends = jnp.sum(jnp.diff(slopes, axis=-1) * ramps, -1)
    return knots[1] + slopes[..., 0] * (values - knots[1]) + bends
