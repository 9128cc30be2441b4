"""From settings to a finished run folder: read, fit, fit the baselines, forecast, judge, draw, report."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpssm.checkpoint import digest
from gpssm.fit import fit
from gpssm.gallery import draw_figures
from gpssm.judging import Judged, judge
from gpssm.posterior import Posterior
from gpssm.progress import Mode
from gpssm.report import write_report
from gpssm.report.contest import BASELINES as COMPARED
from gpssm.report.contest import fit_baselines
from gpssm.runs import BASELINES, CONFIG, FIGURES, FORECAST, METRICS, POSTERIOR, REPORT, TEST, Run
from gpssm.series import Series, check_trainable
from gpssm.settings import Settings

Say = Callable[[str], None]


def execute(
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Mode = True,
    say: Say = lambda text: None,
) -> Run:
    """Do a run, or what of it is left to do, and give back its folder.

    :param resume: go on with the run in the folder: with its checkpoint, or with its posterior if that is there.
    :param overwrite: replace a run that is there.
    :param say: told what is being done.
    """
    rows = settings.load()
    check_trainable(rows.train)
    settings = settings.complete()
    run = Run.create(out, settings, resume=resume, overwrite=overwrite)
    with _resumable(run):
        if rows.test is not None:
            run.write_series(TEST, rows.test)
        posterior = _posterior(run, settings, rows.train, progress, say)
        finish(run, posterior, rows.test, settings, say)
    return run


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


def _posterior(run: Run, settings: Settings, train: list[Series], progress: Mode, say: Say) -> Posterior:
    """The run's posterior: the one saved, or a fit that is saved when all its draws are there."""
    if (run.folder / POSTERIOR).is_file():
        return run.posterior()
    say(f"Fitting {settings.method} to {sum(map(len, train))} rows")
    posterior = fit(train, progress=progress, checkpoint=run.checkpoint, resume=True, **settings.fit_arguments)
    wanted = settings.config.num_draws
    if posterior.num_draws < wanted:
        raise KeyboardInterrupt(f"Stopped after {posterior.num_draws} of {wanted} draws a chain")
    posterior.save(run.folder / POSTERIOR)
    shutil.rmtree(run.checkpoint)
    return posterior


def finish(run: Run, posterior: Posterior, test: Series | None, settings: Settings, say: Say) -> None:
    """Everything that comes after the fit."""
    say("Fitting the baselines")
    baselines, failures = fit_baselines(posterior, COMPARED)
    judged = judge(posterior, baselines, test, settings)
    for name, forecast in judged.forecasts.items():
        table = forecast.to_dataframe(settings.levels).to_csv()
        run.write(FORECAST if name == settings.method else f"{BASELINES}/{name}.csv", table)
    say("Drawing figures")
    notes = [*posterior.notes, *failures, *judged.notes, *draw_figures(run, posterior, judged, test)]
    run.write_json(METRICS, _metrics(posterior, judged, test, settings, notes))
    say("Writing the report")
    report(run, posterior, test, baselines)


def report(
    run: Run, posterior: Posterior, test: Series | None, baselines: Sequence[str] | Mapping[str, Posterior] = COMPARED
) -> Path:
    """Write the report of a run, with the figures that are there."""
    pictures = {path.stem: path.read_bytes() for path in (run.folder / FIGURES).glob("*.png")}
    files = {name: (run.folder / name).read_text() for name in (CONFIG, METRICS) if (run.folder / name).is_file()}
    return write_report(
        posterior,
        run.folder / REPORT,
        test=test,
        baselines=baselines,
        pictures=pictures,
        files=files,
        title=run.folder.name,
    )


def _metrics(
    posterior: Posterior, judged: Judged, test: Series | None, settings: Settings, notes: list[str]
) -> dict[str, Any]:
    where = test and {"rows": len(test), "first": len(posterior.raw[-1]), "hash": digest(test)}
    return {
        "method": settings.method,
        "state_dim": posterior.model.state_dim,
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_draws,
        "horizons": dict(judged.horizons),
        "scores": judged.scores,
        "test": where,
        "seconds": posterior.seconds._asdict(),
        "notes": notes,
    }
