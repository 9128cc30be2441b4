"""Rolling origin: forecasts from many rows of a series, each made with what was known there.

    origin r: functions and parameters as learned, the state given rows 0..r−1, a forecast of rows r..r+horizon−1

A forecast is given the controls of the rows it covers, and no output of theirs.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, get_args

import numpy as np

from gpssm.comparison import LEVELS
from gpssm.conditioning import like_training
from gpssm.fit import fit
from gpssm.methods import Config
from gpssm.posterior import Posterior
from gpssm.progress import Mode
from gpssm.rolling import Backtest, Refit
from gpssm.series import Series
from gpssm.thinning import thinned


def backtest(
    series: Any,
    method: str | Config | Posterior = "ffvd",
    *,
    horizon: int = 30,
    step: int = 10,
    start: int | float | None = None,
    refit: Refit = "never",
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
        over the rows. "update": `posterior.update` with the rows since the last origin. "fit": a new fit to all rows
        before the origin. The last two compile at every origin, whose rows are more each time.
    :param num_paths: of each forecast, spread over the draws.
    :param max_draws: draws used with refit="never", evenly spaced: a filter costs as much as it has draws.
    """
    given = _check(series, refit, horizon=horizon, step=step, max_draws=max_draws)
    if isinstance(method, Posterior):
        _check_ready(refit, fit_arguments)
        posterior, given, known = method, like_training(method, given), 0
        origins = _origins(given, 0 if start is None else start, horizon, step)
    else:
        if new_experiment:
            raise ValueError("new_experiment is for a posterior; here the model is fitted to the series' first rows")
        origins = _origins(given, 0.5 if start is None else start, horizon, step)
        fit_arguments = {"method": method, "seed": seed, **fit_arguments}
        posterior, known = fit(given[: origins[0]], progress=progress, **fit_arguments), origins[0]
    plan = _Plan(given, origins, known, new_experiment, seed)
    if refit == "never":
        informed = plan.filtered(thinned(posterior, max_draws))
    else:
        informed = plan.updated(posterior) if refit == "update" else plan.fitted(posterior, fit_arguments)
    forecasts, figures = [], []
    for number, origin in enumerate(_tracked(origins, progress)):
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
class _Plan:
    """Where the origins lie in a series of which the posterior knows the first `known` rows."""

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
    first = (
        int(start) if isinstance(start, Integral) else math.floor(start * len(series) + 1e-9) if 0 <= start < 1 else -1
    )
    if not 0 <= first <= len(series) - horizon:
        raise ValueError(
            f"start must be a row number or a fraction of the {len(series)} rows that leaves {horizon} rows to "
            f"forecast; got {start!r}. Give more rows, or a shorter horizon"
        )
    return range(first, len(series) - horizon + 1, step)


def _check(series: Any, refit: Refit, **sizes: int) -> Series:
    """The one series there must be, once the settings have been looked at."""
    if refit not in get_args(Refit):
        raise ValueError(f"refit must be one of {', '.join(get_args(Refit))}; got {refit!r}")
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
    given = Series.of(series)
    if not isinstance(given, Series):
        raise TypeError(f"backtest takes one series at a time; got a list of {len(given)}. Call once for each")
    return given


def _check_ready(refit: Refit, fit_arguments: Mapping[str, Any]) -> None:
    if refit == "fit":
        raise ValueError("refit='fit' needs a method to fit; a posterior goes on with refit='update' or 'never'")
    if fit_arguments:
        raise TypeError(f"a posterior is fitted already and takes no {', '.join(fit_arguments)}")


def _tracked(origins: range, progress: Mode) -> Iterable[int]:
    """The origins, with a bar or a line for each as they are done."""
    if progress is True:
        from rich.progress import track

        return track(origins, description="backtest")
    return _told(origins) if progress == "plain" else origins


def _told(origins: range) -> Iterator[int]:
    for number, origin in enumerate(origins, 1):
        yield origin
        print(f"gpssm: backtest, origin {number}/{len(origins)}, row {origin}", file=sys.stderr, flush=True)
