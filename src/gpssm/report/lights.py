"""Traffic lights: what was checked, what was found, and what to do about it, each in words."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import stats

from gpssm.evaluation.checks import VERDICTS
from gpssm.plots.quantities import plain
from gpssm.plots.residuals import SIGNIFICANT, autocorrelation, standardised_residuals
from gpssm.posterior.diagnostics import MANY_DIVERGENT, Diagnostics, Row
from gpssm.posterior.forecast import MANY, SOME, ForecastDiagnostics
from gpssm.posterior.posterior import Posterior
from gpssm.report.contest import Contest
from gpssm.report.words import count, percent

GOOD, CAUTION, PROBLEM, UNKNOWN = "good", "caution", "problem", "unknown"
ORDER = (UNKNOWN, GOOD, CAUTION, PROBLEM)
LOW_BFMI = 0.2
ACCEPTANCE = (0.5, 0.98)  # outside of which the step size was a bad one
RESIDUAL_ROWS, RESIDUAL_PATHS = 500, 300
# A forecast shares its rows with those from nearby origins, so that entries are worth fewer independent ones.
DEPENDENT = 10


class Light(NamedTuple):
    """One check: its group, what it is about, its level, what was found, and what to make of it."""

    group: str
    name: str
    level: str
    found: str
    advice: str


def count_up(lights: list[Light]) -> str:
    """How many checks went how, in a sentence."""
    problems, cautions = (sum(one.level == level for one in lights) for level in (PROBLEM, CAUTION))
    if not problems and not cautions:
        return f"All {len(lights)} checks passed."
    found = count(problems, "problem") if problems else "No problem"
    return f"{found}; {cautions} of {len(lights)} checks ask for caution."


def worst(lights: list[Light]) -> str:
    """The worst level of all."""
    return max((one.level for one in lights), key=ORDER.index, default=UNKNOWN)


def find_lights(
    posterior: Posterior, diagnostics: Diagnostics, forecast: ForecastDiagnostics | None, contest: Contest
) -> list[Light]:
    """Every check, in the order in which they matter."""
    lights = [
        Light("Run", "Notes of the fit", PROBLEM, note, "Follow the note, and fit again.") for note in posterior.notes
    ]
    rows = sorted((one for one in diagnostics.rows if one.number), key=lambda one: not _is_seen(one))
    lights += [_about_row(one) for one in rows]
    lights += _about_sampler(posterior, diagnostics)
    lights += _about_residuals(posterior)
    lights += _about_coverage(contest)
    if forecast is not None:
        lights.append(_about_paths(forecast))
    return lights


def _is_seen(one: Row) -> bool:
    """Whether it is about outputs, which is what a user sees."""
    return one.name == "smoothed outputs" or one.name.endswith("forecast mean")


def _is_relative(one: Row) -> bool:
    """Whether it is compared across chains though it depends on the states' coordinates, in which chains may differ."""
    absolute = one.name in ("log target", "likelihood.log_std") or one.name.endswith("within chains")
    return not (absolute or _is_seen(one))


def _about_row(one: Row) -> Light:
    """By the thresholds of `Posterior.summary`; what depends on the states' coordinates is no problem by itself."""
    level = next((name for name, (rhat, ess) in VERDICTS.items() if one.rhat < rhat and one.ess_bulk >= ess), "poor")
    light = {"good": GOOD, "fair": CAUTION}.get(level, CAUTION if _is_relative(one) else PROBLEM)
    found = f"R-hat {one.rhat:.3f}, {one.ess_bulk:.0f} effective draws"
    return Light("Sampling", plain(one.name).capitalize(), light, found, _row_advice(one, level))


def _row_advice(one: Row, level: str) -> str:
    if level == "good":
        return "Chains agree, and there are draws enough."
    if one.rhat < VERDICTS["good"][0]:
        return "Few independent draws: raise num_draws."
    if one.name.endswith("within chains"):
        return "Chains, each by itself, have not settled: raise num_warmup and num_draws."
    if one.name == "log target":
        return "Chains have not settled, even where forecasts agree: raise num_warmup and num_draws."
    if _is_relative(one):
        return (
            "Chains disagree. It may be only about the states' coordinates, which are free, or they have not settled: "
            "see log target and smoothed outputs. If those are not good, raise num_warmup."
        )
    return "Chains disagree: raise num_warmup and num_draws, or lower state_dim."


