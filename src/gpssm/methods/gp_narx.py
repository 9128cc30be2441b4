"""`gp-narx`: Gaussian process regression of the outputs on past outputs and inputs.

    y_t = m(z_t) + w·[z_t; 1] + g(z_t) + N(0, σ²),   g ~ GP(0, k),  w ~ N(0, s² I),  k SE-ARD
    z_t = [y_{t−1}, …, y_{t−na}, u_{t−1}, …, u_{t−nb+1}, u_t]

m is the regularised linear regression of `gpssm.linear.arx`, with orders chosen by BIC, at least
two. Each output has a separate process on the lags of all signals. The lags form a shift register,
so this is a GPSSM whose states are past outputs and inputs: the first states have a learned
transition, the others are shifted. It is forecast, filtered and saved like other models; each path
uses a draw of the function and has noise at every step.

**Hyper-parameters** maximise, for each output, the bound of `sparse_regression.py` and a weak
prior, with M inducing points that all outputs share.

**Smoothness.** The evidence measures one-step predictions, and a function with the highest evidence
may simulate poorly. Therefore the regression is fitted under two priors of the lengthscales, and
the one that simulates held-out training rows better is used.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.settings import (
    independent_sample,
    whole,
)
from gpssm.linear import kalman
from gpssm.linear.arx import NO_NOISE, regress_regularised, to_state_space
from gpssm.linear.council import HORIZON
from gpssm.linear.state_space import LinearSSM
from gpssm.methods.linear import EXACT, LagSettings, as_linear
from gpssm.methods.sparse_regression import (
    Smoothness,
    covariance,
    inverse_factor,
    inverse_lower,
    learn_kernel,
    with_constant,
)
from gpssm.model.bases import LeadingPoints, LinearFeatures, Stacked, parts_of
from gpssm.model.kernels import Leading, SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

SLACK = 0.3  # s relative to the error of the linear regression, for regressors of unit scale
FOLD = 0.25  # fraction of each series that is held out, once at its end and once at its beginning
ORIGIN_STEP = 5  # rows between the origins of simulations of held-out rows
LARGEST = 100.0  # limit of simulated outputs, in standard deviations, for those that diverge
MOST_ROWS = 2000  # rows used to learn hyper-parameters: more would hardly change them
SMOOTHNESS = (Smoothness(1.4, 1.0), Smoothness(1.0, 1.5))


@dataclass(frozen=True)
class GPNARX(LagSettings):
    """Settings of `gp-narx`; `LagSettings` has the orders, of which chosen ones are at least two.

    The default number of draws is small because filters cost time per draw.

    Parameters
    ----------
    num_points
        Number of inducing points; the process is exact for up to this number of rows.
    """

    learns: ClassVar[bool] = False
    supports: ClassVar[Mapping[str, Any]] = {
        "likelihood": "gaussian",
        "kernel": "se",
        "wiring": None,
    }
    # A linear regression misses a lag whose effect is purely nonlinear.
    least_order: ClassVar[int] = 2
    num_warmup: int = 0
    num_draws: int = 5
    num_points: int = whole(120)

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the regression as a GPSSM, and its states from the filter of the linear part.

        Only Gaussian outputs and the kernel "se" are supported.
        """
        self.check_support(spec)
        orders: Any = self.resolve(series).orders
        smoothness = choose_smoothness(series, orders, self.num_points)
        regression = fit_regression(series, orders, self.num_points, smoothness)
        linear = kalman.stack([with_little_noise(regression.linear)])
        states = [kalman.filter_states(linear, item).means[0] for item in series]
        return Start(as_model(regression), states)

    def draw_independently(
        self, model: GPSSM, series: list[Series], num_chains: int, seed: int
    ) -> tuple[Draw, Info] | None:
        """Draw the weights given all complete rows, and the states where outputs are missing.

        Lags before the first row and gaps are drawn from the smoother of the linear part. Missing
        outputs at the end of a series, where its forecasts start, are drawn from the Gaussian
        process.
        """
        regression = as_regression(model)
        z, error = residuals(regression.linear, series)
        posterior = weights_posterior(regression, z, error)
        linear = with_little_noise(regression.linear)
        weights = np.zeros((num_chains, self.num_draws, model.state_dim, model.basis.size))
        paths = []
        for chain in range(num_chains):
            rng = np.random.default_rng([seed, chain])
            normal = rng.standard_normal((self.num_draws, *posterior.mean.shape))
            drawn = posterior.mean + np.einsum("dij,sdj->sdi", posterior.root, normal)
            weights[chain, :, : len(regression.hyper)] = drawn
            drawn_paths = [kalman.draw_states(linear, item, self.num_draws, rng) for item in series]
            paths.append(
                [
                    simulate_end(regression, drawn, path, item, rng)
                    for path, item in zip(drawn_paths, series, strict=True)
                ]
            )
        return independent_sample(paths, weights, posterior.log_bound)


