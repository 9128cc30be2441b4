"""States along the training data."""

from typing import TYPE_CHECKING

import numpy as np

from gpssm.core.text import check_kind
from gpssm.plots.quantities import LEVEL
from gpssm.plots.style import LINES, draw, in_house_style, legend, panels, shade, time_axis
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES, CHAINS = 8, 4  # at most


@in_house_style()
def plot_states(posterior: Posterior, index: int = -1) -> "Figure":
    """The states x₀..x_T of training series `index` in scaled units: median and 90 % band, a colour each chain.

    States are identified only up to a change of coordinates, in which chains may differ: where they do, the lines part
    company here while the outputs of `plot_smoothed` agree. At most eight states and four chains are drawn.
    """
    check_kind("posterior", posterior, Posterior)
    posterior = posterior.with_states()
    series, states = posterior.dataset.experiment(index), np.asarray(posterior.draws.states[index])
    shown = min(states.shape[-1], STATES)
    figure, axes = panels(shown, height=1.15, sharex=True)
    # x_t is known from y_{t−1} on: it stands where the output it emits does, and x₀ one step before all.
    times, label = time_axis(len(series) + 1, series.axis, first=-1)
    for dim, panel in enumerate(axes[:, 0]):
        for chain, style in zip(range(min(len(states), CHAINS)), LINES, strict=False):
            low, middle, high = np.quantile(
                states[chain, :, :, dim],
                [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2],
                axis=0,
                method="weibull",
            )
            shade(panel, times, low, high, color=style["color"], alpha=0.2)
            draw(panel, times, middle, **style, label=f"chain {chain}")
        panel.set_ylabel(f"$x_{{{dim + 1}}}$ (scaled)")
        panel.margins(x=0.01)
    if states.shape[-1] > STATES:
        axes[0, 0].set_title(f"the first {STATES} of {states.shape[-1]} states")
    axes[-1, 0].set_xlabel(label)
    legend(figure)
    return figure
