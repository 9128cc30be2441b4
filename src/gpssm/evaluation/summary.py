"""A summary of a posterior: data, model, convergence and checks.

The verdict on convergence is for the worst of the 30-step forecast and the smoothed outputs, which
do not depend on the coordinates of the states: "good" if R-hat < 1.05 and the effective sample size
is at least 80, "fair" if R-hat < 1.2 and it is at least 20, otherwise "poor". A run with more than
5 % divergent transitions, or with notes about problems, is "fair" at best. Chains with separate
starts and models are assessed separately, and are "fair" if they do not agree.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpssm.core.table import card
from gpssm.core.text import as_tuple, count, figure, in_line, jsonable, percent, printable
from gpssm.data.delays import name_inputs
from gpssm.evaluation.checks import (
    check_constant_inputs,
    check_drift,
    check_outliers,
    check_training,
)
from gpssm.evaluation.training import Assessment, Residuals, assess, find_residuals
from gpssm.model.bases import (
    CoregionalisedPoints,
    FeaturePoints,
    InducingPoints,
    LinearFeatures,
    parts_of,
)
from gpssm.model.means import Wired
from gpssm.posterior.calibration import Calibration
from gpssm.posterior.checks import (
    CHOOSE_METHOD,
    Check,
    check_calibration,
    check_mixing,
    check_sampler,
    doubts,
    is_chain,
    sampling_verdict,
)
from gpssm.posterior.diagnostics import FORECAST, WITHIN, Diagnostics, diagnose, own_starts
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Forecaster, Stack, draws_outputs, leading_member


@dataclass(frozen=True)
class Sampling:
    """Convergence: the worst diagnostics, and the verdict.

    Parameters
    ----------
    verdict
        "good", "fair" or "poor".
    mixing
        R-hat and effective sample size of forecast and smoothed outputs, by name; also within
        chains if these have separate models.
    divergences, acceptance
        Number of divergent transitions, and the mean acceptance probability.
    notes
        Notes of the run.
    separate
        Whether chains have separate models.
    """

    verdict: str
    mixing: dict[str, tuple[float, float]]
    divergences: int
    acceptance: float
    notes: tuple[str, ...]
    separate: bool = False

    @property
    def lines(self) -> list[str]:
        """Return the diagnostics as lines of text."""
        texts = {
            name: "no R-hat: too few draws, or all equal"
            if math.isnan(rhat)
            else f"R-hat {rhat:.3f}, {ess:.0f} effective draws"
            for name, (rhat, ess) in self.mixing.items()
        }
        width = max(map(len, texts))
        transitions = f"divergent transitions {self.divergences}, acceptance {self.acceptance:.2f}"
        return [*(f"{name:<{width}}  {text}" for name, text in texts.items()), transitions]


@dataclass(frozen=True)
class Summary:
    """The result of `Posterior.summary`: use `print` for text, `to_dict` for JSON.

    Parameters
    ----------
    facts
        The fit in plain values: data, model and effort.
    sampling, training
        Convergence, and measures on the training rows.
    checks
        Checks of the run, in sample.
    starts
        The compared starts, best first, one row each.
    members, leading
        The members of a stack by decreasing weight, and the member that represents it where a
        single model is shown.
    coverage
        The measured coverage of each output's 90 % intervals before calibration, and the range of
        factors by which they were then widened.
    calibration, calibrated_on
        The factor of the intervals and their coverage without it by steps ahead, and the rows used.
    residuals
        Tests of one-step errors, as in `Residuals.table`.
    """

    facts: dict[str, Any]
    sampling: Sampling
    training: Assessment
    checks: tuple[Check, ...]
    starts: tuple[dict[str, Any], ...] = ()
    members: tuple[dict[str, Any], ...] = ()
    leading: str = ""
    coverage: tuple[dict[str, Any], ...] = ()
    calibration: tuple[dict[str, Any], ...] = ()
    calibrated_on: str = ""
    residuals: tuple[dict[str, Any], ...] = ()

    @property
    def weights(self) -> dict[str, float]:
        """The positive weights of the members of a stack by name."""
        members = self.members if self.leading else ()
        return {row["member"]: row["weight"] for row in members if row["weight"] > 0}

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings: notes of the run, and checks that advise caution."""
        sentences = [check.sentence for check in doubts(self.checks)]
        return tuple(dict.fromkeys([*self.sampling.notes, *sentences]))

    def __repr__(self) -> str:
        warnings = count(len(self.doubts), "warning")
        verdict = self.sampling.verdict
        return in_line(f"Summary({self.facts['method']}, convergence {verdict}, {warnings})")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers and strings, with None for NaN."""
        checks = [check._asdict() for check in self.checks]
        return jsonable(dataclasses.asdict(self) | {"checks": checks})

    def _repr_html_(self) -> str:
        texts = {title: "\n".join(body) for title, body in self._sections().items() if body}
        return card("Summary", texts=texts)

    def __str__(self) -> str:
        lines: list[str] = []
        for title, body in self._sections().items():
            if body:
                lines += [title, *(f"  {in_line(line)}".rstrip() for line in body), ""]
        return printable("\n".join(lines[:-1]))

    def _sections(self) -> dict[str, list[str]]:
        """Return the lines of the summary by heading; empty sections have no lines."""
        errors = "errors on held-out training rows, in standard deviations"
        mixed = "Models compared"
        fitted = "Fit"
        if self.leading:
            mixed = "Mixture"
            fitted = f"Fit: {self.leading}, the member described below"
        nonlinear = (
            f"A linear map leaves {percent(self.training.nonlinear)} of the variance of f(x, u) "
            f"along the data unexplained, and {percent(self.training.nonlinear_change)} of that "
            "of f(x, u) - x."
        )
        doubtful = [f"- {doubt}" for doubt in self.doubts]
        started = {
            "start": "start",
            "noise": "noise",
            "likelihood": "likelihood",
            "rolling": f"{HORIZON} steps",
            "run": "simulation",
            "chains": "chains",
        }
        weighed = {"member": "member", "weight": "weight", "log_score": "log score", "crps": "CRPS"}
        residual = {
            "output": "residual of",
            "with": "and",
            "correlation": "correlation",
            "lag": "lag",
            "p": "p",
        }
        note = "The largest correlation; p below 0.05 indicates remaining structure."
        widened = {
            "step": "steps ahead",
            "factors": "factor",
            "coverage": "coverage without",
            "effective": "independent forecasts",
        }
        return {
            "Coverage of 90 % intervals": self._covered(),
            f"{mixed} (scores on held-out training rows)": _table(self.members, weighed),
            fitted: fact_lines(self.facts),
            f"Starts compared ({errors})": _table(self.starts, started),
            f"Convergence: {self.sampling.verdict}": self.sampling.lines,
            "Noise and predictability (in sample)": self._predictable(),
            "Residual correlations (in sample)": _table(self.residuals, residual, note),
            f"Calibration of intervals (measured on {self.calibrated_on})": _table(
                self.calibration, widened
            ),
            "Nonlinearity": [nonlinear],
            "Warnings": doubtful or ["None."],
        }

    def _covered(self) -> list[str]:
        """Return what is known about intervals from rows that the model has not seen."""
        if not self.coverage:
            return [
                "Not measured: no held-out rows were forecast. Use gpssm.backtest, or fit with",
                "calibrate=True.",
            ]
        steps = self.calibration[-1]["step"]
        columns = {"output": "output", "coverage": "inside", "widened": "then widened by"}
        return [
            f"Forecasts of {self.calibrated_on} over 1 to {count(steps, 'step')},",
            "before the intervals were calibrated:",
            *_table(self.coverage, columns),
        ]

    def _predictable(self) -> list[str]:
        training = self.training
        rows = []
        for output in training.outputs:
            noise, process = (
                f"{value:.3g} ({percent((value / output.spread) ** 2)})"
                for value in (output.noise, output.process_noise)
            )
            half, most = (
                count(value, "step") if value else f"> {len(training.widening)} steps"
                for value in (output.half, output.most)
            )
            rows.append(
                {
                    "output": output.label,
                    "spread": output.spread,
                    "noise": noise,
                    "process": process,
                    "near": f"{output.one_step_error:.3g} ({figure(output.one_step_fit, 3)} %)",
                    "far": f"{output.simulation_error:.3g} ({figure(output.simulation_fit, 3)} %)",
                    "half": half,
                    "most": most,
                }
            )
        noises = {
            "output": "output",
            "spread": "spread",
            "noise": "noise",
            "process": "process noise",
        }
        errors = {
            "output": "output",
            "near": "error: 1 step",
            "far": f"{training.horizon} steps",
            "half": "half spread",
            "most": "90 % spread",
        }
        return [
            *_table(rows, noises),
            "In parentheses: share of the output's variance.",
            "",
            *_table(rows, errors),
            "Both errors are for the same rows. In parentheses: the fit, 100 % for zero",
            "error and 0 % for the error of the mean. Last two columns: the steps after",
            "which a simulation is as uncertain as half and 90 % of the spread.",
            f"{percent(training.covered)} of the outputs lie inside the 90 % intervals of the "
            "simulations.",
        ]


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *notes: str) -> list[str]:
    """Return the lines of a table with aligned columns, and notes below it.

    Parameters
    ----------
    rows
        Cells by name; without rows there are no lines.
    columns
        Headings by names of cells.
    notes
        Lines below the table.
    """
    if not rows:
        return []
    cells = [list(columns.values())]
    for row in rows:
        values = (row.get(name, "") for name in columns)
        listed = (as_tuple(value) for value in values)
        cells.append([", ".join(figure(part, 3) for part in parts) for parts in listed])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return [*lines, *notes]


def summarise(
    forecaster: Forecaster,
    diagnostics: Diagnostics | None = None,
    residuals: Residuals | None = None,
) -> Summary:
    """Summarise a posterior or a stack; see `Posterior.summary`.

    For a stack, residuals and calibration are those of the mixture, and results for a single model
    are those of the leading member.

    Parameters
    ----------
    forecaster
        The posterior or stack.
    diagnostics
        The diagnostics of the leading member, if they have been computed.
    residuals
        The residuals of the last training series, if they have been computed.
    """
    posterior = leading_member(forecaster)
    facts = _facts(posterior) | {
        "method": forecaster.method,
        "seconds": float(sum(forecaster.seconds)),
    }
    if residuals is None and draws_outputs(forecaster):
        residuals = find_residuals(forecaster, int(np.argmax(facts["rows"])))
    is_longest = forecaster is posterior and len(facts["rows"]) == 1
    training = assess(posterior, residuals if is_longest else None)
    calibration = forecaster.calibration
    is_stack = isinstance(forecaster, Stack)
    members = compared_models(forecaster)
    sampling, mixing = _sampling(
        posterior,
        diagnose(posterior) if diagnostics is None else diagnostics,
        tuple(dict.fromkeys((*forecaster.notes, *posterior.notes))),
        CHOOSE_METHOD if members else "",
    )
    rows_per_point = sum(facts["rows"]) / facts["inducing"] if facts["inducing"] else math.inf
    checks = (
        *(() if calibration is None else check_calibration(calibration, facts["outputs"])),
        *check_outliers(posterior.dataset.experiments),
        *mixing,
        *check_constant_inputs(posterior.dataset.experiments),
        *check_training(training, rows_per_point),
        *(() if residuals is None else check_drift(residuals)),
    )
    return Summary(
        facts=facts,
        sampling=sampling,
        training=training,
        checks=checks,
        starts=tuple(row for row in posterior.comparison if "start" in row),
        members=members,
        leading=forecaster.leading if is_stack else "",
        coverage=() if calibration is None else _coverage(calibration, facts["outputs"]),
        calibration=() if calibration is None else tuple(calibration.table()),
        calibrated_on="" if calibration is None else calibration.rows,
        residuals=() if residuals is None else tuple(residuals.table()),
    )


def _sampling(
    posterior: Posterior, diagnostics: Diagnostics, notes: tuple[str, ...], remedy: str
) -> tuple[Sampling, tuple[Check, ...]]:
    """Return the convergence and its checks, with the advice that suits the fit."""
    rows = [diagnostics[FORECAST], diagnostics["smoothed outputs"]]
    starts = own_starts(posterior)
    rows += [diagnostics[row.name + WITHIN] for row in rows] if starts else []
    is_sampled = is_chain(posterior.info)

    def checks_of(remedy: str) -> tuple[Check, ...]:
        mixing = check_mixing(diagnostics.rows, starts, remedy) if is_sampled else ()
        return (*mixing, *check_sampler(posterior.info, remedy))

    checks = checks_of(remedy)
    # Notes of the run state the same problems, with the advice that suits the run.
    sentences = {
        plain.sentence: check.sentence for plain, check in zip(checks_of(""), checks, strict=True)
    }
    sampling = Sampling(
        verdict=sampling_verdict(
            rows if is_sampled else (),
            tuple(check_sampler(posterior.info)),
            posterior.notes,
            starts,
        ),
        mixing={row.name: (row.rhat, row.ess_bulk) for row in rows},
        divergences=diagnostics.divergences,
        acceptance=float(np.mean(diagnostics.acceptance)),
        notes=tuple(dict.fromkeys(sentences.get(note, note) for note in notes)),
        separate=bool(starts),
    )
    return sampling, checks


def _coverage(calibration: Calibration, outputs: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Return the measured coverage and the range of factors of each output."""
    ranges = zip(calibration.factors.min(axis=0), calibration.factors.max(axis=0), strict=True)
    return tuple(
        {
            "output": output,
            "coverage": "unknown" if np.isnan(covered) else percent(covered),
            "widened": f"{low:.2f} to {high:.2f}",
        }
        for output, covered, (low, high) in zip(outputs, calibration.covered, ranges, strict=True)
    )


