"""What the linear baselines share: a linear-Gaussian model fitted by other means, and exact draws of its states.

    x_{t+1} = A x_t + B u_t + b + N(0, Q),   y_t = C x_{t+1} + d + N(0, R)

is a GPSSM without a Gaussian process: its transition is the mean function, its weights are zero. So the baselines are
forecast, conditioned, scored and saved like everything else. Their parameters are point estimates.
"""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from gpssm.bases import LinearFeatures
from gpssm.build import Parts
from gpssm.kernels import make_kernel
from gpssm.likelihoods import Gaussian
from gpssm.linalg import solve_upper
from gpssm.linear_ssm import LinearSSM, log_marginal, smooth
from gpssm.means import LinearMap
from gpssm.methods.base import Assumptions, Config, States
from gpssm.model import GPSSM
from gpssm.series import Series
from gpssm.types import Draw, Info, Method

# Standard deviation of noises that the model does not have, in units of the scaled data: small beside any residual, not
# so small that precisions overflow what float64 can add up.
NO_NOISE = 1e-4


@dataclass(frozen=True)
class Baseline(Config):
    """A linear-Gaussian model whose parameters are found before sampling begins; its draws are independent."""

    learns: ClassVar[bool] = False
    assumptions: ClassVar[Assumptions | None] = None  # no Gaussian process
    num_warmup: int = 0
    num_draws: int = 250

    @abc.abstractmethod
    def linear(self, series: list[Series]) -> LinearSSM:
        """The model for scaled series; its Q is diagonal."""

    def prepare(self, series: list[Series], parts: Parts, key: PRNGKeyArray) -> tuple[GPSSM, list[np.ndarray]]:
        """The baseline as a GPSSM, and its smoothed states. Of `parts` only a Gaussian likelihood makes sense here."""
        if parts.likelihood != "gaussian":
            raise ValueError(
                f"A linear baseline has Gaussian outputs: likelihood={parts.likelihood!r} does not fit it."
            )
        linear = jax.tree.map(jnp.asarray, self.linear(series))
        return as_model(linear), [np.asarray(smooth(linear, one).mean) for one in series]

    def build(self, model: GPSSM, states: States) -> Method:
        """Independent draws of the states from the exact smoothing distribution."""
        linear = as_linear(model)
        weights = jnp.zeros((model.state_dim, model.basis.size))

        def init(key: PRNGKeyArray, series: list[Series]) -> Array:
            return sum((log_marginal(linear, one) for one in series), jnp.zeros(()))

        def draw(key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
            keys = jax.random.split(key, len(series))
            paths = [_draw_states(one_key, linear, one) for one_key, one in zip(keys, series, strict=True)]
            return Draw(tuple(paths), weights, {})

        return Method(init, stay, draw)


def stay(key: PRNGKeyArray, carry: Array, series: list[Series]) -> tuple[Array, Info]:
    """The step of a method whose draws are independent; its carry is the log density of the data."""
    nothing = jnp.zeros(())
    return carry, Info(carry, jnp.ones(()), jnp.asarray(False), nothing, nothing)


def _draw_states(key: PRNGKeyArray, linear: LinearSSM, series: Series) -> Array:
    """μ + L⁻ᵀε ~ N(μ, Λ⁻¹), with Λ = LLᵀ the precision of the smoothing distribution."""
    smoothed = smooth(linear, series)
    return smoothed.mean + solve_upper(smoothed.factor, jax.random.normal(key, smoothed.mean.shape))


def as_model(linear: LinearSSM) -> GPSSM:
    """The GPSSM whose mean function is the linear transition; its weights are meant to be zero."""
    state_dim, dim = linear.transition.shape[0], linear.transition.shape[1] + linear.control.shape[1]
    return GPSSM.create(
        make_kernel("linear", state_dim, dim, jnp.ones(state_dim), 1.0),
        LinearFeatures.build(state_dim, dim, 1.0),
        LinearMap(linear.transition, linear.control, linear.offset),
        Gaussian.build(linear.C, linear.d, linear.noise_std),
        jnp.sqrt(jnp.diagonal(linear.process_cov)),
    )


def as_linear(model: GPSSM) -> LinearSSM:
    """The linear-Gaussian model that `as_model` was given."""
    mean, likelihood = model.mean, model.likelihood
    if not isinstance(mean, LinearMap) or not isinstance(likelihood, Gaussian):
        raise TypeError("A baseline's model has a linear mean and a Gaussian likelihood.")
    parts = (mean.transition, mean.control, mean.offset, likelihood.C, likelihood.d)
    return LinearSSM(*parts, jnp.diag(model.process_variance), jnp.exp(likelihood.log_std))
