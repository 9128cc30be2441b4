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
    """A PNG as a data URI, its text alternative and caption, and its size, so that the page does
    not jump.
    """

    source: str
    alt: str
    caption: str
    width: int
    height: int


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
        "lines: bars high at "
        "both ends mean intervals too narrow, a hump in the middle too wide.",
    ),
    "residuals": (
        "One-step-ahead residuals over time with their 95 percent band, their autocorrelation, "
        "and their correlation "
        "with controls.",
        "One-step residuals, standardised. Points should scatter in the band, correlations stay "
        "in the shade: what "
        "sticks out is structure that the model has missed.",
    ),
    "transition": (
        "The learned transition function: how the states move on from where they are.",
        "The learned dynamics in the model's own (scaled) states, with controls at their medians. "
        "Hatched or "
        "red: where the data say little, and the model falls back on its prior.",
    ),
    "wiring": (
        "Which state and control enters which transition, and how much each of them moves it.",
        "Which input moves which state: standard deviations of the next state for one of the "
        "input, along the data. "
        "What the wiring keeps out is crossed, rows that it knows are framed.",
    ),
    "states": (
        "The hidden states over time, median and 90 percent band of each chain.",
        "The hidden states that the model found, a colour each chain. States have no coordinates "
        "of their own, so "
        "chains may differ here and still agree about outputs.",
    ),
    "ess": (
        "Effective draws and R-hat of each group of quantities.",
        "How many independent draws each group of quantities is worth, at its worst, and whether "
        "chains agree.",
    ),
    "traces": (
        "Traces and rank histograms of the quantities that mix worst, a line each chain.",
        "The quantities that mix worst. Traces should look alike and wander quickly; rank "
        "histograms should be flat.",
    ),
    "parameters": (
        "Prior and posterior densities of the parameters.",
        "What the data changed: priors in grey, posteriors in colour, optimised values as marks.",
    ),
}


def embed_pictures(
    found: Examination, given: Mapping[str, bytes]
) -> tuple[dict[str, Picture], list[str]]:
    """Every picture of the page by name, those given as they are; and a sentence for each that
    could not be drawn.
    """
    drawn, failures = {}, []
    makers = figures_of(found)
    # On what a figure was made, in a sentence.
    made_on = {
        "forecast": f" {found.future}",
        "calibration": f" On {found.rolling.judged.protocol}.",
        "residuals": f" On {ONE_STEP}.",
    }
    if found.summary.leading:
        single = ("transition", "wiring", "states", "ess", "traces", "parameters")
        made_on |= dict.fromkeys(single, f" Of {found.summary.leading}, a member of the mixture.")
    for name, (alt, caption) in WORDS.items():
        if name not in makers and name not in given:
            continue
        try:
            png = given[name] if name in given else to_png(makers[name](), DPI)
        except (ValueError, ArithmeticError) as error:
            failures.append(f"The picture of {name} could not be drawn: {error}")
            continue
        # The size stands at a fixed place in a PNG's header.
        width, height = (int.from_bytes(png[place : place + 4]) for place in (16, 20))
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        drawn[name] = Picture(source, alt, caption + made_on.get(name, ""), width, height)
    return drawn, failures
