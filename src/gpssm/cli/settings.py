"""Everything that a run depends on, as a value that can be written down in TOML and read again.

    [data]       files, outputs, inputs, train, dt, time, regrid, controls, units, and the files' SHA-256
    [fit]        arguments of `gpssm.fit` by name
    [method]     the method's own settings: num_warmup, num_draws, thin, learning_rate, ...
    [forecast]   num_paths, levels
    [versions]   what it was made with

A file may leave out any of it but files and outputs; `Settings.to_toml` writes all of it.
"""

import dataclasses
import datetime
import difflib
import hashlib
import importlib.metadata
import platform
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import gpssm
from gpssm.core.text import as_share, check_path
from gpssm.data.readers import DATE, read
from gpssm.data.series import Series
from gpssm.fitting.fit import with_settings
from gpssm.inference.runner import Runtime
from gpssm.methods import METHODS, MethodSettings
from gpssm.methods.spec import BASIS_NAMES, MEAN_NAMES, Hyper, Spec
from gpssm.model.kernels import KERNELS
from gpssm.model.likelihoods import LIKELIHOODS
from gpssm.model.wiring import NAMES as WIRINGS
from gpssm.starts.build import Coupling
from gpssm.starts.start import STARTS

ALL = "all"
DATA = (
    "files",
    "outputs",
    "inputs",
    "train",
    "dt",
    "time",
    "regrid",
    "controls",
    "units",
)  # fields of [data]
# Arguments of `fit` that a run is made of; the others do not change its result, or are the method's own.
OBJECTS = (
    "method",
    "physics",
    "prior",
    "prior_strength",
)  # that a file cannot hold, or has elsewhere
FIT = (
    *(field.name for field in dataclasses.fields(Spec) if field.name not in OBJECTS),
    *("num_chains", "keep_states"),
)
HEAD = "# A run of gpssm, complete: `gpssm fit --config THIS_FILE --out FOLDER` does it again.\n\n"

Split = int | float | str


class RunData(NamedTuple):
    """The series to train on, and the rows that follow the last of them to test on, if there are any."""

    train: list[Series]
    test: Series | None


@dataclass(frozen=True)
class Settings:
    """What a run depends on. `train` is a number of rows, a share of them, a date or "all"; it splits the last file.

    `time` is the column of times, "auto" to look for one, or "none".
    """

    files: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    train: Split = ALL
    dt: float | None = None
    time: str = "auto"
    regrid: bool | float | str = False
    controls: str = "hold"
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)
    method: str = "ffvd"
    seed: int = 0
    fit: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    method_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_paths: int = 1000
    levels: tuple[float, ...] = (0.5, 0.9)
    hashes: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, given in (("files", self.files), ("outputs", self.outputs)):
            if not given:
                raise ValueError(f"no {what} were given: name at least one")
        check_train(self.train)
        _check_name("method", self.method, METHODS)
        _check_keys("[fit]", self.fit, FIT)
        for part in re.split(r"[+*]", str(self.fit.get("kernel", "se"))):
            _check_name("kernel", part.strip(), KERNELS)
        for name, known in (
            *(("mean", MEAN_NAMES), ("likelihood", ["auto", *LIKELIHOODS]), ("basis", BASIS_NAMES)),
            *(
                ("start", ["auto", *STARTS]),
                ("hyper", get_args(Hyper)),
                ("coupling", get_args(Coupling)),
            ),
        ):
            if isinstance(self.fit.get(name), str):
                _check_name(name, self.fit[name], known)
        wiring = self.fit.get("wiring")
        if isinstance(wiring, str) and not re.fullmatch(r"delay-\d+", wiring):
            _check_name("wiring", wiring, WIRINGS)
        object.__setattr__(self, "levels", tuple(map(as_share, self.levels)))
        _ = self.config

    @property
    def config(self) -> MethodSettings:
        """The method with its settings."""
        standard = METHODS[self.method]
        known = [one.name for one in dataclasses.fields(standard)]
        _check_keys(f"[method] of {self.method}", self.method_settings, known)
        return dataclasses.replace(
            standard, **{name: _frozen(value) for name, value in self.method_settings.items()}
        )

    @property
    def spec(self) -> Spec:
        """What to fit."""
        return with_settings(Spec(method=self.config), Runtime(), self._settings)[0]

    @property
    def runtime(self) -> Runtime:
        """How to run."""
        return with_settings(Spec(), Runtime(seed=self.seed), self._settings)[1]

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: _frozen(value) for name, value in self.fit.items()}

    def load(self) -> RunData:
        """Read the files; the rows of the last one are split."""
        how: dict[str, Any] = {
            "dt": self.dt,
            "regrid": self.regrid,
            "controls": self.controls,
            "units": self.units,
        }
        how["time"] = None if self.time == "none" else self.time
        series = [read(path, self.outputs, self.inputs, **how) for path in self.files]
        if self.train == ALL:
            return RunData(series, None)
        *whole, last = series
        try:
            kept, test = last.split(self.train)
        except ValueError as error:
            why = f" ({error})" if isinstance(self.train, str) else ""
            raise ValueError(
                f"train = {self.train} leaves no row to train on, or none to test on, of the {len(last)} of "
                f"{self.files[-1]}: it is a number of rows, a share of them, a date, or {ALL!r}{why}"
            ) from None
        return RunData([*whole, kept], test)

    def complete(self) -> "Settings":
        """The same with every default written out, and with what is true here and now: paths, hashes, versions."""
        paths = [Path(path).resolve() for path in self.files]
        chosen = dataclasses.asdict(self.runtime) | self.spec.to_dict()
        fitted = {name: chosen[name] for name in FIT}
        return dataclasses.replace(
            self,
            files=tuple(map(str, paths)),
            fit=fitted,
            method_settings=dataclasses.asdict(self.config),
            hashes=tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths),
            versions=versions(),
        )

    def to_toml(self) -> str:
        """The settings as the text of a TOML file. TOML has no None: what has no value is left out."""
        import tomli_w

        data = {name: getattr(self, name) for name in DATA}
        tables = {
            "data": data | {"sha256": self.hashes},
            "fit": {"method": self.method, "seed": self.seed, **self.fit},
            "method": self.method_settings,
            "forecast": {"num_paths": self.num_paths, "levels": self.levels},
            "versions": self.versions,
        }
        return HEAD + tomli_w.dumps(
            {
                name: {
                    key: list(value) if isinstance(value, tuple) else value
                    for key, value in table.items()
                    if value is not None
                }
                for name, table in tables.items()
            }
        )

    def changes(self) -> list[str]:
        """What is no longer as it was when these settings were written: versions, and the contents of files."""
        now = versions()
        found = [
            f"{name} {old}, now {now[name]}"
            for name, old in self.versions.items()
            if now.get(name, old) != old
        ]
        for path, old in zip(self.files, self.hashes, strict=False):
            if Path(path).is_file() and hashlib.sha256(Path(path).read_bytes()).hexdigest() != old:
                found.append(f"contents of {path}")
        return found


