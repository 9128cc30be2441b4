"""Joint moves of noise levels and states, in coordinates that depend on the noise levels.

The distribution of the noise levels given the path is so narrow that Gibbs updates take hundreds of
iterations to traverse their posterior. Linearised at a path c, with weights v that are drawn first,
the states given the noise levels θ = (log √Q, log √R) are Gaussian, N(μ(θ), Λ(θ)⁻¹) with Λ = LLᵀ
(`whitening.PathLinearisation`). A random walk θ → θ' moves the states as well, so that

    η = L(θ)ᵀ (x − μ(θ))

is unchanged: x' = μ(θ') + L(θ')⁻ᵀ η. The acceptance probability is the ratio of q*(x, v, θ) p(θ)
times the Jacobian det L(θ) / det L(θ'), which makes the move exact for any model. If dynamics and
emission are linear, η and θ are independent, and the walk targets p(θ | y, v).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.linalg import (
    block_cholesky,
    cholesky,
    log_det,
    multiply_upper,
    solve_lower,
    solve_upper,
)
from gpssm.core.loops import choose, iterate
from gpssm.core.runtime import in_step, on_cpu
from gpssm.data.series import Series
from gpssm.inference.hmc import StepSize
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.whitening import first_order, unstack
from gpssm.model.target import log_target
from gpssm.starts.build import NOISES

MOVES = 3  # Metropolis steps between two draws of the weights
ROWS = 10_000  # most rows times moves of an iteration
ENOUGH = 40.0  # rounds after which the squared change per round is known well enough
LEAST_SPREAD = 0.02  # least posterior spread of a log standard deviation


class Phase(NamedTuple):
    """Whether an iteration is part of the warm-up, and whether chains run separately."""

    adapting: Bool[Array, ""]
    parted: Bool[Array, ""]


class Walk(NamedTuple):
    """The scale and covariance of the random walk, learned in the warm-up.

    Parameters
    ----------
    step
        The scale of a step.
    mean, square, num_draws
        The mean of the log noise levels, the sum of squared deviations, and the number of draws.
    moved, rounds
        The sum of squared changes per round since chains run separately, and the number of rounds.
    """

    step: StepSize
    mean: Float[Array, " p"]
    square: Float[Array, "p p"]
    num_draws: Float[Array, ""]
    moved: Float[Array, " p"]
    rounds: Float[Array, ""]

    def spread(self) -> Float[Array, "p p"]:
        """Return a root of the covariance, with an initial guess of .2² that counts as ten
        draws.
        """
        identity = jnp.eye(self.mean.size, dtype=self.mean.dtype)
        total = 10.0 * 0.2**2 * identity + self.square
        covariance = total / (10.0 + self.num_draws)
        return cholesky(covariance + LEAST_SPREAD**2 * identity, jitter=0.0)

    def learn(self, noises: Float[Array, " p"]) -> "Walk":
        """Return the walk updated by one draw of the log noise levels."""
        number = self.num_draws + 1
        gap = noises - self.mean
        mean = self.mean + gap / number
        square = self.square + jnp.outer(gap, noises - mean)
        return self._replace(mean=mean, square=square, num_draws=number)

    def num_rounds(self, rows: int, parted: Bool[Array, ""]) -> Int[Array, ""] | int:
        """Return the number of rounds in an iteration: one until chains run separately.

        After a round, the autocorrelation of the noise levels is ρ = 1 − E(θ' − θ)² / 2 var θ, and
        after n rounds about ρⁿ. The number of rounds is chosen to reach .6 for the slowest noise
        level, and is at most four. On a GPU it is one, as every round and every loop of variable
        length has to be synchronised.
        """
        most = min(4, ROWS // (MOVES * rows)) if on_cpu() else 1
        if most <= 1:
            return 1
        variance = jnp.diagonal(self.square) / jnp.maximum(self.num_draws, 1.0) + LEAST_SPREAD**2
        share = jnp.min(self.moved / (2 * variance * jnp.maximum(self.rounds, 1.0)), initial=1.0)
        needed = jnp.ceil(jnp.log(0.6) / jnp.log1p(-jnp.clip(share, 0.01, 0.99)))
        rounds = jnp.where(self.rounds < ENOUGH, most, jnp.clip(needed, 1, most))
        return jnp.where(in_step(parted), rounds, 1).astype(int)


class ChainState(NamedTuple):
    """The variables of the chain; `weights` are those of the last draw."""

    states: Float[Array, "N Dx"]
    weights: Float[Array, "Dx M"]
    parameters: Parameters
    walk: Walk


class _Point(NamedTuple):
    """The current point of a walk: (θ, x) and its log density, η, and the next proposal θ'."""

    noises: Float[Array, " p"]
    states: Float[Array, "N Dx"]
    value: Float[Array, ""]
    eta: Float[Array, "N Dx"]
    walk: Walk
    proposed: Float[Array, " p"]


def start(moves: ParameterMoves) -> Walk:
    """Return a walk before its first step."""
    noises, _ = ravel_pytree(_sampled_noises(moves, moves.init()))
    step = StepSize.start(1.0 / jnp.sqrt(max(noises.size, 1)))
    zero = jnp.zeros(())
    return Walk(step, noises, 0 * jnp.outer(noises, noises), zero, 0 * noises, zero)


def update(
    weights_key: PRNGKeyArray,
    noise_key: PRNGKeyArray,
    moves: ParameterMoves,
    state: ChainState,
    centre: Float[Array, "N Dx"],
    series: list[Series],
    phase: Phase,
    num_moves: int = MOVES,
) -> ChainState:
    """Draw weights given states, noise and emission given both, then move noise and states jointly.

    Parameters
    ----------
    weights_key, noise_key
        Random keys.
    moves
        The moves of the parameters.
    state
        The variables of the chain.
    centre
        The path at which the model is linearised.
    series
        The scaled series.
    phase
        Whether the walk adapts, and whether its changes are recorded.
    num_moves
        Maximum number of moves of the walk. There are none if all noise levels are fixed.
    """
    paths = unstack(state.states, series)
    weights = moves.draw_weights(weights_key, state.parameters, paths, series)
    conjugate_key, walk_key = jax.random.split(noise_key)
    before = _sampled_noises(moves, state.parameters)
    parameters = moves.draw_conjugate(conjugate_key, state.parameters, paths, weights, series)
    state = state._replace(weights=weights, parameters=parameters)
    if not before:
        return state
    state = _walk(walk_key, moves, state, centre, series, phase.adapting, num_moves)
    after = _sampled_noises(moves, state.parameters)
    counts = jnp.where(phase.adapting & phase.parted, 1.0, 0.0)
    change = ravel_pytree(after)[0] - ravel_pytree(before)[0]
    walk = state.walk._replace(
        moved=state.walk.moved + counts * change**2, rounds=state.walk.rounds + counts
    )
    return state._replace(walk=walk)


def _walk(
    key: PRNGKeyArray,
    moves: ParameterMoves,
    state: ChainState,
    centre: Float[Array, "N Dx"],
    series: list[Series],
    adapting: Bool[Array, ""],
    num_moves: int,
) -> ChainState:
    """Return the state after some Metropolis steps of noise and states, given the weights."""
    noises, unravel = ravel_pytree(_sampled_noises(moves, state.parameters))
    current = moves.apply(state.parameters)
    linear = first_order(current, state.weights, centre, series)

    def keys(index: Array) -> PRNGKeyArray:
        return jax.random.split(jax.random.fold_in(key, index), 2)

    def evaluate(index: Array, point: _Point) -> tuple[Array, tuple[Array, Array]]:
        """Return log q*(x', v, θ') + log p(θ') − log det L, the density in (η, θ), x' and η."""
        is_first = index == 0
        model = current.with_leaves(unravel(point.proposed))
        factor = block_cholesky(linear.precision(model))
        whitened = solve_lower(factor, linear.gradient(model))  # Lᵀ(μ − c)
        eta = multiply_upper(factor, point.states - linear.centre) - whitened
        eta = jnp.where(is_first, eta, point.eta)
        moved = linear.centre + solve_upper(factor, whitened + eta)
        moved = jnp.where(is_first, point.states, moved)
        value = log_target(model, unstack(moved, series), state.weights, series)
        return value + model.log_prior() - 0.5 * log_det(factor), (moved, eta)

    def advance(
        index: Array, point: _Point, value: Array, auxiliary: tuple[Array, Array]
    ) -> _Point:
        """Accept or reject the proposal and make the next; the first proposal is the current
        point.
        """
        moved, eta = auxiliary
        is_first = index == 0
        change = jnp.where(is_first, 0.0, value - point.value)
        acceptance = jnp.exp(jnp.minimum(jnp.where(jnp.isfinite(change), change, -jnp.inf), 0.0))
        accepted = jax.random.uniform(keys(index)[1]) < acceptance
        noises, states, value = choose(
            accepted, (point.proposed, moved, value), (point.noises, point.states, point.value)
        )
        step = point.walk.step.update(acceptance, target=0.3)
        learned = point.walk._replace(step=step).learn(noises)
        walk = choose(adapting & ~is_first, learned, point.walk)
        direction = jax.random.normal(keys(index + 1)[0], noises.shape)
        proposed = noises + walk.step.size(adapting) * jnp.matmul(walk.spread(), direction)
        return _Point(noises, states, value, eta, walk, proposed)

    zero = jnp.zeros((), state.states.dtype)
    point = _Point(noises, state.states, zero, jnp.zeros_like(state.states), state.walk, noises)
    count = max(1, min(num_moves, ROWS // len(centre)))
    end = iterate(evaluate, advance, point, count).following
    leaves = state.parameters.leaves | unravel(end.noises)
    parameters = state.parameters._replace(leaves=leaves)
    return state._replace(states=end.states, parameters=parameters, walk=end.walk)


def _sampled_noises(moves: ParameterMoves, parameters: Parameters) -> dict[str, Array]:
    """Return the log noise levels that are sampled."""
    names = moves.model.leaves("sample")
    return {name: parameters.leaves[name] for name in NOISES if name in names}
