"""`ffvd-nuts`, the reference: the no-U-turn sampler in plain coordinates, on log q*(x) or on log q*(v, x).

Hoffman & Gelman (2014), as in blackjax, with a diagonal metric adapted in Stan's schedule: the step size throughout the
warm-up, the metric over windows that double, both anew after each window. Slow, with an accept step, and free of every
idea the other samplers rest on. With all leaves fixed it is NUTS and nothing else; otherwise the parameters move given
the states after each iteration, and the weights are drawn anew with them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.text import check_installed, check_whole
from gpssm.data.series import Series
from gpssm.inference import dual_averaging
from gpssm.inference.dual_averaging import StepSize
from gpssm.inference.parameters import ParameterMoves, Parameters, rate_for
from gpssm.inference.settings import MethodSettings, States
from gpssm.methods.ffvd import FFVD
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed, log_target
from gpssm.model.types import Draw, Info, Method

Target = Literal["collapsed", "joint"]

FIRST_STEP = 0.1


@dataclass(frozen=True)
class FFVDNUTS(MethodSettings):
    """Settings of `ffvd-nuts`; `MethodSettings` has the others.

    :param target: "collapsed" integrates the weights out, "joint" samples them with the states.
    :param max_tree_depth: a trajectory has at most 2 to this power steps.
    :param target_acceptance: the acceptance rate that the step size is adapted to.
    """

    target: Target = "collapsed"
    max_tree_depth: int = 10
    target_acceptance: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in get_args(Target):
            raise ValueError(
                f"target is one of {', '.join(get_args(Target))}, got {self.target!r}."
            )
        check_whole("max_tree_depth", self.max_tree_depth, 1)
        if not 0 < self.target_acceptance < 1:
            raise ValueError(
                f"target_acceptance must be between 0 and 1, got {self.target_acceptance!r}."
            )

    def slack(self, rows: int) -> float:
        """That of `ffvd`, which it is to check: their model is the same."""
        return FFVD().slack(rows)

    def build(self, model: GPSSM, states: States) -> Method:
        """The sampler for a model, started at these states and, for the joint target, a draw of the weights."""
        # Here and not above: the other methods do without blackjax.
        check_installed("the method ffvd-nuts", "blackjax", "nuts")
        from blackjax.mcmc import nuts

        moves = ParameterMoves(model, self.num_warmup, rate_for(self.learning_rate, states))
        free, collapsed = bool(moves.init().leaves), self.target == "collapsed"
        weights = (
            None
            if collapsed
            else jnp.zeros((model.state_dim, model.basis.size), model.log_process_std.dtype)
        )
        _, unravel = ravel_pytree(NUTSLatents(states, weights))
        start_adaptation, adapt = _stan_adaptation(self.num_warmup, self.target_acceptance)
        sample: Callable[..., tuple[Any, Any]] = nuts.build_kernel()

        def with_weights(
            key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
        ) -> Array:
            drawn = None if collapsed else moves.draw_weights(key, parameters, states, series)
            return ravel_pytree(NUTSLatents(states, drawn))[0]

        def init(key: PRNGKeyArray, series: list[Series]) -> NUTSCarry:
            parameters = moves.init()
            position = with_weights(key, parameters, states, series)
            return NUTSCarry(position, start_adaptation(position), parameters, jnp.zeros((), int))

        def step(
            key: PRNGKeyArray, carry: NUTSCarry, series: list[Series]
        ) -> tuple[NUTSCarry, Info]:
            move_key, parameter_key, weights_key = jax.random.split(key, 3)
            now = moves.apply(carry.parameters)

            def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
                latents: NUTSLatents = unravel(position)
                if latents.weights is None:
                    return log_collapsed(now, latents.states, series)
                return log_target(now, latents.states, latents.weights, series)

            point, outcome = sample(
                move_key,
                nuts.init(carry.position, log_density),
                log_density,
                carry.adaptation.step.size(carry.iteration < self.num_warmup),
                carry.adaptation.metric.inverse_mass_matrix,
                self.max_tree_depth,
            )
            adaptation = adapt(
                carry.adaptation, carry.iteration, point.position, outcome.acceptance_rate
            )
            position, parameters = point.position, carry.parameters
            if free:
                paths = unravel(position).states
                parameters = moves.update(parameter_key, parameters, paths, carry.iteration, series)
                position = with_weights(weights_key, parameters, paths, series)
            info = Info(
                point.logdensity,
                outcome.acceptance_rate,
                outcome.is_divergent,
                outcome.energy,
                # One more for the gradient at the start, which the parameters have changed.
                jnp.asarray(outcome.num_integration_steps + 1, position.dtype),
            )
            return NUTSCarry(position, adaptation, parameters, carry.iteration + 1), info

        def draw(key: PRNGKeyArray, carry: NUTSCarry, series: list[Series]) -> Draw:
            latents: NUTSLatents = unravel(carry.position)
            weights = latents.weights
            if weights is None:
                weights = moves.draw_weights(key, carry.parameters, latents.states, series)
            return Draw(latents.states, weights, carry.parameters.leaves)

        return Method(init, step, draw)


class NUTSLatents(NamedTuple):
    """What NUTS moves; the weights are None where they are integrated out."""

    states: States
    weights: Float[Array, "Dx M"] | None


class Adaptation(NamedTuple):
    """The step size and the diagonal metric, with what their recursions remember."""

    step: StepSize
    metric: Any


class NUTSCarry(NamedTuple):
    """The latents as one vector, the adaptation, the parameters, and the number of iterations done."""

    position: Float[Array, " n"]
    adaptation: Adaptation
    parameters: Parameters
    iteration: Int[Array, ""]


def _stan_adaptation(
    num_warmup: int, target: float
) -> tuple[Callable[[Array], Adaptation], Callable[..., Adaptation]]:
    """`start(position)`, and `adapt(adaptation, iteration, position, acceptance)`, which ends with the warm-up."""
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.window_adaptation import build_schedule

    metric_init, metric_update, metric_final = mass_matrix_adaptation(is_diagonal_matrix=True)
    # The last row is for all that comes after the warm-up.
    schedule = jnp.asarray([*build_schedule(num_warmup), (0, False)], int).astype(bool)

    def start(position: Float[Array, " n"]) -> Adaptation:
        return Adaptation(dual_averaging.start(FIRST_STEP), metric_init(position.shape[0]))

    def adapt(
        adaptation: Adaptation,
        iteration: Int[Array, ""],
        position: Float[Array, " n"],
        acceptance: Float[Array, ""],
    ) -> Adaptation:
        learns_metric, starts_anew = schedule[jnp.minimum(iteration, num_warmup)]
        step = dual_averaging.update(adaptation.step, acceptance, target, iteration < num_warmup)
        metric = _choose(
            learns_metric, metric_update(adaptation.metric, position), adaptation.metric
        )
        step = _choose(starts_anew, dual_averaging.start(jnp.exp(step.log_average)), step)
        return Adaptation(step, _choose(starts_anew, metric_final(metric), metric))

    return start, adapt


def _choose(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