def _facts(posterior: Posterior) -> dict[str, Any]:
    """Return the fit in plain values.

    `rows` has one number per series, `missing` is a share of the outputs, `inducing` may be 0 and
    `kernel` empty, `wiring` lists the arguments of each transition, and `delay` is the delay of
    inputs in rows.
    """
    model = posterior.model
    mean = model.mean
    dataset = posterior.dataset
    raw = dataset.experiments
    points = [
        part.points if isinstance(part, CoregionalisedPoints) else part
        for part in parts_of(model.basis)
    ]
    inducing = [part.size for part in points if isinstance(part, InducingPoints | FeaturePoints)]
    linear = all(isinstance(part, LinearFeatures) for part in parts_of(model.basis))
    return {
        "method": posterior.method,
        "series": tuple(item.name or f"series {index}" for index, item in enumerate(raw)),
        "rows": tuple(map(len, raw)),
        "outputs": dataset.outputs,
        "inputs": dataset.inputs,
        "missing": float(np.mean(np.isnan(np.concatenate([item.y for item in raw])))),
        "states": model.state_dim,
        "basis": " + ".join(type(part).__name__ for part in parts_of(model.basis)),
        "inducing": sum(inducing),
        "kernel": "" if linear else str(posterior.spec.describe()["kernel"]),
        "mean": f"wired {type(mean.inner).__name__}"
        if isinstance(mean, Wired)
        else type(mean).__name__,
        "likelihood": type(model.likelihood).__name__,
        "chains": posterior.num_chains,
        "draws": posterior.num_draws,
        "seconds": float(sum(posterior.seconds)),
        "wiring": posterior.spec.wiring.words(dataset.inputs) if posterior.spec.wiring else "",
        "delay": dataset.delay,
    }


