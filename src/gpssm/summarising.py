"""From a posterior to its summary."""

import math
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from gpssm.alignment import HORIZON
from gpssm.assessment import Assessment, assess
from gpssm.bases import InducingPoints, LinearFeatures, parts_of
from gpssm.diagnostics import Row, row
from gpssm.distrust import find_doubts, judge
from gpssm.examination import forecast_mean
from gpssm.fitted import Fitted
from gpssm.kernels import Kernel, Product, Sum
from gpssm.model import GPSSM
from gpssm.summary import Facts, OutputSummary, Sampling, Summary
from gpssm.types import Draw

ENTRIES = 200  # smoothed outputs at most that are compared between chains
FEWEST = 4  # draws a chain below which nothing can be said


def summarise(fitted: Fitted) -> Summary:
    """The page of a posterior: see `Posterior.summary`."""
    figures, facts = assess(fitted), _facts(fitted)
    forecast, outputs = _mixing(fitted)
    share = float(np.mean(fitted.info.divergent))
    sampling = Sampling(
        verdict=judge((forecast, outputs), share, bool(fitted.notes)),
        rhat_forecast=forecast.rhat,
        ess_forecast=forecast.ess_bulk,
        rhat_outputs=outputs.rhat,
        ess_outputs=outputs.ess_bulk,
        divergences=int(np.sum(fitted.info.divergent)),
        acceptance=float(np.mean(fitted.info.acceptance)),
        notes=fitted.notes,
    )
    rows_a_point = sum(facts.rows) / facts.inducing if facts.inducing else math.inf
    return Summary(
        facts=facts,
        sampling=sampling,
        outputs=tuple(_output(name, j, figures) for j, name in enumerate(facts.outputs)),
        free_run_steps=figures.horizon,
        longest_run=len(figures.widening),
        covered=figures.covered,
        nonlinear=figures.nonlinear,
        nonlinear_change=figures.nonlinear_change,
        doubts=tuple(find_doubts((forecast, outputs), figures, facts.outputs, fitted.notes, rows_a_point)),
    )


def _facts(fitted: Fitted) -> Facts:
    model, raw = fitted.model, fitted.raw
    inducing = [part.size for part in parts_of(model.basis) if isinstance(part, InducingPoints)]
    linear = all(isinstance(part, LinearFeatures) for part in parts_of(model.basis))
    return Facts(
        method=str(fitted.config["method"]),
        series=tuple(one.name or f"series {index}" for index, one in enumerate(raw)),
        rows=tuple(len(one) for one in raw),
        outputs=raw[0].outputs,
        inputs=raw[0].inputs,
        missing=float(np.mean(np.isnan(np.concatenate([one.y for one in raw])))),
        states=model.state_dim,
        basis=" + ".join(type(part).__name__ for part in parts_of(model.basis)),
        inducing=sum(inducing),
        kernel="" if linear else _kernel(model.kernel),
        mean=type(model.mean).__name__,
        likelihood=type(model.likelihood).__name__,
        chains=fitted.num_chains,
        draws=fitted.num_draws,
        seconds=float(sum(fitted.seconds)),
    )


def _kernel(kernel: Kernel) -> str:
    if isinstance(kernel, Sum):
        return f"{_kernel(kernel.left)} + {_kernel(kernel.right)}"
    if isinstance(kernel, Product):
        sides = (kernel.left, kernel.right)
        return " * ".join(f"({_kernel(side)})" if isinstance(side, Sum) else _kernel(side) for side in sides)
    return type(kernel).__name__


def _mixing(fitted: Fitted) -> tuple[Row, Row]:
    """How well chains agree about the forecast under the last controls, held, and about outputs along the data.

    Of very few draws that cannot be told.
    """

    def outputs(model: GPSSM, draw: Draw, chosen: Any) -> Float[Array, "n Dy"]:
        return model.likelihood.moments(draw.states[index][chosen])[0]

    if fitted.num_draws < FEWEST:
        return Row("forecast", 1, math.nan, 0, 0, 0), Row("outputs", 1, math.nan, 0, 0, 0)
    index = int(np.argmax([len(one) for one in fitted.raw]))
    chosen = np.unique(np.linspace(1, len(fitted.raw[index]), ENTRIES).astype(int))
    held = np.repeat(fitted.raw[0].u[-1:], HORIZON, axis=0)
    return row("forecast", forecast_mean(fitted, held)), row("outputs", fitted.each_draw(outputs, chosen))


def _output(name: str, j: int, figures: Assessment) -> OutputSummary:
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
    )
