"""Figures of a report: the RMSE of every method on each data set, and the coverage of its intervals."""

import math
from collections.abc import Sequence
from typing import Any

from gpssm.benchmark.published import PUBLISHED
from gpssm.benchmark.summary import Entry, methods_of
from gpssm.style import BLUE, GREY, VERMILION, house, legend, panels, to_png

COLUMNS = 3  # panels in a row
LEVEL = 0.9
LEAST = 0.9  # of a mean that its bar goes down by at most: a logarithmic axis has no zero
TICKS = (1.0, 2.0, 5.0)  # in each power of ten


@house()
def draw_figure(entries: Sequence[Entry], protocol: str, metric: str) -> bytes:
    """A PNG with a panel a data set and a point a method, with its standard deviation over seeds."""
    chosen = [one for one in entries if (one.protocol, one.metric) == (protocol, metric) and not math.isnan(one.mean)]
    datasets, methods = list(dict.fromkeys(one.dataset for one in chosen)), methods_of(chosen)
    rows, height = max(1, math.ceil(len(datasets) / COLUMNS)), 0.6 + 0.16 * len(methods)
    figure, axes = panels(rows, COLUMNS, height=height, sharey=True)
    for panel, dataset in zip(axes.flat, datasets, strict=False):
        _draw_panel(panel, [one for one in chosen if one.dataset == dataset], methods)
        if metric.startswith("coverage"):
            _draw_level(panel)
        else:
            same = (
                one.mean for one in PUBLISHED if (one.protocol, one.metric, one.dataset) == (protocol, metric, dataset)
            )
            _draw_best(panel, min(same, default=None))
    for panel in axes.flat[len(datasets) :]:
        panel.set_visible(False)
    legend(figure)
    figure.supxlabel(f"{metric}, {protocol}", fontsize="medium")
    return to_png(figure)


def _draw_panel(panel: Any, entries: Sequence[Entry], methods: Sequence[str]) -> None:
    means, places = [one.mean for one in entries], [methods.index(one.method) for one in entries]
    up = [0.0 if math.isnan(one.sd) else one.sd for one in entries]
    down = [min(sd, LEAST * mean) for sd, mean in zip(up, means, strict=True)]
    panel.errorbar(means, places, xerr=(down, up), fmt="o", color=BLUE, capsize=1.5)
    panel.set_title(entries[0].dataset)
    panel.set_yticks(range(len(methods)), methods)
    panel.set_ylim(len(methods) - 0.5, -0.5)


def _draw_level(panel: Any) -> None:
    """An axis of shares, with the level that coverage should have."""
    panel.axvline(LEVEL, color=VERMILION, linewidth=1, linestyle="--", label="as it should be")
    panel.set_xlim(0, 1.02)


def _draw_best(panel: Any, published: float | None) -> None:
    """A logarithmic axis, since the worst method is far from the best, with the best that was published."""
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=TICKS))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
    if published is not None:
        panel.axvline(published, color=GREY, linewidth=1, linestyle="--", label="best published")
