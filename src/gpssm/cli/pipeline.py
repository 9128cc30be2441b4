"""From settings to a finished run folder: read, fit, examine, draw, report; and the demonstration, a run on a series
with known truth.
"""

import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from gpssm.core.elapsed import ticks
from gpssm.core.runtime import num_threads
from gpssm.core.text import to_csv
from gpssm.data.dataset import Dataset
from gpssm.data.datasets import simulate
from gpssm.data.delays import Rows
from gpssm.data.readers import read
from gpssm.data.series import Series
from gpssm.evaluation.baselines import (
    BASELINES,
    BaselineResults,
    choose_rows,
    forecast_rows,
    judge_baselines,
)
from gpssm.evaluation.examine import Examination, choose_future, examine, score_forecasts
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, tracked
from gpssm.plots.gallery import figures_of
from gpssm.plots.style import to_png
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.report import write_report

DPI = 150
# The demonstration's model, and its effort.
MODEL = {"state_dim": 2, "num_inducing": 20, "num_chains": 4}
EFFORT = {"num_warmup": 500, "num_draws": 250}
LINEAR = (
    "arx",
    "lgssm",
)  # the baselines whose scores are worth knowing before there are any of the fit

Say = Callable[[str], None]
Scored = Callable[[Mapping[str, Any]], None]


def execute(
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    with_report: bool = True,
    progress: Mode = True,
    say: Say = lambda text: None,
    scored: Scored = lambda found: None,
    compared: Scored = lambda found: None,
) -> Run:
    """Do a run, or what of it is left to do, and give back its folder.

    :param resume: go on with the run in the folder: with its checkpoint, or with its posterior if that is there.
    :param overwrite: replace a run that is there.
    :param with_report: draw figures and write the report, which takes longer than the scores.
    :param say: told what is being done.
    :param scored: given the scores as soon as they exist: see `examine`.
    :param compared: given those of each linear baseline, while the fit goes on, in another thread.
    """
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        rows = settings.load()
    for doubt in doubts:
        say(str(doubt.message))
    delay = (
        Dataset.of(rows.train, delay=settings.spec.delay).delay or 0
    )  # refused before there is a folder
    settings = settings.complete()
    with Run.claimed(out):
        run = Run.create(out, settings, resume=resume, overwrite=overwrite)
        with (
            _resumable(run),
            beside(rows.train, rows.test, settings, delay, progress, compared) as baselines,
        ):
            if rows.test is not None:
                run.write_series(TEST, rows.test)
            if resume:
                say(_found(run))
            posterior = _posterior(run, settings, rows.train, delay, progress, say)
            finish(
                run, posterior, rows.test, settings, say, baselines, scored, with_report, progress
            )
    return run


@contextmanager
def beside(
    train: list[Series],
    test: Series | None,
    settings: Settings,
    delay: Rows,
    progress: Mode,
    compared: Scored = lambda found: None,
) -> Iterator[Callable[[], BaselineResults]]:
    """What the baselines make of the data, from a process of its own that runs while the method samples.

    A sampler learns its parameters in one chain first: there is a core to spare. Where there is only one, or the
    process is lost, they are judged in this one when they are asked for.
    """
    future, judged = choose_future(train[-1], test), choose_rows(train[-1], test)
    how: dict[str, Any] = {"delay": delay, "num_paths": settings.num_paths, "seed": settings.seed}
    names = [name for name in BASELINES if name != settings.method]
    asked: dict[str, Future[BaselineResults]] = {}

    def answer() -> BaselineResults:
        found = []
        for name in tracked(names, progress, "baselines"):
            try:
                found.append(asked[name].result())
            except (KeyError, BrokenProcessPool):
                found.append(judge_baselines(train, future.u, judged, [name], **how))
        return BaselineResults.join(found)

    if num_threads() < 2:
        yield answer
        return
    pool = ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=_step_back
    )
    asked |= {
        name: pool.submit(judge_baselines, train, future.u, judged, [name], **how) for name in names
    }

    def tell(done: Future[BaselineResults]) -> None:
        if not done.cancelled() and done.exception() is None and done.result().forecasts:
            compared(score_forecasts(done.result().forecasts, test))

    for name in LINEAR:
        if name in asked:
            asked[name].add_done_callback(tell)
    try:
        yield answer
    finally:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    """Leave Ctrl-C to the process that asked; end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asking = multiprocessing.parent_process()

    def follow() -> None:
        if asking is not None:
            multiprocessing.connection.wait([asking.sentinel])
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _resumable(run: Run) -> Iterator[None]:
    """Say of whatever ends a run before its time how to go on with it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{str(stop).split('. ')[0] or 'Stopped'}. {_go_on(run)}") from None
    except OSError as error:
        reason = error.strerror if error.strerror and not error.filename else str(error)
        raise OSError(error.errno, f"{reason}. {_go_on(run)}") from error


def _go_on(run: Run) -> str:
    if (run.folder / POSTERIOR).is_file():
        saved = "The posterior is saved"
    else:
        saved = "What was sampled is saved" if run.begun else "Nothing was sampled yet"
    return f"{saved}; go on with: gpssm fit --resume --out {run.folder}"


def _found(run: Run) -> str:
    """What there is of a run that is resumed, and so what is left to do."""
    if (run.folder / POSTERIOR).is_file():
        return "Resuming: the posterior is saved; what comes after it is made again"
    if run.begun:
        return "Resuming: going on from the draws that are saved"
    return "Resuming: nothing was sampled yet; beginning with the fit"


