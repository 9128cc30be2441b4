"""Checks of a sampler and of the paths of a forecast, each with the number that it is based on.

`Posterior.notes`, `Posterior.summary`, the command line and the report show the same list of
checks, so that they cannot contradict each other. The numbers are computed elsewhere
(`diagnostics.py`, `forecast.py`) and compared with thresholds here; `evaluation/checks.py` has the
checks that need forecasts of training or held-out rows.

No function here needs a posterior: the arguments are diagnostics of the sampler (`Info`), rows of
`Diagnostics` and `ForecastDiagnostics`, so that `forecast.py` and `posterior.py` can import this
file.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from gpssm.core.mixing import bfmi
from gpssm.core.text import count, join_names, percent
from gpssm.model.types import Info
from gpssm.posterior.rollout import MANY

if TYPE_CHECKING:
    from gpssm.posterior.diagnostics import Row
    from gpssm.posterior.forecast import ForecastDiagnostics

Level = Literal["unknown", "good", "caution", "problem"]
LEVELS: tuple[Level, ...] = ("unknown", "good", "caution", "problem")  # in order of severity

# For each level, R-hat must be below the first number, and the number of effective draws at least
# the second; a group of quantities that reaches neither level is a problem. With 80 effective draws
# the coverage of a 90 % interval is determined to ± .03.
MIXING: dict[Level, tuple[float, float]] = {"good": (1.05, 80.0), "caution": (1.2, 20.0)}
STUCK_DRAWS = 50  # consecutive draws without an accepted move that make a chain stuck
NO_ACCEPTANCE = 1e-6  # an acceptance probability below this counts as zero
MANY_DIVERGENT = 0.05  # share of divergent transitions above which they are a problem
ACCEPTANCE = (0.5, 0.98)  # acceptance probabilities outside this range indicate a poor step size
SOME_BIAS = 0.05  # relative error of variances that calls for caution
LARGE_BIAS = 0.15  # relative error of variances that is a problem
FEW_EXACT = 0.2  # minimum acceptance of exact moves for an estimate of the bias
LOW_BFMI = 0.2  # energies with a lower E-BFMI are explored slowly
SHARE_LEFT = 0.05  # share of paths that left above which a forecast has a note
SLIGHT_EXCURSION = 0.05  # excursion of an input, in widths of its range, that is tolerated
LARGE_EXCURSION = 1.0  # excursion of an input above which a forecast warns

SAMPLER = "diagnostics of the sampler"
DRAWS = "all draws"


class Check(NamedTuple):
    """A check: its name and level, the number it is based on, advice, and the rows that were
    used.
    """

    name: str
    level: Level
    figure: str
    words: str
    protocol: str

    @property
    def sentence(self) -> str:
        """The check as one line: name, number and advice."""
        return f"{self.name}: {self.figure}. {self.words}"


def worst(checks: Sequence[Check]) -> Level:
    """Return the most severe level of the checks, "unknown" if there are none."""
    return LEVELS[max((LEVELS.index(check.level) for check in checks), default=0)]


def doubts(checks: Sequence[Check]) -> list[Check]:
    """Return the checks with level caution or worse, the most severe first, one per cause.

    Checks with the same advice have one cause and are combined into one check, which has the level
    and number of the most severe and lists the names of the others.
    """
    doubtful = [check for check in checks if check.level in ("caution", "problem")]
    causes: dict[str, list[Check]] = {}
    for check in sorted(doubtful, key=lambda check: -LEVELS.index(check.level)):
        causes.setdefault(check.words, []).append(check)
    return [
        first._replace(name=_and_more([first.name, *(check.name for check in others)]))
        for first, *others in causes.values()
    ]


def _and_more(names: Sequence[str]) -> str:
    """Return the first two names, and how many more there are."""
    if len(names) <= 2:
        return join_names(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


def default_advice(text: str) -> str:
    """Return the text with advice for `method="auto"`, for which the length of chains cannot be
    set.
    """
    advice = "Fit with method='ffvd' and more draws, or with a smaller state_dim."
    return re.sub(r"[A-Z][^.]*\bnum_(?:warmup|draws)\b[^.]*\.", advice, text)


def headline(checks: Sequence[Check]) -> str:
    """Return one line about all checks, which begins with the most severe one."""
    doubtful = doubts(checks)
    if not doubtful:
        return f"All {len(checks)} checks passed."
    others = f" ({count(len(doubtful) - 1, 'more warning')}.)" if len(doubtful) > 1 else ""
    return f"{doubtful[0].sentence}{others}"


def sampling_verdict(
    rows: Sequence["Row"], sampler: Sequence[Check], notes: Sequence[str], starts: str = ""
) -> str:
    """Judge how well a run sampled.

    Parameters
    ----------
    rows
        Rows of the diagnostics, of which the worst decides.
    sampler
        Checks of the sampler. With a problem among them, the verdict is at most "fair".
    notes
        Notes of the run; with any, the verdict is at most "fair".
    starts
        Starts of the chains if each has a separate model; see `check_mixing`.

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
    """Return whether draws are from a Markov chain, which has an energy, unlike linear
    baselines.
    """
    return bool(np.any(info.energy))


