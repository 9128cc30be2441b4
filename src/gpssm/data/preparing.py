"""Before a fit: trends taken out, other sampling times, experiments put together.

Each function takes series and gives new ones; nothing is fitted to rows that were not given.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.core.runtime import check_memory
from gpssm.core.text import check_whole, is_real
from gpssm.data.series import Series, as_list


def detrend(series: Any, order: int = 1) -> Any:
    """Remove a least-squares polynomial of time from each output: order 0 the mean, 1 a straight line.

    Missing outputs stay missing; controls stay as they are. A forecast of what is left has no trend either.
    A list of series gives a list.
    """
    check_whole("order", order, 0)
    if isinstance(series, list | tuple):
        return [detrend(one, order) for one in as_list(series)]
    (one,) = as_list(series)
    if order >= len(one):
        raise ValueError(
            f"a polynomial of order {order} goes through all of {len(one)} rows: give a lower order"
        )
    powers = np.polynomial.legendre.legvander(np.linspace(-1, 1, len(one)), order)
    y = one.y.copy()
    for column in y.T:
        seen = ~np.isnan(column)
        if seen.sum() > order:
            column -= powers @ np.linalg.lstsq(powers[seen], column[seen], rcond=None)[0]
    return replace(one, y=y)


def resample(series: Any, factor: float) -> Any:
    """Resample to `factor` times as many rows: 0.25 for a quarter of them, 2 for twice as many.

    Signals go through a zero-phase anti-alias filter (`scipy.signal.resample_poly`, the mean of each taken out before
    and put back), so that nothing above half the new frequency folds back. `Series.decimated` takes every so many rows
    without a filter, which is right for outputs that hold no fast noise. Outputs may not be missing.
    """
    from scipy.signal import resample_poly

    if isinstance(series, list | tuple):
        return [resample(one, factor) for one in as_list(series)]
    (one,) = as_list(series)
    if not (is_real(factor) and 0 < factor <= 1e9):
        raise ValueError(
            f"factor must be above 0: the new number of rows for each old one; got {factor!r}"
        )
    if np.isnan(one.y).any():
        raise ValueError(
            "outputs are missing, and a filter needs all: fill them, or take rows with series.decimated(n)"
        )
    up, down = _ratio(float(factor))
    check_memory("the series", 8 * (one.y.size + one.u.size) * up // down)

    def filtered(values: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "N D"]:
        mean = values.mean(axis=0)
        return mean + resample_poly(values - mean, up, down, axis=0, padtype="line")

    y = filtered(one.y)
    u = filtered(one.u) if one.input_dim else np.zeros((len(y), 0))
    axis = one.axis
    if axis is not None:
        if axis.calendar:
            raise ValueError(
                f"rows follow the calendar ({axis.calendar}) and have no frequency to change"
            )
        step = axis.step * down / up
        axis = replace(axis, step=round(step) if axis.dates and step == round(step) else step)
    return replace(
        one,
        y=y,
        u=u,
        dt=None,
        clock=axis,
        window=one.window and max(int(one.window * up / down), 1),
    )


def merge(*series: Any) -> list[Series]:
    """Experiments as a list for `fit`, with the columns of the first, in its order.

    Each is a series, or a list of them, or of frames read by `Series.from_dataframe`. Units must agree.
    """
    return as_list([one for thing in series for one in as_list(thing)])


def _ratio(factor: float) -> tuple[int, int]:
    """The factor as a fraction of small whole numbers."""
    found = Fraction(factor).limit_denominator(1000)
    if not math.isclose(found, factor, rel_tol=1e-6):
        raise ValueError(
            f"factor must be a fraction of whole numbers up to 1000, such as 0.25 or 1.5; got {factor!r}"
        )
    return found.numerator, found.denominator
