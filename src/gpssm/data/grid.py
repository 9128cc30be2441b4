"""Rows at irregular times, put on a regular grid."""

import warnings
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_choice, count, is_real
from gpssm.data.clock import Clock
from gpssm.data.times import SECOND, Times

Controls = Literal["hold", "interpolate"]


def on_grid(
    values: Any,
    y: Float[np.ndarray, "N Dy"],
    u: Float[np.ndarray, "N Du"],
    step: Any = None,
    controls: Controls = "hold",
) -> tuple[Clock, Float[np.ndarray, "T Dy"], Float[np.ndarray, "T Du"]]:
    """Rows at any times, put on the grid from the first to the last: clock, outputs and inputs.

    Each row goes to the nearest point of the grid, and rows that share a point are averaged. Where
    no row is near, outputs are NaN, and inputs those of the last row before or on the line between
    their neighbours.

    Parameters
    ----------
    values
        The time of each row, in any order.
    y, u
        Outputs and inputs.
    step
        Step of the grid: a number, or text such as "10min" for dates; by default that which most
        rows are apart.
    controls
        The rule for inputs where rows are missing: "hold" or "interpolate".
    """
    import pandas

    check_choice("the rule for controls", controls, ("hold", "interpolate"))
    times = Times.of(values)
    if not len(times.ticks) == len(y) == len(u) or not len(y):
        raise ValueError(
            f"there are {len(times.ticks)} times for {len(y)} rows of outputs and {len(u)} of "
            "controls"
        )
    order = np.argsort(times.ticks, kind="stable")
    times = Times(times.index[order])
    ticks = times.ticks - times.ticks[0]
    step = _checked_step(times, ticks, step)
    places = np.round(ticks / float(step)).astype(int)
    means: Any = pandas.DataFrame(np.hstack([y, u])[order]).groupby(places).mean()
    if len(means) < len(places):
        repeated = int(np.argmin(np.diff(places))) + 1
        warnings.warn(
            f"{count(len(places) - len(means), 'row')} of {len(places)} fell on a point of the "
            f"grid that another one has, the first at {times.show(repeated)}: they were averaged. "
            "Where clocks were set back, give the time zone, zone='Europe/Berlin'",
            stacklevel=4,
        )
    grid = np.arange(places[-1] + 1)
    outputs, inputs = means.iloc[:, : y.shape[1]], means.iloc[:, y.shape[1] :]
    if controls == "hold":
        on_u = inputs.reindex(grid, method="ffill").to_numpy()
    else:
        columns = [np.interp(grid, means.index, inputs[name]) for name in inputs]
        on_u = np.reshape(columns, (u.shape[1], len(grid))).T
    return Clock.starting(times, step), outputs.reindex(grid).to_numpy(), on_u


def _checked_step(times: Times, ticks: np.ndarray, step: Any) -> float:
    """The step of the grid, by default that of sorted times; refused if rows would be too many."""
    import pandas

    if step is None:
        step = _typical_step(ticks, SECOND if times.dates else 1)
    elif times.dates:
        try:
            step = pandas.Timedelta(step if isinstance(step, str) else f"{step}s").value
        except ValueError as error:
            raise ValueError(
                f"regrid={step!r} is no distance of times, like '10min': {error}"
            ) from None
    if not is_real(step) or not 0 < step < 1e300:
        raise ValueError(f"regrid needs times that differ, and a step above 0; got {step!r}")
    # A step may be so small that its number is none.
    rows = ticks[-1] / max(float(step), 1e-290) + 1
    if not rows < 20 * len(ticks) + 0.5:
        raise ValueError(
            f"a grid with a step of {times.length(step)} from {times.show(0)} to {times.show(-1)} "
            f"has {rows:.12g} rows for {len(ticks)} that were given: name another step, or cut the "
            "data at the long gaps"
        )
    return step


def _typical_step(ticks: np.ndarray, unit: float) -> float:
    """The step of sorted times that jitter and have gaps, from 0 on; a round number if one fits.

    The slope of the times over rows counted by the median distance.
    """
    gaps = np.diff(ticks)
    if not (gaps > 0).any():
        return 0.0
    median = np.median(gaps[gaps > 0])
    rows = np.concatenate([[0], np.cumsum(np.round(gaps / median))])
    if (gaps[gaps > 0] == median).all() or not rows[-1]:
        return float(median)
    slope = np.polyfit(rows, ticks, 1)[0]
    for digits in (1, 2, 3):
        step = float(f"{slope / unit:.{digits}g}") * unit
        if abs(step - slope) * rows[-1] < 0.25 * slope:
            return step
    return float(slope)
