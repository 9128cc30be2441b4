"""Compute all results that a report, a run folder and the command line show of a fit.

    examination = examine(posterior, test)
    examination.checks, examination.scores, examination.forecasts

There are three protocols, and each result names its protocol: the *forecast* of the held-out rows
from the end of the training data; *rolling* forecasts along these rows, each from the data before
its origin; and *training* rows, in sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.core.files import digest
from gpssm.core.text import count
from gpssm.data.series import Series
from gpssm.evaluation import checks
from gpssm.evaluation.baselines import (
    BASELINES,
    BaselineResults,
    RollingComparison,
    choose_rows,
    forecast_rows,
    judge_baselines,
    judge_rolling,
    roll,
)
from gpssm.evaluation.summary import Summary, summarise
from gpssm.evaluation.training import Residuals, find_residuals
from gpssm.posterior.checks import Check, check_inputs, check_paths
from gpssm.posterior.diagnostics import Diagnostics
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.stack import Forecaster, leading_member, smoothed_outputs


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
    backtest = roll(posterior, judged)
    entry = judge_rolling(posterior.method, backtest, dataset.output_spread)
    diagnostics = leading_member(posterior).diagnostics()
    residuals = find_residuals(posterior)
    smoothed, observed = smoothed_outputs(stored_rows(posterior), len(raw) - 1)
    rolling = RollingComparison(judged, (entry, *baselines.entries), backtest)
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
