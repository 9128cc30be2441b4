"""Whether intervals can be believed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.metrics import pit
from gpssm.core.text import check_kind, check_shares
from gpssm.data.columns import align_columns
from gpssm.plots.style import BLUE, GREY, LIGHT, LINES, MARKERS, in_house_style, legend, panels
from gpssm.posterior.forecast import LEVELS, Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS, GROUPS = 10, 12  # of the histogram, and of the steps, at most
ENTRIES = 20  # observed entries in a bin, or in a group of steps, at least

Pair = tuple[Forecast, Any]


@in_house_style()
def plot_calibration(pairs: Pair | Iterable[Pair], levels: tuple[float, ...] = LEVELS) -> "Figure":
    """Histogram of the probability integral transform, and coverage of the central intervals by step ahead.

        plot_calibration([(forecast, actual), ...])

    Left: the share of the paths below what happened; flat where the forecasts are calibrated, ∪ where their intervals
    are too narrow, ∩ where they are too wide. Right: how often the intervals held what happened, against the level they
    claim. Bars and points should lie in the shades in 95 of 100 cases, if entries were independent: those of one
    forecast are not, so that few forecasts may well stray further.

    :param pairs: a forecast and what happened (as in `Forecast.score`), or several such pairs.
    """
    several: list[Any] = (
        list(pairs) if isinstance(pairs, Iterable) and getattr(pairs, "ndim", 1) else []
    )
    several = [tuple(several)] if several and isinstance(several[0], Forecast) else several
    if not several or not all(isinstance(one, tuple) and len(one) == 2 for one in several):
        raise ValueError(
            f"plot_calibration needs at least one pair (forecast, what happened); got {pairs!r}"
        )
    for forecast, _ in several:
        check_kind("the first of a pair", forecast, Forecast)
    levels = tuple(check_shares("levels", levels))
    values = [_transform(*pair) for pair in several]
    figure, axes = panels(1, 2, height=2.2)
    _draw_histogram(axes[0, 0], np.concatenate([one.ravel() for one in values]))
    _draw_coverage(axes[0, 1], values, levels)
    legend(figure)
    return figure


def _transform(forecast: Forecast, actual: Any) -> Float[np.ndarray, "H Dy"]:
    """The transform of each entry; NaN where nothing was observed, past the last row too."""
    y = align_columns(actual, forecast.outputs, "y")[: forecast.horizon]
    return pit(forecast.paths[:, : len(y)], y) if np.isfinite(y).any() else np.full(y.shape, np.nan)


def _draw_histogram(panel: "Axes", values: Float[np.ndarray, " n"]) -> None:
    values = values[np.isfinite(values)]
    bins = int(np.clip(len(values) // ENTRIES, 4, BINS))
    low, high = (
        limit * bins / len(values) for limit in stats.binom(len(values), 1 / bins).interval(0.95)
    )
    panel.axhspan(low, high, color=LIGHT, linewidth=0, label="95 % band if calibrated")
    counts, edges = np.histogram(values, bins, (0, 1))
    panel.bar(
        edges[:-1],
        counts * bins / len(values),
        1 / bins,
        align="edge",
        color=BLUE,
        alpha=0.6,
        edgecolor="white",
    )
    panel.axhline(1, color=GREY, linestyle="--", linewidth=0.9)
    panel.set(
        xlabel=f"PIT: share of paths below ({len(values)} entries)", ylabel="density", xlim=(0, 1)
    )


def _draw_coverage(
    panel: "Axes", values: list[Float[np.ndarray, "_ Dy"]], levels: tuple[float, ...]
) -> None:
    """Coverage in groups of neighbouring steps, large enough to be worth a point."""
    horizon, width = max(len(one) for one in values), values[0].shape[1]
    padded = np.full((len(values), horizon, width), np.nan)
    for row, one in zip(padded, values, strict=True):
        row[: len(one)] = one
    groups = int(np.clip(np.isfinite(padded).sum() // ENTRIES, 1, min(GROUPS, horizon)))
    parts = [
        padded[:, rows][np.isfinite(padded[:, rows])]
        for rows in np.array_split(np.arange(horizon), groups)
    ]
    middles = np.array([rows.mean() + 1 for rows in np.array_split(np.arange(horizon), groups)])
    kept = np.array([part.size > 0 for part in parts])
    counts = np.array([part.size for part in parts])[kept]
    for level, style, marker in zip(sorted(levels), LINES, MARKERS, strict=False):
        share = [np.mean(np.abs(part - 0.5) <= level / 2) for part in parts if part.size]
        low, high = (limit / counts for limit in stats.binom(counts, level).interval(0.95))
        panel.vlines(middles[kept], low, high, color=LIGHT, linewidth=9, zorder=1)
        panel.axhline(level, color=style["color"], linestyle="--", linewidth=0.8)
        panel.plot(
            middles[kept], share, **style, marker=marker, label=f"{100 * level:g} % interval"
        )
    panel.set(xlabel="steps ahead", ylabel="coverage", ylim=(-0.02, 1.02))
