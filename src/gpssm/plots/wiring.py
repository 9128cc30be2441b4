"""Which state and control enters which transition, as it was told and as it was found."""

from typing import TYPE_CHECKING

import numpy as np

from gpssm.model.means import Wired
from gpssm.plots.style import BLACK, GREY, in_house_style, panels
from gpssm.posterior.explore import relevance
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARK = 0.6  # of the colour scale, from which on figures are written in white
WIDTH, HEIGHT = 0.55, 0.45  # inches of a square


@in_house_style()
def plot_wiring(posterior: Posterior) -> "Figure":
    """How far each state and control moves each transition: standard deviations of the next state for one of the input.

    A row a transition, a column an input. Squares that a wiring keeps out are crossed, rows that it knows have a frame.
    """
    found = relevance(posterior)
    rows, columns = found.mean.shape
    figure, axes = panels(1, width=2.0 + WIDTH * columns, height=1.0 + HEIGHT * rows)
    panel = axes[0, 0]
    image = panel.imshow(found.mean, cmap="Blues", vmin=0.0, aspect="auto")
    figure.colorbar(image, ax=panel, label="relevance", shrink=0.9)
    top = max(float(found.mean.max()), 1e-12)
    for row, column in np.ndindex(rows, columns):
        value = found.mean[row, column]
        if value == 0:
            panel.plot(column, row, "x", color=GREY, markersize=5)
        else:
            colour = "white" if value > DARK * top else BLACK
            panel.text(
                column, row, f"{value:.2g}", ha="center", va="center", fontsize=7.5, color=colour
            )
    mean = posterior.model.mean
    for row, entries in enumerate(mean.wiring if isinstance(mean, Wired) else ()):
        if not any(entries):
            sides = np.array([-0.46, columns - 0.54])[[0, 1, 1, 0, 0]]
            panel.plot(sides, row + 0.44 * np.array([-1, -1, 1, 1, -1]), color=BLACK, linewidth=1.2)
    panel.set_xticks(range(columns), found.columns)
    panel.set_yticks(range(rows), [f"$x_{{{row + 1}}}$ next" for row in range(rows)])
    panel.grid(False)
    return figure
