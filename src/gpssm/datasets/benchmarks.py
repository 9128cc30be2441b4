"""The system-identification benchmarks: what they are, where they come from, and their checksums.

No file is packed with the library. They are read from the folder that the environment variable `GPSSM_DATA`
names, if it is set, and otherwise downloaded once into the user's cache. Either way the SHA-256 must agree.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpssm.readers import read
from gpssm.series import Series

MIRRORS = (
    "https://raw.githubusercontent.com/zhenwendai/RGP/HEAD/datasets/system_identification/",
    "https://raw.githubusercontent.com/xuhuifan/FFVD/HEAD/data/",
)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark series: its file, and which columns (by name or number) are its inputs and outputs.

    `inputs` and `outputs` map the name that a column gets to the column of the file; `dt` is the sampling
    time in seconds, None if it is not known.
    """

    name: str
    file: str
    inputs: Mapping[str, str | int]
    outputs: Mapping[str, str | int]
    dt: float | None
    sha256: str
    description: str

    @property
    def urls(self) -> tuple[str, ...]:
        """Public addresses of the file, in the order in which they are tried."""
        return tuple(mirror + self.file for mirror in MIRRORS)


_DRIVE = Benchmark(
    name="drive",
    file="drive.mat",
    inputs={"voltage": "u1"},
    outputs={"speed": "z1"},
    dt=0.02,
    sha256="47d0825678d854d8a1bbcfb0ad1188026b853f69beb2067ea00cfd88d13dc4ca",
    description="Coupled electric drives, random binary input; the output is a speed without its sign.",
)

REGISTRY: dict[str, Benchmark] = {
    entry.name: entry
    for entry in (
        Benchmark(
            name="actuator",
            file="actuator.mat",
            inputs={"valve": "u"},
            outputs={"oil pressure": "p"},
            dt=None,
            sha256="35d1f95176afd856eb4fe0e2f87e3dff39657db8e6fcf7c531078c8f4eb571e4",
            description="Hydraulic actuator of a crane: valve opening to oil pressure.",
        ),
        Benchmark(
            name="ballbeam",
            file="ballbeam.dat",
            inputs={"beam angle": 0},
            outputs={"ball position": 1},
            dt=0.1,
            sha256="e9c48a4f7474953969d4950b4ef72558084b1995f776792ac0cbc80550e6ff42",
            description="Ball rolling on a beam: beam angle to ball position (DaISy 96-004).",
        ),
        _DRIVE,
        Benchmark(
            name="dryer",
            file="dryer.dat",
            inputs={"heater voltage": 0},
            outputs={"air temperature": 1},
            dt=0.08,
            sha256="adcb2f5a1d9e174d08dd49f7f037626745b5e69cbda0bc1e8dca2a7c687d4538",
            description="Laboratory hair dryer: heater voltage to air temperature (DaISy 96-006).",
        ),
        Benchmark(
            name="flutter",
            file="flutter.dat",
            inputs={"u": 0},
            outputs={"y": 1},
            dt=None,
            sha256="e944d4bc32ac403bc20f64e45afff525456dd19166962ebcc47a2cc9f9b39d81",
            description="Wing flutter; the units and the sampling time were withheld (DaISy 96-008).",
        ),
        Benchmark(
            name="furnace",
            file="gas_furnace.csv",
            inputs={"gas rate": "InputGasRate"},
            outputs={"CO2": "CO2"},
            dt=9.0,
            sha256="ce46e11490a11ac254a959d42d5858f66b3c8013a1b667e553b3d890c67e4d43",
            description="Gas furnace: input gas rate to CO2 concentration (Box and Jenkins, series J).",
        ),
        replace(_DRIVE, name="drive-2", inputs={"voltage": "u2"}, outputs={"speed": "z2"}),
        replace(_DRIVE, name="drive-3", inputs={"voltage": "u3"}, outputs={"speed": "z3"}),
    )
}


def names() -> tuple[str, ...]:
    """Names that `load` knows: the six benchmarks, and two more experiments on the electric drives."""
    return tuple(REGISTRY)


def load(name: str) -> Series:
    """All rows of the benchmark of that name; `series.split(0.5)` gives the usual train and test halves.

    Read from the folder GPSSM_DATA if that is set, otherwise downloaded once; see the head of this file.
    """
    if name not in REGISTRY:
        raise ValueError(f"no benchmark is called {name!r}; there are {', '.join(REGISTRY)}")
    entry = REGISTRY[name]
    folder = os.environ.get("GPSSM_DATA")
    path = _in_folder(entry, Path(folder)) if folder else _download(entry)
    series = read(path, tuple(entry.outputs.values()), tuple(entry.inputs.values()), name=name, dt=entry.dt)
    return replace(series, outputs=tuple(entry.outputs), inputs=tuple(entry.inputs))


def _in_folder(entry: Benchmark, folder: Path) -> Path:
    """Path of the file in the user's folder, after a check that it is the right one."""
    path = folder / entry.file
    if not path.is_file():
        raise FileNotFoundError(
            f"GPSSM_DATA is {str(folder)!r}, and there is no {entry.file} in it. "
            f"Put the file of {entry.urls[0]} there, or unset GPSSM_DATA to have it downloaded"
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != entry.sha256:
        raise ValueError(
            f"{path} is not the benchmark {entry.name!r}: its SHA-256 is {found}, not {entry.sha256}. "
            f"Replace it by the file of {entry.urls[0]}"
        )
    return path


def _download(entry: Benchmark) -> Path:
    """Path of the file in the user's cache, fetched from the first mirror that has it if need be."""
    import platformdirs
    import pooch

    cache = platformdirs.user_cache_dir("gpssm")
    failures = []
    for url in entry.urls:
        try:
            return Path(pooch.retrieve(url, f"sha256:{entry.sha256}", fname=entry.file, path=cache))
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {error}")
    raise ConnectionError(
        f"the benchmark {entry.name!r} could not be downloaded. Set the environment variable GPSSM_DATA to a "
        f"folder that holds {entry.file}, or try again later. Tried:\n" + "\n".join(failures)
    )
