"""Padding of series to one of a few lengths, so that compiled programs can be shared.

A padding row has no outputs, and no transition leads to or from its state: it has weight 0 in every
sum over transitions, and samplers do not move it. The distribution of the other states is the same
as without padding.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from gpssm.data.series import Series, bare, register_leaves

LEAST = 4  # minimum number of rows between two lengths
PARTS = 8  # number of lengths between powers of two
LONGEST = 4096  # rows of a series above which running takes longer than compiling


class Padded(Series):
    """A series with padding rows; for JAX, a pytree of the leaves (y, u, real)."""

    real: Bool[np.ndarray, " T"]  # False for padding rows


def padded_length(rows: int) -> int:
    """Return the padded length of a series: from 32 rows on at most 1/8 more."""
    step = max(LEAST, 2 ** (rows.bit_length() - 1) // PARTS)
    return rows if rows > LONGEST else -(-rows // step) * step


def pad(series: Series, least: int = 0) -> Series:
    """Return the series padded to at least `least` rows, without its names.

    A long series is returned unchanged.
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
    """Return the states of the padded series, in which padding rows repeat the last state."""
    rows = len(path) - 1
    more = padded_length(max(rows, least)) - rows
    return np.pad(np.asarray(path), ((0, more), (0, 0)), mode="edge")


def moves(series: Series, dtype: DTypeLike) -> Float[Array, " T"]:
    """Return the weight of each transition x_t → x_{t+1}: 1, or 0 if it leads to a padding
    state.
    """
    if isinstance(series, Padded):
        return jnp.asarray(series.real, dtype)
    return jnp.ones(len(series), dtype)


def real_states(series: Series, dtype: DTypeLike) -> Float[Array, " T+1"]:
    """Return 1 for each state, including x₀, and 0 for padding states."""
    return jnp.pad(moves(series, dtype), (1, 0), constant_values=1.0)


def num_moves(series: Sequence[Series]) -> int | Int[Array, ""]:
    """Return the number of transitions without padding; an array if series are padded."""
    return sum(jnp.sum(x.real) if isinstance(x, Padded) else len(x) for x in series)


register_leaves(Padded, "y", "u", "real")
