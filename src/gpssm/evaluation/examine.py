"""Compute all results that a report, a run folder and the command line show of a fit.

    examination = examine(posterior, test)
    examination.checks, examination.scores, examination.forecasts

There are three protocols, and each result names its protocol: the *forecast* of the held-out rows
from the end of the training data; *rolling* forecasts along these rows, each from the data before
its origin; and *training* rows, in sample.

Baselines, linear and naive, forecast the same rows. Methods are ranked by the mean over outputs of
CRPS / (standard deviation of the training output), which scores intervals too and gives outputs in
different units equal weights.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gpssm.core import metrics
from gpssm.core.files import digest
from gpssm.core.text import count
from gpssm.data.delays import Rows
from gpssm.data.scaler import output_spread
from gpssm.data.series import Series
from gpssm.evaluation import checks
from gpssm.evaluation.scores import Backtest, backtest
from gpssm.evaluation.summary import Summary, summarise
from gpssm.evaluation.training import Residuals, find_residuals
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, tracked
from gpssm.posterior.checks import Check, check_inputs, check_paths
from gpssm.posterior.diagnostics import Diagnostics
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.stack import Forecaster, leading_member, smoothed_outputs
from gpssm.posterior.validation import BASELINES as ROLLING

BASELINES = ("arx", "lgssm", "last", "mean")
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
            failures.append(f"{checks.label(name)} could not be fitted: {error}")
            continue
        forecasts[name] = forecast_rows(posterior, u, len(u), num_paths, seed)
        try:
            entries.append(judge_rolling(name, roll(posterior, judged), spread))
        except ValueError as error:
            failures.append(f"{checks.label(name)} could not be scored: {error}")
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


@dataclass(frozen=True)
class Examination:
    """A fit's forecasts, scores and checks.

    Parameters
    ----------
    posterior, test
        The fit, and the held-out rows.
    forecasts
        Forecasts by method, the fit first.
    rolling
        Rolling forecasts of the fit and the baselines.
    diagnostics, summary, residuals
        Results for the fit; for a stack, the diagnostics of the leading member.
    smoothed, observed
        The smoothed outputs of the last training series, without and with noise.
    checks
        All checks, beginning with the comparison with simpler models.
    failures
        Messages about results that could not be computed.
    """

    posterior: Forecaster
    test: Series | None
    forecasts: Mapping[str, Forecast]
    rolling: RollingComparison
    diagnostics: Diagnostics
    summary: Summary
    residuals: Residuals
    smoothed: Forecast
    observed: Forecast
    checks: tuple[Check, ...]
    failures: tuple[str, ...]

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.posterior.method

    @property
    def holds_inputs(self) -> bool:
        """Whether forecasts hold the last inputs of the training series, as none are known."""
        return self.test is None and bool(self.posterior.dataset.inputs)

    @property
    def future(self) -> str:
        """Description of the forecast rows and their inputs, as a sentence."""
        if self.test is not None:
            under = ", under the inputs of the held-out rows" if self.test.inputs else ""
            steps = count(len(self.test), "step")
            return f"The {steps} after the end of the training data{under}."
        held = (
            " No future inputs were given, so the last ones are held constant: this forecast "
            "is only an illustration."
        )
        return f"The next {HORIZON} steps.{held if self.holds_inputs else ''}"

    @property
    def forecast(self) -> Forecast:
        """The forecast of the fit."""
        return self.forecasts[self.method]

    @property
    def worth(self) -> Check:
        """The check whether a simpler model would be sufficient."""
        return self.checks[0]

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Scores of the forecasts by method; empty if no test row was observed."""
        if self.test is None or not np.isfinite(self.test.y).any():
            return {}
        return {name: forecast.score(self.test) for name, forecast in self.forecasts.items()}

    @property
    def notes(self) -> list[str]:
        """Warnings to show first: failures, and checks with the verdict "problem"."""
        problems = [check.sentence for check in self.checks if check.level == "problem"]
        return [*self.failures, *problems]

    def to_dict(self) -> dict[str, Any]:
        """Return all results as dicts, lists, numbers and strings, for metrics.json."""
        posterior = self.posterior
        judged = self.rolling.judged
        member = leading_member(posterior)
        test = self.test and {
            "rows": len(self.test),
            "first": len(posterior.dataset.experiments[-1]),
            "hash": digest(self.test),
        }
        methods = {
            entry.method: {
                "scaled_crps": entry.loss,
                "outputs": {
                    name: figures | {"rmse_by_step": entry.by_step[name].tolist()}
                    for name, figures in entry.figures.items()
                },
            }
            for entry in self.rolling.entries
        }
        return {
            "method": self.method,
            "state_dim": member.model.state_dim,
            "num_chains": member.num_chains,
            "num_draws": member.num_draws,
            "units": posterior.dataset.units,
            "scores": self.scores,
            "rolling": {
                "protocol": judged.protocol,
                "held_out": judged.held_out,
                "origins": len(self.rolling.own.origins),
                "horizon": judged.horizon,
                "step": min(judged.step, judged.horizon),
                "methods": methods,
            },
            "checks": [check._asdict() for check in self.checks],
            "diagnostics": [row._asdict() for row in self.diagnostics.rows],
            "summary": self.summary.to_dict(),
            "test": test,
            "notes": self.notes,
        }


