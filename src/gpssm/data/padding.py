"""Series filled up to one of a few lengths: one compiled program serves many numbers of rows.

A row that pads has no outputs, and its state is one that nothing leads to and nothing follows: in
every sum over transitions it has weight 0, and a sampler leaves it where it is. What is drawn of
the other states has the same law as without padding.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gpssm.data.series import Series, bare, register_leaves

LEAST = 4  # rows between two lengths, at least
PARTS = 8  # lengths from a power of two to the next
LONGEST = 4096  # rows: a longer series runs for longer than its programs take to compile


class Padded(Series):
    """A series and rows that pad; for JAX a pytree of the leaves (y, u, real)."""

    real: Bool[np.ndarray, " T"]  # False for rows that pad


def padded_length(rows: int) -> int:
    """The length that a series is filled up to: from 32 rows on at most 1/8 more."""
    step = max(LEAST, 2 ** (rows.bit_length() - 1) // PARTS)
    return rows if rows > LONGEST else -(-rows // step) * step


def pad(series: Series, least: int = 0) -> Series:
    """The series at the padded length of at least `least` rows, without its names.

    A long one is returned as it is.
    """
    rows = len(series)
    if rows > LONGEST:
        return series
    more = ((0, padded_length(max(rows, least)) - rows), (0, 0))
    y = np.pad(series.y, more, constant_values=np.nan)
    u = np.pad(series.u, more, mode="edge")
    return bare(Padded, y, u, real=np.arange(len(y)) < rows)


def pad_path(
    path: Float[Array | np.ndarray, "T+1 Dx"], least: int = 0
) -> Float[np.ndarray, "P+1 Dx"]:
    """The states of the padded series: rows that pad repeat the last one."""
    rows = len(path) - 1
    more = padded_length(max(rows, least)) - rows
    return np.pad(np.asarray(path), ((0, more), (0, 0)), mode="edge")


def moves(series: Series, dtype: DTypeLike) -> Float[Array, " T"]:
    """The weight of each transition x_t → x_{t+1}: 1, or 0 where it leads to a state that pads."""
    if isinstance(series, Padded):
        return jnp.asarray(series.real, dtype)
    return jnp.ones(len(series), dtype)


def real_states(series: Series, dtype: DTypeLike) -> Float[Array, " T+1"]:
    """1 for each state, x₀ too, or 0 for those that pad."""
    return jnp.pad(moves(series, dtype), (1, 0), constant_values=1.0)


def num_moves(series: Sequence[Series]) -> int | Int[Array, ""]:
    """The number of all transitions that count; an array if series are padded."""
    return sum(jnp.sum(x.real) if isinstance(x, Padded) else len(x) for x in series)


register_leaves(Padded, "y", "u", "real")
