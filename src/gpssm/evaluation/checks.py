"""The one judge: every sentence about whether a fit can be trusted, each with the figure and the rows it rests on.

A check is a line of a list. `Posterior.notes`, `Posterior.summary`, the command line and the report all show lines of
it, so that none of them can say what another denies. Others compute the figures (`posterior/diagnostics.py`,
`assessment.py`, `residuals.py`, `baselines.py`); here they meet their thresholds.

To add a check, write a function that yields `Check`s from figures, and name it in `examine.py` or `summary.py`.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from gpssm.core.metrics import coverage
from gpssm.core.mixing import bfmi
from gpssm.core.text import count, percent
from gpssm.data.series import Series
from gpssm.evaluation.assessment import Assessment
from gpssm.evaluation.baselines import LABELS, Entry, RollingComparison, label
from gpssm.evaluation.residuals import Residuals
from gpssm.methods.spec import ChainStart
from gpssm.model.types import Info
from gpssm.posterior.diagnostics import (
    AHEAD,
    AHEAD_NOISE,
    FORECAST,
    WITHIN,
    Row,
    held_forecast,
    row,
    row_within,
)
from gpssm.posterior.forecast import SOME, Forecast, ForecastDiagnostics
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.rollout import MANY

Level = Literal["unknown", "good", "caution", "problem"]
LEVELS: tuple[Level, ...] = ("unknown", "good", "caution", "problem")  # the gravest last

# R-hat below, and effective draws from, which a group of quantities is at that level; else it is a problem.
MIXING: dict[Level, tuple[float, float]] = {"good": (1.05, 100.0), "caution": (1.2, 20.0)}
TRIAL = 100  # draws a chain below which a fit is a trial, of which `fit` says nothing
STUCK = 50  # iterations in a row without an accepted move that make a chain stuck
STILL = 1e-6  # acceptance below this is none
MANY_DIVERGENT = 0.05
ACCEPTANCE = (0.5, 0.98)  # outside of which the step size was a bad one
LOW_BFMI = 0.2
NOISY, USELESS = 0.5, 0.9  # shares of the outputs' variance, and of their spread, above which something is said
NARROW = 0.7  # share inside the 90 % intervals of free runs along the data below which they are too narrow
NEW = 0.3  # novelty of f's inputs
FEW_ROWS = 2.0  # an inducing point
ALIKE = 0.05  # a relative difference in the deciding number that makes no difference to a user
FEW_ORIGINS, ERRORS = 4, 2.0  # origins for a verdict, and standard errors over them that a difference must exceed
# A forecast shares its rows with those from nearby origins, so that entries are worth fewer independent ones.
DEPENDENT = 10

SAMPLER, DRAWS = "the sampler's own figures", "all draws"
IN_SAMPLE, ONE_STEP = "training rows, in sample", "training rows, one step ahead"


class Check(NamedTuple):
    """What was checked, how it went, what was found, what to make of it, and on what it was judged."""

    name: str
    level: Level
    figure: str
    words: str
    protocol: str


def worst(checks: Sequence[Check]) -> Level:
    """The gravest level of all."""
    return LEVELS[max((LEVELS.index(one.level) for one in checks), default=0)]


def doubts(checks: Sequence[Check]) -> list[Check]:
    """The checks that ask for caution or worse, the gravest first."""
    return sorted((one for one in checks if one.level in LEVELS[2:]), key=lambda one: -LEVELS.index(one.level))


def count_up(checks: Sequence[Check]) -> str:
    """How many checks went how, in a sentence."""
    problems, cautions = (sum(one.level == level for one in checks) for level in ("problem", "caution"))
    if not problems and not cautions:
        return f"All {len(checks)} checks passed."
    found = count(problems, "problem") if problems else "No problem"
    return f"{found}; {cautions} of {len(checks)} checks ask for caution."


def sampling_verdict(rows: Sequence[Row], sampler: Sequence[Check], notes: Sequence[str], starts: str = "") -> str:
    """ "good", "fair" or "poor", by the worst of these rows; "fair" at best with a sampler's problems or with notes."""
    level = worst(list(check_mixing(rows, starts)))
    flawed = bool(notes) or worst(sampler) == "problem"
    return "poor" if level == "problem" else "fair" if flawed or level == "caution" else "good"


