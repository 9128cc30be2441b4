"""How good a run's forecasts are: of the rows held out, with the baselines' beside.

The figures of a run.

From settings to a finished run folder: read, fit, fit the baselines, forecast, judge, draw, report.

The demonstration: a series with known truth, a run on it, and how well it forecasts.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm import plots
from gpssm.cli.run_folder import BASELINES, CONFIG, FIGURES, FORECAST, METRICS, POSTERIOR, REPORT, TEST, Run
from gpssm.cli.settings import Settings
from gpssm.core.files import digest
from gpssm.data.datasets import simulate
from gpssm.data.readers import read
from gpssm.data.series import Series, check_trainable
from gpssm.fitting.fit import fit
from gpssm.fitting.progress import Mode
from gpssm.plots.style import to_png
from gpssm.posterior.forecast import HORIZON, Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.report import write_report
from gpssm.report.contest import BASELINES as COMPARED
from gpssm.report.contest import fit_baselines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORED = (0.5, 0.8, 0.9)
MOST_VALUES = 2e7  # of all paths of a forecast together: more do not fit where they are sorted and scored


@dataclass(frozen=True)
class Judged:
    """Forecasts of the run's method (first) and of the baselines, and their scores by horizon and method."""

    forecasts: Mapping[str, Forecast]
    horizons: Mapping[str, int]
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    notes: tuple[str, ...]


def judge(posterior: Posterior, baselines: Mapping[str, Posterior], test: Series | None, settings: Settings) -> Judged:
    """Forecast the test rows, or as many steps as are usual where no controls are needed, with the baselines beside."""
    if test is None and posterior.raw[-1].inputs:
        return Judged({}, {}, {}, ())
    candidates = {settings.method: posterior, **baselines}
    forecasts = {name: predict(one, test, settings) for name, one in candidates.items()}
    horizons = {} if test is None else _horizons(test)
    scores = {
        label: {name: _plain(one[:steps].score(test, SCORED)) for name, one in forecasts.items()}
        for label, steps in horizons.items()
    }
    trust = forecasts[settings.method].diagnostics
    return Judged(forecasts, horizons, scores, trust.notes if trust else ())


def predict(
    posterior: Posterior, u: Any, settings: Settings, horizon: int | None = None, num_paths: int | None = None
) -> Forecast:
    """The forecast under controls `u` (a Series or an array of rows); of a long one fewer paths are kept."""
    steps = horizon or (HORIZON if u is None else len(u))
    most = int(MOST_VALUES / (steps * posterior.raw[-1].output_dim))
    controls = u if posterior.raw[-1].inputs else None
    paths = max(min(num_paths or settings.num_paths, most), 2)
    return posterior.forecast(steps, controls, num_paths=paths, seed=settings.seed)


def forecast_run(
    run: Run, inputs: str | Path | None = None, horizon: int | None = None, num_paths: int | None = None
) -> Forecast:
    """What follows the training data of a run, under the controls of a file, or else of the rows held out."""
    settings, posterior = run.settings(), run.posterior()
    if inputs is None:
        u = run.test()
        if u is None and posterior.raw[-1].inputs:
            names = ", ".join(posterior.raw[-1].inputs)
            raise ValueError(
                f"the model has controls ({names}): give a file that has them at the steps to come, --inputs"
            )
    elif not posterior.raw[-1].inputs:
        raise ValueError("the model has no controls: leave out --inputs, and say how far with --horizon")
    else:
        u = read(inputs, settings.inputs).y
    return predict(posterior, u, settings, horizon, num_paths)


def _horizons(test: Series) -> dict[str, int]:
    """The steps to judge by: the first 30, and all, as far as something was observed in them."""
    steps = {str(HORIZON): HORIZON} if len(test) > HORIZON else {}
    return {
        name: number for name, number in (steps | {"full": len(test)}).items() if np.isfinite(test.y[:number]).any()
    }


def _plain(scores: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in scores.items()}


DPI = 150


def draw_figures(run: Run, posterior: Posterior, judged: Judged, test: Series | None) -> list[str]:
    """Draw what there is to draw, and give back what could not be drawn: a picture must not cost a run."""
    notes = []
    for name, picture in _pictures(posterior, judged, test).items():
        try:
            run.write(f"{FIGURES}/{name}.png", to_png(picture(), DPI))
        except OSError:
            raise
        except ImportError as error:
            return [f"No figures were drawn: {error}"]
        except Exception as error:
            notes.append(f"The figure {name} could not be drawn: {error}")
    return notes


def _pictures(posterior: Posterior, judged: Judged, test: Series | None) -> dict[str, Callable[[], "Figure"]]:
    """A function for each figure that the run has data for."""
    history, last = posterior.raw[-1], len(posterior.raw) - 1
    whole = history if test is None else _joined(history, test)
    several = [*posterior.raw[:-1], whole]
    found = {
        "series": lambda: plots.plot_series(several[-1] if test is not None else several, len(history)),
        "smoothed": lambda: plots.plot_smoothed(posterior, last),
        "states": lambda: plots.plot_states(posterior, last),
        "transition": lambda: plots.plot_transition(posterior),
        "traces": lambda: plots.plot_traces(posterior),
        "ess": lambda: plots.plot_ess(posterior),
        "residuals": lambda: plots.plot_residuals(posterior, last),
        "parameters": lambda: plots.plot_parameters(posterior),
    }
    own = next(iter(judged.forecasts.values()), None)
    if own is not None:
        found["forecast"] = lambda: plots.plot_forecast(own, test, history)
        found["comparison"] = lambda: plots.plot_comparison(judged.forecasts, test, history)
    if own is not None and judged.scores:
        found["calibration"] = lambda: plots.plot_calibration((own, test))
        found["scores"] = lambda: plots.plot_scores(next(iter(judged.scores.values())))
    return found


def _joined(first: Series, second: Series) -> Series:
    y, u = (np.concatenate(pair) for pair in ((first.y, second.y), (first.u, second.u)))
    return Series(y, u, name=first.name, dt=first.dt, outputs=first.outputs, inputs=first.inputs)


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


MODEL = {"state_dim": 2, "num_inducing": 20, "num_chains": 4}
EFFORT = {"num_warmup": 500, "num_draws": 250}


def run_demo(out: str | Path, seed: int = 0, *, progress: Mode = True, say: Callable[[str], None] = print) -> Run:
    """Simulate a driven Duffing oscillator, half of it to train on, and do a run on it.

    The data are written beside the folder, as `demo.csv` beside `demo`. A demonstration that is there is replaced, any
    other run or file is not.
    """
    out = Path(out)
    path = out.absolute().with_name(f"{out.name}.csv")
    series = replace(simulate("duffing", seed=seed).series, outputs=("position",), inputs=("force",))
    settings = Settings(
        (str(path),), series.outputs, series.inputs, train=0.5, dt=series.dt, seed=seed, fit=MODEL, own=EFFORT
    )
    again = (out / CONFIG).is_file() and Run(out).settings().files == settings.files
    if path.exists() and not again:
        raise FileExistsError(
            f"{path} is there already, and the data of the demonstration would replace it: name another --out"
        )
    say(f"Simulating a driven Duffing oscillator: {len(series)} rows, half of them to train on")
    Run(path.parent).write_series(path.name, series)
    return execute(settings, out, overwrite=again, progress=progress, say=say)
