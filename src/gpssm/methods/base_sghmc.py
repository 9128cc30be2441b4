"""What the two stochastic-gradient samplers share: settings, carry and one iteration.

Unlike in the other samplers everything moves at once: the latents and the leaves with the role "sample", noises
included, are one vector under SGHMC. Leaves with the role "optimise" take an Adam step up the same density, in warm-up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.methods.base import Config, ParameterMoves, Parameters, States
from gpssm.model import GPSSM
from gpssm.moves import sghmc
from gpssm.series import Series
from gpssm.types import Draw, Info, Method


@dataclass(frozen=True)
class SGHMCConfig(Config):
    """Settings of the stochastic-gradient samplers; `Config` has the others.

    :param step_size: ε, the sampler's learning rate; there is no accept step, and the bias falls with its square.
    :param decay: α, the part of the momentum that is lost in each step.
    """

    num_warmup: int = 5_000
    num_draws: int = 100
    thin: int = 50
    step_size: float = 0.01
    decay: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_size > 0:
            raise ValueError(f"step_size must be positive, got {self.step_size!r}.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay!r}.")


class Latents(NamedTuple):
    """All that SGHMC moves; the weights are None where they are integrated out."""

    states: States
    weights: Float[Array, "Dx M"] | None
    leaves: dict[str, Array]


class Carry(NamedTuple):
    """The sampler's vector with its averages, the parameters, and the number of iterations done."""

    sampler: sghmc.State
    parameters: Parameters
    iteration: Int[Array, ""]


# The log target, or an unbiased estimate of it that the key chooses.
LatentDensity = Callable[[PRNGKeyArray, GPSSM, Latents, list[Series]], Float[Array, ""]]


def build_sghmc(
    config: SGHMCConfig, model: GPSSM, states: States, density: LatentDensity, *, collapsed: bool, cost: float
) -> Method:
    """SGHMC on a density of the states, of the weights unless `collapsed`, and of the sampled leaves.

    `cost` is that of one evaluation, in evaluations over all of the data.
    """
    moves = ParameterMoves(model, config.num_warmup, config.learning_rate)
    weights = None if collapsed else jnp.zeros((model.state_dim, model.basis.size), model.log_process_std.dtype)
    _, unravel = ravel_pytree(Latents(states, weights, model.leaves("sample")))

    def init(key: PRNGKeyArray, series: list[Series]) -> Carry:
        parameters = moves.init()
        weights = None if collapsed else moves.draw_weights(key, parameters, states, series)
        position, _ = ravel_pytree(Latents(states, weights, model.leaves("sample")))
        return Carry(sghmc.start(position), parameters, jnp.zeros((), int))

    def step(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        density_key, move_key = jax.random.split(key)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            latents: Latents = unravel(position)
            now = model.with_leaves(carry.parameters.leaves | latents.leaves)
            prior = now.log_prior() if latents.leaves else 0.0
            return density(density_key, now, latents, series) + prior

        burn_in = carry.iteration < config.num_warmup
        grad_fn = jax.value_and_grad(log_density)
        sampler = sghmc.step(move_key, carry.sampler, grad_fn, config.step_size, config.decay, burn_in)
        latents: Latents = unravel(sampler.position)
        parameters = carry.parameters._replace(leaves=carry.parameters.leaves | latents.leaves)
        parameters = moves.optimise(
            parameters,
            lambda now: density(density_key, now, latents, series),
            carry.iteration,
            sum(len(one) for one in series),
        )
        return Carry(sampler, parameters, carry.iteration + 1), _info(sampler, config.step_size, cost)

    def draw(key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Draw:
        latents: Latents = unravel(carry.sampler.position)
        weights = latents.weights
        if weights is None:
            weights = moves.draw_weights(key, carry.parameters, latents.states, series)
        return Draw(latents.states, weights, carry.parameters.leaves)

    return Method(init, step, draw)


def _info(sampler: sghmc.State, step_size: float, cost: float) -> Info:
    """Every step is accepted; one that left the numbers is called divergent."""
    one = jnp.ones_like(sampler.value)
    lost = ~jnp.isfinite(sampler.value) | ~jnp.all(jnp.isfinite(sampler.position))
    return Info(sampler.value, one, lost, sghmc.energy(sampler, step_size), cost * one)
