"""Inputs that act some rows after they were set: how long that takes, and which arrive when.

    u'_{t,j} = u_{t−d_j, j}

is what drives the step into row t, if input j is delayed by d_j rows. A model is given u', and
never knows of u; its users give u, at the rows where it was set, and never have to shift anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.table import Table
from gpssm.core.text import as_tuple, check_whole, count, is_real
from gpssm.data.series import Series, as_list

LONGEST = 30  # rows of a delay that are looked at
ORDERS = (8, 4, 2)  # most values of each output in the regressions that decide
WINDOW = 2  # most values of each input in them
WORTH = 10.0  # the difference in BIC that shows a delay beyond doubt

Rows = Mapping[str, int] | Sequence[int] | int


class Delays(NamedTuple):
    """The delay of each input in rows, and the BIC of each that was tried, the others at theirs.

    0 is an input that acts on the output of its own row, the least that a state-space model has.
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

    For each delay d, least squares of y_t on y_{t−1}, …, y_{t−n} and the inputs u_{t−d}, …,
    u_{t−d−m+1}, with the n up to 8 and m up to 2 that have the least BIC: the d with the least of
    all, the inputs one after the other, twice over, if that is better than none beyond doubt. It is
    an apparent delay: an output that answers slowly at first has one too, and a smooth input hardly
    tells.

    Parameters
    ----------
    series
        What `Series.of` takes, or a list of those.
    longest
        The longest delay that is tried, in rows.
    """
    experiments = as_list(series)
    check_whole("longest", longest, 0)
    names = experiments[0].inputs
    if not names:
        raise ValueError("the series has no controls, and nothing to be delayed")
    longest = min(longest, min(map(len, experiments)) // 4)
    regressions = _Regressions(experiments, longest)
    lags = [0] * len(names)
    tried = {}
    for j, name in (*enumerate(names), *enumerate(names)):
        choices = ([*lags[:j], lag, *lags[j + 1 :]] for lag in range(longest + 1))
        bic = np.array([regressions.bic(choice) for choice in choices])
        best = int(np.argmin(bic))
        # A true delay saves a coefficient, and log N, for each row of it at least.
        doubt = min(WORTH, 0.8 * best * math.log(regressions.rows))
        lags[j] = best if bic[0] - bic[best] > doubt else 0
        tried[name] = bic
    return Delays(dict(zip(names, lags, strict=True)), tried, experiments[0].dt)


def delayed(series: Any, rows: Rows) -> Any:
    """The series with delayed inputs; the first rows, whose inputs are unknown, are dropped.

    A model fitted to it is given delayed inputs ever after; `fit(series, delay=rows)` is not. A
    list of series gives a list.

    Parameters
    ----------
    series
        What `Series.of` takes, or a list of those.
    rows
        The delays by name of the input, or one for each, or one for all.
    """
    if isinstance(series, list | tuple):
        return [delayed(item, rows) for item in as_list(series)]
    (experiment,) = as_list(series)
    lags = find_lags(experiment, rows)
    longest = max(lags, default=0)
    unknown = np.full((longest, len(lags)), np.nan)
    return replace(experiment, u=arriving(experiment.u, lags, unknown))[longest:]


def find_lags(series: Any, delay: Rows | Literal["auto"]) -> tuple[int, ...]:
    """The rows d_j of each input as given or as `delays` finds them; empty if all are 0."""
    experiments = as_list(series)
    names = experiments[0].inputs
    if isinstance(delay, str):
        if delay != "auto":
            raise ValueError(
                f"delay is auto, a number of rows, or one for each control by name; got {delay!r}"
            )
        lags: list[Any] = list(delays(experiments).rows.values()) if names else []
    elif isinstance(delay, Mapping):
        if unknown := [name for name in delay if name not in names]:
            raise ValueError(
                f"there is no control {', '.join(map(repr, unknown))} to be delayed; there are: "
                f"{', '.join(names) or 'none'}"
            )
        lags = [delay.get(name, 0) for name in names]
    else:
        lags = list(as_tuple(delay))
        if lags[0:1] and lags[0] is delay:
            lags *= len(names)
    whole = all(is_real(lag) and lag >= 0 and lag % 1 == 0 for lag in lags)
    if len(lags) != len(names) or not whole:
        wanted = f"for each of {', '.join(names)}" if names else "but there are no controls"
        raise ValueError(f"a delay is a number of rows, 0 or more, {wanted}; got {delay!r}")
    longest, shortest = max(lags, default=0), min(map(len, experiments))
    if longest >= shortest:
        raise ValueError(f"a delay of {longest} rows leaves nothing of {shortest}")
    return tuple(int(lag) for lag in lags) if longest else ()


def name_controls(names: Sequence[str], lags: Sequence[int]) -> list[str]:
    """Inputs with their delays in words: pump (acts 3 rows later)."""
    late = dict(zip(names, lags, strict=False))
    return [
        f"{name} (acts {count(late[name], 'row')} later)" if late.get(name) else name
        for name in names
    ]


def arriving(u: Any, lags: Sequence[int], past: Any) -> Any:
    """The inputs u' (T, Du) that arrive at the rows of u, of the K = max d rows before, and of u.

    Unknown ones, NaN at the beginning of `past`, are taken to have been as the first that is known.
    In NumPy or JAX, as the arrays are; an input may be traced.
    """
    if not lags:
        return u
    xp = u.__array_namespace__()
    inputs = xp.concatenate([past, u])
    first = inputs[xp.argmin(xp.isnan(inputs[:, 0]))]
    inputs = xp.where(xp.isnan(inputs), first[None], inputs)
    return xp.stack([inputs[len(past) - lag :][: len(u), j] for j, lag in enumerate(lags)], axis=1)


class _Regressions:
    """Sums of products of all that regressions of each output are made of."""

    def __init__(self, experiments: Sequence[Series], longest: int) -> None:
        self.outputs = experiments[0].output_dim
        self.inputs = experiments[0].input_dim
        # Fewer of the past outputs where many are missing, so that more rows have all of them.
        self.order = ORDERS[-1]
        for order in ORDERS:
            rows = _columns(experiments, longest, order)
            if np.mean(~np.isnan(rows).any(axis=1)) > 0.5:
                self.order = order
                break
        table = _columns(experiments, longest, self.order)
        table = table[~np.isnan(table).any(axis=1)]
        if len(table) < 2:
            raise ValueError(
                "too few rows have all their outputs to find delays by: give them, delay={...}"
            )
        table = table - table.mean(0)
        spread = table.std(0)
        table /= np.where(spread > 0, spread, 1.0)
        self.rows = len(table)
        self.products = table.T @ table

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
                    terms = [*past[: order * self.outputs], *late]
                    error = max(self._residual(terms, output), 1e-12)
                    penalty = len(terms) * math.log(self.rows)
                    best = min(best, self.rows * math.log(error) + penalty)
            total += best
        return total

    def _residual(self, terms: list[int], output: int) -> float:
        """The mean squared error of the regression of an output on these columns."""
        gram = self.products[np.ix_(terms, terms)] + 1e-9 * self.rows * np.eye(len(terms))
        cross = self.products[terms, output]
        fitted = cross @ np.linalg.solve(gram, cross)
        return (self.products[output, output] - fitted) / self.rows


def _columns(experiments: Sequence[Series], longest: int, order: int) -> Float[np.ndarray, "N P"]:
    """A row for each y_t: it, the outputs of `order` rows before, and inputs of all delays."""
    rows = []
    for series in experiments:
        t = np.arange(max(longest + WINDOW, order), len(series))
        past = [series.y[t - lag] for lag in range(order + 1)]
        rows.append(np.hstack([*past, *(series.u[t - lag] for lag in range(longest + WINDOW))]))
    return np.concatenate(rows)