def _posterior(
    run: Run, settings: Settings, train: list[Series], delay: Rows, progress: Mode, say: Say
) -> Posterior:
    """The run's posterior: the one saved, or a fit that is saved when all its draws are there."""
    if (run.folder / POSTERIOR).is_file():
        return run.posterior()
    compares = settings.spec.settings.compares and settings.spec.start == "auto"
    verb = "Comparing starts, then fitting" if compares else "Fitting"
    say(f"{verb} {settings.method} to {sum(map(len, train))} rows")
    spec = settings.spec.replace(delay=delay)
    runtime = settings.runtime.replace(progress=progress, checkpoint=run.checkpoint, resume=True)
    posterior = fit(train, spec=spec, runtime=runtime)
    wanted = settings.config.num_draws
    if posterior.num_draws < wanted:
        raise KeyboardInterrupt(f"Stopped after {posterior.num_draws} of {wanted} draws a chain")
    posterior.save(run.folder / POSTERIOR)
    shutil.rmtree(run.checkpoint, ignore_errors=True)  # a method without iterations writes none
    return posterior


def finish(
    run: Run,
    posterior: Posterior,
    test: Series | None,
    settings: Settings,
    say: Say,
    baselines: Callable[[], Sequence[str] | BaselineResults] = lambda: BASELINES,
    scored: Scored = lambda found: None,
    with_report: bool = True,
    progress: Mode = False,
) -> None:
    """Everything that comes after the fit, from what is computed of it once."""
    began = ticks()
    found = examine(
        posterior, test, baselines=baselines, num_paths=settings.num_paths, say=say, scored=scored
    )
    if not found.held:
        for name, forecast in found.forecasts.items():
            table = to_csv(forecast.to_dataframe(settings.levels))
            run.write(
                FORECAST if name == settings.method else f"{BASELINE_FOLDER}/{name}.csv", table
            )
    metrics = found.to_dict()
    metrics["seconds"]["judge"] = ticks() - began
    run.write_json(METRICS, metrics)
    if not with_report:
        return
    began = ticks()
    metrics["notes"] += draw_figures(run, found, progress)
    run.write_json(METRICS, metrics)
    say("Writing the report")
    report(run, found)
    metrics["seconds"]["report"] = ticks() - began
    run.write_json(METRICS, metrics)


def draw_figures(run: Run, found: Examination, progress: Mode = False) -> list[str]:
    """Draw what there is to draw, and give back what could not be drawn: a picture must not cost a run."""
    notes, figures = [], figures_of(found)
    for name in tracked(list(figures), progress, "figures"):
        try:
            run.write(f"{FIGURES}/{name}.png", to_png(figures[name](), DPI))
        except OSError:
            raise
        except ImportError as error:
            return [f"No figures were drawn: {error}"]
        except Exception as error:
            notes.append(f"The figure {name} could not be drawn: {error}")
    return notes


def report(run: Run, found: Examination) -> Path:
    """Write the report of a run, with the figures that are there."""
    pictures = {path.stem: path.read_bytes() for path in (run.folder / FIGURES).glob("*.png")}
    files = {
        name: (run.folder / name).read_text()
        for name in (CONFIG, METRICS)
        if (run.folder / name).is_file()
    }
    return write_report(
        found, run.folder / REPORT, pictures=pictures, files=files, title=run.folder.name
    )


def report_again(run: Run, say: Say = lambda text: None) -> Path:
    """Examine a run once more, and write its report."""
    return report(
        run, examine(run.posterior(), run.test(), num_paths=run.settings().num_paths, say=say)
    )


def forecast_run(
    run: Run,
    inputs: str | Path | None = None,
    horizon: int | None = None,
    num_paths: int | None = None,
    seed: int | None = None,
) -> Forecast:
    """What follows the training data of a run, under the controls of a file, or else of the rows held out."""
    settings, posterior = run.settings(), run.posterior()
    if inputs is None:
        u = run.test()
        if u is None and posterior.dataset.inputs:
            names = ", ".join(posterior.dataset.inputs)
            raise ValueError(
                f"the model has controls ({names}): give a file that has them at the steps to come, --inputs"
            )
    elif not posterior.dataset.inputs:
        raise ValueError(
            "the model has no controls: leave out --inputs, and say how far with --horizon"
        )
    else:
        u = read(inputs, settings.inputs, time=None).y
    seed = settings.seed if seed is None else seed
    return forecast_rows(posterior, u, horizon, num_paths or settings.num_paths, seed)


def run_demo(
    out: str | Path,
    seed: int = 0,
    *,
    progress: Mode = True,
    say: Say = print,
    scored: Scored = lambda found: None,
    compared: Scored = lambda found: None,
) -> Run:
    """Simulate a driven Duffing oscillator, half of it to train on, and do a run on it.

    The data are written beside the folder, as `demo.csv` beside `demo`. A demonstration that is there is replaced, any
    other run or file is not.
    """
    out = Path(out)
    path = out.absolute().with_name(f"{out.name}.csv")
    series = replace(
        simulate("duffing", seed=seed).series, outputs=("position",), inputs=("force",)
    )
    settings = Settings(
        (str(path),),
        series.outputs,
        series.inputs,
        train=0.5,
        dt=series.dt,
        seed=seed,
        fit=MODEL,
        method_settings=EFFORT,
    )
    again = (out / CONFIG).is_file() and Run(out).settings().files == settings.files
    if path.exists() and not again:
        raise FileExistsError(
            f"{path} is there already, and the data of the demonstration would replace it: name another --out"
        )
    say(f"Simulating a driven Duffing oscillator: {len(series)} rows, half of them to train on")
    Run(path.parent).write_series(path.name, series)
    return execute(
        settings, out, overwrite=again, progress=progress, say=say, scored=scored, compared=compared
    )
