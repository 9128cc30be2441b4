"""Everything that a report, a run folder and the command line say of a fit, computed once.

    found = examine(posterior, test)
    found.checks, found.scores, found.forecasts

Three protocols, and every figure says which one it is of: the *forecast* from the end of the
training data over the rows held out, its first 30 steps and all of them; *rolling* forecasts along
those rows, each with what was known at its origin; and *training* rows, in sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.files import digest
from gpssm.core.text import count
from gpssm.data.columns import align_columns
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
from gpssm.evaluation.residuals import Residuals, find_residuals
from gpssm.evaluation.summary import Summary, summarise
from gpssm.posterior.checks import Check, check_paths
from gpssm.posterior.diagnostics import Diagnostics
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.stack import Forecaster, leading_member, smoothed_outputs

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
Baselines = Sequence[str] | Mapping[str, Forecaster] | BaselineResults


@dataclass(frozen=True)
class Examination:
    """What was found. `forecasts` has the fit's own method first; `future` says in a sentence what
    they assume.

    `scores` are by horizon, "30" and "full", then by method, and `by_output` the same of each
    output by itself; empty without test rows. `smoothed` and `observed` are the outputs of the last
    training series in hindsight, without and with noise. `held` says that the forecast is an
    illustration, with the last controls held because none were given. `failures` are sentences
    about what could not be computed. Of a stack, `diagnostics` are the leading member's.
    """

    posterior: Forecaster
    test: Series | None
    forecasts: Mapping[str, Forecast]
    future: str
    held: bool
    horizons: Mapping[str, int]
    scores: Scores
    rolling: RollingComparison
    diagnostics: Diagnostics
    summary: Summary
    residuals: Residuals
    smoothed: Forecast
    observed: Forecast
    checks: tuple[Check, ...]
    failures: tuple[str, ...]
    by_output: Mapping[str, Scores] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The name of the fit's method."""
        return self.posterior.method

    @property
    def forecast(self) -> Forecast:
        """The fit's own forecast."""
        return self.forecasts[self.method]

    @property
    def worth(self) -> Check:
        """Whether a simpler model would do."""
        return checks.check_worth(self.rolling)

    @property
    def notes(self) -> list[str]:
        """What must be known before anything here is used: failures, and checks that found a
        problem.
        """
        problems = [one.sentence for one in self.checks if one.level == "problem"]
        return [*self.failures, *problems]

    def to_dict(self) -> dict[str, Any]:
        """All figures in dicts, lists, numbers and strings."""
        posterior, test, judged = self.posterior, self.test, self.rolling.judged
        member = leading_member(posterior)
        where = test and {
            "rows": len(test),
            "first": len(posterior.dataset.experiments[-1]),
            "hash": digest(test),
        }
        return {
            "method": self.method,
            "state_dim": member.model.state_dim,
            "num_chains": member.num_chains,
            "num_draws": member.num_draws,
            "units": posterior.dataset.units,
            "horizons": dict(self.horizons),
            "scores": self.scores,
            "by_output": self.by_output,
            "rolling": {
                "protocol": judged.protocol,
                "held_out": judged.held_out,
                "origins": len(self.rolling.own.origins),
                "horizon": judged.horizon,
                "methods": {
                    one.method: {"scaled_crps": one.loss, "outputs": one.figures}
                    for one in self.rolling.entries
                },
            },
            "checks": [one._asdict() for one in self.checks],
            "diagnostics": [one._asdict() for one in self.diagnostics.rows],
            "summary": self.summary.to_dict(),
            "test": where,
            "seconds": posterior.seconds._asdict(),
            "notes": self.notes,
        }


