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

from gpssm.core.table import Table
from gpssm.core.text import check_whole, count, is_real
from gpssm.data.series import Series, as_list

LONGEST = 30  # rows of a delay that are looked at
ORDERS, WINDOW = (
    (8, 4, 2),
    2,
)  # values of the outputs, and of each control, in the regressions that decide, at most
WORTH = 10.0  # the difference in BIC that shows a delay beyond doubt

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
        return str(Table(["control", "delay in rows", "in time", "gain in BIC over none"], lines))


def delays(series: Any, longest: int = LONGEST) -> Delays:
    """Estimate after how many rows each input acts, from training rows.

        print(gpssm.delays(train))
        posterior = gpssm.fit(train, delay="auto")  # with what it finds

    For each delay d, least squares of y_t on y_{t−1}, …, y_{t−n} and the controls u_{t−d}, …, u_{t−d−m+1}, with the
    n up to 8 and m up to 2 that have the least BIC: the d with the least of all, the controls one after the other,
    twice over, if that is better than none beyond doubt. It is an apparent delay: an output that answers slowly at
    first has one too, and a smooth control hardly tells.
    """
    several = as_list(series)
    check_whole("longest", longest, 0)
    names = several[0].inputs
    if not names:
        raise ValueError("the series has no controls, and nothing to be delayed")
    longest = min(longest, min(len(one) for one in several) // 4)
    regressions = _Regressions(several, longest)
    lags, found = [0] * len(names), {}
    for j, name in (*enumerate(names), *enumerate(names)):
        bic = np.array(
            [regressions.bic([*lags[:j], lag, *lags[j + 1 :]]) for lag in range(longest + 1)]
        )
        best = int(np.argmin(bic))
        # A true delay saves a coefficient, and log N, for each row of it at least.
        doubt = min(WORTH, 0.8 * best * math.log(regressions.rows))
        found[name], lags[j] = bic, best if bic[0] - bic[best] > doubt else 0
    return Delays(dict(zip(names, lags, strict=True)), found, several[0].dt)


def delayed(series: Any, rows: Rows) -> Any:
    """The series with delayed inputs; the first rows, whose inputs are unknown, are dropped.

    A model fitted to it is given delayed controls ever after; `fit(series, delay=rows)` is not. A list of series gives
    a list.

    :param rows: by name of the control, or one for each, or one for all.
    """
    if isinstance(series, list | tuple):
        return [delayed(one, rows) for one in as_list(series)]
    (one,) = as_list(series)
    lags = find_lags(one, rows)
    longest = max(lags, default=0)
    unknown = np.full((longest, len(lags)), np.nan)
    return replace(one, u=arriving(one.u, lags, unknown))[longest:]


def find_lags(series: Any, delay: Rows | Literal["auto"]) -> tuple[int, ...]:
    """The rows d_j of each control as a user gave them, or as `delays` finds them; none where nothing is delayed."""
    several = as_list(series)
    names = several[0].inputs
    if isinstance(delay, str):
        if delay != "auto":
            raise ValueError(
                f"delay is auto, a number of rows, or one for each control by name; got {delay!r}"
            )
        lags: list[Any] = list(delays(several).rows.values()) if names else []
    elif isinstance(delay, Mapping):
        if unknown := [name for name in delay if name not in names]:
            known = ", ".join(names) or "none"
            raise ValueError(
                f"there is no control {', '.join(map(repr, unknown))} to be delayed; there are: {known}"
            )
        lags = [delay.get(name, 0) for name in names]
    else:
        each = isinstance(delay, Sequence | np.ndarray) and getattr(delay, "ndim", 1) == 1
        lags = list(delay) if each else [delay] * len(names)  # type: ignore[call-overload]
    if len(lags) != len(names) or not all(
        is_real(lag) and lag >= 0 and lag % 1 == 0 for lag in lags
    ):
        wanted = f"for each of {', '.join(names)}" if names else "but there are no controls"
        raise ValueError(f"a delay is a number of rows, 0 or more, {wanted}; got {delay!r}")
    longest, shortest = max(lags, default=0), min(len(one) for one in several)
    if longest >= shortest:
        raise ValueError(f"a delay of {longest} rows leaves nothing of {shortest}")
    return tuple(int(lag) for lag in lags) if longest else ()


def name_controls(names: Sequence[str], lags: Sequence[int]) -> list[str]:
    """Controls with their delays in words: pump (acts 3 rows later)."""
    late = dict(zip(names, lags, strict=False))
    return [
        f"{name} (acts {count(late[name], 'row')} later)" if late.get(name) else name
        for name in names
    ]


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


class _Regressions:
    """Sums of products of all that regressions of each output are made of: every one is a small system of equations."""

    def __init__(self, several: Sequence[Series], longest: int) -> None:
        self.outputs, self.inputs = several[0].output_dim, several[0].input_dim
        found = {order: _columns(several, longest, order) for order in ORDERS}
        # Fewer of the past outputs where many are missing, so that more rows have all of them.
        full = {order: int((~np.isnan(table)).all(1).sum()) for order, table in found.items()}
        self.order = next(
            (order for order in ORDERS if full[order] > 0.5 * len(found[order])), ORDERS[-1]
        )
        table = found[self.order][~np.isnan(found[self.order]).any(1)]
        if len(table) < 2:
            raise ValueError(
                "too few rows have all their outputs to find delays by: give them, delay={...}"
            )
        table = table - table.mean(0)
        spread = table.std(0)
        table /= np.where(spread > 0, spread, 1.0)
        self.rows, self.products = len(table), table.T @ table

    def bic(self, lags: Sequence[int]) -> float:
        """The sum over outputs of the least N log RSS / N + p log N."""
        past = self.outputs + np.arange(self.order * self.outputs)
        first = (self.order + 1) * self.outputs
        total = 0.0
        for output in range(self.outputs):
            best = math.inf
            for window in range(1, WINDOW + 1):
                late = [
                    first + (lag + k) * self.inputs + j
                    for j, lag in enumerate(lags)
                    for k in range(window)
                ]
                for order in range(1, self.order + 1):
                    chosen = [*past[: order * self.outputs], *late]
                    own, cross = (
                        self.products[np.ix_(chosen, chosen)],
                        self.products[chosen, output],
                    )
                    fitted = cross @ np.linalg.solve(
                        own + 1e-9 * self.rows * np.eye(len(chosen)), cross
                    )
                    left = (
                        max(self.products[output, output] - fitted, 1e-12 * self.rows) / self.rows
                    )
                    best = min(best, self.rows * math.log(left) + len(chosen) * math.log(self.rows))
            total += best
        return total


def _columns(several: Sequence[Series], longest: int, order: int) -> Float[np.ndarray, "N P"]:
    """A row for each y_t: it, the outputs of `order` rows before, and the controls of all rows a delay may reach."""
    rows = []
    for one in several:
        t = np.arange(max(longest + WINDOW, order), len(one))
        past = [one.y[t - lag] for lag in range(order + 1)]
        rows.append(np.hstack([*past, *(one.u[t - lag] for lag in range(longest + WINDOW))]))
    return np.concatenate(rows)
