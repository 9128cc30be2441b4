"""Read what `save` wrote: a posterior, or a stack of several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpssm.core.text import check_path
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack, load_forecaster


def load(path: str | Path, parts: Mapping[str, Any] | None = None) -> Posterior | Stack:
    """Load the posterior that `Posterior.save` wrote, or the stack that `Stack.save` wrote.

        posterior = gpssm.load("run.nc", parts={"mean.function": drag})

    Parameters
    ----------
    path
        The file, or the folder of a run of the command line, `runs/tank`.
    parts
        The user's own functions in the model by dotted name. If one is missing, the error names it.

    Returns
    -------
    Posterior or Stack
        Equal to the saved one to the last bit.
    """
    path = check_path(path)
    path = path / "posterior.nc" if path.is_dir() else path
    return load_forecaster(path, parts)
