"""The data of a fit, and their conversion between the user's units and the model's.

    y ↦ (y − mean) / std,   u ↦ (u'_t − mean) / std   with   u'_{t,j} = u_{t−d_j, j}

A `Dataset` holds the experiments in the user's units, and everything needed to convert them: the
scales, the delay d_j of each input, the windows into which long experiments are cut, and the rows
whose states are stored. All inputs of a model are encoded by it, and all outputs of a model are
decoded by it.

**Windows** allow a long experiment to be processed in parallel. A window is a separate experiment
that shares everything with the others except its states. It has T_w + 1 states, the first of which
stands for the same moment as the last state of the previous window, and is dropped when the windows
are joined again:

    x₀ | x₁ … x_a | x_{a+1} … x_b | …        the states of windows of rows 0 … a−1, a … b−1, …

**Stored states.** All states of all draws of a long experiment may not fit into memory. Draws then
contain only the states of its last rows, from which forecasts and diagnostics are computed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float

from gpssm.core.messages import warn
from gpssm.core.text import check_whole, count, demand, is_whole
from gpssm.data.clock import clock_of
from gpssm.data.columns import align_columns, where_first
from gpssm.data.delays import Rows, arriving, find_lags
from gpssm.data.scaler import Scaler, output_spread
from gpssm.data.series import Series, align_rows, as_list, check_trainable, find_outliers, varying

StoredRows = int | Literal["auto", "all"]
STORED_BYTES = 2**31  # bytes of states in all draws above which "auto" stores only the last states
SHORTEST_WINDOW = 20  # minimum number of rows
# Rows at the end of the training data that are filtered again before new rows, so that their states
# are always stored. New data could change the last state of a draw only by the process noise;
# filtered from an earlier state, its distribution has the correct width.
LOOKBACK = 20


@dataclass(frozen=True)
class Dataset:
    """Experiments in the user's units, and their conversion to the model's units.

        dataset = Dataset.of([first, second], delay={"valve": 3})
        dataset.encode(dataset.align(new_rows))
        dataset.decode(paths)

    Parameters
    ----------
    experiments : tuple of Series
        Training data in the user's units, all with the columns of the first. Outputs on which
        unknown inputs acted are missing.
    scaler : Scaler
        Mean and standard deviation of each output, and of each input.
    delay : tuple of int
        Delay of each input in rows; empty if there are none.
    windows : int
        Number of windows into which each experiment is cut for the fit.
    first_states : tuple of int
        The first state of each experiment that is stored in draws; empty if all are stored.
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
    ) -> Self:
        """Check training data and create their dataset.

        Parameters
        ----------
        series
            A `Series`, anything that `Series.of` accepts, or a list of these.
        delay
            Delays of the inputs in rows: one number, one for each input by name or in order, or
            "auto" for the estimates of `gpssm.delays`.
        windows
            Number of windows of nearly equal length into which each experiment is cut.
        """
        experiments = as_list(series)
        lags = find_lags(experiments, delay)
        check_whole("windows", windows, 1)
        shortest = min(len(rows) for rows in experiments)
        if windows > 1 and shortest < SHORTEST_WINDOW * windows:
            raise ValueError(
                f"windows={windows} would make windows shorter than {SHORTEST_WINDOW} rows from a "
                f"series of {shortest}: use fewer windows"
            )
        dataset = cls(tuple(experiments), Scaler.fit(experiments), lags, int(windows))
        check_trainable(dataset.experiments)
        _report_constant_inputs(experiments)
        for outliers in (found for rows in experiments for found in find_outliers(rows)):
            warn(outliers.sentence)
        return replace(dataset, scaler=Scaler.fit(list(dataset.acting)))

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
        """The experiments with delayed inputs, in the user's units."""
        return tuple(self._acting(rows) for rows in self.experiments)

    @cached_property
    def scaled(self) -> tuple[Series, ...]:
        """The experiments in the model's units, with delayed inputs."""
        return tuple(self.scaler.scale(rows) for rows in self.acting)

    def experiment(self, index: int) -> Series:
        """Return an experiment by its number, in the user's units."""
        number = len(self.experiments)
        if not is_whole(index) or not -number <= index < number:
            raise IndexError(
                f"there are {number} training series, counted from 0; got index {index!r}"
            )
        return self.experiments[index]

    def align(self, rows: Any) -> Series:
        """Return new rows with the columns of the training data, in the user's units."""
        return align_rows(rows, self.experiments[0])

    def encode(self, rows: Series, past: Float[np.ndarray, "K Du"] | None = None) -> Series:
        """Return aligned rows in the model's units, with delayed inputs.

        Parameters
        ----------
        rows
            Rows in the user's units, with inputs at the rows where they were set.
        past
            The inputs of the K previous rows, where K is the longest delay; NaN if unknown, which
            is the default.
        """
        return self.scaler.scale(self._acting(rows, past))

    def _acting(self, rows: Series, past: Float[np.ndarray, "K Du"] | None = None) -> Series:
        """Return rows with delayed inputs; outputs on which unknown inputs acted are missing."""
        if not self.delay:
            return rows
        past = self._unknown if past is None else past
        measured = _without_unknown(rows, int(np.isnan(past[:, 0]).sum()))
        return replace(measured, u=arriving(rows.u, self.delay, past))

    @property
    def _unknown(self) -> Float[np.ndarray, "K Du"]:
        """The unknown inputs before the first row of an experiment, as NaN."""
        return np.full((max(self.delay, default=0), len(self.inputs)), np.nan)

    def encode_inputs(
        self, u: Float[np.ndarray, "*batch T Du"]
    ) -> Float[np.ndarray, "*batch T Du"]:
        """Return delayed inputs in the model's units."""
        return self.scaler.scale_inputs(u)

    def decode_inputs(
        self, values: Float[np.ndarray, "*batch T Du"]
    ) -> Float[np.ndarray, "*batch T Du"]:
        """Return delayed inputs of the model in the user's units."""
        return values * np.array(self.scaler.input_std) + np.array(self.scaler.input_mean)

    def decode(self, values: Any) -> Float[np.ndarray, "*batch Dy"]:
        """Return paths or means of the outputs in the user's units."""
        return self.scaler.unscale_mean(values)

    def inputs_ahead(
        self, u: Any, horizon: int | None = None, past: Float[np.ndarray, "K Du"] | None = None
    ) -> tuple[Float[np.ndarray, "H Du"], Float[np.ndarray, "H Du"]]:
        """Return the inputs of future steps, as set in the user's units, and encoded for the model.

        The last rows may be left out, and are then NaN, if all their inputs act after the horizon.

        Parameters
        ----------
        u
            Anything with the columns of the inputs, or None if there are no inputs.
        horizon
            Number of steps; by default the number of rows of u, or one.
        past
            The inputs of the previous rows, as in `encode`.
        """
        check_whole("horizon", horizon, 1, none="for as many steps as u has rows")
        ahead = np.zeros((0, len(self.inputs)))
        if u is not None:
            u = Series.of(u) if hasattr(u, "sampling_time") else u
            ahead = align_columns(u, self.inputs, "u")[:horizon]
            axis = self.experiments[0].axis
            if axis is not None:
                axis.check_step(u.axis if isinstance(u, Series) else clock_of(u), len(u))
        steps = horizon or max(len(ahead), 1)
        spare = min(self.delay, default=0)
        if self.inputs and len(ahead) < steps - spare:
            allowance = f", but the last {spare}" if spare else ""
            raise ValueError(
                f"the inputs of the model ({', '.join(self.inputs)}) must be known at each of the "
                f"{steps} steps ahead{allowance}: pass u with {steps - spare} rows; got "
                f"{len(ahead)}"
            )
        if not np.isfinite(ahead).all():
            where = where_first(~np.isfinite(ahead), self.inputs)
            raise ValueError(f"{where} of u is NaN or infinite: inputs must be known")
        ahead = np.pad(ahead, ((0, steps - len(ahead)), (0, 0)), constant_values=np.nan)
        past = self._unknown if past is None else past
        return ahead, self.encode_inputs(arriving(ahead, self.delay, past))

    def past_inputs(self, index: int = -1, row: int | None = None) -> Float[np.ndarray, "K Du"]:
        """Return the inputs of the K rows before a row of an experiment, K being the longest delay.

        They are NaN before the first row. By default, the last K rows are returned.
        """
        series = self.experiment(index)
        row = len(series) if row is None else row
        return np.concatenate([self._unknown, series.u])[row : row + len(self._unknown)]

    def extend(self, rows: Series, index: int | None = None) -> Self:
        """Return the dataset with aligned rows appended to an experiment, or as a new
        experiment."""
        experiments = [*self.experiments, rows]
        if index is not None:
            before = self.experiment(index)
            y = np.concatenate([before.y, rows.y])
            u = np.concatenate([before.u, rows.u])
            experiments.pop()
            experiments[index] = replace(before, y=y, u=u)
        check_trainable(experiments)
        return replace(self, experiments=tuple(experiments), windows=1)

    def with_states(self) -> Self:
        """Return the dataset of only the rows with stored states, with delayed inputs."""
        if not self.first_states:
            return self
        pairs = zip(self.acting, self.first_states, strict=True)
        stored = tuple(rows[first:] for rows, first in pairs)
        return replace(self, experiments=stored, delay=(), first_states=())

    def store_last(self, rows: StoredRows, numbers: int) -> tuple[Self, tuple[str, ...]]:
        """Return the dataset with the first stored state of each experiment, and notes about it.

        Parameters
        ----------
        rows
            Number of last rows whose states are stored; "all"; or "auto", which is all if they take
            little memory.
        numbers
            Numbers in the states of one row, over all draws of all chains.
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
                f"Only the states of the last {count(stored, 'row')} were stored: all of them "
                f"would take {8 * numbers * sum(lengths) / 1e9:.1f} GB. Pass keep_states='all', "
                "or a number of rows, to change this.",
            )
        first = tuple(max(length - stored, 0) for length in lengths)
        return replace(self, first_states=first if any(first) else ()), notes

    def windowed(self) -> Self:
        """Return the dataset whose experiments are the windows of all experiments."""
        windows = []
        first_states = []
        for number, rows in enumerate(self.acting):
            stored = self.first_states[number] if self.first_states else 0
            for begin, end in self._windows(rows):
                windows.append(rows[begin:end])
                # The state between two windows belongs to the first.
                first_states.append(min(max(stored - begin, int(begin > 0)), end - begin + 1))
        dropped = tuple(first_states) if self.first_states or self.windows > 1 else ()
        return replace(self, experiments=tuple(windows), delay=(), windows=1, first_states=dropped)

    def cut(self, paths: Any) -> Any:
        """Cut paths of states (T+1, Dx) into the windows of experiments; named starts are
        unchanged."""
        if self.windows == 1 or isinstance(paths, str) or any(isinstance(x, str) for x in paths):
            return paths
        pairs = zip([paths] if np.ndim(paths[0]) == 1 else paths, self.experiments, strict=True)
        return [
            np.asarray(path)[begin : end + 1]
            for path, rows in pairs
            for begin, end in self._windows(rows)
        ]

    def join(self, paths: Sequence[Any]) -> tuple[Any, ...]:
        """Join the stored states of each window (chain, draw, _, Dx) for each experiment."""
        if self.windows == 1:
            return tuple(paths)
        firsts = range(0, len(paths), self.windows)
        return tuple(np.concatenate(paths[i : i + self.windows], axis=2) for i in firsts)

    def _windows(self, rows: Series) -> Iterable[tuple[int, int]]:
        return pairwise(len(rows) * number // self.windows for number in range(self.windows + 1))


def _report_constant_inputs(experiments: Sequence[Series]) -> None:
    """Warn of constant inputs, whose effect cannot be learned."""
    u = np.concatenate([rows.u for rows in experiments])
    for name, value, varies in zip(experiments[0].inputs, u[0], varying(u), strict=True):
        if not varies:
            warn(
                f"Input {name!r} is constant, {value:g}: its effect cannot be learned. Leave it "
                "out."
            )


def _without_unknown(series: Series, rows: int) -> Series:
    """Return an experiment whose first outputs, on which unknown inputs acted, are missing."""
    if np.isnan(series.y[:rows]).all():
        return series
    y = series.y.copy()
    y[:rows] = np.nan
    return replace(series, y=y)
