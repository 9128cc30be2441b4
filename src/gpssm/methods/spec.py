"""The specification of a fit: the model, the method, and the start of the sampler.

A `Spec` is a value: it can be compared, changed with `replace`, and converted with `to_dict` and
`from_dict`. It is saved with a posterior, and fitting the same data with it again yields the same
posterior. Settings of the run rather than the model (seed, chains, progress) belong to `Runtime` in
`gpssm.inference.runner`.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from gpssm.core.text import check_flag, count, is_real, nearest
from gpssm.data.delays import Rows
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings, check_settings, checked, choice, whole
from gpssm.linear.council import HORIZON, Horizon, council
from gpssm.linear.fit import pseudo_series, uninformed_likelihood
from gpssm.methods import METHODS
from gpssm.methods.auto import Auto
from gpssm.methods.ffvd import FFVD
from gpssm.methods.quick import Quick
from gpssm.model.bases import Basis
from gpssm.model.kernels import Kernel
from gpssm.model.likelihoods import Likelihood
from gpssm.model.means import Function, Mean
from gpssm.model.wiring import make_wiring, wired_size
from gpssm.starts.build import OUTPUT_MAP, Coupling
from gpssm.starts.physics import Physics
from gpssm.starts.start import STARTS, NoiseRegime

Hyper = Literal["optimise", "sample", "fix"]
# Parts that can be chosen by name.
MEAN_NAMES = ("linear", "linear-fixed", "identity", "zero")
BASIS_NAMES = ("inducing", "hilbert", "fourier", "linear")
ROWS_PER_POINT = 5  # rows per point for num_inducing="auto", within the following limits
FEWEST_POINTS = 10
MOST_POINTS = 50


def part(
    default: str, *kinds: Any, names: Sequence[str] = (), alternative: str = "an object"
) -> Any:
    """Declare a part of the model: a name, one of `names` if there are any, or an alternative."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, (str, *kinds)):
            raise TypeError(f"{name} must be a name or {alternative}; got {value!r}")
        if names and isinstance(value, str) and value not in names:
            raise KeyError(
                f"Unknown {name} {value!r}. Known: {', '.join(names)}; or pass {alternative}."
            )

    return checked(default, check)


def _check_noise(name: str, value: Any) -> None:
    regimes = get_args(NoiseRegime)
    named = isinstance(value, str) and value in ("auto", *regimes)
    if not named and not (is_real(value) and 0 < value < 1e300):
        raise ValueError(
            f"{name} must be auto, {', '.join(regimes)}, or a positive number; got {value!r}."
        )


def _check_patterns(name: str, value: Any) -> None:
    texts = isinstance(value, Sequence) and not isinstance(value, str)
    if not texts or not all(isinstance(entry, str) for entry in value):
        raise TypeError(
            f"{name} must be a list of names of parameters, or of patterns; got {value!r}"
        )


class ChainStart(NamedTuple):
    """The named start of one chain, and the regime of its process noise."""

    name: str
    noise: NoiseRegime | float


