"""An examination with given numbers, without a fit, a forecast or a compiled program."""

import numpy as np

from gpssm.evaluation import checks
from gpssm.evaluation.examine import Entry, Examination, RollingComparison, RollingRows
from gpssm.evaluation.scores import Backtest
from gpssm.evaluation.summary import Sampling, Summary
from gpssm.evaluation.training import Assessment, Correlation, OutputSummary, Residuals
from gpssm.posterior.checks import check_mixing
from gpssm.posterior.diagnostics import Diagnostics, Row
from gpssm.posterior.forecast import Forecast, ForecastDiagnostics

HORIZON = 10


def make_forecast(rng, rows, start, horizon, paths=60):
    """Random paths around the actual rows."""
    y = np.nan_to_num(rows.y[:horizon])
    trust = ForecastDiagnostics(np.linspace(0, 0.1, horizon), np.zeros(horizon))
    return Forecast(
        y + rng.normal(size=(paths, *y.shape)),
        rows.outputs,
        start,
        rows.u[:horizon],
        rows.inputs,
        rows.dt,
        diagnostics=trust,
    )


def make_examination(posterior, test, methods=("by hand", "last", "mean")):
    """An examination of a posterior and of the rows that follow it, with random numbers."""
    rng, train = np.random.default_rng(5), posterior.dataset.experiments[-1]
    forecasts = {name: make_forecast(rng, test, len(train), len(test)) for name in methods}
    judged = RollingRows(test, 0, HORIZON, HORIZON, True)
    origins = np.arange(0, len(test) - HORIZON + 1, HORIZON)
    several = tuple(
        make_forecast(rng, test[int(origin) :], len(train) + int(origin), HORIZON)
        for origin in origins
    )
    own = Backtest(test, origins, several, ({},) * len(origins), (0.9,), "never")
    entries = tuple(
        Entry(
            name,
            {
                output: {"rmse": 1.0, "fit": 50.0, "crps": 0.5, "coverage_90": 0.9, "width_90": 3.0}
                for output in test.outputs
            },
            number + rng.uniform(size=len(origins)),
            {output: rng.uniform(size=HORIZON) for output in test.outputs},
        )
        for number, name in enumerate(methods)
    )
    rolling = RollingComparison(judged, entries, own)
    rows = (
        Row("smoothed outputs", 30, 1.01, 400, 500, 300),
        Row("30-step forecast mean", 30, 1.01, 400, 500, 300),
    )
    residuals = Residuals(
        train,
        train.y,
        rng.normal(size=train.y.shape),
        (Correlation(np.zeros(5), 0.5),) * train.output_dim,
        ({name: Correlation(np.zeros(11), 0.5) for name in train.inputs},) * train.output_dim,
    )
    facts = {
        "method": "by hand",
        "series": (train.name or "series 0",),
        "rows": (len(train),),
        "outputs": train.outputs,
        "inputs": train.inputs,
        "missing": 0.0,
        "states": 2,
        "basis": "InducingPoints",
        "inducing": 6,
        "kernel": "SquaredExponential",
        "mean": "Identity",
        "likelihood": "Gaussian",
        "chains": 2,
        "draws": 20,
        "seconds": 3.0,
        "wiring": "",
        "delay": (),
    }
    outputs = tuple(OutputSummary(name, 1.0, 0.1, 0.1, 0.2, 0.5, 3, None) for name in train.outputs)
    sampling = Sampling(
        "good",
        dict.fromkeys(("30-step forecast mean", "smoothed outputs"), (1.01, 400)),
        0,
        0.8,
        (),
    )
    found = (
        checks.check_worth(rolling),
        *checks.check_coverage(rolling),
        *checks.check_residuals(residuals),
    )
    training = Assessment(outputs, 30, np.zeros((60, len(outputs))), 0.9, 0.1, 0.2, 0.0, 0.0)
    summary = Summary(facts, sampling, training, tuple(check_mixing(rows)))
    hindsight = make_forecast(rng, train, 0, len(train))
    return Examination(
        posterior=posterior,
        test=test,
        forecasts=forecasts,
        rolling=rolling,
        diagnostics=Diagnostics(rows, np.full(2, 0.8), 0, np.ones(2), {"run": 1.0}, ()),
        summary=summary,
        residuals=residuals,
        smoothed=hindsight,
        observed=hindsight,
        checks=(*found, *summary.checks),
        failures=(),
    )
