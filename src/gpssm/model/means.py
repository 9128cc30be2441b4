"""Mean functions m(x, u) of the transition, the prior mean of the dynamics.

They range from no knowledge (`Identity`, `Zero`) and a linear fit (`LinearMap`) to known physics
(`Function`); the Gaussian process models the difference. `LSTM` is a recurrent network in
state-space form, used without a Gaussian process.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.model.bases import Basis, Factor
from gpssm.model.kernels import Kernel, in_units
from gpssm.model.likelihoods import rising
from gpssm.model.wiring import Mask


class Mean(eqx.Module):
    """m(x, u), the prior mean of the next state."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return m at N states and inputs."""


class Identity(Mean):
    """m(x, u) = x: without data the state does not change."""

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return x."""
        return x


class Zero(Mean):
    """m(x, u) = 0: without data the state returns to the origin."""

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return 0."""
        return jnp.zeros_like(x)


class LinearMap(Mean):
    """m(x, u) = A x + B u + b.

    With `LinearFeatures` in the basis, it is the prior mean of a linear map that is marginalised
    exactly; otherwise the map is fixed or optimised.
    """

    transition: Float[Array, "Dx Dx"]
    input_map: Float[Array, "Dx Du"]
    offset: Float[Array, " Dx"]

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return A x + B u + b."""
        return (
            jnp.matmul(x, self.transition.T) + jnp.matmul(u, self.input_map.T) + self.offset[None]
        )


class Curved(Mean):
    """m(x, u) = A x + B g(u) + b with an increasing curve g_j of each input (`likelihoods.rising`).

    `mean.weights` are the logarithms of its slopes, which are zero for g(u) = u.
    """

    inner: LinearMap
    weights: Float[Array, "Du K"]

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return the linear map of states and transformed inputs."""
        return self.inner(x, rising(u, self.weights))


class Function(Mean):
    """m(x, u) = function(x, u), for a function of one state (Dx,) and one input (Du,).

    The function may be an `equinox.Module`, whose arrays are leaves of the model and can be fixed,
    optimised or sampled.
    """

    function: Callable[[Float[Array, " Dx"], Float[Array, " Du"]], Float[Array, " Dx"]]

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return the function of each row."""
        return jax.vmap(self.function)(x, u)


class Shifted(Mean):
    """m(x, u) + A(z) m_v: a mean function shifted by weights of mean m_v, for a fixed kernel.

    With `bases.Informed`, it turns the current distribution of the weights into a prior of the
    usual form.

    Parameters
    ----------
    mean
        m.
    kernel, basis
        The kernel and the basis of A.
    weights
        m_v.
    factor
        The result of `Basis.factorise`, computed in advance.
    """

    mean: Mean
    kernel: Kernel
    basis: Basis
    weights: Float[Array, "Dx M"]
    factor: Factor

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return m(x, u) + A(z) m_v."""
        z = jnp.concatenate([x, u], -1)
        gain = self.basis.project(self.kernel, self.factor, z).gain
        return self.mean(x, u) + jnp.matmul(gain, self.weights[:, :, None])[:, :, 0].T


class PhysicsMean(Mean):
    """m(x, u) = step(S x, μ + σ u, θ) / S: known physics of states and inputs in the user's units,
    with parameters θ.

    θ is a dictionary of arrays, which are leaves of the model, `mean.parameters.*`, and can be
    fixed, optimised or sampled.
    """

    step: Callable[[Array, Array, dict[str, Array]], Array]
    parameters: dict[str, Array]
    state_scale: tuple[float, ...] = eqx.field(static=True)
    inputs: tuple[tuple[float, float], ...] = eqx.field(static=True, default=())

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return the step of each row."""
        states, inputs = in_units(x, u, self.state_scale, self.inputs)
        following = jax.vmap(self.step, (0, 0, None))(states, inputs, self.parameters)
        return following / jnp.asarray(self.state_scale, x.dtype)[None]


class Wired(Mean):
    """m_d(x, u) = inner_d([x; u] ∘ W_d), where W_d masks the arguments of transition d.

    For rows that are known exactly, it is E_d·[x; u; 1], with E the rows of `exact`.
    """

    inner: Mean
    exact: Float[Array, "Dx Dz+1"]
    wiring: Mask = eqx.field(static=True)

    def __call__(self, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]) -> Float[Array, "N Dx"]:
        """Return each transition from its arguments."""
        z, mask = jnp.concatenate([x, u], -1), np.asarray(self.wiring)
        masked = z[None] * mask[:, None, :]
        learned = jnp.einsum(
            "dnd->nd", jax.vmap(self.inner)(masked[..., : x.shape[1]], masked[..., x.shape[1] :])
        )
        known_rows = jnp.matmul(z, self.exact[:, :-1].T) + self.exact[:, -1][None]
        return jnp.where(np.any(mask, axis=1)[None], learned, known_rows)


class LSTM(Mean):
    """An LSTM with state x = [y; h; c]: the last output, the H units of the cell and its memory
    (Hochreiter & Schmidhuber 1997).

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
        """Return [y'; h'; c']."""
        width, units = self.readout.shape
        y, hidden, memory = jnp.split(x, [width, width + units], -1)
        inputs = jnp.concatenate([y, u], -1)
        gates = (
            jnp.matmul(inputs, self.input_weights.T)
            + jnp.matmul(hidden, self.recurrent_weights.T)
            + self.bias[None]
        )
        enter, keep, new, show = jnp.split(gates, 4, -1)
        memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(memory)
        return jnp.concatenate(
            [jnp.matmul(hidden, self.readout.T) + self.offset[None], hidden, memory], -1
        )


MEANS: dict[str, type[Mean]] = {
    "identity": Identity,
    "zero": Zero,
    "linear": LinearMap,
    "function": Function,
}
