"""Backtests: rolling forecasts of a series, and their scores by origin and by step ahead."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from gpssm.core import metrics
from gpssm.core.messages import distinct_warnings
from gpssm.core.table import card
from gpssm.core.text import (
    check_choice,
    check_flag,
    check_output,
    check_seed,
    check_shares,
    check_whole,
    is_real,
    is_whole,
)
from gpssm.data.series import Series
from gpssm.evaluation.compare import MIXED_UNITS, figure_table, training_data
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.posterior.conditioning import condition_at, extended
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.learning import Forgetting
from gpssm.posterior.stack import Forecaster
from gpssm.posterior.validation import BACKTEST, rolling_forecasts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    levels: tuple[float, ...]
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
    if training_data(posterior) is None:
        raise TypeError(
            "the first argument of backtest(posterior, series) must be a posterior; got "
            f"{type(posterior).__name__}"
        )
    check_choice("refit", refit, get_args(Refit))
    check_flag("new_experiment", new_experiment)
    check_progress(progress)
    for name, value in (("horizon", horizon), ("step", step), ("max_draws", max_draws)):
        check_whole(name, value, 1)
    if forgetting is not None and refit != "learn":
        raise ValueError(f"forgetting needs refit='learn'; got refit={refit!r}")
    levels = tuple(check_shares("levels", levels))
    seed = check_seed(seed)
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