def find_notes(posterior: Posterior) -> tuple[str, ...]:
    """What `fit` does not return without saying: problems of the sampler, and chains that disagree about the forecast.

    The forecast does not depend on the states' coordinates. Where chains have models of their own, each must have
    settled by itself. A run of few draws is a trial, of which nothing is said.
    """
    checks = list(check_sampler(posterior.info))
    if posterior.num_draws >= TRIAL:
        paths = held_forecast(posterior)
        found = row_within(FORECAST + WITHIN, paths) if posterior.apart else row(FORECAST, paths)
        checks += [] if found.rhat <= MIXING["caution"][0] else check_mixing([found])
    return tuple(f"{one.name}: {one.figure}. {one.words}" for one in checks if one.level == "problem")


def is_chain(info: Info) -> bool:
    """Whether draws came from a Markov chain, which has an energy; the linear baselines draw independently."""
    return bool(np.any(info.energy))


def check_sampler(info: Info) -> Iterator[Check]:
    """Finite, moving, and, as far as the sampler has them, divergences, acceptance and energy; axes (chain, draw)."""
    for chain in np.flatnonzero(~np.isfinite(info.log_target).all(1)):
        share = float(np.mean(~np.isfinite(info.log_target[chain])))
        yield Check(
            f"Chain {chain}",
            "problem",
            f"the log target was not finite in {percent(share)} of the draws",
            "The transition probably ran away from the data: raise num_warmup, lower state_dim, or take mean='linear'. "
            "Do not use this chain.",
            SAMPLER,
        )
    if not is_chain(info):
        words = "The method's draws are independent: nothing to check."
        yield Check("Moves", "unknown", "not a Markov chain", words, SAMPLER)
        return
    still = _longest_run(np.asarray(info.acceptance) < STILL)
    for chain in np.flatnonzero(still >= min(STUCK, info.acceptance.shape[1])):
        yield Check(
            f"Chain {chain}",
            "problem",
            f"stuck: no move was accepted for {still[chain]} draws in a row",
            "The step size is too large for where it is: raise num_warmup, or start from another seed.",
            SAMPLER,
        )
    if not np.any(info.gradients):
        return
    share, number = float(np.mean(info.divergent)), int(np.sum(info.divergent))
    words = "No move broke down."
    if share > MANY_DIVERGENT:
        words = (
            "The posterior has parts too sharply curved for the step size, mostly a noise variance near zero: raise "
            "num_warmup, give that noise a stronger prior, or fix it."
        )
    elif share:
        words = "Some moves broke down: if more than a few, raise num_warmup or give the noise a stronger prior."
    level: Level = "problem" if share > MANY_DIVERGENT else "caution" if share else "good"
    yield Check("Divergent moves", level, f"{number} ({percent(share)})", words, SAMPLER)
    if np.all(np.asarray(info.acceptance) == 1):
        return  # nothing was ever refused: there is no step to accept
    acceptance = np.mean(info.acceptance, 1)
    usual = acceptance.min() >= ACCEPTANCE[0] and acceptance.max() <= ACCEPTANCE[1]
    words = "The step size suits the posterior." if usual else "The step size does not suit it: raise num_warmup."
    figure = f"{acceptance.min():.2f} to {acceptance.max():.2f}"
    yield Check("Acceptance", "good" if usual else "caution", figure, words, SAMPLER)
    energy = bfmi(info.energy)
    if np.isfinite(energy).all():
        free = energy.min() >= LOW_BFMI
        words = "Energies are explored freely." if free else "Energies are explored slowly: raise num_draws."
        yield Check("Energy (E-BFMI)", "good" if free else "caution", f"{energy.min():.2f} at worst", words, SAMPLER)


def own_starts(posterior: Posterior) -> str:
    """The starts and noises of chains that have models of their own; empty where all chains are one posterior."""
    if not posterior.apart:
        return ""
    spec = posterior.spec
    if isinstance(spec.start, str):
        return f"{spec.start}, noise {spec.noise}"
    starts = [start for start in spec.start if isinstance(start, ChainStart)]
    names = ", ".join(dict.fromkeys(start.name for start in starts)) or "states"
    noises = ", ".join(dict.fromkeys(str(start.noise) for start in starts)) or str(spec.noise)
    return f"{names}, noise {noises}"


