"""The data of a fit, and the only place where they change between the user's units and the model's.

    y ↦ (y − mean) / std,   u ↦ (u'_t − mean) / std   with   u'_{t,j} = u_{t−d_j, j}

A `Dataset` holds experiments as the user gave them and what a model makes of them: the scales, the rows d_j after which
each input acts, how long experiments are cut into windows, and of how many rows the states are stored. Everything that
enters a model is encoded by it, and everything that leaves one is decoded.

**Windows** make a long experiment parallel. A window is an experiment of its own that shares everything with the others
but its states. It has T_w + 1 of them, the first of which stands for the same moment as the last of the window before,
and is dropped when the windows are joined again:

    x₀ | x₁ … x_a | x_{a+1} … x_b | …        the states of windows of rows 0 … a−1, a … b−1, …

**Stored states.** All states of all draws of a long experiment are more than a machine can hold. Draws then have those
of its last rows, on which forecasts and diagnostics rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_whole, count, demand, is_whole
from gpssm.data.clock import clock_of
from gpssm.data.columns import align_columns, where_first
from gpssm.data.delays import Rows, arriving, find_lags
from gpssm.data.scaler import Scaler, Scaling, output_spread
from gpssm.data.series import Series, align_rows, as_list, check_trainable

StoredRows = int | Literal["auto", "all"]
STORED_BYTES = 2**31  # of states in all draws, above which "auto" stores the last of them only
SHORTEST_WINDOW = 20  # rows
# Rows at the end of the training data that a filter runs through again before new ones, so that their states are always
# stored. A draw has one last state, which new data could only move by the process noise; from a state further back, its
# cloud at the end is as wide as it should be.
LOOKBACK = 20


@dataclass(frozen=True)
class Dataset:
    """Experiments in the user's units, and what turns them into what a model sees.

        dataset = Dataset.of([first, second], delay={"valve": 3})
        dataset.encode(dataset.align(new_rows))
        dataset.decode(paths)

    Parameters
    ----------
    experiments : tuple of Series
        Training data as the user gave them, all with the columns of the first. Outputs on which unknown inputs acted
        are missing.
    scaler : Scaler
        Mean and standard deviation of each output, and of each input.
    delay : tuple of int
        Rows after which each input acts; empty if all act at once.
    windows : int
        Into how many windows each experiment is cut to be fitted.
    first_states : tuple of int
        The first state of each experiment that draws have; empty if they have all.
    """

    experiments: tuple[Series, ...]
    scaler: Scaler
    delay: tuple[int, ...] = ()
    windows: int = 1
    first_states: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        several = all(isinstance(one, Series) for one in self.experiments)
        demand("dataset", self.experiments and several, "has no experiments that are series")
        demand("scaler", isinstance(self.scaler, Scaler), f"is a {type(self.scaler).__name__}")
        lengths = [len(one) for one in self.experiments]
        widths = len(self.scaler.output_std), len(self.scaler.input_std)
        fits = all((one.output_dim, one.input_dim) == widths for one in self.experiments)
        demand("scaler", fits, f"has scales of {widths[0]} outputs and {widths[1]} inputs")
        whole = all(type(lag) is int and 0 <= lag < min(lengths) for lag in self.delay)
        demand("delay", whole and len(self.delay) in (0, widths[1]), f"cannot be: {self.delay}")
        check_whole("windows", self.windows, 1)
        pairs = zip(self.first_states, lengths, strict=bool(self.first_states))
        possible = all(type(first) is int and 0 <= first <= length + 1 for first, length in pairs)
        demand("first_states", possible, f"cannot be: {self.first_states}")
        experiments = tuple(
            _without_unknown(one, max(self.delay, default=0)) for one in self.experiments
        )
        object.__setattr__(self, "experiments", experiments)

    @classmethod
    def of(
        cls,
        series: Any,
        *,
        delay: Rows | Literal["auto"] = 0,
        windows: int = 1,
        outputs_scaling: Scaling = "standard",
    ) -> Self:
        """The training data of a fit, checked.

        Parameters
        ----------
        series
            A `Series`, anything that `Series.of` takes, or a list of those.
        delay
            Rows after which inputs act: one number, one for each by name or in order, or "auto" for what
            `gpssm.delays` finds.
        windows
            Into how many windows of nearly equal length each experiment is cut.
        outputs_scaling
            How outputs are scaled: see `Scaler.fit`.
        """
        experiments = as_list(series)
        lags = find_lags(experiments, delay)
        check_trainable([_without_unknown(one, max(lags, default=0)) for one in experiments])
        check_whole("windows", windows, 1)
        shortest = min(len(one) for one in experiments)
        if windows > 1 and shortest < SHORTEST_WINDOW * windows:
            raise ValueError(
                f"windows={windows} would be shorter than {SHORTEST_WINDOW} rows, of a series of {shortest}: ask for "
                "fewer windows"
            )
        scaler = Scaler.fit(
            [_acting(one, lags, _unknown(lags)) for one in experiments], outputs=outputs_scaling
        )
        return cls(tuple(experiments), scaler, lags, int(windows))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.experiments[0].outputs

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return self.experiments[0].inputs

    @property
    def units(self) -> dict[str, str]:
        """The units of columns by name."""
        return {name: unit for one in self.experiments for name, unit in one.units.items()}

    @property
    def output_spread(self) -> Float[np.ndarray, " Dy"]:
        """The standard deviation of each output over all rows, in the user's units."""
        return output_spread(self.experiments)

    @property
    def input_range(self) -> dict[str, tuple[float, float]]:
        """The lowest and highest value of each input by name, in the user's units."""
        u = np.concatenate([one.u for one in self.experiments])
        return {
            name: (float(np.nanmin(column)), float(np.nanmax(column)))
            for name, column in zip(self.inputs, u.T, strict=True)
        }

    @cached_property
    def acting(self) -> tuple[Series, ...]:
        """The experiments with inputs in the rows on which they act, in the user's units."""
        return tuple(_acting(one, self.delay, _unknown(self.delay)) for one in self.experiments)

    @cached_property
    def scaled(self) -> tuple[Series, ...]:
        """The experiments as a model sees them."""
        return tuple(self.scaler.scale(one) for one in self.acting)

    def experiment(self, index: int) -> Series:
        """One experiment by its number, in the user's units."""
        number = len(self.experiments)
        if not is_whole(index) or not -number <= index < number:
            raise IndexError(
                f"there are {number} training series, counted from 0; got index {index!r}"
            )
        return self.experiments[index]

    def align(self, rows: Any) -> Series:
        """New rows of one experiment with the columns of the training data, in the user's units."""
        return align_rows(rows, self.experiments[0])

    def encode(self, rows: Series, past: Float[np.ndarray, "K Du"] | None = None) -> Series:
        """Aligned rows as a model sees them: scaled, with inputs where they act.

        Parameters
        ----------
        rows
            Rows in the user's units, inputs where they were set.
        past
            The inputs of the K rows before, K the longest delay, NaN where they are unknown; without it all are.
        """
        return self.scaler.scale(
            _acting(rows, self.delay, _unknown(self.delay) if past is None else past)
        )

    def encode_inputs(
        self, u: Float[np.ndarray, "*batch T Du"]
    ) -> Float[np.ndarray, "*batch T Du"]:
        """Inputs of the rows on which they act, in the model's units."""
        return self.scaler.scale_inputs(u)

    def decode_inputs(
        self, values: Float[np.ndarray, "*batch T Du"]
    ) -> Float[np.ndarray, "*batch T Du"]:
        """Inputs of the model in the user's units, in the rows on which they act."""
        return values * np.array(self.scaler.input_std) + np.array(self.scaler.input_mean)

    def decode(self, values: Any) -> Float[np.ndarray, "*batch Dy"]:
        """Paths or means of the outputs in the user's units."""
        return self.scaler.unscale_mean(values)

    def decode_variance(self, values: Any) -> Float[np.ndarray, "*batch Dy"]:
        """Variances of the outputs in the user's units."""
        return self.scaler.unscale_variance(values)

    def inputs_ahead(
        self, u: Any, horizon: int | None = None, past: Float[np.ndarray, "K Du"] | None = None
    ) -> tuple[Float[np.ndarray, "H Du"], Float[np.ndarray, "H Du"]]:
        """Inputs of the steps ahead, as they are set in the user's units, and as a model sees them.

        The last rows may be left out, and are then NaN, as far as every input acts after the horizon.

        Parameters
        ----------
        u
            What the user gave: anything with the columns of the inputs, or None if there are none.
        horizon
            Number of steps; without it as many as u has rows, or one.
        past
            The inputs of the rows before, as in `encode`.
        """
        check_whole("horizon", horizon, 1, none="for as many steps as u has rows")
        ahead = np.zeros((0, len(self.inputs)))
        if u is not None:
            u = Series.of(u) if hasattr(u, "sampling_time") else u
            ahead = align_columns(u, self.inputs, "u")[:horizon]
            axis = self.experiments[0].axis
            if axis is not None:
                axis.check_step(u.axis if isinstance(u, Series) else clock_of(u), len(u))
        steps, spare = horizon or max(len(ahead), 1), min(self.delay, default=0)
        if self.inputs and len(ahead) < steps - spare:
            allowance = f", but the last {spare}" if spare else ""
            raise ValueError(
                f"the inputs of the model ({', '.join(self.inputs)}) must be known at each of the {steps} steps ahead"
                f"{allowance}: pass u with {steps - spare} rows; got {len(ahead)}"
            )
        if not np.isfinite(ahead).all():
            where = where_first(~np.isfinite(ahead), self.inputs)
            raise ValueError(f"{where} of u is NaN or infinite: an input is always known")
        ahead = np.pad(ahead, ((0, steps - len(ahead)), (0, 0)), constant_values=np.nan)
        before = _unknown(self.delay) if past is None else past
        return ahead, self.encode_inputs(arriving(ahead, self.delay, before))

    def past_inputs(self, index: int = -1, row: int | None = None) -> Float[np.ndarray, "K Du"]:
        """The inputs of the K rows before a row of an experiment, K the longest delay; without a row, before its end.

        They are NaN before the first row.
        """
        series, longest = self.experiment(index), max(self.delay, default=0)
        row = len(series) if row is None else row
        return np.concatenate([np.full((longest, len(self.inputs)), np.nan), series.u])[
            row : row + longest
        ]

    def extend(self, rows: Series, index: int | None = None) -> Self:
        """The dataset with aligned rows after those of an experiment, or as an experiment of their own."""
        experiments = [*self.experiments, rows]
        if index is not None:
            old = self.experiment(index)
            experiments.pop()
            experiments[index] = replace(
                old, y=np.concatenate([old.y, rows.y]), u=np.concatenate([old.u, rows.u])
            )
        check_trainable(experiments)
        return replace(self, experiments=tuple(experiments), windows=1)

    def with_states(self) -> Self:
        """The rows whose states are stored as all the data there are, with inputs in the rows on which they act."""
        if not self.first_states:
            return self
        pairs = zip(self.acting, self.first_states, strict=True)
        return replace(
            self, experiments=tuple(one[first:] for one, first in pairs), delay=(), first_states=()
        )

    def store_last(self, rows: StoredRows, numbers: int) -> tuple[Self, tuple[str, ...]]:
        """The dataset with the first state of each experiment that is stored, and a note where "auto" drops some.

        Parameters
        ----------
        rows
            Number of last rows whose states are stored; "all"; or "auto", all if they take little memory.
        numbers
            In the states of one row, over all draws of all chains.
        """
        if not (isinstance(rows, str) and rows in ("auto", "all")) and not (
            is_whole(rows) and rows >= LOOKBACK
        ):
            raise ValueError(
                f"keep_states must be auto, all, or a number of rows of at least {LOOKBACK}; got {rows!r}."
            )
        lengths, notes = [len(one) for one in self.experiments], ()
        stored = max(lengths) if isinstance(rows, str) else int(rows)
        if rows == "auto" and 8 * numbers * sum(lengths) > STORED_BYTES:
            stored = max(STORED_BYTES // (8 * numbers * len(lengths)), LOOKBACK)
            notes = (
                f"Only the states of the last {count(stored, 'row')} were kept: all of them would take "
                f"{8 * numbers * sum(lengths) / 1e9:.1f} GB. keep_states='all', or a number of rows, says otherwise.",
            )
        first = tuple(max(length - stored, 0) for length in lengths)
        return replace(self, first_states=first if any(first) else ()), notes

    def windowed(self) -> Self:
        """The windows of all experiments, one after the other, each an experiment of its own."""
        windows, firsts = [], []
        for number, one in enumerate(self.acting):
            stored = self.first_states[number] if self.first_states else 0
            for begin, end in self._windows(one):
                windows.append(one[begin:end])
                # Two windows share the state between them: it belongs to the first.
                firsts.append(min(max(stored - begin, int(begin > 0)), end - begin + 1))
        first_states = tuple(firsts) if self.first_states or self.windows > 1 else ()
        return replace(
            self, experiments=tuple(windows), delay=(), windows=1, first_states=first_states
        )

    def cut(self, paths: Any) -> Any:
        """Paths of states (T+1, Dx), one for each experiment, cut into its windows; names of starts as they are."""
        if (
            self.windows == 1
            or isinstance(paths, str)
            or any(isinstance(one, str) for one in paths)
        ):
            return paths
        several = [paths] if np.ndim(paths[0]) == 1 else paths
        pairs = zip(several, self.experiments, strict=True)
        return [
            np.asarray(path)[begin : end + 1]
            for path, one in pairs
            for begin, end in self._windows(one)
        ]

    def join(self, paths: Sequence[Any]) -> tuple[Any, ...]:
        """The stored states of each window (chain, draw, _, Dx), joined for each experiment."""
        if self.windows == 1:
            return tuple(paths)
        groups = (
            paths[first : first + self.windows] for first in range(0, len(paths), self.windows)
        )
        return tuple(np.concatenate(group, axis=2) for group in groups)

    def _windows(self, one: Series) -> Iterable[tuple[int, int]]:
        return pairwise(len(one) * number // self.windows for number in range(self.windows + 1))


def _unknown(delay: Sequence[int]) -> Float[np.ndarray, "K Du"]:
    """The inputs before the first row of an experiment, which nobody knows."""
    return np.full((max(delay, default=0), len(delay)), np.nan)


def _acting(series: Series, delay: Sequence[int], past: Float[np.ndarray, "K Du"]) -> Series:
    """Rows with inputs where they act, and outputs missing where unknown ones have acted on them."""
    if not delay:
        return series
    seen = _without_unknown(series, int(np.isnan(past[:, 0]).sum()))
    return replace(seen, u=arriving(series.u, delay, past))


def _without_unknown(series: Series, rows: int) -> Series:
    """An experiment without the outputs of its first rows, on which unknown inputs acted."""
    if np.isnan(series.y[:rows]).all():
        return series
    return replace(
        series, y=np.concatenate([np.full_like(series.y[:rows], np.nan), series.y[rows:]])
    )
