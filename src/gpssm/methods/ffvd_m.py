"""The samplers of Fan, Bonilla, O'Kane & Sisson (2023): stochastic-gradient HMC.

`ffvd-m` samples states and whitened weights,

    log q*(v, x) = Σ_d log N(v_d; 0, I) + log p(x₀)
                 + Σ_t [ log p(y_t | x_{t+1})
                         + Σ_d { log N(x_{t+1,d}; m_d + A_d·v_d, Q_d) − B_d / 2Q_d } ]

where the sum over time may be estimated from a window. `ffvd-c-m` samples the states, the weights
integrated out,

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d { log N(r_d; 0, Q_d I) − ½ log det P_d
              + ½ b_dᵀ P_d⁻¹ b_d − ½ Σ_t B_d / Q_d }

and v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹) is drawn exactly.

P_d couples all transitions, so that no window gives an unbiased gradient, and there is no such
option.

Unlike in the other samplers, all variables move jointly: the latents and the leaves with the role
"sample", including noise levels, form one vector for SGHMC (`sghmc.py`). In the warm-up, leaves
with the role "optimise" take Adam steps on the same density.
"""

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.data.series import Series
from gpssm.inference import sghmc
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import MethodSettings, States, positive, real, whole
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed, log_target, pairs
from gpssm.model.types import Draw, Info, Method


class Latents(NamedTuple):
    """The variables that a sampler moves jointly; the weights are None if they are integrated
    out.
    """

    states: States
    weights: Float[Array, "Dx M"] | None
    leaves: dict[str, Array]


