"""How much the draws are worth."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_kind, readable
from gpssm.plots.style import (
    BLUE,
    GREY,
    LIGHT,
    ORANGE,
    VERMILION,
    in_house_style,
    legend,
    panels,
    say,
)
from gpssm.posterior.diagnostics import Diagnostics, diagnose
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENOUGH = 100  # effective draws a chain
GOOD, FAIR = 1.01, 1.05  # R-hat
SMALLEST = 1e-3  # distance of R-hat from 1 that is drawn


@in_house_style()
def plot_ess(posterior: Posterior, diagnostics: Diagnostics | None = None) -> "Figure":
    """Effective sample sizes and R-hat of each group of quantities in `Posterior.diagnostics`, at their worst.

    The dashed line is at 100 effective draws a chain, the dotted at all draws kept. R-hat should lie in the shade below
    1.01; up to 1.05 will do for plots, not for tails.

    :param diagnostics: those of the posterior, if they were computed already.
    """
    check_kind("posterior", posterior, Posterior)
    found = diagnose(posterior) if diagnostics is None else diagnostics
    rows = [one for one in found.rows if one.number]
    figure, axes = panels(
        1, 2, height=0.35 + 0.3 * max(len(rows), 2), width_ratios=(3, 2), sharey=True
    )
    sizes, ratios = axes[0]
    if not rows:
        say(sizes, "nothing varies from draw to draw")
        say(ratios, "")
        return figure
    places = np.arange(len(rows))
    sizes.barh(
        places,
        [one.ess_bulk for one in rows],
        height=0.55,
        color=BLUE,
        alpha=0.75,
        label="bulk, worst",
    )
    sizes.plot(
        [one.ess_tail for one in rows],
        places,
        "D",
        color=VERMILION,
        markersize=4,
        label="tail, worst",
    )
    medians = [one.ess_bulk_median for one in rows]
    sizes.plot(
        medians, places, "|", color="black", markersize=9, markeredgewidth=1.5, label="bulk, median"
    )
    sizes.axvline(
        ENOUGH * posterior.num_chains,
        color=GREY,
        linestyle="--",
        linewidth=0.9,
        label="100 a chain",
    )
    sizes.axvline(
        posterior.num_chains * posterior.num_draws,
        color=GREY,
        linestyle=":",
        linewidth=0.9,
        label="draws",
    )
    sizes.set_yticks(places, [readable(one.name) for one in rows])
    sizes.invert_yaxis()
    sizes.set_xlabel("effective draws")
    sizes.set_xlim(left=0)
    _draw_ratios(ratios, np.array([one.rhat for one in rows]))
    legend(figure)
    return figure


def _draw_ratios(panel: "Axes", values: Float[np.ndarray, " n"]) -> None:
    """R-hat on a logarithmic scale of its distance from 1, on which both 1.005 and 2 can be read."""
    ticks = (1.001, GOOD, FAIR, 1.2, 2, 5)
    panel.axvspan(1e-4, GOOD - 1, color=LIGHT, linewidth=0)
    panel.axvline(FAIR - 1, color=GREY, linestyle="--", linewidth=0.9)
    for place, value in enumerate(values):
        colour, marker = (
            (BLUE, "o") if value < GOOD else (ORANGE, "s") if value < FAIR else (VERMILION, "X")
        )
        panel.plot(max(value - 1, SMALLEST), place, marker, color=colour, markersize=5)
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.set_xticks([tick - 1 for tick in ticks], [f"{tick:g}" for tick in ticks])
    panel.set_xlim(SMALLEST / 1.5, max(0.3, 1.5 * (np.nanmax(values, initial=1) - 1)))
    panel.set_xlabel("R-hat, worst")
