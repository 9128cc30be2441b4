"""What the samplers of the free-form posterior share: configuration, and the moves of the parameters given the states.

One iteration of a sampler is a move of the states, and then, whatever that move was,

    v | x            exact                                       (`weights_given_states`)
    Q | x, v         exact, as are R | x and (C, d) | x           (`conditionals.py`), for leaves with the role "sample"
    θ | x            HMC on the other leaves with the role "sample", the weights integrated out
    θ ← Adam(x)      one step, on the leaves with the role "optimise": stochastic-approximation EM

The last happens in the first part of the warm-up only, which the chains share (`pilot_length`): a posterior given
optimised parameters is one posterior, so all chains must have the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.model import conditionals
from gpssm.model.likelihoods import Gaussian
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal
from gpssm.model.target import log_collapsed, weights_given_states
from gpssm.model.types import Method
from gpssm.moves import dual_averaging, hmc
from gpssm.moves.dual_averaging import StepSize
from gpssm.start.build import Parts, build_model, linear_start

States = tuple[Float[Array, "_ Dx"], ...]

PARAMETER_STEPS = 5  # leapfrog steps of the parameters' own move
PARAMETER_ACCEPTANCE = 0.8


class Assumptions(NamedTuple):
    """What a method lets its posterior q(x, v) be; a table of them for all methods is in the documentation."""

    coupled: bool  # states and weights depend on each other in q
    free_states: bool  # no family is imposed on q(x)
    free_weights: bool  # none on q(v)
    words: str  # q(x, v) in a few words


@dataclass(frozen=True)
class Config:
    """Settings that all samplers share.

    :param num_warmup: iterations that adapt and are thrown away.
    :param num_draws: draws kept in each chain.
    :param thin: iterations for each draw kept.
    :param learning_rate: Adam's first step size for leaves to be optimised; it falls to zero along the shared part of
        the warm-up.
    """

    learns: ClassVar[bool] = True  # whether the model has parameters to learn while it samples
    compares: ClassVar[bool] = False  # whether start="auto" compares starts
    assumptions: ClassVar[Assumptions | None] = Assumptions(True, True, True, "draws from q*(x, v)")

    num_warmup: int = 500
    num_draws: int = 500
    thin: int = 1
    learning_rate: float = 0.03

    def __post_init__(self) -> None:
        for name, least in (("num_warmup", 0), ("num_draws", 1), ("thin", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate!r}.")

    def prepare(self, series: list[Series], parts: Parts, key: PRNGKeyArray) -> tuple[GPSSM, list[np.ndarray]]:
        """The model of scaled series, and the states of each to start from: those of a linear fit."""
        start = linear_start(series, parts.state_dim, parts.likelihood)
        return build_model(series, *parts, key=key, start=start), start.states

    def adopt(self, model: GPSSM) -> GPSSM:
        """The model with its leaves' roles as this method plays them."""
        return model

    def num_shared(self, model: GPSSM) -> int:
        """The iterations of the warm-up that chains share: none if there is nothing to be optimised."""
        return pilot_length(self.num_warmup) if model.leaves("optimise") else 0

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, started at these states."""
        raise TypeError(f"{type(self).__name__} is not a method: take one from gpssm.methods.METHODS.")


def pilot_length(num_warmup: int) -> int:
    """The iterations of the warm-up in which leaves are optimised, once for all chains."""
    return 2 * num_warmup // 3


class Parameters(NamedTuple):
    """The leaves that are not fixed, and what their moves remember: HMC its `step`, any other move its `memory`."""

    leaves: dict[str, Array]
    memory: Any
    step: StepSize


Density = Callable[[GPSSM], Float[Array, ""]]


class ParameterMoves(NamedTuple):
    """The moves of the parameters of one model under one configuration."""

    model: GPSSM
    num_warmup: int
    learning_rate: float

    def init(self) -> Parameters:
        """The model's own values to start from."""
        free = self.model.free_leaves()
        return Parameters(free, self._optimiser().init(self.model.leaves("optimise")), dual_averaging.start(0.05))

    def apply(self, parameters: Parameters) -> GPSSM:
        """The model at these parameters."""
        return self.model.with_leaves(parameters.leaves)

    def update(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, iteration: Array, series: list[Series]
    ) -> Parameters:
        """All moves of the parameters given the states, the weights integrated out or drawn afresh."""
        weights_key, conjugate_key, sample_key = jax.random.split(key, 3)
        weights = self.draw_weights(weights_key, parameters, states, series)
        parameters = self.draw_conjugate(conjugate_key, parameters, states, weights, series)
        density = self.density(states, series)
        parameters = self.sample(sample_key, parameters, density, iteration)
        return self.optimise(parameters, density, iteration, sum(len(one) for one in series))

    def density(self, states: States, series: list[Series]) -> Density:
        """The log density of the states as a function of the model, the weights integrated out: log q*(x)."""
        return lambda model: log_collapsed(model, states, series)

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """v | x, exact."""
        return conditionals.draw_gaussian(key, weights_given_states(self.apply(parameters), states, series))

    def draw_conjugate(
        self,
        key: PRNGKeyArray,
        parameters: Parameters,
        states: States,
        weights: Float[Array, "Dx M"],
        series: list[Series],
    ) -> Parameters:
        """Q | x, v;  (C, d) | x, R;  R | x, C, d, each if its leaf is to be sampled and its prior is conjugate."""
        keys, names = jax.random.split(key, 3), self.conjugate()
        leaves = dict(parameters.leaves)
        if "log_process_std" in names:
            noise = conditionals.process_noise_given(self.model.with_leaves(leaves), states, weights, series)
            leaves["log_process_std"] = conditionals.draw_noise(keys[0], noise)
        if "likelihood.C" in names:
            emission = conditionals.emission_given_noise(self.model.with_leaves(leaves), states, series)
            rows = conditionals.draw_gaussian(keys[1], emission)
            leaves |= {"likelihood.C": rows[:, :-1], "likelihood.d": rows[:, -1]}
        if "likelihood.log_std" in names:
            noise = conditionals.noise_given_emission(self.model.with_leaves(leaves), states, series)
            leaves["likelihood.log_std"] = conditionals.draw_noise(keys[2], noise)
        return parameters._replace(leaves=leaves)

    def sample(self, key: PRNGKeyArray, parameters: Parameters, density: Density, iteration: Array) -> Parameters:
        """One HMC move of the sampled leaves that have no exact conditional, from their prior's mean, in its spread."""
        names = [name for name in self.model.leaves("sample") if name not in self.conjugate()]
        if not names:
            return parameters
        centre, unravel = ravel_pytree({name: _location(self.model, name)[0] for name in names})
        scale, _ = ravel_pytree({name: _location(self.model, name)[1] for name in names})
        now, _ = ravel_pytree({name: parameters.leaves[name] for name in names})

        def log_density(standard: Float[Array, " n"]) -> Float[Array, ""]:
            model = self.model.with_leaves(parameters.leaves | unravel(centre + scale * standard))
            return density(model) + model.log_prior()

        point = hmc.evaluate(log_density, (now - centre) / scale)
        step = jnp.exp(jnp.where(iteration < self.num_warmup, parameters.step.log_step, parameters.step.log_average))
        point, outcome = hmc.move(key, point, log_density, step, PARAMETER_STEPS)
        adapted = dual_averaging.update(parameters.step, outcome.acceptance, PARAMETER_ACCEPTANCE)
        adapting = iteration < self.num_warmup
        return Parameters(
            parameters.leaves | unravel(centre + scale * point.position),
            parameters.memory,
            jax.tree.map(lambda new, old: jnp.where(adapting, new, old), adapted, parameters.step),
        )

    def optimise(self, parameters: Parameters, density: Density, iteration: Array, count: int) -> Parameters:
        """One Adam step, while leaves are learned, up the density and the prior, divided by the number of rows."""
        names = list(self.model.leaves("optimise"))
        if not names:
            return parameters

        def climb(parameters: Parameters) -> Parameters:
            chosen = {name: parameters.leaves[name] for name in names}

            def loss(leaves: dict[str, Array]) -> Float[Array, ""]:
                model = self.model.with_leaves(parameters.leaves | leaves)
                return -(density(model) + model.log_prior()) / count

            updates, memory = self._optimiser().update(jax.grad(loss)(chosen), parameters.memory)
            climbed = jax.tree.map(jnp.add, chosen, updates)
            return parameters._replace(leaves=parameters.leaves | climbed, memory=memory)

        return jax.lax.cond(iteration < pilot_length(self.num_warmup), climb, lambda same: same, parameters)

    def conjugate(self) -> set[str]:
        """The sampled leaves that have an exact conditional."""
        kinds = {"log_process_std": InverseGamma}
        if isinstance(self.model.likelihood, Gaussian):
            kinds |= {"likelihood.C": Normal, "likelihood.d": Normal, "likelihood.log_std": InverseGamma}
        sampled = self.model.leaves("sample")
        exact = {name for name, kind in kinds.items() if name in sampled and isinstance(self.model.priors[name], kind)}
        # C and d are drawn together or not at all.
        return exact if {"likelihood.C", "likelihood.d"} <= exact else exact - {"likelihood.C", "likelihood.d"}

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(optax.cosine_decay_schedule(self.learning_rate, max(pilot_length(self.num_warmup), 1)))


def _location(model: GPSSM, name: str) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The prior's mean and standard deviation, which centre and scale the leaf's moves."""
    leaf, prior = model.leaves()[name], model.priors[name]
    pair = (prior.mean, prior.std) if isinstance(prior, Normal) else (0.0, 1.0)
    mean, std = (jnp.broadcast_to(value, leaf.shape).astype(leaf.dtype) for value in pair)
    return mean, std