def examine(
    posterior: Forecaster,
    test: Any = None,
    *,
    inputs: Any = None,
    baselines: Baselines = BASELINES,
    num_paths: int = 1000,
    say: Callable[[str], None] = lambda text: None,
) -> Examination:
    """Fit baselines, forecast, judge.

    :param test: the rows that follow the (last) training series, in the user's units: they are
        forecast, and decide between the model and the baselines. Without them the end of the
        training series does, which the checks say.
    :param inputs: without `test`, the controls of the steps to forecast; else the last ones are
        held for 30 steps.
    :param baselines: methods to fit to the same data, or posteriors of theirs by name, or what they
        made of it.
    :param num_paths: of each forecast.
    :param say: told what is being done.
    """
    if leading_member(posterior).current is not None:
        raise ValueError(
            "a report is about a fit: give the posterior that `fit` or `load` gave, before "
            "`condition`"
        )
    rows = None if test is None else _test_rows(posterior, test)
    method, dataset, seed = posterior.method, posterior.dataset, posterior.seed
    raw = dataset.experiments
    future, judged = choose_future(raw[-1], rows, inputs), choose_rows(raw[-1], rows)
    say("Forecasting")
    own = forecast_rows(posterior, future.u, len(future.u), num_paths, seed)
    if not isinstance(baselines, BaselineResults):
        say("Fitting the baselines")
        same = {"own": method, "delay": dataset.delay or 0, "num_paths": num_paths, "seed": seed}
        baselines = judge_baselines(raw, future.u, judged, baselines, **same)
    forecasts = {method: own, **baselines.forecasts}
    found = score_forecasts(forecasts, rows)
    say("Judging")
    rolled = roll(posterior, judged)
    entry = judge_rolling(method, rolled, dataset.output_spread)
    rolling = RollingComparison(judged, (entry, *baselines.entries), rolled)
    diagnostics, residuals = leading_member(posterior).diagnostics(), find_residuals(posterior)
    summary = summarise(posterior, diagnostics, residuals)
    smoothed, observed = smoothed_outputs(posterior.with_states(), len(raw) - 1)
    checked = (
        checks.check_worth(rolling),
        *checks.check_coverage(rolling),
        *(() if rows is None else checks.check_free_run(own, rows)),
        *(() if own.diagnostics is None else [check_paths(own.diagnostics)]),
        *checks.check_residuals(residuals),
        *summary.checks,
    )
    return Examination(
        posterior=posterior,
        test=rows,
        forecasts=forecasts,
        future=future.words,
        held=future.held,
        horizons=found["horizons"],
        scores=found["scores"],
        by_output=found["by_output"],
        rolling=rolling,
        diagnostics=diagnostics,
        summary=summary,
        residuals=residuals,
        smoothed=smoothed,
        observed=observed,
        checks=checked,
        failures=baselines.failures,
    )


def score_forecasts(forecasts: Mapping[str, Forecast], rows: Series | None) -> dict[str, Any]:
    """Scores of forecasts of the test rows by horizon and method, of all outputs together and of
    each by itself.

    Judged are the first 30 steps, and all, as far as something was observed in them.
    """
    horizons = {}
    if rows is not None:
        steps = {str(HORIZON): HORIZON} if len(rows) > HORIZON else {}
        steps["full"] = len(rows)
        horizons = {
            name: number for name, number in steps.items() if np.isfinite(rows.y[:number]).any()
        }
    cut = {
        label: {name: one[:steps] for name, one in forecasts.items()}
        for label, steps in horizons.items()
    }
    return {
        "horizons": horizons,
        "scores": {
            label: {name: one.score(rows) for name, one in cut[label].items()} for label in cut
        },
        "by_output": {
            label: {name: one.score_outputs(rows) for name, one in cut[label].items()}
            for label in cut
        },
    }


class Future(NamedTuple):
    """The controls (H, Du) of the steps to forecast, what they are in words, and whether the last
    ones are held.
    """

    u: Float[np.ndarray, "H Du"]
    words: str
    held: bool


def choose_future(last: Series, test: Series | None, inputs: Any = None) -> Future:
    """The controls of the test rows, or those given, or else the last ones of the training series,
    held.
    """
    if test is not None:
        words = f"The {count(len(test), 'step')} after the end of the training data"
        return Future(
            test.u,
            words + (", under the controls of the held-out rows." if last.inputs else "."),
            False,
        )
    if inputs is not None:
        u = align_columns(inputs, last.inputs, "u")
        return Future(
            u,
            f"The next {count(len(u), 'step')}, under the controls that were given for them.",
            False,
        )
    words = f"The next {HORIZON} steps."
    if last.inputs:
        words += (
            " No future controls were given: the last ones are held, so read this as an "
            "illustration."
        )
    return Future(np.repeat(last.u[-1:], HORIZON, axis=0), words, bool(last.inputs))


def _test_rows(posterior: Forecaster, test: Any) -> Series:
    """The test rows with the columns of the training series, in their order."""
    given, known = Series.of(test), posterior.dataset.experiments[-1]
    if not isinstance(given, Series):
        raise TypeError(
            "test must be the rows that follow the last training series; got a list of "
            f"{len(given)}"
        )
    found = posterior.dataset.align(given)
    return (
        found
        if found.axis or not known.axis
        else replace(found, dt=known.dt, clock=known.axis.shifted(len(known)))
    )
