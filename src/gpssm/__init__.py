"""Gaussian process state-space models: nonlinear system identification and forecasts with honest uncertainty.

A folder is a room, and this list of them is the way of the data; a file imports from its own room and those before it:

    core → data → model → linear → starts → inference → methods → posterior → fitting → evaluation → plots → report →
    bench → cli
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

from gpssm.core import forks

forks.watch()

__version__ = "0.1.0"

# Public names and where they live. They load on first use: `gpssm --help` must not wait for JAX.
_NAMES = {
    "Dataset": "data.dataset",
    "GPSSM": "model.model",
    "Physics": "starts.physics",
    "Posterior": "posterior.posterior",
    "Scaler": "data.scaler",
    "Series": "data.series",
    "Stack": "evaluation.stack",
    "Unknown": "starts.physics",
    "Wiring": "model.wiring",
    "backtest": "evaluation.backtest",
    "Runtime": "inference.runner",
    "Spec": "methods.spec",
    "build_model": "fitting.fit",
    "compare": "evaluation.compare",
    "delayed": "data.delays",
    "delays": "data.delays",
    "detrend": "data.preparing",
    "fit": "fitting.fit",
    "load": "posterior.posterior",
    "merge": "data.preparing",
    "read": "data.readers",
    "resample": "data.preparing",
    "select": "evaluation.select",
    "stack": "evaluation.stack",
}
# Modules that are public under a name of their own, `gpssm.kernels`, whatever room they are in.
_MODULES = {
    "bases": "model.bases",
    "benchmark": "bench",
    "conditionals": "model.conditionals",
    "datasets": "data.datasets",
    "diagnostics": "posterior.diagnostics",
    "kernels": "model.kernels",
    "likelihoods": "model.likelihoods",
    "means": "model.means",
    "methods": "methods",
    "metrics": "core.metrics",
    "plots": "plots",
    "priors": "model.priors",
    "target": "model.target",
}
# Where version 0.1.0 had a module that documentation and examples imported from; it is found there still.
_FORMER = {
    "build": "starts.build",
    "loop": "inference.runner",
    "scaler": "data.scaler",
    "series": "data.series",
    "types": "model.types",
}
_ADDRESSES = _FORMER | _MODULES

__all__ = [*_NAMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"gpssm.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"gpssm.{_NAMES[name]}"), name)
    raise AttributeError(f"gpssm has no {name!r}. It has: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _PublicModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`from gpssm.kernels import Sum`: the module of the room, under its public name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        home = _ADDRESSES.get(fullname.removeprefix("gpssm."))
        moved = fullname.startswith("gpssm.") and home is not None and fullname != f"gpssm.{home}"
        return importlib.machinery.ModuleSpec(fullname, self) if moved else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(
            f"gpssm.{_ADDRESSES[module.__name__.removeprefix('gpssm.')]}"
        )


# Before the finder of folders: one that an older version left behind, with nothing but caches in it, is no module.
sys.meta_path.insert(0, _PublicModules())