def check_sampler(info: Info) -> Iterator[Check]:
    """Check that chains are finite and move, and their divergences, acceptance and energy.

    Parameters
    ----------
    info
        Diagnostics of the sampler with axes (chain, draw).

    Yields
    ------
    Check
        One check for each chain with a problem, and one for each statistic.
    """
    for chain in np.flatnonzero(~np.isfinite(info.log_target).all(1)):
        share = float(np.mean(~np.isfinite(info.log_target[chain])))
        yield Check(
            f"Chain {chain}",
            "problem",
            f"the log target was not finite in {percent(share)} of the draws",
            "The transition has probably diverged. Do not use this chain; increase num_warmup or "
            "reduce state_dim.",
            SAMPLER,
        )
    if not is_chain(info):
        words = "Draws of this method are independent, so there is nothing to check."
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
            "The step size is too large for this region. Increase num_warmup or use another seed.",
            SAMPLER,
        )
    if not np.any(info.gradients):
        return
    yield _check_divergences(info)
    if info.bias is not None:
        yield _check_bias(info)
        return
    if np.all(np.asarray(info.acceptance) == 1):
        return  # every move was accepted: there is no step size to check
    acceptance = np.mean(info.acceptance, 1)
    level, words = _verdict(
        (
            acceptance.min() < ACCEPTANCE[0] or acceptance.max() > ACCEPTANCE[1],
            "caution",
            "The step size does not suit the posterior. Increase num_warmup.",
        ),
        (True, "good", "The step size suits the posterior."),
    )
    figure = f"{acceptance.min():.2f} to {acceptance.max():.2f}"
    yield Check("Acceptance", level, figure, words, SAMPLER)
    energy = bfmi(info.energy)
    if np.isfinite(energy).all():
        slow = energy.min() < LOW_BFMI
        level, words = _verdict(
            (slow, "caution", "The sampler explores energies slowly. Increase num_draws."),
            (True, "good", "The sampler explores energies well."),
        )
        yield Check("Energy (E-BFMI)", level, f"{energy.min():.2f} at worst", words, SAMPLER)


def _verdict(*cases: tuple[Any, Level, str]) -> tuple[Level, str]:
    """Return level and words of the first case that holds."""
    return next((level, words) for holds, level, words in cases if holds)


def _check_divergences(info: Info) -> Check:
    """Check the share of divergent transitions."""
    share = float(np.mean(info.divergent))
    level, words = _verdict(
        (
            share > MANY_DIVERGENT,
            "problem",
            "Parts of the posterior are too sharply curved for the step size, usually a noise "
            "variance near zero. Increase num_warmup, give that noise a stronger prior, or fix it.",
        ),
        (
            share > 0,
            "caution",
            "Some transitions diverged. If there are more than a few, increase num_warmup or give "
            "the noise a stronger prior.",
        ),
        (True, "good", "No transition diverged."),
    )
    figure = f"{int(np.sum(info.divergent))} ({percent(share)})"
    return Check("Divergent transitions", level, figure, words, SAMPLER)


