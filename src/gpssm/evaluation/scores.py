"""Scores of forecasts: of several forecasters on the same rows, and of one from many origins."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from gpssm.core import metrics
from gpssm.core.arguments import check_arguments
from gpssm.core.messages import distinct_warnings
from gpssm.core.metrics import LEVELS
from gpssm.core.table import Table, card
from gpssm.core.text import (
    check_choice,
    check_kind,
    check_output,
    in_line,
    is_real,
    is_whole,
)
from gpssm.data.columns import align_columns, as_frame
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.posterior.conditioning import condition_at, extended
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.learning import Forgetting
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Forecaster, Stack
from gpssm.posterior.validation import BACKTEST, rolling_forecasts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Averages over outputs in different units, which mean little.
MIXED_UNITS = {"rmse", "mae", "crps", "energy", *(f"width_{100 * level:g}" for level in LEVELS)}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Forecasts of the same rows by name, and their scores.

    `print` shows a table in which a star marks the best score: the lowest, the highest `fit`, the
    coverage nearest to its level. Widths have no star, because narrow intervals are better only if
    they cover. With several outputs, the first table has `nrmse` and `ncrps`, errors in standard
    deviations of the training outputs, and each output has a table in its units.

    Parameters
    ----------
    forecasts : dict of str to Forecast
        The forecasts by name.
    actual : Series
        The actual rows.
    levels : tuple of float
        Levels of the intervals to score.
    """

    forecasts: Mapping[str, Forecast]
    actual: Series
    levels: Sequence[float]

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """`Forecast.score` by name."""
        return {
            name: forecast.score(self.actual, self.levels)
            for name, forecast in self.forecasts.items()
        }

    @property
    def table(self) -> pd.DataFrame:
        """One row per forecast, one column per score."""
        return pd.DataFrame.from_dict(self.scores, orient="index")

    @property
    def by_output(self) -> pd.DataFrame:
        """One row per output and forecast, one column per score, in the units of the output."""
        rows = {
            (output, name): figures
            for name, forecast in self.forecasts.items()
            for output, figures in forecast.score_outputs(self.actual, self.levels).items()
        }
        index = pd.MultiIndex.from_tuples(rows, names=["output", ""])
        frame = pd.DataFrame(list(rows.values()), index=index)
        return frame.sort_index(level=0, sort_remaining=False)

    def plot(self, output: str | None = None, level: float = 0.9) -> "Figure":
        """Plot medians and central intervals of all outputs, or one of them, with the actual
        rows."""
        from gpssm.plots.forecasts import plot_comparison

        return plot_comparison(self.forecasts, self.actual, None, output, level)

    def __repr__(self) -> str:
        return in_line(f"Comparison({', '.join(self.forecasts)}; {len(self.actual)} steps)")

    def _repr_html_(self) -> str:
        return card(repr(self), tables={f"{len(self.actual)} steps ahead": self.table})

    def __str__(self) -> str:
        caption = f"{len(self.actual)} steps ahead; * the best"
        outputs = list(dict.fromkeys(self.by_output.index.get_level_values(0)))
        if len(outputs) < 2:
            return figure_table(self.table, "", caption, starred=True)
        total = self.table
        if "ncrps" in total:
            total = total.drop(columns=list(MIXED_UNITS.intersection(total)))
        pages = [figure_table(total, "", f"all outputs, {caption}", starred=True)]
        for name in outputs:
            frame = self.by_output.loc[name]
            pages.append(figure_table(frame, "", f"{name}, {caption}", starred=True))
        return "\n\n".join(pages)


