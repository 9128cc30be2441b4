"""A table of methods as a picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.plots.style import BLUE, FULL, GREY, HALF, VERMILION, in_house_style, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = (
    "rmse",
    "crps",
    "nlpd",
    "coverage_90",
)  # what is shown of a table that has more than this
COLUMNS = 4


@in_house_style()
def plot_scores(table: Any, metrics: Sequence[str] | None = None) -> "Figure":
    """Methods by metric, a panel each metric and a row each method; the best is filled.

        plot_scores({"ffvd": forecast.score(test), "arx": other.score(test)})

    Where a figure is a list (one of each seed or origin) its values are drawn small, and their mean large. The best has
    the lowest mean; of `fit` the highest; of a coverage the one nearest its level, which is dashed.

    :param table: metric by method, of dictionaries or a DataFrame with a row a method.
    :param metrics: columns to show; by default rmse, crps, nlpd and coverage_90, as far as they are there.
    """
    rows: Mapping[str, Any] = (
        table.to_dict("index") if type(table).__name__ == "DataFrame" else table
    )
    if (
        not isinstance(rows, Mapping)
        or not rows
        or not all(isinstance(one, Mapping) for one in rows.values())
    ):
        raise ValueError(
            f"plot_scores takes figures by metric by method, of one at least; got {table!r}"
        )
    named = (
        isinstance(metrics, list | tuple)
        and metrics
        and all(isinstance(one, str) for one in metrics)
    )
    if not (metrics is None or named):
        raise TypeError(f"metrics is a list of names of figures, of one at least; got {metrics!r}")
    known = list(dict.fromkeys(name for figures in rows.values() for name in figures))
    chosen = (
        [name for name in METRICS if name in known] or known if metrics is None else list(metrics)
    )
    if unknown := [name for name in chosen if name not in known]:
        raise KeyError(f"the table has no {', '.join(unknown)}; it has: {', '.join(known)}")
    lines, columns = -(-len(chosen) // COLUMNS), min(len(chosen), COLUMNS)
    figure, axes = panels(
        lines,
        columns,
        width=HALF if columns == 1 else FULL,
        height=0.7 + 0.2 * len(rows),
        sharey=True,
    )
    for panel, metric in zip(axes.flat, chosen, strict=False):
        _draw_metric(
            panel, metric, [np.ravel(figures.get(metric, np.nan)) for figures in rows.values()]
        )
    for panel in axes.flat[len(chosen) :]:
        panel.set_visible(False)
    axes[0, 0].set_yticks(range(len(rows)), [str(name) for name in rows])
    axes[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _draw_metric(panel: "Axes", metric: str, values: list[np.ndarray]) -> None:
    means = np.array([np.mean(one) if one.size else np.nan for one in values], float)
    level = (
        float(metric.removeprefix("coverage_")) / 100 if metric.startswith("coverage_") else None
    )
    loss = -means if metric == "fit" else means if level is None else np.abs(means - level)
    best = int(np.nanargmin(loss)) if np.isfinite(loss).any() else -1
    if level is not None:
        panel.axvline(level, color=GREY, linestyle="--", linewidth=0.9)
    for row, (one, mean) in enumerate(zip(values, means, strict=True)):
        if one.size > 1:
            panel.plot(one, np.full(one.size, row), "|", color=GREY, markersize=6)
        colour, fill = (VERMILION, VERMILION) if row == best else (BLUE, "white")
        panel.plot(mean, row, "o", color=colour, markerfacecolor=fill, markersize=5.5)
    panel.margins(x=0.12)
    panel.set_xlabel(f"coverage of {100 * level:g} %" if level is not None else metric)
    panel.locator_params(axis="x", nbins=4)
