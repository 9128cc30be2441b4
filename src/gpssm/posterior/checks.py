"""Checks of a sampler's run and of the paths of a forecast, each with the figure it rests on.

A check is one line of a list. `Posterior.notes`, `Posterior.summary`, the command line and the
report show lines of the same list, so that none of them can contradict another. The figures are
computed elsewhere (`diagnostics.py`, `forecast.py`) and meet their thresholds here;
`evaluation/checks.py` has the checks that need forecasts of training or held-out rows.

Nothing here needs a posterior: the functions take the sampler's own figures (`Info`), rows of
`Diagnostics` and `ForecastDiagnostics`, so that `forecast.py` and `posterior.py` can import them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from gpssm.core.mixing import bfmi
from gpssm.core.text import count, percent
from gpssm.model.types import Info
from gpssm.posterior.rollout import MANY

if TYPE_CHECKING:
    from gpssm.posterior.diagnostics import Row
    from gpssm.posterior.forecast import ForecastDiagnostics

Level = Literal["unknown", "good", "caution", "problem"]
LEVELS: tuple[Level, ...] = ("unknown", "good", "caution", "problem")  # in order of gravity

# For each level, R-hat must be below the first number, and the number of effective draws at least
# the second; a group of quantities that reaches neither level is a problem.
MIXING: dict[Level, tuple[float, float]] = {"good": (1.05, 100.0), "caution": (1.2, 20.0)}
STUCK_DRAWS = 50  # consecutive draws without an accepted move that make a chain stuck
NO_ACCEPTANCE = 1e-6  # an acceptance probability below this counts as zero
MANY_DIVERGENT = 0.05  # share of divergent moves above which they are a problem
ACCEPTANCE = (0.5, 0.98)  # acceptance probabilities outside this range show a bad step size
SOME_BIAS, LARGE_BIAS = (
    0.05,
    0.15,
)  # relative errors of variances that ask for caution, or are a problem
FEW_EXACT = 0.2  # share of exact moves that must be accepted for the bias to be known
LOW_BFMI = 0.2  # energies with a lower E-BFMI are explored slowly
SHARE_LEFT = (
    0.05  # share of paths that left above which a forecast has a note; above MANY, a problem
)

SLIGHT_EXCURSION = 0.05  # widths of its range by which an input may leave it
LARGE_EXCURSION = 1.0  # widths of its range from which a forecast warns

SAMPLER = "the sampler's own figures"
DRAWS = "all draws"


class Check(NamedTuple):
    """A check: its name and level, the figure it rests on, advice in words, and which rows it used."""

    name: str
    level: Level
    figure: str
    words: str
    protocol: str

    @property
    def sentence(self) -> str:
        """The check as one line: name, figure and advice."""
        return f"{self.name}: {self.figure}. {self.words}"


def worst(checks: Sequence[Check]) -> Level:
    """Return the gravest level of the checks, "unknown" if there are none."""
    return LEVELS[max((LEVELS.index(check.level) for check in checks), default=0)]


def doubts(checks: Sequence[Check]) -> list[Check]:
    """Return the checks that ask for caution or worse, the gravest first."""
    doubtful = [check for check in checks if check.level in ("caution", "problem")]
    return sorted(doubtful, key=lambda check: -LEVELS.index(check.level))


def count_up(checks: Sequence[Check]) -> str:
    """Say in one sentence how many checks found problems or ask for caution."""
    levels = [check.level for check in checks]
    problems = levels.count("problem")
    cautions = levels.count("caution")
    if not problems and not cautions:
        return f"All {len(checks)} checks passed."
    verdict = count(problems, "problem") if problems else "No problem"
    return f"{verdict}; {cautions} of {len(checks)} checks ask for caution."


def sampling_verdict(
    rows: Sequence["Row"], sampler: Sequence[Check], notes: Sequence[str], starts: str = ""
) -> str:
    """Judge how well a run sampled.

    Parameters
    ----------
    rows
        Rows of the diagnostics; the worst of them decides.
    sampler
        Checks of the sampler's own figures. A problem among them makes the run "fair" at best.
    notes
        Notes of the run, which make it "fair" at best.
    starts
        Starts of the chains where each has a model of its own; see `check_mixing`.

    Returns
    -------
    str
        "good", "fair" or "poor".
    """
    level = worst(list(check_mixing(rows, starts)))
    if level == "problem":
        return "poor"
    if level == "caution" or notes or worst(sampler) == "problem":
        return "fair"
    return "good"


def is_chain(info: Info) -> bool:
    """Whether draws came from a Markov chain, which has an energy; the linear baselines have none."""
    return bool(np.any(info.energy))


def check_sampler(info: Info) -> Iterator[Check]:
    """Check that chains are finite and move, and divergences, acceptance and energy if there are any.

    Parameters
    ----------
    info
        The sampler's figures with axes (chain, draw).

    Yields
    ------
    Check
        One check for each chain with a problem, and one for each kind of figure.
    """
    for chain in np.flatnonzero(~np.isfinite(info.log_target).all(1)):
        share = float(np.mean(~np.isfinite(info.log_target[chain])))
        yield Check(
            f"Chain {chain}",
            "problem",
            f"the log target was not finite in {percent(share)} of the draws",
            "The transition probably ran away from the data: raise num_warmup, lower state_dim, or "
            "take mean='linear'. Do not use this chain.",
            SAMPLER,
        )
    if not is_chain(info):
        words = "The method's draws are independent: nothing to check."
        yield Check("Moves", "unknown", "not a Markov chain", words, SAMPLER)
        return
    rejected = _longest_run(np.asarray(info.acceptance) < NO_ACCEPTANCE)
    if info.bias is not None:
        rejected = _longest_run(np.asarray(info.divergent))
    for chain in np.flatnonzero(rejected >= min(STUCK_DRAWS, info.acceptance.shape[1])):
        yield Check(
            f"Chain {chain}",
            "problem",
            f"stuck: no move was accepted for {rejected[chain]} draws in a row",
            "The step size is too large for where it is: raise num_warmup, or start from another seed.",
            SAMPLER,
        )
    if not np.any(info.gradients):
        return
    yield _check_divergences(info)
    if info.bias is not None:
        yield _check_bias(info)
        return
    if np.all(np.asarray(info.acceptance) == 1):
        return  # every move was accepted: there is no step size to judge
    acceptance = np.mean(info.acceptance, 1)
    suits = acceptance.min() >= ACCEPTANCE[0] and acceptance.max() <= ACCEPTANCE[1]
    words = "The step size does not suit it: raise num_warmup."
    if suits:
        words = "The step size suits the posterior."
    figure = f"{acceptance.min():.2f} to {acceptance.max():.2f}"
    yield Check("Acceptance", "good" if suits else "caution", figure, words, SAMPLER)
    energy = bfmi(info.energy)
    if np.isfinite(energy).all():
        free = energy.min() >= LOW_BFMI
        words = "Energies are explored slowly: raise num_draws."
        if free:
            words = "Energies are explored freely."
        figure = f"{energy.min():.2f} at worst"
        yield Check("Energy (E-BFMI)", "good" if free else "caution", figure, words, SAMPLER)


def _check_divergences(info: Info) -> Check:
    """Check the share of moves whose energy error diverged."""
    share = float(np.mean(info.divergent))
    level: Level = "good"
    words = "No move broke down."
    if share > MANY_DIVERGENT:
        level = "problem"
        words = (
            "The posterior has parts too sharply curved for the step size, mostly a noise variance "
            "near zero: raise num_warmup, give that noise a stronger prior, or fix it."
        )
    elif share:
        level = "caution"
        words = "Some moves broke down: if more than a few, raise num_warmup or give the noise a stronger prior."
    figure = f"{int(np.sum(info.divergent))} ({percent(share)})"
    return Check("Divergent moves", level, figure, words, SAMPLER)


def _check_bias(info: Info) -> Check:
    """Check what exact moves make of draws that no accept step has judged.

    The error of the mean over chains is allowed for. Nothing can be said where hardly any of the
    exact moves was accepted.
    """
    chains = np.mean(np.asarray(info.bias), 1)
    bias = float(np.mean(chains))
    error = float(np.std(chains, ddof=1) / np.sqrt(len(chains))) if len(chains) > 1 else 0.0
    acceptance = float(np.mean(info.acceptance))
    figure = f"{100 * bias:+.1f} % in the variances of the states, {percent(acceptance)} of exact moves accepted"
    size = abs(bias) - 2 * error
    level: Level = "good"
    words = "Moves without an accept step are as good as exact ones."
    if acceptance < FEW_EXACT or size > LARGE_BIAS:
        level = "problem"
        words = "Draws are not from the posterior: lower energy_error, raise num_warmup, or take method='ffvd'."
    elif size > SOME_BIAS:
        level = "caution"
        words = "Intervals are a little off: lower energy_error, or take method='ffvd'."
    return Check("Bias", level, figure, words, SAMPLER)


def _longest_run(flags: Bool[np.ndarray, "chain draw"]) -> Int[np.ndarray, " chain"]:
    """Return the length of the longest run of true values in each row."""
    length = np.zeros(len(flags), int)
    longest = np.zeros(len(flags), int)
    for column in np.asarray(flags).T:
        length = np.where(column, length + 1, 0)
        longest = np.maximum(longest, length)
    return longest


def check_mixing(rows: Sequence["Row"], starts: str = "") -> Iterator[Check]:
    """Check that chains agree about each group of quantities and have enough effective draws.

    Groups that users see come first. A group that depends on the states' coordinates, in which
    chains may differ, asks for caution at most. Chains with models of their own are several
    posteriors: each must have settled by itself, and what they disagree on is said once.

    Parameters
    ----------
    rows
        Rows of `Diagnostics`; those without a quantity that varies are skipped.
    starts
        The starts of the chains in words where each has a model of its own, else empty.

    Yields
    ------
    Check
        One check for each row, after one about the agreement of chains if they have models of
        their own.
    """
    rows = [row for row in rows if row.number]
    if starts:
        yield from _check_agreement([row for row in rows if row.is_output], starts)
        rows = [row for row in rows if row.within]
    for row in sorted(rows, key=lambda row: not row.is_output):
        relative = not (row.is_absolute or row.is_output)
        level: Level = "caution" if relative else "problem"
        if row.rhat < MIXING["caution"][0] and row.ess_bulk >= MIXING["caution"][1]:
            good = row.rhat < MIXING["good"][0] and row.ess_bulk >= MIXING["good"][1]
            level = "good" if good else "caution"
        words = "Chains disagree: raise num_warmup and num_draws, lower state_dim, or compare the chains' forecasts."
        if level == "good":
            agreement = "Each chain by itself has settled" if starts else "Chains agree"
            words = f"{agreement}, and there are draws enough."
        elif np.isnan(row.rhat):
            words = "There are too few draws to tell whether chains agree: raise num_draws."
        elif row.rhat < MIXING["good"][0]:
            words = "Few independent draws: raise num_draws."
        elif row.within:
            words = "Chains, each by itself, have not settled: raise num_warmup and num_draws."
        elif row.name == "log target":
            words = "Chains have not settled, even where forecasts agree: raise num_warmup and num_draws."
        elif relative:
            words = (
                "Chains disagree, perhaps only about the states' coordinates, which are free: see "
                "log target and smoothed outputs, and raise num_warmup if those are not good."
            )
        figure = "no R-hat" if np.isnan(row.rhat) else f"R-hat {row.rhat:.3f}"
        if np.isnan(row.ess_bulk):
            figure += ", too few draws to count"
        else:
            figure += f", {row.ess_bulk:.0f} effective draws"
        yield Check(row.title, level, figure, words, DRAWS)


def _check_agreement(rows: Sequence["Row"], starts: str) -> Iterator[Check]:
    """Check whether chains with models of their own agree about the outputs.

    Chains that have not settled differ from each other as each differs from itself: that is no
    disagreement yet.
    """
    finite = [row for row in rows if np.isfinite(row.rhat)]
    between = {row.group: row.rhat for row in finite if not row.within}
    within = {row.group: row.rhat for row in finite if row.within}
    if not between:
        return
    agree = all(
        rhat < max(MIXING["good"][0], within.get(group, 0.0)) for group, rhat in between.items()
    )
    words = f"Each chain has a model of its own, from its own start ({starts}). "
    if agree:
        words += "They agree, as far as each by itself has settled."
    else:
        words += (
            "They found different things: the forecast is their average, and its intervals hold "
            "what they do not agree on. posterior.chain(k) is one of them."
        )
    figure = ", ".join(f"R-hat {rhat:.3f} of {group}" for group, rhat in between.items())
    level: Level = "good" if agree else "caution"
    yield Check("Chains from starts of their own", level, figure, words, DRAWS)


def check_paths(paths: "ForecastDiagnostics") -> Check:
    """Check whether the paths of a forecast stayed where the model has seen data.

    Parameters
    ----------
    paths
        The diagnostics of the forecast.

    Returns
    -------
    Check
        A problem if most paths left, caution if more than a few did.
    """
    share = paths.share_left
    protocol = f"the forecast of {count(len(paths.left_by_step), 'step')}"
    if not paths.replaced:
        words = "Leave bounds at a number." if share else "All paths stayed finite."
        level: Level = "problem" if share else "good"
        return Check("Paths that overflowed", level, percent(share), words, protocol)
    name = "Paths that left what the model knows"
    if share <= SHARE_LEFT:
        words = "The forecast stays where the model has seen data."
        return Check(name, "good", percent(share), words, protocol)
    if share <= MANY:
        words = "The forecast is that of the paths that stayed."
        return Check(name, "caution", percent(share), words, protocol)
    step = np.argmax(paths.left_by_step > MANY) + 1
    words = (
        f"Most paths left: do not trust this forecast from step {step} on, where they start anew "
        "from anywhere in the training data. Shorten the horizon, check that u stays in the range "
        "it had in training, or fit with mean='linear' or a smaller state_dim."
    )
    return Check(name, "problem", percent(share), words, protocol)


def check_inputs(paths: "ForecastDiagnostics") -> Iterator[Check]:
    """Check whether the inputs of a forecast stay in the range they had in training.

    Parameters
    ----------
    paths
        The diagnostics of the forecast.

    Yields
    ------
    Check
        One check for each input that leaves its range.
    """
    for column, (name, (low, high)) in enumerate(paths.input_range.items()):
        steps = np.flatnonzero(paths.excursion[:, column] > SLIGHT_EXCURSION) + 1
        if not steps.size:
            continue
        u = np.asarray(paths.u)[:, column]
        figure = f"{np.min(u):.4g} to {np.max(u):.4g}, in training {low:.4g} to {high:.4g}"
        words = (
            "Nothing was learned about such inputs: do not trust the forecast from "
            f"step {steps[0]} on."
        )
        protocol = f"the forecast of {count(len(u), 'step')}"
        yield Check(
            f"Input {name} outside of its training range", "caution", figure, words, protocol
        )