@check_arguments
def compare(
    candidates: Mapping[str, Forecaster],
    test: Any,
    *,
    horizon: int | None = None,
    levels: Sequence[float] = LEVELS,
    baselines: Sequence[str] = (),
    num_paths: int = 1000,
    seed: int = 0,
    progress: Mode = True,
) -> Comparison:
    """Score posteriors on the same test rows.

        fits = {"2 states": small, "4 states": large}
        print(gpssm.compare(fits, test, horizon=30, baselines=["arx", "last"]))

    Parameters
    ----------
    candidates : mapping of str to Posterior or Stack
        Posteriors by name; they forecast from the end of their data, with the inputs of `test`.
    test
        The rows that follow these data, in the user's units: a Series, a DataFrame of pandas or
        polars, or a Dataset of xarray.
    horizon : int, optional
        Number of steps; by default all rows of `test`.
    levels
        Levels of the intervals to score.
    baselines : sequence of str
        Methods to fit to the training data of the first posterior and to include in the comparison.
    num_paths : int
        Paths of each forecast.
    seed : int
        Seed of forecasts and baselines.
    progress
        True for a bar over the candidates, "plain" for one line each, False for no output.

    Returns
    -------
    Comparison
    """
    _check_names(candidates, baselines)
    check_progress(progress)
    table = as_frame(test)
    rows = Series.of(test) if table is None else table
    check_kind("test", rows, Series, pd.DataFrame)
    steps = len(rows) if horizon is None else horizon
    if steps > len(rows):
        raise ValueError(f"horizon is {steps}, and there are {len(rows)} test rows")
    train = next(iter(candidates.values())).dataset
    options: dict[str, Any] = {"delay": train.delay or 0, "seed": seed, "progress": False}
    forecasts = {}
    for name in tracked([*candidates, *baselines], progress, "compare"):
        candidate = candidates.get(name) or fit(list(train.experiments), method=name, **options)
        u = rows if candidate.dataset.inputs else None
        try:
            align_columns(rows, candidate.dataset.outputs, "y")
            forecasts[name] = candidate.forecast(steps, u, num_paths=num_paths, seed=seed)
        except ValueError as error:
            raise ValueError(f"{name} does not fit the test rows: {error}") from error
    if isinstance(rows, Series):
        y = align_columns(rows, train.outputs, "y")
        actual = replace(rows, y=y, outputs=train.outputs, units={}, window=None)[:steps]
    else:
        actual = Series.from_dataframe(rows, list(train.outputs))[:steps]
    return Comparison(forecasts, actual, levels)


def _check_names(candidates: Any, baselines: Any) -> None:
    """Raise unless there are named candidates, and baselines with different names."""
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(
            "the first argument of compare(posteriors, series) must be a dict with at least one "
            f"posterior by name; got {type(candidates).__name__}"
        )
    for name, candidate in candidates.items():
        check_kind(name, candidate, Posterior, Stack)
    listed = isinstance(baselines, Sequence) and not isinstance(baselines, str)
    if not listed or not all(isinstance(name, str) for name in baselines):
        raise TypeError(f"baselines must be a list of names of methods; got {baselines!r}")
    if duplicates := [name for name in baselines if name in candidates]:
        raise ValueError(
            f"{', '.join(duplicates)} is already a candidate: leave it out of baselines, or "
            "rename it"
        )


def figure_table(frame: pd.DataFrame, first: str, caption: str, *, starred: bool = False) -> str:
    """Return scores as a text table without redundant columns.

    Omitted are the log score of the paper, the energy score if it equals the CRPS, all widths
    except the last, and errors in standard deviations if the table has them in the user's units.

    Parameters
    ----------
    frame : DataFrame
        One row per forecast, step or output, one column per score.
    first : str
        Heading of the first column.
    caption : str
        Explanation below the table.
    starred : bool
        Whether a star marks the best of each column.
    """
    widths = [name for name in frame if str(name).startswith("width")]
    hidden = {"nmll_paper", *widths[:-1]}
    if "energy" in frame and np.allclose(frame["energy"], frame["crps"], equal_nan=True):
        hidden.add("energy")
    if "rmse" in frame:
        hidden |= {"nrmse", "ncrps"}
    shown = frame.drop(columns=list(hidden.intersection(frame))).rename_axis(index=first)
    return str(Table.of(shown, starred=starred, caption=caption))


