"""Backtests: rolling forecasts of a series, and their scores by origin and by step ahead."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from gpssm.core import metrics
from gpssm.core.notebook import card
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
from gpssm.evaluation.compare import LEVELS, MIXED, print_figures
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.methods import MethodSettings
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.validation import BACKTEST, extended, rolling_forecasts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Refit = Literal["never", "learn", "update", "fit"]
SHOWN = (1, 2, 5, 10, 20, 30, 50, 100)  # steps ahead in the printed table


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Forecasts from every origin, and their scores. `print` it for two tables.

    An origin is the number of the first row of `series` that its forecast does not know; `forecasts[i]` belongs to
    `origins[i]`, and `figures[i]` is its score, empty where nothing was observed.
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
    def table(self) -> "pd.DataFrame":
        """A row an origin, a column a figure; NaN where nothing was observed."""
        import pandas

        return pandas.DataFrame(list(self.figures), index=pandas.Index(self.origins, name="origin"))

    @property
    def scores(self) -> dict[str, float]:
        """The mean of each figure over the origins."""
        return {str(name): float(mean) for name, mean in self.table.mean().items()}

    @property
    def by_output(self) -> "pd.DataFrame":
        """The mean of each figure over the origins, a row an output, in its own units."""
        import pandas

        found = [
            one.score_outputs(self.series[origin : origin + self.horizon], self.levels)
            for origin, one, figures in zip(self.origins, self.forecasts, self.figures, strict=True)
            if figures
        ]
        rows = {
            output: pandas.DataFrame([one[output] for one in found if output in one]).mean()
            for output in self.series.outputs
            if any(output in one for one in found)
        }
        return pandas.DataFrame(rows).T

    def by_step(self, output: str | None = None) -> "pd.DataFrame":
        """rmse, mae, crps, and coverage and width at each level, by step ahead, over all origins.

        :param output: the one that is judged, in its own units. Without it all are, in units of the training outputs'
            standard deviations where there are several.
        """
        import pandas

        names = self.series.outputs
        check_output(output, names)
        columns_of = [names.index(output)] if output is not None else list(range(len(names)))
        scale = self.forecasts[0].scale if len(columns_of) > 1 else None
        scale = np.ones(len(names)) if scale is None else scale
        y, judged = (self.series.y / scale)[:, columns_of], [one.paths / scale for one in self.forecasts]
        actual = np.concatenate([y[origin : origin + self.horizon] for origin in self.origins], axis=1)
        paths = np.concatenate([one[..., columns_of] for one in judged], axis=2)
        mean = paths.mean(0)
        columns: dict[str, Any] = {
            "rmse": metrics.rmse(mean, actual, by_step=True),
            "mae": metrics.mae(mean, actual, by_step=True),
            "crps": metrics.crps(paths, actual, by_step=True),
        }
        for level in self.levels:
            columns[f"coverage_{100 * level:g}"] = metrics.coverage(paths, actual, level, by_step=True)
            columns[f"width_{100 * level:g}"] = metrics.interval_width(paths, level, by_step=True)
        return pandas.DataFrame(columns, index=pandas.RangeIndex(1, self.horizon + 1, name="step"))

    def plot(self, output: str | None = None, level: float = 0.9) -> "Figure":
        """Forecasts along the series, as many as do not overlap; errors, and coverage, by step ahead.

        :param output: the output to show, the first if not given; errors and coverage are of that output too.
        """
        from gpssm.plots.backtest import plot_backtest

        return plot_backtest(self, output, level)

    def __repr__(self) -> str:
        first, last = self.origins[0], self.origins[-1]
        return (
            f"Backtest({len(self.origins)} origins, rows {first} to {last}, {self.horizon} steps, refit={self.refit})"
        )

    def _repr_html_(self) -> str:
        return card(repr(self), tables={"by origin": self.table, "by step ahead": self.by_step()})

    def __str__(self) -> str:
        origins = self.table.describe().loc[["mean", "std", "min", "50%", "max"]]
        chosen = sorted({step for step in SHOWN if step < self.horizon} | {self.horizon})
        steps = self.by_step().loc[chosen]
        pages = [print_figures(steps, "step", "over origins, by step ahead")]
        if self.series.output_dim > 1:
            # Errors in different units have no mean.
            origins = origins.drop(columns=list(MIXED.intersection(origins)))
            pages = [
                print_figures(self.by_output, "", "mean over origins, each output in its own units"),
                print_figures(steps, "step", "the same by step ahead, in standard deviations of the training outputs"),
            ]
        tables = print_figures(origins, "", "over origins"), *pages
        return "\n".join([repr(self), *tables])


def backtest(
    series: Any,
    method: str | MethodSettings | Posterior = "ffvd",
    *,
    horizon: int = BACKTEST.horizon,
    step: int = BACKTEST.step,
    start: int | float | None = None,
    refit: Refit = "never",
    forgetting: float | Sequence[float] | Literal["auto"] | None = None,
    levels: Sequence[float] = LEVELS,
    num_paths: int = BACKTEST.num_paths,
    max_draws: int = BACKTEST.num_draws,
    new_experiment: bool = False,
    seed: int = 0,
    progress: Mode = True,
    **fit_arguments: Any,
) -> Backtest:
    """Forecasts from every `step`-th row of a series while `horizon` rows remain.

        print(gpssm.backtest(series, "ffvd", start=0.5, state_dim=2))
        print(gpssm.backtest(test, posterior))

    :param series: one series in the user's units.
    :param method: what to fit to the rows before `start`, with `fit_arguments` for `fit`; or a posterior, in which case
        the series' rows follow its data, or are a new experiment.
    :param start: the first origin, as a row number or a fraction of the rows: half of them, or row 0 with a posterior.
    :param refit: what is learned on the way. "never": functions and parameters stay, the state is filtered in one pass
        over the rows. "learn": `posterior.learn` from the rows since the last origin, in constant time a row. "update":
        `posterior.update` with them. "fit": a new fit to all rows before the origin. The last two compile whenever the
        rows have grown by about a tenth; a method other than `ffvd` at every origin.
    :param forgetting: of `posterior.learn`; "auto" is found in the rows that were fitted.
    :param num_paths: of each forecast, spread over the draws.
    :param max_draws: draws used with refit="never" or "learn", evenly spaced: a filter costs as much as it has draws.
    """
    check_choice("refit", refit, get_args(Refit))
    if forgetting is not None and refit != "learn":
        raise ValueError(f"forgetting is for refit='learn'; got refit={refit!r}")
    check_flag("new_experiment", new_experiment)
    check_progress(progress)
    levels, seed = tuple(check_shares("levels", levels)), check_seed(seed)
    for name, value in (("horizon", horizon), ("step", step), ("max_draws", max_draws)):
        check_whole(name, value, 1)
    rows = Series.of(series)
    if not isinstance(rows, Series):
        raise TypeError(f"backtest takes one series at a time; got a list of {len(rows)}. Call once for each")
    fitted = isinstance(method, Posterior)
    if fitted and refit == "fit":
        raise ValueError("refit='fit' needs a method to fit; a posterior goes on with refit='update' or 'never'")
    if fitted and fit_arguments:
        raise TypeError(f"a posterior is fitted already and takes no {', '.join(fit_arguments)}")
    if not fitted and new_experiment:
        raise ValueError("new_experiment is for a posterior; here the model is fitted to the series' first rows")
    if fitted:
        rows = method.dataset.align(rows)
    if start is None:
        start = 0 if fitted else 0.5
    scheme = replace(BACKTEST, horizon=horizon, step=step, num_paths=num_paths)
    origins = scheme.origins(len(rows), _first_origin(start, len(rows), horizon))
    if fitted:
        posterior = method
        known = 0
    else:
        fit_arguments = {"method": method, "seed": seed, **fit_arguments}
        known = origins[0]
        posterior = fit(rows[:known], progress=progress, **fit_arguments)
    rest = rows[known:]
    stops = [origin - known for origin in origins]
    first: dict[str, Any] = {"new_experiment": new_experiment}
    if refit == "never":
        at_origins = posterior.thinned(max_draws).condition_at(rest, stops, seed=seed, **first)
    elif refit == "learn":
        first["forgetting"] = forgetting
        at_origins = extended(posterior, rest, stops, refit, first, max_draws=max_draws, seed=seed)
    elif refit == "update":
        at_origins = extended(posterior, rest, stops, refit, first)
    else:
        later = (fit(rows[:origin], progress=False, **fit_arguments) for origin in origins[1:])
        at_origins = itertools.chain([posterior], later)
    rolling = rolling_forecasts(at_origins, rows, origins, scheme, seed=seed, quiet=False)
    forecasts = []
    figures = []
    for origin in tracked(origins, progress, "backtest", lambda row: f"origin at row {row}"):
        try:
            one = next(rolling)
            missing = np.isnan(one.rows.y).all()
            figures.append({} if missing else one.forecast.score(one.rows, levels))
        except ValueError as error:
            raise ValueError(f"the forecast from row {origin} failed: {error}") from error
        forecasts.append(one.forecast)
    return Backtest(
        series=rows,
        origins=np.array(origins),
        forecasts=tuple(forecasts),
        figures=tuple(figures),
        levels=levels,
        refit=refit,
    )


def _first_origin(start: Any, rows: int, horizon: int) -> int:
    """The row number of a first origin, itself or as a fraction of the rows."""
    first = start
    if is_real(start) and not is_whole(start) and 0 <= start < 1:
        # The margin keeps 0.29 · 100 from falling to 28.
        first = math.floor(start * rows + 1e-9)
    if not is_whole(first) or not 0 <= first <= rows - horizon:
        raise ValueError(
            f"start must be a row number or a fraction of the {rows} rows that leaves {horizon} "
            f"rows to forecast; got {start!r}. Give more rows, or a shorter horizon"
        )
    return int(first)
