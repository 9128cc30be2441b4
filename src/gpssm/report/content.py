"""The content of a report: texts, tables, charts, pictures and files."""

import importlib.metadata
import math
import platform
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpssm import __version__
from gpssm.core.files import digest
from gpssm.core.metrics import coverage
from gpssm.core.table import Table
from gpssm.core.text import count, join_names, percent, to_csv, to_json
from gpssm.data.series import Series
from gpssm.data.times import short_texts
from gpssm.evaluation.assessment import OutputSummary
from gpssm.evaluation.examine import Examination
from gpssm.evaluation.summary import Summary
from gpssm.posterior.checks import doubts, headline, worst
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.stack import leading_member, smoothed_outputs
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
from gpssm.report.pictures import WORDS, draw_pictures, figures_of, page_pictures

if TYPE_CHECKING:
    import pandas as pd


def compose(
    examination: Examination,
    title: str | None,
    pictures: Mapping[str, bytes] | None,
    files: Mapping[str, str],
) -> dict[str, Any]:
    """Return everything that the template shows in addition to the examination.

    `methods` maps keys on the page to names in the rolling comparison, and `experiments` names of
    charts to the names of training series.
    """
    posterior = examination.posterior
    rolling = examination.rolling
    raw = posterior.dataset.experiments
    history = raw[-1]
    steps = min(500, max(2500 // history.output_dim, HORIZON))  # to limit the size of the file
    shown = {name: forecast[:steps] for name, forecast in examination.forecasts.items()}
    hidden = examination.forecast.horizon - shown[examination.method].horizon
    switched_on = {MODEL} | ({rolling.best_baseline.method} if rolling.best_baseline else set())
    experiments, fit_charts = _fit_charts(examination)
    charts = [
        forecast_group(shown, history, examination.test, switched_on),
        *fit_charts,
        error_group(rolling, switched_on),
    ]
    failures = []
    if pictures is None:
        figures = figures_of(examination)
        chosen = {name: figures[name] for name in WORDS if name in figures}
        pictures, failures = draw_pictures(chosen)
    tables = settings_tables(examination)
    frame = examination.forecast.to_dataframe(LEVELS)
    texts = {
        "forecast.csv": to_csv(frame),
        "metrics.json": to_json(examination.to_dict()),
        "config.json": to_json(tables),
    }
    name = (len(raw) == 1 and history.name) or ", ".join(history.outputs)
    return {
        "title": title or f"{name}: model report",
        "date": f"{datetime.now().astimezone():%-d %B %Y}",
        "experiments": experiments,
        "words": in_sentences(examination.summary),
        "doubts": doubts(examination.checks),
        "level": worst(examination.checks),
        "headline": headline(examination.checks),
        "methods": keys_of(entry.method for entry in rolling.entries),
        "units": {name: history.units.get(name, "") for name in history.outputs},
        "charts": {chart["id"]: chart for chart in charts},
        "forecast": forecast_tables(frame[:steps], examination.test),
        "future": examination.future
        + (f" The remaining {hidden} steps are not drawn." if hidden else ""),
        "fitted": _fit_note(examination),
        "pictures": page_pictures(examination, pictures),
        "tables": tables,
        "downloads": {name: data_uri(name, text) for name, text in (texts | dict(files)).items()},
        "troubles": (*examination.summary.sampling.notes, *examination.failures, *failures),
    }


def _fit_charts(examination: Examination) -> tuple[dict[str, str], list[Group]]:
    """Return the names of the training series whose fits are drawn, by chart, and the charts."""
    raw = examination.posterior.dataset.experiments
    stored = stored_rows(examination.posterior)
    names = {}
    charts = []
    # The last experiment was smoothed already; the seven before it can be picked.
    for index in range(max(len(raw) - 8, 0), len(raw)):
        last = index == len(raw) - 1
        key = "fit" if last else f"fit-{index}"
        names[key] = raw[index].name or f"Experiment {index + 1}"
        outputs = (examination.smoothed, examination.observed)
        outputs = outputs if last else smoothed_outputs(stored, index)
        charts.append(fit_group(*outputs, stored.dataset.experiments[index], key))
    return names, charts


def _fit_note(examination: Examination) -> str:
    """Return the coverage of the training outputs, and how many rows are drawn."""
    stored = stored_rows(examination.posterior).dataset.experiments[-1]
    inside = coverage(examination.observed.paths, stored.y, 0.9)
    note = f"Here {percent(float(inside))} do."
    rows = len(examination.posterior.dataset.experiments[-1])
    if rows > FIT_ROWS:
        note += f" The chart shows the last {FIT_ROWS} of {rows} rows."
    return note


def forecast_tables(frame: "pd.DataFrame", actual: Series | None) -> list[Table]:
    """Return one table per output of `Forecast.to_dataframe`, with the actual outputs if known.

    The last column marks untrusted steps; it is omitted if there are none.
    """
    names = list(map(str, frame.columns))
    outputs = [name.removesuffix(" mean") for name in names if name.endswith(" mean")]
    limits = sum(name.endswith("%") for name in names) // len(outputs)
    times = frame["time"] if "time" in names else frame.index
    doubtful = "trusted" in names and not frame["trusted"].to_numpy().all()
    tables = []
    for number, output in enumerate(outputs):
        first = names.index(f"{output} mean")
        block = frame.iloc[:, first : first + 2 + limits]
        columns = {name.removeprefix(f"{output} "): block[name] for name in map(str, block)}
        std = columns.pop("std").median()
        if actual is not None and len(actual) >= len(frame):
            columns["actual"] = actual.y[: len(frame), number]
        # The number of decimals depends on the spread of the forecast.
        place = math.floor(math.log10(std)) if std > 0 else 0
        shape = f".{max(2 - place, 0)}f" if -5 <= place <= 6 else ".3e"
        rows = [
            (time, *(f"{value:{shape}}".replace("nan", "–") for value in values))
            for time, *values in zip(short_texts(times), *columns.values(), strict=True)
        ]
        head = [str(times.name or "step"), *columns]
        if doubtful:
            head.append("trusted")
            rows = [
                (*row, "yes" if trusted else "no")
                for row, trusted in zip(rows, frame["trusted"], strict=True)
            ]
        tables.append(Table(head, rows, output, words=0))
    return tables


def settings_tables(examination: Examination) -> dict[str, dict[str, Any]]:
    """Return all settings by heading; for a stack, those of its leading member."""
    summary = examination.summary
    facts = summary.facts
    posterior = leading_member(examination.posterior)
    raw = posterior.dataset.experiments
    spec = {name: value for name, value in posterior.spec.describe().items() if value is not None}
    roles = {
        f"parameters: {role}": ", ".join(
            name for name, assigned in posterior.model.roles if assigned == role
        )
        or "none"
        for role in ("sample", "optimise")
    }
    seconds = {
        f"seconds: {name}": round(value, 1)
        for name, value in examination.posterior.seconds._asdict().items()
    }
    libraries = ("jax", "jaxlib", "numpy", "equinox")
    mixture = {"Mixture": dict(summary.weights)} if summary.leading else {}
    return mixture | {
        f"Method of {summary.leading}" if mixture else "Method": _flat(spec) | roles,
        "Data": {
            "series": ", ".join(
                f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)
            ),
            "outputs": ", ".join(facts.outputs),
            "inputs": ", ".join(facts.delayed_inputs) or "none",
            "sampling time": raw[0].dt,
            "hash of the training data": digest(*raw),
        },
        "Run": {
            "seed": posterior.seed,
            "chains": posterior.num_chains,
            "draws per chain": posterior.num_draws,
            **seconds,
        },
        "Versions": {"gpssm": __version__, "python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in libraries},
    }


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return settings as text: nested ones by both names, lists in one line."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}: ")
        elif isinstance(value, list | tuple):
            flat[f"{before}{name}"] = ", ".join(map(str, value)) or "none"
        else:
            flag = {True: "yes", False: "no"}
            flat[f"{before}{name}"] = flag[value] if isinstance(value, bool) else value
    return flat


def data_uri(name: str, text: str) -> str:
    """Return a file as a data URI."""
    kinds = {"csv": "text/csv", "json": "application/json"}
    kind = kinds.get(name.rpartition(".")[2], "text/plain")
    return f"data:{kind};charset=utf-8,{quote(text, safe=',:;()[]{}')}"


SAMPLED = {
    "good": "Chains agree about outputs and forecasts, and there are enough draws.",
    "fair": "Chains agree fairly well about outputs and forecasts: means and intervals are "
    "usable, but not to their last digit.",
    "poor": "Chains do not agree about outputs and forecasts: treat everything below as "
    "provisional.",
}
# If each chain has a separate model.
SEPARATE = {
    "good": "Each chain has a separate start and has converged, and chains agree about outputs "
    "and forecasts.",
    "fair": "Each chain has a separate start and model. Forecasts average over the chains, and "
    "intervals include their disagreement: they are usable, but not to their last digit.",
    "poor": "Chains from different starts have not converged, or have found different models: "
    "treat everything below as provisional.",
}


def in_sentences(summary: Summary) -> list[str]:
    """Return paragraphs about the model, the sampling, each output and the nonlinearity."""
    sampled = SEPARATE if summary.sampling.separate else SAMPLED
    return [
        _fitted(summary),
        sampled[summary.sampling.verdict],
        *(_about_output(output, summary) for output in summary.training.outputs),
        *([_nonlinear(summary.training.nonlinear_change)] if summary.facts.kernel else []),
    ]


def _fitted(summary: Summary) -> str:
    facts = summary.facts
    kind = "Gaussian process state-space" if facts.kernel else "linear"
    model = f"{kind} model with {count(facts.states, 'hidden state')}"
    single = ""
    if summary.leading:
        weights = [f"{name} ({percent(weight)})" for name, weight in summary.weights.items()]
        single = f" The following paragraphs describe its member {summary.leading}, a {model}."
        model = f"mixture of {join_names(weights)}"
    names = [f"{name} ({rows} rows)" for name, rows in zip(facts.series, facts.rows, strict=True)]
    data = join_names(names)
    if len(names) > 4:
        data = f"{len(names)} series with {sum(facts.rows)} rows in total"
    inputs = ", without inputs"
    if facts.inputs:
        inputs = f", driven by {join_names(facts.delayed_inputs)}"
    missing = ""
    if facts.missing:
        missing = f" {percent(facts.missing)} of the outputs are missing and were imputed."
    return (
        f"A {model} was fitted to {data}. It explains {join_names(facts.outputs)}{inputs}."
        f"{missing}{single}"
    )


def _about_output(output: OutputSummary, summary: Summary) -> str:
    unit = f" {output.unit}" if output.unit else ""
    near, far = (
        f"{error:.3g}{unit} ({percent(error / (output.spread or 1.0))}"
        for error in (output.one_step_error, output.simulation_error)
    )
    fades = (
        "The standard deviation of a simulation stays below half the spread for at least "
        f"{len(summary.training.widening)} steps."
    )
    if output.half:
        steps = count(output.half, "step")
        fades = f"The standard deviation of a simulation reaches half the spread after {steps}."
    return (
        f"{output.name} varies by {output.spread:.3g}{unit} (standard deviation). One step ahead "
        f"the model has an RMS error of {near} of that); over {summary.training.horizon} steps "
        f"without further outputs, {far}), on the same training rows. {fades}"
    )


def _nonlinear(share: float) -> str:
    """Return a sentence about the share of the states' changes that no linear map explains."""
    words = "clearly nonlinear" if share > 0.1 else "somewhat nonlinear"
    words = "practically linear" if share < 0.01 else words
    return (
        f"The dynamics are {words}: a linear map does not explain {percent(share)} of the change "
        "from step to step."
    )
