"""Checks of a sampler and of the paths of a forecast, each with the number that it is based on.

`Posterior.notes`, `Posterior.summary`, the command line and the report show the same list of
checks, so that they cannot contradict each other. The numbers are computed elsewhere
(`diagnostics.py`, `forecast.py`) and compared with thresholds here; `evaluation/checks.py` has the
checks that need forecasts of training or held-out rows.

No function here needs a posterior: the arguments are diagnostics of the sampler (`Info`), rows of
`Diagnostics` and `ForecastDiagnostics`, so that `forecast.py` and `posterior.py` can import this
file.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import stats

from gpssm.core.mixing import bfmi
from gpssm.core.text import count, join_names, percent
from gpssm.model.types import Info
from gpssm.posterior.rollout import MANY

if TYPE_CHECKING:
    from gpssm.posterior.calibration import Calibration
    from gpssm.posterior.diagnostics import Row
    from gpssm.posterior.forecast import ForecastDiagnostics

Level = Literal["unknown", "good", "caution", "problem"]
LEVELS: tuple[Level, ...] = ("unknown", "good", "caution", "problem")  # in order of severity

# For each level, R-hat must be below the first number, and the number of effective draws at least
# the second; a group of quantities that reaches neither level is a problem. With 80 effective draws
# the coverage of a 90 % interval is determined to ± .03.
MIXING: dict[Level, tuple[float, float]] = {"good": (1.05, 80.0), "caution": (1.2, 20.0)}
SHARE_LEFT = 0.05  # share of paths that left, above which a forecast has a note
SLIGHT_EXCURSION = 0.05  # widths of its range by which an input may leave it

SAMPLER = "diagnostics of the sampler"
DRAWS = "all draws"
# What the user of `method="auto"` can do, who sets no number of iterations.
CHOOSE_METHOD = "Fit with method='ffvd' and more draws, or with a smaller state_dim."


class Check(NamedTuple):
    """A check: its name and level, the figure it rests on, advice, and which rows it used."""

    name: str
    level: Level
    figure: str
    words: str
    protocol: str

    @classmethod
    def of(
        cls,
        name: str,
        figure: str,
        protocol: str,
        *cases: tuple[Any, Level, str] | tuple[Any, Level, str, str],
        remedy: str = "",
    ) -> Self:
        """Return a check with the level and the words of the first case that holds.

        Parameters
        ----------
        name, figure, protocol
            As in `Check`.
        cases
            Whether a case holds, its level, what is the case, and advice if there is any.
        remedy
            Advice instead of that of the case.
        """
        level, words, *advice = next(case[1:] for case in cases if case[0])
        if advice:
            words = f"{words} {remedy or advice[0]}"
        return cls(name, level, figure, words, protocol)

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


def coverage_range(number: float) -> tuple[float, float]:
    """Return the shares of independent outputs that calibrated 90 % intervals contain with a
    probability of 95 %."""
    number = max(int(number), 1)
    low, high = stats.binom(number, 0.9).interval(0.95)
    return float(low) / number, float(high) / number


def check_calibration(calibration: "Calibration", outputs: Sequence[str]) -> Iterator[Check]:
    """Check how many held-out outputs the 90 % intervals contain before they are calibrated.

    Parameters
    ----------
    calibration
        The calibration, with the measured coverage.
    outputs
        The names of the outputs.

    Yields
    ------
    Check
    """
    # The outputs forecast from one origin count as one: they are correlated, and overlap.
    low, _ = coverage_range(np.max(calibration.effective))
    columns = zip(outputs, calibration.covered, calibration.factors.T, strict=True)
    for output, covered, factors in columns:
        yield Check.of(
            f"Uncalibrated 90 % intervals of {output}",
            f"{percent(covered)} inside over {count(calibration.horizon, 'step')}, widened up to "
            f"{factors.max():.2g} times",
            calibration.rows,
            (np.isnan(covered), "unknown", "No output was observed."),
            (
                covered < low,
                "caution",
                "The intervals of the model are too narrow on held-out rows. Forecasts are "
                "widened: check their coverage on new rows.",
            ),
            (True, "good", "Coverage is close to nominal."),
        )


def is_chain(info: Info) -> bool:
    """Return whether draws are from a Markov chain, which has an energy, unlike linear
    baselines.
    """
    return bool(np.any(info.energy))


def check_sampler(info: Info, remedy: str = "") -> Iterator[Check]:
    """Check that chains are finite and move, and their divergences, acceptance and energy.

    Parameters
    ----------
    info
        The sampler's figures with axes (chain, draw).
    remedy
        Advice in place of other settings of the sampler, where its user cannot change these.

    Yields
    ------
    Check
        One check for each chain with a problem, and one for each kind of figure.
    """
    for chain in np.flatnonzero(~np.isfinite(info.log_target).all(1)):
        share = float(np.mean(~np.isfinite(info.log_target[chain])))
        yield Check.of(
            f"Chain {chain}",
            f"the log target was not finite in {percent(share)} of the draws",
            SAMPLER,
            (
                True,
                "problem",
                "The transition probably ran away from the data.",
                "Do not use this chain; increase num_warmup or reduce state_dim.",
            ),
            remedy=remedy,
        )
    if not is_chain(info):
        words = "Draws of this method are independent, so there is nothing to check."
        yield Check("Moves", "unknown", "not a Markov chain", words, SAMPLER)
        return
    rejected = _longest_run(np.asarray(info.acceptance) < 1e-6)
    if info.bias is not None:
        rejected = _longest_run(np.asarray(info.divergent))
    for chain in np.flatnonzero(rejected >= min(50, info.acceptance.shape[1])):
        yield Check.of(
            f"Chain {chain}",
            f"stuck: no move was accepted for {rejected[chain]} draws in a row",
            SAMPLER,
            (
                True,
                "problem",
                "The step size is too large for this region.",
                "Increase num_warmup or use another seed.",
            ),
            remedy=remedy,
        )
    if not np.any(info.gradients):
        return
    yield _check_divergences(info, remedy)
    if info.bias is not None:
        yield _check_bias(info, info.bias, remedy)
    elif np.any(np.asarray(info.acceptance) != 1):  # else there is no step size to judge
        yield from _check_moves(info, remedy)


def _check_moves(info: Info, remedy: str) -> Iterator[Check]:
    """Check acceptance probabilities, and how energies are explored."""
    acceptance = np.mean(info.acceptance, 1)
    yield Check.of(
        "Acceptance",
        f"{acceptance.min():.2f} to {acceptance.max():.2f}",
        SAMPLER,
        (
            acceptance.min() < 0.5 or acceptance.max() > 0.98,
            "caution",
            "The step size does not suit the posterior.",
            "Increase num_warmup.",
        ),
        (True, "good", "The step size suits the posterior."),
        remedy=remedy,
    )
    energy = bfmi(info.energy)
    if np.isfinite(energy).all():
        yield Check.of(
            "Energy (E-BFMI)",
            f"{energy.min():.2f} at worst",
            SAMPLER,
            (
                energy.min() < 0.2,
                "caution",
                "The sampler explores energies slowly.",
                "Increase num_draws.",
            ),
            (True, "good", "The sampler explores energies well."),
            remedy=remedy,
        )


def _check_divergences(info: Info, remedy: str) -> Check:
    """Check the share of divergent transitions."""
    share = float(np.mean(info.divergent))
    return Check.of(
        "Divergent transitions",
        f"{int(np.sum(info.divergent))} ({percent(share)})",
        SAMPLER,
        (
            share > 0.05,
            "problem",
            "Parts of the posterior are too sharply curved for the step size, usually a noise "
            "variance near zero.",
            "Increase num_warmup, give that noise a stronger prior, or fix it.",
        ),
        (
            share > 0,
            "caution",
            "Some transitions diverged.",
            "If there are more than a few, increase num_warmup or give the noise a stronger prior.",
        ),
        (True, "good", "No transition diverged."),
        remedy=remedy,
    )


def _check_bias(info: Info, bias: Float[Array, "chain draw"], remedy: str) -> Check:
    """Check the bias of draws without an accept step, measured by exact moves.

    The standard error over chains is taken into account. The bias is unknown if hardly any exact
    move was accepted.
    """
    chains = np.mean(np.asarray(bias), 1)
    mean = float(np.mean(chains))
    error = float(np.std(chains, ddof=1) / np.sqrt(len(chains))) if len(chains) > 1 else 0.0
    acceptance = float(np.mean(info.acceptance))
    size = abs(mean) - 2 * error
    return Check.of(
        "Bias",
        f"{100 * mean:+.1f} % in the variances of the states, {percent(acceptance)} of exact "
        "moves accepted",
        SAMPLER,
        (
            acceptance < 0.2 or size > 0.15,
            "problem",
            "The draws are biased.",
            "Reduce energy_error, increase num_warmup, or use method='ffvd'.",
        ),
        (
            size > 0.05,
            "caution",
            "Intervals are slightly biased. Reduce energy_error or use method='ffvd'.",
        ),
        (True, "good", "Draws without an accept step are not noticeably biased."),
        remedy=remedy,
    )


def _longest_run(flags: Bool[np.ndarray, "chain draw"]) -> Int[np.ndarray, " chain"]:
    """Return the length of the longest run of true values in each row."""
    length = np.zeros(len(flags), int)
    longest = np.zeros(len(flags), int)
    for column in np.asarray(flags).T:
        length = np.where(column, length + 1, 0)
        longest = np.maximum(longest, length)
    return longest


def check_mixing(rows: Sequence["Row"], starts: str = "", remedy: str = "") -> Iterator[Check]:
    """Check that chains agree about each group of quantities and have enough effective draws.

    Groups that users see come first. A group that depends on the states' coordinates, in which
    chains may differ, asks for caution at most. Chains with separate models are several
    posteriors: each must have converged, and what they disagree on is reported once.

    Parameters
    ----------
    rows
        Rows of `Diagnostics`; those without a quantity that varies are skipped.
    starts
        The starts of the chains in words where each has a separate model, else empty.
    remedy
        As in `check_sampler`.

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
    between = [row for row in rows if row.is_identified and not row.within]
    disagree = any(row.rhat >= MIXING["good"][0] for row in between)
    agree = "Each chain has converged" if starts else "Chains agree"
    good, fair = MIXING["good"], MIXING["caution"]
    for row in sorted(rows, key=lambda row: not row.is_output):
        rhat, ess = row.rhat, row.ess_bulk
        agreement = "no R-hat" if np.isnan(rhat) else f"R-hat {rhat:.3f}"
        draws = "too few draws for an ESS" if np.isnan(ess) else f"{ess:.0f} effective draws"
        is_problem = row.is_identified and not (rhat < fair[0] and ess >= fair[1])
        level: Level = "problem" if is_problem else "caution"
        yield Check.of(
            row.title,
            f"{agreement}, {draws}",
            DRAWS,
            (
                # No interval is computed from the log target: it only shows convergence.
                rhat < good[0] and ess >= (fair if row.group == "log target" else good)[1],
                "good",
                f"{agree}, and there are enough draws.",
            ),
            (
                np.isnan(rhat),
                level,
                "There are too few draws to tell whether chains agree.",
                "Increase num_draws.",
            ),
            # That is then the cause of all that is wrong.
            (disagree, level, "Chains disagree.", "Increase num_warmup or reduce state_dim."),
            (rhat < good[0], level, "There are few independent draws.", "Increase num_draws."),
            (
                row.within,
                level,
                "Chains have not converged.",
                "Increase num_warmup and num_draws.",
            ),
            (
                True,
                level,
                "Chains disagree, perhaps only about the coordinates of the states, which are "
                "arbitrary and do not affect forecasts.",
            ),
            remedy=remedy,
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
    yield Check.of(
        "Chains from different starts",
        ", ".join(f"R-hat {rhat:.3f} of {group}" for group, rhat in between.items()),
        DRAWS,
        (agree, "good", f"Chains from different starts ({starts}) agree."),
        (
            True,
            "problem" if far else "caution",
            f"Chains from different starts ({starts}) found different models. The forecast "
            "averages over them; posterior.thinned(chain=k) selects one.",
        ),
    )


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
    return Check.of(
        "Paths outside the training data" if paths.replaced else "Paths that overflowed",
        percent(share),
        f"the forecast of {count(len(paths.left_by_step), 'step')}",
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
        yield Check(
            f"Input {name} outside its training range",
            "caution",
            f"{np.min(u):.4g} to {np.max(u):.4g}, in training {low:.4g} to {high:.4g}",
            "The training data contain no such inputs: do not trust the forecast from "
            f"step {steps[0]} on.",
            f"the forecast of {count(len(u), 'step')}",
        )
