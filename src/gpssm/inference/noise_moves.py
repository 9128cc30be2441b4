"""Moves of the noises together with the states, in coordinates that follow the noises.

Given the path, the noises have a law so narrow that drawing them in turn with it takes hundreds of iterations to cross
their posterior. Linearised at a path, with weights v that are drawn first, the states given the noises
θ = (log √Q, log √R) are Gaussian, N(μ(θ), Λ(θ)⁻¹) with Λ = LLᵀ (`whitening.PathLinearisation`). A random walk θ → θ'
takes the states along, so that

    η = L(θ)ᵀ (x − μ(θ))

stays what it was: x' = μ(θ') + L(θ')⁻ᵀ η. The pair is accepted with the ratio of q*(x, v, θ) p(θ) times that of the
volumes, det L(θ) / det L(θ'), which makes the move exact for any model. Where dynamics and emission are linear η and θ
are independent, and the walk is one on p(θ | y, v).
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
from gpssm.core.runtime import in_step, on_cpu
from gpssm.data.series import Series
from gpssm.inference import dual_averaging
from gpssm.inference.dual_averaging import StepSize
from gpssm.inference.parameters import ParameterMoves, Parameters
from gpssm.inference.whitening import first_order, unstack

NOISES = ("log_process_std", "likelihood.log_std")
# Moves between two draws of the weights, and rounds of both in an iteration; fewer of these, and then of the others,
# where moves times rows would be more than so many.
MOVES, ROUNDS, ROWS = 3, 4, 10_000
# What an iteration may leave of the correlation of the noises with where they were: more rounds than that takes are not
# made, once so many have been seen.
STALE, ENOUGH = 0.6, 40.0
ACCEPTANCE = 0.3  # that its step aims at
FIRST_SPREAD, LEAST_SPREAD = (
    0.2,
    0.02,
)  # of a log standard deviation in the posterior, before much is known of it
PRIOR_COUNT = 10.0  # draws that the first guess is worth


class Walk(NamedTuple):
    """The size and shape of the walk's steps: those of the noises' law, as it was seen in warm-up.

    And how far rounds go, seen since chains parted: `moved` is the sum of squared changes over so many `rounds`.
    """

    step: StepSize
    mean: Float[Array, " p"]
    square: Float[Array, "p p"]  # sum of squared deviations
    seen: Float[Array, ""]
    moved: Float[Array, " p"]
    rounds: Float[Array, ""]

    def spread(self) -> Float[Array, "p p"]:
        """A root of the noises' covariance."""
        identity = jnp.eye(self.mean.size, dtype=self.mean.dtype)
        seen = (PRIOR_COUNT * FIRST_SPREAD**2 * identity + self.square) / (PRIOR_COUNT + self.seen)
        return cholesky(seen + LEAST_SPREAD**2 * identity, jitter=0.0)

    def learn(self, noises: Float[Array, " p"]) -> "Walk":
        """With one more draw of the noises."""
        seen, gap = self.seen + 1, noises - self.mean
        mean = self.mean + gap / seen
        return self._replace(
            mean=mean, square=self.square + jnp.outer(gap, noises - mean), seen=seen
        )

    def num_rounds(self, rows: int, parted: Bool[Array, ""]) -> Int[Array, ""] | int:
        """How often weights are drawn in an iteration, and some moves made given them: once before chains part.

        A round leaves a correlation of ρ = 1 − E(θ' − θ)² / 2 var θ with where the noises were, n of them about ρⁿ. The
        noise that moves least decides. A GPU waits for each round, and for any loop whose length it has to look up.
        """
        most = min(ROUNDS, ROWS // (MOVES * rows)) if on_cpu() else 1
        if most <= 1:
            return 1
        variance = jnp.diagonal(self.square) / jnp.maximum(self.seen, 1.0) + LEAST_SPREAD**2
        share = jnp.min(self.moved / (2 * variance * jnp.maximum(self.rounds, 1.0)), initial=1.0)
        needed = jnp.ceil(jnp.log(STALE) / jnp.log1p(-jnp.clip(share, 0.01, 0.99)))
        rounds = jnp.where(self.rounds < ENOUGH, most, jnp.clip(needed, 1, most))
        return jnp.where(in_step(parted), rounds, 1).astype(int)


def start(moves: ParameterMoves) -> Walk:
    """A walk that has seen nothing yet."""
    noises, _ = ravel_pytree(_chosen(moves, moves.init()))
    square, step = (
        jnp.outer(noises, noises),
        dual_averaging.start(1.0 / jnp.sqrt(max(noises.size, 1))),
    )
    return Walk(step, noises, 0 * square, jnp.zeros(()), 0 * noises, jnp.zeros(()))


def walk(
    key: PRNGKeyArray,
    moves: ParameterMoves,
    parameters: Parameters,
    weights: Float[Array, "Dx M"],
    states: Float[Array, "N Dx"],
    state: Walk,
    centre: Float[Array, "N Dx"],
    series: list[Series],
    adapting: Bool[Array, ""],
    parted: Bool[Array, ""],
    most: int = MOVES,
) -> tuple[Parameters, Float[Array, "N Dx"], Walk]:
    """Noises and emission given the path and weights just drawn, then at most `most` moves of the walk: parameters,
    states and what was learned of the walk, which counts how far they went once chains have parted.

    Nothing walks if all noises are fixed, or if there is no joint density of states and weights.
    """
    conjugate_key, key = jax.random.split(key)
    before, joint = _chosen(moves, parameters), moves.joint
    parameters = moves.draw_conjugate(
        conjugate_key, parameters, unstack(states, series), weights, series
    )
    if not before or joint is None:
        return parameters, states, state
    noises, unravel = ravel_pytree(_chosen(moves, parameters))
    current = moves.apply(parameters)
    linear = first_order(current, weights, centre, series)

    def move(
        index: Array, carry: tuple[Array, Array, Array, Walk, Array]
    ) -> tuple[Array, Array, Array, Walk, Array]:
        """The first round stays where it is and finds η and the density there: both stand in the program once."""
        noises, states, eta, state, value = carry
        is_first = index == 0
        propose_key, accept_key = jax.random.split(jax.random.fold_in(key, index))
        direction = jnp.matmul(state.spread(), jax.random.normal(propose_key, noises.shape))
        proposed = jnp.where(is_first, noises, noises + state.step.size(adapting) * direction)
        model = current.with_leaves(unravel(proposed))
        factor = block_cholesky(linear.precision(model))
        whitened = solve_lower(factor, linear.pull(model))  # Lᵀ(μ − c) = L⁻¹ pull
        eta = jnp.where(is_first, multiply_upper(factor, states - linear.centre) - whitened, eta)
        moved = jnp.where(is_first, states, linear.centre + solve_upper(factor, whitened + eta))
        # log q*(x, v, θ) + log p(θ) − log det L, the density in (η, θ)
        there = (
            joint(model, unstack(moved, series), weights, series)
            + model.log_prior()
            - 0.5 * log_det(factor)
        )
        change = jnp.where(is_first, 0.0, there - value)
        acceptance = jnp.exp(jnp.minimum(jnp.where(jnp.isfinite(change), change, -jnp.inf), 0.0))
        accepted = jax.random.uniform(accept_key) < acceptance
        noises, states = jnp.where(accepted, proposed, noises), jnp.where(accepted, moved, states)
        learned = state._replace(
            step=dual_averaging.update(state.step, acceptance, ACCEPTANCE)
        ).learn(noises)
        state = jax.tree.map(
            lambda new, old: jnp.where(adapting & ~is_first, new, old), learned, state
        )
        return noises, states, eta, state, jnp.where(accepted, there, value)

    count = max(1, min(most, ROWS // len(centre)))
    begin = (noises, states, jnp.zeros_like(states), state, jnp.zeros((), states.dtype))
    noises, states, _, state, _ = jax.lax.fori_loop(0, count + 1, move, begin)
    counts = jnp.where(adapting & parted, 1.0, 0.0)
    moved = state.moved + counts * (noises - ravel_pytree(before)[0]) ** 2
    state = state._replace(moved=moved, rounds=state.rounds + counts)
    return parameters._replace(leaves=parameters.leaves | unravel(noises)), states, state


def _chosen(moves: ParameterMoves, parameters: Parameters) -> dict[str, Array]:
    """The noises that are sampled."""
    return {
        name: parameters.leaves[name] for name in NOISES if name in moves.model.leaves("sample")
    }
