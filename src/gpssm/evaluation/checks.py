"""Checks of a fit that need forecasts: of training rows, of held-out rows, and against baselines.

Checks of the sampler and of the paths of a forecast are in `posterior/checks.py`. The numbers are
computed in `training.py` and `examine.py`, and compared with thresholds here.

To add a check, write a function that yields `Check` objects, and call it in `examine.py` or
`summary.py`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpssm.core.metrics import coverage
from gpssm.core.text import count, percent
from gpssm.data.series import Series, find_outliers
from gpssm.evaluation.training import Assessment, OutputSummary, Residuals, find_drift
from gpssm.posterior.checks import SHARE_LEFT, Check, coverage_range
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.validation import DEPENDENT_ROWS

if TYPE_CHECKING:
    from gpssm.evaluation.examine import Entry, RollingComparison

LABELS = {
    "arx": "ARX",
    "lgssm": "Linear state-space model",
    "last": "Last value",
    "mean": "Training mean",
}
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
        yield from _check_output(output, figures.horizon)
    yield Check.of(
        "90 % intervals of simulations",
        f"{percent(figures.covered)} inside",
        IN_SAMPLE,
        (figures.covered < 0.7, "caution", "Forecasts are overconfident."),
        (True, "good", "Coverage is close to nominal."),
    )
    yield Check.of(
        "Simulations along the data",
        f"{percent(figures.left)} left the region of the training data",
        IN_SAMPLE,
        (figures.left > SHARE_LEFT, "caution", "Long forecasts use only the remaining paths."),
        (True, "good", "Simulations stay in the region of the training data."),
    )
    yield Check.of(
        "The last rows",
        f"{percent(figures.novelty_tail)} of the prior variance of f remains",
        IN_SAMPLE,
        (
            figures.novelty_tail > 0.3,
            "caution",
            "The training data say little about f there, so forecasts start with high "
            "uncertainty. Increase num_inducing.",
        ),
        (True, "good", "The training data determine f at the last rows."),
    )
    if np.isfinite(rows_per_point):
        yield Check.of(
            "Inducing points",
            f"{rows_per_point:.1f} rows per point",
            IN_SAMPLE,
            (rows_per_point < 2, "caution", "Fewer points would be sufficient."),
            (True, "good", "There are enough rows per point."),
        )


def _check_output(output: OutputSummary, horizon: int) -> Iterator[Check]:
    """Check how much of an output is noise, and how well it is predicted and simulated."""
    noise = (output.noise / output.spread) ** 2
    process = (output.process_noise / output.spread) ** 2
    yield Check.of(
        f"Noise of {output.name}",
        f"{percent(noise)} of its variance, process noise of one step {percent(process)}",
        IN_SAMPLE,
        (noise > 0.5, "caution", "Most of its variance is treated as observation noise."),
        (
            process > 0.5,
            "caution",
            "Most of its variance is process noise of a single step.",
        ),
        (True, "good", "The model explains most of its variance."),
    )
    near = output.one_step_error / output.spread
    far = output.simulation_error / output.spread
    yield Check.of(
        f"Error of {output.name}",
        f"{percent(near)} of its spread one step ahead, {percent(far)} over {horizon}",
        IN_SAMPLE,
        (
            near > USELESS,
            "caution",
            "One step ahead, predictions are hardly better than the average.",
        ),
        (
            far > USELESS,
            "caution",
            f"Over {horizon} steps, forecasts are hardly better than the average.",
        ),
        (True, "good", "Predictions and simulations are better than the average."),
    )


def check_constant_inputs(experiments: Sequence[Series]) -> Iterator[Check]:
    """Name the inputs that are constant in the training data."""
    for column, name in enumerate(experiments[0].inputs):
        values = np.concatenate([series.u[:, column] for series in experiments])
        if np.ptp(values) == 0:
            words = "Its effect cannot be learned. Leave it out."
            figure = f"constant at {values[0]:.4g}"
            yield Check(f"Input {name}", "caution", figure, words, IN_SAMPLE)


def check_outliers(experiments: Sequence[Series]) -> Iterator[Check]:
    """Name columns with values far from all others, which dominate scales and errors."""
    for series in experiments:
        for outliers in find_outliers(series):
            yield Check(outliers.column, "problem", outliers.figure, outliers.advice, IN_SAMPLE)


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
            words = "There are too few outputs for this check."
            yield Check(name, "unknown", "too few observed", words, ONE_STEP)
            continue
        yield Check.of(
            name,
            f"p = {autocorrelation.p_value:.2g} for independence",
            ONE_STEP,
            (
                autocorrelation.found,
                "caution",
                f"One-step errors are predictable from previous errors: {advice}.",
            ),
            (
                True,
                "good",
                "One-step errors look independent: the model uses the information in past outputs.",
            ),
        )
        if inputs:
            source, test = min(inputs.items(), key=lambda item: item[1].p_value)
            yield Check.of(
                f"{name} and the inputs",
                f"p = {test.p_value:.2g} for independence of {source}",
                ONE_STEP,
                (
                    test.found,
                    "caution",
                    f"One-step errors depend on {source}: {advice}, or add its lags as inputs.",
                ),
                (
                    True,
                    "good",
                    "One-step errors do not depend on the inputs: the model uses their "
                    "information.",
                ),
            )


def check_drift(residuals: Residuals) -> Iterator[Check]:
    """Name the outputs whose one-step errors change along the record."""
    for output, drift in zip(residuals.series.outputs, find_drift(residuals), strict=True):
        if drift.found:
            yield Check(
                f"Drift of {output}",
                "caution",
                f"{percent(drift.share)} of the variance of one-step errors",
                "The system changes along the record: fit only its recent rows, or let the model "
                "forget old ones, posterior.learn(rows, forgetting='auto').",
                ONE_STEP,
            )


def check_coverage(rolling: "RollingComparison") -> Iterator[Check]:
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
    low, high = coverage_range(number // DEPENDENT_ROWS)
    return Check.of(
        f"90 % intervals of {output}",
        f"{percent(share)} inside",
        protocol,
        (
            share < low,
            "problem" if share < 0.6 else "caution",
            "Intervals are too narrow: do not rely on them. Widen them to the width that held-out "
            "rows require, posterior.calibrate(rows).",
        ),
        (share > high, "caution", "Intervals are wider than necessary: safe, but not sharp."),
        (True, "good", "Coverage is close to nominal."),
    )


def check_worth(rolling: "RollingComparison") -> Check:
    """Check whether a simpler model would be sufficient.

    On training rows, which favour the more flexible model, the verdict is never that it is better.
    """
    model = rolling.entries[0]
    best = rolling.best_baseline
    protocol = rolling.judged.protocol
    if best is None:
        words = "There is no baseline to compare with."
        return Check("Simpler models", "unknown", "no baseline", words, protocol)
    gain = 1 - model.loss / best.loss
    differences = model.losses - best.losses
    differences = differences[np.isfinite(differences)]
    # Origins share rows, so that their spread understates the error: a difference within it is
    # certainly none.
    few = len(differences) < 4
    error = 0.0 if few else np.std(differences, ddof=1) / np.sqrt(len(differences))
    # Less than 5 % makes no difference to a user.
    alike = few or abs(gain) < 0.05 or abs(np.mean(differences)) < 2 * error
    advice = "consider the simpler model"
    if best.method in ("last", "mean"):
        advice = "the model has learned nothing useful at this horizon"
    return Check.of(
        "Simpler models",
        f"scaled CRPS {model.loss:.3g}, {label(best.method)} {best.loss:.3g}",
        protocol,
        (
            few,
            "caution",
            "There are too few rows to tell whether a simpler model would be sufficient.",
        ),
        (alike, "caution", f"{_named(best)} forecasts as well: {advice}."),
        (
            gain < 0,
            "problem",
            f"{_named(best)} forecasts better, by {percent(-gain)}: {advice}.",
        ),
        (
            not rolling.judged.held_out,
            "unknown",
            "No rows were held out, so it is unknown whether the model forecasts better than "
            "a linear model.",
        ),
        (
            True,
            "good",
            f"The model forecasts {percent(gain)} better than the best baseline, "
            f"{label(best.method)}.",
        ),
    )


def label(method: str) -> str:
    """Return the name of a method in a sentence."""
    return LABELS.get(method, method)


def _named(best: "Entry") -> str:
    names = {
        "last": "Repeating the last value",
        "mean": "The training mean",
        "lgssm": "A linear state-space model",
    }
    return names.get(best.method, label(best.method))
