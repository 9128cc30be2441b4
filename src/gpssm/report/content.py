"""The content of a report: texts, tables, charts, pictures and files.

`script.js` reads the data of the charts as JSON values. A group is {"id", "x", "methods", "levels",
"keys", "panels"}: methods and levels can be switched for all panels of a group; keys name the other
lines. A panel shows one signal: {"title", "lines", "bands"}, with "split" where a forecast starts,
"untrusted" spans of its axis, and "low" for inputs. Lines and bands start at `x0` with steps of
`dx`; missing values are null. The first method is the fit, with the key MODEL.
"""

import base64
import hashlib
import importlib.metadata
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
from jaxtyping import Float

from gpssm import __version__
from gpssm.core.files import digest, write_atomically
from gpssm.core.metrics import coverage
from gpssm.core.runtime import in_double_precision
from gpssm.core.table import Table
from gpssm.core.text import count, figure, join_names, percent, printable, to_csv, to_json
from gpssm.data.clock import Clock
from gpssm.data.delays import name_inputs
from gpssm.data.series import Series
from gpssm.data.times import short_texts
from gpssm.evaluation.checks import ONE_STEP, label
from gpssm.evaluation.examine import BASELINES, Examination, RollingComparison, examine
from gpssm.evaluation.summary import Summary, series_of
from gpssm.evaluation.training import OutputSummary
from gpssm.inference.progress import Mode, tracked
from gpssm.plots import forecasts, posteriors
from gpssm.plots.style import to_png, untrusted_spans, with_unit
from gpssm.posterior.checks import doubts, headline, worst
from gpssm.posterior.draws import stored_rows
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.stack import Forecaster, leading_member, smoothed_outputs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MODEL = "model"  # the key of the fit
LEVELS = (0.5, 0.9)
FIT_ROWS = 1500  # number of last rows of the fit that are drawn

Group = dict[str, Any]
Values = Float[np.ndarray, " n"]


