"""The settings of a run, which can be written to TOML and read again.

    [data]       files, outputs, inputs, train, options of `gpssm.read`, the files' SHA-256
    [fit]        method, and settings of `gpssm.fit` by name
    [method]     settings of the method: num_warmup, num_draws, thin, learning_rate, ...
    [versions]   the versions of the software

In a file, only files and outputs are required; `Settings.to_toml` writes all settings.
"""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import inspect
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import gpssm
from gpssm.core.messages import warn
from gpssm.core.text import as_tuple, check_choice, check_path
from gpssm.data.readers import read
from gpssm.data.series import Series, find_outliers
from gpssm.data.times import DATE
from gpssm.fitting.fit import parse_settings
from gpssm.inference.runner import Runtime
from gpssm.methods import METHODS
from gpssm.methods.spec import Spec
from gpssm.model.kernels import KERNELS
from gpssm.model.likelihoods import LIKELIHOODS

ALL = "all"
HEAD = "# All settings of a run. To repeat it: `gpssm fit --config THIS_FILE --out FOLDER`.\n\n"
READER = tuple(inspect.signature(read).parameters)[3:]  # after path, outputs and inputs


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Parameters
    ----------
    files
        Data files, one per experiment.
    outputs, inputs
        Names or numbers of columns.
    train
        Number of rows, share of them, date, or "all"; it splits the last file.
    reader
        Options of `gpssm.read`; `time` is "none" to ignore all columns of times.
    fit
        The method and settings of `gpssm.fit` and of the method, by name.
    hashes, versions
        Hashes of the files and versions of the software, if the run has been executed.
    """

    files: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    train: int | float | str = ALL
    reader: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    hashes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, names in (("files", self.files), ("outputs", self.outputs)):
            if not names:
                raise ValueError(f"no {what} were given: pass at least one")
        check_train(self.train)
        spec, _ = self._parsed
        if isinstance(spec.kernel, str):
            for part in re.split(r"[+*]", spec.kernel):
                check_choice("a kernel", part.strip(), KERNELS)
        if isinstance(spec.likelihood, str):
            check_choice("likelihood", spec.likelihood, ["auto", *LIKELIHOODS])

    @cached_property
    def _parsed(self) -> tuple[Spec, Runtime]:
        values = {name: _frozen(value) for name, value in self.fit.items()}
        method = values.pop("method", "auto")
        return parse_settings(method, values, ("num_chains", "seed", "keep_states"))

    @property
    def spec(self) -> Spec:
        """The specification of the fit."""
        return self._parsed[0]

    @property
    def runtime(self) -> Runtime:
        """The runtime of the fit."""
        return self._parsed[1]

    def read(self, path: str, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> Series:
        """Read columns of a file with the reader options."""
        time = self.reader.get("time", "auto")
        options = {**self.reader, "time": None if time == "none" else time}
        return read(path, outputs, inputs, **options)

    def load(self) -> tuple[list[Series], Series | None]:
        """Return the training series and, unless all rows train, the last rows of the last file."""
        series = [self.read(path, self.outputs, self.inputs) for path in self.files]
        for outliers in (found for rows in series for found in find_outliers(rows)):
            warn(outliers.sentence)
        if self.train == ALL:
            return series, None
        *whole, last = series
        try:
            train, test = last.split(self.train)
        except ValueError as error:
            reason = f" ({error})" if isinstance(self.train, str) else ""
            raise ValueError(
                f"train = {self.train} leaves no row for training or none for testing of the "
                f"{len(last)} of {self.files[-1]}: it must be a number of rows, a fraction, a "
                f"date, or {ALL!r}{reason}"
            ) from None
        return [*whole, train], test

    def complete(self) -> Self:
        """Return the settings with current paths, hashes and versions."""
        paths = [Path(path).resolve() for path in self.files]
        return dataclasses.replace(
            self,
            files=tuple(map(str, paths)),
            hashes=tuple(map(_sha256, paths)),
            versions=current_versions(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the tables of config.toml with all defaults, but without None."""
        spec = self.spec.to_dict()
        method = spec["method"]
        runtime = {"num_chains": self.runtime.num_chains, "keep_states": self.runtime.keep_states}
        columns = {"files": self.files, "outputs": self.outputs, "inputs": self.inputs}
        # The method has a separate table; the others are objects.
        others = ("method", "physics", "prior", "prior_strength")
        tables = {
            "data": columns | {"train": self.train, **self.reader, "sha256": self.hashes},
            "fit": {"method": method.pop("name"), "seed": self.runtime.seed, **runtime}
            | {name: value for name, value in spec.items() if name not in others},
            "method": method,
            "versions": self.versions,
        }
        return {name: _for_toml(table) for name, table in tables.items()}

    def to_toml(self) -> str:
        """Return the settings as TOML."""
        import tomli_w

        return HEAD + tomli_w.dumps(self.to_dict())

    def changes(self) -> list[str]:
        """Return descriptions of versions and files that have changed since the settings were
        saved.
        """
        versions = current_versions()
        changed = [
            f"{name} {old}, now {versions[name]}"
            for name, old in self.versions.items()
            if versions.get(name, old) != old
        ]
        pairs = zip(map(Path, self.files), self.hashes, strict=False)
        files = [path for path, old in pairs if path.is_file() and _sha256(path) != old]
        return changed + [f"contents of {path}" for path in files]


def from_toml(path: str | Path) -> dict[str, Any]:
    """Return the fields of `Settings` in a file, with paths relative to its folder."""
    path = check_path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"the configuration {path} cannot be read ({error.strerror})"
        raise type(error)(error.errno, message) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    for table in tables:
        check_choice(f"a table of {path}", table, ("data", "fit", "method", "versions"))
    data = tables.get("data", {})
    columns = ("files", "outputs", "inputs")
    for name in data:
        check_choice("a setting in [data]", name, (*columns, "train", "sha256", *READER))
    fields: dict[str, Any] = {name: as_tuple(data[name]) for name in columns if name in data}
    if "files" in fields:
        fields["files"] = tuple(str(path.parent / name) for name in fields["files"])
    if "train" in data:
        is_date = isinstance(data["train"], datetime.date)
        fields["train"] = str(data["train"]) if is_date else data["train"]
    fields["hashes"] = tuple(data.get("sha256", ()))
    fields["versions"] = tables.get("versions", {})
    fields["reader"] = {name: value for name, value in data.items() if name in READER}
    fit = dict(tables.get("fit", {}))
    if numbers := tables.get("method"):
        name = fit.get("method", "auto")
        check_choice("method", name, METHODS)
        for key in numbers:
            check_choice("a setting in [method]", key, vars(METHODS[name]))
        fit["method"] = {"name": name} | {key: _frozen(value) for key, value in numbers.items()}
    return fields | {"fit": fit}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_train(train: int | float | str) -> None:
    """Raise unless it is "all", a number of rows, a share of them between 0 and 1, or a date."""
    whole = isinstance(train, int) and not isinstance(train, bool) and train >= 1
    date = isinstance(train, str) and DATE.match(train)
    if not (whole or train == ALL or date or (isinstance(train, float) and 0 < train < 1)):
        raise ValueError(
            "train must be a number of rows, a fraction between 0 and 1, a date such as "
            f"2024-03-31, or {ALL!r}; got {train!r}"
        )


def current_versions() -> dict[str, str]:
    """Versions of the software that a result may depend on."""
    libraries = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"gpssm": gpssm.__version__, "python": platform.python_version(), **libraries}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _for_toml(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with lists for tuples and without None, which TOML does not have."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in table.items()
        if value is not None
    }
