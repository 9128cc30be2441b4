"""The only training loop: chunks of compiled iterations, with progress, checkpoints and a way out between them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np

import gpssm
from gpssm.core.files import digest, hold
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_path, check_seed, check_whole, stable_repr
from gpssm.data.series import Series
from gpssm.inference.chains import Batching, Chains, Chunk, Recipe
from gpssm.inference.checkpoint import Checkpoint
from gpssm.inference.progress import (
    Mode,
    Report,
    Status,
    check_progress,
    interruption,
    reporter,
    running_rhat,
)
from gpssm.inference.settings import MethodSettings
from gpssm.model.types import Draw, Info
from gpssm.starts.build import Start


@dataclass(frozen=True)
class Runtime:
    """How a run is done: what does not belong to the model.

    The result depends on `num_chains` and `seed`, bit for bit, and on nothing else here; `batching`
    and the device change the rounding.

    Parameters
    ----------
    num_chains
        Number of chains.
    seed
        Seed of all randomness.
    progress
        True for a bar, "plain" for one line per chunk, False for silence.
    checkpoint
        A folder to save the run in after each chunk.
    resume
        Whether to continue from what is in that folder.
    batching
        How chains are run: one after the other ("map"), at once ("vmap"), spread over all devices
        ("shard"); "auto" takes the best for the devices there are.
    chunk
        Draws between two looks at progress, checkpoint and Ctrl-C; None to choose it.
    keep_states
        Of how many of the last rows of each series draws and checkpoints hold the states; "all",
        or "auto", which is all of them while they take up to 2 GB.
    """

    num_chains: int = 4
    seed: int = 0
    progress: Mode = True
    checkpoint: str | Path | None = None
    resume: bool = False
    batching: Batching = "auto"
    chunk: int | None = None
    keep_states: int | Literal["auto", "all"] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        check_whole("num_chains", self.num_chains, 1)
        object.__setattr__(self, "num_chains", int(self.num_chains))
        check_whole("chunk", self.chunk, 1, none="to choose it")
        check_progress(self.progress)
        if not isinstance(self.batching, str) or self.batching not in get_args(Batching):
            raise ValueError(f"batching must be one of {', '.join(get_args(Batching))}, got {self.batching!r}.")
        if self.checkpoint is not None:
            check_path(self.checkpoint)
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs a folder to resume from: checkpoint='...'.")

    def replace(self, **changes: Any) -> Self:
        """The same with other values."""
        return replace(self, **changes)


class Sample(NamedTuple):
    """What the loop gives back: draws and figures with axes (chain, draw), and what there is to say about them."""

    draws: Draw
    info: Info
    warmup: Info
    compile_seconds: float
    run_seconds: float
    notes: tuple[str, ...]


class Loop:
    """A run in progress. Its blocks are the iterations of the warm-up, then `thin` iterations and a draw each.

    The first `shared` of them are done once for all chains, by the pilot.
    """

    def __init__(self, config: MethodSettings, chains: Chains, store: Checkpoint | None, shared: int) -> None:
        self.config, self.chains, self.store, self.shared = config, chains, store, shared
        self.chunks: list[Chunk] = []
        self.done = 0
        self.notes: list[str] = []

    def run(self, report: Report, pressed: Callable[[], bool]) -> None:
        """Advance chunk by chunk to the end, or to the chunk in which the user wants it to end."""
        warmup, end = self.config.num_warmup, self.config.num_warmup + self.config.num_draws
        carry = self._begin()
        while self.done < end and not pressed():
            begin, pilot, keep = self.done, self.done < self.shared, self.done >= warmup
            self.done = min(begin + self.chains.layout.rows, self.shared if pilot else end if keep else warmup)
            blocks, thin = self.done - begin, self.config.thin if keep else 1
            carry, chunk = self.chains.advance(carry, 1 + self.iterations(begin), blocks, thin, keep, pilot)
            self.chunks.append(chunk)
            self._check_finite(chunk.info)
            self._save(begin, carry)
            report(self._status(chunk.info))
        if self.done < end:
            self._note_interruption()

    def iterations(self, blocks: int) -> int:
        """The number of iterations in so many blocks."""
        return blocks + (self.config.thin - 1) * max(blocks - self.config.num_warmup, 0)

    @property
    def total(self) -> int:
        """The number of iterations of the whole run."""
        return self.iterations(self.config.num_warmup + self.config.num_draws)

    def result(self) -> Sample:
        """What has been drawn so far."""
        kept = [chunk for chunk in self.chunks if chunk.draws is not None]
        draws, info = _join([chunk.draws for chunk in kept]), _join([chunk.info for chunk in kept])
        nothing = jax.tree.map(lambda leaf: leaf[:, :0], info)
        warmup = _join([nothing, *(chunk.info for chunk in self.chunks if chunk.draws is None)])
        return Sample(draws, info, warmup, self.chains.compile_seconds, self.chains.run_seconds, tuple(self.notes))

    def _begin(self) -> Any:
        """The carry to go on from: that of the checkpoint if there is one, else that of the start."""
        saved = None
        if self.store is not None:
            carry, chunk = self.chains.shapes
            warmup = chunk._replace(draws=None)
            saved = self.store.load(carry, lambda start: warmup if start < self.config.num_warmup else chunk)
        if saved is None:
            return self.chains.start(pilot=self.shared > 0)
        self.done, self.chunks, carry = saved
        return carry

    def _save(self, begin: int, carry: Any) -> None:
        """Write a checkpoint; a disk that fails ends the checkpoints, not the run."""
        if self.store is None:
            return
        try:
            self.store.save(begin, self.done, self.chunks[-1], carry)
        except OSError as error:
            self.notes.append(
                f"No checkpoint could be written to {self.store.folder} after iteration {self.iterations(self.done)} "
                f"({error}). The run went on without; free some space, or name another folder, for the next one."
            )
            self.store = None

    def _check_finite(self, info: Info) -> None:
        if not np.isfinite(info.log_target[:, -1]).any():
            raise RuntimeError(
                f"The log target is not finite in any chain at iteration {self.iterations(self.done)}. Either the "
                "start is impossible under the model (look for outliers, and at parts you gave yourself), or "
                "the transition has run away: try a smaller state_dim, mean='linear', or a smaller learning_rate."
            )

    def _note_interruption(self) -> None:
        """Say in a note that draws are missing; if all are, there is no posterior to put it in."""
        at = f"Stopped by the user after {self.iterations(self.done)} of {self.total} iterations"
        go_on = "Give the same arguments with resume=True to continue."
        if self.store is None:
            go_on = "To be able to continue a run, give it a folder: checkpoint='...'."
        if self.done <= self.config.num_warmup:
            raise KeyboardInterrupt(f"{at}, in the warm-up: nothing has been drawn yet. {go_on}")
        self.notes.append(f"{at}: {self.done - self.config.num_warmup} draws a chain were kept. {go_on}")

    def _status(self, info: Info) -> Status:
        kept = [chunk.info.log_target for chunk in self.chunks if chunk.draws is not None]
        apart = self.chains.recipes[-1] is not self.chains.recipes[0]
        return Status(
            phase="sampling" if kept else "warm-up",
            done=self.iterations(self.done),
            total=self.total,
            acceptance=float(np.mean(info.acceptance)),
            log_target=float(np.mean(info.log_target[:, -1])),
            rhat=running_rhat(np.concatenate(kept, 1), apart) if kept else float("nan"),
        )


def _join(parts: Sequence[Any]) -> Any:
    """Trees with axes (chain, draw) one after the other along the draws."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)


