"""`last`: the outputs stay where they are, in steps as large as those seen."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from gpssm.linear_ssm import LinearSSM
from gpssm.methods.base_linear import NO_NOISE, Baseline
from gpssm.series import Series


@dataclass(frozen=True)
class Last(Baseline):
    """A random walk, x_{t+1} = x_t + N(0, Q), y_t = x_{t+1}, with Q the mean square step; controls play no part."""

    def linear(self, series: list[Series]) -> LinearSSM:
        """One state an output."""
        steps = np.concatenate([np.diff(one.y, axis=0) for one in series])
        if np.isnan(steps).all(0).any():
            raise ValueError("`last` needs two outputs in a row somewhere to know the size of a step; there are none.")
        width, controls = series[0].output_dim, series[0].input_dim
        variance = np.maximum(np.nanmean(steps**2, 0), NO_NOISE**2)
        none, one = np.zeros(width), np.eye(width)
        parts = (one, np.zeros((width, controls)), none, one, none, np.diag(variance), np.full(width, NO_NOISE))
        return LinearSSM(*(jnp.asarray(part) for part in parts))