def check_mixing(rows: Sequence[Row], starts: str = "") -> Iterator[Check]:
    """Whether chains agree about each group of quantities, and have draws enough; what users see of them first.

    What depends on the states' coordinates, in which chains may differ, is no problem by itself. Chains with models of
    their own, from `starts`, are several posteriors: each must have settled by itself, and what they do not agree on is
    no fault of any of them, and said once.
    """
    rows = [one for one in rows if one.number]
    if starts:
        yield from _check_agreement([one for one in rows if _is_seen(one)], starts)
        rows = [one for one in rows if one.name.endswith(WITHIN)]
    for one in sorted(rows, key=lambda one: not _is_seen(one)):
        within = one.name.endswith(WITHIN)
        absolute = one.name.removesuffix(WITHIN) in ("log target", "likelihood.log_std", AHEAD_NOISE)
        relative = not (absolute or _is_seen(one))
        level: Level = "caution" if relative else "problem"
        if one.rhat < MIXING["caution"][0] and one.ess_bulk >= MIXING["caution"][1]:
            level = "good" if one.rhat < MIXING["good"][0] and one.ess_bulk >= MIXING["good"][1] else "caution"
        words = "Chains disagree: raise num_warmup and num_draws, lower state_dim, or compare the chains' forecasts."
        if level == "good":
            words = f"{'Each chain by itself has settled' if starts else 'Chains agree'}, and there are draws enough."
        elif np.isnan(one.rhat):
            words = "There are too few draws to tell whether chains agree: raise num_draws."
        elif one.rhat < MIXING["good"][0]:
            words = "Few independent draws: raise num_draws."
        elif within:
            words = "Chains, each by itself, have not settled: raise num_warmup and num_draws."
        elif one.name == "log target":
            words = "Chains have not settled, even where forecasts agree: raise num_warmup and num_draws."
        elif relative:
            words = (
                "Chains disagree, perhaps only about the states' coordinates, which are free: see log target and "
                "smoothed outputs, and raise num_warmup if those are not good."
            )
        figure = "no R-hat" if np.isnan(one.rhat) else f"R-hat {one.rhat:.3f}"
        figure += ", too few draws to count" if np.isnan(one.ess_bulk) else f", {one.ess_bulk:.0f} effective draws"
        yield Check(one.title, level, figure, words, DRAWS)


def _check_agreement(rows: Sequence[Row], starts: str) -> Iterator[Check]:
    """What chains from starts of their own make of the outputs: agreement is good news, and its absence a caution.

    Chains that have not settled differ from each other as each does from itself: that is no disagreement yet.
    """
    found = {one.name: one.rhat for one in rows if np.isfinite(one.rhat)}
    between = {name: rhat for name, rhat in found.items() if not name.endswith(WITHIN)}
    if between:
        limits = {name: max(MIXING["good"][0], found.get(name + WITHIN, 0.0)) for name in between}
        agree = all(between[name] < limits[name] for name in between)
        words = f"Each chain has a model of its own, from its own start ({starts}). "
        if agree:
            words += "They agree, as far as each by itself has settled."
        else:
            words += (
                "They found different things: the forecast is their average, and its intervals hold what they do not "
                "agree on. posterior.chain(k) is one of them."
            )
        figure = ", ".join(f"R-hat {rhat:.3f} of {name}" for name, rhat in between.items())
        yield Check("Chains from starts of their own", "good" if agree else "caution", figure, words, DRAWS)


def _is_seen(row: Row) -> bool:
    """Whether it is about outputs, which is what a user sees and what does not depend on the states' coordinates."""
    return row.name.removesuffix(WITHIN) in ("smoothed outputs", AHEAD, FORECAST)


