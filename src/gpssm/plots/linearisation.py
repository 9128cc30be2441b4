"""The model around an operating point: poles, responses to controls, and where it settles."""

from typing import TYPE_CHECKING

import numpy as np

from gpssm.core.text import as_share, check_kind
from gpssm.plots.style import BLACK, BLUE, FULL, GREY, HALF, LINES, VERMILION, in_house_style, legend, panels, shade
from gpssm.posterior.linearisation import LEVEL, Bode, Linearisation, Response, StaticGain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@in_house_style()
def plot_response(response: Response, level: float = LEVEL) -> "Figure":
    """Step or impulse responses: a row an output, a column an input; median and central interval over draws."""
    check_kind("response", response, Response)
    level = as_share(level)
    rows, columns = len(response.outputs), len(response.inputs)
    figure, axes = panels(rows, columns, width=HALF if columns == 1 else FULL, height=1.8, sharex=True)
    low, high = response.interval(level)
    middle = np.median(response.values, axis=0)
    for (j, i), panel in np.ndenumerate(axes):
        panel.axhline(0, color=GREY, linewidth=0.7)
        shade(panel, response.times, low[:, j, i], high[:, j, i], label=f"{100 * level:g} % of the draws")
        panel.plot(response.times, middle[:, j, i], color=BLUE, label="median")
        panel.set_title(f"{response.kind} to {response.inputs[i]}")
        panel.set_ylabel(response.outputs[j])
    for panel in axes[-1]:
        panel.set_xlabel("steps" if response.dt is None else "time")
    legend(figure)
    return figure


@in_house_style()
def plot_bode(bode: Bode, level: float = LEVEL) -> "Figure":
    """Magnitude and phase over frequency, a column an input, two rows an output."""
    check_kind("bode", bode, Bode)
    level = as_share(level)
    rows, columns = len(bode.outputs), len(bode.inputs)
    figure, axes = panels(2 * rows, columns, width=HALF if columns == 1 else FULL, height=1.5, sharex=True)
    for half, (values, unit) in enumerate(((bode.magnitude, "dB"), (bode.phase, "degrees"))):
        low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2), axis=0)
        for j in range(rows):
            for i in range(columns):
                panel = axes[2 * j + half, i]
                label = f"{100 * level:g} % of the draws"
                shade(panel, bode.frequencies, low[:, j, i], high[:, j, i], label=label)
                panel.plot(bode.frequencies, np.median(values, axis=0)[:, j, i], color=BLUE, label="median")
                panel.set_xscale("log")
                panel.set_ylabel(f"{bode.outputs[j]} ({unit})")
                if not half:
                    panel.set_title(f"from {bode.inputs[i]}")
    for panel in axes[-1]:
        panel.set_xlabel("cycles per step" if bode.dt is None else "cycles per unit of time")
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
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="real part", ylabel="imaginary part")
    legend(figure)
    return figure


@in_house_style()
def plot_static_gain(curve: StaticGain, level: float = LEVEL) -> "Figure":
    """Where outputs settle, and the slope of that, over the control; dots where half of the draws would not stay."""
    check_kind("curve", curve, StaticGain)
    level = as_share(level)
    number = len(curve.outputs)
    figure, axes = panels(2, number, width=HALF if number == 1 else FULL, height=1.7, sharex=True)
    low, high = curve.interval(level)
    unstable = curve.stable.mean(0) < 0.5
    for j, output in enumerate(curve.outputs):
        top, bottom = axes[:, j]
        shade(top, curve.values, low[:, j], high[:, j], label=f"{100 * level:g} % of the draws")
        top.plot(curve.values, curve.median[:, j], color=BLUE, label="median")
        if unstable.any():
            top.plot(curve.values[unstable], curve.median[unstable, j], ".", color=VERMILION, label="unstable")
        top.set_ylabel(output)
        top.set_title(f"{output} settles at")
        known = np.where((curve.found >= 0.5)[:, None], curve.gain[..., j].T, 0.0)
        slopes = np.nanquantile(known, ((1 - level) / 2, 0.5, (1 + level) / 2), axis=1)
        slopes[:, curve.found < 0.5] = np.nan
        shade(bottom, curve.values, slopes[0], slopes[2])
        bottom.plot(curve.values, slopes[1], color=BLUE)
        bottom.set_ylabel(f"per unit of {curve.input}")
        bottom.set_title("static gain")
        bottom.set_xlabel(curve.input)
    legend(figure)
    return figure
