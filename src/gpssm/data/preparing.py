"""Before a fit: trends taken out, other sampling times, experiments put together, delays of controls found.

Each function takes series and gives new ones; nothing is fitted to rows that were not given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.runtime import check_memory
from gpssm.core.text import check_whole, figure_table, is_real
from gpssm.data.align import align_series
from gpssm.data.series import Series, as_list

LONGEST = 30  # rows of a delay that are looked at
LAGS = 2  # values of the output, and of each control, in the regression that decides
WORTH, CLOSE = 10.0, 6.0  # differences in BIC that show that a control counts at all, and that show nothing


def detrend(series: Any, order: int = 1) -> Any:
    """The series with each output's least-squares polynomial of time taken out: order 0 the mean, 1 a straight line.

    Missing outputs stay missing; controls stay as they are. A forecast of what is left has no trend either.
    A list of series gives a list.
    """
    check_whole("order", order, 0)
    if isinstance(series, list | tuple):
        return [detrend(one, order) for one in as_list(series)]
    (one,) = as_list(series)
    if order >= len(one):
        raise ValueError(f"a polynomial of order {order} goes through all of {len(one)} rows: give a lower order")
    powers = np.polynomial.legendre.legvander(np.linspace(-1, 1, len(one)), order)
    y = one.y.copy()
    for column in y.T:
        seen = ~np.isnan(column)
        if seen.sum() > order:
            column -= powers @ np.linalg.lstsq(powers[seen], column[seen], rcond=None)[0]
    return replace(one, y=y)


def resample(series: Any, factor: float) -> Any:
    """The series at `factor` times as many rows a time: 0.25 for a quarter of them, 2 for twice as many.

    Signals go through a zero-phase anti-alias filter (`scipy.signal.resample_poly`, the mean of each taken out before
    and put back), so that nothing above half the new frequency folds back. `Series.decimated` takes every so many rows
    without a filter, which is right for outputs that hold no fast noise. Outputs may not be missing.
    """
    from scipy.signal import resample_poly

    if isinstance(series, list | tuple):
        return [resample(one, factor) for one in as_list(series)]
    (one,) = as_list(series)
    if not (is_real(factor) and 0 < factor <= 1e9):
        raise ValueError(f"factor must be above 0: the new number of rows for each old one; got {factor!r}")
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
            raise ValueError(f"rows follow the calendar ({axis.calendar}) and have no frequency to change")
        step = axis.step * down / up
        axis = replace(axis, step=round(step) if axis.dates and step == round(step) else step)
    return replace(one, y=y, u=u, dt=None, clock=axis, window=one.window and max(int(one.window * up / down), 1))


def merge(*series: Any) -> list[Series]:
    """Experiments as the list that `fit` takes, all with the columns of the first, in its order.

    Each is a series, or a list of them, or of frames read by `Series.from_dataframe`. Units must agree.
    """
    several = [one for thing in series for one in as_list(thing)]
    if not several:
        raise ValueError("nothing to merge: give at least one series")
    first = several[0]
    for number, one in enumerate(several):
        for name, unit in one.units.items():
            if first.units.get(name, unit) != unit:
                raise ValueError(f"{name!r} is in {first.units[name]} in series 0 and in {unit} in series {number}")
    return [align_series(one, first) for one in several]


class Delays(NamedTuple):
    """The delay of each control in rows, by name, and the BIC of each delay that was tried, the others at theirs.

    0 is a control that acts on the output of its own row, the least that a state-space model has.
    """

    rows: dict[str, int]
    bic: dict[str, Float[np.ndarray, " N"]]
    dt: float | None

    def __str__(self) -> str:
        lines = []
        for name, rows in self.rows.items():
            time = None if self.dt is None else rows * self.dt
            lines.append((name, str(rows), time, float(self.bic[name][0] - self.bic[name][rows])))
        return figure_table(["control", "delay in rows", "in time", "gain in BIC over none"], lines)


def delays(series: Any, longest: int = LONGEST) -> Delays:
    """How many rows later each control acts, estimated from training rows.

        found = gpssm.delays(train)
        posterior = gpssm.fit(delayed(train, found.rows))

    For each delay d, least squares of y_t on y_{t−1}, y_{t−2}, and the controls u_{t−d}, u_{t−d−1}: the d with the
    least BIC, the controls one after the other, twice over. One whose delay makes no difference has none.
    """
    several = as_list(series)
    check_whole("longest", longest, 0)
    names = several[0].inputs
    if not names:
        raise ValueError("the series has no controls, and nothing to be delayed")
    longest = min(longest, min(len(one) for one in several) // 3)
    rows, found = dict.fromkeys(names, 0), {}
    for name in (*names, *names):
        bic = np.array([_bic(several, rows | {name: delay}, longest) for delay in range(longest + 1)])
        best = int(np.argmin(bic))
        # A window of two values holds the first that counts at either end: the later one, if it does as well.
        best += best < longest and bic[best + 1] - bic[best] < CLOSE
        found[name], rows[name] = bic, int(best) if np.ptp(bic) > WORTH else 0
    return Delays(rows, found, several[0].dt)


def delayed(series: Any, rows: Mapping[str, int] | Sequence[int] | int) -> Any:
    """The series with controls that come so many rows later: u_t becomes u_{t−d}.

    The first rows, for which no control is known, are left out, at most as many as the longest delay. A list of series
    gives a list.

    :param rows: by name of the control, or one for each, or one for all.
    """
    if isinstance(series, list | tuple):
        return [delayed(one, rows) for one in as_list(series)]
    (one,) = as_list(series)
    lags = _lags(rows, one.inputs)
    longest = max(lags, default=0)
    if longest >= len(one):
        raise ValueError(f"a delay of {longest} rows leaves nothing of {len(one)}")
    u = np.column_stack([one.u[longest - lag : len(one) - lag, j] for j, lag in enumerate(lags)]) if lags else one.u
    return replace(one[longest:], u=u)


def _lags(rows: Mapping[str, int] | Sequence[int] | int, names: tuple[str, ...]) -> list[int]:
    """The delay of each control as a list."""
    if isinstance(rows, Mapping):
        if unknown := [name for name in rows if name not in names]:
            raise ValueError(f"there is no control {', '.join(map(repr, unknown))}; there are {', '.join(names)}")
        lags: list[Any] = [rows.get(name, 0) for name in names]
    else:
        given: Any = rows
        several = isinstance(given, Sequence | np.ndarray) and getattr(given, "ndim", 1) == 1
        lags = list(given) if several else [given] * len(names)
    if len(lags) != len(names) or not all(is_real(lag) and lag >= 0 and lag % 1 == 0 for lag in lags):
        raise ValueError(f"a delay is a number of rows, 0 or more, for each of {', '.join(names)}; got {rows!r}")
    return [int(lag) for lag in lags]


def _bic(several: Sequence[Series], rows: Mapping[str, int], longest: int) -> float:
    """BIC of the regression of all outputs, over the rows that every delay leaves: N log RSS / N + p log N."""
    total = 0.0
    for output in range(several[0].output_dim):
        features, targets = [], []
        for one in several:
            t = np.arange(longest + LAGS, len(one))
            past = [one.y[t - lag] for lag in range(1, LAGS + 1)]
            controls = [
                one.u[t - rows[name] - lag, j][:, None] for j, name in enumerate(one.inputs) for lag in range(LAGS)
            ]
            features.append(np.hstack([*past, *controls, np.ones((len(t), 1))]))
            targets.append(one.y[t, output])
        x, y = np.concatenate(features), np.concatenate(targets)
        seen = ~np.isnan(x).any(1) & ~np.isnan(y)
        x, y = x[seen], y[seen]
        if len(y) <= x.shape[1]:
            raise ValueError(
                f"{len(y)} rows are complete, fewer than a regression with delays of up to {longest} rows needs: give "
                "more rows, or a smaller `longest`"
            )
        left = np.sum((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2)
        total += len(y) * math.log(max(left, 1e-300) / len(y)) + x.shape[1] * math.log(len(y))
    return total


def _ratio(factor: float) -> tuple[int, int]:
    """The factor as a fraction of small whole numbers."""
    found = Fraction(factor).limit_denominator(1000)
    if not math.isclose(found, factor, rel_tol=1e-6):
        raise ValueError(f"factor must be a fraction of whole numbers up to 1000, such as 0.25 or 1.5; got {factor!r}")
    return found.numerator, found.denominator
