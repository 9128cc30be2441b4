"""The compiled side of the training loop: many chains, many iterations, one program.

A *block* is `thin` iterations and, in sampling, the draw after them. A chunk is a run of blocks. Warm-up and sampling
are the same program: how many blocks, how many iterations each, and whether to draw are its arguments, so it is
compiled once. Every key is derived from (seed, chain, iteration), so that a chain does not depend on the size of the
chunks, nor on the chains beside it.

Chains may share the first part of their warm-up. It is then done by the *pilot*, a chain with a name of its own, and
all of them go on from where it ended.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from gpssm.core.elapsed import ticks
from gpssm.core.runtime import in_threads, jit
from gpssm.data.padding import pad, pad_path
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings, States
from gpssm.model.model import GPSSM
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


class Recipe(NamedTuple):
    """What makes a method: its settings, and the model and states it begins with."""

    config: MethodSettings
    model: GPSSM
    states: States

    def method(self) -> Method:
        """The three functions."""
        return self.config.build(self.model, self.states)


class Layout(NamedTuple):
    """How many blocks there is room for in a chunk, how chains are run, and from where on states are kept.

    Either a program runs a single chain, and there is a call for each, or it runs all of them at once, on one device or
    on a mesh of several.
    """

    rows: int
    apart: bool
    mesh: Mesh | None
    kept_from: tuple[int, ...] | None


class Chains:
    """The chains of one method, to be started and advanced.

    Where the method can, they run on padded series (`data/padding.py`), and what they draw is cut back.

    :param recipes: one for all chains, or one for each; they differ in their arrays only.
    :param batching: "map" runs them one by one, on as many cores as there are (best on a CPU), "vmap" all at once in
        one program (best on a GPU), "shard" spreads them over all devices; "auto" takes the best for the devices. On a
        CPU "shard" is "map" with a device for each call, so that draws are the same whatever the number of devices.
    :param chunk: blocks in a chunk at most; by default what keeps memory small.
    :param kept_from: the first state of each series that draws have; None for all.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        series: list[Series],
        seed: int,
        num_chains: int,
        batching: Batching,
        chunk: int | None,
        kept_from: tuple[int, ...] | None = None,
    ) -> None:
        self.num_chains, self.kept_from = num_chains, kept_from
        self.rows = [len(one) for one in series]
        if recipes[0].config.pads:
            recipes = [one._replace(states=tuple(map(pad_path, one.states))) for one in recipes]
            series = [pad(one) for one in series]
        # As JAX arrays here and now, so that they are put on the device once.
        found, self.series = jax.tree.map(_as_array, (list(recipes), series))
        self.recipes: list[Recipe] = found * num_chains if len(found) == 1 else found
        self.key = jax.random.key(seed, impl="threefry2x32")
        on_cpu = jax.default_backend() == "cpu"
        spread = _is_spread(batching, num_chains)
        mesh = Mesh(np.array(jax.devices()), ("chain",)) if spread and not on_cpu else None
        self.devices = jax.devices() if batching == "shard" and on_cpu else []
        if chunk is None:
            size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self._shapes[1].draws))
            chunk = max(1, min(BLOCKS, DRAW_BYTES // size))
        apart = on_cpu if batching in ("auto", "shard") else batching == "map"
        self.layout = Layout(chunk, apart, mesh, kept_from)
        self.compiled = False
        self.compile_seconds = self.run_seconds = 0.0

    @property
    def shapes(self) -> tuple[Any, Chunk]:
        """Shapes of the carry and of a chunk of one block that was brought home, all chains together."""
        carry, chunk = self._shapes
        return carry, jax.eval_shape(self._unpad, chunk)

    @cached_property
    def _shapes(self) -> tuple[Any, Chunk]:
        """Those of what a program gives."""
        carry, chunk = eqx.filter_eval_shape(_shapes, self.recipes[0], self._plan(0, 1, 1, True), self.kept_from)
        several = (self.num_chains,)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(several + leaf.shape, leaf.dtype), (carry, chunk))

    @cached_property
    def together(self) -> Recipe:
        """The recipes of all chains as one, their arrays with an axis for the chain in front."""
        arrays, rest = zip(*(eqx.partition(one, eqx.is_array) for one in self.recipes), strict=True)
        return eqx.combine(self._place(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)), rest[0])

    def start(self, pilot: bool) -> Any:
        """The carry before the first iteration, of every chain or of the pilot in every chain's place."""
        began = ticks()
        carry = self._run(_start, None, self._plan(0, 0, 1, False), pilot)
        self.compile_seconds += ticks() - began
        return carry

    def advance(
        self, carry: Any, first: int, blocks: int, thin: int, keep: bool, pilot: bool = False
    ) -> tuple[Any, Chunk]:
        """Run a chunk from iteration `first` on, by every chain or by the pilot, and bring home what it gave."""
        carry = self._place(carry)
        if not self.compiled:
            # A chunk of no blocks takes as long as it takes to compile, or to find what has been compiled before.
            began = ticks()
            self._run(_advance, carry, self._plan(first, 0, 1, False), pilot=True)
            self.compiled = True
            self.compile_seconds += ticks() - began
        began = ticks()
        carry, chunk = self._run(_advance, carry, self._plan(first, blocks, thin, keep), pilot)
        self.run_seconds += ticks() - began
        info, draws = self._unpad(jax.tree.map(lambda leaf: np.asarray(leaf)[:, :blocks], chunk))
        return carry, Chunk(info, draws if keep else None)

    def _unpad(self, chunk: Chunk) -> Chunk:
        """The chunk without the states of rows that pad."""
        assert chunk.draws is not None
        first = self.kept_from or [0] * len(self.rows)
        kept = [rows + 1 - begin for rows, begin in zip(self.rows, first, strict=True)]
        states = tuple(path[:, :, :count] for path, count in zip(chunk.draws.states, kept, strict=True))
        return chunk._replace(draws=chunk.draws._replace(states=states))

    def _run(self, function: Callable[..., Any], carry: Any, plan: Plan, pilot: bool) -> Any:
        """What the function gives for every chain, or for the pilot in every chain's place."""
        names = np.full(self.num_chains, PILOT) if pilot else np.arange(self.num_chains)
        names = names.astype("uint32")
        if not self.layout.apart:
            given = (self._place(names), carry, plan, self.together, self.layout)
            return jax.block_until_ready(_run(function, *given))

        def one(chain: int) -> Any:
            devices = self.devices
            place = jax.default_device(devices[chain % len(devices)]) if devices else nullcontext()
            own = jax.tree.map(lambda leaf: leaf[chain], carry)
            with place:
                return jax.block_until_ready(_run(function, names[chain], own, plan, self.recipes[chain], self.layout))

        carry = jax.tree.map(np.asarray, carry)
        given = [one(0)] * self.num_chains if pilot else in_threads(one, range(self.num_chains))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *given)

    def _place(self, tree: Any) -> Any:
        mesh = self.layout.mesh
        return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, PartitionSpec("chain")))

    def _plan(self, first: int, blocks: int, thin: int, keep: bool) -> Plan:
        counts: list[Any] = [np.asarray(count, "int32") for count in (first, blocks, thin)]
        return Plan(self.key, self.series, *counts, keep=cast(Any, np.asarray(keep)))