def _about_sampler(posterior: Posterior, diagnostics: Diagnostics) -> Iterator[Light]:
    if not diagnostics.gradients:
        yield Light(
            "Sampler", "Moves", UNKNOWN, "not a Markov chain", "The method's draws are independent: nothing to check."
        )
        return
    share = diagnostics.divergences / max(posterior.num_chains * posterior.num_draws, 1)
    level = PROBLEM if share > MANY_DIVERGENT else CAUTION if share else GOOD
    advice = (
        "No move broke down."
        if not share
        else "Some moves broke down: if more than a few, raise num_warmup or give the noise a stronger prior."
    )
    yield Light("Sampler", "Divergent moves", level, f"{diagnostics.divergences} ({percent(share)})", advice)
    low, high = np.min(diagnostics.acceptance), np.max(diagnostics.acceptance)
    usual = low >= ACCEPTANCE[0] and high <= ACCEPTANCE[1]
    advice = "The step size suits the posterior." if usual else "The step size does not suit it: raise num_warmup."
    yield Light("Sampler", "Acceptance", GOOD if usual else CAUTION, f"{low:.2f} to {high:.2f}", advice)
    if np.isfinite(diagnostics.bfmi).all():
        lowest = float(np.min(diagnostics.bfmi))
        level = GOOD if lowest >= LOW_BFMI else CAUTION
        advice = "Energies are explored freely." if level == GOOD else "Energies are explored slowly: raise num_draws."
        yield Light("Sampler", "Energy (E-BFMI)", level, f"{lowest:.2f} at worst", advice)


def _about_residuals(posterior: Posterior) -> Iterator[Light]:
    """Whether one-step residuals of the last training series are white."""
    series = posterior.raw[-1][:RESIDUAL_ROWS]
    residuals = standardised_residuals(posterior, series, RESIDUAL_PATHS)
    for output, values in zip(series.outputs, residuals.T, strict=True):
        if np.isfinite(values).sum() < 8:
            yield Light("Fit", f"Residuals of {output}", UNKNOWN, "too few observed", "Nothing can be said.")
            continue
        p = autocorrelation(values).p_value
        white = p >= SIGNIFICANT
        advice = (
            "One-step errors look independent: the model has taken what the past holds."
            if white
            else "One-step errors are predictable from those before: try a larger state_dim, or more lags of a control."
        )
        yield Light(
            "Fit", f"Residuals of {output}", GOOD if white else CAUTION, f"p = {p:.2g} for independence", advice
        )


def _about_coverage(contest: Contest) -> Iterator[Light]:
    """Whether 90 % intervals hold 90 % of what came, allowing for few and dependent entries."""
    for output, figures in contest.entries[0].figures.items():
        share = figures["coverage_90"]
        number = max(len(contest.own.origins) * contest.arena.horizon // DEPENDENT, 1)
        low, high = (limit / number for limit in stats.binom(number, 0.9).interval(0.95))
        if share < low:
            level = PROBLEM if share < 0.6 else CAUTION
            advice = (
                "Intervals are too narrow: do not rely on them; more states, more data or a heavier-tailed likelihood."
            )
        elif share > high:
            level, advice = CAUTION, "Intervals are wider than they need to be: safe, but not sharp."
        else:
            level, advice = GOOD, "Intervals hold about as much as they claim."
        where = "held-out rows" if contest.arena.held_out else "the last training rows"
        yield Light("Forecast", f"90 % intervals of {output}", level, f"{percent(share)} inside, on {where}", advice)


def _about_paths(forecast: ForecastDiagnostics) -> Light:
    share = forecast.share_left
    level = PROBLEM if share > MANY else CAUTION if share > SOME else GOOD
    advice = " ".join(forecast.notes) or "The forecast stays where the model has seen data."
    return Light("Forecast", "Paths that left what the model knows", level, percent(share), advice)
