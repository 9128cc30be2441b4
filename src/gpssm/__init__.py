"""Gaussian process state-space models: system identification and forecasts with uncertainty.

A package imports only from itself and from the packages before it:

    core → data → model → linear → starts → inference → methods → posterior → fitting →
    evaluation → plots → report → bench → cli

The public modules (`gpssm.kernels`, `gpssm.metrics`, ...) only re-export names; no package imports
from them.
"""

import importlib
from typing import TYPE_CHECKING

from gpssm.core import forks

if TYPE_CHECKING:
    from gpssm import analysis as analysis
    from gpssm import bases as bases
    from gpssm import benchmark as benchmark
    from gpssm import conditionals as conditionals
    from gpssm import datasets as datasets
    from gpssm import diagnostics as diagnostics
    from gpssm import kernels as kernels
    from gpssm import likelihoods as likelihoods
    from gpssm import means as means
    from gpssm import methods as methods
    from gpssm import metrics as metrics
    from gpssm import plots as plots
    from gpssm import priors as priors
    from gpssm import sktime as sktime
    from gpssm import target as target
    from gpssm.data.dataset import Dataset as Dataset
    from gpssm.data.delays import delays as delays
    from gpssm.data.preparing import detrend as detrend
    from gpssm.data.preparing import resample as resample
    from gpssm.data.readers import read as read
    from gpssm.data.scaler import Scaler as Scaler
    from gpssm.data.series import Series as Series
    from gpssm.evaluation.held_out import linear_models as linear_models
    from gpssm.evaluation.held_out import select as select
    from gpssm.evaluation.held_out import stack as stack
    from gpssm.evaluation.scores import backtest as backtest
    from gpssm.evaluation.scores import compare as compare
    from gpssm.fitting.fit import build_model as build_model
    from gpssm.fitting.fit import fit as fit
    from gpssm.fitting.many import fit_many as fit_many
    from gpssm.inference.runner import Runtime as Runtime
    from gpssm.methods.spec import Spec as Spec
    from gpssm.model.model import GPSSM as GPSSM
    from gpssm.model.wiring import Wiring as Wiring
    from gpssm.posterior.posterior import Posterior as Posterior
    from gpssm.posterior.stack import Stack as Stack
    from gpssm.posterior.stack import load as load
    from gpssm.starts.physics import Physics as Physics
    from gpssm.starts.physics import Unknown as Unknown

forks.watch()

__version__ = "0.2.0"

# Public names and the modules that define them. They are imported on first use, so that `gpssm
# --help` does not wait for JAX. The imports above tell type checkers the same.
_NAMES = {
    "Dataset": "data.dataset",
    "GPSSM": "model.model",
    "Physics": "starts.physics",
    "Posterior": "posterior.posterior",
    "Scaler": "data.scaler",
    "Series": "data.series",
    "Stack": "posterior.stack",
    "Unknown": "starts.physics",
    "Wiring": "model.wiring",
    "backtest": "evaluation.scores",
    "Runtime": "inference.runner",
    "Spec": "methods.spec",
    "build_model": "fitting.fit",
    "compare": "evaluation.scores",
    "delays": "data.delays",
    "detrend": "data.preparing",
    "fit": "fitting.fit",
    "fit_many": "fitting.many",
    "linear_models": "evaluation.held_out",
    "load": "posterior.stack",
    "read": "data.readers",
    "resample": "data.preparing",
    "select": "evaluation.held_out",
    "stack": "evaluation.held_out",
}
_MODULES = (
    "analysis",
    "bases",
    "benchmark",
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
# Modules that need an optional package, which `import *` must not import.
_OPTIONAL_MODULES = ("sktime",)

__all__ = [*_NAMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]

# Hidden from type checkers, which would otherwise accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in (*_MODULES, *_OPTIONAL_MODULES):
            return importlib.import_module(f"gpssm.{name}")
        if name in _NAMES:
            return getattr(importlib.import_module(f"gpssm.{_NAMES[name]}"), name)
        raise AttributeError(f"gpssm has no {name!r}. It has: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
