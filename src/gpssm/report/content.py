"""What goes into a report, as plain data: texts, numbers, charts, pictures, files, all from one
examination.
"""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import numpy as np

from gpssm import __version__
from gpssm.core.files import digest
from gpssm.core.metrics import coverage
from gpssm.core.text import percent, to_csv, to_json
from gpssm.data.series import Series
from gpssm.evaluation.baselines import RollingComparison
from gpssm.evaluation.examine import Examination
from gpssm.evaluation.summary import Summary
from gpssm.posterior.checks import Check, doubts, headline, worst
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.stack import Forecaster, leading_member, smoothed_outputs
from gpssm.report.charts import (
    FIT_ROWS,
    LEVELS,
    MODEL,
    Group,
    error_group,
    fit_group,
    forecast_group,
    keys_of,
)
from gpssm.report.pictures import Picture, embed_pictures
from gpssm.report.words import in_sentences

MOST_EXPERIMENTS = 8  # whose fits are drawn: the last ones
MOST_STEPS, MOST_VALUES = (
    500,
    2500,
)  # of the forecast: steps, and steps times outputs, so that the file stays small

Table = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Content:
    """All that the template shows. `future` says what the forecast assumes; `tables` are settings
    by heading.

    `methods` are the names of the entries of `rolling`, in their order, by their keys on the page,
    and `experiments` those of the training series whose fits are drawn, by the names of their
    charts.
    """

    title: str
    date: str
    experiments: dict[str, str]
    words: list[str]
    starts: tuple[dict[str, Any], ...]
    members: tuple[dict[str, Any], ...]
    leading: str
    calibration: tuple[dict[str, Any], ...]
    calibrated_on: str
    worth: Check
    checks: tuple[Check, ...]
    doubts: list[Check]
    level: str
    checked: str
    rolling: RollingComparison
    methods: dict[str, str]
    units: Mapping[str, str]
    charts: dict[str, Group]
    forecast: list[dict[str, Any]]
    future: str
    fitted: str
    pictures: dict[str, Picture]
    tables: Table
    downloads: dict[str, str]
    troubles: tuple[str, ...]


