"""Run folders: the results of a fit in files that other programs can read.

    config.toml      every setting: see `settings.py`
    posterior.nc     the posterior, with the training data: `gpssm.load`
    test.csv         the rows that were held out, outputs and inputs
    forecast.csv     the forecast of those rows, or of the 30 after the data if there are no inputs
    baselines/*.csv  the forecasts of each baseline
    metrics.json     scores, checks, notes and seconds
    figures/*.png    figures
    report.html      a report of all results
    checkpoint/      the state of the sampler while it runs

`metrics.json` has

    method           the method's name
    state_dim, num_chains, num_draws
    scores           {"ffvd": {"rmse": ..., "coverage_90": ...}, "arx": ...}: of one simulation of
                     the test rows; empty without any
    units            {"level": "m"}, of signals with a unit
    test             {"rows": 148, "first": 148, "hash": ...}: the test rows; null without any
    rolling          {"protocol": ..., "held_out": true, "origins": 12, "horizon": 30, "step": 10,
                     "methods": {"ffvd": {"scaled_crps": ..., "outputs": {"level": {"rmse": ...,
                     "rmse_first": ..., "rmse_last": ..., "rmse_by_step": [...]}}}}}: the first
                     and the last `step` steps ahead are scored on the same rows
    checks           [{"name": ..., "level": "good", "figure": ..., "words": ..., "protocol": ...}]
    diagnostics      R-hat and effective draws by group of quantities
    summary          the output of `gpssm info`
    seconds          {"baselines": ..., "fit": ..., "judge": ..., "report": ...}
    notes            messages to the user

Missing numbers are null.
"""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpssm.cli.settings import HEAD, Settings, from_toml
from gpssm.core.files import hold, make_folder, write_atomically
from gpssm.core.text import check_path, from_csv, read_csv, to_csv
from gpssm.data.series import Series
from gpssm.inference.checkpoint import CARRY
from gpssm.posterior.stack import Forecaster, load

if TYPE_CHECKING:
    import pandas as pd

CONFIG = "config.toml"
POSTERIOR = "posterior.nc"
TEST = "test.csv"
FORECAST = "forecast.csv"
METRICS = "metrics.json"
REPORT = "report.html"
BASELINE_FOLDER = "baselines"
FIGURES = "figures"
CHECKPOINT = "checkpoint"
CONTENTS = (
    CONFIG,
    POSTERIOR,
    TEST,
    FORECAST,
    METRICS,
    REPORT,
    BASELINE_FOLDER,
    FIGURES,
    CHECKPOINT,
)


