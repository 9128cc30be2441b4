"""Figures of the dynamics: the transition function and linearised models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

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
    figure_of,
    panels,
    shade,
    with_unit,
)
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.dynamics import (
    Bode,
    FunctionEstimate,
    Linearisation,
    Response,
    StaticGain,
    central_band,
    transition,
)
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Slice(NamedTuple):
    """f along a line through the mean of the data.

    Parameters
    ----------
    name
        The direction of the line.
    places
        Positions of the data on the line.
    line
        Positions at which f is evaluated.
    x
        The states at these positions.
    estimate
        The estimates of f at these positions.
    """

    name: str
    places: Float[np.ndarray, " N"]
    line: Float[np.ndarray, " n"]
    x: Float[np.ndarray, "n Dx"]
    estimate: FunctionEstimate


def slices(posterior: Posterior) -> list[Slice]:
    """Return f along the first three principal directions of the training states and inputs.

    States are posterior means of all series.
    """
    posterior = stored_rows(posterior)
    means = [np.mean(np.asarray(path), axis=(0, 1)) for path in posterior.draws.states]
    x = np.concatenate([path[:-1] for path in means])
    u = np.concatenate([series.u for series in posterior.dataset.acting])
    z = np.hstack([x, posterior.dataset.encode_inputs(u)])
    dim = x.shape[1]
    centre = z.mean(0)
    _, spread, directions = np.linalg.svd(z - centre, full_matrices=False)
    names = [f"x_{{{number + 1}}}" for number in range(dim)]
    # Remove characters that mathtext would interpret from the names.
    for name in posterior.dataset.inputs:
        plain = "".join(letter if letter.isalnum() else " " for letter in name)
        names.append(rf"\mathrm{{{plain}}}")
    result = []
    for number, direction in enumerate(directions[:3]):
        # The sign of a principal direction is arbitrary: make its largest component positive.
        direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
        places = (z - centre) @ direction
        margin = 0.25 * max(np.ptp(places), 1e-6)
        line = np.linspace(places.min() - margin, places.max() + margin, 120)
        points = centre + line[:, None] * direction
        u = posterior.dataset.decode_inputs(points[:, dim:])
        share = spread[number] ** 2 / np.sum(spread**2)
        title = f"{_direction(direction, names)} ({share:.0%})"
        estimate = transition(posterior, points[:, :dim], u)
        result.append(Slice(title, places, line, points[:, :dim], estimate))
    return result


def _direction(direction: Float[np.ndarray, " Dz"], names: list[str]) -> str:
    """Return the two largest components of a direction as text, with dots for further large
    ones.
    """
    largest = sorted(np.argsort(-np.abs(direction))[:2])
    text = " ".join(
        rf"{direction[part]:+.2g}\,{names[part]}" for part in largest if abs(direction[part]) > 0.1
    )
    hint = r" + \ldots" if np.sum(np.abs(direction) > 0.1) > 2 else ""
    return f"${text.lstrip('+')}{hint}$"


@figure_of(Posterior)
def plot_transition(posterior: Posterior, chain: int | None = 0) -> "Figure":
    """Plot the learned change f(x, u) − x with 90 % bands along slices through the data.

    The slices follow the principal directions of states and inputs in the training data, in scaled
    units and without process noise, for the first five states. The range of the data is grey; the
    lower panels show the novelty of the inputs (0 known, 1 prior).

    Parameters
    ----------
    posterior
        The fit.
    chain
        The chain whose draws are used, since chains may use different coordinates; None for all
        chains.
    """
    posterior = posterior if chain is None else posterior.thinned(chain=chain)
    lines = slices(posterior)
    shown = min(posterior.model.state_dim, 5)
    figure, axes = panels(
        shown + 1,
        len(lines),
        height=1.05,
        xlabel="along the direction",
        ylabels=[*(f"step of $x_{{{number + 1}}}$" for number in range(shown)), "novelty"],
        sharex="col",
        sharey="row",
        height_ratios=(*(1.0,) * shown, 0.5),
    )
    for column, slice_ in zip(axes.T, lines, strict=True):
        estimate = slice_.estimate
        limits = np.quantile(slice_.places, [0.05, 0.95])
        for number, panel in enumerate(column[:-1]):
            step = estimate.mean[:, number] - slice_.x[:, number]
            spread = 1.645 * estimate.std[:, number]
            panel.axvspan(*limits, color=LIGHT, linewidth=0, zorder=0, label="visited (90 %)")
            shade(panel, slice_.line, step - spread, step + spread, label="90 % band")
            draw(panel, slice_.line, step, color=BLUE, label="mean")
        assert estimate.novelty is not None
        novelty = np.nan_to_num(estimate.novelty)
        column[-1].fill_between(slice_.line, novelty, color=VERMILION, alpha=0.6, linewidth=0)
        ends = slice_.line[[0, -1]]
        column[-1].set(ylim=(0, 1), xlim=ends)
        column[0].set_title(slice_.name, pad=3)
    return figure


@figure_of(Response)
def plot_response(response: Response, level: float = LEVEL) -> "Figure":
    """Plot step or impulse responses over draws, one row per output and one column per input."""
    linear = response.linear
    columns = len(linear.inputs)
    time = with_unit("time", {"time": linear.time_unit})
    figure, axes = panels(
        len(linear.outputs),
        columns,
        width=HALF if columns == 1 else FULL,
        height=1.8,
        xlabel="steps" if linear.dt is None else time,
        sharex=True,
    )
    for (j, i), panel in np.ndenumerate(axes):
        panel.axhline(0, color=GREY, linewidth=0.7)
        _draw_band(panel, response.times, response.values[:, :, j, i], level)
        panel.set(
            title=f"{response.kind} to {linear.inputs[i]}",
            ylabel=_ratio(linear.outputs[j], linear.inputs[i], linear.units),
        )
    return figure


@figure_of(Bode)
def plot_bode(bode: Bode, level: float = LEVEL) -> "Figure":
    """Plot magnitude and phase over frequency, two rows per output and one column per input."""
    linear = bode.linear
    columns = len(linear.inputs)
    per = "step" if linear.dt is None else "unit of time"
    cycles = f"cycles per {linear.time_unit or per}"
    figure, axes = panels(
        2 * len(linear.outputs),
        columns,
        width=HALF if columns == 1 else FULL,
        height=1.5,
        xlabel="frequency [Hz]" if linear.time_unit == "s" else cycles,
        sharex=True,
    )
    for (row, i), panel in np.ndenumerate(axes):
        j, is_phase = divmod(row, 2)
        values = bode.phase if is_phase else bode.magnitude
        _draw_band(panel, bode.frequencies, values[:, :, j, i], level)
        panel.set(xscale="log", ylabel="phase [°]" if is_phase else "magnitude [dB]")
        ratio = _ratio(linear.outputs[j], linear.inputs[i], linear.units)
        panel.set_title("" if is_phase else f"{linear.inputs[i]} to {ratio}")
    return figure


@figure_of(Linearisation)
def plot_poles(linear: Linearisation, level: float = LEVEL) -> "Figure":
    """Plot the poles of all draws in the unit circle, coloured by their order of magnitude."""
    figure, axes = panels(1, width=HALF, height=HALF)
    panel = axes[0, 0]
    angle = np.linspace(0, 2 * np.pi, 400)
    panel.plot(np.cos(angle), np.sin(angle), color=BLACK, linewidth=0.8)
    for k, column in enumerate(linear.poles.T):
        low, high = np.quantile(np.abs(column), ((1 - level) / 2, (1 + level) / 2))
        label = f"|p| {low:.3f} to {high:.3f}"
        panel.plot(
            column.real,
            column.imag,
            "x",
            color=LINES[k % len(LINES)]["color"],
            alpha=0.6,
            label=label,
        )
    reach = 1.1 * max(1.0, float(np.abs(linear.poles).max()))
    limits = (-reach, reach)
    panel.set(xlim=limits, ylim=limits, aspect="equal", xlabel="real part", ylabel="imaginary part")
    return figure


@figure_of(StaticGain)
def plot_static_gain(curve: StaticGain, level: float = LEVEL) -> "Figure":
    """Plot steady-state outputs and their slope over the input.

    Dots mark values of the input at which the equilibria of half of the draws are unstable.
    """
    number = len(curve.outputs)
    figure, axes = panels(2, number, width=HALF if number == 1 else FULL, height=1.7, sharex=True)
    settled = curve.supported(curve.settled)
    gain = curve.supported(curve.gain)
    unstable = curve.stable.mean(0) < 0.5
    for j, output in enumerate(curve.outputs):
        top, bottom = axes[:, j]
        _draw_band(top, curve.values, settled[..., j], level)
        if unstable.any():
            top.plot(
                curve.values[unstable],
                curve.median[unstable, j],
                ".",
                color=VERMILION,
                label="unstable",
            )
        top.set(ylabel=with_unit(output, curve.units), title=f"{output} settles at")
        _draw_band(bottom, curve.values, gain[..., j], level)
        bottom.set(
            ylabel=_ratio(output, curve.input, curve.units),
            title=f"static gain, per unit of {curve.input}",
            xlabel=with_unit(curve.input, curve.units),
        )
    return figure


def _draw_band(
    panel: "Axes", x: Float[np.ndarray, " N"], values: Float[np.ndarray, "S N"], level: float
) -> None:
    """Draw the median over draws and their central interval."""
    shade(panel, x, *central_band(values, level), label=f"{100 * level:g} % of the draws")
    panel.plot(x, central_band(values, 0.0)[0], color=BLUE, label="median")


def _ratio(output: str, column: str, units: Mapping[str, str]) -> str:
    """Return the label of a change of an output per unit of an input, with units if both are
    known.
    """
    both = units.get(output) and units.get(column)
    return f"{output} [{units[output]}/{units[column]}]" if both else output