def check_training(figures: Assessment, outputs: Sequence[str], rows_a_point: float) -> Iterator[Check]:
    """How much of each output is noise, how well it is predicted, and whether free runs along the data hold."""
    for j, name in enumerate(outputs):
        spread = figures.spread[j]
        noise, process = (np.square(part[j] / spread) for part in (figures.noise_std, figures.process_std))
        words = "Most of what it does is modelled."
        if noise > NOISY:
            words = "Most of what it does is observation noise to the model, and not modelled."
        elif process > NOISY:
            words = "The process noise of a single step makes most of what it does."
        level = "caution" if max(noise, process) > NOISY else "good"
        figure = f"{percent(noise)} of its variance, process noise of one step {percent(process)}"
        yield Check(f"Noise of {name}", level, figure, words, IN_SAMPLE)
        one, many = (part[j] / spread for part in (figures.one_step, figures.free_run))
        words = "It is predicted, and forecast, better than by its average."
        if one > USELESS:
            words = "One step ahead it is predicted hardly better than by its average."
        elif many > USELESS:
            words = f"Over {figures.horizon} steps it is forecast hardly better than by its average."
        level = "caution" if max(one, many) > USELESS else "good"
        figure = f"{percent(one)} of its spread one step ahead, {percent(many)} over {figures.horizon}"
        yield Check(f"Error of {name}", level, figure, words, IN_SAMPLE)
    narrow = figures.covered < NARROW
    words = "Forecasts are surer than they should be." if narrow else "Intervals hold about as much as they claim."
    figure = f"{percent(figures.covered)} inside"
    yield Check("90 % intervals of free runs", "caution" if narrow else "good", figure, words, IN_SAMPLE)
    many = figures.left > SOME
    words = "Long forecasts rest on the others." if many else "Free runs stay where the model has seen data."
    figure = f"{percent(figures.left)} left the region the model knows"
    yield Check("Free runs along the data", "caution" if many else "good", figure, words, IN_SAMPLE)
    new = figures.novelty_tail > NEW
    words = "The last rows lie where f is known."
    if new:
        words = "Little is known about f there: forecasts start from unknown ground. Take more inducing points."
    figure = f"{percent(figures.novelty_tail)} of f's prior variance is left"
    yield Check("The last rows", "caution" if new else "good", figure, words, IN_SAMPLE)
    if np.isfinite(rows_a_point):
        few = rows_a_point < FEW_ROWS
        words = "Fewer points would do." if few else "There are rows enough for each."
        figure = f"{rows_a_point:.1f} rows for each"
        yield Check("Inducing points", "caution" if few else "good", figure, words, IN_SAMPLE)


def check_residuals(residuals: Residuals) -> Iterator[Check]:
    """Whether one-step errors are independent of those before, and of the controls."""
    pairs = zip(residuals.series.outputs, residuals.own, residuals.controls, strict=True)
    for output, own, controls in pairs:
        if own is None:
            yield Check(f"Residuals of {output}", "unknown", "too few observed", "Nothing can be said.", ONE_STEP)
            continue
        words = "One-step errors look independent: the model has taken what the past holds."
        if own.found:
            words = "One-step errors are predictable from those before: try a larger state_dim."
        level = "caution" if own.found else "good"
        yield Check(f"Residuals of {output}", level, f"p = {own.p_value:.2g} for independence", words, ONE_STEP)
        if controls:
            name, test = min(controls.items(), key=lambda item: item[1].p_value)
            words = "One-step errors do not depend on the controls: the model has taken what they hold."
            if test.found:
                words = f"One-step errors depend on {name}: try a larger state_dim, or more lags of it as controls."
            level = "caution" if test.found else "good"
            figure = f"p = {test.p_value:.2g} for independence of {name}"
            yield Check(f"Residuals of {output} and the controls", level, figure, words, ONE_STEP)


def check_coverage(rolling: RollingComparison) -> Iterator[Check]:
    """Whether 90 % intervals of rolling forecasts hold 90 % of what came, allowing for few and dependent entries."""
    number = len(rolling.own.origins) * rolling.judged.horizon
    for output, figures in rolling.entries[0].figures.items():
        yield _about_coverage(output, figures["coverage_90"], number, rolling.judged.protocol)