@dataclass(frozen=True)
class Run:
    """A run folder, with methods to read and write its files."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Return the finished run in a folder, or raise if there is none."""
        run = cls(check_path(folder))
        if not _is_run(run.folder):
            raise FileNotFoundError(
                f"{folder} is not a run: it contains no {CONFIG}. Use `gpssm fit` to create one"
            )
        if not (run.folder / POSTERIOR).is_file():
            raise FileNotFoundError(
                f"{folder} is not finished. Continue with: gpssm fit --resume --out {folder}"
            )
        return run

    @staticmethod
    @contextmanager
    def claimed(folder: str | Path) -> Iterator[None]:
        """Create a folder if necessary, and lock it against other processes."""
        folder = check_path(folder)
        make_folder(folder)
        with hold(folder):
            yield

    @classmethod
    def create(
        cls,
        folder: str | Path,
        settings: Settings,
        *,
        resume: bool = False,
        overwrite: bool = False,
    ) -> "Run":
        """Claim a folder for a run and write its configuration.

        Without `overwrite`, only a run that failed before sampling is replaced.
        """
        run = cls(Path(folder))
        is_run = _is_run(run.folder)
        if not is_run and run.folder.is_dir() and any(run.folder.iterdir()):
            raise FileExistsError(f"{folder} contains other files: pass another folder with --out")
        if is_run and resume:
            run.check_same(settings)
            return run
        if is_run and run.begun and not overwrite:
            raise FileExistsError(
                f"{folder} already contains a run. Pass --resume to continue it, --overwrite to "
                "replace it, or another folder with --out"
            )
        try:
            run.clear()
            run.write(CONFIG, settings.to_toml())
        except OSError as error:
            reason = error.strerror
            message = f"{folder} cannot be written ({reason}): pass another folder with --out"
            raise OSError(error.errno, message) from error
        return run

    def check_same(self, settings: Settings) -> None:
        """Raise if settings differ from those with which the run was started."""
        saved = tomllib.loads(self.settings().to_toml())
        new = tomllib.loads(settings.to_toml())
        differences = [
            f"{name} ({saved[table].get(name)} there, {new[table].get(name)} here)"
            for table in saved
            for name in saved[table] | new[table]
            if saved[table].get(name) != new[table].get(name)
        ]
        if differences:
            raise ValueError(
                f"{self.folder} was started with other settings: {'; '.join(differences)}. Omit "
                "them to resume it, or pass another folder with --out"
            )

    def clear(self) -> None:
        """Remove the files of the run, but no others."""
        for name in CONTENTS:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint during sampling."""
        return self.folder / CHECKPOINT

    @property
    def begun(self) -> bool:
        """Whether anything has been sampled."""
        return (self.folder / POSTERIOR).is_file() or any(self.checkpoint.rglob(CARRY))

    @property
    def files(self) -> dict[str, int]:
        """Return the files of the run with their sizes in bytes."""
        paths = [
            path
            for name in CONTENTS
            for path in sorted(self.folder.glob(f"{name}/*")) or [self.folder / name]
        ]
        return {
            str(path.relative_to(self.folder)): path.stat().st_size
            for path in paths
            if path.is_file()
        }

    def settings(self) -> Settings:
        """The settings of the run."""
        return Settings(**from_toml(self.folder / CONFIG))

    def posterior(self) -> Forecaster:
        """Return the posterior, which includes the training data."""
        return load(self.folder / POSTERIOR)

    def test(self) -> Series | None:
        """Return the held-out rows; None if there are none."""
        path = self.folder / TEST
        if not path.is_file():
            return None
        settings = self.settings()
        table = from_csv(read_csv(path))
        width = len(settings.outputs)
        times: dict[str, Any] = {"dt": settings.reader.get("dt")}
        if table.shape[1] > width + len(settings.inputs):
            times = {"time": table.iloc[:, 0]}
            table = table.iloc[:, 1:]
        units = settings.reader.get("units")
        return Series(table.iloc[:, :width], table.iloc[:, width:], units=units, **times)

    def metrics(self) -> dict[str, Any]:
        """Return the contents of metrics.json."""
        path = self.folder / METRICS
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.folder} has no {METRICS}. Finish it with: gpssm fit --resume --out "
                f"{self.folder}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}). Fit again with --overwrite") from None

    def forecasts(self) -> dict[str, "pd.DataFrame"]:
        """Return the forecasts by method, that of the fit first, as from
        `Forecast.to_dataframe`.
        """
        baselines = sorted((self.folder / BASELINE_FOLDER).glob("*.csv"))
        paths = {self.metrics()["method"]: self.folder / FORECAST}
        paths |= {path.stem: path for path in baselines}
        return {
            name: from_csv(read_csv(path, index_col=0))
            for name, path in paths.items()
            if path.is_file()
        }

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file of the run atomically."""
        path = self.folder / name
        data = content.encode() if isinstance(content, str) else content
        make_folder(path.parent)
        write_atomically(path, lambda file: file.write(data))
        return path

    def write_series(self, name: str, series: Series) -> Path:
        """Write a series as CSV exactly, with times if there are any, outputs and inputs."""
        timed = series.clock is not None and series.clock.name is not None
        return self.write(name, to_csv(series.to_dataframe(), index=timed))


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Return scores of runs on the same rows, with each baseline once.

    Returns
    -------
    dict
        `test`, `units`, `scores` and `rolling` as in `metrics.json`, with folders instead of the
        methods of the runs.
    """
    metrics = {str(run.folder): run.metrics() for run in runs}
    if unjudged := [folder for folder, figures in metrics.items() if not figures["scores"]]:
        raise ValueError(
            f"{', '.join(unjudged)} has no scores because no rows were held out: fit again with "
            "--train 0.8"
        )
    first = next(iter(metrics.values()))
    others = [
        folder
        for folder, figures in metrics.items()
        if figures["test"]["hash"] != first["test"]["hash"]
    ]
    if others:
        raise ValueError(
            f"{', '.join(others)} was scored on other rows than {next(iter(metrics))}: compare "
            "runs of the same file, columns and --train"
        )

    def merge(select: Callable[[dict[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the scores by method of all runs."""
        merged = {folder: select(figures)[figures["method"]] for folder, figures in metrics.items()}
        for figures in metrics.values():
            for name, scores in select(figures).items():
                if name != figures["method"]:
                    merged.setdefault(name, scores)
        return merged

    return {
        "test": first["test"],
        "units": first["units"],
        "scores": merge(lambda figures: figures["scores"]),
        "rolling": first["rolling"]
        | {"methods": merge(lambda figures: figures["rolling"]["methods"])},
    }


def _is_run(folder: Path) -> bool:
    """Return whether a folder has a configuration of gpssm, as other programs use this name too."""
    path = folder / CONFIG
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(HEAD)
