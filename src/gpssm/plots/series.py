"""The data."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.core.text import is_whole
from gpssm.data.series import Series, as_list
from gpssm.plots.style import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    VERMILION,
    draw,
    in_house_style,
    legend,
    panels,
    time_axis,
    with_unit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4  # series side by side at most


@in_house_style()
def plot_series(series: Any, train: Any = None, test: Any = None) -> "Figure":
    """Outputs and controls below one another, series side by side (the first four), with the part that is for testing.

        plot_series(series, train=0.5)

    :param series: a `Series`, anything `Series.of` takes, or a list of those.
    :param train: how many rows, which share of them, or which Series, were trained on; they are the first ones.
    :param test: the same of the rows tested on: those after the training rows, or the last ones. Without it, all that
        `train` leaves.
    """
    several = as_list(series)
    shown, names = several[:COLUMNS], (*several[0].outputs, *several[0].inputs)
    figure, axes = panels(len(names), len(shown), height=1.1, sharex="col", sharey="row")
    for column, one in zip(axes.T, shown, strict=True):
        _draw_columns(column, one)
        _mark_split(column, one, train, test)
        if len(several) > 1:
            more = f" (of {len(several)})" if len(several) > COLUMNS else ""
            column[0].set_title(one.name or f"series {several.index(one)}{more}")
    for panel, name in zip(axes[:, 0], names, strict=True):
        panel.set_ylabel(with_unit(name, several[0].units))
    figure.align_ylabels()
    legend(figure)
    return figure


def _draw_columns(column: np.ndarray, one: Series) -> None:
    times, name = time_axis(len(one) + 1, one.axis)
    times, end = times[:-1], times[-1]
    for panel, values in zip(column, one.y.T, strict=False):
        draw(panel, times, values, color=BLUE, label="output")
        missing = times[np.isnan(values)]
        if missing.size:
            height = np.zeros(len(missing))
            bottom = panel.get_xaxis_transform()
            panel.plot(
                missing,
                height,
                "|",
                color=VERMILION,
                markersize=6,
                transform=bottom,
                label="missing",
            )
    for panel, values in zip(column[one.output_dim :], one.u.T, strict=True):
        draw(
            panel,
            times,
            values,
            color=GREEN,
            linewidth=0.9,
            drawstyle="steps-post",
            label="control (held)",
        )
    column[0].set_xlim(times[0], end)
    column[-1].set_xlabel(name)


def _mark_split(column: np.ndarray, one: Series, train: Any, test: Any) -> None:
    """A line where training ends, and a shade over what is tested on."""
    if train is None and test is None:
        return
    length = len(one)
    first = length - _rows(test, length) if train is None else _rows(train, length)
    last = length if test is None else min(first + _rows(test, length), length)
    times, _ = time_axis(length + 1, one.axis)
    begin, end = times[first], times[last]
    for panel in column:
        panel.axvspan(begin, end, color=LIGHT, zorder=0, linewidth=0, label="test")
        panel.axvline(begin, color=GREY, linestyle="--", linewidth=0.9, label="end of training")


def _rows(part: Any, length: int) -> int:
    """A number of rows, from a number, a share, or a series."""
    if isinstance(part, Series):
        return min(len(part), length)
    rows = math.floor(part * length + 1e-9) if isinstance(part, float) and 0 < part <= 1 else part
    if not is_whole(rows) or not 0 < rows <= length:
        raise ValueError(
            f"train and test are numbers of rows up to {length}, shares up to 1.0, or series; got {part!r}"
        )
    return rows
