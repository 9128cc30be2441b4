"""Updates of the parameters given the states, which all samplers of the free-form posterior use.

One iteration of a sampler updates the states, and then

    v | x            exact                                       (`weights_given_states`)
    Q | x, v         exact, as are R | x and (C, d) | x          (`conditionals.py`)
    θ | x            HMC on the other leaves with the role "sample", the weights integrated out
    θ ← Adam(x)      one step, on the leaves with the role "optimise": stochastic-approximation EM

All but the last apply to leaves with the role "sample". The last takes place only in the first part
of the warm-up, which the chains share (`pilot_length`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from gpssm.core.loops import descend
from gpssm.core.runtime import in_step
from gpssm.data.padding import num_moves
from gpssm.data.series import Series
from gpssm.inference import hmc
from gpssm.inference.hmc import StepSize
from gpssm.inference.settings import States, pilot_length
from gpssm.model import conditionals
from gpssm.model.likelihoods import Gaussian
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal
from gpssm.model.target import log_collapsed, weights_given_states
from gpssm.model.types import Method


class Parameters(NamedTuple):
    """The leaves that are not fixed, the `step` size of HMC, and the `memory` of other updates."""

    leaves: dict[str, Array]
    memory: Any
    step: StepSize


Density = Callable[[GPSSM], Float[Array, ""]]


class ParameterMoves(NamedTuple):
    """The parameter updates of one model with given settings."""

    model: GPSSM
    num_warmup: int
    learning_rate: float

    def init(self) -> Parameters:
        """Return the parameters of the model."""
        memory = self._optimiser().init(self.model.leaves("optimise"))
        return Parameters(self.model.free_leaves(), memory, StepSize.start(0.05))

    def apply(self, parameters: Parameters) -> GPSSM:
        """Return the model with these parameters."""
        return self.model.with_leaves(parameters.leaves)

    def model_at(self, parameters: Parameters, states: States, series: list[Series]) -> GPSSM:
        """Return the model with these parameters, for models that also depend on the states."""
        return self.apply(parameters)

    def update(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        iteration: Array,
        series: list[Series],
    ) -> Parameters:
        """Update all parameters given the states, with weights integrated out or redrawn."""
        weights_key, conjugate_key, sample_key = jax.random.split(key, 3)
        weights = self.draw_weights(weights_key, parameters, states, series)
        parameters = self.draw_conjugate(conjugate_key, parameters, states, weights, series)
        return self.update_collapsed(sample_key, parameters, states, iteration, series)

    def update_collapsed(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        iteration: Array,
        series: list[Series],
    ) -> Parameters:
        """Update the parameters without an exact conditional, with the weights integrated out, so
        that earlier draws of the weights become invalid.
        """
        density = self.density(states, series)
        parameters = self.sample(key, parameters, density, iteration)
        return self.optimise(parameters, density, iteration, num_moves(series))

    def density(self, states: States, series: list[Series]) -> Density:
        """Return the log density of the states, log q*(x), as a function of the model."""
        return lambda model: log_collapsed(model, states, series)

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """Draw v | x exactly."""
        model = self.model_at(parameters, states, series)
        return conditionals.draw_gaussian(key, weights_given_states(model, states, series))

    def draw_conjugate(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        weights: Float[Array, "Dx M"],
        series: list[Series],
    ) -> Parameters:
        """Draw (C, d) | x, R, then Q | x, v and R | x, C, d.

        Each is drawn if its leaf is sampled and has a conjugate prior.
        """
        emission_key, noise_key = jax.random.split(key)
        names = self.conjugate()
        noises = {}
        if "likelihood.C" in names:
            model = self.model_at(parameters, states, series)
            rows = conditionals.draw_gaussian(
                emission_key, conditionals.emission_given_noise(model, states, series)
            )
            emission = {"likelihood.C": rows[:, :-1], "likelihood.d": rows[:, -1]}
            parameters = parameters._replace(leaves=parameters.leaves | emission)
        model = self.model_at(parameters, states, series)
        if "log_process_std" in names:
            noises["log_process_std"] = conditionals.process_noise_given(
                model, states, weights, series
            )
        if "likelihood.log_std" in names:
            noises["likelihood.log_std"] = conditionals.noise_given_emission(model, states, series)
        drawn = conditionals.draw_noises(noise_key, noises)
        return parameters._replace(leaves=parameters.leaves | drawn)

    def sample(
        self, key: PRNGKeyArray, parameters: Parameters, density: Density, iteration: Array
    ) -> Parameters:
        """Make one HMC move of the sampled leaves without an exact conditional, standardised by the
        mean and standard deviation of the prior.
        """
        names = [name for name in self.model.leaves("sample") if name not in self.conjugate()]
        if not names:
            return parameters
        centres, scales = zip(*(_prior_moments(self.model, name) for name in names), strict=True)
        centre, unravel = ravel_pytree(dict(zip(names, centres, strict=True)))
        scale, _ = ravel_pytree(dict(zip(names, scales, strict=True)))
        current, _ = ravel_pytree({name: parameters.leaves[name] for name in names})

        def log_density(standard: Float[Array, " n"]) -> Float[Array, ""]:
            model = self.model.with_leaves(parameters.leaves | unravel(centre + scale * standard))
            return density(model) + model.log_prior()

        adapting = iteration < self.num_warmup
        standard = (current - centre) / scale
        size = parameters.step.size(adapting)
        position, info = hmc.move(key, standard, log_density, size, num_steps=5)
        step = parameters.step.update(info.acceptance, 0.8, adapting)
        leaves = parameters.leaves | unravel(centre + scale * position)
        return parameters._replace(leaves=leaves, step=step)

    def optimise(
        self, parameters: Parameters, density: Density, iteration: Array, count: ArrayLike
    ) -> Parameters:
        """Take one Adam step on log density plus log prior per row, while leaves are learned."""
        names = list(self.model.leaves("optimise"))
        if not names:
            return parameters

        def climb(parameters: Parameters) -> Parameters:
            chosen = {name: parameters.leaves[name] for name in names}

            def loss(leaves: dict[str, Array]) -> tuple[Float[Array, ""], None]:
                model = self.model.with_leaves(parameters.leaves | leaves)
                return -(density(model) + model.log_prior()) / count, None

            climbed, memory, _ = descend(self._optimiser(), loss, chosen, parameters.memory)
            return parameters._replace(leaves=parameters.leaves | climbed, memory=memory)

        learning = in_step(iteration < pilot_length(self.num_warmup))
        return jax.lax.cond(learning, climb, lambda same: same, parameters)

    def conjugate(self) -> set[str]:
        """The names of the sampled leaves that have an exact conditional."""
        kinds = {"log_process_std": InverseGamma}
        if isinstance(self.model.likelihood, Gaussian):
            kinds |= {
                "likelihood.C": Normal,
                "likelihood.d": Normal,
                "likelihood.log_std": InverseGamma,
            }
        sampled = self.model.leaves("sample")
        exact = {
            name
            for name, kind in kinds.items()
            if name in sampled and isinstance(self.model.priors[name], kind)
        }
        # C and d are only drawn jointly.
        return (
            exact
            if {"likelihood.C", "likelihood.d"} <= exact
            else exact - {"likelihood.C", "likelihood.d"}
        )

    def _optimiser(self) -> optax.GradientTransformation:
        return annealed_adam(self.learning_rate, pilot_length(self.num_warmup))


@dataclass(frozen=True)
class Sampler(Method):
    """A method with the model and the states from which it starts.

    Parameters
    ----------
    settings
        The settings of the method.
    model
        The initial model.
    states
        The initial states.
    """

    move_type: ClassVar[type[ParameterMoves]] = ParameterMoves

    settings: Any
    model: GPSSM
    states: States

    @property
    def moves(self) -> ParameterMoves:
        """The moves of the parameters."""
        settings = self.settings
        return self.move_type(self.model, settings.num_warmup, settings.rate(self.states))


def annealed_adam(learning_rate: float, num_steps: int) -> optax.GradientTransformation:
    """Return Adam with a step size that decays to zero over `num_steps` along a half cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, max(num_steps, 1)))


def _prior_moments(model: GPSSM, name: str) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the mean and standard deviation of a prior, which standardise the moves of its
    leaf.
    """
    leaf, prior = model.leaves()[name], model.priors[name]
    pair = (prior.mean, prior.std) if isinstance(prior, Normal) else (0.0, 1.0)
    mean, std = (jnp.broadcast_to(value, leaf.shape).astype(leaf.dtype) for value in pair)
    return mean, std
