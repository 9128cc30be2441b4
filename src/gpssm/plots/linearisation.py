"""The model around an operating point: poles, responses to controls, and where it settles."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from gpssm.core.text import as_share, check_kind
from gpssm.plots.style import (
    BLACK,
    BLUE,
    FULL,
    GREY,
    HALF,
    LINES,
    VERMILION,
    in_house_style,
    legend,
    panels,
    shade,
    with_unit,
)
from gpssm.posterior.linearisation import (
    LEVEL,
    Bode,
    Linearisation,
    Response,
    StaticGain,
    central_band,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@in_house_style()
def plot_response(response: Response, level: float = LEVEL) -> "Figure":
    """Step or impulse responses: a row an output, a column an input; median and central interval over draws."""
    check_kind("response", response, Response)
    level = as_share(level)
    rows, columns = len(response.outputs), len(response.inputs)
    figure, axes = panels(
        rows, columns, width=HALF if columns == 1 else FULL, height=1.8, sharex=True
    )
    for (j, i), panel in np.ndenumerate(axes):
        panel.axhline(0, color=GREY, linewidth=0.7)
        _draw_band(panel, response.times, response.values[:, :, j, i], level)
        panel.set_title(f"{response.kind} to {response.inputs[i]}")
        panel.set_ylabel(_ratio(response.outputs[j], response.inputs[i], response.units))
    for panel in axes[-1]:
        panel.set_xlabel(
            "steps" if response.dt is None else with_unit("time", {"time": response.time_unit})
        )
    legend(figure)
    return figure


@in_house_style()
def plot_bode(bode: Bode, level: float = LEVEL) -> "Figure":
    """Magnitude and phase over frequency, a column an input, two rows an output."""
    check_kind("bode", bode, Bode)
    level = as_share(level)
    rows, columns = len(bode.outputs), len(bode.inputs)
    figure, axes = panels(
        2 * rows, columns, width=HALF if columns == 1 else FULL, height=1.5, sharex=True
    )
    for (row, i), panel in np.ndenumerate(axes):
        j, below = divmod(row, 2)
        _draw_band(
            panel, bode.frequencies, (bode.phase if below else bode.magnitude)[:, :, j, i], level
        )
        panel.set_xscale("log")
        panel.set_ylabel("phase [°]" if below else "magnitude [dB]")
        panel.set_title(
            ""
            if below
            else f"{bode.inputs[i]} to {_ratio(bode.outputs[j], bode.inputs[i], bode.units)}"
        )
    per = "step" if bode.dt is None else "unit of time"
    for panel in axes[-1]:
        panel.set_xlabel(
            "frequency [Hz]" if bode.time_unit == "s" else f"cycles per {bode.time_unit or per}"
        )
    legend(figure)
    return figure


@in_house_style()
def plot_poles(linear: Linearisation, level: float = LEVEL) -> "Figure":
    """The poles of all draws, one colour and marker for the largest, the next and so on, in the unit circle."""
    check_kind("linear", linear, Linearisation)
    level = as_share(level)
    figure, axes = panels(1, width=HALF, height=HALF)
    panel, poles = axes[0, 0], linear.poles
    angle = np.linspace(0, 2 * np.pi, 400)
    panel.plot(np.cos(angle), np.sin(angle), color=BLACK, linewidth=0.8)
    for k, column in enumerate(poles.T):
        colour = LINES[k % len(LINES)]["color"]
        low, high = np.quantile(np.abs(column), ((1 - level) / 2, (1 + level) / 2))
        label = f"|p| {low:.3f} to {high:.3f}"
        panel.plot(column.real, column.imag, "x", color=colour, alpha=0.6, label=label)
    reach = 1.1 * max(1.0, float(np.abs(poles).max()))
    panel.set(
        xlim=(-reach, reach),
        ylim=(-reach, reach),
        aspect="equal",
        xlabel="real part",
        ylabel="imaginary part",
    )
    legend(figure)
    return figure


@in_house_style()
def plot_static_gain(curve: StaticGain, level: float = LEVEL) -> "Figure":
    """Where outputs settle, and the slope of that, over the control; dots where half of the draws would not stay."""
    check_kind("curve", curve, StaticGain)
    level = as_share(level)
    number = len(curve.outputs)
    figure, axes = panels(2, number, width=HALF if number == 1 else FULL, height=1.7, sharex=True)
    settled, gain = curve.known(curve.settled), curve.known(curve.gain)
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


def _ratio(output: str, control: str, units: Mapping[str, str]) -> str:
    """A change of an output for a unit of a control, with its unit where both have theirs: level [m/V]."""
    both = units.get(output) and units.get(control)
    return f"{output} [{units[output]}/{units[control]}]" if both else output
