"""The transition function that was learned."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_kind
from gpssm.plots.quantities import LEVEL, Visited, visited
from gpssm.plots.style import (
    BLACK,
    BLUE,
    FULL,
    GREY,
    LIGHT,
    LINES,
    VERMILION,
    draw,
    extremes,
    in_house_style,
    legend,
    panels,
    shade,
)
from gpssm.posterior.explore import TransitionEstimate, transition
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID, MESH, ARROWS = (
    120,
    40,
    14,
)  # points along a curve, and a side of a map and of a field of arrows
WIDTH = 1.645  # standard deviations to each side of a 90 % band
SLICES, STATES = 3, 5  # directions and states that are shown of many, at most
MARGIN = 0.25  # of the visited range, shown beyond it
NOVEL = 0.5


@in_house_style()
def plot_transition(posterior: Posterior, chain: int | None = 0) -> "Figure":
    """E f(x, u) and what is not known about it (90 % bands), without process noise, in scaled units.

    One state: x_{t+1} over x_t, with controls at their medians, the first also at its 10 % and 90 % quantiles. Two: the
    steps f(x, u) − x as arrows and as maps, controls at their medians; hatched where f is mostly prior. More: slices of
    f(x, u) − x along the principal directions of the inputs that the data visited, through their mean, the range that
    they visited in grey, and below how new the inputs are to the model (0 known, 1 prior).

    :param chain: whose draws to use, as chains may differ in the states' coordinates; None for all of them.
    """
    check_kind("posterior", posterior, Posterior)
    posterior = posterior if chain is None else posterior.chain(chain)
    seen = visited(posterior)
    pictures = {1: _plot_curve, 2: _plot_maps}
    return pictures.get(posterior.model.state_dim, _plot_slices)(posterior, seen)


def _locations(posterior: Posterior) -> Float[np.ndarray, "M Dz"] | None:
    """Inducing locations in scaled units, their mean where they were sampled, the first chain's where chains have their
    own; None without any."""
    for name, leaf in posterior.model.leaves().items():
        if name.endswith("locations"):
            if (drawn := posterior.draws.leaves.get(name)) is None:
                return np.asarray(leaf)
            together = name in posterior.model.leaves("sample")
            return np.mean(np.asarray(drawn if together else drawn[:1]), axis=(0, 1))
    return None


def _around(values: Float[np.ndarray, " N"], number: int) -> Float[np.ndarray, " number"]:
    margin = MARGIN * max(np.ptp(values), 1e-6)
    return np.linspace(np.min(values) - margin, np.max(values) + margin, number)


def _plot_curve(posterior: Posterior, seen: Visited) -> "Figure":
    figure, axes = panels(1, width=FULL, height=3.0)
    panel, x = axes[0, 0], _around(seen.x[:, 0], GRID)
    kept = extremes(seen.x[:, 0], seen.following[:, 0])
    panel.plot(
        seen.x[kept, 0],
        seen.following[kept, 0],
        ".",
        color=GREY,
        markersize=3,
        label="states, posterior mean",
    )
    panel.plot(x, x, color=GREY, linewidth=0.7, linestyle=":", label="no change")
    for (name, u), style in zip(_levels(posterior, seen), LINES, strict=False):
        found = transition(posterior, x[:, None], np.repeat(u[None], GRID, 0))
        low, high = (found.mean[:, 0] + sign * WIDTH * found.std[:, 0] for sign in (-1, 1))
        shade(panel, x, low, high, color=style["color"], alpha=0.2)
        panel.plot(x, found.mean[:, 0], **style, label=f"f{name}")
    where = _locations(posterior)
    if where is not None:
        inside = where[(where[:, 0] >= x[0]) & (where[:, 0] <= x[-1])]
        if len(inside):
            found = transition(
                posterior, inside[:, :1], posterior.dataset.decode_inputs(inside[:, 1:])
            )
            bars = WIDTH * found.std[:, 0]
            panel.errorbar(
                inside[:, 0],
                found.mean[:, 0],
                bars,
                fmt="^",
                color=BLACK,
                markersize=4,
                elinewidth=0.7,
            )
            panel.plot([], [], "^", color=BLACK, markersize=4, label="inducing points")
    panel.set(xlabel="$x_t$ (scaled)", ylabel="$x_{t+1}$ (scaled)", xlim=(x[0], x[-1]))
    legend(figure)
    return figure


def _levels(posterior: Posterior, seen: Visited) -> list[tuple[str, Float[np.ndarray, " Du"]]]:
    """Controls at their medians, and the first at two more quantiles, with what to call them."""
    if not seen.u.shape[1]:
        return [("", np.zeros(0))]
    middle, name = np.median(seen.u, axis=0), posterior.dataset.inputs[0]
    levels = []
    for share in (0.5, 0.1, 0.9):
        u = np.array(middle)
        u[0] = np.quantile(seen.u[:, 0], share)
        levels.append((f" at {name} = {u[0]:.3g}", u))
    return levels if np.ptp(seen.u[:, 0]) > 0 else levels[:1]


class _Map(NamedTuple):
    """Steps f − x on a grid of two states."""

    first: Float[np.ndarray, "n n"]
    second: Float[np.ndarray, "n n"]
    steps: Float[np.ndarray, "n n 2"]
    novelty: Float[np.ndarray, "n n"]


def _map(posterior: Posterior, seen: Visited, number: int) -> _Map:
    first, second = np.meshgrid(*(_around(column, number) for column in seen.x.T))
    x = np.stack([first.ravel(), second.ravel()], -1)
    found = transition(posterior, x, np.repeat(np.median(seen.u, axis=0)[None], len(x), 0))
    return _Map(
        first,
        second,
        (found.mean - x).reshape(number, number, 2),
        found.novelty.reshape(number, number),
    )


def _plot_maps(posterior: Posterior, seen: Visited) -> "Figure":
    figure, axes = panels(1, 3, height=2.5, sharex=True, sharey=True)
    fine, coarse = _map(posterior, seen, MESH), _map(posterior, seen, ARROWS)
    field = axes[0, 0]
    field.plot(
        *seen.x.T,
        "-" if len(posterior.dataset.experiments) == 1 else ".",
        color=GREY,
        linewidth=0.5,
        markersize=2,
        alpha=0.6,
    )
    # Arrows point where the next state lies, the longest of them 1.6 squares of their grid long.
    square = np.array(
        [coarse.first[0, 1] - coarse.first[0, 0], coarse.second[1, 0] - coarse.second[0, 0]]
    )
    scale = max(np.max(np.abs(coarse.steps) / square) / 1.6, 1e-12)
    shape = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": scale,
        "width": 0.005,
        "headwidth": 4,
        "minlength": 0.2,
    }
    field.quiver(
        coarse.first, coarse.second, *np.moveaxis(coarse.steps, -1, 0), color=BLUE, **shape
    )
    field.set_title("step f(x, u) − x", pad=3)
    for dim, panel in enumerate(axes[0, 1:]):
        filled = panel.contourf(fine.first, fine.second, fine.steps[..., dim], 10)
        colours = figure.colorbar(filled, ax=panel, location="bottom", shrink=0.9, pad=0.02)
        colours.ax.tick_params(labelsize=7.5)
        colours.ax.locator_params(axis="x", nbins=5)
        panel.contour(filled, colors="white", linewidths=0.5)
        panel.set_title(f"$x_{dim + 1}$ part of the step", pad=3)
        panel.grid(False)
    where = _locations(posterior)
    for panel in axes[0]:
        novel = np.nan_to_num(fine.novelty)
        if novel.max() > NOVEL:
            mark = panel.contourf(
                fine.first,
                fine.second,
                novel,
                [NOVEL, 1.01],
                colors="none",
                hatches=["//"],
                zorder=1.5,
            )
            mark.set(edgecolor="#aaaaaa", linewidth=0)
        if where is not None:
            panel.plot(
                *where[:, :2].T,
                "^",
                color=VERMILION,
                markeredgecolor="black",
                markeredgewidth=0.4,
                markersize=5,
                label="inducing points",
            )
        panel.set(
            xlabel="$x_1$ (scaled)", xlim=fine.first[0, [0, -1]], ylim=fine.second[[0, -1], 0]
        )
    axes[0, 0].set_ylabel("$x_2$ (scaled)")
    legend(figure)
    return figure


class _Slice(NamedTuple):
    """A line through the mean of the visited inputs: where on it they lie, and f along it."""

    name: str
    places: Float[np.ndarray, " N"]
    line: Float[np.ndarray, " n"]
    x: Float[np.ndarray, "n Dx"]
    found: TransitionEstimate


def _slices(posterior: Posterior, seen: Visited) -> list[_Slice]:
    z = np.hstack([seen.x, posterior.dataset.encode_inputs(seen.u)])
    centre, dim = z.mean(0), seen.x.shape[1]
    _, spread, directions = np.linalg.svd(z - centre, full_matrices=False)
    names = [
        *(f"x_{{{number + 1}}}" for number in range(dim)),
        *(rf"\mathrm{{{name}}}" for name in _inputs(posterior)),
    ]
    slices = []
    for number, direction in enumerate(directions[:SLICES]):
        # The sign of a principal direction is nobody's choice: its largest part goes up.
        direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
        places = (z - centre) @ direction
        line = _around(places, GRID)
        points = centre + line[:, None] * direction
        found = transition(
            posterior, points[:, :dim], posterior.dataset.decode_inputs(points[:, dim:])
        )
        title = f"{_words(direction, names)} ({spread[number] ** 2 / np.sum(spread**2):.0%})"
        slices.append(_Slice(title, places, line, points[:, :dim], found))
    return slices


def _words(direction: Float[np.ndarray, " Dz"], names: list[str]) -> str:
    """The two largest parts of a direction, and a hint where there are more of any size."""
    largest = sorted(np.argsort(-np.abs(direction))[:2])
    words = " ".join(
        rf"{direction[part]:+.2g}\,{names[part]}" for part in largest if abs(direction[part]) > 0.1
    )
    more = r" + \ldots" if np.sum(np.abs(direction) > 0.1) > 2 else ""
    return f"${words.lstrip('+')}{more}$"


def _inputs(posterior: Posterior) -> list[str]:
    """The controls' names, with what mathtext would take for a command left out."""
    return [
        "".join(letter if letter.isalnum() else " " for letter in name)
        for name in posterior.dataset.inputs
    ]


