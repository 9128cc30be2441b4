"""Protocols, which compute scores from a posterior of the training rows and the test rows.

    p30            a simulation of the first 30 test rows, from the last training state
    simulation     a simulation of all test rows, from the last training state; of another record,
                   from the state estimated from its first `window` rows
    rolling        forecasts of 30 steps from every 10th test row, given the rows before it
    learn          the same, with functions that have learned from those rows (`posterior.learn`)
    daisy-rolling  forecasts of 30 steps from every 30th test row

A forecast uses the inputs of its steps, but none of their outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpssm.bench.problems import BenchmarkProblem
from gpssm.core import metrics
from gpssm.data.series import Series, as_list
from gpssm.posterior.conditioning import condition_at, extended
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.stack import Forecaster
from gpssm.posterior.validation import (
    BENCHMARK,
    BENCHMARK_LEARNING,
    RollingForecast,
    RollingOrigin,
    rolling_forecasts,
)

Figures = dict[str, float]


@dataclass(frozen=True)
class SimulationProtocol:
    """One simulation of the first `horizon` test rows; None for all of them.

    For long records there are fewer paths, at most `max_rows` rows of paths, to limit memory.
    """

    horizon: int | None = None
    num_paths: int = 1000
    max_rows: int = 4_500_000

    def judge(self, posterior: Forecaster, problem: BenchmarkProblem, seed: int) -> Figures:
        """Return scores of the simulation."""
        window = (problem.test.window or 0) if problem.suite == "records" else 0
        test = problem.test
        _check_rows(test, max(self.horizon or 0, window + 1))
        rows = test[window : self.horizon]
        paths = max(min(self.num_paths, self.max_rows // len(rows)), 2)
        if problem.suite == "records":
            warmup = test[:window] if window else None
            thinned = posterior.thinned(paths)  # draws without a path need no filter
            forecast = thinned.simulate(rows.u, warmup=warmup, num_paths=paths, seed=seed)
        else:
            forecast = posterior.forecast(len(rows), rows.u, num_paths=paths, seed=seed)
        return score([(forecast, rows)], problem)


@dataclass(frozen=True)
class RollingProtocol:
    """Forecasts from many origins in the test rows, by a posterior that is filtered or learns."""

    scheme: RollingOrigin = BENCHMARK
    learns: bool = False

    def judge(self, posterior: Forecaster, problem: BenchmarkProblem, seed: int) -> Figures:
        """Return scores over all origins."""
        rolling = list(self.forecasts(posterior, problem.test, seed))
        figures = score([(item.forecast, item.rows) for item in rolling], problem)
        return figures | {"origins": float(len(rolling))}

    def forecasts(
        self, posterior: Forecaster, test: Series, seed: int
    ) -> Iterator[RollingForecast]:
        """Yield the forecast from each origin."""
        _check_rows(test, self.scheme.horizon)
        draws = self.scheme.num_draws
        origins = self.scheme.origins(len(test))
        if self.learns:  # forgetting is chosen on the training rows
            states = extended(
                posterior,
                test,
                origins,
                lambda item, rows: item.learn(
                    rows,
                    forgetting="auto" if item is posterior else None,
                    max_draws=draws,
                    seed=seed,
                ),
            )
        else:
            states = condition_at(posterior.thinned(draws), test, origins, seed=seed)
        return rolling_forecasts(states, test, origins, self.scheme, seed=seed, quiet=False)


Protocol = SimulationProtocol | RollingProtocol
PROTOCOLS: dict[str, Protocol] = {
    "p30": SimulationProtocol(30),
    "simulation": SimulationProtocol(),
    "rolling": RollingProtocol(),
    "learn": RollingProtocol(BENCHMARK_LEARNING, learns=True),
    "daisy-rolling": RollingProtocol(replace(BENCHMARK, step=30)),
}


def score(pairs: Sequence[tuple[Forecast, Series]], problem: BenchmarkProblem) -> Figures:
    """Return scores of forecasts, averaged over origins.

    `rmse` and `crps` are in the units of the data. For several outputs, which may have different
    units, `nrmse` is the mean over outputs of the RMSE over the standard deviation of the test
    outputs, and `ncrps` that of the CRPS over the standard deviation of the training outputs.
    """
    train_std = np.nanstd(np.concatenate([part.y for part in as_list(problem.train)]), axis=0)
    squares = np.concatenate([(forecast.mean - rows.y) ** 2 for forecast, rows in pairs])
    by_output = np.sqrt(np.nanmean(squares, axis=0))  # over the steps of all origins
    by_origin = [_figures(forecast, rows, train_std) for forecast, rows in pairs]
    figures = {name: float(np.nanmean([item[name] for item in by_origin])) for name in by_origin[0]}
    return figures | {"nrmse": float(np.nanmean(by_output / np.nanstd(problem.test.y, axis=0)))}


def _figures(forecast: Forecast, rows: Series, train_std: np.ndarray) -> Figures:
    moments = forecast.moments
    mixture = forecast.moments_ahead or moments
    crps = metrics.fair_crps(forecast.paths - rows.y)
    figures = {
        "rmse": metrics.rmse(forecast.mean, rows.y),
        "crps": np.nanmean(crps),
        "ncrps": np.nanmean(crps / train_std),
        "coverage_90": metrics.coverage(forecast.paths, rows.y, 0.9),
        "nlpd": metrics.nlpd(*mixture, rows.y) if mixture else np.nan,
        "nmll_paper": metrics.nmll_paper(*moments, rows.y) if moments else np.nan,
        "share_left": forecast.diagnostics.share_left if forecast.diagnostics else 0.0,
    }
    return {name: float(figure) for name, figure in figures.items()}


def _check_rows(test: Series, length: int) -> None:
    if len(test) < length:
        raise ValueError(f"a forecast needs {length} test rows; there are {len(test)}")
