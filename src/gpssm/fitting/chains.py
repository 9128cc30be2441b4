"""The compiled side of the training loop: many chains, many iterations, one program.

A *block* is `thin` iterations and, in sampling, the draw after them. A chunk is a run of blocks. Warm-up and sampling
are the same program: how many blocks, how many iterations each, and whether to draw are its arguments, so it is
compiled once. Every key is derived from (seed, chain, iteration), so that a chain does not depend on the size of the
chunks, nor on the chains beside it.

Chains may share the first part of their warm-up. It is then done by the *pilot*, a chain with a name of its own, and
all of them go on from where it ended.
"""

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from gpssm.core.runtime import num_threads
from gpssm.data.series import Series
from gpssm.model.types import Draw, Info, Method

Batching = Literal["auto", "map", "vmap", "shard"]
PILOT = 2**32 - 2  # the pilot's name
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

    :param batching: "map" runs them one by one, on as many cores as there are (best on a CPU), "vmap" all at once in
        one program (best on a GPU), "shard" spreads them over all devices; "auto" takes the best for the devices.
    :param chunk: blocks in a chunk at most; by default what keeps memory small.
    """

    def __init__(
        self, method: Method, series: list[Series], seed: int, num_chains: int, batching: Batching, chunk: int | None
    ) -> None:
        self.method, self.num_chains = method, num_chains
        # As JAX arrays here and now: the threads of `one_by_one` do not inherit the switch to float64.
        self.series = jax.tree.map(jnp.asarray, series)
        self.key = jax.random.key(seed, impl="threefry2x32")
        self.mesh = _mesh(batching, num_chains)
        on_cpu = jax.default_backend() == "cpu"
        self.one_by_one = on_cpu if batching in ("auto", "shard") else batching == "map"
        if chunk is None:
            size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.shapes[1].draws))
            chunk = max(1, min(BLOCKS, DRAW_BYTES // size))
        self.rows = chunk
        self.program: Callable[..., Any] | None = None  # of `advance`, when it has been compiled
        self.compile_seconds = self.run_seconds = 0.0

    @cached_property
    def shapes(self) -> tuple[Any, Chunk]:
        """Shapes of the carry and of a chunk of one block, all chains together."""
        plan = self._plan(0, 1, 1, True)
        carry = jax.eval_shape(self._start, jnp.asarray(0), None, plan)
        chunk = jax.eval_shape(lambda carry: self._empty(carry, plan, 1), carry)
        several = (self.num_chains,)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(several + leaf.shape, leaf.dtype), (carry, chunk))

    def start(self, pilot: bool) -> Any:
        """The carry before the first iteration, of every chain or of the pilot in every chain's place."""
        plan = self._plan(0, 1, 1, False)
        return self._timed(self._compile(self._start, None, plan), None, plan, pilot)

    def advance(
        self, carry: Any, first: int, blocks: int, thin: int, keep: bool, pilot: bool = False
    ) -> tuple[Any, Chunk]:
        """Run a chunk from iteration `first` on, by every chain or by the pilot, and bring home what it gave."""
        carry, plan = self._place(carry), self._plan(first, blocks, thin, keep)
        self.program = self.program or self._compile(self._advance, carry, plan)
        carry, chunk = self._timed(self.program, carry, plan, pilot)
        info, draws = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :blocks], chunk)
        return carry, Chunk(info, draws if keep else None)

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
            return carry, _add_to_block(before, info, plan.thin)

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
        """The function for all chains in one program."""

        def in_turn(names: Array, carry: Any, plan: Plan) -> Any:
            return jax.lax.map(lambda pair: function(pair[0], pair[1], plan), (names, carry))

        every = in_turn if self.one_by_one else jax.vmap(function, in_axes=(0, 0, None))
        if self.mesh is None:
            return every
        split, whole = PartitionSpec("chain"), PartitionSpec()
        specs = (split, split, whole)
        return jax.shard_map(every, mesh=self.mesh, in_specs=specs, out_specs=split, check_vma=False)

    def _compile(self, function: Callable[[Array, Any, Plan], Any], carry: Any, plan: Plan) -> Callable[..., Any]:
        """A program (carry, plan, pilot) → what the function gives, for all chains."""
        began = time.perf_counter()
        apart = self.one_by_one and self.mesh is None
        names = jnp.arange(self.num_chains, dtype="uint32")
        names, carry = (names[0], _pick(carry, 0)) if apart else (self._place(names), carry)
        every = function if apart else self._over_chains(function)
        # The arrays a method has closed over become arguments: equal shapes then are equal programs, which a
        # compilation cache knows again whatever the data.
        converted = eqx.filter_closure_convert(every, names, carry, plan)
        program: Any = eqx.filter_jit(lambda converted, *arguments: converted(*arguments))
        compiled = program.lower(converted, names, carry, plan).compile()
        self.compile_seconds += time.perf_counter() - began

        def together(carry: Any, plan: Plan, pilot: bool) -> Any:
            names = jnp.full(self.num_chains, PILOT, "uint32") if pilot else jnp.arange(self.num_chains, dtype="uint32")
            return compiled(converted, self._place(names), carry, plan)

        def one(chain: int, carry: Any, plan: Plan) -> Any:
            return jax.block_until_ready(compiled(converted, jnp.asarray(chain, "uint32"), carry, plan))

        def one_by_one(carry: Any, plan: Plan, pilot: bool) -> Any:
            if pilot:
                return _stack([one(PILOT, _pick(carry, 0), plan)] * self.num_chains)
            # Each call is one thread's work, in XLA and not in Python: threads share it out over the cores.
            with ThreadPoolExecutor(min(self.num_chains, num_threads())) as pool:
                calls = [pool.submit(one, chain, _pick(carry, chain), plan) for chain in range(self.num_chains)]
                return _stack([call.result() for call in calls])

        return one_by_one if apart else together

    def _timed(self, program: Callable[..., Any], carry: Any, plan: Plan, pilot: bool) -> Any:
        began = time.perf_counter()
        result = jax.block_until_ready(program(carry, plan, pilot))
        self.run_seconds += time.perf_counter() - began
        return result

    def _place(self, tree: Any) -> Any:
        return jax.device_put(tree, None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec("chain")))

    def _plan(self, first: int, blocks: int, thin: int, keep: bool) -> Plan:
        first_, blocks_, thin_ = (jnp.asarray(count, "int32") for count in (first, blocks, thin))
        return Plan(self.key, self.series, first_, blocks_, thin_, jnp.asarray(keep))


