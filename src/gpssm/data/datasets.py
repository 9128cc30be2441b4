"""Benchmark series (`load`) and simulated series with known truth (`simulate`).

Benchmark files are not part of the library. They are read from the folder in the environment
variable `GPSSM_DATA` if it is set, and otherwise downloaded once to the user's cache. In both cases
the SHA-256 is checked. To add a benchmark, add an entry to `REGISTRY`; to add a simulator, write a
function that calls `simulate_model`, and add it to `SIMULATORS`.

Most benchmarks are single series, of which the second half is for testing. The systems of `DAISY`
are also single series, some with several inputs and outputs. Those of `RECORDS` have a separate
test record, to be simulated by a fitted model (`load_records`).
"""

import hashlib
import json
import os
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from jaxtyping import Float

from gpssm.core.files import make_folder, write_atomically
from gpssm.core.runtime import check_memory
from gpssm.core.text import check_choice, check_whole
from gpssm.data.readers import read
from gpssm.data.series import Series

MIRRORS = (
    "https://raw.githubusercontent.com/zhenwendai/RGP/HEAD/datasets/system_identification/",
    "https://raw.githubusercontent.com/xuhuifan/FFVD/HEAD/data/",
)
FORGI86 = "https://raw.githubusercontent.com/forgi86/"
DAISY_MIRRORS = (
    "https://raw.githubusercontent.com/robotsorcerer/FARNN/"
    "9cfb82f2b42a53a604dba66d0eab23243a9a21ae/data/",
)
SIMULATION = "sim:"  # prefix of the names of simulated series


@dataclass(frozen=True)
class Benchmark:
    """A benchmark series: its file, and the columns of its inputs and outputs.

    `inputs` and `outputs` map the names of columns to columns of the file; `dt` is the sampling
    time in seconds, None if unknown. On other mirrors the file may be named `file_there`.
    """

    name: str
    file: str
    inputs: Mapping[str, str | int]
    outputs: Mapping[str, str | int]
    dt: float | None
    sha256: str
    description: str
    mirrors: tuple[str, ...] | None = None
    file_there: str | None = None
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def urls(self) -> tuple[str, ...]:
        """Public addresses of the file, in the order in which they are tried."""
        return tuple(mirror + (self.file_there or self.file) for mirror in self.mirrors or MIRRORS)


def _daisy(
    name: str,
    description: str,
    sha256: str,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    dt: float | None = None,
    units: Mapping[str, str] | None = None,
) -> Benchmark:
    """Return a system of the DaISy suite, whose files are in the subfolder `daisy`."""
    return Benchmark(
        name=name,
        file=f"daisy/{name}.dat",
        inputs=inputs,
        outputs=outputs,
        dt=dt,
        sha256=sha256,
        description=f"{description} (DaISy).",
        mirrors=DAISY_MIRRORS,
        file_there=f"{name}.dat",
        units=units or {},
    )


