"""What goes into a report, as plain data: texts, numbers, charts, pictures, files."""

import importlib.metadata
import json
import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from gpssm import __version__
from gpssm.core.files import digest
from gpssm.data.align import align_columns
from gpssm.data.series import Series
from gpssm.evaluation.metrics import coverage
from gpssm.evaluation.summary import Summary
from gpssm.posterior.diagnostics import Diagnostics
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.report.charts import FIT_ROWS, LEVELS, Group, error_group, fit_group, forecast_group
from gpssm.report.contest import MODEL, Contest, choose_arena, fit_baselines, hold_contest
from gpssm.report.lights import Light, count_up, find_lights, worst
from gpssm.report.pictures import Picture, draw_pictures
from gpssm.report.words import count, describe, percent

MOST_STEPS, MOST_VALUES = 500, 2500  # of the forecast: steps, and steps times outputs, so that the file stays small
PATHS = 1000

Table = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Content:
    """All that the template shows. `future` says what the forecast assumes; `tables` are settings by heading."""

    title: str
    summary: Summary
    words: list[str]
    contest: Contest
    lights: list[Light]
    level: str
    checked: str
    charts: dict[str, Group]
    forecast: list[dict[str, Any]]
    future: str
    fitted: str
    pictures: dict[str, Picture]
    tables: Table
    downloads: dict[str, str]
    troubles: tuple[str, ...]


def gather(
    posterior: Posterior,
    test: Any,
    inputs: Any,
    baselines: Sequence[str] | Mapping[str, Posterior],
    title: str | None,
    pictures: Mapping[str, bytes],
    files: Mapping[str, str],
) -> Content:
    """Fit what is missing, forecast, judge, draw; see `make_report` for the arguments."""
    if posterior.current is not None:
        raise ValueError("a report is about a fit: give the posterior that `fit` or `load` gave, before `condition`")
    rows = None if test is None else _test_rows(posterior, test)
    others, failures = fit_baselines(posterior, baselines)
    contest = hold_contest(posterior, others, choose_arena(posterior, rows))
    forecasts, future = _forecasts({MODEL: posterior, **others}, rows, inputs)
    own, history, last = forecasts[MODEL], posterior.raw[-1], len(posterior.raw) - 1
    smoothed, observed = posterior.smooth(last), posterior.smooth(last, noise=True).outputs
    groups = [
        forecast_group(forecasts, history, rows, contest.foremost),
        fit_group(smoothed, observed, history),
        error_group(contest),
    ]
    summary, diagnostics = posterior.summary(), posterior.diagnostics()
    lights = find_lights(posterior, diagnostics, own.diagnostics, contest)
    drawn, undrawn = draw_pictures(posterior, own, rows and rows[: own.horizon], contest.own, pictures)
    tables = _settings(posterior, summary)
    texts = {
        "forecast.csv": own.to_dataframe(LEVELS).to_csv(),
        "metrics.json": _json(_metrics(contest, summary, diagnostics)),
        "config.json": _json(tables),
    }
    return Content(
        title=title or f"{history.name or ', '.join(history.outputs)}: model report",
        summary=summary,
        words=describe(summary),
        contest=contest,
        lights=lights,
        level=worst(lights),
        checked=count_up(lights),
        charts={group["id"]: group for group in groups},
        forecast=forecast_table(own, rows),
        future=future,
        fitted=_fit_words(observed, history),
        pictures=drawn,
        tables=tables,
        downloads={name: data_uri(name, text) for name, text in (texts | dict(files)).items()},
        troubles=(*failures, *contest.failures, *undrawn),
    )


def _test_rows(posterior: Posterior, test: Any) -> Series:
    """The test rows with the columns of the training series, in their order."""
    given, known = Series.of(test), posterior.raw[-1]
    if not isinstance(given, Series):
        raise TypeError(f"test must be the rows that follow the last training series; got a list of {len(given)}")
    y, u = align_columns(given, known.outputs, "y"), align_columns(given, known.inputs, "u")
    return Series(y, u, outputs=known.outputs, inputs=known.inputs, dt=known.dt)


