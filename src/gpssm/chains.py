"""The compiled side of the training loop: many chains, many iterations, one program.

A *block* is `thin` iterations and, in sampling, the draw after them. A chunk is a run of blocks. Warm-up and sampling
are the same program: how many blocks, how many iterations each, and whether to draw are its arguments, so it is
compiled once. Every key is derived from (seed, chain, iteration), so that a chain does not depend on the size of the
chunks, nor on the chains beside it.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from gpssm.series import Series
from gpssm.types import Draw, Info, Method

Style = Literal["auto", "map", "vmap", "shard"]
BLOCKS = 50  # in a chunk: a bar that moves, a checkpoint that is recent
DRAW_BYTES = 2**26  # of draws in a chunk, over all chains


class Plan(NamedTuple):
    """What a chunk is to do; the same for all chains."""

    key: PRNGKeyArray
    series: list[Series]
    first: Int[Array, ""]  # number of its first iteration; 0 is the start itself
    blocks: Int[Array, ""]
    thin: Int[Array, ""]
    keep: Bool[Array, ""]  # whether to draw at the end of a block


class Chunk(NamedTuple):
    """What a chunk gave, with axes (chain, block) in front; `info` is over the iterations of a block."""

    info: Info
    draws: Draw | None


class Chains:
    """The chains of one method, to be started and advanced.

    :param chains: "map" runs them one after the other (best on a CPU), "vmap" all at once (best on a GPU), "shard"
        spreads them over all devices; "auto" takes the best for the devices there are.
    :param chunk: blocks in a chunk at most; by default what keeps memory small.
    """

    def __init__(
        self, method: Method, series: list[Series], seed: int, num_chains: int, chains: Style, chunk: int | None
    ) -> None:
        self.method, self.series, self.num_chains = method, series, num_chains
        self.key = jax.random.key(seed, impl="threefry2x32")
        self.mesh = _mesh(chains, num_chains)
        self.one_by_one = jax.default_backend() == "cpu" if chains in ("auto", "shard") else chains == "map"
        self.rows = self._chunk_size() if chunk is None else chunk
        self.compile_seconds = self.run_seconds = 0.0

    @cached_property
    def shapes(self) -> tuple[Any, Chunk]:
        """Shapes of the carry and of a chunk of one block, all chains together."""
        plan = self._plan(0, 1, 1, True)
        carry = jax.eval_shape(self._over_chains(self._start), self._names, None, plan)

        def empty(chain: Array, carry: Any, plan: Plan) -> Chunk:
            return self._empty(carry, plan, 1)

        return carry, jax.eval_shape(self._over_chains(empty), self._names, carry, plan)

    def start(self) -> Any:
        """The carry before the first iteration."""
        plan = self._plan(0, 1, 1, False)
        return self._timed(self._compile(self._start, None, plan), None, plan)

    def advance(self, carry: Any, first: int, blocks: int, thin: int, keep: bool) -> tuple[Any, Chunk]:
        """Run a chunk from iteration `first` on, and bring home what it gave."""
        carry, plan = self._place(carry), self._plan(first, blocks, thin, keep)
        carry, chunk = self._timed(self._program(carry, plan), carry, plan)
        info, draws = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :blocks], chunk)
        return carry, Chunk(info, draws if keep else None)

    def _program(self, carry: Any, plan: Plan) -> Callable[..., Any]:
        if not hasattr(self, "_compiled"):
            self._compiled = self._compile(self._advance, carry, plan)
        return self._compiled

    def _start(self, chain: Array, _: None, plan: Plan) -> Any:
        carry = self.method.init(jax.random.fold_in(jax.random.fold_in(plan.key, chain), 0), plan.series)
        # Without JAX's weak types, which would go at the first iteration.
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), carry)

    def _advance(self, chain: Array, carry: Any, plan: Plan) -> tuple[Any, Chunk]:
        """One chain through a chunk; rows of the result beyond `plan.blocks` are zeros."""
        chain_key = jax.random.fold_in(plan.key, chain)
        empty = self._empty(carry, plan, self.rows)
        no_info, no_draw = jax.tree.map(lambda rows: rows[0], empty)

        def iterate(iteration: Array, state: tuple[Any, Info]) -> tuple[Any, Info]:
            carry, before = state
            key = jax.random.fold_in(jax.random.fold_in(chain_key, iteration), 0)
            carry, info = self.method.step(key, carry, plan.series)
            return carry, _gather(before, info, plan.thin)

        def block(index: Array, state: tuple[Any, Chunk]) -> tuple[Any, Chunk]:
            carry, chunk = state
            begin = plan.first + index * plan.thin
            end = begin + plan.thin
            carry, info = jax.lax.fori_loop(begin, end, iterate, (carry, no_info))
            key = jax.random.fold_in(jax.random.fold_in(chain_key, end - 1), 1)
            draw = jax.lax.cond(plan.keep, lambda: self.method.draw(key, carry, plan.series), lambda: no_draw)
            return carry, jax.tree.map(lambda rows, value: rows.at[index].set(value), chunk, Chunk(info, draw))

        return jax.lax.fori_loop(0, plan.blocks, block, (carry, empty))

    def _empty(self, carry: Any, plan: Plan, blocks: int) -> Chunk:
        """A chunk of zeros for one chain."""
        figure = jnp.asarray(0.0)
        info = Info(figure, figure, jnp.asarray(False), figure, figure)
        one = Chunk(info, jax.eval_shape(self.method.draw, plan.key, carry, plan.series))
        return jax.tree.map(lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), one)

    def _over_chains(self, function: Callable[[Array, Any, Plan], Any]) -> Callable[[Array, Any, Plan], Any]:
        def one_by_one(names: Array, carry: Any, plan: Plan) -> Any:
            return jax.lax.map(lambda pair: function(pair[0], pair[1], plan), (names, carry))

        every = one_by_one if self.one_by_one else jax.vmap(function, in_axes=(0, 0, None))
        if self.mesh is None:
            return every
        split, whole = PartitionSpec("chain"), PartitionSpec()
        specs = (split, split, whole)
        return jax.shard_map(every, mesh=self.mesh, in_specs=specs, out_specs=split, check_vma=False)

    def _compile(self, function: Callable[[Array, Any, Plan], Any], carry: Any, plan: Plan) -> Callable[..., Any]:
        began = time.perf_counter()
        # The arrays a method has closed over become arguments: equal shapes then are equal programs, which a
        # compilation cache knows again whatever the data.
        converted = eqx.filter_closure_convert(self._over_chains(function), self._names, carry, plan)
        program: Any = eqx.filter_jit(lambda converted, *arguments: converted(*arguments))
        compiled = program.lower(converted, self._names, carry, plan).compile()
        self.compile_seconds += time.perf_counter() - began
        return lambda carry, plan: compiled(converted, self._names, carry, plan)

    def _timed(self, program: Callable[..., Any], carry: Any, plan: Plan) -> Any:
        began = time.perf_counter()
        result = jax.block_until_ready(program(carry, plan))
        self.run_seconds += time.perf_counter() - began
        return result

    @property
    def _names(self) -> Array:
        return self._place(jnp.arange(self.num_chains))

    def _place(self, tree: Any) -> Any:
        return jax.device_put(tree, None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec("chain")))

    def _plan(self, first: int, blocks: int, thin: int, keep: bool) -> Plan:
        first_, blocks_, thin_ = (jnp.asarray(count, "int32") for count in (first, blocks, thin))
        return Plan(self.key, self.series, first_, blocks_, thin_, jnp.asarray(keep))

    def _chunk_size(self) -> int:
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.shapes[1].draws))
        return max(1, min(BLOCKS, DRAW_BYTES // size))


def _mesh(chains: Style, num_chains: int) -> Mesh | None:
    """The devices to spread the chains over, None for one device."""
    if chains not in get_args(Style):
        raise ValueError(f"chains must be one of {', '.join(get_args(Style))}, got {chains!r}.")
    devices = jax.devices()
    if chains == "shard" and num_chains % len(devices):
        raise ValueError(
            f"chains='shard' gives each of the {len(devices)} devices as many chains: num_chains={num_chains} is no "
            "multiple. Change num_chains, or take chains='auto'."
        )
    spread = chains == "shard" or (chains == "auto" and len(devices) > 1 and num_chains % len(devices) == 0)
    return Mesh(np.array(devices), ("chain",)) if spread else None


def _gather(before: Info, info: Info, thin: Array) -> Info:
    """The figures of a block so far: mean acceptance, any divergence, all gradients, and the latest of the others."""
    info = Info(*(jnp.asarray(value, blank.dtype) for value, blank in zip(info, before, strict=True)))
    return info._replace(
        acceptance=before.acceptance + info.acceptance / thin,
        divergent=before.divergent | info.divergent,
        gradients=before.gradients + info.gradients,
    )