_DRIVE = Benchmark(
    name="drive",
    file="drive.mat",
    inputs={"voltage": "u1"},
    outputs={"speed": "z1"},
    dt=0.02,
    sha256="47d0825678d854d8a1bbcfb0ad1188026b853f69beb2067ea00cfd88d13dc4ca",
    description="Coupled electric drives, random binary input to the magnitude of a speed.",
)
_EMPS = Benchmark(
    name="emps",
    file="emps.mat",
    inputs={"motor voltage": "vir"},
    outputs={"position": "qm"},
    dt=1e-3,
    sha256="6cf6814ae14618795da0101aae2bb97ff0c6351b0501b5492751b02b07facf7e",
    description="Positioning stage with friction: motor voltage to position, closed loop (EMPS).",
    mirrors=(f"{FORGI86}sysid-neural-continuous/HEAD/examples/EMPS/data/",),
    file_there="DATA_EMPS.mat",
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
            description="Wing flutter; units and sampling time were withheld (DaISy 96-008).",
        ),
        Benchmark(
            name="furnace",
            file="gas_furnace.csv",
            inputs={"gas rate": "InputGasRate"},
            outputs={"CO2": "CO2"},
            dt=9.0,
            sha256="ce46e11490a11ac254a959d42d5858f66b3c8013a1b667e553b3d890c67e4d43",
            description="Gas furnace: gas rate to CO2 concentration (Box and Jenkins, series J).",
        ),
        replace(_DRIVE, name="drive-2", inputs={"voltage": "u2"}, outputs={"speed": "z2"}),
        replace(_DRIVE, name="drive-3", inputs={"voltage": "u3"}, outputs={"speed": "z3"}),
        _EMPS,
        replace(
            _EMPS,
            name="emps-pulses",
            file="emps_pulses.mat",
            sha256="0eab75bb1f6b16228ee78791343a88bf9bfd9a51036ac9807d7b5fc11c0e1704",
            description="The same stage, disturbed by pulses of force: the test record of `emps`.",
            file_there="DATA_EMPS_PULSES.mat",
        ),
        Benchmark(
            name="wiener-hammerstein",
            file="wiener_hammerstein.csv",
            inputs={"u": "uBenchMark"},
            outputs={"y": "yBenchMark"},
            dt=1 / 51200,
            sha256="95f241ac5e0afb48c47b24b3630f55e0d6f8f2f4dec145bd8adf852b19851fa3",
            description="Electronic circuit, a diode between two filters; test from row 100 000.",
            mirrors=(
                f"{FORGI86}sysid-neural-unc/HEAD/examples/wh2009/data/",
                f"{FORGI86}sysid-neural-estimator/HEAD/examples/wh2009/data/",
            ),
            file_there="WienerHammerBenchmark.csv",
        ),
        _daisy(
            "robot_arm",
            "Flexible robot arm: reaction torque to acceleration",
            "4ee167a8a28ce0da868d1b42f6a2fe0c456ea0e56b60c70915bf6d4a2a933635",
            inputs={"torque": 0},
            outputs={"acceleration": 1},
        ),
        _daisy(
            "exchanger",
            "Liquid-steam heat exchanger: flow of the liquid to its outlet temperature",
            "cfb5a447fb573f87de33760e156cbf5da1f9802ae8a03a1b3c39ce8eb656fa6c",
            inputs={"flow": 1},
            outputs={"temperature": 2},
            dt=1.0,
            units={"temperature": "°C"},
        ),
        _daisy(
            "evaporator",
            "Four-stage evaporator: flows in to the product that comes out",
            "3a74c747140602e44b9d099c73170656ac56d43d9241cf85ff84822f2d230f13",
            inputs={"feed flow": 0, "vapour flow": 1, "cooling water flow": 2},
            outputs={"dry matter": 3, "product flow": 4, "product temperature": 5},
        ),
        _daisy(
            "winding",
            "Industrial winding of a web: speeds of reels and set points of currents to tensions",
            "2c81e2760cd2360aa10d6cbd8fbc0c4c83f35dabefaa3e412e974d166413a9af",
            inputs={"speed 1": 0, "speed 2": 1, "speed 3": 2, "current 1": 3, "current 3": 4},
            outputs={"tension 1-2": 5, "tension 2-3": 6},
            dt=0.1,
        ),
        _daisy(
            "heating_system",
            "Heating system: voltage of a halogen lamp to the temperature of a steel plate",
            "3bfbe8424719830870b153067eeff40ebff3afb0204c150ed7103b5d6c1908bc",
            inputs={"voltage": 1},
            outputs={"temperature": 2},
            dt=2.0,
            units={"voltage": "V", "temperature": "°C"},
        ),
        _daisy(
            "glassfurnace",
            "Glass furnace: two heating inputs and a cooling input to six temperatures",
            "073cc118b7aaf589da46b8472be1767ed5240186a4d00df36bc389326a3f8f35",
            inputs={"heating 1": 1, "cooling": 2, "heating 2": 3},
            outputs={f"temperature {number}": number + 3 for number in range(1, 7)},
        ),
    )
}
DAISY: tuple[str, ...] = tuple(
    name for name, entry in REGISTRY.items() if entry.mirrors is DAISY_MIRRORS
)


# The test record of a benchmark, another one or the same from a row on, and the number of its first
# rows that determine the initial state.
RECORDS: dict[str, tuple[str | int, int]] = {
    "emps": ("emps-pulses", 20),
    "wiener-hammerstein": (100_000, 50),
}


def load(name: str) -> Series:
    """Load a benchmark series; `series.split(0.5)` gives the usual training and test halves.

    It is read from the folder GPSSM_DATA if that is set, and otherwise downloaded once. Simulated
    series have names such as `sim:duffing` or, with options,
    `sim:duffing:num_steps=120:noise_std=0.1`.
    """
    if isinstance(name, str) and name.startswith(SIMULATION):
        return _load_simulation(name)
    check_choice("a benchmark", name, REGISTRY)
    entry = REGISTRY[name]
    folder = os.environ.get("GPSSM_DATA")
    path = _in_folder(entry, Path(folder)) if folder else _download(entry)
    series = read(
        path,
        tuple(entry.outputs.values()),
        tuple(entry.inputs.values()),
        name=name,
        dt=entry.dt,
        time=None,
    )
    return replace(
        series, outputs=tuple(entry.outputs), inputs=tuple(entry.inputs), units=entry.units
    )


