"""The linear baselines: linear-Gaussian models fitted by other means, and exact draws of their states.

    x_{t+1} = A x_t + B u_t + b + N(0, Q),   y_t = C x_{t+1} + d + N(0, R)

is a GPSSM without a Gaussian process: its transition is the mean function, its weights are zero. So the baselines are
forecast, conditioned, scored and saved like everything else. Their parameters are point estimates:

- `arx`: linear regression of the outputs on past outputs and controls, in state-space form;
- `lgssm`: a linear-Gaussian state-space model by subspace identification and expectation-maximisation;
- `last`: the outputs stay where they are, in steps as large as those seen;
- `mean`: independent outputs around their average.
"""

import abc
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import solve_upper
from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.inference.settings import Assumptions, MethodSettings, States
from gpssm.linear.identification import fit_linear, select_order
from gpssm.linear.state_space import LinearSSM, log_marginal, smooth
from gpssm.model.bases import LinearFeatures
from gpssm.model.kernels import make_kernel
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info, Method
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

# Standard deviation of noises that the model does not have, in units of the scaled data: small beside any residual, not
# so small that precisions overflow what float64 can add up.
NO_NOISE = 1e-4
RIDGE = 1e-8  # of a regression, relative to each regressor's mean square: controls may be constant or collinear
ROWS_A_COEFFICIENT = 3  # rows of data that a coefficient needs at least


