"""`ffvd`: HMC on the collapsed free-form posterior, in whitened coordinates.

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1})
                + Σ_d log ∫ (transitions | v_d) N(v_d; 0, I) dv_d

Weights are integrated out, so only states are moved; weights are drawn exactly given the states
whenever they are needed. An iteration moves the states (`hmc.py`) in coordinates in which they are
nearly standard normal (`whitened.py`), and then the parameters without weights (`parameters.py`).
Rounds of moves given the weights follow, depending on how slowly the noise levels mix: weights are
drawn, noise levels and emission are drawn from their conditionals, noise levels and states move
together (`noise_moves.py`), and the first states can jump between modes.

The density comes from the moves of the parameters, so that `exact` can use the same sampler with
another density.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.linalg import log_normal
from gpssm.core.random import normal
from gpssm.core.runtime import on_cpu
from gpssm.data.series import Series
from gpssm.inference import hmc, noise_moves
from gpssm.inference.noise_moves import ChainState
from gpssm.inference.settings import share
from gpssm.inference.whitened import Carry, Schedule, WhitenedSampler, WhitenedSettings
from gpssm.inference.whitening import unstack
from gpssm.model.model import GPSSM
from gpssm.model.types import Info


class FFVDSampler(WhitenedSampler):
    """The iterations of `ffvd`."""

    schedule = Schedule(angle=5.0, first_step=0.1, spread=1.2, late_iterations=30)

    def step(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> tuple[Carry, Info]:
        """Move the states along a trajectory, then everything else given the states."""
        size_key, part_key, move_key, parameter_key, round_key = jax.random.split(key, 5)
        carry = self.refresh(carry, series)
        target = self.target(part_key, carry, series)
        size, num_steps = self.trajectory(size_key, carry)
        position, info = hmc.move(
            move_key, target.position, target.log_density, size, num_steps, target.free
        )
        states = target.coordinates.to_states(position)
        state = ChainState(states, carry.weights, carry.parameters, carry.walk)
        state = self.update(parameter_key, round_key, carry, state, series)
        aim = self.settings.target_acceptance
        return self.advance(carry, state, info.acceptance, aim), info

    def trajectory(
        self, key: PRNGKeyArray, carry: Carry
    ) -> tuple[Float[Array, ""], Int[Array, ""]]:
        """Return the step size and the number of steps of a trajectory.

        Lengths are spread evenly between zero and the longest, a, to avoid resonances: along a
        direction of width 1/ω, ξ keeps on average sin(ωa)/(ωa) of its value, whereas a fixed length
        a would keep cos(ωa). The lengths follow the golden ratio and are the same in all chains,
        which a GPU runs in parallel.

        The curvature varies along a path: a fifth of the moves use a quarter of the step size, so
        that a chain can leave regions where the adapted step size is too large.
        """
        adapting = self.phase(carry).adapting
        size = carry.step.size(adapting)
        angle = self.schedule.angle * (0.6180339887498949 * carry.iteration % 1.0)
        most = self.settings.most_steps(len(carry.states))
        num_steps = jnp.clip(jnp.ceil(angle / size), 1, most).astype(int)
        cautious = ~adapting & (jax.random.uniform(key) < 0.2)
        return jnp.where(cautious, 0.25, 1.0) * size, num_steps

    def update(
        self,
        parameter_key: PRNGKeyArray,
        round_key: PRNGKeyArray,
        carry: Carry,
        state: ChainState,
        series: list[Series],
    ) -> ChainState:
        """Move the parameters without weights, then make as many rounds as the noise levels need.

        A round draws the weights, moves everything that depends on them, and lets the first states
        jump.
        """
        parameters = self.moves.update_collapsed(
            parameter_key, state.parameters, unstack(state.states, series), carry.iteration, series
        )
        state = state._replace(parameters=parameters)
        # The kernel does not change.
        moves = self.moves._replace(model=self.moves.apply(parameters).prepared())
        phase = self.phase(carry)
        centre = carry.whitening.linear.centre

        def run_round(index: Array, state: ChainState) -> ChainState:
            weights_key, noise_key, jump_key = jax.random.split(
                jax.random.fold_in(round_key, index), 3
            )
            state = noise_moves.update(weights_key, noise_key, moves, state, centre, series, phase)
            model = moves.apply(state.parameters)
            states = jump_first_states(jump_key, model, state.weights, state.states, series)
            return state._replace(states=states)

        num_rounds = state.walk.num_rounds(len(state.states), phase.parted)
        return jax.lax.fori_loop(0, num_rounds, run_round, state)


@dataclass(frozen=True)
class FFVD(WhitenedSettings):
    """Settings of `ffvd`; `WhitenedSettings` and `MethodSettings` have the others.

    The length of a trajectory is at most five radians or `num_leapfrog` steps. On a CPU, the number
    of steps decreases beyond 5000 rows, to ten from 20 000 rows on.

    Parameters
    ----------
    target_acceptance
        Target of the mean acceptance probability for the step size.
    """

    sampler = FFVDSampler

    num_warmup: int = 400
    num_draws: int = 250
    thin: int = 2
    target_acceptance: float = share(0.7)

    def most_steps(self, rows: int) -> int:
        """Return the largest number of steps of a trajectory, given the number of rows."""
        return min(self.num_leapfrog, max(10, 200_000 // rows)) if on_cpu() else self.num_leapfrog


def jump_first_states(
    key: PRNGKeyArray,
    model: GPSSM,
    weights: Float[Array, "Dx M"],
    states: Float[Array, "N Dx"],
    series: list[Series],
    num_candidates: int = 50,
) -> Float[Array, "N Dx"]:
    """Return the states of all series with x₀ resampled given all other states and the weights.

    Jumps can cross between modes of x₀, unlike gradient-based moves. x₀ emits no output, so every x
    with f(x) ≈ x₁ is plausible, and there may be several. Given the weights and x₁,

        q*(x₀ | x₁, v) ∝ N(x₀; 0, I) w(x₀),
        w(x) = Π_d N(x₁,d; m_d(z) + A_d(z)·v_d, Q_d) exp(−B_d(z) / 2Q_d)

    Candidates are drawn from N(0, I), the current x₀ is added, and one of them is selected with
    probability ∝ w. This leaves the distribution invariant for any number of candidates: it is the
    first generation of conditional SMC (`inference/csmc.py`). If w is narrow in many dimensions,
    the current x₀ is usually selected again.
    """
    candidates_key, choice_key = jax.random.split(key)
    first = np.cumsum([0, *(len(rows) + 1 for rows in series[:-1])])
    count, dim = len(series), states.shape[1]
    candidates = normal(candidates_key, (count, num_candidates, dim), states.dtype)
    candidates = candidates.at[:, 0].set(states[first])
    u = jnp.stack([jnp.asarray(rows.u[0], states.dtype) for rows in series])
    step = model.transition()(candidates.reshape(-1, dim), jnp.repeat(u, num_candidates, 0))
    arrived, variance = jnp.repeat(states[first + 1], num_candidates, 0), model.process_variance
    likely = jnp.sum(log_normal(arrived, step.given(weights), variance[None]), -1)
    log_weight = likely - jnp.sum(step.residual / (2 * variance[:, None]), 0)
    log_weight = jnp.where(jnp.isfinite(log_weight), log_weight, -jnp.inf)
    # The maximum of log w plus Gumbel noise selects a candidate with probability ∝ w.
    noisy = log_weight + jax.random.gumbel(choice_key, log_weight.shape, states.dtype)
    chosen = jnp.argmax(noisy.reshape(count, num_candidates), 1)
    return states.at[first].set(candidates[np.arange(count), chosen])
