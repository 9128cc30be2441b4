"""`ffvd-nuts`, a reference: the no-U-turn sampler in the original coordinates.

The target is log q*(x) or log q*(v, x). The sampler (Hoffman & Gelman 2014) is that of blackjax,
with a diagonal metric adapted by Stan's schedule: the step size throughout the warm-up, the metric
over doubling windows, and both restarted after each window. It is slow, but exact and independent
of the ideas behind the other samplers. With all leaves fixed it is plain NUTS; otherwise the
parameters are updated given the states after each iteration, and the weights are redrawn.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.loops import choose
from gpssm.core.text import check_installed
from gpssm.data.series import Series
from gpssm.inference.hmc import StepSize
from gpssm.inference.parameters import Parameters
from gpssm.inference.settings import choice, share, whole
from gpssm.methods.ffvd import HMCSettings
from gpssm.methods.ffvd_m import LatentSampler
from gpssm.model.types import Info


class NUTSCarry(NamedTuple):
    """The latents as one vector, the parameters, and the number of iterations.

    `step_size` and `metric`, which is diagonal, hold the states of their adaptation.
    """

    position: Float[Array, " n"]
    step_size: StepSize
    metric: Any
    parameters: Parameters
    iteration: Int[Array, ""]


class NUTSSampler(LatentSampler):
    """The iterations of `ffvd-nuts`, which import blackjax only when they run."""

    moves_leaves: ClassVar[bool] = False

    def init(self, key: PRNGKeyArray, series: list[Series]) -> NUTSCarry:
        """Return the carry at the start."""
        check_installed("the method ffvd-nuts", "blackjax", "nuts")
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation

        parameters = self.moves.init()
        position = self.pack(key, parameters, self.states, series)
        start_metric, *_ = mass_matrix_adaptation(is_diagonal_matrix=True)
        metric = start_metric(position.shape[0])
        return NUTSCarry(position, StepSize.start(0.1), metric, parameters, jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: NUTSCarry, series: list[Series]
    ) -> tuple[NUTSCarry, Info]:
        """Update the latents by a trajectory, then the parameters, with the weights redrawn."""
        from blackjax.mcmc import nuts

        move_key, parameter_key, weights_key = jax.random.split(key, 3)
        model = self.moves.apply(carry.parameters)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            states, weights, _ = self.unpack(position)
            return self.log_density(model, states, weights, series)

        sample: Any = nuts.build_kernel()
        point, outcome = sample(
            move_key,
            nuts.init(carry.position, log_density),
            log_density,
            carry.step_size.size(carry.iteration < self.settings.num_warmup),
            carry.metric.inverse_mass_matrix,
            self.settings.max_tree_depth,
        )
        step_size, metric = self.adapt(carry, point.position, outcome.acceptance_rate)
        position = point.position
        parameters = carry.parameters
        if parameters.leaves:
            states, _, _ = self.unpack(position)
            parameters = self.moves.update(
                parameter_key, parameters, states, carry.iteration, series
            )
            position = self.pack(weights_key, parameters, states, series)
        info = Info(
            point.logdensity,
            outcome.acceptance_rate,
            outcome.is_divergent,
            outcome.energy,
            # One more for the initial gradient, since the parameters have changed.
            jnp.asarray(outcome.num_integration_steps + 1, position.dtype),
        )
        return NUTSCarry(position, step_size, metric, parameters, carry.iteration + 1), info

    def adapt(
        self, carry: NUTSCarry, position: Float[Array, " n"], acceptance: Float[Array, ""]
    ) -> tuple[StepSize, Any]:
        """Return step size and metric after a move; they are constant after the warm-up."""
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
        from blackjax.adaptation.window_adaptation import build_schedule

        num_warmup = self.settings.num_warmup
        # The last row applies to all iterations after the warm-up.
        schedule = jnp.asarray([*build_schedule(num_warmup), (0, False)], int).astype(bool)
        learns_metric, ends_window = schedule[jnp.minimum(carry.iteration, num_warmup)]
        step = carry.step_size.update(
            acceptance,
            self.settings.target_acceptance,
            carry.iteration < num_warmup,
        )
        _, update_metric, end_metric = mass_matrix_adaptation(is_diagonal_matrix=True)
        metric = choose(learns_metric, update_metric(carry.metric, position), carry.metric)
        step = choose(ends_window, StepSize.start(jnp.exp(step.log_average)), step)
        return step, choose(ends_window, end_metric(metric), metric)


@dataclass(frozen=True)
class FFVDNUTS(HMCSettings):
    """Settings of `ffvd-nuts`; `MethodSettings` has the others.

    Parameters
    ----------
    target
        "collapsed" integrates the weights out; "joint" samples them together with the states.
    max_tree_depth
        A trajectory has at most 2**max_tree_depth steps.
    target_acceptance
        The target acceptance rate of the step-size adaptation.
    """

    sampler = NUTSSampler

    target: Literal["collapsed", "joint"] = choice("collapsed", ("collapsed", "joint"))
    max_tree_depth: int = whole(10)
    target_acceptance: float = share(0.8)

    @property
    def collapsed(self) -> bool:
        """Whether the weights are integrated out."""
        return self.target == "collapsed"