def compose(
    found: Examination, title: str | None, pictures: Mapping[str, bytes], files: Mapping[str, str]
) -> Content:
    """The content of the page; pictures that are not given are drawn."""
    posterior, rolling = found.posterior, found.rolling
    raw = posterior.dataset.experiments
    history = raw[-1]
    most = min(MOST_STEPS, max(MOST_VALUES // history.output_dim, HORIZON), found.forecast.horizon)
    shown = {name: one[:most] for name, one in found.forecasts.items()}
    left = found.forecast.horizon - most
    switched_on = {MODEL} | ({rolling.best_baseline.method} if rolling.best_baseline else set())
    # The last experiment was looked at already; the others can be picked.
    earlier = range(max(len(raw) - MOST_EXPERIMENTS, 0), len(raw) - 1)
    seen = {len(raw) - 1: (found.smoothed, found.observed)}
    smoothed = posterior.with_states()
    seen |= {index: smoothed_outputs(smoothed, index) for index in earlier}
    experiments = {
        "fit" if index == len(raw) - 1 else f"fit-{index}": raw[index].name
        or f"Experiment {index + 1}"
        for index in sorted(seen)
    }
    groups = [
        forecast_group(shown, history, found.test, switched_on),
        *(
            fit_group(*seen[index], smoothed.dataset.experiments[index], name)
            for index, name in zip(sorted(seen), experiments, strict=True)
        ),
        error_group(rolling, switched_on),
    ]
    drawn, undrawn = embed_pictures(found, pictures)
    tables = _settings(posterior, found.summary)
    texts = {
        "forecast.csv": to_csv(found.forecast.to_dataframe(LEVELS)),
        "metrics.json": to_json(found.to_dict()),
        "config.json": to_json(tables),
    }
    inside = percent(float(coverage(found.observed.paths, smoothed.dataset.experiments[-1].y, 0.9)))
    last = (
        f" The chart shows the last {FIT_ROWS} of {len(history)} rows."
        if len(history) > FIT_ROWS
        else ""
    )
    return Content(
        title=title
        or f"{(len(raw) == 1 and history.name) or ', '.join(history.outputs)}: model report",
        date=f"{datetime.now().astimezone():%-d %B %Y}",
        experiments=experiments,
        words=in_sentences(found.summary),
        starts=found.summary.starts,
        members=found.summary.members,
        leading=found.summary.leading,
        calibration=found.summary.calibration,
        calibrated_on=found.summary.calibrated_on,
        worth=found.worth,
        checks=found.checks,
        doubts=doubts(found.checks),
        level=worst(found.checks),
        checked=headline(found.checks),
        rolling=rolling,
        methods=keys_of(one.method for one in rolling.entries),
        units={name: history.units.get(name, "") for name in history.outputs},
        charts={group["id"]: group for group in groups},
        forecast=forecast_table(shown[found.method], found.test),
        future=found.future + (f" The remaining {left} steps are not drawn." if left else ""),
        fitted=f"Here {inside} do.{last}",
        pictures=drawn,
        tables=tables,
        downloads={name: data_uri(name, text) for name, text in (texts | dict(files)).items()},
        troubles=(*posterior.notes, *found.failures, *undrawn),
    )


def forecast_table(forecast: Forecast, actual: Series | None) -> list[dict[str, Any]]:
    """A table an output: a head, and a row a step, for readers who cannot use the chart."""
    axis = forecast.axis
    head = ["row" if axis is None else axis.name or "time", "median"]
    head += [f"{round(100 * level)} % {end}" for level in LEVELS for end in ("low", "high")]
    head += ["actual"] if actual is not None else []
    columns = [forecast.median]
    columns += [end for level in LEVELS for end in forecast.interval(level)]
    columns += [actual.y[: forecast.horizon]] if actual is not None else []
    tables = np.stack(columns, axis=-1)
    numbers = (
        forecast.steps
        if axis is None or axis.dates
        else axis.times(forecast.horizon, forecast.start)
    )
    times = (
        axis.texts(forecast.horizon, forecast.start)
        if axis is not None and axis.dates
        else numbers.tolist()
    )
    return [
        {
            "output": name,
            "head": head,
            "rows": [[time, *row] for time, row in zip(times, tables[:, j].tolist(), strict=True)],
        }
        for j, name in enumerate(forecast.outputs)
    ]


def _settings(forecaster: Forecaster, summary: Summary) -> Table:
    """Everything that the result depends on, by heading; of a stack, of its leading member."""
    posterior = leading_member(forecaster)
    facts, raw = summary.facts, posterior.dataset.experiments
    roles = {
        role: [name for name, its in posterior.model.roles if its == role]
        for role in ("sample", "optimise")
    }
    model = {
        "states": facts.states,
        "kernel": facts.kernel or "none",
        "basis": facts.basis,
        "mean": facts.mean,
    }
    model |= {"inducing points": facts.inducing, "likelihood": facts.likelihood}
    settings = {
        name: value for name, value in posterior.spec.describe().items() if value is not None
    }
    return {
        "Method": ({"member of the mixture": summary.leading} if summary.leading else {})
        | _flat(settings),
        "Model": model
        | {f"parameters: {role}": ", ".join(names) or "none" for role, names in roles.items()},
        "Data": {
            "series": ", ".join(
                f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)
            ),
            "outputs": ", ".join(facts.outputs),
            "controls": ", ".join(facts.controls) or "none",
            "sampling time": raw[0].dt,
            "hash of the training data": digest(*raw),
        },
        "Run": {
            "seed": posterior.seed,
            "chains": posterior.num_chains,
            "draws a chain": posterior.num_draws,
            **{
                f"seconds: {name}": round(value, 1)
                for name, value in forecaster.seconds._asdict().items()
            },
        },
        "Versions": {
            "gpssm": __version__,
            "python": platform.python_version(),
            **{
                name: importlib.metadata.version(name)
                for name in ("jax", "jaxlib", "numpy", "equinox")
            },
        },
    }


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings in words: those inside of others by both names, lists in a line, none as a dash."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}: ")
        elif isinstance(value, list | tuple):
            found[f"{before}{name}"] = ", ".join(map(str, value)) or "none"
        else:
            found[f"{before}{name}"] = (
                {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
            )
    return found


def data_uri(name: str, text: str) -> str:
    """A file inside a link."""
    kind = {"csv": "text/csv", "json": "application/json"}.get(
        name.rpartition(".")[2], "text/plain"
    )
    return f"data:{kind};charset=utf-8,{quote(text, safe=',:;()[]{}')}"
