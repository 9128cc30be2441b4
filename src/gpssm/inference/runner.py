"""The loop of a run: chunks of compiled iterations, with progress, checkpoints and
interruptions."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import numpy as np

import gpssm
from gpssm.core.files import digest, hold
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_path, check_seed, stable_repr
from gpssm.data.series import Series
from gpssm.inference.chains import Batching, Chains, Chunk
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
from gpssm.inference.settings import MethodSettings, check_settings, checked, choice, whole
from gpssm.model.types import Draw, Info
from gpssm.starts.build import Start


@dataclass(frozen=True)
class Runtime:
    """Settings of a run that do not concern the model.

    Only `num_chains` and `seed` affect the result; `batching` and the device change it only by
    rounding errors.

    Parameters
    ----------
    num_chains
        Number of chains.
    seed
        Seed of all random numbers.
    progress
        True for a progress bar, "plain" for one line per chunk, False for no output.
    checkpoint
        Folder in which the run is saved after each chunk.
    resume
        Whether to continue the run saved in that folder.
    batching
        How chains are run: one after the other or on separate cores ("map"), or in one batch
        ("vmap"); "auto" chooses by the device.
    chunk
        Number of draws between updates of the progress, checkpoints and checks for Ctrl-C; None
        chooses it automatically.
    keep_states
        Number of last rows of each series whose states are stored in draws and checkpoints; "all",
        or "auto", which stores all if they take at most 2 GB.
    callback
        Function that the method `auto` calls with the best posterior so far, whenever there is a
        better one.
    jobs
        Number of processes in which the method `auto` fits and scores its candidates; 1 for this
        process, where chains run in threads.
    cluster
        Address of a Dask scheduler to run the candidates on instead, tcp://host:8786, or a client.
    """

    num_chains: int = whole(4)
    seed: int = checked(0, lambda _, value: check_seed(value))
    progress: Mode = checked(True, lambda _, value: check_progress(value))
    checkpoint: str | Path | None = None
    resume: bool = False
    batching: Batching = choice("auto", get_args(Batching))
    chunk: int | None = whole(None, none="to choose it")
    keep_states: int | Literal["auto", "all"] = "auto"
    callback: Callable[[Any], object] | None = None
    jobs: int = whole(1)
    cluster: Any = None

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("seed", "num_chains"):
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be a function of a posterior; got {self.callback!r}.")
        if self.checkpoint is not None:
            check_path(self.checkpoint)
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs the folder of the run: checkpoint='...'.")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values replaced."""
        return replace(self, **changes)


# Draws per chain at the first look at the precision of a run; each look is at twice as many as the
# one before. They do not depend on `num_draws`, so a run that stopped at one is a part of a longer
# one.
FIRST_LOOK = 50


