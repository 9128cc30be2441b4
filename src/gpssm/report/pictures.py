"""The figures of an examination and their captions."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.evaluation.checks import ONE_STEP
from gpssm.evaluation.examine import Examination
from gpssm.inference.progress import Mode, tracked
from gpssm.model.means import Wired
from gpssm.plots import forecasts, posteriors
from gpssm.plots.dynamics import plot_transition, plot_wiring
from gpssm.plots.style import to_png
from gpssm.posterior.stack import leading_member

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The alternative text and the caption of each picture, in the order of drawing.
WORDS = {
    "forecast": (
        "The forecast: median and central intervals after the end of the data, with the actual "
        "outputs where they are known.",
        "The forecast: median, and central intervals of 50 % and 90 %.",
    ),
    "calibration": (
        "Histogram of the share of paths below the actual outputs, and coverage of the intervals "
        "by step ahead.",
        "Calibration of the intervals. Bars should be level and points near their dashed lines. "
        "Bars that are high at both ends mean that intervals are too narrow, a hump in the "
        "middle that they are too wide.",
    ),
    "residuals": (
        "One-step-ahead residuals over time with their 95 percent band, their autocorrelation, "
        "and their correlation with inputs.",
        "Standardised one-step residuals. Points should scatter within the band, and "
        "correlations should stay within the shaded area; correlations outside it are structure "
        "that the model has missed.",
    ),
    "transition": (
        "The learned transition function along slices through the data.",
        "The learned dynamics in the scaled states of the model, along the directions in which "
        "the data vary most. Red marks regions with little data, where the model falls back on "
        "its prior.",
    ),
    "wiring": (
        "Which states and inputs enter which transition, and the size of their effects.",
        "Effect of each signal on each state: change of the next state, in standard deviations, "
        "per standard deviation of the signal, along the data. Crossed cells are excluded by the "
        "wiring; framed rows are known.",
    ),
    "states": (
        "The hidden states over time, median and 90 percent band of each chain.",
        "The hidden states, one colour per chain. The coordinates of states are arbitrary, so "
        "chains may differ here and still agree about outputs.",
    ),
    "ess": (
        "Effective sample size and R-hat of each group of quantities.",
        "The smallest effective sample size and the largest R-hat in each group of quantities.",
    ),
    "traces": (
        "Traces and rank histograms of the quantities that mix worst, one line per chain.",
        "The quantities that mix worst. Traces should look alike and wander quickly; rank "
        "histograms should be flat.",
    ),
    "parameters": (
        "Prior and posterior densities of the parameters.",
        "Priors in grey, posteriors in blue, optimised values as marks.",
    ),
}


def figures_of(examination: Examination) -> dict[str, Callable[[], "Figure"]]:
    """Return a function for each figure with data, by name."""
    posterior = examination.posterior
    member = leading_member(posterior)
    test = examination.test
    experiments = posterior.dataset.experiments
    history = experiments[-1]
    last = len(experiments) - 1
    actual = None if test is None else test[: examination.forecast.horizon]
    rolling = examination.rolling.own
    pairs = [
        (forecast, rolling.series[origin:])
        for origin, forecast in zip(rolling.origins.tolist(), rolling.forecasts, strict=True)
    ]
    series = list(experiments)
    if test is not None:
        y = np.concatenate([history.y, test.y])
        series = [replace(history, y=y, u=np.concatenate([history.u, test.u]))]
    smoothed = (examination.smoothed, examination.observed)
    figures = {
        "series": lambda: forecasts.plot_series(series, len(history)),
        "forecast": lambda: forecasts.plot_forecast(examination.forecast, actual, history),
        "comparison": lambda: forecasts.plot_comparison(examination.forecasts, actual, history),
        "calibration": lambda: forecasts.plot_calibration(pairs),
        "smoothed": lambda: posteriors.plot_smoothed(posterior, last, smoothed),
        "residuals": lambda: posteriors.draw_residuals(examination.residuals),
        "states": lambda: posteriors.plot_states(member, last),
        "transition": lambda: plot_transition(member),
        "traces": lambda: posteriors.plot_traces(member),
        "ess": lambda: posteriors.plot_ess(member, examination.diagnostics),
        "parameters": lambda: posteriors.plot_parameters(member),
    }
    if isinstance(member.model.mean, Wired):
        figures["wiring"] = lambda: plot_wiring(member)
    return figures


def draw_pictures(
    figures: Mapping[str, Callable[[], "Figure"]], progress: Mode = False
) -> tuple[dict[str, bytes], list[str]]:
    """Return figures as PNG images by name, and messages about those that failed.

    Parameters
    ----------
    figures
        The result of `figures_of`.
    progress
        True for a bar over the figures, "plain" for one line each, False for silence.
    """
    pictures: dict[str, bytes] = {}
    failures = []
    for name in tracked(list(figures), progress, "figures"):
        try:
            pictures[name] = to_png(figures[name](), dpi=140)
        except ImportError as error:
            return pictures, [f"No picture was drawn: {error}"]
        except Exception as error:  # a failed picture must not end a run
            failures.append(f"The picture {name} could not be drawn: {error}")
    return pictures, failures


def page_pictures(
    examination: Examination, pictures: Mapping[str, bytes]
) -> dict[str, dict[str, Any]]:
    """Return pictures for the page by name: source, alternative text, caption and size."""
    # The basis of each picture.
    basis = {
        "forecast": f" {examination.future}",
        "calibration": f" On {examination.rolling.judged.protocol}.",
        "residuals": f" On {ONE_STEP}.",
    }
    if leading := examination.summary.leading:
        single = ("transition", "wiring", "states", "ess", "traces", "parameters")
        basis |= dict.fromkeys(single, f" Of {leading}, a member of the mixture.")
    return {
        name: {
            "source": f"data:image/png;base64,{base64.b64encode(pictures[name]).decode()}",
            "alt": alt,
            "caption": caption + basis.get(name, ""),
            # The size is at a fixed position in the header of a PNG file.
            "width": int.from_bytes(pictures[name][16:20]),
            "height": int.from_bytes(pictures[name][20:24]),
        }
        for name, (alt, caption) in WORDS.items()
        if name in pictures
    }