@jit
def _run(function: Callable[..., Any], names: Array, carry: Any, plan: Plan, recipe: Recipe, layout: Layout) -> Any:
    """A function of one chain for all of them, or for the only one.

    The arrays of data, model and states are arguments: fits of equal shapes and settings are the same program. Where
    chains run together so do the arrays of their recipes, with the chain in front.
    """
    if layout.apart:
        return function(names, carry, plan, recipe, layout)
    arrays, rest = eqx.partition(recipe, eqx.is_array)

    def every(names: Array, carry: Any, plan: Plan, arrays: Any) -> Any:
        def one(own: tuple[Array, Any, Any]) -> Any:
            name, carry, arrays = own
            return function(name, carry, plan, eqx.combine(arrays, rest), layout)

        return jax.vmap(one)((names, carry, arrays))

    if layout.mesh is not None:
        split, whole = PartitionSpec("chain"), PartitionSpec()
        specs = (split, split, whole, split)
        every = jax.shard_map(every, mesh=layout.mesh, in_specs=specs, out_specs=split, check_vma=False)
    return every(names, carry, plan, arrays)


def _start(chain: Array, _: None, plan: Plan, recipe: Recipe, layout: Layout | None = None) -> Any:
    """The carry of one chain before its first iteration."""
    carry = recipe.method().init(jax.random.fold_in(jax.random.fold_in(plan.key, chain), 0), plan.series)
    # Without JAX's weak types, which would go at the first iteration.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), carry)


