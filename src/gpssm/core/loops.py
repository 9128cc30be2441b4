"""Loops that contain their most expensive part once, steps of optimisers, sums over rows.

A method that needs f before its first step and after every step would call it in two places, and
the compiler would work twice on what is most of the program.

Sums and maps over the rows of long series, chunk by chunk, in constant memory.

    Σ_n f(row_n)        f(row_1), …, f(row_N)

of functions that take many rows at once: rows are arrays, or trees of arrays, with as many entries
in front. A chunk's intermediate results are not kept for the backward pass of a sum, but made
again. On a CPU that is faster too, twice as fast where a chunk fits into its cache; a GPU likes few
and large ones.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Int

from gpssm.core.runtime import on_cpu

CHUNK, CHUNK_ON_GPU = 512, 2048  # rows; up to twice as many are processed at once


class Iterated(NamedTuple):
    """The result of `iterate`.

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
        The expensive function, which returns a value and auxiliary results for the step.
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


def descend(
    optimiser: optax.GradientTransformation,
    loss: Callable[[Any], tuple[Array, Any]],
    point: Any,
    memory: Any,
) -> tuple[Any, Any, Any]:
    """Take one step of an optimiser.

    Parameters
    ----------
    optimiser
        The optimiser.
    loss
        A function of the point that returns a value and anything else.
    point, memory
        Where the optimiser stands: a tree of arrays, and what it remembers.

    Returns
    -------
    point, memory
        Those after the step.
    auxiliary
        What the loss returned besides its value.
    """
    slope, auxiliary = jax.grad(loss, has_aux=True)(point)
    updates, memory = optimiser.update(slope, memory)
    return jax.tree.map(jnp.add, point, updates), memory, auxiliary


def choose(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Return `new` if a condition holds and `old` otherwise, for trees of equal shapes."""
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), new, old)


def sum_rows(function: Callable[[Any], Any], rows: Any) -> Any:
    """Return the sum of `function` over all rows; for a chunk of rows it returns their sum."""
    if (cut := _cut(rows)) is None:
        return function(rows)
    chunks, rest = cut

    def add(total: Any, chunk: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, jax.checkpoint(function)(chunk)), None

    return lax.scan(add, function(rest), chunks)[0]


def map_rows(function: Callable[[Any], Any], rows: Any) -> Any:
    """Return `function` of all rows; for a chunk it returns arrays with the same leading axis."""
    if (cut := _cut(rows)) is None:
        return function(rows)
    chunks, rest = cut
    return jax.tree.map(
        lambda whole, last: jnp.concatenate([whole.reshape(-1, *whole.shape[2:]), last]),
        lax.map(function, chunks),
        function(rest),
    )


def _cut(rows: Any) -> tuple[Any, Any] | None:
    """Return all full chunks of rows, stacked, and the other rows; None if there are too few
    rows.
    """
    size, count = CHUNK if on_cpu() else CHUNK_ON_GPU, len(jax.tree.leaves(rows)[0])
    if count <= 2 * size:
        return None
    whole = count // size * size
    chunks = jax.tree.map(lambda part: part[:whole].reshape(-1, size, *part.shape[1:]), rows)
    return chunks, jax.tree.map(lambda part: part[whole:], rows)