Paths = Float[np.ndarray, "S H N"]
Refit = Literal["never", "learn", "update"]


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Forecasts from every origin, and their scores; `print` shows two tables.

    Parameters
    ----------
    series : Series
        The forecast rows, in the user's units.
    origins : array (O,)
        The first row of each forecast.
    forecasts : tuple of Forecast
        One per origin.
    figures : tuple of dict
        `Forecast.score` of each forecast, empty if no output was observed.
    levels : tuple of float
        Levels of the scored intervals.
    refit : {"never", "learn", "update"}
        What was updated between origins.
    """

    series: Series
    origins: Int[np.ndarray, " O"]
    forecasts: tuple[Forecast, ...]
    figures: tuple[dict[str, float], ...]
    levels: Sequence[float]
    refit: Refit

    @property
    def horizon(self) -> int:
        """H, the steps of each forecast."""
        return self.forecasts[0].horizon

    @property
    def table(self) -> pd.DataFrame:
        """One row per origin, one column per score; NaN if no output was observed."""
        return pd.DataFrame(list(self.figures), index=pd.Index(self.origins, name="origin"))

    @property
    def scores(self) -> dict[str, float]:
        """The mean of each score over the origins."""
        return {str(name): float(mean) for name, mean in self.table.mean().items()}

    @property
    def by_output(self) -> pd.DataFrame:
        """The mean of each score over the origins, one row per output, in the units of the
        output."""
        scores = [
            forecast.score_outputs(self.series[origin : origin + self.horizon], self.levels)
            for origin, forecast, figures in zip(
                self.origins,
                self.forecasts,
                self.figures,
                strict=True,
            )
            if figures
        ]
        means = {
            output: pd.DataFrame([row[output] for row in scores if output in row]).mean()
            for output in self.series.outputs
            if any(output in row for row in scores)
        }
        return pd.DataFrame(means).T

    def pooled(self, output: str | None = None) -> tuple[Paths, Float[np.ndarray, "H N"]]:
        """Return the paths and outputs of all origins side by side, by step ahead.

        Parameters
        ----------
        output : str, optional
            Name of one output. By default all outputs are side by side; if there are several, they
            are in standard deviations of the training outputs.

        Returns
        -------
        paths : array (S, H, N)
            N is the number of origins times the number of outputs.
        actual : array (H, N)
        """
        names = self.series.outputs
        check_output(output, names)
        columns = [names.index(name) for name in ([output] if output else names)]
        scale = self.forecasts[0].scale if len(columns) > 1 else None
        scale = np.ones(len(names)) if scale is None else scale
        y = (self.series.y / scale)[:, columns]
        actual = [y[origin : origin + self.horizon] for origin in self.origins]
        paths = [(item.paths / scale)[..., columns] for item in self.forecasts]
        return np.concatenate(paths, axis=2), np.concatenate(actual, axis=1)

    def by_step(self, output: str | None = None) -> pd.DataFrame:
        """Return rmse, mae, crps, coverage and width by step ahead, over all origins.

        Parameters
        ----------
        output : str, optional
            As in `pooled`.
        """
        paths, actual = self.pooled(output)
        mean = paths.mean(0)
        columns: dict[str, Any] = {
            "rmse": metrics.rmse(mean, actual, by_step=True),
            "mae": metrics.mae(mean, actual, by_step=True),
            "crps": metrics.crps(paths, actual, by_step=True),
        }
        for level in self.levels:
            coverage = metrics.coverage(paths, actual, level, by_step=True)
            columns[f"coverage_{100 * level:g}"] = coverage
            columns[f"width_{100 * level:g}"] = metrics.interval_width(paths, level, by_step=True)
        return pd.DataFrame(columns, index=pd.RangeIndex(1, self.horizon + 1, name="step"))

    def plot(self, output: str | None = None, level: float = 0.9) -> "Figure":
        """Plot forecasts along the series that do not overlap, and scores by step ahead.

        Parameters
        ----------
        output : str, optional
            The output to show; the first by default.
        level : float
            Level of the intervals.
        """
        from gpssm.plots.forecasts import plot_backtest

        return plot_backtest(self, output, level)

    def __repr__(self) -> str:
        first, last = self.origins[0], self.origins[-1]
        rows = f"{len(self.origins)} origins, rows {first} to {last}"
        return f"Backtest({rows}, {self.horizon} steps, refit={self.refit})"

    def _repr_html_(self) -> str:
        return card(repr(self), tables={"by origin": self.table, "by step ahead": self.by_step()})

    def __str__(self) -> str:
        origins = self.table.describe().loc[["mean", "std", "min", "50%", "max"]]
        few = (1, 2, 5, 10, 20, 30, 50, 100)
        shown = sorted({step for step in few if step < self.horizon} | {self.horizon})
        steps = self.by_step().loc[shown]
        pages = [figure_table(steps, "step", "over origins, by step ahead")]
        if self.series.output_dim > 1:
            # Errors in different units cannot be averaged.
            origins = origins.drop(columns=list(MIXED_UNITS.intersection(origins)))
            units = "in standard deviations of the training outputs"
            pages = [
                figure_table(self.by_output, "", "mean over origins, in units of each output"),
                figure_table(steps, "step", f"the same by step ahead, {units}"),
            ]
        return "\n".join([repr(self), figure_table(origins, "", "over origins"), *pages])


@check_arguments
def backtest(
    posterior: Forecaster,
    series: Any,
    *,
    horizon: int = BACKTEST.horizon,
    step: int = BACKTEST.step,
    start: int | float = 0,
    refit: Refit = "never",
    forgetting: Forgetting = None,
    levels: Sequence[float] = metrics.LEVELS,
    num_paths: int = BACKTEST.num_paths,
    max_draws: int = BACKTEST.num_draws,
    new_experiment: bool = False,
    seed: int = 0,
    progress: Mode = True,
) -> Backtest:
    """Forecast from every `step`-th row of a series, and score the forecasts by origin and step.

        print(gpssm.backtest(posterior, test))

    Parameters
    ----------
    posterior
        A posterior or a stack; the series follows its data.
    series
        One series in the user's units: a Series or a DataFrame.
    horizon, step
        Steps of each forecast, and rows between two origins.
    start
        The first origin, as a row number or a fraction of the rows.
    refit : {"never", "learn", "update"}
        What to update between origins. "never": functions and parameters stay fixed, and the state
        is filtered in one pass over the rows. "learn": `posterior.learn` from the rows since the
        last origin, in constant time per row. "update": `posterior.update` with these rows, which
        compiles again whenever the number of rows has grown by about a tenth.
    forgetting
        Forgetting factor of `posterior.learn`; "auto" chooses it on the training rows.
    levels
        Levels of the intervals to score.
    num_paths : int
        Paths of each forecast, spread over the draws.
    max_draws : int
        Number of draws used with refit="never" or "learn", evenly spaced; the cost of a filter is
        proportional to it.
    new_experiment : bool
        Whether the rows are a separate experiment that does not follow the posterior's data.
    seed : int
        Seed of filters and paths.
    progress
        True for a bar over the origins, "plain" for one line per origin, False for no output.

    Returns
    -------
    Backtest
    """
    check_kind("the first argument of backtest", posterior, Posterior, Stack)
    check_choice("refit", refit, get_args(Refit))
    check_progress(progress)
    if forgetting is not None and refit != "learn":
        raise ValueError(f"forgetting needs refit='learn'; got refit={refit!r}")
    rows = posterior.dataset.align(series)
    scheme = replace(BACKTEST, horizon=int(horizon), step=int(step), num_paths=num_paths)
    origins = scheme.origins(len(rows), _first_origin(start, len(rows), horizon))
    states = (
        condition_at(
            posterior.thinned(max_draws), rows, origins, new_experiment=new_experiment, seed=seed
        )
        if refit == "never"
        else _refitted(posterior, rows, origins, refit, forgetting, max_draws, new_experiment, seed)
    )
    rolling = rolling_forecasts(states, rows, origins, scheme, seed=seed, quiet=False)
    forecasts = []
    figures = []
    with distinct_warnings():
        for origin in tracked(origins, progress, "backtest", lambda row: f"origin at row {row}"):
            try:
                result = next(rolling)
                missing = np.isnan(result.rows.y).all()
                figures.append({} if missing else result.forecast.score(result.rows, levels))
            except ValueError as error:
                raise ValueError(f"the forecast from row {origin} failed: {error}") from error
            forecasts.append(result.forecast)
    return Backtest(rows, np.array(origins), tuple(forecasts), tuple(figures), levels, refit)


def _refitted(
    posterior: Forecaster,
    rows: Series,
    origins: Sequence[int],
    refit: Refit,
    forgetting: Forgetting,
    max_draws: int,
    new_experiment: bool,
    seed: int,
) -> Iterator[Forecaster]:
    """Yield the posterior after it has learned or sampled again up to each origin."""

    def extend(current: Forecaster, part: Series) -> Forecaster:
        is_first = current is posterior
        begins = new_experiment and is_first
        if refit == "update":
            return current.update(part, new_experiment=begins)
        return current.learn(
            part,
            forgetting=forgetting if is_first else None,
            new_experiment=begins,
            max_draws=max_draws,
            seed=seed,
        )

    return extended(posterior, rows, origins, extend)


def _first_origin(start: Any, rows: int, horizon: int) -> int:
    """Return the row number of the first origin, given as a number or a fraction of the rows."""
    first = start
    if is_real(start) and not is_whole(start) and 0 <= start < 1:
        # The margin keeps 0.29 · 100 from falling to 28.
        first = math.floor(start * rows + 1e-9)
    if not is_whole(first) or not 0 <= first <= rows - horizon:
        raise ValueError(
            f"start must be a row number or a fraction of the {rows} rows that leaves {horizon} "
            f"rows to forecast; got {start!r}. Use more rows, or a shorter horizon"
        )
    return int(first)
