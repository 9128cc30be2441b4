"""Checks of a fit that need forecasts: of training rows, of held-out rows, and against baselines.

A check is one line of a list, of which `posterior/checks.py` has the first part: checks of the
sampler and of the paths of a forecast. The figures are computed elsewhere (`assessment.py`,
`residuals.py`, `baselines.py`) and meet their thresholds here.

To add a check, write a function that yields `Check`s from figures, and name it in `examine.py` or
`summary.py`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from gpssm.core.metrics import coverage
from gpssm.core.text import count, percent
from gpssm.data.series import Series
from gpssm.evaluation.assessment import Assessment
from gpssm.evaluation.baselines import LABELS, Entry, RollingComparison, label
from gpssm.evaluation.residuals import Residuals
from gpssm.posterior.checks import SHARE_LEFT, Check
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.validation import DEPENDENT_ROWS

NOISY, USELESS = (
    0.5,
    0.9,
)  # shares of the outputs' variance, and of their spread, above which something is said
NARROW = 0.7  # share inside the 90 % intervals of free runs along the data below which they are too narrow
NEW = 0.3  # novelty of f's inputs
FEW_ROWS = 2.0  # an inducing point
ALIKE = 0.05  # a relative difference in the deciding number that makes no difference to a user
FEW_ORIGINS, ERRORS = (
    4,
    2.0,
)  # origins for a verdict, and standard errors over them that a difference must exceed

IN_SAMPLE, ONE_STEP = "training rows, in sample", "training rows, one step ahead"


def check_training(
    figures: Assessment, outputs: Sequence[str], rows_a_point: float
) -> Iterator[Check]:
    """How much of each output is noise, how well it is predicted, and whether free runs along the
    data hold.
    """
    for j, name in enumerate(outputs):
        spread = figures.spread[j]
        noise, process = (
            np.square(part[j] / spread) for part in (figures.noise_std, figures.process_std)
        )
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
            words = (
                f"Over {figures.horizon} steps it is forecast hardly better than by its average."
            )
        level = "caution" if max(one, many) > USELESS else "good"
        figure = (
            f"{percent(one)} of its spread one step ahead, {percent(many)} over {figures.horizon}"
        )
        yield Check(f"Error of {name}", level, figure, words, IN_SAMPLE)
    narrow = figures.covered < NARROW
    words = (
        "Forecasts are surer than they should be."
        if narrow
        else "Intervals hold about as much as they claim."
    )
    figure = f"{percent(figures.covered)} inside"
    yield Check(
        "90 % intervals of free runs", "caution" if narrow else "good", figure, words, IN_SAMPLE
    )
    many = figures.left > SHARE_LEFT
    words = (
        "Long forecasts rest on the others."
        if many
        else "Free runs stay where the model has seen data."
    )
    figure = f"{percent(figures.left)} left the region the model knows"
    yield Check("Free runs along the data", "caution" if many else "good", figure, words, IN_SAMPLE)
    new = figures.novelty_tail > NEW
    words = "The last rows lie where f is known."
    if new:
        words = (
            "Little is known about f there: forecasts start from unknown ground. Take more "
            "inducing points."
        )
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
            yield Check(
                f"Residuals of {output}",
                "unknown",
                "too few observed",
                "Nothing can be said.",
                ONE_STEP,
            )
            continue
        words = "One-step errors look independent: the model has taken what the past holds."
        if own.found:
            words = "One-step errors are predictable from those before: try a larger state_dim."
        level = "caution" if own.found else "good"
        yield Check(
            f"Residuals of {output}",
            level,
            f"p = {own.p_value:.2g} for independence",
            words,
            ONE_STEP,
        )
        if controls:
            name, test = min(controls.items(), key=lambda item: item[1].p_value)
            words = (
                "One-step errors do not depend on the controls: the model has taken what they hold."
            )
            if test.found:
                words = (
                    f"One-step errors depend on {name}: try a larger state_dim, or more lags of "
                    "it as controls."
                )
            level = "caution" if test.found else "good"
            figure = f"p = {test.p_value:.2g} for independence of {name}"
            yield Check(f"Residuals of {output} and the controls", level, figure, words, ONE_STEP)


def check_coverage(rolling: RollingComparison) -> Iterator[Check]:
    """Whether 90 % intervals of rolling forecasts hold 90 % of what came, allowing for few and
    dependent entries.
    """
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
            yield _about_coverage(
                output, share, observed, f"held-out rows, one free run of {count(rows, 'step')}"
            )


def _about_coverage(output: str, share: float, number: int, protocol: str) -> Check:
    number = max(number // DEPENDENT_ROWS, 1)
    low, high = (limit / number for limit in stats.binom(number, 0.9).interval(0.95))
    level, words = "good", "Intervals hold about as much as they claim."
    if share < low:
        level = "problem" if share < 0.6 else "caution"
        words = (
            "Intervals are too narrow: do not rely on them; more states, more data or a "
            "heavier-tailed likelihood."
        )
    elif share > high:
        level, words = "caution", "Intervals are wider than they need to be: safe, but not sharp."
    return Check(f"90 % intervals of {output}", level, f"{percent(share)} inside", words, protocol)


def check_worth(rolling: RollingComparison) -> Check:
    """Whether a simpler model would do, in one plain sentence: good where the model earns its keep."""
    name, protocol, model, best = (
        "Worth it",
        rolling.judged.protocol,
        rolling.entries[0],
        rolling.best_baseline,
    )
    if best is None:
        return Check(
            name, "unknown", "no baseline", "There is no baseline to compare with.", protocol
        )
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
        words = (
            f"{_named(best)} forecasts better, by {percent(model.loss / best.loss - 1)}: "
            f"{_advice(best)}."
        )
        return Check(name, "problem", figure, words, protocol)
    words = (
        f"The model forecasts {percent(gain)} better than the best baseline, {label(best.method)}."
    )
    return Check(name, "good", figure, words, protocol)


def _named(best: Entry) -> str:
    words = {
        "last": "Repeating the last value",
        "mean": "The training mean",
        "lgssm": "A linear state-space model",
    }
    return words.get(best.method, label(best.method))


def _advice(best: Entry) -> str:
    if best.method in ("arx", "lgssm") or best.method not in LABELS:
        return "consider the simpler model"
    return "nothing that helps at this horizon was learned from these data"
