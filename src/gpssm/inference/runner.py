"""The only training loop: chunks of compiled iterations, with progress, checkpoints and a way out between them."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

import gpssm
from gpssm.core.elapsed import ticks
from gpssm.core.files import digest, hold
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import stable_repr
from gpssm.data.series import Series
from gpssm.inference.chains import Batching, Chains, Chunk, Recipe, renamed_to_batching
from gpssm.inference.checkpoint import Checkpoint
from gpssm.inference.progress import Mode, Report, Status, interruption, reporter, running_rhat
from gpssm.inference.settings import MethodSettings
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info


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
def sample(
    config: MethodSettings,
    model: GPSSM,
    states: Sequence[Float[ArrayLike, "_ Dx"]],
    series: list[Series],
    *,
    num_chains: int = 4,
    seed: int = 0,
    progress: Mode = False,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    batching: Batching = "auto",
    chunk: int | None = None,
    kept_from: tuple[int, ...] | None = None,
    chains: Batching | None = None,
    others: Sequence[tuple[GPSSM, Sequence[Float[ArrayLike, "_ Dx"]]]] | None = None,
) -> Sample:
    """Run a method's chains on a model and scaled series from these states: `fit` without its preparations.

    The other arguments are those of `fit`.

    :param others: model and states of the second chain, the third and so on, where each has its own: models that differ
        in the values of their leaves. No part of the warm-up is then shared.
    :param kept_from: the first state of each series that draws have; None for all.
    """
    batching = renamed_to_batching(batching, chains)
    for name, value in (("num_chains", num_chains), ("chunk", 1 if chunk is None else chunk)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    if resume and checkpoint is None:
        raise ValueError("resume=True needs a folder to resume from: checkpoint='...'.")
    if others is not None and len(others) != num_chains - 1:
        raise ValueError(f"others must be one for each chain but the first, {num_chains - 1}; got {len(others)}.")
    began = ticks()
    if (drawn := config.draw_independently(model, series, num_chains, seed)) is not None:
        draws, info = drawn
        first = (0,) * len(series) if kept_from is None else kept_from
        kept = tuple(path[:, :, begin:] for path, begin in zip(draws.states, first, strict=True))
        warmup = Info(*(leaf[:, :0] for leaf in info))
        return Sample(draws._replace(states=kept), info, warmup, 0.0, ticks() - began, ())
    recipes = [
        Recipe(config, own, tuple(jnp.asarray(path) for path in paths))
        for own, paths in [(model, states), *(others or ())]
    ]
    runner = Chains(recipes, series, seed, num_chains, batching, chunk, kept_from)
    store = None
    if checkpoint is not None:
        fingerprint = {
            "data": digest(series),
            "method": stable_repr(config),
            "model": digest([model, *(own for own, _ in others)] if others else model),
            "seed": str(seed),
            "chains": str(num_chains),
            "version": gpssm.__version__,
        }
        fingerprint |= {} if kept_from is None else {"states": str(kept_from)}
        store = Checkpoint.open(checkpoint, fingerprint, resume)
    loop = Loop(config, runner, store, config.num_shared(model) if others is None else 0)
    alone = nullcontext() if store is None else hold(store.folder)
    with alone, reporter(progress, loop.total) as report, interruption() as pressed:
        loop.run(report, pressed)
    return loop.result()
