"""`mean`: independent outputs around their average."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from gpssm.linear_ssm import LinearSSM
from gpssm.methods.base_linear import NO_NOISE, Baseline
from gpssm.series import Series


@dataclass(frozen=True)
class Average(Baseline):
    """White noise, x_{t+1} ~ N(0, I), y_t = σ x_{t+1} + μ, with the outputs' mean and standard deviation."""

    def linear(self, series: list[Series]) -> LinearSSM:
        """One state an output."""
        y = np.concatenate([one.y for one in series])
        width, controls = series[0].output_dim, series[0].input_dim
        none = np.zeros(width)
        spread, noise = np.diag(np.nanstd(y, 0)), np.full(width, NO_NOISE)
        nothing = np.zeros((width, width))
        parts = (nothing, np.zeros((width, controls)), none, spread, np.nanmean(y, 0), np.eye(width), noise)
        return LinearSSM(*(jnp.asarray(part) for part in parts))
