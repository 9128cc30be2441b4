"""Settings of methods, as registered in METHODS, and the interface that `fit` uses.

A method is a frozen dataclass of settings that names its `sampler`, a class with the three pure
functions `init`, `step` and `draw` (`gpssm.inference.parameters.Sampler`). `fit` calls, in this
order,

    prepare(series, spec, key)      the model of the scaled series, and the states to start from
    adopt(model)                    the model with the roles that the method gives its leaves
    num_shared(model)               the number of warm-up iterations that one pilot runs for all
    build(model, states)            the sampler

Leaves with the role "optimise" are learned only in the first part of the warm-up (`pilot_length`),
which the chains share: only with the same optimised parameters do they sample the same posterior.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.text import check_choice, check_whole, is_real
from gpssm.data.series import Series
from gpssm.linear.fit import linear_fit
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info, Method
from gpssm.starts.build import SLACK, Start, build

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

States = tuple[Float[Array, "_ Dx"], ...]


def checked(default: Any, check: Callable[[str, Any], object]) -> Any:
    """Declare a setting with its default and a function of name and value that may raise."""
    return field(default=default, metadata={"check": check})


def whole(
    default: int | str | None, least: int = 1, none: str | None = None, word: str | None = None
) -> Any:
    """Declare a setting that is a whole number.

    Parameters
    ----------
    default
        Its default.
    least
        The least value.
    none
        Meaning of None, if it is allowed: "for all rows".
    word
        A word that may stand in place of a number: "auto".
    """

    def check(name: str, value: Any) -> None:
        if not (isinstance(value, str) and value == word):
            check_whole(name, value, least, none)

    return checked(default, check)


def real(default: float, holds: Callable[[float], bool], requirement: str) -> Any:
    """Declare a setting that is a real number.

    Parameters
    ----------
    default
        Its default.
    holds
        Whether a number is allowed.
    requirement
        Description of the requirement: "positive".
    """

    def check(name: str, value: Any) -> None:
        if not is_real(value) or not holds(value):
            raise ValueError(f"{name} must be {requirement}, got {value!r}.")

    return checked(default, check)


def positive(default: float) -> Any:
    """Declare a setting that is a positive number."""
    return real(default, lambda value: value > 0, "positive")


def share(default: float) -> Any:
    """Declare a setting that is a number between 0 and 1."""
    return real(default, lambda value: 0 < value < 1, "between 0 and 1")


def choice(default: str, choices: Iterable[str]) -> Any:
    """Declare a setting with a fixed set of choices."""
    return checked(default, partial(check_choice, choices=choices))


def counts(default: tuple[int, int] | None) -> Any:
    """Declare a setting that is several whole numbers of at least 1, or None if that is its
    default.
    """

    def check(name: str, value: Any) -> None:
        for number in (value or (1,)) if default is None else value:
            check_whole(f"each of {name}", number, 1)

    return checked(default, check)


def check_settings(settings: Any) -> None:
    """Validate the declared settings of an object.

    A subclass may change a default; the check of the base class still applies.
    """
    checks = {
        name: item.metadata["check"]
        for cls in reversed(type(settings).__mro__)
        for name, item in vars(cls).get("__dataclass_fields__", {}).items()
        if "check" in item.metadata
    }
    for name, check in checks.items():
        check(name, getattr(settings, name))


@dataclass(frozen=True)
class MethodSettings:
    """Settings shared by all methods, and methods with defaults that can be overridden.

    Settings declared by `whole`, `real` and similar functions are validated.

    Parameters
    ----------
    num_warmup
        Number of warm-up iterations, which adapt the sampler and are discarded.
    num_draws
        Number of draws in each chain.
    thin
        Number of iterations per draw.
    precision
        Number of effective draws of the outputs at which sampling stops before `num_draws`; see
        `gpssm.diagnostics.is_precise`. None takes all draws.
    learning_rate
        Initial step size of Adam for optimised parameters; it falls to zero over the shared part of
        the warm-up.
    """

    learns: ClassVar[bool] = True  # whether the model has parameters to learn while it samples
    extrapolates: ClassVar[bool] = False  # whether it assumes the dynamics to be linear everywhere
    compares: ClassVar[bool] = False  # whether start="auto" compares starts
    # Whether series are padded, so that different numbers of rows share one program.
    pads: ClassVar[bool] = False
    # Whether it has no accept step and measures the resulting bias.
    judges_bias: ClassVar[bool] = False
    sampler: ClassVar[Callable[..., Method] | None] = None  # its class, for `build`
    # The only values of settings of the model that it supports.
    supports: ClassVar[Mapping[str, Any]] = {}

    num_warmup: int = whole(500, least=0)
    num_draws: int = whole(500)
    thin: int = whole(1)
    precision: int | None = whole(None, none="to take num_draws draws")
    learning_rate: float = positive(0.03)

    def __post_init__(self) -> None:
        check_settings(self)

    def resolve(self, series: Sequence[Series]) -> Self:
        """Return the settings with values chosen from the scaled series instead of None."""
        return self

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the model of scaled series and the starting states, by default from a linear fit.

        Parameters
        ----------
        series
            The scaled series.
        spec
            The specification of the fit.
        key
            Random key.
        """
        linear = linear_fit(series, spec)
        return build(spec, linear, key, self.slack(len(linear.z)))

    def check_support(self, spec: "Spec") -> None:
        """Raise for settings of the model that the method does not support."""
        for name, value in self.supports.items():
            if getattr(spec, name) != value:
                raise ValueError(
                    f"`{spec.method_name}` supports only {name}={value!r}, got "
                    f"{getattr(spec, name)!r}. Omit it, or use method='quick'."
                )

    def slack(self, rows: int) -> float:
        """Return the prior standard deviation of a linear mean around the linear fit."""
        return SLACK

    def rate(self, states: States) -> float:
        """Return the initial step size of Adam."""
        return self.learning_rate

    def adopt(self, model: GPSSM) -> GPSSM:
        """Return the model with the roles of its leaves adapted to this method."""
        return model

    def num_shared(self, model: GPSSM) -> int:
        """Return the number of shared warm-up iterations; zero if nothing is optimised."""
        return pilot_length(self.num_warmup) if model.leaves("optimise") else 0

    def draw_independently(
        self, model: GPSSM, series: list[Series], num_chains: int, seed: int
    ) -> tuple[Draw, Info] | None:
        """Return all draws of a method that needs no Markov chain; None for other methods.

        The leading axes of the draws are (chain, draw).

        Parameters
        ----------
        model
            The model.
        series
            The scaled series.
        num_chains
            Number of chains.
        seed
            Seed of all random numbers.
        """
        return None

    def build(self, model: GPSSM, states: States) -> Method:
        """Return the sampler for a model, started at these states."""
        if self.sampler is None:
            raise TypeError(
                f"{type(self).__name__} is not a method: use one from gpssm.methods.METHODS."
            )
        return self.sampler(self, model, states)


def independent_sample(
    paths: Sequence[Sequence[Float[np.ndarray, "draw _ Dx"]]],
    weights: Float[np.ndarray, "chain draw Dx M"],
    log_target: float,
) -> tuple[Draw, Info]:
    """Return independent draws and their figures.

    Parameters
    ----------
    paths
        The states of each series, for each chain.
    weights
        The weights.
    log_target
        The log density of the data, which is the same for all draws.
    """
    zeros: Any = np.zeros(weights.shape[:2])
    states: Any = tuple(np.stack(chains) for chains in zip(*paths, strict=True))
    info = Info(zeros + log_target, zeros + 1.0, zeros > 0.0, zeros, zeros)
    return Draw(states, cast(Any, weights), {}), info


def pilot_length(num_warmup: int) -> int:
    """Return the number of warm-up iterations in which the pilot chain optimises leaves."""
    return 2 * num_warmup // 3
