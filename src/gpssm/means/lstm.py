"""A long short-term memory cell as a mean function, for a recurrent network in state-space form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.means.base import Mean


class LSTM(Mean):
    """The state is x = [y; h; c]: the latest output, the cell's H units and its memory (Hochreiter & Schmidhuber 1997).

        [i; f; g; o] = W [y; u] + V h + b
        c' = σ(f) ∘ c + σ(i) ∘ tanh(g),   h' = σ(o) ∘ tanh(c'),   y' = C h' + d

    and m(x, u) = [y'; h'; c'].
    """

    input_weights: Float[Array, "4H Dy+Du"]
    recurrent_weights: Float[Array, "4H H"]
    bias: Float[Array, " 4H"]
    readout: Float[Array, "Dy H"]
    offset: Float[Array, " Dy"]

    @property
    def state_dim(self) -> int:
        """Dx = Dy + 2H."""
        width, units = self.readout.shape
        return width + 2 * units

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """[y'; h'; c']."""
        width, units = self.readout.shape
        y, hidden, memory = jnp.split(x, [width, width + units], -1)
        seen = jnp.concatenate([y, u], -1)
        gates = jnp.matmul(seen, self.input_weights.T) + jnp.matmul(hidden, self.recurrent_weights.T) + self.bias[None]
        enter, keep, new, show = jnp.split(gates, 4, -1)
        memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(memory)
        return jnp.concatenate([jnp.matmul(hidden, self.readout.T) + self.offset[None], hidden, memory], -1)
