"""A run folder: what a fit leaves behind, all of it readable by other programs.

    config.toml      every setting: `settings.py`
    posterior.nc     the posterior, with the training data: `gpssm.load`
    test.csv         the rows that were held out, outputs and controls, one row a step
    forecast.csv     the forecast of those rows, or of the 30 after the data where there are no controls
    baselines/*.csv  the same of each baseline
    metrics.json     scores of all of them, notes, seconds
    figures/*.png    pictures
    report.html      all of it for reading
    checkpoint/      the state of the sampler while it runs

`metrics.json` has

    method           the method's name
    state_dim, num_chains, num_draws
    horizons         {"30": 30, "full": 148}: the steps of each judgement; empty without test rows
    scores           {"30": {"ffvd": {"rmse": ..., "crps": ..., "coverage_90": ...}, "arx": ...}, "full": ...}
    units            {"level": "m"}, of those signals that have one
    by_output        {"30": {"ffvd": {"level": {"rmse": ..., ...}}}}: the same of each output by itself
    test             {"rows": 148, "first": 148, "hash": ...}: what was judged on; null without test rows
    seconds          {"setup": ..., "compile": ..., "run": ..., "judge": ..., "report": ...}
    rolling          {"protocol": ..., "held_out": true, "origins": 12, "horizon": 30, "methods": {"ffvd": ...}}
    checks           [{"name": ..., "level": "good", "figure": ..., "words": ..., "protocol": ...}, ...]
    diagnostics      R-hat and effective draws by group of quantities
    summary          what `gpssm info` shows
    notes            what went wrong or should be known, as sentences

A figure that does not exist is null. test.csv, forecast.csv and baselines/ are there as far as they can be: a forecast
needs controls, if the model has any.
"""

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpssm.cli.settings import HEAD, Settings, from_toml
from gpssm.core.files import hold, make_folder, write_atomically
from gpssm.core.text import check_path, from_csv, read_csv, to_csv, to_json
from gpssm.data.series import Series
from gpssm.evaluation.load import load
from gpssm.inference.checkpoint import CARRY
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd

