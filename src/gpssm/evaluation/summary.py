"""A posterior on one page, in words and numbers: what was fitted, how well it sampled, what to make
of it.

The verdict on the sampling goes by the worst of the 30-step forecast and the smoothed outputs,
which do not depend on the states' coordinates: "good" with R-hat < 1.05 and 100 effective draws or
more, "fair" with R-hat < 1.2 and 20, else "poor". A run in which more than 5 % of the moves
diverged, or with notes of what went wrong, is "fair" at best. Chains with models of their own, from
starts of their own, are judged each by itself, and are "fair" where they do not agree.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpssm.core.notebook import card
from gpssm.core.text import count, figure, in_line, jsonable, percent, printable
from gpssm.data.delays import name_controls
from gpssm.evaluation.assessment import Assessment, assess
from gpssm.evaluation.checks import check_training
from gpssm.evaluation.residuals import Residuals, find_residuals
from gpssm.model.bases import (
    CoregionalisedPoints,
    FeaturePoints,
    InducingPoints,
    LinearFeatures,
    parts_of,
)
from gpssm.model.kernels import Kernel, Product, Sum
from gpssm.model.means import Wired
from gpssm.posterior.checks import (
    Check,
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
class Facts:
    """What was fitted: data, model and effort. `rows` has a number a series; `inducing` may be 0,
    `kernel` empty.
    """

    method: str
    series: tuple[str, ...]
    rows: tuple[int, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    missing: float  # share of the outputs
    states: int
    basis: str
    inducing: int
    kernel: str
    mean: str
    likelihood: str
    chains: int
    draws: int
    seconds: float
    wiring: str = ""  # what each transition sees, where that was told
    delay: tuple[int, ...] = ()  # of controls, in rows

    @property
    def controls(self) -> list[str]:
        """Their names, with delays in words."""
        return name_controls(self.inputs, self.delay)


@dataclass(frozen=True)
class Sampling:
    """How well it sampled: figures at their worst, and the verdict on them."""

    verdict: str
    rhat_forecast: float
    ess_forecast: float
    rhat_outputs: float
    ess_outputs: float
    divergences: int
    acceptance: float
    notes: tuple[str, ...]
    # R-hat and effective draws of each chain by itself, by name, where chains have models of their own.
    within: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class OutputSummary:
    """One output in the user's units: noises as standard deviations of one step, errors as root
    mean squares.

    `half` and `most` are the steps after which the spread of a free run reaches 50 and 90 % of the
    data's; None where it does not within the steps that were run. Fits are in per cent, 100 (1 − ‖y
    − ŷ‖ / ‖y − ȳ‖) over the same rows.
    """

    name: str
    spread: float
    noise: float
    process_noise: float
    one_step_error: float
    free_run_error: float
    half: int | None
    most: int | None
    one_step_fit: float = math.nan
    free_run_fit: float = math.nan
    unit: str = ""

    @property
    def label(self) -> str:
        """The name with its unit, where that is known."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True)