@dataclass(frozen=True)
class Baseline(MethodSettings):
    """A linear-Gaussian model whose parameters are found before sampling begins; its draws are independent."""

    learns: ClassVar[bool] = False
    assumptions: ClassVar[Assumptions | None] = None  # no Gaussian process
    num_warmup: int = 0
    num_draws: int = 250

    @abc.abstractmethod
    def linear(self, series: list[Series]) -> LinearSSM:
        """The model for scaled series; its Q is diagonal."""

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """The baseline as a GPSSM, and its smoothed states. Of `spec` only a Gaussian likelihood makes sense here."""
        if spec.likelihood != "gaussian":
            raise ValueError(f"A linear baseline has Gaussian outputs: likelihood={spec.likelihood!r} does not fit it.")
        if spec.wiring is not None:
            raise ValueError("a linear baseline finds its own coefficients and takes no wiring: leave it out.")
        linear = jax.tree.map(jnp.asarray, self.linear(series))
        return Start(as_model(linear), [np.asarray(smooth(linear, item).mean) for item in series])

    def build(self, model: GPSSM, states: States) -> Method:
        """Independent draws of the states from the exact smoothing distribution."""
        linear = as_linear(model)
        weights = jnp.zeros((model.state_dim, model.basis.size))

        def init(key: PRNGKeyArray, series: list[Series]) -> Array:
            return sum((log_marginal(linear, one) for one in series), jnp.zeros(()))

        def draw(key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
            paths = []
            for one_key, one in zip(jax.random.split(key, len(series)), series, strict=True):
                mean, factor = smooth(linear, one)
                # μ + L⁻ᵀε ~ N(μ, Λ⁻¹), with Λ = LLᵀ the precision of the smoothing distribution.
                paths.append(mean + solve_upper(factor, jax.random.normal(one_key, mean.shape)))
            return Draw(tuple(paths), weights, {})

        return Method(init, stay, draw)


@dataclass(frozen=True)
class ARX(Baseline):
    """Linear regression on past outputs and controls, with its orders chosen by the data.

        y_t = Σ_{i=1..na} a_i y_{t−i} + Σ_{j=0..nb−1} b_j u_{t−j} + c + noise

    :param orders: (na, nb); None chooses both by the Bayesian information criterion.
    :param max_order: the largest that is tried for either.
    """

    orders: tuple[int, int] | None = None
    max_order: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_order", self.max_order, 1)
        for order in (1, 1) if self.orders is None else self.orders:
            check_whole("each of orders", order, 1)

    def linear(self, series: list[Series]) -> LinearSSM:
        """The regression in state-space form."""
        na, nb = select_orders(series, self.max_order) if self.orders is None else self.orders
        return to_state_space(regress(series, na, nb, max(na, nb - 1)))


@dataclass(frozen=True)
class LGSSM(Baseline):
    """A linear-Gaussian state-space model by subspace identification and expectation-maximisation.

    :param order: number of states; None chooses it by the Bayesian information criterion.
    :param max_order: the largest that is tried.
    """

    order: int | None = None
    max_order: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("order", self.order, 1, none="to choose it")
        check_whole("max_order", self.max_order, 1)

    def linear(self, series: list[Series]) -> LinearSSM:
        """The linear fit that the Gaussian process methods start from, at its own order."""
        order = select_order(series, self.max_order).best if self.order is None else self.order
        return fit_linear(series, order)


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


def stay(key: PRNGKeyArray, carry: Array, series: list[Series]) -> tuple[Array, Info]:
    """The step of a method whose draws are independent; its carry is the log density of the data."""
    nothing = jnp.zeros(())
    return carry, Info(carry, jnp.ones(()), jnp.asarray(False), nothing, nothing)


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


class Regression(NamedTuple):
    """y_t = Σ_i outputs[i−1] y_{t−i} + Σ_j inputs[j] u_{t−j} + offset + N(0, variance)."""

    outputs: Float[np.ndarray, "na Dy Dy"]
    inputs: Float[np.ndarray, "nb Dy Du"]
    offset: Float[np.ndarray, " Dy"]
    variance: Float[np.ndarray, " Dy"]


def select_orders(series: list[Series], max_order: int) -> tuple[int, int]:
    """The (na, nb) of least N Σ_j log σ²_j + k log N, all of them judged on the same N rows."""
    has_inputs = series[0].input_dim > 0
    skip = min(max_order, min(len(one) for one in series) // 4)
    rows = sum(len(one) - skip for one in series)

    def score(orders: tuple[int, int]) -> float:
        try:
            found = regress(series, *orders, skip)
        except ValueError:
            return np.inf
        count = found.outputs.size + found.inputs.size + found.offset.size
        return rows * float(np.sum(np.log(np.maximum(found.variance, NO_NOISE**2)))) + count * np.log(rows)

    tried = itertools.product(range(1, skip + 1), range(1, skip + 1) if has_inputs else [1])
    return min(tried, key=score)


def regress(series: list[Series], na: int, nb: int, skip: int) -> Regression:
    """Least squares on the rows after the first `skip` of each series in which nothing is missing."""
    pairs = [_regressors(one, na, nb, skip) for one in series]
    z, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    complete = np.isfinite(z).all(1) & np.isfinite(y).all(1)
    z, y = z[complete], y[complete]
    if len(z) < ROWS_A_COEFFICIENT * z.shape[1]:
        raise ValueError(
            f"A regression on {na} past outputs and {nb} controls has {z.shape[1]} coefficients an output and needs "
            f"{ROWS_A_COEFFICIENT * z.shape[1]} rows without missing outputs; there are {len(z)}."
        )
    square = z.T @ z
    solved = np.linalg.solve(square + RIDGE * np.diag(np.maximum(np.diagonal(square), 1e-12)), z.T @ y)
    width, controls = y.shape[1], series[0].input_dim
    outputs, inputs, offset = np.split(solved, [na * width, na * width + nb * controls])
    variance = np.mean((y - z @ solved) ** 2, 0)
    return Regression(
        outputs.reshape(na, width, width).swapaxes(1, 2),
        inputs.reshape(nb, controls, width).swapaxes(1, 2),
        offset[0],
        variance,
    )


def _regressors(one: Series, na: int, nb: int, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [y_{t−1}, …, y_{t−na}, u_t, …, u_{t−nb+1}, 1] and y_t for t from `skip` on."""
    past = [one.y[skip - lag : len(one) - lag] for lag in range(1, na + 1)]
    controls = [one.u[skip - lag : len(one) - lag] for lag in range(nb)]
    return np.hstack([*past, *controls, np.ones((len(one) - skip, 1))]), one.y[skip:]


def to_state_space(found: Regression) -> LinearSSM:
    """x_t = [y_{t−1}, …, y_{t−na}, u_{t−1}, …, u_{t−nb+1}]: the newest output is regressed, the others move down."""
    na, width, _ = found.outputs.shape
    nb, _, controls = found.inputs.shape
    lags, size = na * width, na * width + (nb - 1) * controls
    transition, control = np.zeros((size, size)), np.zeros((size, controls))
    transition[:width] = np.hstack([*found.outputs, *found.inputs[1:]])
    transition[width:lags, : lags - width] = np.eye(lags - width)
    control[:width] = found.inputs[0]
    if nb > 1:
        control[lags : lags + controls] = np.eye(controls)
        transition[lags + controls :, lags : size - controls] = np.eye(size - lags - controls)
    offset, variance = np.zeros(size), np.full(size, NO_NOISE**2)
    offset[:width], variance[:width] = found.offset, np.maximum(found.variance, NO_NOISE**2)
    shown = np.eye(width, size)
    parts = (transition, control, offset, shown, np.zeros(width), np.diag(variance), np.full(width, NO_NOISE))
    return LinearSSM(*(jnp.asarray(part) for part in parts))