def _forecasts(
    posteriors: Mapping[str, Posterior], test: Series | None, inputs: Any
) -> tuple[dict[str, Forecast], str]:
    """The forecast of each, and a sentence about what it assumes."""
    known = posteriors[MODEL].raw[-1]
    most = min(MOST_STEPS, max(MOST_VALUES // known.output_dim, HORIZON))
    if test is not None:
        steps, u = min(len(test), most), test.u
        said = (
            f"The {count(steps, 'step')} after the end of the training data, under the controls of the held-out rows."
        )
        said = said if known.inputs else f"The {count(steps, 'step')} after the end of the training data."
        said += f" The remaining {len(test) - steps} held-out rows are not drawn." if len(test) > steps else ""
    elif inputs is not None:
        u = align_columns(inputs, known.inputs, "u")
        steps = min(len(u), most)
        said = f"The next {count(steps, 'step')}, under the controls that were given for them."
    else:
        steps, u = HORIZON, np.repeat(known.u[-1:], HORIZON, axis=0)
        said = f"The next {steps} steps."
        said += " No future controls were given: the last ones are held, so read this as an illustration." * bool(
            known.inputs
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page has the forecast's notes
        found = {name: one.forecast(steps, u[:steps], num_paths=PATHS) for name, one in posteriors.items()}
    return found, said


def forecast_table(forecast: Forecast, actual: Series | None) -> list[dict[str, Any]]:
    """A table an output: a head, and a row a step, for readers who cannot use the chart."""
    head = ["row" if forecast.dt is None else "time", "median"]
    head += [f"{round(100 * level)} % {end}" for level in LEVELS for end in ("low", "high")]
    head += ["actual"] if actual is not None else []
    columns = [forecast.steps[:, None] * (forecast.dt or 1) + 0 * forecast.median, forecast.median]
    columns += [end for level in LEVELS for end in forecast.interval(level)]
    columns += [actual.y[: forecast.horizon]] if actual is not None else []
    tables = np.stack(columns, axis=-1)
    return [{"output": name, "head": head, "rows": tables[:, j].tolist()} for j, name in enumerate(forecast.outputs)]


def _fit_words(observed: Forecast, series: Series) -> str:
    share = coverage(observed.paths, series.y, 0.9)
    left = f" The chart shows the last {FIT_ROWS} of {len(series)} rows." if len(series) > FIT_ROWS else ""
    return f"Here {percent(float(share))} do.{left}"


def _metrics(contest: Contest, summary: Summary, diagnostics: Diagnostics) -> dict[str, Any]:
    methods = {
        one.key: {"label": one.label, "scaled_crps": one.loss, "outputs": one.figures} for one in contest.entries
    }
    return {
        "judged_on": contest.arena.name,
        "held_out": contest.arena.held_out,
        "origins": len(contest.own.origins),
        "horizon": contest.arena.horizon,
        "verdict": contest.verdict.headline,
        "methods": methods,
        "diagnostics": [one._asdict() for one in diagnostics.rows],
        "summary": summary.to_dict(),
    }


def _settings(posterior: Posterior, summary: Summary) -> Table:
    """Everything that the result depends on, by heading."""
    facts, raw = summary.facts, posterior.raw
    roles = {role: [name for name, its in posterior.model.roles if its == role] for role in ("sample", "optimise")}
    model = {"states": facts.states, "kernel": facts.kernel or "none", "basis": facts.basis, "mean": facts.mean}
    model |= {"inducing points": facts.inducing, "likelihood": facts.likelihood}
    return {
        "Method": dict(posterior.config),
        "Model": model | {f"parameters: {role}": ", ".join(names) or "none" for role, names in roles.items()},
        "Data": {
            "series": ", ".join(f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)),
            "outputs": ", ".join(facts.outputs),
            "controls": ", ".join(facts.inputs) or "none",
            "sampling time": raw[0].dt,
            "hash of the training data": digest(*raw),
        },
        "Run": {
            "seed": posterior.seed,
            "chains": posterior.num_chains,
            "draws a chain": posterior.num_draws,
            **{f"seconds: {name}": round(value, 1) for name, value in posterior.seconds._asdict().items()},
        },
        "Versions": {
            "gpssm": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "equinox")},
        },
    }


def data_uri(name: str, text: str) -> str:
    """A file inside a link."""
    kind = {"csv": "text/csv", "json": "application/json"}.get(name.rpartition(".")[2], "text/plain")
    return f"data:{kind};charset=utf-8,{quote(text, safe=',:;()[]{}')}"


def _json(thing: Any) -> str:
    """JSON for people; what is not a number is null, what JSON does not know is its text."""
    return json.dumps(_finite(thing), indent=1, default=str, allow_nan=False) + "\n"


def _finite(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {str(name): _finite(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_finite(value) for value in thing]
    return None if isinstance(thing, float) and not np.isfinite(thing) else thing