class Summary:
    """What `Posterior.summary` gives: `print` it for a page, `to_dict` for what JSON can hold."""

    facts: Facts
    sampling: Sampling
    outputs: tuple[OutputSummary, ...]
    free_run_steps: int  # of the free runs whose error is given
    longest_run: int  # in which `half` and `most` were looked for
    covered: float  # share of the training outputs inside the free runs' 90 % intervals
    nonlinear: float  # share of the variance of f along the data that no linear map explains
    nonlinear_change: float  # the same, of f(x, u) − x
    checks: tuple[Check, ...]  # of the run, in sample
    starts: tuple[dict[str, Any], ...] = ()  # that were compared, best first: a row of figures each
    members: tuple[dict[str, Any], ...] = ()  # of a stack, heaviest first
    leading: str = ""  # the member of a stack that is shown where a single model is
    calibration: tuple[
        dict[str, Any], ...
    ] = ()  # steps ahead, the intervals' factor and their coverage without it
    calibrated_on: str = ""  # rows
    residuals: tuple[
        dict[str, Any], ...
    ] = ()  # tests of one-step errors, as `Residuals.table` has them

    @property
    def doubts(self) -> tuple[str, ...]:
        """What to distrust, as sentences: notes of the run, and the checks that ask for caution or
        worse.
        """
        found = [one.sentence for one in doubts(self.checks)]
        return tuple(dict.fromkeys([*self.sampling.notes, *found]))

    def to_dict(self) -> dict[str, Any]:
        """Everything in dicts, lists, numbers and strings; None for what is not a number."""
        return jsonable(
            dataclasses.asdict(self) | {"checks": [one._asdict() for one in self.checks]}
        )

    def _repr_html_(self) -> str:
        texts = {title: "\n".join(body) for title, body in self._sections().items() if body}
        return card("Summary", texts=texts)

    def __str__(self) -> str:
        lines = [
            line
            for title, body in self._sections().items()
            if body
            for line in (title, *(f"  {in_line(line)}".rstrip() for line in body), "")
        ]
        return printable("\n".join(lines[:-1]))

    def _sections(self) -> dict[str, list[str]]:
        """The lines of the page by heading."""
        return {
            "What was fitted": self._fitted(),
            "What is mixed (scores on held-out training rows; a single model below is "
            f"{self.leading})": self._mixed(),
            "Where it started (errors on held-out training rows, in standard deviations)": self._started(),
            f"How well it sampled: {self.sampling.verdict}": self._sampled(),
            "How noisy, how predictable (in sample)": self._predictable(),
            "What one-step errors still hold (in sample)": self._residual(),
            f"How much wider its intervals are made (measured on {self.calibrated_on})": self._widened(),
            "How nonlinear": [
                f"{percent(self.nonlinear)} of the variance of f(x, u) along the data is beyond "
                "any linear map, and "
                f"{percent(self.nonlinear_change)} of that of the change f(x, u) - x."
            ],
            "What to distrust": [f"- {doubt}" for doubt in self.doubts]
            or ["Nothing that stands out."],
        }

    def _fitted(self) -> list[str]:
        facts = self.facts
        names = [
            f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)
        ]
        missing = (
            f"{percent(facts.missing)} of the outputs missing"
            if facts.missing
            else "no output missing"
        )
        inducing = f", {facts.inducing} inducing points" if facts.inducing else ""
        process = (
            f"kernel {facts.kernel}, basis {facts.basis}{inducing}" if facts.kernel else "none"
        )
        return [
            f"series   {', '.join(names)}; {missing}",
            f"outputs  {', '.join(facts.outputs)}; controls: {', '.join(facts.controls) or 'none'}",
            f"model    {count(facts.states, 'state')}, mean {facts.mean}, likelihood "
            f"{facts.likelihood}",
            *([f"wiring   {facts.wiring}"] if facts.wiring else []),
            f"process  {process}",
            f"method   {facts.method}, {count(facts.chains, 'chain')} of "
            f"{count(facts.draws, 'draw')}, "
            f"{facts.seconds:.0f} s",
        ]

    def _started(self) -> list[str]:
        """A line a candidate; none where nothing was compared."""
        if not self.starts:
            return []
        head = f"{'start':<24}{'noise':<8}{'likelihood':<12}{f'{HORIZON} steps':>9}{'free run':>10}{'chains':>8}"
        return [head] + [
            f"{row['start']:<24}{row['noise']!s:<8}{row['likelihood']:<12}{figure(row['rolling'], 3):>9}"
            f"{figure(row['run'], 3):>10}{row.get('chains', ''):>8}"
            for row in self.starts
        ]

    def _mixed(self) -> list[str]:
        """A line a member of a stack."""
        if not self.members:
            return []
        return [f"{'member':<40}{'weight':>8}{'log score':>11}{'CRPS':>9}"] + [
            f"{row['member']:<40}{row['weight']:>8.2f}{figure(row['log_score'], 3):>11}{figure(row['crps'], 3):>9}"
            for row in self.members
        ]

    def _residual(self) -> list[str]:
        """A line a test; none where too little was observed."""
        if not self.residuals:
            return []
        rows = [
            (
                row["output"],
                row["with"],
                f"{row['correlation']:+.2f}",
                str(row["lag"]),
                f"{row['p']:.2g}",
            )
            for row in self.residuals
        ]
        head = ("residual of", "and", "correlation", "lag", "p")
        return [
            *_columns([head, *rows]),
            "The largest correlation; p below 0.05 says that something was left.",
        ]

    def _widened(self) -> list[str]:
        """A line a step; none where nothing was measured."""
        if not self.calibration:
            return []
        rows = [
            (
                count(row["step"], "step"),
                ", ".join(f"{factor:.2f}" for factor in row["factors"]),
                ", ".join(percent(share) for share in row["coverage"]),
                f"{row['effective']:.0f}",
            )
            for row in self.calibration
        ]
        return _columns(
            [("ahead", "factor", "covered by 90 % without", "independent forecasts"), *rows]
        )

    def _sampled(self) -> list[str]:
        found = self.sampling
        rows = {
            f"{HORIZON}-step forecast": (found.rhat_forecast, found.ess_forecast),
            "smoothed outputs": (found.rhat_outputs, found.ess_outputs),
            **found.within,
        }
        width = max(map(len, rows))
        return [
            *(
                f"{name:<{width}}  no R-hat: few draws, or all equal"
                if math.isnan(rhat)
                else f"{name:<{width}}  R-hat {rhat:.3f}, {ess:.0f} effective draws"
                for name, (rhat, ess) in rows.items()
            ),
            f"divergent moves {found.divergences}, acceptance {found.acceptance:.2f}",
        ]

    def _predictable(self) -> list[str]:
        noises = ("output", "spread", "noise", "process noise")
        errors = (
            "output",
            "error: 1 step",
            f"{self.free_run_steps} steps",
            "half spread",
            "90 % spread",
        )
        return [
            *_columns([noises, *map(_noises, self.outputs)]),
            "In brackets the share of the output's variance.",
            "",
            *_columns([errors, *(self._errors(one) for one in self.outputs)]),
            "In brackets the fit, 100 % where errors are 0 and 0 % where they are those of",
            "the mean. The last two columns: the steps after which a free run is as",
            "uncertain as half and 90 % of the spread.",
            f"{percent(self.covered)} of the outputs lie inside the 90 % intervals of the free "
            "runs.",
        ]

    def _errors(self, one: OutputSummary) -> tuple[str, ...]:
        pairs = ((one.one_step_error, one.one_step_fit), (one.free_run_error, one.free_run_fit))
        errors = [f"{value:.3g} ({figure(fit, 3)} %)" for value, fit in pairs]
        steps = [
            count(value, "step") if value else f"> {self.longest_run} steps"
            for value in (one.half, one.most)
        ]
        return one.label, *errors, *steps


