"""The linear baselines: linear models as posteriors.

    x_{t+1} = A x_t + B u_t + b + N(0, Q),   y_t = C x_{t+1} + d + N(0, R)

is a GPSSM without a Gaussian process: its transition is the mean function, with zero weights.
Baselines are therefore forecast, conditioned, scored and saved like other models. Their parameters
are point estimates:

- `arx`: linear regression of the outputs on past outputs and inputs, with orders chosen by BIC;
- `arx-reg`: a long regularised regression, whose order need not be chosen, as a state-space model;
- `lgssm`: a state-space model of the order that forecasts held-out training rows best;
- `last`: a random walk with steps as large as those of the data;
- `mean`: independent outputs around their average.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.settings import (
    MethodSettings,
    counts,
    independent_sample,
    whole,
)
from gpssm.linear import kalman
from gpssm.linear.arx import (
    LAGS,
    innovations_form,
    reduce,
    regress,
    regress_regularised,
    select_orders,
    to_state_space,
)
from gpssm.linear.council import HORIZON, MAX_ORDER, council, fit_last, fit_mean
from gpssm.linear.state_space import LinearSSM
from gpssm.model.bases import LinearFeatures
from gpssm.model.kernels import make_kernel
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

# Standard deviation of negligible noise, in units of the scaled data. Forecasts many rows ahead
# accumulate the noise of every state, so that it must be far below the minimum error of a
# regression (`arx.NO_NOISE`).
EXACT = 1e-6


@dataclass(frozen=True)
class Baseline(MethodSettings):
    """A linear-Gaussian model with point estimates of its parameters and independent draws."""

    learns: ClassVar[bool] = False
    extrapolates: ClassVar[bool] = True
    supports: ClassVar[Mapping[str, Any]] = {"likelihood": "gaussian", "wiring": None}
    num_warmup: int = 0
    num_draws: int = 25

    @abc.abstractmethod
    def linear(self, series: Sequence[Series]) -> LinearSSM:
        """Return the linear model of scaled series."""

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the baseline as a GPSSM, and its filtered states.

        Only a Gaussian likelihood is supported.
        """
        self.check_support(spec)
        linear = with_diagonal_noise(self.linear(series))
        states = [kalman.filter_states(kalman.stack([linear]), item).means[0] for item in series]
        return Start(as_model(linear), states)

    def draw_independently(
        self, model: GPSSM, series: list[Series], num_chains: int, seed: int
    ) -> tuple[Draw, Info] | None:
        """Draw states from their exact smoothing distribution, with one generator per chain.

        Their log target is log p(y).
        """
        linear = as_linear(model)
        generators = [np.random.default_rng([seed, chain]) for chain in range(num_chains)]
        paths = [
            [kalman.draw_states(linear, experiment, self.num_draws, rng) for experiment in series]
            for rng in generators
        ]
        weights = np.zeros((num_chains, self.num_draws, model.state_dim, model.basis.size))
        log_density = kalman.log_density(kalman.stack([linear]), series)[0]
        return independent_sample(paths, weights, log_density)


@dataclass(frozen=True)
class LagSettings(MethodSettings):
    """Settings of regressions on past outputs and inputs.

    Parameters
    ----------
    orders
        (na, nb), the numbers of past outputs and of inputs; None chooses both by the Bayesian
        information criterion of a linear regression.
    max_order
        Largest order to try for either.
    """

    least_order: ClassVar[int] = 1

    orders: tuple[int, int] | None = counts(None)
    max_order: int = whole(10)

    def resolve(self, series: Sequence[Series]) -> Self:
        """Return the settings with the orders chosen by the information criterion."""
        if self.orders is not None:
            return self
        least = min(self.least_order, self.max_order)
        na, nb = select_orders(series, self.max_order)
        return dataclasses.replace(self, orders=(max(na, least), max(nb, least)))


@dataclass(frozen=True)
class ARX(Baseline, LagSettings):
    """Linear regression on past outputs and inputs, with orders chosen by the data.

    y_t = Σ_{i=1..na} a_i y_{t−i} + Σ_{j=0..nb−1} b_j u_{t−j} + c + noise
    """

    def linear(self, series: Sequence[Series]) -> LinearSSM:
        """Return the regression in state-space form."""
        orders: Any = self.resolve(series).orders
        return to_state_space(regress(series, *orders))


