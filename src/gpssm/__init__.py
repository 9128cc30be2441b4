"""Gaussian process state-space models: nonlinear system identification and forecasting with honest uncertainty."""

import importlib

__version__ = "0.1.0"

# Public names and where they live. They load on first use: `gpssm --help` must not wait for JAX.
_HOMES = {
    "GPSSM": "model",
    "Scaler": "scaler",
    "Series": "series",
    "build_model": "build",
    "read": "readers",
}
_MODULES = ("bases", "conditionals", "datasets", "kernels", "likelihoods", "means", "priors", "target")

__all__ = [*_HOMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"gpssm.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"gpssm.{_HOMES[name]}"), name)
    raise AttributeError(f"gpssm has no {name!r}. It has: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