def _advance(chain: Array, carry: Any, plan: Plan, recipe: Recipe, layout: Layout) -> tuple[Any, Chunk]:
    """One chain through a chunk; rows of the result beyond `plan.blocks` are zeros."""
    chain_key, method = jax.random.fold_in(plan.key, chain), _without_states(recipe.method(), layout.kept_from)
    empty = _empty(recipe.config, method, carry, plan, layout.rows)
    no_info, no_draw = jax.tree.map(lambda rows: rows[0], empty)

    def iterate(iteration: Array, state: tuple[Any, Info]) -> tuple[Any, Info]:
        carry, before = state
        key = jax.random.fold_in(jax.random.fold_in(chain_key, iteration), 0)
        carry, info = method.step(key, carry, plan.series)
        return carry, _add_to_block(before, info, plan.thin)

    def block(index: Array, state: tuple[Any, Chunk]) -> tuple[Any, Chunk]:
        carry, chunk = state
        begin = plan.first + index * plan.thin
        end = begin + plan.thin
        carry, info = jax.lax.fori_loop(begin, end, iterate, (carry, no_info))
        key = jax.random.fold_in(jax.random.fold_in(chain_key, end - 1), 1)
        draw = jax.lax.cond(plan.keep, lambda: method.draw(key, carry, plan.series), lambda: no_draw)
        return carry, jax.tree.map(lambda rows, value: rows.at[index].set(value), chunk, Chunk(info, draw))

    return jax.lax.fori_loop(0, plan.blocks, block, (carry, empty))


def _shapes(recipe: Recipe, plan: Plan, kept_from: tuple[int, ...] | None) -> tuple[Any, Chunk]:
    carry = _start(jnp.asarray(0), None, plan, recipe)
    return carry, _empty(recipe.config, _without_states(recipe.method(), kept_from), carry, plan, 1)


def _without_states(method: Method, kept_from: tuple[int, ...] | None) -> Method:
    """The method, whose draws lack the first states of each series."""
    if kept_from is None:
        return method

    def draw(key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
        whole = method.draw(key, carry, series)
        return whole._replace(states=tuple(path[first:] for path, first in zip(whole.states, kept_from, strict=True)))

    return method._replace(draw=draw)


def _empty(config: MethodSettings, method: Method, carry: Any, plan: Plan, blocks: int) -> Chunk:
    """A chunk of zeros for one chain."""
    figure = jnp.asarray(0.0)
    info = Info(figure, figure, jnp.asarray(False), figure, figure, figure if config.judges_bias else None)
    one = Chunk(info, jax.eval_shape(method.draw, plan.key, carry, plan.series))
    return jax.tree.map(lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), one)


def _as_array(leaf: Any) -> Any:
    return jnp.asarray(leaf) if eqx.is_array_like(leaf) else leaf


def _is_spread(batching: Batching, num_chains: int) -> bool:
    """Whether chains are spread over all devices."""
    if batching not in get_args(Batching):
        raise ValueError(f"batching must be one of {', '.join(get_args(Batching))}, got {batching!r}.")
    number = len(jax.devices())
    if batching == "shard" and num_chains % number:
        raise ValueError(
            f"batching='shard' gives each of the {number} devices as many chains: num_chains={num_chains} is no "
            "multiple. Change num_chains, or take batching='auto'."
        )
    return batching == "shard" or (batching == "auto" and number > 1 and num_chains % number == 0)


def _add_to_block(before: Info, info: Info, thin: Array) -> Info:
    """The figures of a block so far: mean acceptance, any divergence, all gradients, and the latest of the others."""
    info = jax.tree.map(lambda value, blank: jnp.asarray(value, blank.dtype), info, before)
    return info._replace(
        acceptance=before.acceptance + info.acceptance / thin,
        divergent=before.divergent | info.divergent,
        gradients=before.gradients + info.gradients,
    )