def from_toml(path: str | Path) -> dict[str, Any]:
    """The fields of `Settings` that a file has; files that it names are relative to its own folder."""
    path = check_path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no configuration {path}; `gpssm fit` writes one into its folder"
        ) from None
    except OSError as error:
        raise type(error)(error.errno, f"{path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    _check_keys(str(path), tables, ("data", "fit", "method", "forecast", "versions"))
    data, fitted, forecast = (dict(tables.get(name, {})) for name in ("data", "fit", "forecast"))
    _check_keys("[data]", data, (*DATA, "sha256"))
    if isinstance(data.get("train"), datetime.date):  # TOML has dates of its own
        data["train"] = str(data["train"])
    _check_keys("[forecast]", forecast, ("num_paths", "levels"))
    hashes = data.pop("sha256", ())
    names = {name: tuple(data.pop(name)) for name in ("files", "outputs", "inputs") if name in data}
    if "files" in names:
        names["files"] = tuple(str(path.parent / one) for one in names["files"])
    chosen = {name: fitted.pop(name) for name in ("method", "seed") if name in fitted}
    fields = data | names | chosen | forecast | {"hashes": tuple(hashes)}
    fields |= {"levels": tuple(forecast["levels"])} if "levels" in forecast else {}
    fields |= {"method_settings": tables.get("method", {}), "versions": tables.get("versions", {})}
    return fields | {"fit": fitted}


def check_train(train: Split) -> None:
    """Refuse what says no split: it is "all", a number of rows, a share of them between 0 and 1, or a date."""
    whole = isinstance(train, int) and not isinstance(train, bool) and train >= 1
    date = isinstance(train, str) and DATE.match(train)
    if not (whole or train == ALL or date or (isinstance(train, float) and 0 < train < 1)):
        raise ValueError(
            f"train is a number of rows, a share of them between 0 and 1, a date like 2024-03-31, or {ALL!r}; "
            f"got {train!r}"
        )


def versions() -> dict[str, str]:
    """What a result may depend on besides its settings."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"gpssm": gpssm.__version__, "python": platform.python_version(), **found}


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like this one, or nothing."""
    found = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    if name not in (known := list(known)):
        raise ValueError(
            f"there is no {what} {name!r}.{nearest(name, known)} Known: {', '.join(known)}"
        )


def _check_keys(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise ValueError(
                f"{where} has no setting {name!r}.{nearest(name, known)} Known: {', '.join(known)}"
            )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
