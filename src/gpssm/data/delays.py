"""Inputs that act some rows after they were set: estimation and handling of delays.

    u'_{t,j} = u_{t−d_j, j}

drives the step to row t if input j is delayed by d_j rows. Models receive u'. Users always pass u,
at the rows where it was set, and never have to shift anything.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from gpssm.core.text import as_tuple, check_whole, count, is_real
from gpssm.data.series import Series, as_list

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 2  # most values of each input in a regression

Rows = Mapping[str, int] | Sequence[int] | int


def delays(series: Any, longest: int = 30) -> "pd.DataFrame":
    """Estimate the delay of each input from training rows.

        print(gpssm.delays(train))
        posterior = gpssm.fit(train, delay="auto")  # uses these estimates

    For each delay d, y_t is regressed on y_{t−1}, …, y_{t−n} and the inputs u_{t−d}, …, u_{t−d−m+1}
    by least squares, with the n ≤ 8 and m ≤ 2 of least BIC. The estimate is the d of least BIC if
    it is clearly better than no delay; inputs are treated one after the other, in two rounds. This
    is an apparent delay: an output that responds slowly at first has one too, and a smooth input
    provides little information.

    Parameters
    ----------
    series
        Data accepted by `Series.of`, or a list of these.
    longest
        The longest delay to try, in rows.

    Returns
    -------
    pandas.DataFrame
        For each input, `rows`, the delay (0 acts on the output of the same row); `time`, the delay
        in the unit of the sampling time; and `gain`, by how much it improves BIC over no delay.
    """
    import pandas

    experiments = as_list(series)
    check_whole("longest", longest, 0)
    names = experiments[0].inputs
    if not names:
        raise ValueError("the series has no inputs, so there are no delays to estimate")
    longest = min(longest, min(map(len, experiments)) // 4)
    regressions = _Regressions(experiments, longest)
    lags = [0] * len(names)
    gains = [0.0] * len(names)
    for j in (*range(len(names)), *range(len(names))):
        choices = ([*lags[:j], lag, *lags[j + 1 :]] for lag in range(longest + 1))
        bic = np.array([regressions.bic(choice) for choice in choices])
        best = int(np.argmin(bic))
        # A true delay saves a coefficient, and log N, for each row of it at least. A difference of
        # 10 in BIC shows it beyond doubt.
        doubt = min(10.0, 0.8 * best * math.log(regressions.rows))
        lags[j] = best if bic[0] - bic[best] > doubt else 0
        gains[j] = bic[0] - bic[lags[j]]
    times = np.multiply(lags, experiments[0].dt or np.nan)
    table = {"rows": lags, "time": times, "gain": gains}
    return pandas.DataFrame(table, index=pandas.Index(names, name="input"))


def find_lags(experiments: Sequence[Series], delay: Rows | Literal["auto"]) -> tuple[int, ...]:
    """Return the delay d_j of each input, given or estimated; empty if all are 0."""
    names = experiments[0].inputs
    if isinstance(delay, str) and delay == "auto":
        lags: list[Any] = delays(experiments).rows.tolist() if names else []
    elif isinstance(delay, Mapping):
        if unknown := [name for name in delay if name not in names]:
            raise ValueError(
                f"there is no input {', '.join(map(repr, unknown))} to delay; the inputs are: "
                f"{', '.join(names) or 'none'}"
            )
        lags = [delay.get(name, 0) for name in names]
    else:
        lags = [delay] * len(names) if is_real(delay) else list(as_tuple(delay))
    whole = all(is_real(lag) and lag >= 0 and lag % 1 == 0 for lag in lags)
    if len(lags) != len(names) or not whole:
        owners = f"for each of {', '.join(names)}" if names else "but there are no inputs"
        raise ValueError(
            f"a delay must be 'auto', a number of rows, 0 or more, {owners}, or a mapping from "
            f"inputs to rows; got {delay!r}"
        )
    longest = max(lags, default=0)
    shortest = min(map(len, experiments))
    if longest >= shortest:
        raise ValueError(f"a delay of {longest} rows is too long for series of {shortest}")
    return tuple(int(lag) for lag in lags) if longest else ()


def name_inputs(names: Sequence[str], lags: Sequence[int]) -> list[str]:
    """Return the names of inputs with their delays, such as: pump (acts 3 rows later)."""
    late = dict(zip(names, lags, strict=False))
    return [
        f"{name} (acts {count(late[name], 'row')} later)" if late.get(name) else name
        for name in names
    ]


def arriving(u: Any, lags: Sequence[int], past: Any) -> Any:
    """Return the delayed inputs u' (T, Du) at the rows of u; `past` has the K = max d previous
    rows.

    Unknown inputs, NaN at the beginning of `past`, are replaced by the first known value. Works for
    NumPy and JAX arrays; inputs may be traced.
    """
    if not lags:
        return u
    xp = u.__array_namespace__()
    inputs = xp.concatenate([past, u])
    first = inputs[xp.argmin(xp.isnan(inputs[:, 0]))]
    inputs = xp.where(xp.isnan(inputs), first[None], inputs)
    return xp.stack([inputs[len(past) - lag :][: len(u), j] for j, lag in enumerate(lags)], axis=1)


class _Regressions:
    """Sums of products for the regressions of each output."""

    def __init__(self, experiments: Sequence[Series], longest: int) -> None:
        self.outputs = experiments[0].output_dim
        self.inputs = experiments[0].input_dim
        # Use fewer past outputs if many are missing, so that more rows are complete.
        for order in (8, 4, 2):
            table = _columns(experiments, longest, order)
            complete = ~np.isnan(table).any(axis=1)
            if np.mean(complete) > 0.5:
                break
        self.order = order
        table = table[complete]
        if len(table) < 2:
            raise ValueError(
                "too few rows have all outputs to estimate delays: pass them, delay={...}"
            )
        table = table - table.mean(0)
        spread = table.std(0)
        table /= np.where(spread > 0, spread, 1.0)
        self.rows = len(table)
        self.products = table.T @ table

    def bic(self, lags: Sequence[int]) -> float:
        """Return the sum over outputs of the minimum of N log RSS / N + p log N."""
        past = range(self.outputs, (self.order + 1) * self.outputs)
        choices = []
        for window in range(1, WINDOW + 1):
            columns = [
                (lag + k) * self.inputs + j for j, lag in enumerate(lags) for k in range(window)
            ]
            late = [past.stop + column for column in columns]
            choices += [
                [*past[: order * self.outputs], *late] for order in range(1, self.order + 1)
            ]
        return sum(
            min(self._criterion(terms, output) for terms in choices)
            for output in range(self.outputs)
        )

    def _criterion(self, terms: list[int], output: int) -> float:
        """Return the BIC of the regression of an output on these columns."""
        gram = self.products[np.ix_(terms, terms)] + 1e-9 * self.rows * np.eye(len(terms))
        cross = self.products[terms, output]
        fitted = cross @ np.linalg.solve(gram, cross)
        error = max((self.products[output, output] - fitted) / self.rows, 1e-12)
        return (self.rows * math.log(error)) + len(terms) * math.log(self.rows)


def _columns(experiments: Sequence[Series], longest: int, order: int) -> Float[np.ndarray, "N P"]:
    """Return one row per y_t: y_t, the outputs of the `order` previous rows, and inputs at all
    delays."""
    rows = []
    for series in experiments:
        t = np.arange(max(longest + WINDOW, order), len(series))
        past = [series.y[t - lag] for lag in range(order + 1)]
        rows.append(np.hstack([*past, *(series.u[t - lag] for lag in range(longest + WINDOW))]))
    return np.concatenate(rows)
