"""From settings to a finished run folder: read, score baselines, fit, examine, plot, report."""

import importlib.util
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from gpssm.cli.run_folder import (
    BASELINE_FOLDER,
    CONFIG,
    FIGURES,
    FORECAST,
    METRICS,
    POSTERIOR,
    REPORT,
    TEST,
    Run,
)
from gpssm.cli.settings import Settings
from gpssm.cli.shell import Screen
from gpssm.cli.tables import UNJUDGED, score_tables
from gpssm.core.text import count, to_csv, to_json
from gpssm.data.dataset import Dataset
from gpssm.data.datasets import simulate
from gpssm.data.series import Series
from gpssm.evaluation.examine import (
    BASELINES,
    BaselineResults,
    Examination,
    choose_rows,
    examine,
    forecast_rows,
    inputs_after,
    judge_baselines,
)
from gpssm.fitting.fit import fit
from gpssm.fitting.single import was_interrupted
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Forecaster
from gpssm.report import write_report
from gpssm.report.content import draw_pictures, figures_of


def execute(
    settings: Settings,
    out: str | Path,
    screen: Screen,
    *,
    resume: bool = False,
    overwrite: bool = False,
    with_report: bool = True,
) -> Run:
    """Execute a run, or the remaining steps of one.

    Parameters
    ----------
    settings
        The settings of the run.
    out
        The run folder.
    screen
        The screen for progress messages.
    resume
        Continue the run in the folder from its checkpoint, or from its posterior.
    overwrite
        Replace an existing run.
    with_report
        Draw figures and write the report.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train, test = settings.load()
    notes = [str(warning.message) for warning in caught]
    screen.note(*(f"Warning: {note}" for note in notes))
    # Invalid data are rejected before a folder is created.
    delay = Dataset.of(train, delay=settings.spec.delay).delay or 0
    if with_report and importlib.util.find_spec("matplotlib") is None:
        screen.note("Without matplotlib there will be no figures: pip install matplotlib")
    with Run.claimed(out):
        run = Run.create(out, settings.complete(), resume=resume, overwrite=overwrite)
        with _advice_to_resume(run):
            if test is not None:
                run.write_series(TEST, test)
            if resume:
                saved = _saved(run)
                screen.say(f"Resuming: {saved[0].lower()}{saved[1:]}")
            seconds: dict[str, float] = {}
            with timed(seconds, "baselines"):
                baselines = _judge_baselines(settings, train, test, delay, screen)
            with timed(seconds, "fit"):
                posterior = _posterior(run, settings, train, delay, screen)
            with timed(seconds, "judge"):
                examination = examine(posterior, test, baselines=baselines, say=screen.say)
                metrics = examination.to_dict()
            metrics["notes"] = notes + metrics["notes"]
            metrics["seconds"] = seconds
            _write_results(run, examination, metrics, screen)
            if with_report:
                with timed(seconds, "report"):
                    metrics["notes"] += write_pages(run, examination, screen)
                run.write(METRICS, to_json(metrics) + "\n")
    return run


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Store the seconds of a block by name."""
    start = monotonic()
    yield
    seconds[name] = monotonic() - start


def _judge_baselines(
    settings: Settings, train: list[Series], test: Series | None, delay: Any, screen: Screen
) -> BaselineResults:
    """Return forecasts and scores of the baselines, which take seconds and are shown first."""
    results = judge_baselines(
        train,
        inputs_after(train[-1], test),
        choose_rows(train[-1], test),
        BASELINES,
        exclude=settings.spec.method_name,
        delay=delay,
        seed=settings.runtime.seed,
        progress=screen.progress,
    )
    if test is not None:
        screen.note(*(f"Scaled CRPS of {item.method}: {item.loss:.3g}" for item in results.entries))
    return results


def _posterior(
    run: Run, settings: Settings, train: list[Series], delay: Any, screen: Screen
) -> Forecaster:
    """Return the saved posterior of the run, or fit and save it."""
    if (run.folder / POSTERIOR).is_file():
        return run.posterior()
    screen.say(f"Fitting {settings.spec.method_name} to {sum(map(len, train))} rows")
    settings = replace(settings, fit={**settings.fit, "delay": delay})
    runtime = settings.runtime.replace(
        progress=screen.progress, checkpoint=run.checkpoint, resume=True
    )
    posterior = fit(train, spec=settings.spec, runtime=runtime)
    if isinstance(posterior, Posterior) and was_interrupted(posterior):
        num_draws = posterior.spec.settings.num_draws
        draws = f"{posterior.num_draws} of {count(num_draws, 'draw')}"
        raise KeyboardInterrupt(f"Stopped after {draws} per chain")
    posterior.save(run.folder / POSTERIOR)
    shutil.rmtree(run.checkpoint, ignore_errors=True)  # missing without iterations
    return posterior


def _write_results(
    run: Run, examination: Examination, metrics: dict[str, Any], screen: Screen
) -> None:
    """Write forecasts and scores, and show the scores."""
    for name, forecast in examination.forecasts.items():
        if not examination.holds_inputs:
            is_fit = name == examination.method
            file = FORECAST if is_fit else f"{BASELINE_FOLDER}/{name}.csv"
            run.write(file, to_csv(forecast.to_dataframe((0.5, 0.9))))
    run.write(METRICS, to_json(metrics) + "\n")
    screen.show(score_tables(metrics) or [UNJUDGED])


