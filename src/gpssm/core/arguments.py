"""Checks of the arguments of public functions, by their names.

    @check_arguments
    def smooth(posterior, index=-1, noise=False, seed=0): ...

An argument has the same meaning in all functions; `CHECKS` says which values it may have. Code that
a function calls trusts its arguments.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gpssm.core.text import as_share, check_flag, check_seed, check_shares, check_whole

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _positive(name: str, value: Any) -> Any:
    check_whole(name, value, 1)
    return value


def _flag(name: str, value: Any) -> Any:
    check_flag(name, value)
    return value


# For each name, a function that returns the value of the argument, or raises.
CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "seed": lambda name, value: check_seed(value),
    "level": lambda name, value: as_share(value),
    "levels": lambda name, value: tuple(check_shares(name, value)),
    **dict.fromkeys(("new_experiment", "noise"), _flag),
    **dict.fromkeys(("horizon", "steps", "step", "n"), _positive),
    **dict.fromkeys(("num_paths", "num_draws", "max_draws", "num_chains", "jobs"), _positive),
}


def check_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a public function: arguments other than the defaults are checked by their names."""
    parameters = inspect.signature(function).parameters

    def enter(name: str, value: Any) -> Any:
        if name not in CHECKS or name not in parameters or value is parameters[name].default:
            return value
        return CHECKS[name](name, value)

    @functools.wraps(function)
    def enter_all(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        named: Any = (*map(enter, parameters, args), *args[len(parameters) :])
        others: Any = {name: enter(name, value) for name, value in options.items()}
        return function(*named, **others)  # pyright: ignore[reportCallIssue]

    return enter_all