def _noises(one: OutputSummary) -> tuple[str, ...]:
    noises = [
        f"{value:.3g} ({percent((value / one.spread) ** 2)})"
        for value in (one.noise, one.process_noise)
    ]
    return one.label, f"{one.spread:.3g}", *noises


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    """The rows of a table, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def summarise(
    forecaster: Forecaster,
    diagnostics: Diagnostics | None = None,
    residuals: Residuals | None = None,
) -> Summary:
    """The page of a posterior or a stack: see `Posterior.summary`.

    What was computed already is not again. Of a stack, residuals and calibration are the mixture's,
    and all that belongs to a single model is of the leading member.
    """
    posterior = leading_member(forecaster)
    figures = assess(posterior)
    facts = dataclasses.replace(
        _facts(posterior), method=forecaster.method, seconds=float(sum(forecaster.seconds))
    )
    if residuals is None and draws_outputs(forecaster):
        residuals = find_residuals(forecaster, int(np.argmax(facts.rows)))
    notes = tuple(dict.fromkeys((*forecaster.notes, *posterior.notes)))
    calibration = forecaster.calibration
    diagnostics = diagnose(posterior) if diagnostics is None else diagnostics
    forecast, outputs = diagnostics[FORECAST], diagnostics["smoothed outputs"]
    starts, sampler = own_starts(posterior), tuple(check_sampler(posterior.info))
    within = [diagnostics[one.name + WITHIN] for one in (forecast, outputs)] if starts else []
    mixing = tuple(check_mixing(diagnostics.rows, starts)) if is_chain(posterior.info) else ()
    sampling = Sampling(
        verdict=sampling_verdict(
            (forecast, outputs, *within) if mixing else (), sampler, posterior.notes, starts
        ),
        rhat_forecast=forecast.rhat,
        ess_forecast=forecast.ess_bulk,
        rhat_outputs=outputs.rhat,
        ess_outputs=outputs.ess_bulk,
        divergences=diagnostics.divergences,
        acceptance=float(np.mean(diagnostics.acceptance)),
        notes=notes,
        within={one.name: (one.rhat, one.ess_bulk) for one in within},
    )
    rows_a_point = sum(facts.rows) / facts.inducing if facts.inducing else math.inf
    return Summary(
        facts=facts,
        sampling=sampling,
        outputs=tuple(
            _output(name, j, figures, posterior.dataset.units.get(name, ""))
            for j, name in enumerate(facts.outputs)
        ),
        free_run_steps=figures.horizon,
        longest_run=len(figures.widening),
        covered=figures.covered,
        nonlinear=figures.nonlinear,
        nonlinear_change=figures.nonlinear_change,
        checks=(*mixing, *sampler, *check_training(figures, facts.outputs, rows_a_point)),
        starts=posterior.comparison,
        members=forecaster.table if isinstance(forecaster, Stack) else (),
        leading=forecaster.leading if isinstance(forecaster, Stack) else "",
        calibration=() if calibration is None else tuple(calibration.table()),
        calibrated_on="" if calibration is None else calibration.rows,
        residuals=() if residuals is None else tuple(residuals.table()),
    )


def _facts(posterior: Posterior) -> Facts:
    model, mean, dataset = posterior.model, posterior.model.mean, posterior.dataset
    raw = dataset.experiments
    points = [
        part.points if isinstance(part, CoregionalisedPoints) else part
        for part in parts_of(model.basis)
    ]
    inducing = [part.size for part in points if isinstance(part, InducingPoints | FeaturePoints)]
    linear = all(isinstance(part, LinearFeatures) for part in parts_of(model.basis))
    return Facts(
        method=posterior.method,
        series=tuple(one.name or f"series {index}" for index, one in enumerate(raw)),
        rows=tuple(len(one) for one in raw),
        outputs=dataset.outputs,
        inputs=dataset.inputs,
        missing=float(np.mean(np.isnan(np.concatenate([one.y for one in raw])))),
        states=model.state_dim,
        basis=" + ".join(type(part).__name__ for part in parts_of(model.basis)),
        inducing=sum(inducing),
        kernel="" if linear else _kernel(model.kernel),
        mean=f"wired {type(mean.inner).__name__}"
        if isinstance(mean, Wired)
        else type(mean).__name__,
        likelihood=type(model.likelihood).__name__,
        chains=posterior.num_chains,
        draws=posterior.num_draws,
        seconds=float(sum(posterior.seconds)),
        delay=dataset.delay,
        wiring="" if posterior.spec.wiring is None else posterior.spec.wiring.words(dataset.inputs),
    )


def _kernel(kernel: Kernel) -> str:
    if isinstance(kernel, Sum):
        return f"{_kernel(kernel.left)} + {_kernel(kernel.right)}"
    if isinstance(kernel, Product):
        sides = (kernel.left, kernel.right)
        return " * ".join(
            f"({_kernel(side)})" if isinstance(side, Sum) else _kernel(side) for side in sides
        )
    return type(kernel).__name__


def _output(name: str, j: int, figures: Assessment, unit: str = "") -> OutputSummary:
    def steps_to(share: float) -> int | None:
        reached = np.flatnonzero(figures.widening[:, j] >= share)
        return int(reached[0]) + 1 if len(reached) else None

    return OutputSummary(
        name=name,
        spread=float(figures.spread[j]),
        noise=float(figures.noise_std[j]),
        process_noise=float(figures.process_std[j]),
        one_step_error=float(figures.one_step[j]),
        free_run_error=float(figures.free_run[j]),
        half=steps_to(0.5),
        most=steps_to(0.9),
        one_step_fit=float(figures.one_step_fit[j]),
        free_run_fit=float(figures.free_run_fit[j]),
        unit=unit,
    )
