"""Gaussian process state-space models: nonlinear system identification and forecasts with honest uncertainty."""

import importlib
import sys
import types

__version__ = "0.1.0"

# Public names and where they live. They load on first use: `gpssm --help` must not wait for JAX.
_HOMES = {
    "GPSSM": "model",
    "Posterior": "posterior",
    "Scaler": "scaler",
    "Series": "series",
    "backtest": "backtesting",
    "build_model": "build",
    "compare": "comparison",
    "fit": "fit",
    "load": "posterior",
    "read": "readers",
    "select": "selection",
}
_MODULES = (
    "bases",
    "conditionals",
    "datasets",
    "diagnostics",
    "kernels",
    "likelihoods",
    "means",
    "methods",
    "metrics",
    "plots",
    "priors",
    "target",
)

__all__ = [*_HOMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"gpssm.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"gpssm.{_HOMES[name]}"), name)
    raise AttributeError(f"gpssm has no {name!r}. It has: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(types.ModuleType):
    """The package, in which `gpssm.fit` is the function, though importing the module of that name would hide it."""

    @property
    def fit(self) -> object:
        return __getattr__("fit")

    @fit.setter
    def fit(self, module: types.ModuleType) -> None:
        """The import system's own assignment, to be passed over."""


sys.modules[__name__].__class__ = _Package