def next_look(draws: int) -> int:
    """Return the number of draws per chain at the first look after so many draws."""
    return FIRST_LOOK << (draws // FIRST_LOOK).bit_length()


class Sample(NamedTuple):
    """The result of a run.

    Parameters
    ----------
    draws
        Draws with leading axes (chain, draw).
    info
        Diagnostics of the sampler for each draw.
    warmup
        Diagnostics of the sampler in the warm-up, with leading axes (chain, iteration).
    compile_seconds
        Seconds of compilation.
    run_seconds
        Seconds of the iterations.
    notes
        Messages to the user about the run.
    interrupted
        Whether the user has stopped the run before its end.
    """

    draws: Draw
    info: Info
    warmup: Info
    compile_seconds: float
    run_seconds: float
    notes: tuple[str, ...]
    interrupted: bool = False


class Loop:
    """A run in progress.

    Its blocks are single iterations in the warm-up; afterwards, each block is `thin` iterations and
    a draw.

    Parameters
    ----------
    settings
        The settings of the method.
    chains
        The compiled chains.
    checkpoint
        Where to save the run after each chunk; None does not save it.
    num_shared
        The number of first blocks that the pilot chain runs for all chains.
    is_enough
        Whether the draws so far are enough; called at each look.
    """

    def __init__(
        self,
        settings: MethodSettings,
        chains: Chains,
        checkpoint: Checkpoint | None,
        num_shared: int,
        is_enough: Callable[[Sample], bool] | None,
    ) -> None:
        self.settings = settings
        self.chains = chains
        self.checkpoint = checkpoint
        self.num_shared = num_shared
        self.is_enough = is_enough
        self.num_blocks = settings.num_warmup + settings.num_draws
        self.chunks: list[Chunk] = []
        self.blocks_done = 0
        self.notes: list[str] = []

    def run(self, report: Report, pressed: Callable[[], bool]) -> None:
        """Advance chunk by chunk until the end or an interruption by the user.

        Parameters
        ----------
        report
            Called with the status after each chunk.
        pressed
            Whether the user has interrupted the run.
        """
        carry = self._begin()
        while not self._is_done() and not pressed():
            begin = self.blocks_done
            pilot = begin < self.num_shared
            keep = begin >= self.settings.num_warmup
            self.blocks_done = min(begin + self.chains.layout.rows, self._phase_end(begin))
            blocks = self.blocks_done - begin
            thin = self.settings.thin if keep else 1
            carry, chunk = self.chains.advance(
                carry, 1 + self.iterations(begin), blocks, thin, keep, pilot
            )
            self.chunks.append(chunk)
            self._check_finite(chunk.info)
            self._save(begin, carry)
            report(self._status(chunk.info))
        if self.blocks_done < self.num_blocks:
            self._note_interruption()

    def _is_done(self) -> bool:
        """Whether all blocks are done, or a look finds the draws so far to be enough."""
        draws = self.blocks_done - self.settings.num_warmup
        if self.is_enough is None or self.blocks_done >= self.num_blocks:
            return self.blocks_done >= self.num_blocks
        if draws > 0 and next_look(draws - 1) == draws and self.is_enough(self.result()):
            self.num_blocks = self.blocks_done
        return self.blocks_done >= self.num_blocks

    def _phase_end(self, begin: int) -> int:
        """The block at which a chunk that begins at this block ends at the latest."""
        if begin < self.num_shared:
            return self.num_shared
        if begin < self.settings.num_warmup:
            return self.settings.num_warmup
        if self.is_enough is None:
            return self.num_blocks
        look = next_look(begin - self.settings.num_warmup)
        return min(self.settings.num_warmup + look, self.num_blocks)

    def iterations(self, blocks: int) -> int:
        """Return the number of iterations in the first `blocks` blocks."""
        return blocks + (self.settings.thin - 1) * max(blocks - self.settings.num_warmup, 0)

    @property
    def total(self) -> int:
        """The number of iterations of the whole run."""
        return self.iterations(self.num_blocks)

    def result(self) -> Sample:
        """Return the draws so far."""
        sampled = [chunk for chunk in self.chunks if chunk.draws is not None]
        draws = _join([chunk.draws for chunk in sampled])
        info = _join([chunk.info for chunk in sampled])
        # Without warm-up, the diagnostics of zero iterations.
        empty = jax.tree.map(lambda leaf: leaf[:, :0], info)
        warmup = _join([empty, *(chunk.info for chunk in self.chunks if chunk.draws is None)])
        seconds = (self.chains.compile_seconds, self.chains.run_seconds)
        interrupted = self.blocks_done < self.num_blocks
        return Sample(draws, info, warmup, *seconds, tuple(self.notes), interrupted)

    def _begin(self) -> Any:
        """Return the carry from the checkpoint or, without one, from the start."""
        saved = None
        if self.checkpoint is not None:
            carry, chunk = self.chains.shapes
            warmup = chunk._replace(draws=None)
            saved = self.checkpoint.load(
                carry, lambda start: warmup if start < self.settings.num_warmup else chunk
            )
        if saved is None:
            return self.chains.start(pilot=self.num_shared > 0)
        self.blocks_done, self.chunks, carry = saved
        return carry

    def _save(self, begin: int, carry: Any) -> None:
        """Write a checkpoint; if the disk fails, the run continues without checkpoints."""
        if self.checkpoint is None:
            return
        try:
            self.checkpoint.save(begin, self.blocks_done, self.chunks[-1], carry)
        except OSError as error:
            self.notes.append(
                f"No checkpoint could be written to {self.checkpoint.folder} after iteration "
                f"{self.iterations(self.blocks_done)} ({error}). The run continued without it. "
                "Free some space or name another folder for the next run."
            )
            self.checkpoint = None

    def _check_finite(self, info: Info) -> None:
        """Raise if the log target is not finite in any chain after the last iteration."""
        if not np.isfinite(info.log_target[:, -1]).any():
            raise RuntimeError(
                "The log target is not finite in any chain at iteration "
                f"{self.iterations(self.blocks_done)}. Either the start is impossible under the "
                "model (check for outliers and user-defined parts), or the transition has "
                "diverged: try a smaller state_dim or a smaller learning_rate."
            )

    def _note_interruption(self) -> None:
        """Note that draws are missing; without any draw, raise the interruption."""
        done = self.iterations(self.blocks_done)
        message = f"Stopped after {done} of {self.total} iterations"
        advice = "Pass the same arguments with resume=True to continue."
        if self.checkpoint is None:
            advice = "To make a run resumable, pass a folder: checkpoint='...'."
        num_draws = self.blocks_done - self.settings.num_warmup
        if num_draws <= 0:
            raise KeyboardInterrupt(f"{message}, in the warm-up: there are no draws yet. {advice}")
        self.notes.append(f"{message}: {num_draws} draws per chain were kept. {advice}")

    def _status(self, info: Info) -> Status:
        """Return the status of the run after a chunk with these diagnostics."""
        sampled = [chunk.info.log_target for chunk in self.chunks if chunk.draws is not None]
        rhat = float("nan")
        if sampled:
            rhat = running_rhat(np.concatenate(sampled, 1), self.chains.separate_models)
        return Status(
            phase="sampling" if sampled else "warm-up",
            done=self.iterations(self.blocks_done),
            total=self.total,
            acceptance=float(np.mean(info.acceptance)),
            log_target=float(np.mean(info.log_target[:, -1])),
            rhat=rhat,
        )


def _join(parts: Sequence[Any]) -> Any:
    """Concatenate trees with axes (chain, draw) along the draws."""
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
    separate: bool = False,
    least_rows: Sequence[int] = (),
    is_enough: Callable[[Sample], bool] | None = None,
) -> Sample:
    """Run the chains of a method from their starts, on scaled series.

    Parameters
    ----------
    method
        The settings of the method.
    starts
        One start for all chains, or one for each chain: models that differ in the values of their
        leaves. With separate starts, no part of the warm-up is shared.
    series
        Scaled series with delayed inputs.
    runtime
        Chains, seed and other settings of the run.
    identity
        What must match for a checkpoint to be continued, besides data, seed and number of chains;
        by default, the method and the models.
    kept_from
        The first state of each series that draws contain; None for all.
    separate
        Whether chains have separate starts, even if there is only one chain: no part of the warm-up
        is then shared.
    least_rows
        Minimum number of rows to which each series is padded; see `Chains`.
    is_enough
        Whether the draws so far are enough, so that the run can stop at a look.
    """
    if len(starts) not in (1, runtime.num_chains):
        raise ValueError(
            f"starts must be one for all chains, or one for each of {runtime.num_chains}; got "
            f"{len(starts)}."
        )
    began = monotonic()
    independent = method.draw_independently(
        starts[0].model, series, runtime.num_chains, runtime.seed
    )
    if independent is not None:
        draws, info = independent
        first = kept_from or (0,) * len(series)
        states = tuple(path[:, :, begin:] for path, begin in zip(draws.states, first, strict=True))
        warmup = jax.tree.map(lambda leaf: leaf[:, :0], info)
        return Sample(draws._replace(states=states), info, warmup, 0.0, monotonic() - began, ())
    how = (runtime.seed, runtime.num_chains, runtime.batching, runtime.chunk)
    chains = Chains(method, starts, series, *how, kept_from, least_rows)
    checkpoint = None
    if runtime.checkpoint is not None:
        models = {"method": stable_repr(method), "model": digest([item.model for item in starts])}
        # What must be the same for a checkpoint to be continued.
        fingerprint = {
            "data": digest(series),
            **(models if identity is None else identity),
            "seed": str(runtime.seed),
            "chains": str(runtime.num_chains),
            "version": gpssm.__version__,
            **({} if kept_from is None else {"states": str(kept_from)}),
        }
        checkpoint = Checkpoint.open(runtime.checkpoint, fingerprint, runtime.resume)
    separate = separate or len(starts) > 1
    shared = 0 if separate else method.num_shared(starts[0].model)
    loop = Loop(method, chains, checkpoint, shared, is_enough)
    lock = nullcontext() if checkpoint is None else hold(checkpoint.folder)
    with lock, reporter(runtime.progress, loop.total) as report, interruption() as pressed:
        loop.run(report, pressed)
    return loop.result()
