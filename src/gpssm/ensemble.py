"""The models of many draws at once, with all factorisations done: what forecasts and filters move states with.

    x' | x, v_s ~ N(m_s(z) + A_s(z) v_s, B_s(z) + Q_s),   z = [x; u],   s = 1..S

is the law of the next state under draw s. Factorising (L⁻¹ of the inducing points' covariance, say) happens once a draw
and one draw after the other, and once in all where the draws share kernel, basis and mean. Moving the states then is
matrix products only, for all draws in parallel.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.likelihoods import GaussianNoise, Likelihood
from gpssm.model import GPSSM, Step

_PARTS_OF_TRANSITION = ("kernel.", "basis.", "mean.")


class Moments(NamedTuple):
    """The next states' mean and variance, and the share of the prior variance of f that the weights leave open."""

    mean: Float[Array, "S P Dx"]
    variance: Float[Array, "S P Dx"]
    novelty: Float[Array, "S P"]


class Ensemble(eqx.Module):
    """S draws ready to move P states each. Make one with `assemble`."""

    transition: Callable[[Float[Array, "1 Dx"], Float[Array, "1 Du"]], tuple[Step, Float[Array, "Dx 1"]]]
    weights: Float[Array, "S Dx M"]
    process_variance: Float[Array, "S Dx"]
    likelihood: Likelihood  # with a leading axis S on every array
    shared: bool = eqx.field(static=True)  # whether all draws have one transition, without that axis

    def scaled(self, scale: Float[Array, " S"]) -> Self:
        """The draws with all noise variances, Q and a Gaussian R, times a number each."""
        likelihood = self.likelihood
        if isinstance(likelihood, GaussianNoise):
            louder = likelihood.log_std + 0.5 * jnp.log(scale)[:, None]
            likelihood = dataclasses.replace(likelihood, log_std=louder)
        return dataclasses.replace(self, process_variance=self.process_variance * scale[:, None], likelihood=likelihood)

    def moments(self, x: Float[Array, "S P Dx"], u: Float[Array, "S P Du"]) -> Moments:
        """m + A v, B + Q, and the mean over d of B_d / k_d(z, z)."""

        def one(transition: Callable[..., Any], weights: Array, noise: Array, x: Array, u: Array) -> Moments:
            step, prior = transition(x[None], u[None])
            residual = jnp.maximum(step.residual[:, 0], 0.0)
            novelty = jnp.mean(residual / jnp.maximum(prior[:, 0], jnp.finfo(prior.dtype).tiny))
            return Moments(step.given(weights)[0], residual + noise, novelty)

        each = eqx.filter_vmap(one, in_axes=(None, None, None, 0, 0))
        every = eqx.filter_vmap(each, in_axes=(None if self.shared else eqx.if_array(0), 0, 0, 0, 0))
        return every(self.transition, self.weights, self.process_variance, x, u)


def assemble(model: GPSSM, weights: Float[Array, "S Dx M"], leaves: dict[str, Array], input_dim: int) -> Ensemble:
    """The ensemble of S draws, given by their weights and their leaves, each with a leading axis S."""
    shared = not any(name.startswith(_PARTS_OF_TRANSITION) for name in leaves)
    x, u = (jnp.zeros((1, width), model.log_process_std.dtype) for width in (model.state_dim, input_dim))
    fixed: list[Any] = []

    def transition(current: GPSSM) -> Any:
        move = current.transition()

        def step(x: Float[Array, "1 Dx"], u: Float[Array, "1 Du"]) -> tuple[Step, Float[Array, "Dx 1"]]:
            return move(x, u), current.kernel.diagonal(jnp.concatenate([x, u], -1))

        # What has been factorised becomes data of the function, so that it can be stacked over the draws.
        return eqx.filter_closure_convert(step, x, u)

    def arrays(values: dict[str, Array]) -> Any:
        changing, rest = eqx.partition(transition(model.with_leaves(values)), eqx.is_array)
        fixed.append(rest)
        return changing

    def noises(values: dict[str, Array]) -> tuple[Array, Likelihood]:
        current = model.with_leaves(values)
        return current.process_variance, current.likelihood

    stacked = transition(model) if shared else eqx.combine(jax.lax.map(arrays, leaves), fixed[-1])
    number = weights.shape[0]
    variance, likelihood = eqx.filter_vmap(noises, axis_size=number)(leaves)
    return Ensemble(stacked, weights, variance, likelihood, shared)
