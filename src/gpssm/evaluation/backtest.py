"""What a backtest found: forecasts from many rows of a series, and their scores by origin and by step ahead.

Rolling origin: forecasts from many rows of a series, each made with what was known there.

    origin r: functions and parameters as learned, the state given rows 0..r−1, a forecast of rows r..r+horizon−1

A forecast is given the controls of the rows it covers, and no output of theirs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    horizon: int = 30,
    step: int = 10,
    start: int | float | None = None,
    refit: Refit = "never",
    forgetting: float | Sequence[float] | Literal["auto"] | None = None,
    levels: Sequence[float] = LEVELS,
    num_paths: int = 1000,
    max_draws: int = 200,
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
    given = Series.of(series)
    if not isinstance(given, Series):
        raise TypeError(f"backtest takes one series at a time; got a list of {len(given)}. Call once for each")
    if isinstance(method, Posterior):
        if refit == "fit":
            raise ValueError("refit='fit' needs a method to fit; a posterior goes on with refit='update' or 'never'")
        if fit_arguments:
            raise TypeError(f"a posterior is fitted already and takes no {', '.join(fit_arguments)}")
        posterior, given, known = method, method.dataset.align(given), 0
        origins = _origins(given, 0 if start is None else start, horizon, step)
    else:
        if new_experiment:
            raise ValueError("new_experiment is for a posterior; here the model is fitted to the series' first rows")
        origins = _origins(given, 0.5 if start is None else start, horizon, step)
        fit_arguments = {"method": method, "seed": seed, **fit_arguments}
        posterior, known = fit(given[: origins[0]], progress=progress, **fit_arguments), origins[0]
    plan = Route(given, origins, known, new_experiment, seed)
    if refit == "never":
        informed = plan.filtered(posterior.thinned(max_draws))
    elif refit == "learn":
        informed = plan.learned(posterior, forgetting, max_draws)
    else:
        informed = plan.updated(posterior) if refit == "update" else plan.fitted(posterior, fit_arguments)
    forecasts, figures = [], []
    for number, origin in enumerate(tracked(origins, progress, "backtest", lambda row: f"origin at row {row}")):
        rows = given[origin : origin + horizon]
        try:
            # With one seed for all, the paths' errors would be the same everywhere, and stay in the means.
            forecast = next(informed).forecast(horizon, rows.u, num_paths=num_paths, seed=seed + number)
            figures.append({} if np.isnan(rows.y).all() else forecast.score(rows, levels))
        except ValueError as error:
            raise ValueError(f"the forecast from row {origin} failed: {error}") from error
        forecasts.append(forecast)
    return Backtest(given, np.array(origins), tuple(forecasts), tuple(figures), tuple(levels), refit)


@dataclass(frozen=True)
class Route:
    """Where the origins lie in a series of which the posterior knows the first `known` rows, and ways to go along."""

    series: Series
    origins: range
    known: int
    new_experiment: bool
    seed: int

    def filtered(self, posterior: Posterior) -> Iterator[Posterior]:
        """The posterior given the rows up to each origin, in one pass."""
        rows = [origin - self.known for origin in self.origins]
        rest = self.series[self.known :]
        return posterior.condition_at(rest, rows, new_experiment=self.new_experiment, seed=self.seed)

    def learned(
        self, posterior: Posterior, forgetting: float | Sequence[float] | Literal["auto"] | None, max_draws: int
    ) -> Iterator[Posterior]:
        """The posterior that has learned from the rows up to each origin, in one pass."""
        new, known = self.new_experiment, self.known
        for origin in self.origins:
            if origin > known:
                rows = self.series[known:origin]
                posterior = posterior.learn(
                    rows, forgetting=forgetting, new_experiment=new, max_draws=max_draws, seed=self.seed
                )
                new, forgetting = False, None  # later calls keep to the first one's
            known = origin
            yield posterior

    def updated(self, posterior: Posterior) -> Iterator[Posterior]:
        """The posterior that has learned from the rows up to each origin, each from the one before."""
        new, known = self.new_experiment, self.known
        for origin in self.origins:
            if origin > known:
                posterior, new = posterior.update(self.series[known:origin], new_experiment=new), False
            known = origin
            yield posterior

    def fitted(self, first: Posterior, arguments: Mapping[str, Any]) -> Iterator[Posterior]:
        """A posterior of its own for the rows up to each origin."""
        yield first
        for origin in self.origins[1:]:
            yield fit(self.series[:origin], progress=False, **arguments)


def _origins(series: Series, start: int | float, horizon: int, step: int) -> range:
    """Every `step`-th row from `start` on that has `horizon` rows from it on."""
    # The margin keeps 0.29 · 100 from falling to 28.
    share = is_real(start) and 0 <= start < 1 and not is_whole(start)
    first = int(start) if is_whole(start) else math.floor(start * len(series) + 1e-9) if share else -1
    if not 0 <= first <= len(series) - horizon:
        raise ValueError(
            f"start must be a row number or a fraction of the {len(series)} rows that leaves {horizon} rows to "
            f"forecast; got {start!r}. Give more rows, or a shorter horizon"
        )
    return range(first, len(series) - horizon + 1, step)