def check_free_run(forecast: Forecast, actual: Series) -> Iterator[Check]:
    """The same of one free run over all rows held out."""
    rows = min(forecast.horizon, len(actual))
    for j, output in enumerate(forecast.outputs):
        observed = int(np.isfinite(actual.y[:rows, j]).sum())
        if observed:
            share = float(coverage(forecast.paths[:, :rows, j], actual.y[:rows, j], 0.9))
            yield _about_coverage(output, share, observed, f"held-out rows, one free run of {count(rows, 'step')}")


def _about_coverage(output: str, share: float, number: int, protocol: str) -> Check:
    number = max(number // DEPENDENT, 1)
    low, high = (limit / number for limit in stats.binom(number, 0.9).interval(0.95))
    level, words = "good", "Intervals hold about as much as they claim."
    if share < low:
        level = "problem" if share < 0.6 else "caution"
        words = "Intervals are too narrow: do not rely on them; more states, more data or a heavier-tailed likelihood."
    elif share > high:
        level, words = "caution", "Intervals are wider than they need to be: safe, but not sharp."
    return Check(f"90 % intervals of {output}", level, f"{percent(share)} inside", words, protocol)


def check_paths(found: ForecastDiagnostics) -> Check:
    """Whether the paths of a forecast stayed where the model has seen data."""
    share, steps = found.share_left, len(found.left_by_step)
    name, protocol = "Paths that left what the model knows", f"the forecast of {count(steps, 'step')}"
    if not found.replaced:
        name = "Paths that overflowed"
        words = "Leave bounds at a number." if share else "All paths stayed finite."
        return Check(name, "problem" if share else "good", percent(share), words, protocol)
    if share <= SOME:
        return Check(name, "good", percent(share), "The forecast stays where the model has seen data.", protocol)
    words = "The forecast is that of the paths that stayed."
    if share > MANY:
        lost = np.argmax(found.left_by_step > MANY) + 1
        words = (
            f"Most paths left: do not trust this forecast from step {lost} on, where they start anew from anywhere in "
            "the training data. Shorten the horizon, check that u stays in the range it had in training, or fit with "
            "mean='linear' or a smaller state_dim."
        )
    return Check(name, "problem" if share > MANY else "caution", percent(share), words, protocol)


def check_worth(rolling: RollingComparison) -> Check:
    """Whether a simpler model would do, in one plain sentence: good where the model earns its keep."""
    name, protocol, model, best = "Worth it", rolling.judged.protocol, rolling.entries[0], rolling.best_baseline
    if best is None:
        return Check(name, "unknown", "no baseline", "There is no baseline to compare with.", protocol)
    figure = f"scaled CRPS {model.loss:.3g}, {label(best.method)} {best.loss:.3g}"
    gain, differences = 1 - model.loss / best.loss, model.losses - best.losses
    differences = differences[np.isfinite(differences)]
    if len(differences) < FEW_ORIGINS:
        words = "There are too few rows to tell whether a simpler model would do."
        return Check(name, "caution", figure, words, protocol)
    # Origins share rows, so that their spread understates the error: what is within it is certainly no difference.
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    if abs(gain) < ALIKE or abs(np.mean(differences)) < ERRORS * error:
        words = f"{_named(best)} forecasts as well: {_advice(best)}."
        return Check(name, "caution", figure, words, protocol)
    if gain < 0:
        words = f"{_named(best)} forecasts better, by {percent(model.loss / best.loss - 1)}: {_advice(best)}."
        return Check(name, "problem", figure, words, protocol)
    words = f"The model forecasts {percent(gain)} better than the best baseline, {label(best.method)}."
    return Check(name, "good", figure, words, protocol)


def _named(best: Entry) -> str:
    words = {"last": "Repeating the last value", "mean": "The training mean", "lgssm": "A linear state-space model"}
    return words.get(best.method, label(best.method))


def _advice(best: Entry) -> str:
    if best.method in ("arx", "lgssm") or best.method not in LABELS:
        return "consider the simpler model"
    return "nothing that helps at this horizon was learned from these data"


def _longest_run(flags: np.ndarray) -> np.ndarray:
    """The longest run of true values in each row."""
    length, longest = np.zeros(len(flags), int), np.zeros(len(flags), int)
    for column in np.asarray(flags).T:
        length = np.where(column, length + 1, 0)
        longest = np.maximum(longest, length)
    return longest
