"""Controls that act some rows after they were set: how long that takes, and which of them arrive when.

    u'_{t,j} = u_{t−d_j, j}

is what drives the step into row t, if control j is delayed by d_j rows. A model is given u', and never knows of u; its
users give u, at the rows where it was set, and never have to shift anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.text import count, figure_table, is_whole
from gpssm.data.series import Series, as_list

LONGEST = 30  # rows of a delay that are looked at
LAGS = 2  # values of the output, and of each control, in the regression that decides
WORTH, CLOSE = 10.0, 6.0  # differences in BIC that show a delay beyond doubt, and that show nothing

Rows = Mapping[str, int] | Sequence[int] | int


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

        print(gpssm.delays(train))
        posterior = gpssm.fit(train, delay="auto")  # with what it finds

    For each delay d, least squares of y_t on y_{t−1}, y_{t−2}, and the controls u_{t−d}, u_{t−d−1}: the d with the
    least BIC, the controls one after the other, twice over, if that is better than none beyond doubt. It is an apparent
    delay: an output that answers slowly at first, as after many lags, has one too.
    """
    several = as_list(series)
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
        found[name], rows[name] = bic, int(best) if bic[0] - bic[best] > WORTH else 0
    return Delays(rows, found, several[0].dt)


def delayed(series: Any, rows: Rows) -> Any:
    """The series with controls as they arrive, u'; the first rows, at which unknown ones do, are left out.

    A model fitted to it is given delayed controls ever after; `fit(series, delay=rows)` is not. A list of series gives
    a list.

    :param rows: by name of the control, or one for each, or one for all.
    """
    if isinstance(series, list | tuple):
        return [delayed(one, rows) for one in as_list(series)]
    (one,) = as_list(series)
    lags = find_lags(one, rows)
    return as_arriving(one, lags, unknown_past(lags))[max(lags, default=0) :]


def find_lags(series: Any, delay: Rows | Literal["auto"]) -> tuple[int, ...]:
    """The rows d_j of each control as a user gave them, or as `delays` finds them; none where nothing is delayed."""
    several = as_list(series)
    names = several[0].inputs
    if isinstance(delay, str):
        if delay != "auto":
            raise ValueError(f"delay is auto, a number of rows, or one for each control by name; got {delay!r}")
        lags: list[Any] = list(delays(several).rows.values()) if names else []
    elif isinstance(delay, Mapping):
        if unknown := [name for name in delay if name not in names]:
            known = ", ".join(names) or "none"
            raise ValueError(f"there is no control {', '.join(map(repr, unknown))} to be delayed; there are: {known}")
        lags = [delay.get(name, 0) for name in names]
    else:
        lags = [delay] * len(names) if is_whole(delay) else list(delay) if isinstance(delay, Sequence) else [None]
    if len(lags) != len(names) or not all(is_whole(lag) and lag >= 0 for lag in lags):
        wanted = f"for each of {', '.join(names)}" if names else "but there are no controls"
        raise ValueError(f"a delay is a number of rows, 0 or more, {wanted}; got {delay!r}")
    longest, shortest = max(lags, default=0), min(len(one) for one in several)
    if longest >= shortest:
        raise ValueError(f"a delay of {longest} rows leaves nothing of {shortest}")
    return tuple(int(lag) for lag in lags) if longest else ()


def name_controls(names: Sequence[str], lags: Sequence[int]) -> list[str]:
    """Controls with their delays in words: pump (acts 3 rows later)."""
    late = dict(zip(names, lags, strict=False))
    return [f"{name} (acts {count(late[name], 'row')} later)" if late.get(name) else name for name in names]


def unknown_past(lags: Sequence[int]) -> Float[np.ndarray, "K Du"]:
    """What is known of controls before the first row of an experiment: nothing, which is NaN."""
    return np.full((max(lags, default=0), len(lags)), np.nan)


def arriving(u: Any, lags: Sequence[int], past: Any) -> Any:
    """The controls u' (T, Du) that arrive at the rows of u, of the K = max d controls of the rows before, and of u.

    Those that nobody knows, NaN at the beginning of `past`, are taken to have been as the first that is known. In NumPy
    or JAX, as the arrays are; a control may be traced.
    """
    if not lags:
        return u
    xp = u.__array_namespace__()
    known = xp.concatenate([past, u])
    first = known[xp.argmin(xp.isnan(known[:, 0]))]
    known = xp.where(xp.isnan(known), first[None], known)
    return xp.stack([known[len(past) - lag :][: len(u), j] for j, lag in enumerate(lags)], axis=1)


def as_arriving(series: Series, lags: Sequence[int], past: Float[np.ndarray, "K Du"]) -> Series:
    """The rows as a model sees them: controls as they arrive, outputs missing where unknown ones have acted on them."""
    if not lags:
        return series
    y = series.y.copy()
    y[: np.isnan(past[:, 0]).sum()] = np.nan
    return replace(series, y=y, u=arriving(series.u, lags, past))


def as_trained(several: Sequence[Series], lags: Sequence[int]) -> tuple[list[Series], list[Series]]:
    """Training series as they were given, but for outputs that unknown controls acted on, and as a model sees them."""
    seen = [as_arriving(one, lags, unknown_past(lags)) for one in several]
    return [replace(one, y=arrived.y) for one, arrived in zip(several, seen, strict=True)], seen


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
        left = np.sum((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2)
        total += len(y) * math.log(max(left, 1e-300) / len(y)) + x.shape[1] * math.log(len(y))
    return total