@in_double_precision
def make_report(
    posterior: Forecaster | Examination,
    *,
    test: Any = None,
    baselines: Sequence[str] = BASELINES,
    title: str | None = None,
    pictures: Mapping[str, bytes] | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """Return the report of a fit as the text of an HTML file.

    Parameters
    ----------
    posterior
        The fit, or its examination, in which case `test` and `baselines` are ignored.
    test, baselines
        As in `evaluation.examine.examine`.
    title
        The heading of the page.
    pictures
        PNG images by the names of `report.content.WORDS`; by default all are drawn.
    files
        Texts to offer for download by file name, in addition to forecast.csv, metrics.json and
        config.json.
    """
    examination = posterior
    if not isinstance(examination, Examination):
        examination = examine(examination, test, baselines=baselines)
    page = render(examination, compose(examination, title, pictures, files or {}))
    # Without control characters, for readers of the source in a terminal.
    return "\n".join(map(printable, page.replace("\t", " ").split("\n")))


def write_report(posterior: Forecaster | Examination, path: str | Path, **options: Any) -> Path:
    """Write the result of `make_report` to a file atomically."""
    path = Path(path)
    text = make_report(posterior, **options)
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def render(examination: Examination, content: Mapping[str, Any]) -> str:
    """Return the page of an examination and its composed content.

    Text is escaped by the template engine. Only the script and style of the package may run: the
    security policy lists their hashes, so that nothing in the data can.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": figure, "percent": percent}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    template, style, script = (
        resources.files("gpssm.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("template.html.j2", "style.css", "script.js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.from_string(template).render(
        examination=examination,
        page=content,
        style=style,
        script=script,
        policy=policy,
        symbols={"good": "✓", "caution": "!", "problem": "✕", "unknown": "–"},
        levels={
            "good": "Good",
            "caution": "Caution",
            "problem": "Problem",
            "unknown": "Not applicable",
        },
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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


# The alternative text and the caption of each picture, in the order of drawing.
WORDS = {
    "forecast": (
        "The forecast: median and central intervals after the end of the data, with the actual "
        "outputs where they are known.",
        "The forecast: median, and central intervals of 50 % and 90 %.",
    ),
    "calibration": (
        "Histogram of the share of paths below the actual outputs, and coverage of the intervals "
        "by step ahead.",
        "Calibration of the intervals. Bars should be level and points near their dashed lines. "
        "Bars that are high at both ends mean that intervals are too narrow, a hump in the "
        "middle that they are too wide.",
    ),
    "residuals": (
        "One-step-ahead residuals over time with their 95 percent band, their autocorrelation, "
        "and their correlation with inputs.",
        "Standardised one-step residuals. Points should scatter within the band, and "
        "correlations should stay within the shaded area; correlations outside it are structure "
        "that the model has missed.",
    ),
    "transition": (
        "The learned transition function along slices through the data.",
        "The learned dynamics in the scaled states of the model, along the directions in which "
        "the data vary most. Red marks regions with little data, where the model falls back on "
        "its prior.",
    ),
    "states": (
        "The hidden states over time, median and 90 percent band of each chain.",
        "The hidden states, one colour per chain. The coordinates of states are arbitrary, so "
        "chains may differ here and still agree about outputs.",
    ),
    "traces": (
        "Traces and rank histograms of the quantities that mix worst, one line per chain.",
        "The quantities that mix worst. Traces should look alike and wander quickly; rank "
        "histograms should be flat.",
    ),
}


def figures_of(examination: Examination) -> dict[str, Callable[[], "Figure"]]:
    """Return a function for each figure with data, by name."""
    posterior = examination.posterior
    member = leading_member(posterior)
    test = examination.test
    experiments = posterior.dataset.experiments
    history = experiments[-1]
    last = len(experiments) - 1
    actual = None if test is None else test[: examination.forecast.horizon]
    rolling = examination.rolling.own
    pairs = [
        (forecast, rolling.series[origin:])
        for origin, forecast in zip(rolling.origins.tolist(), rolling.forecasts, strict=True)
    ]
    series = list(experiments)
    if test is not None:
        y = np.concatenate([history.y, test.y])
        series = [replace(history, y=y, u=np.concatenate([history.u, test.u]))]
    smoothed = (examination.smoothed, examination.observed)
    return {
        "series": lambda: forecasts.plot_series(series, len(history)),
        "forecast": lambda: forecasts.plot_forecast(examination.forecast, actual, history),
        "comparison": lambda: forecasts.plot_comparison(examination.forecasts, actual, history),
        "calibration": lambda: forecasts.plot_calibration(pairs),
        "smoothed": lambda: posteriors.plot_smoothed(posterior, last, smoothed),
        "residuals": lambda: posteriors.draw_residuals(examination.residuals),
        "states": lambda: posteriors.plot_states(member, last),
        "transition": lambda: posteriors.plot_transition(member),
        "traces": lambda: posteriors.plot_traces(member),
    }


def draw_pictures(
    figures: Mapping[str, Callable[[], "Figure"]], progress: Mode = False
) -> tuple[dict[str, bytes], list[str]]:
    """Return figures as PNG images by name, and messages about those that failed.

    Parameters
    ----------
    figures
        The result of `figures_of`.
    progress
        True for a bar over the figures, "plain" for one line each, False for silence.
    """
    pictures: dict[str, bytes] = {}
    failures = []
    for name in tracked(list(figures), progress, "figures"):
        try:
            pictures[name] = to_png(figures[name](), dpi=140)
        except ImportError as error:
            return pictures, [f"No picture was drawn: {error}"]
        except Exception as error:  # a failed picture must not end a run
            failures.append(f"The picture {name} could not be drawn: {error}")
    return pictures, failures


def page_pictures(
    examination: Examination, pictures: Mapping[str, bytes]
) -> dict[str, dict[str, Any]]:
    """Return pictures for the page by name: source, alternative text, caption and size."""
    # The basis of each picture.
    basis = {
        "forecast": f" {examination.future}",
        "calibration": f" On {examination.rolling.judged.protocol}.",
        "residuals": f" On {ONE_STEP}.",
    }
    if leading := examination.summary.leading:
        single = ("transition", "states", "traces")
        basis |= dict.fromkeys(single, f" Of {leading}, a member of the mixture.")
    return {
        name: {
            "source": f"data:image/png;base64,{base64.b64encode(pictures[name]).decode()}",
            "alt": alt,
            "caption": caption + basis.get(name, ""),
            # The size is at a fixed position in the header of a PNG file.
            "width": int.from_bytes(pictures[name][16:20]),
            "height": int.from_bytes(pictures[name][20:24]),
        }
        for name, (alt, caption) in WORDS.items()
        if name in pictures
    }


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
            "series": ", ".join(series_of(facts)),
            "outputs": ", ".join(facts["outputs"]),
            "inputs": ", ".join(name_inputs(facts["inputs"], facts["delay"])) or "none",
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
        *([_nonlinear(summary.training.nonlinear_change)] if summary.facts["kernel"] else []),
    ]


def _fitted(summary: Summary) -> str:
    facts = summary.facts
    kind = "Gaussian process state-space" if facts["kernel"] else "linear"
    model = f"{kind} model with {count(facts['states'], 'hidden state')}"
    single = ""
    if summary.leading:
        weights = [f"{name} ({percent(weight)})" for name, weight in summary.weights.items()]
        single = f" The following paragraphs describe its member {summary.leading}, a {model}."
        model = f"mixture of {join_names(weights)}"
    names = series_of(facts)
    data = join_names(names)
    if len(names) > 4:
        data = f"{len(names)} series with {sum(facts['rows'])} rows in total"
    inputs = ", without inputs"
    if facts["inputs"]:
        inputs = f", driven by {join_names(name_inputs(facts['inputs'], facts['delay']))}"
    missing = ""
    if facts["missing"]:
        missing = f" {percent(facts['missing'])} of the outputs are missing and were imputed."
    return (
        f"A {model} was fitted to {data}. It explains {join_names(facts['outputs'])}{inputs}."
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