def examine(
    posterior: Forecaster,
    test: Any = None,
    *,
    baselines: Sequence[str] | BaselineResults = BASELINES,
    num_paths: int = 1000,
    say: Callable[[str], None] = lambda text: None,
) -> Examination:
    """Fit baselines, forecast, and evaluate.

    Parameters
    ----------
    posterior
        The fit.
    test
        The rows that follow the (last) training series, in the user's units. They are forecast and
        used to compare the model with the baselines. Without them, the end of the training series
        is used, and the checks say so.
    baselines
        Methods to fit to the same data, or their results.
    num_paths
        Paths of each forecast.
    say
        A function that receives progress messages.
    """
    if leading_member(posterior).current is not None:
        raise ValueError("a report needs the posterior from `fit` or `load`, before `condition`")
    dataset = posterior.dataset
    raw = dataset.experiments
    rows = None if test is None else _test_rows(posterior, test)
    u = inputs_after(raw[-1], rows)
    judged = choose_rows(raw[-1], rows)
    say("Forecasting")
    forecast = forecast_rows(posterior, u, len(u), num_paths, posterior.seed)
    if not isinstance(baselines, BaselineResults):
        say("Fitting the baselines")
        baselines = judge_baselines(
            raw,
            u,
            judged,
            baselines,
            exclude=posterior.method,
            delay=dataset.delay or 0,
            num_paths=num_paths,
            seed=posterior.seed,
        )
    say("Judging")
    rolled = roll(posterior, judged)
    entry = judge_rolling(posterior.method, rolled, dataset.output_spread)
    diagnostics = leading_member(posterior).diagnostics()
    residuals = find_residuals(posterior)
    smoothed, observed = smoothed_outputs(stored_rows(posterior), len(raw) - 1)
    rolling = RollingComparison(judged, (entry, *baselines.entries), rolled)
    summary = summarise(posterior, diagnostics, residuals)
    gathered = [checks.check_worth(rolling), *checks.check_coverage(rolling)]
    if rows is not None:
        gathered += checks.check_simulation(forecast, rows)
    if forecast.diagnostics is not None:
        gathered += [check_paths(forecast.diagnostics), *check_inputs(forecast.diagnostics)]
    gathered += checks.check_residuals(residuals, converged=summary.sampling.verdict == "good")
    return Examination(
        posterior=posterior,
        test=rows,
        forecasts={posterior.method: forecast, **baselines.forecasts},
        rolling=rolling,
        diagnostics=diagnostics,
        summary=summary,
        residuals=residuals,
        smoothed=smoothed,
        observed=observed,
        checks=(*gathered, *summary.checks),
        failures=baselines.failures,
    )


def inputs_after(last: Series, test: Series | None) -> Float[np.ndarray, "H Du"]:
    """Return the inputs of the test rows, or the last training inputs held constant."""
    return np.repeat(last.u[-1:], HORIZON, axis=0) if test is None else test.u


def _test_rows(posterior: Forecaster, test: Any) -> Series:
    """Return the test rows with the columns of the training series, in the same order."""
    rows = Series.of(test)
    if not isinstance(rows, Series):
        raise TypeError(
            f"test must be the rows that follow the last training series; got a list of {len(rows)}"
        )
    rows = posterior.dataset.align(rows)
    last = posterior.dataset.experiments[-1]
    if rows.axis or not last.axis:
        return rows
    return replace(rows, dt=last.dt, clock=last.axis.shifted(len(last)))
