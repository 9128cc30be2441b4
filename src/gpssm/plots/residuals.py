"""What the model did not foresee."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_kind, shortened
from gpssm.data.series import Series
from gpssm.evaluation.residuals import Correlation, Residuals, find_residuals
from gpssm.plots.style import (
    BLUE,
    GREY,
    LIGHT,
    VERMILION,
    extremes,
    in_house_style,
    panels,
    say,
    space_dates,
    time_axis,
)
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INPUTS = 3  # controls shown at most: those with the largest correlations
NAME = 18  # letters of a name that a panel has room for


@in_house_style()
def plot_residuals(
    posterior: Posterior, index: int = -1, num_paths: int = 300, rows: int = 1000
) -> "Figure":
    """One-step-ahead residuals of training series `index`, their auto-correlation and their correlation with controls.

    See `evaluation/residuals.py` for what they are and for the arguments. A correlation outside the shade (95 %) says
    that the past of the output (more states?), or of a control, holds more than the model took from it; correlation
    with controls to come (negative lags) says there was feedback.
    """
    check_kind("posterior", posterior, Posterior)
    return draw_residuals(find_residuals(posterior, index, num_paths, rows))


@in_house_style()
def draw_residuals(residuals: Residuals) -> "Figure":
    """The figure of residuals that were found already."""
    series = residuals.series
    number = min(series.input_dim, INPUTS)
    figure, axes = panels(
        series.output_dim,
        2 + number,
        height=1.9,
        width_ratios=(2.2, *(1.3,) * (1 + number)),
        sharex="col",
    )
    for j, (row, values) in enumerate(zip(axes, residuals.values.T, strict=True)):
        own, tests = residuals.own[j], residuals.controls[j]
        if own is None:
            for panel in row:
                say(panel, f"too few observed of {series.outputs[j]}")
            continue
        _draw_residuals(row[0], series, series.outputs[j], values)
        _draw_correlations(row[1], np.arange(1, len(own.correlations) + 1), own, values)
        row[1].set_title(
            f"with its past\n{'found' if own.found else 'none'} (p = {own.p_value:.2g})", pad=3
        )
        chosen = sorted(tests, key=lambda name: -np.nanmax(np.abs(tests[name].correlations)))[
            :number
        ]
        for panel, name in zip(row[2:], (name for name in tests if name in chosen), strict=True):
            test, half = tests[name], len(tests[name].correlations) // 2
            _draw_correlations(panel, np.arange(-half, half + 1), test, values)
            verdict = f"{'found' if test.found else 'none'} (p = {test.p_value:.2g})"
            panel.set_title(f"with {shortened(name, NAME)}\n{verdict}", pad=3)
    for panel in axes[-1, 1:]:
        panel.set_xlabel("lag (steps)")
    for panel in axes[:, 1]:
        panel.set_ylabel("correlation", fontsize=8)
    axes[-1, 0].set_xlabel(time_axis(1, series.axis)[1])
    if series.axis is not None and series.axis.dates:
        space_dates(axes[-1, 0])
    return figure


def _draw_residuals(
    panel: "Axes", series: Series, output: str, values: Float[np.ndarray, " T"]
) -> None:
    times, _ = time_axis(len(series), series.axis)
    kept = extremes(values)
    panel.axhspan(-1.96, 1.96, color=LIGHT, linewidth=0, zorder=0)
    panel.plot(times[kept], values[kept], ".", color=BLUE, markersize=3)
    share = np.mean(np.abs(values[np.isfinite(values)]) > 1.96)
    panel.set_title(f"one-step residuals\n{share:.1%} outside the 95 % band", pad=3)
    panel.set_ylabel(f"of {shortened(output, NAME)}")
    panel.set_ylim(
        -max(3.5, 1.05 * np.nanmax(np.abs(values))), max(3.5, 1.05 * np.nanmax(np.abs(values)))
    )


def _draw_correlations(
    panel: "Axes", lags: np.ndarray, test: Correlation, values: Float[np.ndarray, " T"]
) -> None:
    band = 1.96 / np.sqrt(np.isfinite(values).sum())
    outside = np.abs(test.correlations) > band
    panel.axhspan(-band, band, color=LIGHT, linewidth=0, zorder=0)
    panel.axhline(0, color=GREY, linewidth=0.7)
    for chosen, colour, marker in ((~outside, BLUE, "o"), (outside, VERMILION, "D")):
        panel.vlines(lags[chosen], 0, test.correlations[chosen], color=colour, linewidth=1)
        panel.plot(lags[chosen], test.correlations[chosen], marker, color=colour, markersize=2.5)
    top = max(0.3, 1.15 * np.max(np.abs(test.correlations)))
    panel.set_ylim(-top, top)
