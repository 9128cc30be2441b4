"""How a fit is judged: from a posterior of the training rows, and the test rows, to one set of figures.

    p30      from the last training state, a free run over the first 30 test steps
    full     the same over the whole test half
    rolling  from each origin 0, 10, 20, ... of the test half, given the data up to it and the functions as they were
             learned, a forecast of 30 steps; figures are means over origins
    learn    the same, but the functions are learned from the rows up to each origin too (`posterior.learn`)
    simulate through a test record of its own, a free run given its first `window` rows to find the state by; figures
             are over the rows after those

The last is for records (`records.py`), all others are for a series in two halves. A forecast is given the controls of
the steps it covers, and no output of theirs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpssm.core.metrics import score
from gpssm.data.series import Series
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.validation import (
    BENCHMARK,
    BENCHMARK_LEARNING,
    RollingForecast,
    RollingOrigin,
    extended,
    rolling_forecasts,
)


class Outcome(NamedTuple):
    """The figures of `Forecast.score`, and the share of the paths that left the region the model knows.

    With them `nlpd_paths`, the log score of a density estimate from the paths: `nlpd` mixes p(y | state) of each path,
    which are spikes far apart where a model has next to no observation noise.
    """

    metrics: dict[str, float]
    share_left: float


@dataclass(frozen=True)
class FreeRun:
    """One forecast from the last training state over the first `horizon` test steps; None for all of them."""

    horizon: int | None
    num_paths: int = 1000

    def judge(self, posterior: Posterior, test: Series, seed: int) -> Outcome:
        """The figures of the forecast."""
        rows = test if self.horizon is None else test[: self.horizon]
        _check_length(test, self.horizon or 1)
        return _score(posterior.forecast(len(rows), rows.u, num_paths=self.num_paths, seed=seed), rows)


@dataclass(frozen=True)
class Rolling:
    """Rolling forecasts of the test half, by a posterior that is filtered or learns on the way."""

    scheme: RollingOrigin = BENCHMARK
    learns: bool = False

    def judge(self, posterior: Posterior, test: Series, seed: int) -> Outcome:
        """Means over origins of all figures, with the standard deviation of the RMSE and the number of origins."""
        outcomes = [_score(one.forecast, one.rows) for one in self.forecasts(posterior, test, seed)]
        names = outcomes[0].metrics
        metrics = {name: float(np.mean([one.metrics[name] for one in outcomes])) for name in names}
        metrics["rmse_sd_over_origins"] = float(np.std([one.metrics["rmse"] for one in outcomes]))
        metrics["origins"] = float(len(outcomes))
        return Outcome(metrics, float(np.mean([one.share_left for one in outcomes])))

    def forecasts(self, posterior: Posterior, test: Series, seed: int) -> Iterator[RollingForecast]:
        """The forecast from each origin, a row number in the test half."""
        _check_length(test, self.scheme.horizon)
        origins = self.scheme.origins(len(test))
        if self.learns:
            first = {"forgetting": "auto"}
            most = {"max_draws": self.scheme.num_draws}
            informed = extended(posterior, test, origins, "learn", first, seed=seed, **most)
        else:
            informed = posterior.thinned(self.scheme.num_draws).condition_at(test, origins, seed=seed)
        return rolling_forecasts(informed, test, origins, self.scheme, seed=seed, quiet=False)


@dataclass(frozen=True)
class Simulate:
    """One free run through another record, whose state starts at x₀ ~ N(0, I) and is found by its first rows.

    A run holds some twenty numbers for each path and row at its peak, with its scores: of a long record there are as
    few paths as make `most` rows of paths in all, which bounds the memory.
    """

    num_paths: int = 1000
    most: int = 4_500_000

    def judge(self, posterior: Posterior, test: Series, seed: int) -> Outcome:
        """The figures of the rows after the first `test.window`."""
        known = test.window or 0
        _check_length(test, known + 1)
        paths = max(min(self.num_paths, self.most // (len(test) - known)), 2)
        # A draw without a path is not run through the first rows.
        fewer, after = posterior.thinned(paths), test[known:]
        found = fewer.simulate(after.u, warmup=test[:known] if known else None, num_paths=paths, seed=seed)
        return _score(found, after)


Protocol = FreeRun | Rolling | Simulate
PROTOCOLS: dict[str, Protocol] = {
    "p30": FreeRun(30),
    "full": FreeRun(None),
    "rolling": Rolling(),
    "learn": Rolling(BENCHMARK_LEARNING, learns=True),
    "simulate": Simulate(),
}


def _check_length(test: Series, horizon: int) -> None:
    if len(test) < horizon:
        raise ValueError(f"a forecast of {horizon} steps needs as many test rows; there are {len(test)}")


def _score(forecast: Forecast, actual: Series) -> Outcome:
    left = 0.0 if forecast.diagnostics is None else forecast.diagnostics.share_left
    rows = actual[: forecast.horizon].y
    return Outcome(forecast.score(actual) | {"nlpd_paths": score(forecast.paths, rows, levels=())["nlpd"]}, left)