@contextmanager
def _advice_to_resume(run: Run) -> Iterator[None]:
    """Add advice on how to resume the run to any interruption or error."""
    advice = "resume with: gpssm fit --resume --out"
    try:
        yield
    except KeyboardInterrupt as stop:
        reason = str(stop).split(". ")[0] or "Stopped"
        raise KeyboardInterrupt(f"{reason}. {_saved(run)}; {advice} {run.folder}") from None
    except OSError as error:
        reason = error.strerror if error.strerror and not error.filename else str(error)
        message = f"{reason}. {_saved(run)}; {advice} {run.folder}"
        raise OSError(error.errno, message) from error


def _saved(run: Run) -> str:
    if (run.folder / POSTERIOR).is_file():
        return "The posterior is saved"
    return "The draws so far are saved" if run.begun else "There are no draws yet"


def write_pages(run: Run, examination: Examination, screen: Screen) -> list[str]:
    """Create the figures and the report, and return a message for each figure that failed."""
    pictures, notes = draw_pictures(figures_of(examination), screen.progress)
    for name, picture in pictures.items():
        run.write(f"{FIGURES}/{name}.png", picture)
    files = {
        name: (run.folder / name).read_text()
        for name in (CONFIG, METRICS)
        if (run.folder / name).is_file()
    }
    troubles = replace(examination, failures=(*examination.failures, *notes))
    write_report(
        troubles, run.folder / REPORT, files=files, pictures=pictures, title=run.folder.name
    )
    return notes


def report_again(run: Run, screen: Screen) -> Path:
    """Examine a run again, and write its figures and report again."""
    examination = examine(run.posterior(), run.test(), say=screen.say)
    write_pages(run, examination, screen)
    return run.folder / REPORT


def forecast_run(
    run: Run,
    screen: Screen,
    inputs: str | Path | None = None,
    horizon: int | None = None,
    num_paths: int = 1000,
    seed: int | None = None,
) -> Forecast:
    """Forecast the rows after the training data of a run.

    Parameters
    ----------
    run
        The run.
    screen
        The screen for messages about the matching of inputs.
    inputs
        A file with the inputs of these rows; None for the inputs of the held-out rows.
    horizon, num_paths
        As in `Posterior.forecast`.
    seed
        As in `Posterior.forecast`; None for the seed of the run.
    """
    settings = run.settings()
    posterior = run.posterior()
    names = ", ".join(posterior.dataset.inputs)
    if inputs is not None and not names:
        raise ValueError("the model has no inputs: omit --inputs and pass --horizon")
    u: Any = run.test()
    if inputs is not None:
        u = inputs_ahead(settings, posterior, inputs, screen)
    if u is None and names:
        raise ValueError(
            f"the model has inputs ({names}): pass a file with their future values, --inputs FILE"
        )
    seed = settings.runtime.seed if seed is None else seed
    return forecast_rows(posterior, u, horizon, num_paths, seed)


def inputs_ahead(
    settings: Settings, posterior: Forecaster, path: str | Path, screen: Screen
) -> np.ndarray:
    """Return the inputs of the rows after the training data, from a file.

    If both the training data and the file have times, rows are matched by time: earlier rows are
    ignored, and a file that starts later is an error. Otherwise the first row of the file is the
    first step ahead, with a message if the training data have times.
    """
    options = {
        name: settings.reader[name] for name in settings.reader if name not in ("dt", "units")
    }
    rows = replace(settings, reader=options).read(str(path), settings.inputs, ())
    last = posterior.dataset.experiments[-1]
    clock = last.clock
    if clock is None:
        return rows.y
    expected = clock.shifted(len(last))
    if rows.clock is None or rows.clock.dates != clock.dates:
        screen.note(
            f"{path} has no times like the training data: its first row is used for the first "
            f"step ahead, {expected.show(0)}"
        )
        return rows.y
    clock.check_step(rows.clock, len(rows))
    late = (rows.clock.start - expected.start) / clock.step
    if late > 0.5 or late <= 0.5 - len(rows):
        raise ValueError(
            f"{path} has inputs from {rows.clock.show(0)} to {rows.clock.show(len(rows) - 1)}, "
            f"but the first step ahead is at {expected.show(0)}: pass the inputs from there on"
        )
    return rows.y[max(round(-late), 0) :]


def run_demo(out: str | Path, screen: Screen, seed: int = 0) -> Run:
    """Simulate a driven Duffing oscillator, and execute a run that trains on half of the rows.

    The data are written next to the folder, for example `demo.csv` next to `demo`. An earlier
    demonstration is replaced, but no other run or file.
    """
    out = Path(out)
    path = out.absolute().with_name(f"{out.name}.csv")
    series = simulate("duffing", seed=seed).series
    series = replace(series, outputs=("position",), inputs=("force",))
    settings = Settings(
        files=(str(path),),
        outputs=series.outputs,
        inputs=series.inputs,
        train=0.5,
        reader={"dt": series.dt},
        fit={"seed": seed},
    )
    again = (out / CONFIG).is_file() and Run(out).settings().files == settings.files
    if path.exists() and not again:
        raise FileExistsError(
            f"{path} already exists and would be replaced by the data of the demonstration: pass "
            "another --out"
        )
    rows = len(series)
    screen.say(f"Simulating a driven Duffing oscillator: {rows} rows, half of them for training")
    Run(path.parent).write_series(path.name, series)
    return execute(settings, out, screen, overwrite=again)