class LagRegression(NamedTuple):
    """The regression of Dy outputs y_t on z_t: a linear part in state-space form, and Gaussian
    processes.
    """

    linear: LinearSSM
    points: Float[np.ndarray, "M Dz"]
    hyper: Float[np.ndarray, "Dy Dz+2"]  # log k(z, z), log ℓ, log σ²
    slack: Float[np.ndarray, " Dy"]  # s


class WeightsPosterior(NamedTuple):
    """v_d | y ~ N(mean_d, root_d root_dᵀ), and the log bound summed over outputs."""

    mean: Float[np.ndarray, "Dy K"]
    root: Float[np.ndarray, "Dy K K"]
    log_bound: float


def choose_smoothness(
    series: Sequence[Series], orders: tuple[int, int], num_points: int
) -> Smoothness:
    """Return the prior of the lengthscales with the best simulations of held-out rows.

    The last and the first quarter of every series are held out in turn. If they are too short, the
    prior of longer lengthscales is used.
    """
    quarters = [(item[: (cut := round(FOLD * len(item)))], item[cut:]) for item in series]
    ends = [(item[: (cut := round((1 - FOLD) * len(item)))], item[cut:]) for item in series]
    folds = [
        ([rest for _, rest in quarters], [first for first, _ in quarters]),
        ([rest for rest, _ in ends], [last for _, last in ends]),
    ]
    losses = np.zeros(len(SMOOTHNESS))
    for rest, held_out in folds:
        with suppress(ValueError):  # too few rows
            losses += [
                np.log(simulation_error(fit_regression(rest, *settings), rest, held_out))
                for settings in ((orders, num_points, smoothness) for smoothness in SMOOTHNESS)
            ]
    return SMOOTHNESS[int(np.argmin(losses))]