@dataclass(frozen=True)
class RegularisedARX(Baseline):
    """A long regression with smooth, decaying impulse responses, regularised by marginal
    likelihood.

    See `gpssm.linear.arx`. The regression is reduced to a state-space model with the same
    forecasts.

    Parameters
    ----------
    lags
        Number of lags of outputs and inputs, more than the system needs.
    """

    lags: tuple[int, int] = counts((LAGS, LAGS))

    def linear(self, series: Sequence[Series]) -> LinearSSM:
        """Return the reduction to 30 components, without those below 1e-4 of the first."""
        components = reduce(regress_regularised(series, *self.lags), series, 30, HORIZON)
        worth = components.singular_values
        return innovations_form(components, max(1, int(np.sum(worth > 1e-4 * worth[0]))))


@dataclass(frozen=True)
class LGSSM(Baseline):
    """A linear-Gaussian state-space model in innovations form (`gpssm.linear.arx`).

    Parameters
    ----------
    order
        Number of states besides one per output; None chooses the order with the best forecasts of
        held-out windows.
    max_order
        Largest order to try.
    """

    order: int | None = whole(None, none="to choose it")
    max_order: int = whole(MAX_ORDER)

    def linear(self, series: Sequence[Series]) -> LinearSSM:
        """Return the state-space model of that order, or of the largest order that the data
        support."""
        if self.order is None:
            members = council(series, HORIZON, self.max_order, members=("ss",))
            return members.models[members.best]
        components = reduce(regress_regularised(series), series, self.order, HORIZON)
        return innovations_form(components, self.order)


class Last(Baseline):
    """A random walk, x_{t+1} = x_t + N(0, Q), y_t = x_{t+1}, with Q the mean square step."""

    def linear(self, series: Sequence[Series]) -> LinearSSM:
        """One state per output."""
        return fit_last(series)


class Average(Baseline):
    """White noise, x_{t+1} ~ N(0, I), y_t = σ x_{t+1} + μ, with the mean and standard deviation of
    y.
    """

    def linear(self, series: Sequence[Series]) -> LinearSSM:
        """One state per output."""
        return fit_mean(series)


def with_diagonal_noise(linear: LinearSSM) -> LinearSSM:
    """Return the model with independent process noise, x' = Vᵀx with Q = V diag(q) Vᵀ.

    The prior x₀ ~ N(0, I) is unchanged. Standard deviations are at least `EXACT`.
    """
    variances, vectors = np.linalg.eigh(linear.process_cov)
    if not np.any(linear.process_cov - np.diag(np.diagonal(linear.process_cov))):
        variances, vectors = np.diagonal(linear.process_cov), np.eye(len(variances))
    return LinearSSM(
        vectors.T @ linear.transition @ vectors,
        vectors.T @ linear.input_map,
        vectors.T @ linear.offset,
        linear.C @ vectors,
        linear.d,
        np.diag(np.maximum(variances, EXACT**2)),
        np.maximum(linear.noise_std, EXACT),
    )


def as_model(linear: LinearSSM) -> GPSSM:
    """Return the GPSSM whose mean function is the linear transition, for weights that are zero."""
    std = np.sqrt(np.diagonal(linear.process_cov))
    state_dim, input_dim = linear.input_map.shape
    dim = state_dim + input_dim
    linear = jax.tree.map(jnp.asarray, linear)
    return GPSSM.create(
        make_kernel("linear", state_dim, dim, jnp.ones(state_dim), 1.0),
        LinearFeatures.build(state_dim, dim, 1.0),
        LinearMap(linear.transition, linear.input_map, linear.offset),
        Gaussian.build(linear.C, linear.d, linear.noise_std),
        jnp.asarray(std),
    )


def as_linear(model: GPSSM) -> LinearSSM:
    """Return the linear-Gaussian model of a model from `as_model`."""
    mean, likelihood = model.mean, model.likelihood
    if not isinstance(mean, LinearMap) or not isinstance(likelihood, Gaussian):
        raise TypeError("A baseline's model has a linear mean and a Gaussian likelihood.")
    linear = LinearSSM(
        mean.transition,
        mean.input_map,
        mean.offset,
        likelihood.C,
        likelihood.d,
        jnp.diag(model.process_variance),
        jnp.exp(likelihood.log_std),
    )
    return jax.tree.map(np.asarray, linear)
