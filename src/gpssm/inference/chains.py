"""Compiled chains: many chains and iterations in one program.

A *block* is `thin` iterations and, when sampling, the draw after them. A *chunk* is a sequence of
blocks. Warm-up and sampling are the same program: the number of blocks, the iterations in each and
whether to draw are arguments, so that it is compiled only once. Every key is derived from (seed,
chain, iteration), so that a chain depends neither on the size of the chunks nor on the other
chains.

Chains may share the first part of their warm-up. It is then run by the *pilot*, a chain with a
separate identifier, and all chains continue from its last state.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from time import monotonic
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from gpssm.core.runtime import in_threads, jit
from gpssm.data.padding import pad, pad_path
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings, States
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info, Method
from gpssm.starts.build import Start

Batching = Literal["auto", "map", "vmap"]

BLOCKS = 50  # most blocks in a chunk, so that the progress bar moves and checkpoints are recent


class ChunkArguments(NamedTuple):
    """The arguments of a chunk, which are the same for all chains.

    Parameters
    ----------
    key
        The key of the run.
    series
        The scaled series.
    first
        Number of the first iteration, counted from 0 at the start of the run.
    blocks
        Number of blocks.
    thin
        Iterations in a block.
    keep
        Whether to draw at the end of each block.
    """

    key: PRNGKeyArray
    series: list[Series]
    first: Int[Array, ""]
    blocks: Int[Array, ""]
    thin: Int[Array, ""]
    keep: Bool[Array, ""]


class Chunk(NamedTuple):
    """Results of a chunk with leading axes (chain, block); `info` summarises a block's
    iterations.
    """

    info: Info
    draws: Draw | None


class ChainSetup(NamedTuple):
    """The method of a chain, and the model and states from which it starts."""

    settings: MethodSettings
    model: GPSSM
    states: States

    def method(self) -> Method:
        """Build the three functions `init`, `step` and `draw`."""
        return self.settings.build(self.model, self.states)


class ChainLayout(NamedTuple):
    """How chains are run: one call of the program for each, or all at once.

    Parameters
    ----------
    rows
        Maximum number of blocks in a chunk.
    separate
        Whether there is one call for each chain.
    kept_from
        The first state of each series that draws contain.
    """

    rows: int
    separate: bool
    kept_from: tuple[int, ...]


class Chains:
    """The chains of one method, which are started and then advanced chunk by chunk.

    Methods that can run on padded series do so (`data/padding.py`), and the padding is removed from
    their draws.

    Parameters
    ----------
    settings
        The settings of the method.
    starts
        One start for all chains, or one for each; they differ only in their arrays.
    series
        The scaled series.
    seed
        Seed of all random numbers.
    num_chains
        Number of chains.
    batching
        "map" runs one call per chain on the available cores (best on a CPU), "vmap" runs all chains
        in one program (best on a GPU), and "auto" chooses by the device.
    chunk
        Maximum number of blocks in a chunk; None chooses it to limit memory.
    kept_from
        The first state of each series that draws contain; None for all.
    least_rows
        Minimum number of rows after padding, so that shorter series share one program.
    """

    def __init__(
        self,
        settings: MethodSettings,
        starts: Sequence[Start],
        series: list[Series],
        seed: int,
        num_chains: int,
        batching: Batching,
        chunk: int | None,
        kept_from: tuple[int, ...] | None = None,
        least_rows: Sequence[int] = (),
    ) -> None:
        self.num_chains = num_chains
        self.kept_from = kept_from or (0,) * len(series)
        self.lengths = [len(item) for item in series]
        self.separate_models = len(starts) > 1
        paths = [start.states for start in starts]
        if settings.pads:
            least = least_rows or [0] * len(series)
            paths = [tuple(map(pad_path, states, least)) for states in paths]
            series = list(map(pad, series, least))
        members = [
            ChainSetup(settings, start.model, tuple(map(jnp.asarray, states)))
            for start, states in zip(starts, paths, strict=True)
        ]
        # Converted to JAX arrays here, so that they are copied to the device only once.
        members, self.series = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf, (members, series)
        )
        self.members: list[ChainSetup] = members if self.separate_models else members * num_chains
        self.key = jax.random.key(seed, impl="threefry2x32")
        if chunk is None:
            draws = jax.tree.leaves(self.shapes[1].draws)
            size = sum(leaf.size * leaf.dtype.itemsize for leaf in draws)
            chunk = max(1, min(BLOCKS, 2**26 // size))  # 64 MB for the draws of all chains
        separate = jax.default_backend() == "cpu" if batching == "auto" else batching == "map"
        self.layout = ChainLayout(chunk, separate, self.kept_from)
        self.compiled = False
        self.compile_seconds = 0.0
        self.run_seconds = 0.0

    @cached_property
    def shapes(self) -> tuple[Any, Chunk]:
        """Return the shapes of the carry and of the results of a one-block chunk, for all
        chains.
        """

        def evaluate(member: ChainSetup, arguments: ChunkArguments) -> tuple[Any, Chunk]:
            carry = _start(jnp.asarray(0), None, arguments, member)
            return carry, _empty(member, carry, arguments, self.kept_from, 1)

        carry, chunk = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.num_chains, *leaf.shape), leaf.dtype),
            eqx.filter_eval_shape(evaluate, self.members[0], self._arguments(0, 1, 1, True)),
        )
        return carry, jax.eval_shape(self._unpad, chunk)

    @cached_property
    def _stacked(self) -> ChainSetup:
        """The starts of all chains in one tree, whose arrays have a leading axis for the chain."""
        arrays, rest = zip(
            *(eqx.partition(member, eqx.is_array) for member in self.members), strict=True
        )
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        return eqx.combine(stacked, rest[0])

    def start(self, pilot: bool) -> Any:
        """Return the carry before the first iteration.

        Parameters
        ----------
        pilot
            Whether to return the carry of the pilot, repeated for every chain.

        Returns
        -------
        Any
            The carry of the method, with a leading axis for the chain.
        """
        began = monotonic()
        carry = self._run(_start, None, self._arguments(0, 0, 1, False), pilot)
        self.compile_seconds += monotonic() - began
        return carry

    def advance(
        self, carry: Any, first: int, blocks: int, thin: int, keep: bool, pilot: bool = False
    ) -> tuple[Any, Chunk]:
        """Run one chunk.

        Parameters
        ----------
        carry
            The carry before the chunk.
        first
            Number of the first iteration of the chunk.
        blocks
            Number of blocks.
        thin
            Iterations in a block.
        keep
            Whether to draw at the end of each block.
        pilot
            Whether to run the pilot instead of the chains.

        Returns
        -------
        carry : Any
            The carry after the chunk.
        chunk : Chunk
            Its results, as NumPy arrays.
        """
        if not self.compiled:
            # A chunk without blocks measures the time of compilation or of loading a cached
            # program.
            began = monotonic()
            self._run(_advance, carry, self._arguments(first, 0, 1, False), pilot=True)
            self.compiled = True
            self.compile_seconds += monotonic() - began
        began = monotonic()
        carry, chunk = self._run(_advance, carry, self._arguments(first, blocks, thin, keep), pilot)
        self.run_seconds += monotonic() - began
        info, draws = self._unpad(jax.tree.map(lambda leaf: np.asarray(leaf)[:, :blocks], chunk))
        return carry, Chunk(info, draws if keep else None)

    def _unpad(self, chunk: Chunk) -> Chunk:
        """Remove the states of padding rows."""
        assert chunk.draws is not None
        states = tuple(
            path[:, :, : length + 1 - begin]
            for path, length, begin in zip(
                chunk.draws.states, self.lengths, self.kept_from, strict=True
            )
        )
        return chunk._replace(draws=chunk.draws._replace(states=states))

    def _run(
        self, function: Callable[..., Any], carry: Any, arguments: ChunkArguments, pilot: bool
    ) -> Any:
        """Evaluate a function of one chain for every chain, or for the pilot."""
        # Chains are numbered from 0; the pilot has a number that no chain uses.
        names = np.full(self.num_chains, 2**32 - 2) if pilot else np.arange(self.num_chains)
        names = names.astype("uint32")
        if not self.layout.separate:
            results = _run(function, names, carry, arguments, self._stacked, self.layout)
            return jax.block_until_ready(results)

        def run_chain(chain: int) -> Any:
            before = jax.tree.map(lambda leaf: leaf[chain], carry)
            member = self.members[chain]
            after = _run(function, names[chain], before, arguments, member, self.layout)
            return jax.block_until_ready(after)

        carry = jax.tree.map(np.asarray, carry)
        run = (
            [run_chain(0)] * self.num_chains
            if pilot
            else in_threads(run_chain, range(self.num_chains))
        )
        return jax.tree.map(lambda *leaves: np.stack(leaves), *run)

    def _arguments(self, first: int, blocks: int, thin: int, keep: bool) -> ChunkArguments:
        counts: list[Any] = [np.asarray(number, "int32") for number in (first, blocks, thin)]
        flag: Any = np.asarray(keep)
        return ChunkArguments(self.key, self.series, *counts, keep=flag)


@jit
def _run(
    function: Callable[..., Any],
    names: Array,
    carry: Any,
    arguments: ChunkArguments,
    member: ChainSetup,
    layout: ChainLayout,
) -> Any:
    """Evaluate a function of one chain for one chain, or for all at once.

    The arrays of data, model and states are arguments, so that fits of equal shapes and settings
    share one program. If chains run at once, the arrays of their starts have a leading axis for the
    chain.
    """
    if layout.separate:
        return function(names, carry, arguments, member, layout)
    arrays, rest = eqx.partition(member, eqx.is_array)

    def run_chain(name: Array, before: Any, leaves: Any) -> Any:
        return function(name, before, arguments, eqx.combine(leaves, rest), layout)

    return jax.vmap(run_chain)(names, carry, arrays)


def _start(
    chain: Array,
    _: None,
    arguments: ChunkArguments,
    member: ChainSetup,
    layout: ChainLayout | None = None,
) -> Any:
    """Return the carry of one chain before its first iteration."""
    key = jax.random.fold_in(jax.random.fold_in(arguments.key, chain), 0)
    carry = member.method().init(key, arguments.series)
    # Remove JAX's weak types, which would change at the first iteration.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), carry)


def _advance(
    chain: Array, carry: Any, arguments: ChunkArguments, member: ChainSetup, layout: ChainLayout
) -> tuple[Any, Chunk]:
    """Run one chain for a chunk; rows of the result after the last block are zeros."""
    chain_key = jax.random.fold_in(arguments.key, chain)
    method = member.method()
    empty = _empty(member, carry, arguments, layout.kept_from, layout.rows)
    no_info, no_draw = jax.tree.map(lambda rows: rows[0], empty)

    def iterate(iteration: Array, state: tuple[Any, Info]) -> tuple[Any, Info]:
        carry, before = state
        key = jax.random.fold_in(jax.random.fold_in(chain_key, iteration), 0)
        carry, info = method.step(key, carry, arguments.series)
        return carry, _add_to_block(before, info, arguments.thin)

    def run_block(index: Array, state: tuple[Any, Chunk]) -> tuple[Any, Chunk]:
        carry, chunk = state
        begin = arguments.first + index * arguments.thin
        end = begin + arguments.thin
        carry, info = jax.lax.fori_loop(begin, end, iterate, (carry, no_info))
        key = jax.random.fold_in(jax.random.fold_in(chain_key, end - 1), 1)
        draw = jax.lax.cond(
            arguments.keep,
            lambda: _draw(method, key, carry, arguments.series, layout.kept_from),
            lambda: no_draw,
        )
        return carry, jax.tree.map(
            lambda rows, value: rows.at[index].set(value), chunk, Chunk(info, draw)
        )

    return jax.lax.fori_loop(0, arguments.blocks, run_block, (carry, empty))


def _draw(
    method: Method,
    key: PRNGKeyArray,
    carry: Any,
    series: list[Series],
    kept_from: tuple[int, ...],
) -> Draw:
    """Return a draw that contains only the states from `kept_from` on."""
    draw = method.draw(key, carry, series)
    states = tuple(path[first:] for path, first in zip(draw.states, kept_from, strict=True))
    return draw._replace(states=states)


def _empty(
    member: ChainSetup,
    carry: Any,
    arguments: ChunkArguments,
    kept_from: tuple[int, ...],
    blocks: int,
) -> Chunk:
    """Return a chunk of zeros for one chain."""
    zero = jnp.asarray(0.0)
    bias = zero if member.settings.judges_bias else None
    info = Info(zero, zero, jnp.asarray(False), zero, zero, bias)
    draw = jax.eval_shape(
        lambda: _draw(member.method(), arguments.key, carry, arguments.series, kept_from)
    )
    return jax.tree.map(
        lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), Chunk(info, draw)
    )


def _add_to_block(before: Info, info: Info, thin: Array) -> Info:
    """Combine the diagnostics of an iteration with those of its block.

    The block has the mean acceptance, whether any move diverged, the total number of gradients, and
    the last value of the others.
    """
    info = jax.tree.map(lambda value, blank: jnp.asarray(value, blank.dtype), info, before)
    return info._replace(
        acceptance=before.acceptance + info.acceptance / thin,
        divergent=before.divergent | info.divergent,
        gradients=before.gradients + info.gradients,
    )
