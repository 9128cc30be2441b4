"""Compare a fit with linear and naive baselines by rolling forecasts of the same rows.

Methods are ranked by the mean over outputs of CRPS / (standard deviation of the training output),
which scores intervals too and gives outputs in different units equal weights.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gpssm.core import metrics
from gpssm.core.text import count
from gpssm.data.delays import Rows
from gpssm.data.scaler import output_spread
from gpssm.data.series import Series
from gpssm.evaluation.scores import Backtest, backtest
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, tracked
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.stack import Forecaster
from gpssm.posterior.validation import BASELINES as ROLLING

BASELINES = ("arx", "lgssm", "last", "mean")
LABELS = {
    "arx": "ARX",
    "lgssm": "Linear state-space model",
    "last": "Last value",
    "mean": "Training mean",
}
FIGURES = ("rmse", "fit", "crps", "coverage_90", "width_90")  # of each method, by output


class RollingRows(NamedTuple):
    """The rows that all methods forecast, and the origins.

    Parameters
    ----------
    rows : Series
        Test rows, or the last training rows.
    start : int
        The first origin.
    step : int
        Rows between two origins.
    horizon : int
        Steps of each forecast.
    held_out : bool
        Whether the rows are test rows.
    """

    rows: Series
    start: int
    step: int
    horizon: int
    held_out: bool

    @property
    def protocol(self) -> str:
        """Description of the protocol."""
        where = "held-out rows" if self.held_out else "the last training rows (in sample)"
        number = len(range(self.start, len(self.rows) - self.horizon + 1, self.step))
        return f"{where}, {count(number, 'rolling forecast')} of {count(self.horizon, 'step')}"


class Entry(NamedTuple):
    """The scores of one method.

    Parameters
    ----------
    method : str
        Its name.
    figures : dict
        `FIGURES` by output, and the RMSE of the first and of the last steps on the same rows.
    losses : array (O,)
        The scaled CRPS at each origin.
    by_step : dict
        RMSE (H,) by output.
    """

    method: str
    figures: dict[str, dict[str, float]]
    losses: Float[np.ndarray, " O"]
    by_step: dict[str, Float[np.ndarray, " H"]]

    @property
    def loss(self) -> float:
        """The mean loss, by which methods are ranked."""
        return float(np.nanmean(self.losses))


@dataclass(frozen=True)
class RollingComparison:
    """Scores of a fit (first entry) and of baselines, and the forecasts of the fit (`own`)."""

    judged: RollingRows
    entries: tuple[Entry, ...]
    own: Backtest

    @property
    def best_baseline(self) -> Entry | None:
        """The baseline with the lowest loss."""
        return min(self.entries[1:], key=lambda entry: entry.loss, default=None)


class BaselineResults(NamedTuple):
    """Forecasts of baselines, their rolling scores, and a message for each failed baseline."""

    forecasts: dict[str, Forecast]
    entries: tuple[Entry, ...]
    failures: tuple[str, ...]


def judge_baselines(
    train: Sequence[Series],
    u: Float[np.ndarray, "H Du"],
    judged: RollingRows,
    baselines: Sequence[str] = BASELINES,
    *,
    exclude: str = "",
    delay: Rows | Literal["auto"] = 0,
    num_paths: int = 1000,
    seed: int = 0,
    progress: Mode = False,
) -> BaselineResults:
    """Fit baselines to the training series and score their forecasts.

    Parameters
    ----------
    train : sequence of Series
        Training data.
    u : array (H, Du)
        Inputs of the steps after the training data.
    judged : RollingRows
        Rows of the rolling forecasts.
    baselines
        Names of methods.
    exclude : str
        The method of the fit, which is left out.
    delay
        Delays of inputs, as in `fit`.
    num_paths : int
        Paths of each forecast.
    seed : int
        Seed of fits and forecasts.
    progress
        True for a bar over the baselines, "plain" for one line each, False for no output.

    Returns
    -------
    BaselineResults
    """
    spread = output_spread(train)
    options: dict[str, Any] = {"delay": delay, "num_chains": 1, "seed": seed, "progress": False}
    forecasts = {}
    entries = []
    failures = []
    for name in tracked([name for name in baselines if name != exclude], progress, "baselines"):
        try:
            posterior = fit(list(train), method=name, **options)
        except ValueError as error:
            failures.append(f"{label(name)} could not be fitted: {error}")
            continue
        forecasts[name] = forecast_rows(posterior, u, len(u), num_paths, seed)
        try:
            entries.append(judge_rolling(name, roll(posterior, judged), spread))
        except ValueError as error:
            failures.append(f"{label(name)} could not be scored: {error}")
    return BaselineResults(forecasts, tuple(entries), tuple(failures))


def forecast_rows(
    posterior: Forecaster, u: Any, horizon: int | None = None, num_paths: int = 1000, seed: int = 0
) -> Forecast:
    """Forecast under inputs `u` (a Series or an array), with fewer paths if they are long."""
    steps = horizon or (HORIZON if u is None else len(u))
    # More values would exceed the memory for sorting and scoring.
    paths = max(min(num_paths, int(2e7 / (steps * len(posterior.dataset.outputs)))), 2)
    inputs = u if posterior.dataset.inputs else None
    with warnings.catch_warnings(action="ignore"):  # a check reports paths that left
        return posterior.forecast(steps, inputs, num_paths=paths, seed=seed)


def label(method: str) -> str:
    """Return the name of a method in a sentence."""
    return LABELS.get(method, method)


def choose_rows(last: Series, test: Series | None) -> RollingRows:
    """Return the test rows if they contain outputs, otherwise the end of the last training
    series."""
    # The cost of a filter grows with the rows; a new filter has converged after a third.
    rows = last[-180:]
    start = len(rows) // 3
    held_out = test is not None and np.isfinite(test.y).any()
    if test is not None and held_out:
        rows, start = test[:600], 0
    unseen = len(rows) - start
    horizon = ROLLING.within(unseen).horizon
    return RollingRows(rows, start, ROLLING.spacing(unseen - horizon), horizon, bool(held_out))


def roll(posterior: Forecaster, judged: RollingRows) -> Backtest:
    """Return rolling forecasts along the rows for the evaluation."""
    # Paths that left are reported with the forecast.
    with warnings.catch_warnings(action="ignore"):
        return backtest(
            posterior,
            judged.rows,
            horizon=judged.horizon,
            step=judged.step,
            start=judged.start,
            new_experiment=not judged.held_out,
            num_paths=ROLLING.num_paths,
            max_draws=ROLLING.num_draws,
            progress=False,
        )


def judge_rolling(method: str, result: Backtest, spread: Float[np.ndarray, " Dy"]) -> Entry:
    """Score each observed output; losses are in units of `spread`."""
    figures = {}
    by_step = {}
    losses = []
    for output, unit in zip(result.series.outputs, spread, strict=True):
        paths, actual = result.pooled(output)
        if np.isnan(actual).all():
            continue
        scores = metrics.score(paths.reshape(len(paths), -1), actual.ravel(), levels=[0.9])
        figures[output] = {name: scores[name] for name in FIGURES}
        figures[output] |= rmse_of_ends(paths.mean(0) - actual, result.origins)
        by_step[output] = metrics.rmse(paths.mean(0), actual, by_step=True)
        by_origin = paths.swapaxes(1, 2)
        losses.append(metrics.crps(by_origin, actual.T, scale=unit, by_step=True))
    mean = np.ma.masked_invalid(losses).mean(axis=0)
    return Entry(method, figures, np.ma.filled(mean, np.nan), by_step)


def rmse_of_ends(
    errors: Float[np.ndarray, "H O"], origins: Int[np.ndarray, " O"]
) -> dict[str, float]:
    """Return the RMSE of the first and of the last steps ahead, on the same rows.

    If origins are s rows apart, the first s steps of all forecasts cover each row once, and so do
    the last s steps. Only rows covered by both are used; NaN if there are none.

    Parameters
    ----------
    errors
        Errors by step ahead and origin.
    origins
        The first row of each forecast, evenly spaced.
    """
    horizon = len(errors)
    size = min(int(origins[1] - origins[0]), horizon) if len(origins) > 1 else horizon
    rows = origins + np.arange(horizon)[:, None]
    shared = (rows >= origins[0] + horizon - size) & (rows < origins[-1] + size)
    squares = np.where(shared & np.isfinite(errors), errors**2, np.nan)
    return {
        name: float(
            np.sqrt(np.ma.masked_invalid(part).mean() if np.isfinite(part).any() else np.nan)
        )
        for name, part in (("rmse_first", squares[:size]), ("rmse_last", squares[-size:]))
    }
