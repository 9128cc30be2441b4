"""Fit a separate model to each of many series, in parallel and resumably; failures are
collected."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpssm.core.files import digest, make_folder
from gpssm.core.messages import warn
from gpssm.core.places import run_tasks
from gpssm.core.text import check_path, count, in_line
from gpssm.data.series import Series, as_list
from gpssm.fitting.fit import fit, with_settings
from gpssm.fitting.single import was_interrupted
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.inference.runner import Runtime
from gpssm.methods.spec import Spec
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack, load


@dataclass(frozen=True, eq=False, repr=False)
class Fits(Mapping[str, Posterior | Stack]):
    """A mapping from names to posteriors; posteriors in a folder are loaded on demand.

    Parameters
    ----------
    posteriors
        The posterior of each fitted series, or the file that contains it.
    failures
        The error of each series that could not be fitted.
    """

    posteriors: Mapping[str, Posterior | Stack | Path]
    failures: Mapping[str, Exception]

    def __getitem__(self, name: str) -> Posterior | Stack:
        if name in self.failures:
            error = self.failures[name]
            raise KeyError(f"{name!r} was not fitted: {type(error).__name__}: {error}")
        posterior = self.posteriors[name]
        return load(posterior) if isinstance(posterior, Path) else posterior

    def __iter__(self) -> Iterator[str]:
        return iter(self.posteriors)

    def __len__(self) -> int:
        return len(self.posteriors)

    def __repr__(self) -> str:
        failed = f", {count(len(self.failures), 'failure')}" if self.failures else ""
        return f"Fits({count(len(self), 'posterior')}{failed})"


def fit_many(
    series: Mapping[str, Any],
    spec: Spec | None = None,
    *,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
    runtime: Runtime | None = None,
    folder: str | Path | None = None,
    jobs: int = 1,
    threads: bool = False,
    cluster: Any = None,
    progress: Mode = True,
    **settings: Any,
) -> Fits:
    """Fit a separate model with the same settings to each of many series.

        fits = gpssm.fit_many({"north": first, "south": second}, folder="pumps", jobs=8)
        fits["north"].forecast(u=plan)
        fits.failures

    Each posterior equals the result of `gpssm.fit` for that series alone. If a series cannot be
    fitted, the others are not affected: a warning names it at the end, and `failures` has its
    error.

    Parameters
    ----------
    series
        Data by name; each value is accepted by `gpssm.fit`: a series, a DataFrame, or a list of
        experiments.
    spec, runtime
        As in `gpssm.fit`; a checkpoint is not supported.
    outputs, inputs
        Column names of DataFrames.
    folder
        Where to save each posterior as soon as it is fitted. Series with a posterior of the same
        data and settings in this folder are skipped; failed series are fitted again.
    jobs
        Number of fits that run at the same time on this machine; each process has one thread.
    threads
        Whether to use threads instead of processes; threads share compiled programs.
    cluster
        Address of a Dask scheduler to run on instead, tcp://host:8786, or a client.
    progress
        True for one bar over all series, "plain" for one line per series, False for no output.
    **settings
        Fields of `gpssm.Spec` and `gpssm.Runtime` by name, as in `gpssm.fit`.

    Returns
    -------
    Fits
        A mapping from names to posteriors.
    """
    if not isinstance(series, Mapping) or not all(isinstance(name, str) for name in series):
        raise TypeError(
            "series must be a dictionary of series by name, {'north': rows}; "
            f"got {type(series).__name__}"
        )
    check_progress(progress)
    spec, runtime = with_settings(spec or Spec(), runtime or Runtime(), settings)
    if runtime.checkpoint is not None:
        raise ValueError(
            "fit_many does not support checkpoint: pass folder, in which it saves each posterior"
        )
    runtime = runtime.replace(progress=False)
    failures: dict[str, Exception] = {}
    experiments: dict[str, list[Series]] = {}
    for name, data in series.items():
        try:
            experiments[name] = as_list(data, None, outputs, inputs)
        except (TypeError, ValueError) as error:
            failures[name] = error
    files: dict[str, Path] = {}
    if folder is not None:
        folder = check_path(folder)
        make_folder(folder)
        for name, rows in experiments.items():
            files[name] = folder / _file_name(name, rows, spec, runtime)
    waiting = [name for name in experiments if name not in files or not files[name].is_file()]
    tasks = [experiments[name] for name in waiting]
    work = partial(_fit_quietly, spec, runtime, threads)
    arrivals = run_tasks(tasks, work, jobs, cluster, threads)
    fitted = _collect(arrivals, waiting, files, failures, progress)
    if failures:
        reasons = (f"{name!r} ({type(e).__name__}: {in_line(e)})" for name, e in failures.items())
        warn(f"{len(failures)} of {len(series)} series could not be fitted: {', '.join(reasons)}")
    posteriors = {name: files.get(name) or fitted[name] for name in series if name not in failures}
    return Fits(posteriors, failures)


def _collect(
    arrivals: Iterator[tuple[int, Any]],
    waiting: Sequence[str],
    files: Mapping[str, Path],
    failures: dict[str, Exception],
    progress: Mode,
) -> dict[str, Posterior | Stack]:
    """Collect the posteriors that have no file; errors are added to `failures`."""
    fitted: dict[str, Posterior | Stack] = {}
    with warnings.catch_warnings():
        # Notes are in the posteriors. Threads share warning filters, and must not change them.
        warnings.simplefilter("ignore", UserWarning)
        for number, result in tracked(
            arrivals, progress, "fit", lambda arrival: in_line(waiting[arrival[0]]), len(waiting)
        ):
            name = waiting[number]
            if isinstance(result, Exception):
                failures[name] = result
            elif was_interrupted(result):
                raise KeyboardInterrupt(
                    f"Stopped while {name!r} was fitted. If there is a folder, its posteriors are "
                    "complete: pass the same arguments to continue."
                )
            elif name in files:
                result.save(files[name], overwrite=True)
            else:
                fitted[name] = result
    return fitted


def _fit_quietly(
    spec: Spec, runtime: Runtime, threads: bool, experiments: list[Series]
) -> Posterior | Stack:
    if threads:
        return fit(experiments, spec=spec, runtime=runtime)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return fit(experiments, spec=spec, runtime=runtime)


def _file_name(name: str, experiments: list[Series], spec: Spec, runtime: Runtime) -> str:
    """Return the file name for the posterior of a series, with a hash of its data and settings."""
    settings = {
        key: value.draws if isinstance(value, Posterior) else value
        for key, value in spec.to_dict().items()
    }
    columns = [
        (rows.name, rows.outputs, rows.inputs, rows.units, rows.axis) for rows in experiments
    ]
    identity = digest(settings, runtime.num_chains, runtime.seed, experiments, columns)
    return re.sub(r"[^\w.-]", "_", name) + f"-{identity}.nc"
