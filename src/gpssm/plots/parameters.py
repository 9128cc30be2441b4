"""What the data said about the parameters."""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float
from scipy import stats

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_kind, readable
from gpssm.plots.style import (
    BLUE,
    GREY,
    LIGHT,
    LINES,
    VERMILION,
    in_house_style,
    legend,
    panels,
    say,
)
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
ENTRIES = len(LINES)  # entries up to which each has a line style of its own
SAMPLES = 4000  # from a prior
GRID = 200


@in_house_style()
def plot_parameters(posterior: Posterior) -> "Figure":
    """Prior and posterior of each parameter that was learned, a panel each, a line each entry; scaled units.

    Sampled parameters have a density; of those that were optimised there is a tick at each entry's value. Logarithms
    are shown as what they are the logarithm of. Where prior and posterior look alike the data had nothing to say.
    """
    check_kind("posterior", posterior, Posterior)
    drawn = {name: np.asarray(leaf) for name, leaf in posterior.draws.leaves.items()}
    sampled = {
        name: leaf for name, leaf in drawn.items() if name in posterior.model.leaves("sample")
    }
    # Chains may each have their own.
    optimised = {
        name: drawn[name][:, -1] if name in drawn else np.asarray(leaf)
        for name, leaf in posterior.model.leaves("optimise").items()
    }
    names = [*sampled, *optimised]
    columns = min(max(len(names), 1), COLUMNS)
    figure, axes = panels(-(-max(len(names), 1) // COLUMNS), columns, height=1.7)
    for panel in axes.flat[max(len(names), 1) :]:
        panel.set_visible(False)
    if not names:
        say(axes[0, 0], "no parameter was learned from draws: they are fixed, or point estimates")
    for panel, name in zip(axes.flat, names, strict=False):
        entries = (
            sampled[name].reshape(-1, sampled[name][0, 0].size)
            if name in sampled
            else optimised[name].reshape(1, -1)
        )
        _draw_prior(panel, _prior_draws(posterior, name), entries)
        if name in sampled:
            _draw_densities(panel, entries)
        else:
            panel.vlines(entries[0], 0, 0.25, color=VERMILION, linewidth=1, label="optimised")
            panel.plot(
                entries[0], np.full(entries.shape[1], 0.25), "v", color=VERMILION, markersize=3.5
            )
        _dress(panel, name)
    legend(figure)
    return figure


@in_double_precision
def _prior_draws(posterior: Posterior, name: str) -> Float[np.ndarray, " n"]:
    """Draws from the prior of all entries together."""
    shape = posterior.model.leaves()[name].shape
    number = max(SAMPLES // max(int(np.prod(shape)), 1), 200)
    return np.ravel(posterior.model.priors[name].sample(jax.random.key(0), (number, *shape)))


def _draw_prior(
    panel: "Axes", prior: Float[np.ndarray, " n"], entries: Float[np.ndarray, "S n"]
) -> None:
    low = min(np.quantile(prior, 0.02), np.min(entries))
    high = max(np.quantile(prior, 0.98), np.max(entries))
    margin = 0.04 * (high - low)
    grid = np.linspace(low - margin, high + margin, GRID)
    density = stats.gaussian_kde(prior)(grid)
    panel.fill_between(grid, density / density.max(), color=LIGHT, linewidth=0, label="prior")
    panel.plot(grid, density / density.max(), color=GREY, linewidth=0.8)
    panel.set_xlim(grid[0], grid[-1])
    panel.set_ylim(0, 1.08)


def _draw_densities(panel: "Axes", entries: Float[np.ndarray, "S n"]) -> None:
    """Each entry's density, its highest point at 1; an entry that does not vary is a line."""
    few = entries.shape[1] <= ENTRIES
    for number, values in enumerate(entries.T):
        style = LINES[number] if few else {"color": BLUE, "linestyle": "-", "alpha": 0.4}
        label = (
            "posterior"
            if entries.shape[1] == 1
            else "posterior, a line each state, output or coordinate"
        )
        if np.ptp(values) == 0:
            panel.axvline(values[0], **style, label=label)
            continue
        spread = 0.3 * np.ptp(values)
        grid = np.linspace(values.min() - spread, values.max() + spread, GRID)
        density = stats.gaussian_kde(values)(grid)
        panel.plot(grid, density / density.max(), **style, label=label)


def _dress(panel: "Axes", name: str) -> None:
    """Names, and the ticks of a logarithm at round values of what it is the logarithm of."""
    head, dot, last = name.rpartition(".")
    if last.startswith("log_"):
        ticks = _round_values(*np.exp(panel.get_xlim()))
        panel.set_xticks(np.log(ticks), [f"{tick:.3g}" for tick in ticks])
    else:
        panel.locator_params(axis="x", nbins=5)
    panel.set_xlabel(readable(f"{head}{dot}{last.removeprefix('log_')}"))
    panel.set_yticks([])


def _round_values(low: float, high: float) -> Float[np.ndarray, " n"]:
    """At most five values between positive limits: 1, 2 and 5, or 1 and 3, or 1 times powers of ten."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    inside = np.zeros(0)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        values = np.outer(decades, digits).ravel()
        inside = values[(values >= low) & (values <= high)]
        if len(inside) <= 5:
            return inside
    return inside[:: -(-len(inside) // 5)]
