"""Figures of the dynamics: the transition function, its wiring, and the model around a point."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.text import as_share
from gpssm.model.means import Wired
from gpssm.plots.style import (
    BLACK,
    BLUE,
    FULL,
    GREY,
    HALF,
    LEVEL,
    LIGHT,
    LINES,
    VERMILION,
    draw,
    extremes,
    figure_of,
    legend,
    panels,
    shade,
    with_unit,
)
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.explore import TransitionEstimate, transition
from gpssm.posterior.linearisation import (
    Bode,
    Linearisation,
    Response,
    StaticGain,
    central_band,
    relevance,
)
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID, MESH, ARROWS = 120, 40, 14  # points along a curve, a side of a map, a side of a field
WIDTH = 1.645  # standard deviations to each side of a 90 % band
MOST_SLICES, MOST_STATES = 3, 5
MARGIN = 0.25  # of the visited range, shown beyond it
NOVEL = 0.5  # share of the prior variance of f from which a map is hatched
DARK = 0.6  # share of the colour scale from which figures are written in white


class Visited(NamedTuple):
    """Where the training data went.

    Parameters
    ----------
    x
        States x_t, posterior means of all series, in scaled units.
    u
        Inputs u_t in the user's units.
    following
        States x_{t+1}.
    """

    x: Float[np.ndarray, "N Dx"]
    u: Float[np.ndarray, "N Du"]
    following: Float[np.ndarray, "N Dx"]


def visited(posterior: Posterior) -> Visited:
    """The states and inputs along the training data."""
    posterior = stored_rows(posterior)
    means = [np.mean(np.asarray(path), axis=(0, 1)) for path in posterior.draws.states]
    before = np.concatenate([path[:-1] for path in means])
    after = np.concatenate([path[1:] for path in means])
    inputs = np.concatenate([series.u for series in posterior.dataset.acting])
    return Visited(before, inputs, after)


@figure_of(Posterior)
def plot_transition(posterior: Posterior, chain: int | None = 0) -> "Figure":
    """E f(x, u) and its uncertainty (90 % bands), without process noise, in scaled units.

    One state: x_{t+1} over x_t, with inputs at their medians, the first also at its 10 % and 90 %
    quantiles. Two states: the steps f(x, u) − x as arrows and as maps, inputs at their medians;
    hatched where f is mostly prior. More: slices of f(x, u) − x along the principal directions of
    what the data visited, with that range in grey, and below how new the inputs are to the model
    (0 known, 1 prior).

    Parameters
    ----------
    posterior
        The fit.
    chain
        Whose draws to use, as chains may differ in the states' coordinates; None for all of them.
    """
    posterior = posterior.thinned(chain=chain)
    data = visited(posterior)
    figures = {1: _plot_curve, 2: _plot_maps}
    return figures.get(posterior.model.state_dim, _plot_slices)(posterior, data)


def _locations(posterior: Posterior) -> Float[np.ndarray, "M Dz"] | None:
    """Inducing locations in scaled units: their mean if sampled, else of the first chain."""
    for name, leaf in posterior.model.leaves().items():
        if name.endswith("locations"):
            draws = posterior.draws.leaves.get(name)
            if draws is None:
                return np.asarray(leaf)
            sampled = name in posterior.model.leaves("sample")
            return np.mean(np.asarray(draws if sampled else draws[:1]), axis=(0, 1))
    return None


def _around(values: Float[np.ndarray, " N"], number: int) -> Float[np.ndarray, " number"]:
    margin = MARGIN * max(np.ptp(values), 1e-6)
    return np.linspace(np.min(values) - margin, np.max(values) + margin, number)


def _plot_curve(posterior: Posterior, data: Visited) -> "Figure":
    figure, axes = panels(1, width=FULL, height=3.0)
    panel = axes[0, 0]
    x = _around(data.x[:, 0], GRID)
    shown = extremes(data.x[:, 0], data.following[:, 0])
    dots = {"color": GREY, "markersize": 3, "label": "states, posterior mean"}
    panel.plot(data.x[shown, 0], data.following[shown, 0], ".", **dots)
    panel.plot(x, x, color=GREY, linewidth=0.7, linestyle=":", label="no change")
    for (name, u), style in zip(_levels(posterior, data).items(), LINES, strict=False):
        estimate = transition(posterior, x[:, None], np.repeat(u[None], GRID, 0))
        mean = estimate.mean[:, 0]
        spread = WIDTH * estimate.std[:, 0]
        shade(panel, x, mean - spread, mean + spread, color=style["color"], alpha=0.2)
        panel.plot(x, mean, **style, label=f"f{name}")
    points = _locations(posterior)
    if points is not None:
        points = points[(points[:, 0] >= x[0]) & (points[:, 0] <= x[-1])]
    if points is not None and len(points):
        u = posterior.dataset.decode_inputs(points[:, 1:])
        estimate = transition(posterior, points[:, :1], u)
        triangles = {"fmt": "^", "color": BLACK, "markersize": 4, "elinewidth": 0.7}
        bars = WIDTH * estimate.std[:, 0]
        label = "inducing points"
        panel.errorbar(points[:, 0], estimate.mean[:, 0], bars, **triangles, label=label)
    panel.set(xlabel="$x_t$ (scaled)", ylabel="$x_{t+1}$ (scaled)", xlim=(x[0], x[-1]))
    legend(figure)
    return figure


def _levels(posterior: Posterior, data: Visited) -> dict[str, Float[np.ndarray, " Du"]]:
    """Inputs at their medians, and the first at two more quantiles, by what to call them."""
    if not data.u.shape[1]:
        return {"": np.zeros(0)}
    name = posterior.dataset.inputs[0]
    levels = {}
    for share in (0.5, 0.1, 0.9) if np.ptp(data.u[:, 0]) > 0 else (0.5,):
        u = np.median(data.u, axis=0)
        u[0] = np.quantile(data.u[:, 0], share)
        levels[f" at {name} = {u[0]:.3g}"] = u
    return levels


class StepMap(NamedTuple):
    """Steps f − x on a grid of two states."""

    first: Float[np.ndarray, "n n"]
    second: Float[np.ndarray, "n n"]
    steps: Float[np.ndarray, "n n 2"]
    novelty: Float[np.ndarray, "n n"]


def _map(posterior: Posterior, data: Visited, number: int) -> StepMap:
    first, second = np.meshgrid(*(_around(column, number) for column in data.x.T))
    x = np.stack([first.ravel(), second.ravel()], -1)
    u = np.repeat(np.median(data.u, axis=0)[None], len(x), 0)
    estimate = transition(posterior, x, u)
    steps = (estimate.mean - x).reshape(number, number, 2)
    return StepMap(first, second, steps, estimate.novelty.reshape(number, number))


def _plot_maps(posterior: Posterior, data: Visited) -> "Figure":
    figure, axes = panels(1, 3, height=2.5, sharex=True, sharey=True)
    fine = _map(posterior, data, MESH)
    _draw_arrows(axes[0, 0], _map(posterior, data, ARROWS), data)
    for dim, panel in enumerate(axes[0, 1:]):
        filled = panel.contourf(fine.first, fine.second, fine.steps[..., dim], 10)
        colours = figure.colorbar(filled, ax=panel, location="bottom", shrink=0.9, pad=0.02)
        colours.ax.tick_params(labelsize=7.5)
        colours.ax.locator_params(axis="x", nbins=5)
        panel.contour(filled, colors="white", linewidths=0.5)
        panel.set_title(f"$x_{dim + 1}$ part of the step", pad=3)
        panel.grid(False)
    points = _locations(posterior)
    novel = np.nan_to_num(fine.novelty)
    style = {"color": VERMILION, "markeredgecolor": BLACK, "markeredgewidth": 0.4, "markersize": 5}
    for panel in axes[0]:
        if novel.max() > NOVEL:
            hatched = {"colors": "none", "hatches": ["//"], "zorder": 1.5}
            mark = panel.contourf(fine.first, fine.second, novel, [NOVEL, 1.01], **hatched)
            mark.set(edgecolor="#aaaaaa", linewidth=0)
        if points is not None:
            panel.plot(*points[:, :2].T, "^", **style, label="inducing points")
        ends = {"xlim": fine.first[0, [0, -1]], "ylim": fine.second[[0, -1], 0]}
        panel.set(xlabel="$x_1$ (scaled)", **ends)
    axes[0, 0].set_ylabel("$x_2$ (scaled)")
    legend(figure)
    return figure


def _draw_arrows(panel: "Axes", coarse: StepMap, data: Visited) -> None:
    """Arrows to where the next state lies, the longest 1.6 squares of their grid long."""
    panel.plot(*data.x.T, ".", color=GREY, markersize=2, alpha=0.6)
    width = coarse.first[0, 1] - coarse.first[0, 0]
    height = coarse.second[1, 0] - coarse.second[0, 0]
    scale = max(np.max(np.abs(coarse.steps) / np.array([width, height])) / 1.6, 1e-12)
    units = {"angles": "xy", "scale_units": "xy", "scale": scale}
    shape = {"width": 0.005, "headwidth": 4, "minlength": 0.2}
    steps = np.moveaxis(coarse.steps, -1, 0)
    panel.quiver(coarse.first, coarse.second, *steps, color=BLUE, **units, **shape)
    panel.set_title("step f(x, u) − x", pad=3)


class Slice(NamedTuple):
    """f along a line through the mean of what the data visited.

    Parameters
    ----------
    name
        The direction of the line.
    places
        Where on the line the data lie.
    line
        Where on it f is evaluated.
    x
        The states there.
    estimate
        f there.
    """

    name: str
    places: Float[np.ndarray, " N"]
    line: Float[np.ndarray, " n"]
    x: Float[np.ndarray, "n Dx"]
    estimate: TransitionEstimate


def slices(posterior: Posterior, data: Visited) -> list[Slice]:
    """f along the principal directions of states and inputs in the training data."""
    z = np.hstack([data.x, posterior.dataset.encode_inputs(data.u)])
    centre = z.mean(0)
    dim = data.x.shape[1]
    _, spread, directions = np.linalg.svd(z - centre, full_matrices=False)
    names = [f"x_{{{number + 1}}}" for number in range(dim)]
    # What mathtext would take for a command is left out of the names.
    for name in posterior.dataset.inputs:
        plain = "".join(letter if letter.isalnum() else " " for letter in name)
        names.append(rf"\mathrm{{{plain}}}")
    result = []
    for number, direction in enumerate(directions[:MOST_SLICES]):
        # The sign of a principal direction is arbitrary: its largest part goes up.
        direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
        places = (z - centre) @ direction
        line = _around(places, GRID)
        points = centre + line[:, None] * direction
        u = posterior.dataset.decode_inputs(points[:, dim:])
        share = spread[number] ** 2 / np.sum(spread**2)
        title = f"{_direction(direction, names)} ({share:.0%})"
        estimate = transition(posterior, points[:, :dim], u)
        result.append(Slice(title, places, line, points[:, :dim], estimate))
    return result


def _direction(direction: Float[np.ndarray, " Dz"], names: list[str]) -> str:
    """The two largest parts of a direction, and a hint where there are more of any size."""
    largest = sorted(np.argsort(-np.abs(direction))[:2])
    words = " ".join(
        rf"{direction[part]:+.2g}\,{names[part]}" for part in largest if abs(direction[part]) > 0.1
    )
    more = r" + \ldots" if np.sum(np.abs(direction) > 0.1) > 2 else ""
    return f"${words.lstrip('+')}{more}$"


def _plot_slices(posterior: Posterior, data: Visited) -> "Figure":
    lines = slices(posterior, data)
    shown = min(posterior.model.state_dim, MOST_STATES)
    layout = {"sharex": "col", "sharey": "row", "height_ratios": (*(1.0,) * shown, 0.5)}
    figure, axes = panels(shown + 1, len(lines), height=1.05, **layout)
    for column, slice_ in zip(axes.T, lines, strict=True):
        estimate = slice_.estimate
        limits = np.quantile(slice_.places, [0.05, 0.95])
        for number, panel in enumerate(column[:-1]):
            step = estimate.mean[:, number] - slice_.x[:, number]
            spread = WIDTH * estimate.std[:, number]
            panel.axvspan(*limits, color=LIGHT, linewidth=0, zorder=0, label="visited (90 %)")
            shade(panel, slice_.line, step - spread, step + spread, label="90 % band")
            draw(panel, slice_.line, step, color=BLUE, label="mean")
        novelty = np.nan_to_num(estimate.novelty)
        column[-1].fill_between(slice_.line, novelty, color=VERMILION, alpha=0.6, linewidth=0)
        ends = slice_.line[[0, -1]]
        column[-1].set(ylim=(0, 1), xlim=ends, xlabel="along the direction")
        column[0].set_title(slice_.name, pad=3)
    for number, panel in enumerate(axes[:-1, 0]):
        panel.set_ylabel(f"step of $x_{{{number + 1}}}$")
    axes[-1, 0].set_ylabel("novelty")
    figure.align_ylabels()
    legend(figure)
    return figure


@figure_of(Posterior)
def plot_wiring(posterior: Posterior) -> "Figure":
    """How far each state and input moves each transition, a row per transition.

    Figures are standard deviations of the next state for one of the input. Squares that a wiring
    keeps out are crossed, rows that it knows have a frame.
    """
    table = relevance(posterior)
    rows, columns = table.mean.shape
    figure, axes = panels(1, width=2.0 + 0.55 * columns, height=1.0 + 0.45 * rows)
    panel = axes[0, 0]
    image = panel.imshow(table.mean, cmap="Blues", vmin=0.0, aspect="auto")
    figure.colorbar(image, ax=panel, label="relevance", shrink=0.9)
    top = max(float(table.mean.max()), 1e-12)
    for row, column in np.ndindex(rows, columns):
        value = table.mean[row, column]
        colour = "white" if value > DARK * top else BLACK
        text = {"ha": "center", "va": "center", "fontsize": 7.5, "color": colour}
        panel.text(column, row, f"{value:.2g}" if value else "×", **text)
    mean = posterior.model.mean
    for row, entries in enumerate(mean.wiring if isinstance(mean, Wired) else ()):
        if not any(entries):
            sides = np.array([-0.46, columns - 0.54])[[0, 1, 1, 0, 0]]
            ends = row + 0.44 * np.array([-1, -1, 1, 1, -1])
            panel.plot(sides, ends, color=BLACK, linewidth=1.2)
    panel.set_xticks(range(columns), table.columns)
    panel.set_yticks(range(rows), [f"$x_{{{row + 1}}}$ next" for row in range(rows)])
    panel.grid(False)
    return figure


@figure_of(Response)
def plot_response(response: Response, level: float = LEVEL) -> "Figure":
    """Step or impulse responses, a row per output and a column per input, over the draws."""
    level = as_share(level)
    columns = len(response.linear.inputs)
    layout = {"width": HALF if columns == 1 else FULL, "height": 1.8, "sharex": True}
    figure, axes = panels(len(response.linear.outputs), columns, **layout)
    for (j, i), panel in np.ndenumerate(axes):
        panel.axhline(0, color=GREY, linewidth=0.7)
        _draw_band(panel, response.times, response.values[:, :, j, i], level)
        panel.set_title(f"{response.kind} to {response.linear.inputs[i]}")
        panel.set_ylabel(
            _ratio(response.linear.outputs[j], response.linear.inputs[i], response.linear.units)
        )
    name = (
        "steps"
        if response.linear.dt is None
        else with_unit("time", {"time": response.linear.time_unit})
    )
    for panel in axes[-1]:
        panel.set_xlabel(name)
    legend(figure)
    return figure


@figure_of(Bode)
def plot_bode(bode: Bode, level: float = LEVEL) -> "Figure":
    """Magnitude and phase over frequency, two rows per output and a column per input."""
    level = as_share(level)
    columns = len(bode.linear.inputs)
    layout = {"width": HALF if columns == 1 else FULL, "height": 1.5, "sharex": True}
    figure, axes = panels(2 * len(bode.linear.outputs), columns, **layout)
    for (row, i), panel in np.ndenumerate(axes):
        j, is_phase = divmod(row, 2)
        values = bode.phase if is_phase else bode.magnitude
        _draw_band(panel, bode.frequencies, values[:, :, j, i], level)
        panel.set_xscale("log")
        panel.set_ylabel("phase [°]" if is_phase else "magnitude [dB]")
        ratio = _ratio(bode.linear.outputs[j], bode.linear.inputs[i], bode.linear.units)
        panel.set_title("" if is_phase else f"{bode.linear.inputs[i]} to {ratio}")
    per = "step" if bode.linear.dt is None else "unit of time"
    cycles = f"cycles per {bode.linear.time_unit or per}"
    for panel in axes[-1]:
        panel.set_xlabel("frequency [Hz]" if bode.linear.time_unit == "s" else cycles)
    legend(figure)
    return figure


@figure_of(Linearisation)
def plot_poles(linear: Linearisation, level: float = LEVEL) -> "Figure":
    """The poles of all draws in the unit circle, a colour for the largest, the next and so on."""
    level = as_share(level)
    figure, axes = panels(1, width=HALF, height=HALF)
    panel = axes[0, 0]
    angle = np.linspace(0, 2 * np.pi, 400)
    panel.plot(np.cos(angle), np.sin(angle), color=BLACK, linewidth=0.8)
    for k, column in enumerate(linear.poles.T):
        low, high = np.quantile(np.abs(column), ((1 - level) / 2, (1 + level) / 2))
        style = {"color": LINES[k % len(LINES)]["color"], "alpha": 0.6}
        label = f"|p| {low:.3f} to {high:.3f}"
        panel.plot(column.real, column.imag, "x", **style, label=label)
    reach = 1.1 * max(1.0, float(np.abs(linear.poles).max()))
    limits = (-reach, reach)
    panel.set(xlim=limits, ylim=limits, aspect="equal", xlabel="real part", ylabel="imaginary part")
    legend(figure)
    return figure


@figure_of(StaticGain)
def plot_static_gain(curve: StaticGain, level: float = LEVEL) -> "Figure":
    """Where outputs settle, and the slope of that, over the input.

    Dots mark values of the input at which half of the draws would not stay there.
    """
    level = as_share(level)
    number = len(curve.outputs)
    layout = {"width": HALF if number == 1 else FULL, "height": 1.7, "sharex": True}
    figure, axes = panels(2, number, **layout)
    settled = curve.supported(curve.settled)
    gain = curve.supported(curve.gain)
    unstable = curve.stable.mean(0) < 0.5
    for j, output in enumerate(curve.outputs):
        top, bottom = axes[:, j]
        _draw_band(top, curve.values, settled[..., j], level)
        if unstable.any():
            dots = {"color": VERMILION, "label": "unstable"}
            top.plot(curve.values[unstable], curve.median[unstable, j], ".", **dots)
        top.set_ylabel(with_unit(output, curve.units))
        top.set_title(f"{output} settles at")
        _draw_band(bottom, curve.values, gain[..., j], level)
        bottom.set_ylabel(_ratio(output, curve.input, curve.units))
        bottom.set_title(f"static gain, per unit of {curve.input}")
        bottom.set_xlabel(with_unit(curve.input, curve.units))
    legend(figure)
    return figure


def _draw_band(
    panel: "Axes", x: Float[np.ndarray, " N"], values: Float[np.ndarray, "S N"], level: float
) -> None:
    """The median over draws and their central interval."""
    shade(panel, x, *central_band(values, level), label=f"{100 * level:g} % of the draws")
    panel.plot(x, central_band(values, 0.0)[0], color=BLUE, label="median")


def _ratio(output: str, column: str, units: Mapping[str, str]) -> str:
    """A change of an output per unit of an input, with its unit where both have theirs."""
    both = units.get(output) and units.get(column)
    return f"{output} [{units[output]}/{units[column]}]" if both else output
