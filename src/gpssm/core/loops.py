"""Loops that contain their most expensive part once, and choices between trees of arrays.

A method that needs f before its first step and after every step would call it in two places, and
the compiler would work twice on what is most of the program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int


class Iterated(NamedTuple):
    """The end of `iterate`.

    Parameters
    ----------
    state
        s_n.
    following
        s_{n+1}, for which no value was computed.
    first, last
        The values v_0 and v_n.
    auxiliary
        a_n.
    """

    state: Any
    following: Any
    first: Array
    last: Array
    auxiliary: Any


def iterate(
    evaluate: Callable[[Int[Array, ""], Any], tuple[Array, Any]],
    advance: Callable[[Int[Array, ""], Any, Array, Any], Any],
    state: Any,
    num_steps: Int[Array, ""] | int,
) -> Iterated:
    """Alternate evaluations and steps, with `evaluate` compiled once:

        (v_i, a_i) = evaluate(i, s_i),   s_{i+1} = advance(i, s_i, v_i, a_i),   i = 0, ..., n

    Parameters
    ----------
    evaluate
        What is expensive: a value, and whatever else a step needs.
    advance
        The step.
    state
        s_0, a tree of arrays.
    num_steps
        n.
    """
    value, auxiliary = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(evaluate, jnp.asarray(0), state),
    )

    def step(index: Int[Array, ""], before: Iterated) -> Iterated:
        state = before.following
        value, auxiliary = evaluate(index, state)
        first = jnp.where(index == 0, value, before.first)
        return Iterated(state, advance(index, state, value, auxiliary), first, value, auxiliary)

    return lax.fori_loop(0, num_steps + 1, step, Iterated(state, state, value, value, auxiliary))


def choose(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Return `new` where a condition holds and `old` elsewhere, for trees of equal shapes."""
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), new, old)
