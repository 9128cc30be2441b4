"""The data of a fit, and the only place where they change between the user's units and the model's.

    y ↦ (y − mean) / std,   u ↦ (u'_t − mean) / std   with   u'_{t,j} = u_{t−d_j, j}

A `Dataset` holds experiments as the user gave them and what a model makes of them: the scales, the
rows d_j after which each input acts, how long experiments are cut into windows, and of how many
rows the states are stored. Everything that enters a model is encoded by it, and everything that
leaves one is decoded.

**Windows** make a long experiment parallel. A window is an experiment of its own that shares
everything with the others but its states. It has T_w + 1 of them, the first of which stands for the
same moment as the last of the window before, and is dropped when the windows are joined again:

    x₀ | x₁ … x_a | x_{a+1} … x_b | …        the states of windows of rows 0 … a−1, a … b−1, …

**Stored states.** All states of all draws of a long experiment are more than a machine can hold.
Draws then have those of its last rows, on which forecasts and diagnostics rest.
"""

import warnings
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
from gpssm.data.series import Series, align_rows, as_list, check_trainable, varying

StoredRows = int | Literal["auto", "all"]
STORED_BYTES = 2**31  # of states in all draws, above which "auto" stores the last of them only
SHORTEST_WINDOW = 20  # rows
# Rows at the end of the training data that a filter runs through again before new ones, so that
# their states are always stored. A draw has one last state, which new data could only move by the
# process noise; from a state further back, its cloud at the end is as wide as it should be.
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
        Training data as the user gave them, all with the columns of the first. Outputs on which
        unknown inputs acted are missing.
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
        series = all(isinstance(rows, Series) for rows in self.experiments)
        demand("dataset", self.experiments and series, "has no experiments that are series")
        demand("scaler", isinstance(self.scaler, Scaler), f"is a {type(self.scaler).__name__}")
        lengths = [len(rows) for rows in self.experiments]
        widths = len(self.scaler.output_std), len(self.scaler.input_std)
        fits = all((rows.output_dim, rows.input_dim) == widths for rows in self.experiments)
        demand("scaler", fits, f"has scales of {widths[0]} outputs and {widths[1]} inputs")
        whole = all(type(lag) is int and 0 <= lag < min(lengths) for lag in self.delay)
        demand("delay", whole and len(self.delay) in (0, widths[1]), f"cannot be: {self.delay}")
        check_whole("windows", self.windows, 1)
        pairs = zip(self.first_states, lengths, strict=bool(self.first_states))
        possible = all(type(first) is int and 0 <= first <= length + 1 for first, length in pairs)
        demand("first_states", possible, f"cannot be: {self.first_states}")
        longest = max(self.delay, default=0)
        experiments = tuple(_without_unknown(rows, longest) for rows in self.experiments)
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
            Rows after which inputs act: one number, one for each by name or in order, or "auto" for
            what `gpssm.delays` finds.
        windows
            Into how many windows of nearly equal length each experiment is cut.
        outputs_scaling
            How outputs are scaled: see `Scaler.fit`.
        """
        experiments = as_list(series)
        lags = find_lags(experiments, delay)
        longest = max(lags, default=0)
        check_trainable([_without_unknown(rows, longest) for rows in experiments])
        _report_constant_inputs(experiments)
        check_whole("windows", windows, 1)
        shortest = min(len(rows) for rows in experiments)
        if windows > 1 and shortest < SHORTEST_WINDOW * windows:
            raise ValueError(
                f"windows={windows} would be shorter than {SHORTEST_WINDOW} rows, of a series of "
                f"{shortest}: ask for fewer windows"
            )
        acting = [_acting(rows, lags) for rows in experiments]
        scaler = Scaler.fit(acting, outputs=outputs_scaling)
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
        return {name: unit for rows in self.experiments for name, unit in rows.units.items()}

    @property
    def output_spread(self) -> Float[np.ndarray, " Dy"]:
        """The standard deviation of each output over all rows, in the user's units."""
        return output_spread(self.experiments)

    @property
    def input_range(self) -> dict[str, tuple[float, float]]:
        """The lowest and highest value of each input by name, in the user's units."""
        u = np.concatenate([rows.u for rows in self.experiments])
        ends = zip(u.min(axis=0).tolist(), u.max(axis=0).tolist(), strict=True)
        return dict(zip(self.inputs, ends, strict=True))

    @cached_property
    def acting(self) -> tuple[Series, ...]:
        """The experiments with inputs in the rows on which they act, in the user's units."""
        return tuple(_acting(rows, self.delay) for rows in self.experiments)

    @cached_property
    def scaled(self) -> tuple[Series, ...]:
        """The experiments as a model sees them."""
        return tuple(self.scaler.scale(rows) for rows in self.acting)

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
            The inputs of the K rows before, K the longest delay, NaN where they are unknown; by
            default all are.
        """
        return self.scaler.scale(_acting(rows, self.delay, past))

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

        The last rows may be left out, and are then NaN, as far as every input acts after the
        horizon.

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
                f"the inputs of the model ({', '.join(self.inputs)}) must be known at each of the "
                f"{steps} steps ahead{allowance}: pass u with {steps - spare} rows; got "
                f"{len(ahead)}"
            )
        if not np.isfinite(ahead).all():
            where = where_first(~np.isfinite(ahead), self.inputs)
            raise ValueError(f"{where} of u is NaN or infinite: an input is always known")
        ahead = np.pad(ahead, ((0, steps - len(ahead)), (0, 0)), constant_values=np.nan)
        before = _unknown(self.delay) if past is None else past
        return ahead, self.encode_inputs(arriving(ahead, self.delay, before))

    def past_inputs(self, index: int = -1, row: int | None = None) -> Float[np.ndarray, "K Du"]:
        """The inputs of the K rows before a row of an experiment, K the longest delay.

        They are NaN before the first row. Without a row, those before the end.
        """
        series = self.experiment(index)
        row = len(series) if row is None else row
        unknown = np.full((max(self.delay, default=0), len(self.inputs)), np.nan)
        return np.concatenate([unknown, series.u])[row : row + len(unknown)]

    def extend(self, rows: Series, index: int | None = None) -> Self:
        """The dataset with aligned rows after those of an experiment, or as an experiment."""
        experiments = [*self.experiments, rows]
        if index is not None:
            before = self.experiment(index)
            y, u = np.concatenate([before.y, rows.y]), np.concatenate([before.u, rows.u])
            experiments.pop()
            experiments[index] = replace(before, y=y, u=u)
        check_trainable(experiments)
        return replace(self, experiments=tuple(experiments), windows=1)

    def with_states(self) -> Self:
        """The rows whose states are stored as all the data there are, inputs where they act."""
        if not self.first_states:
            return self
        pairs = zip(self.acting, self.first_states, strict=True)
        stored = tuple(rows[first:] for rows, first in pairs)
        return replace(self, experiments=stored, delay=(), first_states=())

    def store_last(self, rows: StoredRows, numbers: int) -> tuple[Self, tuple[str, ...]]:
        """The dataset with the first state of each experiment that is stored, and notes about that.

        Parameters
        ----------
        rows
            Number of last rows whose states are stored; "all"; or "auto", all if they take little
            memory.
        numbers
            In the states of one row, over all draws of all chains.
        """
        number = is_whole(rows) and rows >= LOOKBACK
        if not number and not (isinstance(rows, str) and rows in ("auto", "all")):
            raise ValueError(
                f"keep_states must be auto, all, or a number of rows of at least {LOOKBACK}; got "
                f"{rows!r}."
            )
        notes = ()
        lengths = [len(series) for series in self.experiments]
        stored = max(lengths) if isinstance(rows, str) else int(rows)
        if rows == "auto" and 8 * numbers * sum(lengths) > STORED_BYTES:
            stored = max(STORED_BYTES // (8 * numbers * len(lengths)), LOOKBACK)
            notes = (
                f"Only the states of the last {count(stored, 'row')} were kept: all of them would "
                f"take {8 * numbers * sum(lengths) / 1e9:.1f} GB. keep_states='all', or a number "
                "of rows, says otherwise.",
            )
        first = tuple(max(length - stored, 0) for length in lengths)
        return replace(self, first_states=first if any(first) else ()), notes

    def windowed(self) -> Self:
        """The windows of all experiments, one after the other, each an experiment of its own."""
        windows, first_states = [], []
        for number, rows in enumerate(self.acting):
            stored = self.first_states[number] if self.first_states else 0
            for begin, end in self._windows(rows):
                windows.append(rows[begin:end])
                # Two windows share the state between them: it belongs to the first.
                first_states.append(min(max(stored - begin, int(begin > 0)), end - begin + 1))
        dropped = tuple(first_states) if self.first_states or self.windows > 1 else ()
        return replace(self, experiments=tuple(windows), delay=(), windows=1, first_states=dropped)

    def cut(self, paths: Any) -> Any:
        """Paths of states (T+1, Dx) cut into the windows of experiments; names of starts stay."""
        if self.windows == 1 or isinstance(paths, str) or any(isinstance(x, str) for x in paths):
            return paths
        pairs = zip([paths] if np.ndim(paths[0]) == 1 else paths, self.experiments, strict=True)
        return [
            np.asarray(path)[begin : end + 1]
            for path, rows in pairs
            for begin, end in self._windows(rows)
        ]

    def join(self, paths: Sequence[Any]) -> tuple[Any, ...]:
        """The stored states of each window (chain, draw, _, Dx), joined for each experiment."""
        if self.windows == 1:
            return tuple(paths)
        firsts = range(0, len(paths), self.windows)
        return tuple(np.concatenate(paths[i : i + self.windows], axis=2) for i in firsts)

    def _windows(self, rows: Series) -> Iterable[tuple[int, int]]:
        return pairwise(len(rows) * number // self.windows for number in range(self.windows + 1))


def _report_constant_inputs(experiments: Sequence[Series]) -> None:
    """Warn of inputs that never vary: what they do cannot be learned."""
    u = np.concatenate([rows.u for rows in experiments])
    for name, value, varies in zip(experiments[0].inputs, u[0], varying(u), strict=True):
        if not varies:
            warnings.warn(
                f"Input {name!r} is constant, {value:g}: a model cannot learn what it does. Leave "
                "it out.",
                stacklevel=4,
            )


def _acting(
    series: Series, delay: Sequence[int], past: Float[np.ndarray, "K Du"] | None = None
) -> Series:
    """Rows with inputs where they act, and outputs missing where unknown ones have acted on them.

    The inputs of the rows before are unknown where they are NaN, or without `past`.
    """
    if not delay:
        return series
    past = _unknown(delay) if past is None else past
    measured = _without_unknown(series, int(np.isnan(past[:, 0]).sum()))
    return replace(measured, u=arriving(series.u, delay, past))


def _unknown(delay: Sequence[int]) -> Float[np.ndarray, "K Du"]:
    """The inputs before the first row of an experiment, which nobody knows."""
    return np.full((max(delay, default=0), len(delay)), np.nan)


def _without_unknown(series: Series, rows: int) -> Series:
    """An experiment without the outputs of its first rows, on which unknown inputs acted."""
    if np.isnan(series.y[:rows]).all():
        return series
    y = series.y.copy()
    y[:rows] = np.nan
    return replace(series, y=y)