CONFIG, POSTERIOR, TEST, FORECAST = "config.toml", "posterior.nc", "test.csv", "forecast.csv"
METRICS, REPORT = "metrics.json", "report.html"
BASELINE_FOLDER, FIGURES, CHECKPOINT = "baselines", "figures", "checkpoint"
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
    """A run folder and how to read and write what is in it."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """The run in a folder that has been finished; one that was broken off has no posterior yet."""
        run = cls(check_path(folder))
        if not _is_run(run.folder):
            raise FileNotFoundError(
                f"{folder} is not a run: there is no {CONFIG} in it. `gpssm fit` makes a run{_beside(run.folder)}"
            )
        if not (run.folder / POSTERIOR).is_file():
            raise FileNotFoundError(
                f"{folder} is not finished. Go on with: gpssm fit --resume --out {folder}"
            )
        return run

    @staticmethod
    @contextmanager
    def claimed(folder: str | Path) -> Iterator[None]:
        """Keep other processes from working in a folder, which is made if need be."""
        folder = check_path(folder)
        try:
            if not folder.exists():
                folder.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        with hold(folder) if folder.is_dir() else nullcontext():
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

        Nothing is replaced without being asked for, but a run that failed before it had sampled anything.
        """
        run = cls(Path(folder))
        if run.folder.exists() and not run.folder.is_dir():
            raise FileExistsError(f"{folder} is a file: name a folder with --out")
        there = _is_run(run.folder)
        if not there and run.folder.is_dir() and any(run.folder.iterdir()):
            raise FileExistsError(
                f"{folder} holds other things than a run: name another folder with --out"
            )
        if there and resume:
            run.check_same(settings)
            return run
        if there and run.begun and not overwrite:
            raise FileExistsError(
                f"{folder} holds a run already. Give --resume to go on with it, --overwrite to replace it, "
                "or name another folder with --out"
            )
        try:
            run.clear()
            run.write(CONFIG, settings.to_toml())
        except OSError as error:
            raise _unwritable(run.folder, error) from error
        return run

    def check_same(self, settings: Settings) -> None:
        """Refuse to go on with the run under other settings than its own."""
        own, wanted = self.tables(), tomllib.loads(settings.to_toml())
        differ = [
            f"{name} ({own[table].get(name)} there, {wanted[table].get(name)} here)"
            for table in own
            for name in own[table] | wanted[table]
            if own[table].get(name) != wanted[table].get(name)
        ]
        if differ:
            raise ValueError(
                f"{self.folder} was begun with other settings: {'; '.join(differ)}. Leave them out to go on with it, "
                "or name another folder with --out"
            )

    def clear(self) -> None:
        """Remove what a run consists of, and nothing else."""
        for name in CONTENTS:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @property
    def checkpoint(self) -> Path:
        """The sampler's folder while it runs."""
        return self.folder / CHECKPOINT

    @property
    def begun(self) -> bool:
        """Whether anything has been sampled."""
        return (self.folder / POSTERIOR).is_file() or (self.checkpoint / CARRY).is_file()

    @property
    def files(self) -> dict[str, int]:
        """Everything in the folder that belongs to the run, with sizes in bytes."""
        found = (
            path
            for name in CONTENTS
            for path in sorted((self.folder).glob(f"{name}/*")) or [self.folder / name]
        )
        return {
            str(path.relative_to(self.folder)): path.stat().st_size
            for path in found
            if path.is_file()
        }

    def settings(self) -> Settings:
        """What the run was made with."""
        return Settings(**from_toml(self.folder / CONFIG))

    def tables(self) -> dict[str, Any]:
        """The same as the tables of config.toml."""
        return tomllib.loads(self.settings().to_toml())

    def posterior(self) -> Posterior:
        """The posterior, with the training data in it."""
        return load(self.folder / POSTERIOR)

    def test(self) -> Series | None:
        """The rows held out; None where there are none."""
        path = self.folder / TEST
        if not path.is_file():
            return None
        settings, table = self.settings(), from_csv(read_csv(path))
        width = len(settings.outputs)
        # Runs of older versions, and those without times, have outputs and controls alone.
        time = table.iloc[:, 0] if table.shape[1] > width + len(settings.inputs) else None
        table = table if time is None else table.iloc[:, 1:]
        dt = None if time is not None else settings.dt
        return Series(
            table.iloc[:, :width], table.iloc[:, width:], dt=dt, time=time, units=settings.units
        )

    def metrics(self) -> dict[str, Any]:
        """The contents of metrics.json."""
        path = self.folder / METRICS
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.folder} has no {METRICS}. Finish it with: gpssm fit --resume --out {self.folder}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}). Fit again with --overwrite") from None

    def forecasts(self) -> dict[str, "pd.DataFrame"]:
        """The forecasts by method, the run's own first, each as `Forecast.to_dataframe` gives it."""
        own = {self.metrics()["method"]: self.folder / FORECAST}
        paths = own | {
            path.stem: path for path in sorted((self.folder / BASELINE_FOLDER).glob("*.csv"))
        }
        return {
            name: from_csv(read_csv(path, index_col=0))
            for name, path in paths.items()
            if path.is_file()
        }

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file of the run; what was there before stays until all of it is on the disk."""
        path, data = self.folder / name, content.encode() if isinstance(content, str) else content
        make_folder(path.parent)
        write_atomically(path, lambda file: file.write(data))
        return path

    def write_series(self, name: str, series: Series) -> Path:
        """Write a series as CSV: its column of times, if it has one, outputs, controls, to the last bit."""
        timed = series.clock is not None and series.clock.name is not None
        return self.write(name, to_csv(series.to_dataframe(), index=timed))

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a file of JSON, with null for what is not a number."""
        return self.write(name, to_json(content) + "\n")


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Scores of runs that were judged on the same rows, baselines once: `horizons`, `scores` and `by_output`."""
    found = {str(run.folder): run.metrics() for run in runs}
    if unjudged := [name for name, metrics in found.items() if not metrics["scores"]]:
        raise ValueError(
            f"{', '.join(unjudged)} has no scores, as no rows were held out: fit again with --train 0.8"
        )
    rows = {name: metrics["test"]["hash"] for name, metrics in found.items()}
    first = next(iter(found))
    if others := [name for name in found if rows[name] != rows[first]]:
        raise ValueError(
            f"{', '.join(others)} was judged on other rows than {first}: compare runs of the same "
            "file, columns and --train"
        )

    def together(key: str) -> dict[str, dict[str, Any]]:
        scores = {label: {} for label in found[first].get(key, {})}
        for label, by_name in scores.items():
            for name, one in found.items():
                by_name |= {name: one.get(key, {}).get(label, {}).get(one["method"], {})}
            for one in found.values():
                others = one.get(key, {}).get(label, {})
                by_name |= {
                    name: others[name] for name in others if name not in (one["method"], *by_name)
                }
        return scores

    units = found[first].get("units", {})
    return {
        "horizons": found[first]["horizons"],
        "units": units,
        "scores": together("scores"),
        "by_output": together("by_output"),
    }


def _unwritable(folder: Path, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"{folder} cannot be written ({error.strerror}): name another folder with --out",
    )


def _is_run(folder: Path) -> bool:
    """Whether there is a configuration of ours: other programs have files of that name too."""
    path = folder / CONFIG
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(HEAD)


def _beside(folder: Path) -> str:
    """The runs that lie beside a folder, as the end of a sentence."""
    near = folder.parent if folder.parent.is_dir() else Path("runs")
    found = sorted(path.parent for path in near.glob(f"*/{CONFIG}"))[:5]
    return f"; there are {', '.join(map(str, found))}" if found else ""