def fit_regression(
    series: Sequence[Series], orders: tuple[int, int], num_points: int, smoothness: Smoothness
) -> LagRegression:
    """Return the regression whose hyper-parameters maximise bound and prior.

    Parameters
    ----------
    series
        Scaled series.
    orders
        (na, nb).
    num_points
        Maximum number of inducing points.
    smoothness
        The prior of the lengthscales.
    """
    linear = to_state_space(regress_regularised(series, *orders))
    z, error = residuals(linear, series)
    if not len(z):
        raise ValueError(
            f"`gp-narx` regresses each row on the {max(orders)} previous rows, which must have "
            "outputs, but there is no such row. Pass longer series, or smaller orders."
        )
    if len(z) > MOST_ROWS:
        rows = np.random.default_rng(0).choice(len(z), MOST_ROWS, replace=False)
        z, error = z[rows], error[rows]
    variance = np.maximum(np.diagonal(linear.process_cov)[: error.shape[1]], NO_NOISE**2)
    slack = SLACK * np.sqrt(variance)
    # The best points depend on the kernel, so that they are chosen again after a first fit.
    hyper, points = learn_kernel(
        z, error, variance, slack, smoothness, (num_points // 2 + 1, num_points)
    )
    return LagRegression(linear, points, hyper, slack)


def gain(
    regression: LagRegression, output: int, z: Float[np.ndarray, "N Dz"]
) -> tuple[Float[np.ndarray, "N K"], Float[np.ndarray, " N"]]:
    """Return A and B of one output at rows of z."""
    hyper = regression.hyper[output]
    inverse = inverse_factor(hyper, regression.points)
    process = covariance(hyper, z, regression.points) @ inverse.T
    residual = np.maximum(np.exp(hyper[0]) - np.sum(process**2, 1), 0.0)
    return np.hstack([process, regression.slack[output] * with_constant(z)]), residual


def weights_posterior(
    regression: LagRegression, z: Float[np.ndarray, "N Dz"], error: Float[np.ndarray, "N Dy"]
) -> WeightsPosterior:
    """Return v_d | y ~ N(P_d⁻¹ A_dᵀ r_d / σ_d², P_d⁻¹),  P_d = I + A_dᵀA_d / σ_d²."""
    means, roots = [], []
    total = 0.0
    for output, hyper in enumerate(regression.hyper):
        columns, residual = gain(regression, output, z)
        variance, r = np.exp(hyper[-1]), error[:, output]
        factor = np.linalg.cholesky(np.eye(columns.shape[1]) + columns.T @ columns / variance)
        root = inverse_lower(factor).T
        half = root.T @ (columns.T @ r) / variance
        means.append(root @ half)
        roots.append(root)
        total -= 0.5 * len(r) * np.log(2 * np.pi * variance) + np.log(np.diagonal(factor)).sum()
        total -= 0.5 * ((r @ r + residual.sum()) / variance - half @ half)
    return WeightsPosterior(np.stack(means), np.stack(roots), total)


def predict(
    regression: LagRegression, weights: Float[np.ndarray, "Dy K"], z: Float[np.ndarray, "N Dz"]
) -> Float[np.ndarray, "N Dy"]:
    """Return E[y | z, v] = m(z) + A(z) v."""
    processes = [gain(regression, d, z)[0] @ drawn for d, drawn in enumerate(weights)]
    return linear_part(regression.linear, z) + np.column_stack(processes)


def simulation_error(
    regression: LagRegression, series: Sequence[Series], held_out: Sequence[Series]
) -> float:
    """Return the RMSE of noise-free simulations of held-out rows over up to 30 steps."""
    mean = weights_posterior(regression, *residuals(regression.linear, series)).mean
    source = shift_sources(regression.linear)
    misses = []
    for item in held_out:
        register = registers(regression.linear, item)[:-1]
        rows = np.flatnonzero(np.isfinite(register).all(1))[::ORIGIN_STEP]
        x = register[rows]
        for _ in range(HORIZON):
            z = np.hstack([x, item.u[rows]])
            y = np.clip(predict(regression, mean, z), -LARGEST, LARGEST)
            misses.append(y - item.y[rows])
            inside = rows + 1 < len(item)
            x, rows = np.hstack([y, z[:, source]])[inside], rows[inside] + 1
    squares = np.concatenate(misses) ** 2
    if not np.isfinite(squares).any():
        raise ValueError("no held-out row has an output and complete lags")
    return float(np.sqrt(np.nanmean(squares) + NO_NOISE**2))


def simulate_end(
    regression: LagRegression,
    weights: Float[np.ndarray, "S Dy K"],
    path: Float[np.ndarray, "S T+1 Dx"],
    series: Series,
    rng: np.random.Generator,
) -> Float[np.ndarray, "S T+1 Dx"]:
    """Return the path with outputs after the last observed row drawn from the Gaussian process."""
    begin = int(np.flatnonzero(np.isfinite(series.y).any(1))[-1]) + 1
    source = shift_sources(regression.linear)
    path = path.copy()
    for row in range(begin, len(series)):
        u = np.broadcast_to(series.u[row], (len(path), series.input_dim))
        z = np.hstack([path[:, row], u])
        y = linear_part(regression.linear, z)
        for output, hyper in enumerate(regression.hyper):
            columns, residual = gain(regression, output, z)
            std = np.sqrt(residual + np.exp(hyper[-1]))
            y[:, output] += np.sum(columns * weights[:, output], 1)
            y[:, output] += std * rng.standard_normal(len(path))
        path[:, row + 1] = np.hstack([y, z[:, source]])
    return path


def linear_part(linear: LinearSSM, z: Float[np.ndarray, "N Dz"]) -> Float[np.ndarray, "N Dy"]:
    """Return m(z)."""
    width = len(linear.d)
    return z @ np.hstack([linear.transition, linear.input_map])[:width].T + linear.offset[:width]


def shift_sources(linear: LinearSSM) -> Int[np.ndarray, " Dx-Dy"]:
    """Return, for each state after the first Dy, the entry of z that it holds."""
    return np.hstack([linear.transition, linear.input_map])[len(linear.d) :].argmax(1)


def registers(linear: LinearSSM, series: Series) -> Float[np.ndarray, "T+1 Dx"]:
    """Return the states of a series, NaN if a lag is missing or precedes the first row."""
    source = shift_sources(linear)
    states = np.full((len(series) + 1, len(linear.offset)), np.nan)
    for row, (y, u) in enumerate(zip(series.y, series.u, strict=True)):
        states[row + 1] = np.concatenate([y, np.concatenate([states[row], u])[source]])
    return states


def residuals(
    linear: LinearSSM, series: Sequence[Series]
) -> tuple[Float[np.ndarray, "N Dz"], Float[np.ndarray, "N Dy"]]:
    """Return z_t and y_t − m(z_t) for all rows without a missing output or lag."""
    z = np.concatenate([np.hstack([registers(linear, item)[:-1], item.u]) for item in series])
    y = np.concatenate([item.y for item in series])
    complete = np.isfinite(z).all(1) & np.isfinite(y).all(1)
    return z[complete], y[complete] - linear_part(linear, z[complete])


def with_little_noise(linear: LinearSSM) -> LinearSSM:
    """Return the linear part with a little noise in every state, which a smoother requires."""
    more = EXACT**2 * np.eye(len(linear.offset))
    return linear._replace(
        process_cov=linear.process_cov + more, noise_std=np.full(len(linear.d), EXACT)
    )


def as_model(regression: LagRegression) -> GPSSM:
    """Return the GPSSM whose states are the shift register."""
    linear, hyper = regression.linear, regression.hyper
    width, (state_dim, input_dim) = len(linear.d), linear.input_map.shape
    scales = np.ones((state_dim, state_dim + input_dim + 1))
    scales[:width] = regression.slack[:, None]
    mask = tuple((row < width,) * (state_dim + input_dim) for row in range(state_dim))
    std = np.full(state_dim, EXACT)
    std[:width] = np.exp(0.5 * hyper[:, -1])
    arrays = (jnp.asarray(part) for part in (linear.transition, linear.input_map, linear.offset))
    return GPSSM.create(
        Leading(
            SquaredExponential(jnp.asarray(hyper[:, 0]), jnp.asarray(hyper[:, 1:-1])), state_dim
        ),
        Stacked(
            (
                LeadingPoints(jnp.asarray(regression.points)),
                LinearFeatures(jnp.asarray(np.log(scales)), mask),
            )
        ),
        LinearMap(*arrays),
        Gaussian.build(jnp.eye(width, state_dim), jnp.zeros(width), jnp.full(width, EXACT)),
        jnp.asarray(std),
    )


def as_regression(model: GPSSM) -> LagRegression:
    """Return the regression of a model from `as_model`, with independent noise."""
    linear = as_linear(model)
    kernel: Any = model.kernel
    parts: Any = parts_of(model.basis)
    width = len(linear.d)
    log_noise = np.log(np.diagonal(linear.process_cov)[:width])
    hyper = np.column_stack([kernel.inner.log_variance, kernel.inner.log_lengthscale, log_noise])
    slack = np.exp(np.asarray(parts[1].log_scale)[:width, 0])
    return LagRegression(linear, np.asarray(parts[0].locations), hyper, slack)
