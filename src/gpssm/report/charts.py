"""The data of the page's charts as JSON values, which `script.js` reads.

A group is {"id", "x", "methods", "levels", "keys", "panels"}: methods and levels can be switched
for all panels of a group; keys name the other lines. A panel shows one signal: {"title", "lines",
"bands"}, with "split" where a forecast starts, "untrusted" spans of its axis, and "low" for inputs.
Lines and bands start at `x0` with steps of `dx`; missing values are null. The first method is the
fit, with the key MODEL.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.data.clock import Clock
from gpssm.data.series import Series
from gpssm.evaluation.baselines import RollingComparison, label
from gpssm.plots.style import untrusted_spans, with_unit
from gpssm.posterior.forecast import Forecast

MODEL = "model"  # the key of the fit
LEVELS = (0.5, 0.9)
FIT_ROWS = 1500  # number of last rows of the fit that are drawn

Group = dict[str, Any]
Values = Float[np.ndarray, " n"]


class Axis(NamedTuple):
    """The axis of rows: by their times if these are numbers, otherwise by row number."""

    origin: float = 0
    unit: float = 1

    @classmethod
    def of(cls, clock: Clock | None) -> "Axis":
        """Return the axis of a clock; dates are labels of row numbers."""
        return cls() if clock is None or clock.dates else cls(clock.start, clock.step)

    def place(self, row: float) -> float:
        """Return the position of a row."""
        return self.origin + row * self.unit

    def line(self, key: str, name: str, values: Values, row: int, kind: str = "line") -> Group:
        """Return a line that starts at a row."""
        return self._from(key, row) | {"label": name, "values": numbers(values), "kind": kind}

    def band(self, key: str, level: float, low: Values, high: Values, row: int) -> Group:
        """Return a band of this level that starts at a row."""
        ends = {"low": numbers(low), "high": numbers(high)}
        return self._from(key, row) | {"level": round(100 * level)} | ends

    def _from(self, key: str, row: int) -> Group:
        return {"key": key, "x0": self.place(row), "dx": self.unit}


def numbers(values: Values) -> list[float | None]:
    """Return values with five digits, or more if they hardly differ, and None for missing
    values.
    """
    finite = values[np.isfinite(values)]
    span, size = (np.ptp(finite), np.abs(finite).max()) if finite.size else (0.0, 0.0)
    digits = min(5 + max(math.floor(math.log10(size / span)), 0), 15) if span > 0 else 5
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def keys_of(methods: Iterable[str]) -> dict[str, str]:
    """Return the key of each method on the page, with its displayed name."""
    _, *others = methods
    return {MODEL: "This model"} | {name: label(name) for name in others}


def forecast_group(
    forecasts: Mapping[str, Forecast], history: Series, actual: Series | None, shown: set[str]
) -> Group:
    """Return intervals of all methods, with previous and actual outputs, and the inputs.

    Keys in `shown` are initially visible.
    """
    names = keys_of(forecasts)
    first = next(iter(forecasts.values()))
    start = first.start
    end = start + first.horizon
    axis = Axis.of(history.axis)
    before = history[-2 * first.horizon :]
    begin = start - len(before)
    marks = {
        "split": axis.place(start - 0.5),
        "untrusted": [[axis.place(row - 0.5) for row in span] for span in untrusted_spans(first)],
    }
    panels = []
    for j, output in enumerate(first.outputs):
        lines = []
        bands = []
        for (key, name), forecast in zip(names.items(), forecasts.values(), strict=True):
            lines.append(axis.line(key, f"{name}, median", forecast.median[:, j], start))
            for level in LEVELS:
                low, high = (limit[:, j] for limit in forecast.interval(level))
                bands.append(axis.band(key, level, low, high, start))
        lines.append(axis.line("history", "History", before.y[:, j], begin))
        if actual is not None:
            lines.append(axis.line("actual", "Actual", actual.y[: first.horizon, j], start))
        panels.append(_panel(output, history, lines, bands) | marks)
    for j, name in enumerate(first.inputs):
        u = np.concatenate([before.u, first.u])[:, j]
        line = axis.line("input", "Input, held between rows", u, begin, "steps")
        panels.append(_panel(name, history, [line]) | marks | {"low": True})
    keys = {"history": "History"} | ({} if actual is None else {"actual": "Actual"})
    keys |= {"input": "Input"} if first.inputs else {}
    keys |= {"untrusted": "Untrusted"} if marks["untrusted"] else {}
    return _group("forecast", names, shown, panels) | {"keys": keys} | _x(history.axis, begin, end)


def fit_group(smoothed: Forecast, observed: Forecast, series: Series, name: str = "fit") -> Group:
    """Return the smoothed training outputs, with intervals for new observations."""
    axis = Axis.of(series.axis)
    first = max(len(series) - FIT_ROWS, 0)
    panels = []
    for j, output in enumerate(series.outputs):
        low, high = (limit[first:, j] for limit in observed.interval(0.9))
        lines = [
            axis.line(MODEL, "Model, without noise", smoothed.median[first:, j], first),
            axis.line("actual", "Data", series.y[first:, j], first, "dots"),
        ]
        panels.append(_panel(output, series, lines, [axis.band(MODEL, 0.9, low, high, first)]))
    keys = {MODEL: "Model, with 90 % interval", "actual": "Data"}
    return _group(name, {}, set(), panels) | {"keys": keys} | _x(series.axis, first, len(series))


def error_group(rolling: RollingComparison, shown: set[str]) -> Group:
    """Return the RMSE of each method by step ahead over rolling forecasts, smoothed over steps.

    Origins are `step` rows apart, so that steps that far apart are scored on the same rows and
    others on different rows: a few rows that are hard to predict would recur every `step` steps as
    a sawtooth. A window of this width contains all rows.
    """
    names = keys_of(entry.method for entry in rolling.entries)
    panels = []
    for output in rolling.entries[0].by_step:
        lines = [
            Axis().line(key, name, smoothed_errors(entry.by_step[output], rolling.judged.step), 1)
            for (key, name), entry in zip(names.items(), rolling.entries, strict=True)
        ]
        panels.append(_panel(output, rolling.judged.rows, lines) | {"zero": True})
    return _group("errors", names, shown, panels) | {"x": "steps ahead", "levels": []}


def smoothed_errors(errors: Float[np.ndarray, " H"], width: int) -> Float[np.ndarray, " H"]:
    """Return the root mean square over a window of `width` steps around each step."""
    observed = np.isfinite(errors)
    window = np.ones(min(width, len(errors)))
    squares = np.convolve(np.where(observed, errors, 0) ** 2, window, "same")
    with np.errstate(invalid="ignore"):
        return np.sqrt(squares / np.convolve(observed, window, "same"))


def _panel(name: str, series: Series, lines: list[Group], bands: Iterable[Group] = ()) -> Group:
    return {"title": with_unit(name, series.units), "lines": lines, "bands": list(bands)}


def _group(name: str, methods: Mapping[str, str], shown: set[str], panels: list[Group]) -> Group:
    switches = [{"key": key, "label": title, "on": key in shown} for key, title in methods.items()]
    levels = [round(100 * level) for level in LEVELS] if methods else []
    return {"id": name, "methods": switches, "levels": levels, "keys": {}, "panels": panels}


def _x(clock: Clock | None, begin: int, end: int) -> Group:
    """Return the label of the axis of these rows and, if they have dates, the dates."""
    if clock is None:
        return {"x": "row"}
    name = {"x": clock.name or "time"}
    if not clock.dates:
        return name
    dates = {"first": begin, "dates": clock.texts(end - begin, begin)}
    return name | dates | _round_times(clock, begin)


def _round_times(clock: Clock, begin: int) -> Group:
    """Return the row of a midnight and the row distances of round times; empty if there are
    none.
    """
    first = clock.index(1, begin)[0]
    midnight = begin - (first - first.normalize()).total_seconds() / clock.dt
    # Possible distances of labels in seconds.
    lengths = [1, 5, 15, 30, 60, 300, 900, 1800, *(3600 * hours for hours in (1, 3, 6, 12))]
    lengths += [86400 * days for days in (1, 2, 5, 10, 30, 90, 365)]
    sizes = [round(seconds / clock.dt) for seconds in lengths if seconds % clock.dt == 0]
    if clock.calendar or midnight % 1 or not sizes:
        return {}
    return {"midnight": int(midnight), "steps": sizes}
