"""The paper's samplers (Fan, Bonilla, O'Kane, Sisson 2023): stochastic-gradient HMC, jointly and collapsed.

`ffvd-m` moves states and whitened weights,

    log q*(v, x) = Σ_d log N(v_d; 0, I) + log p(x₀)
                 + Σ_t [ log p(y_t | x_{t+1}) + Σ_d { log N(x_{t+1,d}; m_d + A_d·v_d, Q_d) − B_d / 2Q_d } ]

where the sum over time may be estimated from a window of it. `ffvd-c-m` moves the states, the weights integrated out,

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d { log N(r_d; 0, Q_d I) − ½ log det P_d
              + ½ b_dᵀ P_d⁻¹ b_d − ½ Σ_t B_d / Q_d },    v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹) drawn exactly.

P_d couples all transitions, so that no window of time gives an unbiased gradient, and none is offered.

Unlike in the other samplers everything moves at once: the latents and the leaves with the role "sample", noises
included, are one vector under SGHMC (`sghmc.py`). Leaves with the role "optimise" take an Adam step up the same
density, in warm-up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.inference import sghmc
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.settings import MethodSettings, States
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed, log_target, pairs
from gpssm.model.types import Draw, Info, Method


@dataclass(frozen=True)
class SGHMCSettings(MethodSettings):
    """Settings of the stochastic-gradient samplers; `MethodSettings` has the others.

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


@dataclass(frozen=True)
class FFVDM(SGHMCSettings):
    """The paper's joint sampler (Fan et al. 2023): stochastic-gradient HMC on log q*(v, x).

    :param window: transitions in each gradient, next to each other in time; None takes all of them.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("window", self.window, 1, none="for all rows")

    def build(self, model: GPSSM, states: States) -> Method:
        """The sampler for a model, started at these states and a draw of the weights given them."""
        rows = sum(len(path) - 1 for path in states)
        length = rows if self.window is None else self.window
        if length > rows:
            raise ValueError(f"window must be at most the {rows} rows of the data, got {length}.")

        def density(
            key: PRNGKeyArray, model: GPSSM, latents: SGHMCLatents, series: list[Series]
        ) -> Float[Array, ""]:
            assert latents.weights is not None
            if length == rows:
                return log_target(model, latents.states, latents.weights, series)
            first = jax.random.randint(key, (), 0, rows)
            return log_target_window(model, latents.states, latents.weights, series, first, length)

        return build_sghmc(self, model, states, density, collapsed=False, cost=length / rows)


@dataclass(frozen=True)
class FFVDCM(SGHMCSettings):
    """The paper's collapsed sampler (Fan et al. 2023): stochastic-gradient HMC on log q*(x)."""

    def build(self, model: GPSSM, states: States) -> Method:
        """The sampler for a model, started at these states."""

        def density(
            key: PRNGKeyArray, model: GPSSM, latents: SGHMCLatents, series: list[Series]
        ) -> Float[Array, ""]:
            return log_collapsed(model, latents.states, series)

        return build_sghmc(self, model, states, density, collapsed=True, cost=1.0)


class SGHMCLatents(NamedTuple):
    """All that SGHMC moves; the weights are None where they are integrated out."""

    states: States
    weights: Float[Array, "Dx M"] | None
    leaves: dict[str, Array]


class SGHMCCarry(NamedTuple):
    """The sampler's vector with its averages, the parameters, and the number of iterations done."""

    sampler: sghmc.State
    parameters: Parameters
    iteration: Int[Array, ""]


# The log target, or an unbiased estimate of it that the key chooses.
LatentDensity = Callable[[PRNGKeyArray, GPSSM, SGHMCLatents, list[Series]], Float[Array, ""]]