def _pick(tree: Any, chain: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[chain]), tree)


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _mesh(batching: Batching, num_chains: int) -> Mesh | None:
    """The devices to spread the chains over, None for one device."""
    if batching not in get_args(Batching):
        raise ValueError(f"batching must be one of {', '.join(get_args(Batching))}, got {batching!r}.")
    devices = jax.devices()
    if batching == "shard" and num_chains % len(devices):
        raise ValueError(
            f"batching='shard' gives each of the {len(devices)} devices as many chains: num_chains={num_chains} is no "
            "multiple. Change num_chains, or take batching='auto'."
        )
    spread = batching == "shard" or (batching == "auto" and len(devices) > 1 and num_chains % len(devices) == 0)
    return Mesh(np.array(devices), ("chain",)) if spread else None


def _add_to_block(before: Info, info: Info, thin: Array) -> Info:
    """The figures of a block so far: mean acceptance, any divergence, all gradients, and the latest of the others."""
    info = Info(*(jnp.asarray(value, blank.dtype) for value, blank in zip(info, before, strict=True)))
    return info._replace(
        acceptance=before.acceptance + info.acceptance / thin,
        divergent=before.divergent | info.divergent,
        gradients=before.gradients + info.gradients,
    )


def renamed_to_batching(batching: Batching, chains: Batching | None) -> Batching:
    """The batching, also where it is given by its old name; to be called by functions in double precision."""
    if chains is None:
        return batching
    warnings.warn(f"chains={chains!r} is called batching={chains!r} now", DeprecationWarning, stacklevel=4)
    return chains