def _check_bias(info: Info) -> Check:
    """Check the bias of draws without an accept step, measured by exact moves.

    The standard error over chains is taken into account. The bias is unknown if hardly any exact
    move was accepted.
    """
    chains = np.mean(np.asarray(info.bias), 1)
    bias = float(np.mean(chains))
    error = float(np.std(chains, ddof=1) / np.sqrt(len(chains))) if len(chains) > 1 else 0.0
    acceptance = float(np.mean(info.acceptance))
    figure = (
        f"{100 * bias:+.1f} % in the variances of the states, {percent(acceptance)} of exact moves "
        "accepted"
    )
    size = abs(bias) - 2 * error
    level, words = _verdict(
        (
            acceptance < FEW_EXACT or size > LARGE_BIAS,
            "problem",
            "The draws are biased. Reduce energy_error, increase num_warmup, or use method='ffvd'.",
        ),
        (
            size > SOME_BIAS,
            "caution",
            "Intervals are slightly biased. Reduce energy_error or use method='ffvd'.",
        ),
        (True, "good", "Draws without an accept step are not noticeably biased."),
    )
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

    Groups that users see come first. For groups that depend on the coordinates of the states, which
    may differ between chains, the level is at most caution. If chains have separate models, each
    must have converged by itself, and one check reports how they disagree.

    Parameters
    ----------
    rows
        Rows of `Diagnostics`; those without varying quantities are skipped.
    starts
        Description of the starts of the chains if each has a separate model; otherwise empty.

    Yields
    ------
    Check
        One check for each row, preceded by one about the agreement of chains if they have separate
        models.
    """
    rows = [row for row in rows if row.number]
    if starts:
        yield from _check_agreement([row for row in rows if row.is_output], starts)
        rows = [row for row in rows if row.within]
    between = [row for row in rows if row.is_identified and not row.within]
    disagree = any(row.rhat >= MIXING["good"][0] for row in between)
    good, fair = MIXING["good"], MIXING["caution"]
    for row in sorted(rows, key=lambda row: not row.is_output):
        rhat, ess = row.rhat, row.ess_bulk
        level, words = _verdict(
            (
                rhat < good[0] and ess >= good[1],
                "good",
                f"{'Each chain has converged' if starts else 'Chains agree'}, and there are enough "
                "draws.",
            ),
            (rhat < fair[0] and ess >= fair[1], "caution", _about_mixing(row, disagree)),
            (row.is_identified, "problem", _about_mixing(row, disagree)),
            (True, "caution", _about_mixing(row, disagree)),
        )
        agreement = "no R-hat" if np.isnan(rhat) else f"R-hat {rhat:.3f}"
        draws = "too few draws for an ESS" if np.isnan(ess) else f"{ess:.0f} effective draws"
        yield Check(row.title, level, f"{agreement}, {draws}", words, DRAWS)


def _about_mixing(row: "Row", disagree: bool) -> str:
    """Return why a group of quantities has mixed poorly, with advice.

    Parameters
    ----------
    row
        The group.
    disagree
        Whether chains disagree about a quantity that does not depend on the coordinates of the
        states, which is then the cause.
    """
    if np.isnan(row.rhat):
        return "There are too few draws to compare chains. Increase num_draws."
    if disagree:
        return "Chains disagree. Increase num_warmup or reduce state_dim."
    if row.rhat < MIXING["good"][0]:
        return "There are few effective draws. Increase num_draws."
    if row.within:
        return "Chains have not converged. Increase num_warmup and num_draws."
    return (
        "Chains disagree, perhaps only about the coordinates of the states, which are arbitrary "
        "and do not affect forecasts."
    )


def _check_agreement(rows: Sequence["Row"], starts: str) -> Iterator[Check]:
    """Check whether chains with separate models agree about the outputs.

    Differences between chains that have not converged are no disagreement yet. The thresholds are
    those for chains of one posterior.
    """
    finite = [row for row in rows if np.isfinite(row.rhat)]
    between = {row.group: row.rhat for row in finite if not row.within}
    within = {row.group: row.rhat for row in finite if row.within}
    if not between:
        return
    agree = all(
        rhat < max(MIXING["good"][0], within.get(group, 0.0)) for group, rhat in between.items()
    )
    far = max(between.values()) >= MIXING["caution"][0]
    level, words = _verdict(
        (agree, "good", f"Chains from different starts ({starts}) agree."),
        (
            True,
            "problem" if far else "caution",
            f"Chains from different starts ({starts}) found different models. The forecast "
            "averages over them; posterior.thinned(chain=k) selects one.",
        ),
    )
    figure = ", ".join(f"R-hat {rhat:.3f} of {group}" for group, rhat in between.items())
    yield Check("Chains from different starts", level, figure, words, DRAWS)


def check_paths(paths: "ForecastDiagnostics") -> Check:
    """Check whether the paths of a forecast stayed in the region of the training data.

    Parameters
    ----------
    paths
        The diagnostics of the forecast.

    Returns
    -------
    Check
        A problem if most paths left, and caution if more than a few did.
    """
    share = paths.share_left
    step = np.argmax(paths.left_by_step > MANY) + 1
    level, words = _verdict(
        (not paths.replaced and not share, "good", "All paths stayed finite."),
        (not paths.replaced, "problem", "Set bounds to a number."),
        (share <= SHARE_LEFT, "good", "The forecast stays in the region of the training data."),
        (share <= MANY, "caution", "The forecast uses only the paths that stayed inside."),
        (
            True,
            "problem",
            f"Most paths left. Do not trust this forecast from step {step} on, where paths restart "
            "at random points of the training data. Shorten the horizon, check that inputs stay in "
            "the range they had in training, or reduce state_dim.",
        ),
    )
    name = "Paths outside the training data" if paths.replaced else "Paths that overflowed"
    protocol = f"the forecast of {count(len(paths.left_by_step), 'step')}"
    return Check(name, level, percent(share), words, protocol)


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
            "The training data contain no such inputs: do not trust the forecast from "
            f"step {steps[0]} on."
        )
        protocol = f"the forecast of {count(len(u), 'step')}"
        yield Check(f"Input {name} outside its training range", "caution", figure, words, protocol)
