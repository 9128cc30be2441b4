"""Load a saved posterior or stack."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpssm.core.text import check_path
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack, load_forecaster


def load(path: str | Path, parts: Mapping[str, Any] | None = None) -> Posterior | Stack:
    """Load a posterior saved by `Posterior.save`, or a stack saved by `Stack.save`.

        posterior = gpssm.load("run.nc", parts={"mean.function": drag})

    Parameters
    ----------
    path
        The file, or the folder of a run on the command line, such as `runs/tank`.
    parts
        User-defined functions of the model by dotted name. If one is missing, the error names it.

    Returns
    -------
    Posterior or Stack
        Identical to the saved object, bit for bit.
    """
    path = check_path(path)
    path = path / "posterior.nc" if path.is_dir() else path
    return load_forecaster(path, parts)