def series_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the names of the training series with their numbers of rows."""
    pairs = zip(facts["series"], facts["rows"], strict=True)
    return [f"{name} ({rows} rows)" for name, rows in pairs]


def fact_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts of a summary as lines of text."""
    missing = f"{percent(facts['missing'])} of the outputs" if facts["missing"] else "no output"
    inputs = ", ".join(name_inputs(facts["inputs"], facts["delay"])) or "none"
    process = "none"
    if facts["kernel"]:
        process = f"kernel {facts['kernel']}, basis {facts['basis']}"
        process += f", {facts['inducing']} inducing points" if facts["inducing"] else ""
    rows = {
        "series": f"{', '.join(series_of(facts))}; {missing} missing",
        "outputs": f"{', '.join(facts['outputs'])}; inputs: {inputs}",
        "model": f"{count(facts['states'], 'state')}, mean {facts['mean']}, likelihood "
        + facts["likelihood"],
        "wiring": facts["wiring"],
        "process": process,
        "method": f"{facts['method']}, {count(facts['chains'], 'chain')} of "
        f"{count(facts['draws'], 'draw')}, {facts['seconds']:.0f} s",
    }
    return [f"{name:<9}{text}" for name, text in rows.items() if text]


def compared_models(forecaster: Forecaster) -> tuple[dict[str, Any], ...]:
    """Return one row of scores for each model weighted by held-out rows; see `Stack.table`."""
    if isinstance(forecaster, Stack):
        return forecaster.table
    assert isinstance(forecaster, Posterior)
    return tuple(row for row in forecaster.comparison if "member" in row)
