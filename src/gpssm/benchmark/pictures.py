"""Figures of a report: the RMSE of every method on each data set, and the coverage of its intervals."""

import io
import math
from collections.abc import Sequence
from typing import Any

from gpssm.benchmark.published import PUBLISHED
from gpssm.benchmark.summary import Entry

BLUE, GREY, RED = "#0072b2", "0.6", "#d55e00"  # which colour-blind readers can tell apart
WIDTH = 3  # panels in a row
LEVEL = 0.9


def draw_figure(entries: Sequence[Entry], protocol: str, metric: str) -> bytes:
    """A PNG with a panel a data set and a point a method, with its standard deviation over seeds."""
    from matplotlib.figure import Figure

    chosen = [one for one in entries if (one.protocol, one.metric) == (protocol, metric) and not math.isnan(one.mean)]
    datasets = list(dict.fromkeys(one.dataset for one in chosen))
    methods = list(dict.fromkeys(one.method for one in chosen))
    rows = max(1, math.ceil(len(datasets) / WIDTH))
    figure = Figure(figsize=(3.4 * WIDTH, rows * (1.2 + 0.22 * len(methods))), layout="constrained")
    panels = figure.subplots(rows, WIDTH, squeeze=False, sharey=True).ravel()
    for panel, dataset in zip(panels, datasets, strict=False):
        _draw_panel(panel, [one for one in chosen if one.dataset == dataset], methods)
        _draw_reference(panel, protocol, metric, dataset)
    for panel in panels[len(datasets) :]:
        panel.set_visible(False)
    figure.suptitle(f"{metric}, {protocol}")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _draw_panel(panel: Any, entries: Sequence[Entry], methods: Sequence[str]) -> None:
    places = [methods.index(one.method) for one in entries]
    spread = [0.0 if math.isnan(one.sd) else one.sd for one in entries]
    panel.errorbar([one.mean for one in entries], places, xerr=spread, fmt="o", color=BLUE, markersize=5, capsize=2)
    panel.set_title(entries[0].dataset, fontsize=10)
    panel.set_yticks(range(len(methods)), methods)
    panel.set_ylim(len(methods) - 0.5, -0.5)
    panel.grid(axis="x", color="0.9")


def _draw_reference(panel: Any, protocol: str, metric: str, dataset: str) -> None:
    """The level that coverage should have; or the best that was published, in grey."""
    if metric.startswith("coverage"):
        panel.axvline(LEVEL, color=RED, linewidth=1, linestyle="--")
        panel.set_xlim(0, 1.02)
        return
    panel.set_xlim(left=0)
    same = [one.mean for one in PUBLISHED if (one.protocol, one.metric, one.dataset) == (protocol, metric, dataset)]
    if same:
        panel.axvline(min(same), color=GREY, linewidth=1, linestyle="--", label="best published")
        panel.legend(fontsize=7, frameon=False)
