"""The chains themselves."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.mixing import rhat
from gpssm.core.text import check_kind, readable
from gpssm.plots.quantities import quantities
from gpssm.plots.style import LIGHT, LINES, draw, in_house_style, legend, panels, say
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 7  # quantities shown at most
BINS = 20


@in_house_style()
def plot_traces(posterior: Posterior) -> "Figure":
    """Traces and rank histograms, a line each chain, of the log target and of the parameters of the largest R-hat.

    Traces should look alike and wander over their whole range quickly. Ranks are over all chains together: where all
    chains have found the same distribution, each chain's histogram is flat, up to the grey band that holds 95 % of the
    bars of independent draws.
    """
    check_kind("posterior", posterior, Posterior)
    every = quantities(posterior)
    names = _worst(every)
    figure, axes = panels(len(names), 2, height=1.05, width_ratios=(3, 2), sharex="col")
    for (trace, ranks), name in zip(axes, names, strict=True):
        values = every[name]
        for chain, (path, style) in enumerate(zip(values, LINES * len(values), strict=False)):
            draw(
                trace,
                np.arange(len(path)),
                path,
                color=style["color"],
                linewidth=0.7,
                label=f"chain {chain}",
            )
        trace.margins(x=0.01)
        _draw_ranks(ranks, values)
        found = _rhat(values)
        trace.set_title(
            readable(name) + ("" if np.isnan(found) else f"   R-hat {found:.2f}"), pad=3
        )
    shown = f" ({len(names)} of {len(every)} quantities)" if len(names) < len(every) else ""
    axes[-1, 0].set_xlabel(f"draw{shown}")
    axes[-1, 1].set_xlabel("rank over all chains")
    axes[0, 1].set_title("share of each chain's draws, 1 = even", pad=3)
    legend(figure)
    return figure


def _worst(every: dict[str, Float[np.ndarray, "chain draw"]]) -> list[str]:
    """The log target, and the parameters of the largest R-hat in the order they came.

    Inducing points may change places, so that two chains need not agree on any of them: their locations come last.
    """
    names = [name for name in every if name != "log_target"]
    order = sorted(
        names, key=lambda name: ("locations" in name, -np.nan_to_num(_rhat(every[name])))
    )[: ROWS - 1]
    return ["log_target", *(name for name in names if name in order)]


def _rhat(values: Float[np.ndarray, "chain draw"]) -> float:
    return float(rhat(values)) if values.shape[1] >= 4 and np.ptp(values) > 0 else np.nan


def _draw_ranks(panel: "Axes", values: Float[np.ndarray, "chain draw"]) -> None:
    """How often the draws of each chain fall in each stretch of ranks, relative to an even spread."""
    number, length = values.shape
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        say(panel, "does not vary")
        return
    bins = min(BINS, max(length // 5, 2))
    ranks = stats.rankdata(values.ravel()).reshape(values.shape)
    edges = np.linspace(0.5, values.size + 0.5, bins + 1)
    # A chain's count in a stretch is hypergeometric: `length` draws out of all, of which 1/bins are in the stretch.
    law = stats.hypergeom(values.size, round(values.size / bins), length)
    panel.axhspan(
        *(limit * bins / length for limit in law.interval(0.95)), color=LIGHT, linewidth=0
    )
    for chain, style in zip(range(number), LINES * number, strict=False):
        share = np.histogram(ranks[chain], edges)[0] * bins / length
        panel.stairs(share, edges / values.size, color=style["color"], linestyle=style["linestyle"])
    panel.set_ylim(bottom=0)
