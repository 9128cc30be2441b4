"""What the page's charts draw, as plain data for JSON; `script.js` is their reader.

A group is {"id", "x", "methods", "levels", "keys", "panels"}: methods and levels can be switched
for all its panels together, keys name the lines that cannot. A panel is one output: {"title",
"lines", "bands", "split"}. Lines and bands start at `x0` and go on in steps of `dx`; a value that
does not exist is null. The first of the methods is the fit, and goes by the key MODEL.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.data.clock import Clock
from gpssm.data.series import Series
from gpssm.evaluation.baselines import RollingComparison, label
from gpssm.plots.style import with_unit
from gpssm.posterior.forecast import Forecast

MODEL = "model"  # the key of the fit that the report is about
LEVELS = (0.5, 0.9)
DIGITS = 5
HOUR, DAY = 3600, 86400
ROUND = (
    *(1, 5, 15, 30, 60, 300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 5 * DAY, 10 * DAY, 30 * DAY, 90 * DAY, 365 * DAY),
)  # seconds between labels of an axis
FIT_ROWS = 1500  # of the fit that are drawn, the last ones

Group = dict[str, Any]


def numbers(values: Float[np.ndarray, " n"]) -> list[float | None]:
    """Values to five digits, more where they differ little from each other, null where there is
    none.
    """
    finite = values[np.isfinite(values)]
    span, size = (np.ptp(finite), np.abs(finite).max()) if finite.size else (0.0, 0.0)
    digits = min(DIGITS + max(math.floor(math.log10(size / span)), 0), 15) if span > 0 else DIGITS
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def keys_of(methods: Iterable[str]) -> dict[str, str]:
    """The key of each method on the page, and what it is called there."""
    _, *others = methods
    return {MODEL: "This model"} | {name: label(name) for name in others}


def forecast_group(
    forecasts: Mapping[str, Forecast], history: Series, actual: Series | None, shown: set[str]
) -> Group:
    """Fans of all methods, with what came before and what happened; keys in `shown` are switched on
    at first.
    """
    names, first = keys_of(forecasts), next(iter(forecasts.values()))
    (origin, unit), before = _grid(history.axis), history.y[-2 * first.horizon :]
    begin, end = first.start - len(before), first.start + first.horizon
    panels = []
    for j, output in enumerate(first.outputs):
        lines, bands = [], []
        for (key, name), forecast in zip(names.items(), forecasts.values(), strict=True):
            place = {"key": key, "x0": origin + first.start * unit, "dx": unit}
            lines.append(
                place | {"label": f"{name}, median", "values": numbers(forecast.median[:, j])}
            )
            for level in LEVELS:
                low, high = (numbers(end[:, j]) for end in forecast.interval(level))
                bands.append(place | {"level": round(100 * level), "low": low, "high": high})
        lines.append(_data("history", "History", before[:, j], origin + begin * unit, unit))
        if actual is not None:
            lines.append(
                _data(
                    "actual",
                    "Actual",
                    actual.y[: first.horizon, j],
                    origin + first.start * unit,
                    unit,
                )
            )
        split = origin + (first.start - 0.5) * unit
        panels.append(
            {
                "title": with_unit(output, history.units),
                "lines": lines,
                "bands": bands,
                "split": split,
            }
        )
    data = {"history": "History"} | ({} if actual is None else {"actual": "Actual"})
    return (
        _group("forecast", names, shown, panels) | {"keys": data} | _axis(history.axis, begin, end)
    )


def fit_group(smoothed: Forecast, observed: Forecast, series: Series, name: str = "fit") -> Group:
    """The training outputs as the model sees them, and the interval that new observations would lie
    in.
    """
    (origin, unit), first = _grid(series.axis), max(len(series) - FIT_ROWS, 0)
    panels = []
    for j, output in enumerate(series.outputs):
        place = {"key": MODEL, "x0": origin + first * unit, "dx": unit}
        lines = [
            place
            | {"label": "Model, without noise", "values": numbers(smoothed.median[first:, j])},
            _data("actual", "Data", series.y[first:, j], origin + first * unit, unit, kind="dots"),
        ]
        low, high = (numbers(end[first:, j]) for end in observed.interval(0.9))
        bands = [place | {"level": 90, "low": low, "high": high}]
        panels.append({"title": with_unit(output, series.units), "lines": lines, "bands": bands})
    keys = {MODEL: "Model, with 90 % interval", "actual": "Data"}
    return _group(name, {}, set(), panels) | {"keys": keys} | _axis(series.axis, first, len(series))


def error_group(rolling: RollingComparison, shown: set[str]) -> Group:
    """RMSE of each method by step ahead, over the rolling forecasts, each step with its neighbours.

    Origins lie `step` rows apart, so that steps that far apart are judged by the same rows, and
    others by others: a few rows that are hard to foresee come back every `step` steps, as a
    sawtooth. A window that wide has them all.
    """
    names = keys_of(one.method for one in rolling.entries)
    panels = []
    for output in rolling.entries[0].by_step:
        lines = [
            {
                "key": key,
                "label": name,
                "x0": 1,
                "dx": 1,
                "values": numbers(smoothed_errors(one.by_step[output], rolling.judged.step)),
            }
            for (key, name), one in zip(names.items(), rolling.entries, strict=True)
        ]
        panels.append(
            {
                "title": with_unit(output, rolling.judged.rows.units),
                "lines": lines,
                "bands": [],
                "zero": True,
            }
        )
    return _group("errors", names, shown, panels) | {"x": "steps ahead", "levels": []}


def smoothed_errors(errors: Float[np.ndarray, " H"], width: int) -> Float[np.ndarray, " H"]:
    """The root of the mean square over a window of `width` steps around each, as far as there are
    any.
    """
    known = np.isfinite(errors)
    window = np.ones(min(width, len(errors)))
    squares, number = (
        np.convolve(part, window, "same") for part in (np.where(known, errors, 0) ** 2, known)
    )
    with np.errstate(invalid="ignore"):
        return np.sqrt(squares / number)


def _group(
    name: str, methods: Mapping[str, str], shown: set[str], panels: list[dict[str, Any]]
) -> Group:
    switches = [{"key": key, "label": title, "on": key in shown} for key, title in methods.items()]
    levels = [round(100 * level) for level in LEVELS] if methods else []
    return {"id": name, "methods": switches, "levels": levels, "keys": {}, "panels": panels}


def _data(
    key: str, name: str, values: Float[np.ndarray, " n"], x0: float, dx: float, kind: str = "line"
) -> dict[str, Any]:
    return {"key": key, "label": name, "x0": x0, "dx": dx, "values": numbers(values), "kind": kind}


def _grid(clock: Clock | None) -> tuple[float, float]:
    """Where row 0 lies on the axis, and how far rows are apart: at their times where these are
    numbers, else by row.
    """
    return (0, 1) if clock is None or clock.dates else (clock.start, clock.step)


def _axis(clock: Clock | None, begin: int, end: int) -> dict[str, Any]:
    """What the axis of these rows is called and, where they have dates, the date of each."""
    if clock is None:
        return {"x": "row"}
    dates = {"first": begin, "dates": clock.texts(end - begin, begin)} if clock.dates else {}
    return {"x": clock.name or "time"} | dates | (_round_times(clock, begin) if clock.dates else {})


def _round_times(clock: Clock, begin: int) -> dict[str, Any]:
    """The row of a midnight before, and after how many rows times are round again; nothing where
    rows miss them.
    """
    first = clock.index(1, begin)[0]
    midnight = begin - (first - first.normalize()).total_seconds() / clock.dt
    sizes = [round(seconds / clock.dt) for seconds in ROUND if seconds % clock.dt == 0]
    return (
        {}
        if clock.calendar or midnight % 1 or not sizes
        else {"midnight": int(midnight), "steps": sizes}
    )