@in_double_precision
def run_chains(
    method: MethodSettings,
    starts: Sequence[Start],
    series: list[Series],
    runtime: Runtime,
    *,
    identity: Mapping[str, str] | None = None,
    kept_from: tuple[int, ...] | None = None,
) -> Sample:
    """Run a method's chains from their starts, on scaled series.

    Parameters
    ----------
    method
        The settings of the method.
    starts
        One start for all chains, or one for each: models that differ in the values of their
        leaves. Where each chain has its own, no part of the warm-up is shared.
    series
        Scaled, with inputs as they arrive.
    runtime
        Chains, seed, and how the run is done.
    identity
        What a checkpoint must agree with besides data, seed and number of chains; the method and
        the models by default.
    kept_from
        The first state of each series that draws hold; None for all.
    """
    if len(starts) not in (1, runtime.num_chains):
        raise ValueError(
            f"starts must be one for all chains, or one for each of {runtime.num_chains}; got {len(starts)}."
        )
    recipes = [Recipe(method, start.model, tuple(jnp.asarray(path) for path in start.states)) for start in starts]
    chains = Chains(recipes, series, runtime.seed, runtime.num_chains, runtime.batching, runtime.chunk, kept_from)
    store = None
    if runtime.checkpoint is not None:
        if identity is None:
            identity = {
                "method": stable_repr(method),
                "model": digest([start.model for start in starts]),
            }
        fingerprint = {
            "data": digest(series),
            **identity,
            "seed": str(runtime.seed),
            "chains": str(runtime.num_chains),
            "version": gpssm.__version__,
        }
        fingerprint |= {} if kept_from is None else {"states": str(kept_from)}
        store = Checkpoint.open(runtime.checkpoint, fingerprint, runtime.resume)
    shared = method.num_shared(starts[0].model) if len(starts) == 1 else 0
    loop = Loop(method, chains, store, shared)
    alone = nullcontext() if store is None else hold(store.folder)
    with alone, reporter(runtime.progress, loop.total) as report, interruption() as pressed:
        loop.run(report, pressed)
    return loop.result()
