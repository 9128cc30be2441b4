"""The static pictures of the page, with what they show in words for those who cannot see them."""

import base64
from collections.abc import Mapping
from typing import NamedTuple

from gpssm.evaluation.checks import ONE_STEP
from gpssm.evaluation.examine import Examination
from gpssm.plots.style import to_png
from gpssm.report.figures import figures_of

DPI = 140


class Picture(NamedTuple):
    """A PNG as a data URI, its text alternative, its caption and its size."""

    source: str
    alt: str
    caption: str
    width: int
    height: int


# The text alternative and the caption of each picture, in the order in which they are drawn.
WORDS = {
    "forecast": (
        "The forecast: median and central intervals after the end of the data, with what happened "
        "where it is known.",
        "The forecast: median, and central intervals of 50 % and 90 %.",
    ),
    "calibration": (
        "Histogram of the share of paths below what happened, and coverage of the intervals by "
        "step ahead.",
        "Whether intervals can be believed. Bars should be level and points near their dashed "
        "lines: bars high at both ends mean intervals too narrow, a hump in the middle too wide.",
    ),
    "residuals": (
        "One-step-ahead residuals over time with their 95 percent band, their autocorrelation, "
        "and their correlation with inputs.",
        "One-step residuals, standardised. Points should scatter in the band, correlations stay "
        "in the shade: what sticks out is structure that the model has missed.",
    ),
    "transition": (
        "The learned transition function: how the states move on along slices through the data.",
        "The learned dynamics in the model's own (scaled) states, along the directions in which "
        "the data vary most. Red, if there is any, marks where the data say little and the model "
        "falls back on its prior.",
    ),
    "wiring": (
        "Which state and input enters which transition, and how much each of them moves it.",
        "Which signal moves which state: standard deviations of the next state for one of the "
        "signal, along the data. What the wiring keeps out is crossed, rows that it knows are "
        "framed.",
    ),
    "states": (
        "The hidden states over time, median and 90 percent band of each chain.",
        "The hidden states that the model found, one colour per chain. States have no coordinates "
        "of their own, so chains may differ here and still agree about outputs.",
    ),
    "ess": (
        "Effective draws and R-hat of each group of quantities.",
        "How many independent draws each group of quantities is worth, at its worst, and whether "
        "chains agree.",
    ),
    "traces": (
        "Traces and rank histograms of the quantities that mix worst, one line per chain.",
        "The quantities that mix worst. Traces should look alike and wander quickly; rank "
        "histograms should be flat.",
    ),
    "parameters": (
        "Prior and posterior densities of the parameters.",
        "What the data changed: priors in grey, posteriors in blue, optimised values as marks.",
    ),
}
SINGLE = ("transition", "wiring", "states", "ess", "traces", "parameters")  # of one model


def embed_pictures(
    examination: Examination, pictures: Mapping[str, bytes]
) -> tuple[dict[str, Picture], list[str]]:
    """Every picture of the page by name, and a sentence for each that could not be drawn.

    Parameters
    ----------
    examination
        What is drawn.
    pictures
        PNG images that are drawn already, by name.
    """
    figures = figures_of(examination)
    # What a figure rests on, in a sentence.
    basis = {
        "forecast": f" {examination.future.words}",
        "calibration": f" On {examination.rolling.judged.protocol}.",
        "residuals": f" On {ONE_STEP}.",
    }
    if leading := examination.summary.leading:
        basis |= dict.fromkeys(SINGLE, f" Of {leading}, a member of the mixture.")
    drawn = {}
    failures = []
    for name, (alt, caption) in WORDS.items():
        if name not in figures and name not in pictures:
            continue
        try:
            png = pictures[name] if name in pictures else to_png(figures[name](), DPI)
        except ImportError as error:
            return drawn, [f"No picture was drawn: {error}"]
        except (ValueError, ArithmeticError) as error:
            failures.append(f"The picture of {name} could not be drawn: {error}")
            continue
        # The size stands at a fixed place in a PNG's header.
        width, height = (int.from_bytes(png[place : place + 4]) for place in (16, 20))
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        drawn[name] = Picture(source, alt, caption + basis.get(name, ""), width, height)
    return drawn, failures
