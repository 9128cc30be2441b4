"""What was learned: the transition f at any state and control, its derivatives, and where it has seen data.

Averages over draws are averages over chains too, which may settle in different coordinates of the states. Where
`Posterior.diagnostics` shows that they did, look at one chain at a time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from gpssm.alignment import aligned
from gpssm.fitted import Fitted
from gpssm.model import GPSSM
from gpssm.runtime import numerical
from gpssm.types import Draw

Inputs = tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]


class TransitionEstimate(NamedTuple):
    """f at N inputs: mean and standard deviation of what is known about it, and novelty, the mean of B / k(z, z)."""

    mean: Float[np.ndarray, "N Dx"]
    std: Float[np.ndarray, "N Dx"]
    novelty: Float[np.ndarray, " N"]


class Linearisation(NamedTuple):
    """Derivatives at N inputs, each the mean over draws and the standard deviation over draws.

    `state` is ∂f/∂x and `control` ∂f/∂u for a unit of the user's u; `output` is ∂E[y]/∂x, y in the user's units.
    """

    state: Float[np.ndarray, "N Dx Dx"]
    state_std: Float[np.ndarray, "N Dx Dx"]
    control: Float[np.ndarray, "N Dx Du"]
    control_std: Float[np.ndarray, "N Dx Du"]
    output: Float[np.ndarray, "N Dy Dx"]
    output_std: Float[np.ndarray, "N Dy Dx"]


@numerical
def function_values(
    fitted: Fitted, x: Float[ArrayLike, "N Dx"], u: Float[ArrayLike, "N Du"]
) -> Float[np.ndarray, "chain draw N Dx"]:
    """E[f(z) | v] = m(z) + A(z) v of each draw at the inputs z = [x; u], both in scaled units."""

    def values(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "N Dx"]:
        return model.transition()(*inputs).given(draw.weights)

    return fitted.each_draw(values, (jnp.asarray(x), jnp.asarray(u)))


@numerical
def transition(fitted: Fitted, x: Float[ArrayLike, "N Dx"], u: Any = None) -> TransitionEstimate:
    """E f, and Var f = Var(E[f | v]) + E[B] over draws, at states x in scaled units and controls u in the user's."""

    def values(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "3 N Dx"]:
        step = model.transition()(*inputs)
        residual = jnp.maximum(step.residual, 0.0)
        share = residual / model.kernel.diagonal(jnp.concatenate(inputs, -1))
        return jnp.stack([step.given(draw.weights), residual.T, share.T])

    mean, residual, share = np.moveaxis(fitted.each_draw(values, _inputs(fitted, x, u)), 2, 0)
    std = np.sqrt(np.var(mean, axis=(0, 1)) + np.mean(residual, axis=(0, 1)))
    return TransitionEstimate(np.mean(mean, axis=(0, 1)), std, np.mean(share, axis=(0, 1, 3)))


@numerical
def linearise(fitted: Fitted, x: Float[ArrayLike, "N Dx"], u: Any = None) -> Linearisation:
    """Derivatives of E[f | v] and of E[y | x] of each draw at states x in scaled units, controls u in the user's."""

    def steps(model: GPSSM, draw: Draw, inputs: Inputs) -> Float[Array, "N Dx Dz"]:
        move = model.transition()

        def following(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> Float[Array, " Dx"]:
            return move(x[None], u[None]).given(draw.weights)[0]

        return jnp.concatenate(jax.vmap(jax.jacfwd(following, (0, 1)))(*inputs), -1)

    def outputs(model: GPSSM, _: Draw, inputs: Inputs) -> Float[Array, "N Dy Dx"]:
        return jax.vmap(jax.jacfwd(lambda x: model.likelihood.moments(x[None])[0][0]))(inputs[0])

    inputs, scaler, width = _inputs(fitted, x, u), fitted.scaler, fitted.model.state_dim
    step = fitted.each_draw(steps, inputs)
    control = step[..., width:] / np.array(scaler.input_std)
    output = fitted.each_draw(outputs, inputs) * np.array(scaler.output_std)[:, None]
    parts = (step[..., :width], control, output)
    return Linearisation(*(statistic(part, axis=(0, 1)) for part in parts for statistic in (np.mean, np.std)))


def _inputs(fitted: Fitted, x: Float[ArrayLike, "N Dx"], u: Any) -> Inputs:
    """States and scaled controls as arrays of N rows each; a single state and its control may be one-dimensional."""
    states, names = np.atleast_2d(np.asarray(x, float)), fitted.raw[0].inputs
    if states.ndim != 2 or states.shape[1] != fitted.model.state_dim:
        raise ValueError(f"x must have shape (N, {fitted.model.state_dim}), one state a row; got {np.shape(x)}")
    if u is None:
        u = np.zeros((len(states), 0))
    controls = aligned(np.atleast_2d(u) if np.ndim(x) == 1 else u, names, "u")
    if len(controls) != len(states):
        raise ValueError(f"u must have a row for each of the {len(states)} states; got {len(controls)}")
    return jnp.asarray(states), jnp.asarray(fitted.scaler.scale_inputs(controls))
