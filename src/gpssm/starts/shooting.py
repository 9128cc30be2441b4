"""Multiple shooting: the MAP estimate of a model by simulations of increasingly long windows.

A window of L steps is a simulation of the mean transition, without process noise, from a separate
initial state:

    x_{t+1} = m(z_t) + A(z_t)·v,   z_t = [x_t; u_t],   y_t ~ p(y | x_{t+1})

and the initial state s_w of a window is tied to the end e_{w−1} of the previous window. The
objective is

    J = −Σ_t log p(y_t | x_{t+1}) + Σ_w |s_w − e_{w−1}|² / 2δ² + ½|s_0|² + ½|v|² − log p(θ)

minimised over the weights v, the initial states and the leaves θ of kernel, basis, mean and
likelihood that are not fixed. Short windows come first, since their J has few local minima; each
length starts from the optimum of the previous one (Bock & Plitt 1984; for networks Ribeiro et al.
2020). All windows of all series are simulated in parallel. Windows that extend beyond the end of a
series have missing outputs, which the likelihood ignores.

**Divergent paths.** Far from the optimum, a simulation and its gradient may diverge. States, which
have unit scale, are therefore clipped to ±`BOX`, where their gradient is zero; the initial state of
the window and the other windows then move it back. The share of clipped states is reported.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from gpssm.core.loops import choose, iterate
from gpssm.core.runtime import in_double_precision, in_threads, jit
from gpssm.data.padding import padded_length
from gpssm.data.series import Series, as_list
from gpssm.model.model import GPSSM, Function
from gpssm.model.types import Data
from gpssm.starts.build import Start

LENGTHS = (16, 64, 256)  # rows of a window, in the order of the stages
WHOLE = 1024  # the last window is the whole record if it has at most this many rows
DEFECT = 0.05  # δ, for states of unit scale
BOX = 8.0


class Blocks(NamedTuple):
    """All series divided into W blocks of B rows, so that all window lengths share one program.

    Each window lies within one block. Rows beyond the end of a series have missing outputs and no
    window.
    """

    y: Float[Array, "W B Dy"]
    u: Float[Array, "W B Du"]
    starts: Bool[Array, "W B"]  # whether a window starts at a row
    first: Bool[Array, " W"]  # whether a block begins a series


class Point(NamedTuple):
    """The optimised variables: weights, leaves, and states, which matter only at the start of a
    window.
    """

    weights: Float[Array, "Dx M"]
    leaves: dict[str, Array]
    starts: Float[Array, "W B Dx"]


# The states of all windows at each row, as they were reached by the window before, and after it.
WindowRuns = tuple[Float[Array, "W B Dx"], Float[Array, "W B Dx"], Float[Array, "W B Dx"]]


class Shot(NamedTuple):
    """A start whose simulations follow the series.

    `weights` are those of the simulations, whose states are the start's; `clipped` is the share of
    the states at the wall.
    """

    start: Start
    weights: Float[Array, "Dx M"]
    clipped: float


def shoot_all(starts: Sequence[Start], series: Sequence[list[Series]]) -> list[Shot]:
    """Run shooting from each start on its series, in parallel on the available cores.

    Starts of equal shapes share the compiled program.
    """
    pairs = list(zip(starts, series, strict=True))
    if len(pairs) > 1:
        # Compile once before the threads start: each would compile the shared program.
        shoot(
            *pairs[0], lengths=window_lengths([len(item) for item in pairs[0][1]])[:1], num_steps=0
        )
    return in_threads(lambda pair: shoot(*pair), pairs)


@in_double_precision
def shoot(
    start: Start,
    series: Data,
    lengths: Sequence[int] | None = None,
    num_steps: int | None = None,
) -> Shot:
    """Learn weights, emission, kernel and locations by simulations of windows of growing length.

    The weights begin at zero, which is the model's mean function.

    Parameters
    ----------
    start
        The model at the parameters to begin with, whose leaves with the role "fix" stay, and the
        states from which the windows of the first length start.
    series
        Scaled; outputs may be missing.
    lengths
        Rows of a window, for each stage, in place of `window_lengths`.
    num_steps
        Steps of Adam, for each stage; by default as many as suit the number of rows.
    """
    model = start.model
    experiments = as_list(series)
    rows = [len(item) for item in experiments]
    paths = [np.asarray(path, float) for path in start.states]
    point = Point(
        jnp.zeros(model.weights_shape),
        # A simulation does not use the process noise.
        {name: leaf for name, leaf in model.free_leaves().items() if name != "log_process_std"},
        jnp.zeros(()),
    )
    # With few rows, more steps would overfit.
    steps = int(np.clip(0.5 * sum(rows), 250, 500)) if num_steps is None else num_steps
    clipped = 0.0
    for length in window_lengths(rows) if lengths is None else lengths:
        blocks = cut(experiments, length)
        point = point._replace(
            starts=_in_blocks([path[:-1] for path in paths], blocks.u.shape[1], 0.0)
        )
        point, runs = _descend(point, model, blocks, jnp.asarray(steps))
        paths = _join(runs, rows)
        clipped = float(np.mean(np.concatenate([np.abs(path).max(1) for path in paths]) >= BOX))
    shot = Start(model.with_leaves(point.leaves), paths, start.notes)
    return Shot(shot, point.weights, clipped)


def window_lengths(rows: Sequence[int]) -> list[int]:
    """Return the `LENGTHS` shorter than the longest series, and its length if it is at most
    `WHOLE`.
    """
    longest = max(rows)
    shorter = [length for length in LENGTHS if length < longest]
    return [*shorter, longest] if longest <= WHOLE else shorter


def cut(series: Sequence[Series], length: int) -> Blocks:
    """Divide all series into windows of `length` rows, from the first row of each series."""
    longest = max(len(rows) for rows in series)
    size = padded_length(longest) if longest <= WHOLE else max(LENGTHS)
    y = _in_blocks([np.asarray(rows.y, float) for rows in series], size, np.nan)
    u = _in_blocks([np.asarray(rows.u, float) for rows in series], size, 0.0)
    marks = [(np.arange(len(rows)) % length == 0)[:, None] for rows in series]
    begin = [(np.arange(len(rows)) == 0)[:, None] for rows in series]
    return Blocks(
        y, u, _in_blocks(marks, size, False)[:, :, 0], _in_blocks(begin, size, False)[:, 0, 0]
    )


def _in_blocks(values: Sequence[np.ndarray], size: int, fill: float | bool) -> Array:
    """Return the rows of each series in blocks of `size`, with the last block of a series
    padded.
    """
    padded = [
        np.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=fill) for rows in values
    ]
    return jnp.asarray(
        np.concatenate([rows.reshape(len(rows) // size, size, rows.shape[1]) for rows in padded])
    )


def _join(runs: WindowRuns, rows: Sequence[int]) -> list[Float[np.ndarray, "_ Dx"]]:
    """Return the states x₀, ..., x_T of each series."""
    states, _, following = map(np.asarray, runs)
    paths, place, size = [], 0, states.shape[1]
    for count in rows:
        blocks = -(-count // size)
        before, after = (
            part[place : place + blocks].reshape(blocks * size, -1) for part in (states, following)
        )
        paths.append(np.concatenate([before[:count], after[count - 1 : count]]))
        place += blocks
    return paths


def simulate_windows(
    function: Function, starts: Float[Array, "W B Dx"], blocks: Blocks
) -> WindowRuns:
    """Simulate all blocks in parallel, each window from its start, with states clipped to
    ±`BOX`.
    """

    def move(
        reached: Float[Array, "W Dx"], row: tuple[Array, Array, Array]
    ) -> tuple[Array, tuple[Array, ...]]:
        u, start, marked = row
        x = jnp.where(marked[:, None], start, reached)
        following = jnp.clip(function(x, u), -BOX, BOX)
        return following, (x, reached, following)

    rows = jax.tree.map(
        lambda values: jnp.swapaxes(values, 0, 1), (blocks.u, starts, blocks.starts)
    )
    last, runs = jax.lax.scan(move, starts[:, 0], rows)
    states, reached, following = (jnp.swapaxes(part, 0, 1) for part in runs)
    # The first row of a block is the end of the previous block.
    return states, reached.at[1:, 0].set(last[:-1]), following


def loss(point: Point, model: GPSSM, blocks: Blocks) -> tuple[Float[Array, ""], WindowRuns]:
    """Return J / N for N rows with outputs, and the simulations."""
    model = model.with_leaves(point.leaves)
    runs = simulate_windows(model.function(point.weights), point.starts, blocks)
    states, reached, following = runs
    flat = following.reshape(-1, model.state_dim)
    outputs = blocks.y.reshape(flat.shape[0], -1)
    begins = blocks.starts.at[:, 0].set(blocks.starts[:, 0] & ~blocks.first)
    gaps = jnp.where(begins[:, :, None], (states - reached) / DEFECT, 0.0)
    first = jnp.where(blocks.first[:, None], states[:, 0], 0.0)
    prior = sum(
        (model.priors[name].log_prob(leaf) for name, leaf in point.leaves.items()), jnp.zeros(())
    )
    fit = jnp.sum(model.likelihood.log_prob(flat, outputs))
    squares = jnp.sum(gaps**2) + jnp.sum(first**2) + jnp.sum(point.weights**2)
    rows = jnp.sum(jnp.any(jnp.isfinite(outputs), -1))
    return (0.5 * squares - fit - prior) / jnp.maximum(rows, 1), runs


@jit
def _descend(
    point: Point, model: GPSSM, blocks: Blocks, steps: Int[Array, ""]
) -> tuple[Point, WindowRuns]:
    """Run Adam from a point; return the result, and the simulations.

    The step size decays from .01 to zero along a cosine.
    """
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())

    def evaluate(_: Array, state: tuple[Point, Any]) -> tuple[Any, Any]:
        (value, runs), slope = jax.value_and_grad(
            lambda point: loss(point, model, blocks), has_aux=True
        )(state[0])
        return value, (runs, slope)

    def advance(
        index: Array, state: tuple[Point, Any], _: Array, auxiliary: Any
    ) -> tuple[Point, Any]:
        point, memory = state
        _, slope = auxiliary
        # A gradient that is not finite changes nothing, including the state of the optimiser.
        safe = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(slope)]))
        rate = 0.5 * 0.01 * (1 + jnp.cos(jnp.pi * index / steps))
        updates, following = optimiser.update(slope, memory)
        moved = jax.tree.map(lambda leaf, update: leaf - rate * update, point, updates)
        return choose(safe, (moved, following), state)

    end = iterate(evaluate, advance, (point, optimiser.init(point)), steps)
    return end.state[0], end.auxiliary[0]
