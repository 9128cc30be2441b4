"""Moves of the noises together with the states, in coordinates that follow the noises.

Given the path, the noises have a law so narrow that drawing them in turn with it takes hundreds of
iterations to cross their posterior. Linearised at a path c, with weights v that are drawn first,
the states given the noises θ = (log √Q, log √R) are Gaussian, N(μ(θ), Λ(θ)⁻¹) with Λ = LLᵀ
(`whitening.PathLinearisation`). A random walk θ → θ' takes the states along, so that

    η = L(θ)ᵀ (x − μ(θ))

stays what it was: x' = μ(θ') + L(θ')⁻ᵀ η. The pair is accepted with the ratio of q*(x, v, θ) p(θ)
times that of the volumes, det L(θ) / det L(θ'), which makes the move exact for any model. Where
dynamics and emission are linear η and θ are independent, and the walk is one on p(θ | y, v).
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

MOVES = 3  # between two draws of the weights
ROWS = 10_000  # times the moves of an iteration, at most
ENOUGH = 40.0  # rounds from which on it is known how far one of them moves the noises
LEAST_SPREAD = 0.02  # of a log standard deviation in the posterior


class Phase(NamedTuple):
    """Whether an iteration is in the warm-up, and whether it comes after chains parted."""

    adapting: Bool[Array, ""]
    parted: Bool[Array, ""]


class Walk(NamedTuple):
    """The size and shape of the walk's steps: those of the noises' law, as it was in the warm-up.

    Parameters
    ----------
    step
        The size.
    mean, square, num_draws
        The mean of the noises, the sum of squared deviations from it, and the number of draws.
    moved, rounds
        The sum of squared changes in a round since chains parted, and the number of rounds.
    """

    step: StepSize
    mean: Float[Array, " p"]
    square: Float[Array, "p p"]
    num_draws: Float[Array, ""]
    moved: Float[Array, " p"]
    rounds: Float[Array, ""]

    def spread(self) -> Float[Array, "p p"]:
        """Return a root of the noises' covariance, with a first guess of .2² worth ten draws."""
        identity = jnp.eye(self.mean.size, dtype=self.mean.dtype)
        total = 10.0 * 0.2**2 * identity + self.square
        covariance = total / (10.0 + self.num_draws)
        return cholesky(covariance + LEAST_SPREAD**2 * identity, jitter=0.0)

    def learn(self, noises: Float[Array, " p"]) -> "Walk":
        """Return the walk with one more draw of the noises."""
        number = self.num_draws + 1
        gap = noises - self.mean
        mean = self.mean + gap / number
        square = self.square + jnp.outer(gap, noises - mean)
        return self._replace(mean=mean, square=square, num_draws=number)

    def num_rounds(self, rows: int, parted: Bool[Array, ""]) -> Int[Array, ""] | int:
        """Return how often weights are drawn in an iteration: once before chains part.

        A round leaves a correlation of ρ = 1 − E(θ' − θ)² / 2 var θ with where the noises were, n
        of them about ρⁿ. There are as many as leave .6 of it, and four at most. The noise that
        moves least decides. A GPU waits for each round, and for any loop whose length it has to
        look up.
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
    """All that moves in an iteration; `weights` are those of the latest draw."""

    states: Float[Array, "N Dx"]
    weights: Float[Array, "Dx M"]
    parameters: Parameters
    walk: Walk


class _Point(NamedTuple):
    """Where a walk stands: (θ, x) and its log density, η, and the θ' that is proposed next."""

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
    """Draw weights given states, noises and emission given both, then walk with noises and states.

    Parameters
    ----------
    weights_key, noise_key
        Random keys.
    moves
        The moves of the parameters.
    state
        What moves.
    centre
        The path where the model is linearised.
    series
        The scaled series.
    phase
        Whether the walk adapts, and whether its changes count.
    num_moves
        Moves of the walk at most. There are none if all noises are fixed.
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
    """Return the state after some Metropolis steps of noises and states, given the weights."""
    noises, unravel = ravel_pytree(_sampled_noises(moves, state.parameters))
    current = moves.apply(state.parameters)
    linear = first_order(current, state.weights, centre, series)

    def keys(index: Array) -> PRNGKeyArray:
        return jax.random.split(jax.random.fold_in(key, index), 2)

    def evaluate(index: Array, point: _Point) -> tuple[Array, tuple[Array, Array]]:
        """log q*(x', v, θ') + log p(θ') − log det L, the density in (η, θ), then x' and η."""
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
        """Accept the proposal or not, and make the next one; the first one is the present point."""
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
    """Return the noises that are sampled."""
    names = moves.model.leaves("sample")
    return {name: parameters.leaves[name] for name in NOISES if name in names}