@dataclass(frozen=True, eq=False)
class Spec:
    """The specification of a fit.

    Parameters
    ----------
    method
        A name from `gpssm.methods.METHODS`, the settings of a method, or such settings as a
        dictionary from `to_dict`. "auto" compares linear and nonlinear models and mixes the best of
        them.
    state_dim
        Number of states; "auto" uses the order of the linear state-space model that forecasts
        held-out windows best at the horizon, or the number that the wiring implies.
    num_inducing
        Number of inducing points, or of functions of another basis; "auto" uses one for every five
        rows, but at least 10 and at most 50.
    kernel
        A name from `gpssm.kernels.KERNELS`, several names combined by + and *, or a kernel.
    mean
        "linear" (a linear map, Gaussian around the linear fit and marginalised), "linear-fixed"
        (the linear fit itself), "identity", "zero", a function (x, u) → x, or a `Mean`.
    likelihood
        A name from `gpssm.likelihoods.LIKELIHOODS`, or a likelihood. "auto" is "gaussian"; if
        starts are compared and outputs reach zero but are never negative, it is compared with
        "abs".
    basis
        "inducing", "hilbert", "fourier", "linear" (no Gaussian process), or a basis.
    wiring
        Which states and inputs enter which transition, if that is known: a boolean matrix (Dx,
        Dx+Du), a `gpssm.Wiring`, or "cascade", "chain", "second-order" or "sparse". It applies to
        the kernel, the mean and the linear weights, but not to a user-defined mean function.
    coupling
        "none": each transition function has a separate kernel. "shared": one kernel, with a scale
        for each function. "lmc": f = W g with `rank` latent functions g. "hammerstein": f is linear
        in the states and in a function g_j(u_j) of each input; with "hammerstein-monotone", these
        functions are monotone.
    rank
        Number of latent functions of coupling="lmc".
    physics
        Known dynamics in the user's units with one unknown function inside (`gpssm.Physics`); it
        replaces sizes, kernel, mean, likelihood, basis and wiring. `start` is then "auto", for the
        states of the physics, or "shooting", for a fit to simulations of windows from these states.
    start
        Where the sampler begins, which determines the mode that it explores: a name from
        `gpssm.starts.start.STARTS`; a list of names, which are compared by forecasts within the
        training rows; states (T+1, Dx) for each experiment; or "auto", which compares several
        starts for `ffvd` and is "em" for other methods. In the spec of a posterior whose chains
        have different starts, a `ChainStart` for each chain.
    noise
        Regime of the process noise. "free" has a vague prior: deviations from the transition become
        process noise. "small", or a number, holds the standard deviation near .003, or that number,
        times the scale of the states, so that deviations become observation noise. "auto" compares
        both if starts are compared, and is "free" otherwise.
    hyper
        "optimise" samples noise levels with exact conditionals and optimises the other parameters
        during the warm-up; "sample" samples all parameters; "fix" leaves them at their initial
        values.
    fixed
        Parameters to hold at their initial values, by name or pattern ("kernel.*").
    learn
        Parameters to learn that are fixed by default, such as the output map ("likelihood.C",
        "likelihood.d"), which is fixed because the coordinates of the states are arbitrary.
    delay
        Delays of the inputs in rows: one number, one for each input by name or in order, or "auto"
        for the estimates of `gpssm.delays`.
    windows
        Number of experiments into which each series is cut; they share everything except their
        states.
    horizon
        Steps ahead at which orders, starts and models are compared, or "simulation" to compare them
        by long simulations.
    calibrate
        Whether to calibrate intervals on held-out training rows, like `posterior.calibrate()`.
    prior
        The posterior of a similar system as the prior of the weights (`fitting/transfer.py`).
        Kernel, basis, mean, likelihood, delay, sizes and scaling are then taken from it.
    prior_strength
        Weight of each row of the prior's data relative to a new row: 1 for the same system, less
        for a similar one, 0 to ignore the prior's data.
    """

    method: str | MethodSettings | Mapping[str, Any] = "auto"
    # Fields may be "auto" or names until they are resolved: their values are checked at run time.
    state_dim: Any = whole("auto", word="auto")
    num_inducing: Any = whole("auto", word="auto")
    kernel: str | Kernel = part("se", Kernel)
    mean: str | Mean | Callable[[Array, Array], Array] = part("linear", Callable, names=MEAN_NAMES)
    likelihood: str | Likelihood = part("auto", Likelihood)
    basis: str | Basis = part("inducing", Basis, names=BASIS_NAMES)
    wiring: Any = None
    coupling: Coupling = "none"
    rank: int | None = None
    physics: Any = None
    start: Any = part(
        "auto",
        Sequence,
        np.ndarray,
        names=("auto", *STARTS, "shooting"),
        alternative="the states of each series",
    )
    noise: Any = checked("auto", _check_noise)
    hyper: Hyper = choice("optimise", get_args(Hyper))
    fixed: Sequence[str] = checked((), _check_patterns)
    learn: Sequence[str] = checked((), _check_patterns)
    delay: Rows | Literal["auto"] = 0
    windows: int = whole(1)
    horizon: Horizon = whole(HORIZON, word="simulation")
    calibrate: bool = checked(False, check_flag)
    prior: Any = None
    prior_strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", _method(self.method))
        check_settings(self)
        self._check_start()
        if self.physics is not None and not isinstance(self.physics, Physics | str):
            raise TypeError(f"physics must be a gpssm.Physics, got {self.physics!r}.")
        if self.coupling in ("lmc", "hammerstein") and not isinstance(
            self.method, Auto | FFVD | Quick | Mapping
        ):
            raise ValueError(
                "functions that share weights are supported by `ffvd` and `quick` only: use "
                "coupling='shared' or 'none'."
            )
        if callable(self.mean) and not isinstance(self.mean, Mean):
            object.__setattr__(self, "mean", Function(self.mean))
        for name in ("fixed", "learn"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.start, list):
            object.__setattr__(self, "start", tuple(self.start))

    def _check_start(self) -> None:
        """Raise if the start has no states, or is that of physics without physics."""
        if isinstance(self.start, str):
            if self.start == "shooting" and self.physics is None and self.prior is None:
                raise KeyError("start='shooting' needs physics, but there is none.")
        elif not getattr(self.start, "shape", True) or not len(self.start):
            raise ValueError(
                "start must be a name, several names, or a path of states for each series; got "
                f"{self.start!r}"
            )

    @property
    def settings(self) -> MethodSettings:
        """The settings of the method, if it can be run."""
        if not isinstance(self.method, MethodSettings):
            raise KeyError(
                f"{self.method_name!r} is not a method of this library: pass its settings, "
                "spec.replace(method=...)."
            )
        return self.method

    @property
    def method_name(self) -> str:
        """The name of the method in the registry, or of its class."""
        if isinstance(self.method, Mapping):
            return str(self.method["name"])
        return next(
            (name for name, entry in METHODS.items() if type(entry) is type(self.method)),
            type(self.method).__name__,
        )

    @property
    def gives_states(self) -> bool:
        """Whether the start consists of states rather than names of starts."""
        if isinstance(self.start, str):
            return False
        return isinstance(self.start, np.ndarray) or not any(
            isinstance(entry, str | ChainStart) for entry in self.start
        )

    def replace(self, **changes: Any) -> Self:
        """Return the spec with other values, including num_warmup, num_draws, thin and precision.

        If the method is "auto", these four settings select `ffvd`.
        """
        numbers = {name: changes.pop(name) for name in METHOD_NUMBERS if name in changes}
        changed = dataclasses.replace(self, **changes)
        numbers = {
            name: int(value) if isinstance(value, np.integer) else value
            for name, value in numbers.items()
            if value is not None
        }
        if not numbers:
            return changed
        settings = FFVD() if isinstance(changed.settings, Auto) else changed.settings
        return dataclasses.replace(changed, method=dataclasses.replace(settings, **numbers))

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name; objects are unchanged, and the method is a dictionary."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if isinstance(self.method, MethodSettings):
            values["method"] = {"name": self.method_name, **dataclasses.asdict(self.method)}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create a spec from the result of `to_dict`."""
        check_names(values, [field.name for field in dataclasses.fields(cls)])
        return cls(**values)

    def plain(self) -> Self:
        """Return the spec for a file: the method as a dictionary, physics and a prior by name."""
        changes: dict[str, Any] = {
            name: type(value).__name__
            for name in ("physics", "prior")
            if (value := getattr(self, name)) is not None and not isinstance(value, str)
        }
        plain = dataclasses.replace(self, **changes)
        # A new spec would convert the dictionary back to settings.
        object.__setattr__(plain, "method", self.to_dict()["method"])
        return plain

    def describe(self) -> dict[str, Any]:
        """Return all settings as plain values for tables and files; objects by their type."""
        return {name: _plain(value) for name, value in self.to_dict().items()}

    def scale(self, series: Sequence[Series]) -> tuple[Scaler, list[Series]]:
        """Return the scaler that suits the likelihood, and the scaled series."""
        scaling = uninformed_likelihood(self.likelihood, series[0].output_dim).scaling
        scaler = Scaler.fit(list(series), outputs=scaling)
        return scaler, [scaler.scale(item) for item in series]

    def resolve(self, series: Sequence[Series]) -> Self:
        """Return the spec with values instead of "auto" and names for sizes and wiring.

        Settings that need a comparison of forecasts (start, noise and likelihood "auto") are
        resolved by `gpssm.fitting.choose.choose_starts`.

        Parameters
        ----------
        series
            The training experiments in the user's units, with delayed inputs.
        """
        if not self.settings.learns:
            return self.replace(method=self.settings.resolve(self.scale(series)[1]))
        state_dim = self.state_dim
        if state_dim == "auto":
            state_dim = wired_size(self.wiring, series[0].output_dim) or "auto"
        if state_dim == "auto":
            state_dim = self.order_of(series)
        num_inducing = self.num_inducing
        if num_inducing == "auto":
            rows = sum(len(item) for item in series)
            num_inducing = int(np.clip(rows // ROWS_PER_POINT, FEWEST_POINTS, MOST_POINTS))
        observed = sum(int(np.isfinite(item.y).any(1).sum()) for item in series)
        if state_dim >= observed:
            raise ValueError(
                f"state_dim={state_dim} is too large for {count(observed, 'row')} with outputs: "
                "use fewer states, more rows, or the posterior of a similar system as prior."
            )
        wiring = make_wiring(self.wiring, state_dim, series[0].input_dim, series[0].output_dim)
        if (
            wiring is not None
            and wiring.measured
            and any(fnmatch.filter(OUTPUT_MAP, pattern) for pattern in self.learn)
        ):
            raise ValueError("the wiring determines the output map: drop it from learn.")
        return self.replace(state_dim=state_dim, num_inducing=num_inducing, wiring=wiring)

    def order_of(self, series: Sequence[Series]) -> int:
        """Return the best order of a linear model at the horizon; at least one state per output."""
        likelihood = uninformed_likelihood(self.likelihood, series[0].output_dim)
        scaled = pseudo_series(self.scale(series)[1], likelihood)
        return max(council(scaled, self.horizon, members=("ss",)).orders[0], series[0].output_dim)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        return same(self.to_dict(), other.to_dict())

    def __hash__(self) -> int:
        return hash(repr(self.describe()))


METHOD_NUMBERS = ("num_warmup", "num_draws", "thin", "precision")  # settings of every method


def check_names(names: Iterable[str], choices: Sequence[str], where: str = "fit") -> None:
    """Raise for settings that do not exist, and suggest the nearest name."""
    for name in names:
        if name not in choices:
            hint = nearest(name, choices)
            raise TypeError(f"{where} has no setting {name!r}.{hint} Known: {', '.join(choices)}")


def _method(method: Any) -> MethodSettings | Mapping[str, Any]:
    """Return the settings of a method from a name or a dictionary.

    A dictionary with an unregistered method is returned unchanged.
    """
    if isinstance(method, MethodSettings):
        return method
    if isinstance(method, str):
        method = {"name": method}
    elif isinstance(method, Mapping) and isinstance(method.get("name"), str):
        if method["name"] not in METHODS:
            return method
    else:
        raise TypeError(f"method must be a name, or the settings of a method; got {method!r}.")
    name = method["name"]
    if name not in METHODS:
        raise KeyError(
            f"Unknown method {name!r}.{nearest(name, METHODS)} Known: {', '.join(METHODS)}; or "
            "pass a configuration."
        )
    numbers = {field: value for field, value in method.items() if field != "name"}
    return dataclasses.replace(METHODS[name], **numbers)


def _plain(value: Any) -> Any:
    """Return a value that JSON supports, or the name of its type."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, ChainStart):
        return value._asdict()
    if isinstance(value, list | tuple) and not any(np.ndim(entry) for entry in value):
        return [_plain(entry) for entry in value]
    if isinstance(value, list | tuple | np.ndarray | jax.Array):
        return "states"
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | type(None)) else type(value).__name__


def same(first: Any, second: Any) -> bool:
    """Return whether two settings are equal; arrays are compared by value."""
    return bool(eqx.tree_equal(first, second, typematch=True))