def load_records(name: str) -> tuple[Series, Series]:
    """Load the training and the test record of a benchmark.

    train, test = load_records("emps")
    free = gpssm.fit(train).simulate(test.u[test.window:], warmup=test[:test.window])
    """
    check_choice("a benchmark with a separate test record", name, RECORDS)
    place, window = RECORDS[name]
    train, test = (load(name), load(place)) if isinstance(place, str) else load(name).split(place)
    return train, replace(test, window=window)


def _load_simulation(name: str) -> Series:
    simulator, *options = name.removeprefix(SIMULATION).split(":")
    try:
        numbers = {key: json.loads(text) for key, text in (item.split("=") for item in options)}
    except ValueError as error:
        raise ValueError(
            "the name of a simulation must be sim:NAME or sim:NAME:option=number:...; got "
            f"{name!r} ({error})"
        ) from None
    return simulate(simulator, **numbers).series


def _in_folder(entry: Benchmark, folder: Path) -> Path:
    """Return the path of the file in the user's folder, after checking its hash."""
    path = folder / entry.file
    if not path.is_file():
        raise FileNotFoundError(
            f"GPSSM_DATA is {str(folder)!r}, but it does not contain {entry.file}. Put the file "
            f"from {entry.urls[0]} there, or unset GPSSM_DATA to download it"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != entry.sha256:
        raise ValueError(
            f"{path} is not the benchmark {entry.name!r}: its SHA-256 is {digest}, not "
            f"{entry.sha256}. Replace it by the file of {entry.urls[0]}"
        )
    return path


def _download(entry: Benchmark) -> Path:
    """Return the path of the file in the user's cache, downloading it if necessary."""
    path = Path(platformdirs.user_cache_dir("gpssm")) / entry.file
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256:
        return path
    failures = []
    for url in entry.urls:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = answer.read()
        except (OSError, HTTPException) as error:
            failures.append(f"{url}: {error}")
            continue
        digest = hashlib.sha256(content).hexdigest()
        if digest == entry.sha256:
            make_folder(path.parent)
            write_atomically(path, lambda file, content=content: file.write(content))
            return path
        failures.append(f"{url}: its SHA-256 is {digest}, not {entry.sha256}")
    raise ConnectionError(
        f"the benchmark {entry.name!r} could not be downloaded. Set the environment variable "
        f"GPSSM_DATA to a folder that contains {entry.file}, or try again later. Tried:\n"
        + "\n".join(failures)
    )


Transition = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Simulated:
    """A simulated series and its model.

        x₀ ~ N(0, I)
        x_{t+1} = f(x_t, u_t) + N(0, diag(process_std²))
        y_t = C x_{t+1} + d + N(0, diag(noise_std²))

    `states[0]` is x₀; `u[t]` drives `states[t] → states[t+1]`; `states[t+1]` emits `y[t]`.
    `transition` is f, without noise, for states (..., Dx) and inputs (..., Du) with equal leading
    axes.
    """

    series: Series
    states: Float[np.ndarray, "T+1 Dx"] = field(repr=False)
    transition: Transition = field(repr=False)
    process_std: Float[np.ndarray, " Dx"]
    noise_std: Float[np.ndarray, " Dy"]
    C: Float[np.ndarray, "Dy Dx"]
    d: Float[np.ndarray, " Dy"]


def simulate_model(
    rng: np.random.Generator,
    transition: Transition,
    u: Float[np.ndarray, "T Du"],
    *,
    process_std: Any,
    noise_std: Any,
    C: Float[np.ndarray, "Dy Dx"],
    d: Any = 0.0,
    **metadata: Any,
) -> Simulated:
    """Simulate T steps of the model of `Simulated`, driven by `u`.

    A scalar standard deviation or d applies to every component; `metadata` (name, dt) is passed to
    the Series.
    """
    output_dim, state_dim = C.shape
    process_std = np.full(state_dim, process_std, dtype=float)
    noise_std, d = (np.full(output_dim, value, dtype=float) for value in (noise_std, d))
    if min(process_std.min(), noise_std.min()) < 0:
        raise ValueError(
            f"standard deviations must not be negative; got {process_std} and {noise_std}"
        )
    states = rng.normal(size=(len(u) + 1, state_dim))
    for t, inputs in enumerate(u):
        states[t + 1] = transition(states[t], inputs) + process_std * states[t + 1]
    y = states[1:] @ C.T + d + noise_std * rng.normal(size=(len(u), output_dim))
    return Simulated(Series(y, u, **metadata), states, transition, process_std, noise_std, C, d)


def kink(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """f(x) = 0.8 + (x + 0.2)(1 − 5 / (1 + exp(−2x))); u is not used.

    It is computed by 1 / (1 + exp(−2x)) = (1 + tanh x) / 2, which does not overflow.
    """
    return 0.8 + (x + 0.2) * (1.0 - 2.5 * (1.0 + np.tanh(x)))


def simulate_kink(
    num_steps: int = 20, seed: int = 0, *, process_std: float = 0.05, noise_std: float = 0.2
) -> Simulated:
    """Simulate the kink function, a common one-dimensional test of GP state-space models.

    T steps of x_{t+1} = kink(x_t) + N(0, process_std²), y_t = x_{t+1} + N(0, noise_std²), x₀ ~ N(0,
    1).
    """
    return simulate_model(
        np.random.default_rng(seed),
        kink,
        np.zeros((num_steps, 0)),
        process_std=process_std,
        noise_std=noise_std,
        C=np.eye(1),
        name="kink",
    )


def simulate_linear_gaussian(
    num_steps: int = 200,
    seed: int = 0,
    *,
    state_dim: int = 2,
    output_dim: int = 1,
    input_dim: int = 1,
    spectral_radius: float = 0.9,
    process_std: float = 0.1,
    noise_std: float = 0.1,
) -> Simulated:
    """Simulate a random stable linear-Gaussian state-space model.

    T steps of x_{t+1} = A x_t + B u_t + N(0, process_std² I), y_t = C x_{t+1} + d + N(0, noise_std²
    I). A, B, C, d are drawn standard normal, and A scaled to the spectral radius below 1; u is
    white noise. The transition is linear, so its values at unit vectors are the columns of A and B.
    """
    if not 0 <= spectral_radius < 1:
        raise ValueError(f"spectral_radius must be at least 0 and below 1; got {spectral_radius}")
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(state_dim, state_dim))
    A *= spectral_radius / np.abs(np.linalg.eigvals(A)).max()
    B = rng.normal(size=(state_dim, input_dim))
    C = rng.normal(size=(output_dim, state_dim))
    return simulate_model(
        rng,
        lambda x, u: x @ A.T + u @ B.T,
        rng.normal(size=(num_steps, input_dim)),
        process_std=process_std,
        noise_std=noise_std,
        C=C,
        d=rng.normal(size=output_dim),
        name="linear_gaussian",
    )


def simulate_duffing(
    num_steps: int = 400,
    seed: int = 0,
    *,
    damping: float = 0.3,
    stiffness: float = 1.0,
    cubic: float = 1.0,
    force: float = 1.0,
    dt: float = 0.1,
    process_std: float = 0.01,
    noise_std: float = 0.05,
) -> Simulated:
    """Simulate a damped Duffing oscillator: a mass on a stiffening spring, driven by a multisine.

    T steps with states (position p, velocity ṗ) and outputs y_t = p + N(0, noise_std²):

        p̈ + damping · ṗ + stiffness · p + cubic · p³ = u

    Each step is one step of the classical Runge–Kutta method over dt with constant u; u is a
    random-phase multisine of root mean square `force`, with angular frequencies up to 4, around the
    resonance.
    """
    rng = np.random.default_rng(seed)

    def derivative(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        position = x[..., 0]
        velocity = x[..., 1]
        acceleration = u[..., 0] - damping * velocity - stiffness * position - cubic * position**3
        return np.stack([velocity, acceleration], axis=-1)

    def transition(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        k1 = derivative(x, u)
        k2 = derivative(x + 0.5 * dt * k1, u)
        k3 = derivative(x + 0.5 * dt * k2, u)
        k4 = derivative(x + dt * k3, u)
        return x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return simulate_model(
        rng,
        transition,
        force * _multisine(rng, dt * np.arange(num_steps)),
        process_std=process_std,
        noise_std=noise_std,
        C=np.array([[1.0, 0.0]]),
        name="duffing",
        dt=dt,
    )


SIMULATORS: dict[str, Callable[..., Simulated]] = {
    "kink": simulate_kink,
    "linear_gaussian": simulate_linear_gaussian,
    "duffing": simulate_duffing,
}


def simulate(name: str, **options: Any) -> Simulated:
    """Simulate a system by name, with `num_steps`, `seed` and further options of its simulator.

    truth = simulate("kink", num_steps=100, seed=1, noise_std=0.1)
    truth.series, truth.states, truth.transition
    """
    check_choice("a simulator", name, SIMULATORS)
    check_whole("num_steps", options.get("num_steps", 1), 1)
    check_whole("seed", options.get("seed", 0), 0)
    check_memory("the series", 64 * options.get("num_steps", 1))
    return SIMULATORS[name](**options)


def _multisine(
    rng: np.random.Generator, times: Float[np.ndarray, " T"]
) -> Float[np.ndarray, "T 1"]:
    """Return the sum of 20 sines with angular frequencies 0.2, 0.4, …, 4 and random phases, with
    RMS 1.
    """
    phases = rng.uniform(0.0, 2.0 * np.pi, size=20)
    waves = np.sin(times[:, None] * np.linspace(0.2, 4.0, 20) + phases)
    return waves.sum(axis=1, keepdims=True) / np.sqrt(10.0)
