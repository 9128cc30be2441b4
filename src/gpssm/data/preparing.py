"""Prepare data for a fit: remove trends and resample.

Each function returns new series and uses only the rows passed to it.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.core.runtime import check_memory
from gpssm.core.text import check_whole, is_real
from gpssm.data.series import as_list


def detrend(series: Any, order: int = 1) -> Any:
    """Remove a least-squares polynomial of time from each output.

    Missing outputs stay missing, and inputs do not change. Forecasts of the result do not contain
    the trend. A list of series gives a list.

    Parameters
    ----------
    series
        Data accepted by `Series.of`, or a list of these.
    order
        Order of the polynomial: 0 is the mean, 1 a straight line.
    """
    check_whole("order", order, 0)
    if isinstance(series, list | tuple):
        return [detrend(rows, order) for rows in as_list(series)]
    (rows,) = as_list(series)
    if order >= len(rows):
        raise ValueError(
            f"a polynomial of order {order} fits all of {len(rows)} rows exactly: use a lower order"
        )
    powers = np.polynomial.legendre.legvander(np.linspace(-1, 1, len(rows)), order)
    y = rows.y.copy()
    for column in y.T:
        observed = ~np.isnan(column)
        if observed.sum() > order:
            column -= powers @ np.linalg.lstsq(powers[observed], column[observed], rcond=None)[0]
    return replace(rows, y=y)


def resample(series: Any, factor: float) -> Any:
    """Resample to `factor` times as many rows.

    Signals pass a zero-phase anti-alias filter (`scipy.signal.resample_poly`, with the mean removed
    before and restored afterwards). `Series.decimated` selects every n-th row without a filter,
    which is suitable for outputs without fast noise. Outputs must not be missing. A list of series
    gives a list.

    Parameters
    ----------
    series
        Data accepted by `Series.of`, or a list of these.
    factor
        The number of new rows per old row: 0.25 for a quarter of the rows, 2 for twice as many.
    """
    from scipy.signal import resample_poly

    if isinstance(series, list | tuple):
        return [resample(rows, factor) for rows in as_list(series)]
    (rows,) = as_list(series)
    if not (is_real(factor) and 0 < factor <= 1e9):
        raise ValueError(
            f"factor, the number of new rows per old row, must be positive; got {factor!r}"
        )
    if np.isnan(rows.y).any():
        raise ValueError(
            "some outputs are missing, but the filter needs all: fill them, or select rows by "
            "series.decimated(n)"
        )
    ratio = Fraction(float(factor)).limit_denominator(1000)
    if not math.isclose(ratio, factor, rel_tol=1e-6):
        raise ValueError(
            "factor must be a ratio of whole numbers up to 1000, such as 0.25 or 1.5; got "
            f"{float(factor)!r}"
        )
    up = ratio.numerator
    down = ratio.denominator
    check_memory("the series", 8 * (rows.y.size + rows.u.size) * up // down)
    clock = rows.axis
    if clock is not None:
        if clock.calendar:
            raise ValueError(
                f"rows follow the calendar ({clock.calendar}), which cannot be resampled"
            )
        step = clock.step * down / up
        clock = replace(clock, step=round(step) if clock.dates else step)

    def filtered(values: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "N D"]:
        mean = values.mean(axis=0)
        return mean + resample_poly(values - mean, up, down, axis=0, padtype="line")

    y = filtered(rows.y)
    u = filtered(rows.u) if rows.input_dim else np.zeros((len(y), 0))
    window = rows.window and max(int(rows.window * up / down), 1)
    return replace(rows, y=y, u=u, dt=None, clock=clock, window=window)