@dataclass(frozen=True)
class LatentSampler(Method):
    """A sampler of one vector of latents; its carry has a `position` and `parameters`.

    Parameters
    ----------
    settings
        The settings of the method.
    moves
        The moves of the parameters.
    start
        The initial states.
    collapsed
        Whether the weights are integrated out.
    moves_leaves
        Whether leaves with the role "sample" are part of the vector.
    """

    settings: Any
    moves: ParameterMoves
    start: States
    collapsed: bool
    moves_leaves: bool

    def pack(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, " n"]:
        """Return the vector of these states, a draw of the weights, and the leaves of the model."""
        weights = None
        if not self.collapsed:
            weights = self.moves.draw_weights(key, parameters, states, series)
        return ravel_pytree(Latents(states, weights, self.leaves))[0]

    def unpack(self, position: Float[Array, " n"]) -> Latents:
        """Return the latents from a vector."""
        model = self.moves.model
        weights = None
        if not self.collapsed:
            shape = (model.state_dim, model.basis.size)
            weights = jnp.zeros(shape, model.log_process_std.dtype)
        return ravel_pytree(Latents(self.start, weights, self.leaves))[1](position)

    @property
    def leaves(self) -> dict[str, Array]:
        """Return the values in the model of the leaves that are part of the vector."""
        return self.moves.model.leaves("sample") if self.moves_leaves else {}

    def draw(self, key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
        """Return the current latents; integrated-out weights are drawn."""
        states, weights, _ = self.unpack(carry.position)
        if weights is None:
            weights = self.moves.draw_weights(key, carry.parameters, states, series)
        return Draw(states, weights, carry.parameters.leaves)


@dataclass(frozen=True)
class SGHMCSettings(MethodSettings):
    """Settings of the stochastic-gradient samplers; `MethodSettings` has the others.

    Parameters
    ----------
    step_size
        ε, the learning rate of the sampler; there is no accept step, and the bias falls with ε².
    decay
        α, the fraction of the momentum that is lost in each step.
    """

    num_warmup: int = 5_000
    num_draws: int = 100
    thin: int = 50
    step_size: float = positive(0.01)
    decay: float = real(0.05, lambda value: 0 < value <= 1, "above 0 and at most 1")

    def build(self, model: GPSSM, states: States) -> "SGHMCSampler":
        """Return the sampler for a model, started at these states."""
        moves = ParameterMoves(model, self.num_warmup, self.learning_rate)
        return SGHMCSampler(self, moves, states, isinstance(self, FFVDCM), moves_leaves=True)

    @abc.abstractmethod
    def log_density(
        self, key: PRNGKeyArray, model: GPSSM, latents: Latents, series: list[Series]
    ) -> Float[Array, ""]:
        """Return the log target, or an unbiased estimate from a random window."""

    def cost(self, rows: int) -> float:
        """Return the cost of one evaluation, in evaluations over all rows."""
        return 1.0


@dataclass(frozen=True)
class FFVDM(SGHMCSettings):
    """The joint sampler of Fan et al. (2023): stochastic-gradient HMC on log q*(v, x).

    Parameters
    ----------
    window
        Number of consecutive transitions in each gradient; None for all.
    """

    window: int | None = whole(None, none="for all rows")

    def build(self, model: GPSSM, states: States) -> "SGHMCSampler":
        """Return the sampler for a model, started at these states and weights given them."""
        rows = sum(len(path) - 1 for path in states)
        if self.window is not None and self.window > rows:
            raise ValueError(
                f"window must be at most the {rows} rows of the data, got {self.window}."
            )
        return super().build(model, states)

    def log_density(
        self, key: PRNGKeyArray, model: GPSSM, latents: Latents, series: list[Series]
    ) -> Float[Array, ""]:
        """Return log q*(v, x), or its estimate from a window."""
        states, weights, _ = latents
        assert weights is not None
        rows = sum(len(experiment) for experiment in series)
        if self.window in (None, rows):
            return log_target(model, states, weights, series)
        first = jax.random.randint(key, (), 0, rows)
        return log_target_window(model, states, weights, series, first, self.window)

    def cost(self, rows: int) -> float:
        """Return the share of the rows in a window."""
        return 1.0 if self.window is None else self.window / rows


@dataclass(frozen=True)
class FFVDCM(SGHMCSettings):
    """The collapsed sampler of Fan et al. (2023): stochastic-gradient HMC on log q*(x)."""

    def log_density(
        self, key: PRNGKeyArray, model: GPSSM, latents: Latents, series: list[Series]
    ) -> Float[Array, ""]:
        """Return log q*(x)."""
        return log_collapsed(model, latents.states, series)


class SGHMCCarry(NamedTuple):
    """The vector of latents with its averages, the parameters, and the number of iterations."""

    sampler: sghmc.State
    parameters: Parameters
    iteration: Int[Array, ""]

    @property
    def position(self) -> Float[Array, " n"]:
        """The vector of latents."""
        return self.sampler.position


class SGHMCSampler(LatentSampler):
    """The iterations of `ffvd-m` and `ffvd-c-m`."""

    def init(self, key: PRNGKeyArray, series: list[Series]) -> SGHMCCarry:
        """Return the initial carry."""
        parameters = self.moves.init()
        position = self.pack(key, parameters, self.start, series)
        return SGHMCCarry(sghmc.start(position), parameters, jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: SGHMCCarry, series: list[Series]
    ) -> tuple[SGHMCCarry, Info]:
        """Take a step of SGHMC, then one of Adam.

        Every step is accepted; one that is no longer finite is reported as divergent.
        """
        settings = self.settings
        density_key, move_key = jax.random.split(key)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            latents = self.unpack(position)
            model = self.moves.model.with_leaves(carry.parameters.leaves | latents.leaves)
            prior = model.log_prior() if latents.leaves else 0.0
            return settings.log_density(density_key, model, latents, series) + prior

        burn_in = carry.iteration < settings.num_warmup
        grad_fn = jax.value_and_grad(log_density)
        sampler = sghmc.step(
            move_key, carry.sampler, grad_fn, settings.step_size, settings.decay, burn_in
        )
        latents = self.unpack(sampler.position)
        rows = sum(len(experiment) for experiment in series)
        parameters = self.moves.optimise(
            carry.parameters._replace(leaves=carry.parameters.leaves | latents.leaves),
            lambda model: settings.log_density(density_key, model, latents, series),
            carry.iteration,
            rows,
        )
        unit = jnp.ones_like(sampler.value)
        finite = jnp.isfinite(sampler.value) & jnp.all(jnp.isfinite(sampler.position))
        energy = sghmc.energy(sampler, settings.step_size)
        info = Info(sampler.value, unit, ~finite, energy, settings.cost(rows) * unit)
        return SGHMCCarry(sampler, parameters, carry.iteration + 1), info


def log_target_window(
    model: GPSSM,
    states: States,
    weights: Float[Array, "Dx M"],
    series: list[Series],
    first: Int[Array, ""],
    length: int,
) -> Float[Array, ""]:
    """Return Σ_d log N(v_d; 0, I) + log p(x₀) + N/length Σ_t [ … ] over a window of t.

    t = first, …, first + length − 1, modulo N: the N transitions of all series are concatenated,
    and windows wrap around at the end. Each transition is therefore in a uniformly drawn window
    with probability length/N, and the estimate is unbiased.

    Parameters
    ----------
    model, states, weights, series
        As in `log_target`.
    first
        Number of the first transition.
    length
        Number of transitions.
    """
    parts = pairs(states, series)
    rows = sum(len(experiment) for _, experiment in parts)
    index = (first + jnp.arange(length)) % rows

    def take(arrays: list[Any]) -> Float[Array, "length _"]:
        return jnp.concatenate([jnp.asarray(array, weights.dtype) for array in arrays])[index]

    x = take([path[:-1] for path, _ in parts])
    following = take([path[1:] for path, _ in parts])
    u = take([experiment.u for _, experiment in parts])
    y = take([experiment.y for _, experiment in parts])
    step = model.transition()(x, u)
    variance = model.process_variance
    terms = (
        jnp.sum(log_normal(following, step.given(weights), variance[None]))
        - jnp.sum(step.residual / (2 * variance[:, None]))
        + jnp.sum(model.likelihood.log_prob(following, y))
    )
    starts = sum(jnp.sum(log_normal(path[0], 0.0, 1.0)) for path, _ in parts)
    return jnp.sum(log_normal(weights, 0.0, 1.0)) + starts + rows / length * terms