def build_sghmc(
    settings: SGHMCSettings,
    model: GPSSM,
    states: States,
    density: LatentDensity,
    *,
    collapsed: bool,
    cost: float,
) -> Method:
    """SGHMC on a density of the states, of the weights unless `collapsed`, and of the sampled leaves.

    `cost` is that of one evaluation, in evaluations over all of the data.
    """
    moves = ParameterMoves(model, settings.num_warmup, settings.learning_rate)
    weights = (
        None
        if collapsed
        else jnp.zeros((model.state_dim, model.basis.size), model.log_process_std.dtype)
    )
    _, unravel = ravel_pytree(SGHMCLatents(states, weights, model.leaves("sample")))

    def init(key: PRNGKeyArray, series: list[Series]) -> SGHMCCarry:
        parameters = moves.init()
        weights = None if collapsed else moves.draw_weights(key, parameters, states, series)
        position, _ = ravel_pytree(SGHMCLatents(states, weights, model.leaves("sample")))
        return SGHMCCarry(sghmc.start(position), parameters, jnp.zeros((), int))

    def step(key: PRNGKeyArray, carry: SGHMCCarry, series: list[Series]) -> tuple[SGHMCCarry, Info]:
        density_key, move_key = jax.random.split(key)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            latents: SGHMCLatents = unravel(position)
            now = model.with_leaves(carry.parameters.leaves | latents.leaves)
            prior = now.log_prior() if latents.leaves else 0.0
            return density(density_key, now, latents, series) + prior

        burn_in = carry.iteration < settings.num_warmup
        grad_fn = jax.value_and_grad(log_density)
        sampler = sghmc.step(
            move_key, carry.sampler, grad_fn, settings.step_size, settings.decay, burn_in
        )
        latents: SGHMCLatents = unravel(sampler.position)
        parameters = carry.parameters._replace(leaves=carry.parameters.leaves | latents.leaves)
        parameters = moves.optimise(
            parameters,
            lambda now: density(density_key, now, latents, series),
            carry.iteration,
            sum(len(one) for one in series),
        )
        one = jnp.ones_like(sampler.value)
        lost = ~jnp.isfinite(sampler.value) | ~jnp.all(jnp.isfinite(sampler.position))
        # Every step is accepted; one that left the numbers is called divergent.
        info = Info(sampler.value, one, lost, sghmc.energy(sampler, settings.step_size), cost * one)
        return SGHMCCarry(sampler, parameters, carry.iteration + 1), info

    def draw(key: PRNGKeyArray, carry: SGHMCCarry, series: list[Series]) -> Draw:
        latents: SGHMCLatents = unravel(carry.sampler.position)
        weights = latents.weights
        if weights is None:
            weights = moves.draw_weights(key, carry.parameters, latents.states, series)
        return Draw(latents.states, weights, carry.parameters.leaves)

    return Method(init, step, draw)


def log_target_window(
    model: GPSSM,
    states: States,
    weights: Float[Array, "Dx M"],
    series: list[Series],
    first: Int[Array, ""],
    length: int,
) -> Float[Array, ""]:
    """Σ_d log N(v_d; 0, I) + log p(x₀) + N/length Σ_t [ … ] over t = first, …, first + length − 1, modulo N.

    The N transitions of all series stand in one row, and a window that leaves its end goes on at its beginning. So each
    transition is in a uniformly drawn window with the same probability, length/N: the estimate is unbiased.
    """
    parts = pairs(states, series)
    rows = sum(len(one) for _, one in parts)
    chosen = (first + jnp.arange(length)) % rows

    def take(arrays: list[Any]) -> Float[Array, "length _"]:
        return jnp.concatenate([jnp.asarray(array, weights.dtype) for array in arrays])[chosen]

    x, following = take([path[:-1] for path, _ in parts]), take([path[1:] for path, _ in parts])
    u, y = take([one.u for _, one in parts]), take([one.y for _, one in parts])
    step, variance = model.transition()(x, u), model.process_variance
    terms = (
        jnp.sum(log_normal(following, step.given(weights), variance[None]))
        - jnp.sum(step.residual / (2 * variance[:, None]))
        + jnp.sum(model.likelihood.log_prob(following, y))
    )
    starts = sum(jnp.sum(log_normal(path[0], 0.0, 1.0)) for path, _ in parts)
    return jnp.sum(log_normal(weights, 0.0, 1.0)) + starts + rows / length * terms
