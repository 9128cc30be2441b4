"""Checks of a fit that need forecasts: of training rows, of held-out rows, and against baselines.

Checks of the sampler and of the paths of a forecast are in `posterior/checks.py`. The numbers are
computed in `assessment.py`, `residuals.py` and `baselines.py`, and compared with thresholds here.

To add a check, write a function that yields `Check` objects, and call it in `examine.py` or
`summary.py`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from gpssm.core.metrics import coverage
from gpssm.core.text import count, percent
from gpssm.data.series import Series
from gpssm.evaluation.assessment import Assessment
from gpssm.evaluation.baselines import Entry, RollingComparison, label
from gpssm.evaluation.residuals import Residuals
from gpssm.posterior.checks import SHARE_LEFT, Check
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.validation import DEPENDENT_ROWS

NOISY = 0.5  # share of an output's variance above which noise is most of it
USELESS = 0.9  # error, as a share of an output's spread, that is hardly better than the average

IN_SAMPLE, ONE_STEP = "training rows, in sample", "training rows, one step ahead"


def check_training(figures: Assessment, rows_per_point: float) -> Iterator[Check]:
    """Check whether outputs are predicted and simulated well along the training data.

    Parameters
    ----------
    figures
        The assessment of the longest training series.
    rows_per_point
        Training rows per inducing point; infinite if there are none.

    Yields
    ------
    Check
    """
    for output in figures.outputs:
        noise = (output.noise / output.spread) ** 2
        process = (output.process_noise / output.spread) ** 2
        bad = "Most of its variance is process noise of a single step."
        if noise > NOISY:
            bad = "Most of its variance is treated as observation noise."
        figure = f"{percent(noise)} of its variance, process noise of one step {percent(process)}"
        words = ("The model explains most of its variance.", bad)
        yield _check(
            f"Noise of {output.name}", max(noise, process) > NOISY, figure, words, IN_SAMPLE
        )
        near = output.one_step_error / output.spread
        far = output.simulation_error / output.spread
        bad = f"Over {figures.horizon} steps, forecasts are hardly better than the average."
        if near > USELESS:
            bad = "One step ahead, predictions are hardly better than the average."
        figure = f"{percent(near)} of its spread one step ahead, {percent(far)} over "
        figure += str(figures.horizon)
        words = ("Predictions and simulations are better than the average.", bad)
        yield _check(f"Error of {output.name}", max(near, far) > USELESS, figure, words, IN_SAMPLE)
    yield _check(
        "90 % intervals of simulations",
        figures.covered < 0.7,
        f"{percent(figures.covered)} inside",
        ("Coverage is close to nominal.", "Forecasts are overconfident."),
        IN_SAMPLE,
    )
    yield _check(
        "Simulations along the data",
        figures.left > SHARE_LEFT,
        f"{percent(figures.left)} left the region of the training data",
        (
            "Simulations stay in the region of the training data.",
            "Long forecasts use only the remaining paths.",
        ),
        IN_SAMPLE,
    )
    yield _check(
        "The last rows",
        figures.novelty_tail > 0.3,
        f"{percent(figures.novelty_tail)} of the prior variance of f remains",
        (
            "The training data determine f at the last rows.",
            "The training data say little about f there, so forecasts start with high "
            "uncertainty. Increase num_inducing.",
        ),
        IN_SAMPLE,
    )
    if np.isfinite(rows_per_point):
        words = ("There are enough rows per point.", "Fewer points would be sufficient.")
        figure = f"{rows_per_point:.1f} rows per point"
        yield _check("Inducing points", rows_per_point < 2, figure, words, IN_SAMPLE)


def check_constant_inputs(experiments: Sequence[Series]) -> Iterator[Check]:
    """Name the inputs that are constant in the training data."""
    for column, name in enumerate(experiments[0].inputs):
        values = np.concatenate([series.u[:, column] for series in experiments])
        if np.ptp(values) == 0:
            words = "Its effect cannot be learned. Leave it out."
            figure = f"constant at {values[0]:.4g}"
            yield Check(f"Input {name}", "caution", figure, words, IN_SAMPLE)


def check_residuals(residuals: Residuals, *, converged: bool = True) -> Iterator[Check]:
    """Check whether one-step errors are independent of previous errors and of the inputs.

    Parameters
    ----------
    residuals
        The residuals and their tests.
    converged
        Whether chains agree. If not, advice that could make it worse is omitted.

    Yields
    ------
    Check
    """
    advice = "try a larger state_dim" if converged else "check again once chains agree"
    pairs = zip(residuals.series.outputs, residuals.own, residuals.inputs, strict=True)
    for output, autocorrelation, inputs in pairs:
        name = f"Residuals of {output}"
        if autocorrelation is None:
            yield Check(
                name,
                "unknown",
                "too few observed",
                "There are too few outputs for this check.",
                ONE_STEP,
            )
            continue
        words = (
            "One-step errors look independent: the model uses the information in past outputs.",
            f"One-step errors are predictable from previous errors: {advice}.",
        )
        figure = f"p = {autocorrelation.p_value:.2g} for independence"
        yield _check(name, autocorrelation.found, figure, words, ONE_STEP)
        if inputs:
            source, test = min(inputs.items(), key=lambda item: item[1].p_value)
            words = (
                "One-step errors do not depend on the inputs: the model uses their information.",
                f"One-step errors depend on {source}: {advice}, or add its lags as inputs.",
            )
            figure = f"p = {test.p_value:.2g} for independence of {source}"
            yield _check(f"{name} and the inputs", test.found, figure, words, ONE_STEP)


def _check(name: str, doubtful: bool, figure: str, words: tuple[str, str], protocol: str) -> Check:
    """Return a check, of level "caution" if it is doubtful; `words` has a text for each case."""
    return Check(name, "caution" if doubtful else "good", figure, words[bool(doubtful)], protocol)


def check_coverage(rolling: RollingComparison) -> Iterator[Check]:
    """Check whether 90 % intervals of rolling forecasts cover 90 % of the outputs.

    The threshold allows for few and dependent entries.
    """
    number = len(rolling.own.origins) * rolling.judged.horizon
    for output, figures in rolling.entries[0].figures.items():
        yield _about_coverage(output, figures["coverage_90"], number, rolling.judged.protocol)


def check_simulation(forecast: Forecast, actual: Series) -> Iterator[Check]:
    """Check the coverage of one simulation of all held-out rows."""
    rows = min(forecast.horizon, len(actual))
    protocol = f"held-out rows, one simulation of {count(rows, 'step')}"
    for j, output in enumerate(forecast.outputs):
        observed = int(np.isfinite(actual.y[:rows, j]).sum())
        if observed:
            share = float(coverage(forecast.paths[:, :rows, j], actual.y[:rows, j], 0.9))
            yield _about_coverage(output, share, observed, protocol)


def _about_coverage(output: str, share: float, number: int, protocol: str) -> Check:
    number = max(number // DEPENDENT_ROWS, 1)
    low, high = (limit / number for limit in stats.binom(number, 0.9).interval(0.95))
    level = "good"
    words = "Coverage is close to nominal."
    if share < low:
        level = "problem" if share < 0.6 else "caution"
        words = (
            "Intervals are too narrow: do not rely on them. Fit with calibrate=True to widen "
            "them to the width that held-out rows require."
        )
    elif share > high:
        level = "caution"
        words = "Intervals are wider than necessary: safe, but not sharp."
    return Check(f"90 % intervals of {output}", level, f"{percent(share)} inside", words, protocol)


def check_worth(rolling: RollingComparison) -> Check:
    """Check whether a simpler model would be sufficient.

    On training rows, which favour the more flexible model, the verdict is never that it is better.
    """
    model = rolling.entries[0]
    best = rolling.best_baseline
    protocol = rolling.judged.protocol
    if best is None:
        words = "There is no baseline to compare with."
        return Check("Simpler models", "unknown", "no baseline", words, protocol)
    figure = f"scaled CRPS {model.loss:.3g}, {label(best.method)} {best.loss:.3g}"
    gain = 1 - model.loss / best.loss
    differences = model.losses - best.losses
    differences = differences[np.isfinite(differences)]
    # Origins share rows, so that their spread understates the error: a difference within it is
    # certainly none.
    few = len(differences) < 4
    error = 0.0 if few else np.std(differences, ddof=1) / np.sqrt(len(differences))
    level = "caution"
    if few:
        words = "There are too few rows to tell whether a simpler model would be sufficient."
    # Less than 5 % makes no difference to a user.
    elif abs(gain) < 0.05 or abs(np.mean(differences)) < 2 * error:
        words = f"{_named(best)} forecasts as well: {_advice(best)}."
    elif gain < 0:
        level = "problem"
        by = percent(model.loss / best.loss - 1)
        words = f"{_named(best)} forecasts better, by {by}: {_advice(best)}."
    elif not rolling.judged.held_out:
        level = "unknown"
        words = (
            "No rows were held out, so it is unknown whether the model forecasts better than "
            "a linear model."
        )
    else:
        level = "good"
        words = f"The model forecasts {percent(gain)} better than the best baseline, "
        words += f"{label(best.method)}."
    return Check("Simpler models", level, figure, words, protocol)


def _named(best: Entry) -> str:
    names = {
        "last": "Repeating the last value",
        "mean": "The training mean",
        "lgssm": "A linear state-space model",
    }
    return names.get(best.method, label(best.method))


def _advice(best: Entry) -> str:
    if best.method in ("last", "mean"):
        return "the model has learned nothing useful at this horizon"
    return "consider the simpler model"