def _plot_slices(posterior: Posterior, seen: Visited) -> "Figure":
    slices, dim = _slices(posterior, seen), posterior.model.state_dim
    shown = min(dim, STATES)
    ratios = (*(1.0,) * shown, 0.5)
    figure, axes = panels(
        shown + 1, len(slices), height=1.05, sharex="col", sharey="row", height_ratios=ratios
    )
    for column, one in zip(axes.T, slices, strict=True):
        for number, panel in enumerate(column[:-1]):
            step = one.found.mean[:, number] - one.x[:, number]
            spread = WIDTH * one.found.std[:, number]
            panel.axvspan(
                *np.quantile(one.places, [0.05, 0.95]),
                color=LIGHT,
                linewidth=0,
                zorder=0,
                label="visited (90 %)",
            )
            shade(panel, one.line, step - spread, step + spread, label=f"{100 * LEVEL:g} % band")
            draw(panel, one.line, step, color=BLUE, label="mean")
        column[-1].fill_between(
            one.line, np.nan_to_num(one.found.novelty), color=VERMILION, alpha=0.6, linewidth=0
        )
        column[-1].set(ylim=(0, 1), xlim=one.line[[0, -1]], xlabel="along the direction")
        column[0].set_title(one.name, pad=3)
    for number, panel in enumerate(axes[:-1, 0]):
        panel.set_ylabel(f"step of $x_{{{number + 1}}}$")
    axes[-1, 0].set_ylabel("novelty")
    figure.align_ylabels()
    legend(figure)
    return figure
