"""`rgpssm`, the recursive GPSSM of Zheng, Yan, Zhang et al. (2024): one Gaussian of all unknowns.

    s_t = [x_t; v],   f_d(z) = m_d(z) + A_d(z)·v_d + N(0, B_d(z)),   z_t = [x_t; u_t]

is filtered row by row, at a constant cost per row. The transition is linearised at
the mean, G = ∂f/∂s = [∂m/∂x + Σ_k v_k ∂A_k/∂x, A],

    predict   x' = f(z),   Cov(x') = G P Gᵀ + diag(B + Q),   Cov(x', v) = G P_{·v}
    update    k = P c / (cᵀ P c + R),   s += k (y − cᵀx − d),   P −= k cᵀ P      for each output

Inducing points are added during filtering. If the mean of B_d(z) / k_d(z, z) exceeds a threshold, z
becomes an inducing point, which in whitened coordinates adds a weight with its prior v ~ N(0, 1).
Beyond the budget, the point whose removal changes the mean function least is removed (Csató & Opper
2002), Σ_d (k_d⁻¹ E[U_d])_j² / (k_d⁻¹)_jj; the distribution of the others is unchanged.

Deviations from the paper: mean, emission and initial hyper-parameters come from a linear fit; four
factors, of all kernel variances, lengthscales, process noise levels and output noise levels, are
then chosen by the log density of one-step predictions over whole passes, instead of gradients
during the pass. The last pass starts with all inducing points. States are drawn backwards, given
the weights, by a linearised smoother. Later rows are learned by `Posterior.learn`, the same filter
with quadrature instead of the linearisation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Float, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference.settings import (
    MethodSettings,
    independent_sample,
    share,
    whole,
)
from gpssm.linear.arx import NO_NOISE
from gpssm.linear.fit import linear_fit
from gpssm.linear.kalman import covariance_root
from gpssm.linear.state_space import LinearFit, LinearSSM
from gpssm.methods.linear import as_linear
from gpssm.methods.sparse_regression import Smoothness, learn_kernel
from gpssm.model.bases import JITTER, InducingPoints, LinearFeatures, Stacked, parts_of
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.starts.build import SLACK, Start

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec


@dataclass(frozen=True)
class RecursiveGPSSM(MethodSettings):
    """Settings of `rgpssm`; `num_inducing` of the fit is the budget of inducing points.

    Parameters
    ----------
    novelty
        Share of the prior variance of f that must remain at an input for it to become a new point.
    num_passes
        Maximum number of passes over the data for the choice of hyper-parameters.
    """

    supports: ClassVar[Mapping[str, Any]] = {
        "likelihood": "gaussian",
        "kernel": "se",
        "basis": "inducing",
        "mean": "linear",
        "wiring": None,
        "coupling": "none",
    }

    num_warmup: int = 0
    num_draws: int = 25
    novelty: float = share(0.05)
    num_passes: int = whole(40, least=0)

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the model with hyper-parameters and inducing points, and states of a linear
        fit.
        """
        self.check_support(spec)
        linear = linear_fit(series, spec)
        dynamics = first_dynamics(linear, spec.num_inducing)
        if spec.hyper != "fix":
            dynamics = choose_factors(
                dynamics, series, spec.num_inducing, self.novelty, self.num_passes
            )
        empty = PointSet.of(dynamics, [], spec.num_inducing + 1)
        _, points, _ = run(dynamics, series, empty, self.novelty)
        return Start(as_model(dynamics, points), linear.states)

    def adopt(self, model: GPSSM) -> GPSSM:
        """Return the model with all parameters fixed."""
        return model.with_roles("fix", "*")

    def draw_independently(
        self, model: GPSSM, series: list[Series], num_chains: int, seed: int
    ) -> tuple[Draw, Info] | None:
        """Draw weights from their distribution after the last row, and states given the weights."""
        dynamics, locations = as_dynamics(model)
        points = PointSet.of(dynamics, locations, len(locations))
        belief, _, log_density = run(dynamics, series, points)
        mean = belief.mean[dynamics.state_dim :]
        root = covariance_root(belief.covariance[dynamics.state_dim :, dynamics.state_dim :])
        shape = (num_chains, self.num_draws, dynamics.state_dim, model.basis.size)
        weights, paths = np.empty(shape), []
        for chain in range(num_chains):
            rng = np.random.default_rng([seed, chain])
            normal = rng.standard_normal((self.num_draws, len(mean)))
            weights[chain] = (mean + normal @ root.T).reshape(shape[1:])
            paths.append(
                [draw_states(dynamics, points, weights[chain], item, rng) for item in series]
            )
        return independent_sample(paths, weights, log_density)


class Dynamics(NamedTuple):
    """The time-invariant parts: mean, emission, noise levels, kernel and linear weights.

    `linear.process_cov` is diagonal, Q.
    """

    linear: LinearSSM
    hyper: Float[np.ndarray, "Dx Dz+1"]  # log k(z, z), log ℓ
    slack: float  # prior standard deviation of a linear coefficient

    @property
    def state_dim(self) -> int:
        """Dx."""
        return len(self.linear.offset)

    @property
    def process_variance(self) -> Float[np.ndarray, " Dx"]:
        """The diagonal of Q."""
        return np.diagonal(self.linear.process_cov)

    def mean(self, z: Float[np.ndarray, "*S Dz"]) -> Float[np.ndarray, "*S Dx"]:
        """Return m(z)."""
        return z @ np.hstack([self.linear.transition, self.linear.input_map]).T + self.linear.offset


class Gain(NamedTuple):
    """A, its derivative by x, and B at an input."""

    value: Float[np.ndarray, "*S Dx K"]
    slope: Float[np.ndarray, "*S Dx K Dx"]
    residual: Float[np.ndarray, "*S Dx"]


class PointSet(NamedTuple):
    """Inducing points with L⁻¹ of each dimension; entries beyond the first `size` are zero."""

    locations: Float[np.ndarray, "P Dz"]
    inverse: Float[np.ndarray, "Dx P P"]
    size: int

    @classmethod
    def of(
        cls, dynamics: Dynamics, locations: Sequence[np.ndarray] | np.ndarray, room: int
    ) -> "PointSet":
        """Return a set with these points and a maximum number of points."""
        dim = dynamics.hyper.shape[1] - 1
        points = cls(np.zeros((room, dim)), np.zeros((dynamics.state_dim, room, room)), 0)
        for z in locations:
            points = points.add(dynamics, z)
        return points

    def gain(self, dynamics: Dynamics, z: Float[np.ndarray, "*S Dz"]) -> Gain:
        """Return A = [L⁻¹k(Z, z), s [z; 1]], ∂A/∂x, and B = k(z, z) − |L⁻¹k(Z, z)|²."""
        width, count = dynamics.state_dim, z.shape[-1] + 1
        scale = np.exp(-2 * dynamics.hyper[:, 1:])
        gap = (z[..., None, :] - self.locations)[..., None, :, :] * scale[:, None, :]
        distance = np.sum(gap**2 / scale[:, None, :], -1)
        kernel = np.exp(dynamics.hyper[:, :1] - 0.5 * distance)
        value = (self.inverse @ kernel[..., None])[..., 0]
        slope = self.inverse @ (-kernel[..., None] * gap[..., :width])
        features = dynamics.slack * np.concatenate([z, np.ones((*z.shape[:-1], 1))], -1)
        shape = (*z.shape[:-1], width, count)
        linear_slope = np.broadcast_to(dynamics.slack * np.eye(count, width), (*shape, width))
        residual = np.maximum(np.exp(dynamics.hyper[:, 0]) - np.sum(value**2, -1), 0.0)
        return Gain(
            np.concatenate([value, np.broadcast_to(features[..., None, :], shape)], -1),
            np.concatenate([slope, linear_slope], -2),
            residual,
        )

    def add(self, dynamics: Dynamics, z: Float[np.ndarray, " Dz"]) -> "PointSet":
        """Return the set with another point: L gains the row [A(z), √(k(z, z) + jitter −
        |A(z)|²)].
        """
        locations, inverse = self.locations.copy(), self.inverse.copy()
        row = self.gain(dynamics, z).value[:, : len(locations)]
        variance = np.exp(dynamics.hyper[:, 0])
        pivot = np.maximum((1 + JITTER) * variance - np.sum(row**2, 1), JITTER * variance) ** 0.5
        locations[self.size] = z
        inverse[:, self.size] = -(row[:, None] @ self.inverse)[:, 0] / pivot[:, None]
        inverse[:, self.size, self.size] = 1 / pivot
        return PointSet(locations, inverse, self.size + 1)

    def least(self, weights: Float[np.ndarray, "Dx K"]) -> int:
        """Return the index of the point whose removal changes the mean function least."""
        inverse = self.inverse[:, : self.size, : self.size]
        coefficients = np.einsum("dij,di->dj", inverse, weights[:, : self.size])
        return int(np.argmin(np.sum(coefficients**2 / np.sum(inverse**2, 1), 0)))

    def remove(self, index: int) -> tuple["PointSet", Float[np.ndarray, "Dx P P"]]:
        """Return the set without one point, and the matrix T of the change of weights.

        v' = T v are the weights for which the other U = L v are unchanged. The row of the last
        weight, which no longer has a point, is zero.
        """
        others = [place for place in range(self.size) if place != index]
        fewer = PointSet(np.zeros_like(self.locations), np.zeros_like(self.inverse), len(others))
        fewer.locations[: fewer.size] = self.locations[others]
        rows = np.linalg.inv(self.inverse[:, : self.size, : self.size])[:, others]
        inverse = np.linalg.inv(np.linalg.cholesky(rows @ rows.mT))
        fewer.inverse[:, : fewer.size, : fewer.size] = inverse
        turn = np.zeros_like(self.inverse)
        turn[:, : fewer.size, : self.size] = inverse @ rows
        spare = np.arange(self.size, len(self.locations))
        turn[:, spare, spare] = 1.0
        return fewer, turn


class Belief(NamedTuple):
    """[x; v_1; …; v_Dx] ~ N(mean, covariance), or x alone, given each of S draws of the weights."""

    mean: Float[np.ndarray, "*S n"]
    covariance: Float[np.ndarray, "*S n n"]


def first_dynamics(linear: LinearFit, num_points: int) -> Dynamics:
    """Return the linear fit, with the kernel that best explains its residuals.

    The process noise is reduced to the share of the residual variance that the kernel does not
    explain.
    """
    model = LinearSSM(*map(np.asarray, linear.model))
    z = linear.z
    following = np.concatenate([path[1:] for path in linear.states])
    dynamics = Dynamics(model, np.zeros((linear.state_dim, z.shape[1] + 1)), SLACK)
    error = following - dynamics.mean(z)
    variance = np.maximum(np.mean(error**2, 0), NO_NOISE**2)
    slack = np.full(len(variance), SLACK)
    hyper, _ = learn_kernel(z, error, variance, slack, Smoothness(1.0, 1.5), (num_points,))
    share = np.minimum(np.exp(hyper[:, -1]) / variance, 1.0)
    noise = np.maximum(share * np.diagonal(model.process_cov), NO_NOISE**2)
    model = model._replace(
        process_cov=np.diag(noise), noise_std=np.maximum(model.noise_std, NO_NOISE)
    )
    return Dynamics(model, hyper[:, :-1], SLACK)


def choose_factors(
    dynamics: Dynamics, series: Sequence[Series], budget: int, novelty: float, num_passes: int
) -> Dynamics:
    """The dynamics times four factors, under which the next outputs are expected best.

    Their logarithms have the prior N(0, I).

    Parameters
    ----------
    dynamics
        Those to begin with.
    series
        Scaled series.
    budget
        Inducing points, at most.
    novelty
        Share of the prior variance that must be open for a new one.
    num_passes
        Passes over the data, at most.
    """

    def loss(logarithms: np.ndarray) -> float:
        scaled = with_factors(dynamics, logarithms)
        # One more than the budget: a point is added before another one is removed.
        empty = PointSet.of(scaled, [], budget + 1)
        _, _, log_density = run(scaled, series, empty, novelty)
        if not np.isfinite(log_density):
            return np.inf
        return 0.5 * np.sum(logarithms**2) - log_density

    if num_passes == 0:
        return dynamics
    start = np.zeros(4)
    corners = np.vstack([start, 0.5 * np.eye(4)])
    options = {"maxfev": num_passes, "initial_simplex": corners}
    best = scipy.optimize.minimize(loss, start, method="Nelder-Mead", options=options)
    return with_factors(dynamics, best.x)


def with_factors(dynamics: Dynamics, logarithms: Float[np.ndarray, "4"]) -> Dynamics:
    """Return the dynamics with hyper-parameters scaled by the exponentials of four logarithms.

    They scale kernel variances, lengthscales, and the standard deviations of process and output
    noise.
    """
    variance, lengthscale, process, noise = logarithms
    hyper = dynamics.hyper + np.array(
        [2 * variance, *np.full(dynamics.hyper.shape[1] - 1, lengthscale)]
    )
    linear = dynamics.linear._replace(
        process_cov=dynamics.linear.process_cov * np.exp(2 * process),
        noise_std=dynamics.linear.noise_std * np.exp(noise),
    )
    return dynamics._replace(hyper=hyper, linear=linear)


def run(
    dynamics: Dynamics, series: Sequence[Series], points: PointSet, novelty: float | None = None
) -> tuple[Belief, PointSet, float]:
    """One pass over all rows: the state starts anew, x₀ ~ N(0, I), with each series.

    Parameters
    ----------
    dynamics
        Mean, emission, noises and kernel.
    series
        Scaled series.
    points
        The first inducing points.
    novelty
        Share of the prior variance that must be open for a new one; None for no new points.

    Returns
    -------
    belief, points
        After the last row.
    log_density : float
        Σ log p(y_t | y_<t).
    """
    width = dynamics.state_dim
    size = width * (1 + len(points.locations) + dynamics.hyper.shape[1])
    belief = Belief(np.zeros(size), np.eye(size))
    total = 0.0
    for item in series:
        belief = restart(belief, width)
        for u, y in zip(item.u, item.y, strict=True):
            belief, points, log_density = advance(dynamics, belief, points, u, y, novelty)
            total += float(log_density)
    return belief, points, total


def advance(
    dynamics: Dynamics,
    belief: Belief,
    points: PointSet,
    u: Float[np.ndarray, " Du"],
    y: Float[np.ndarray, " Dy"],
    novelty: float | None = None,
) -> tuple[Belief, PointSet, Float[np.ndarray, ""]]:
    """Return the belief and the points after a row, and log p(y | previous rows).

    Parameters
    ----------
    dynamics, points, novelty
        As in `run`.
    belief
        Before the row.
    u, y
        Scaled inputs and outputs.
    """
    z = np.concatenate([belief.mean[: dynamics.state_dim], u])
    gain = points.gain(dynamics, z)
    if novelty is not None and np.mean(gain.residual / np.exp(dynamics.hyper[:, 0])) > novelty:
        points = points.add(dynamics, z)
        if points.size == len(points.locations):
            belief, points = without(dynamics, belief, points)
        gain = points.gain(dynamics, z)
    belief, log_density = update(dynamics, predict(dynamics, belief, gain, z), y)
    return belief, points, log_density


def restart(belief: Belief, width: int) -> Belief:
    """Return the belief with x₀ ~ N(0, I), independent of the weights."""
    kept = np.where(np.arange(len(belief.mean)) < width, 0.0, 1.0)
    covariance = belief.covariance * np.outer(kept, kept) + np.diag(1.0 - kept)
    return Belief(belief.mean * kept, covariance)


def without(dynamics: Dynamics, belief: Belief, points: PointSet) -> tuple[Belief, PointSet]:
    """Return the belief and the points without the least important one, whose weight is N(0, 1)
    again.
    """
    width, count = dynamics.state_dim, len(points.locations)
    fewer, turn = points.remove(points.least(belief.mean[width:].reshape(width, -1)))

    def turned(rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """Return the matrix with the rows of the weights of each dimension multiplied by T."""
        rows = rows.copy()
        weights = rows[width:].reshape(width, -1, rows.shape[1])
        weights[:, :count] = turn @ weights[:, :count]
        return rows

    mean = turned(belief.mean[:, None])[:, 0]
    covariance = turned(turned(belief.covariance).T)
    free = width + fewer.size + np.arange(width) * (count + dynamics.hyper.shape[1])
    covariance[free, free] = 1.0
    return Belief(mean, covariance), fewer


def predict(dynamics: Dynamics, belief: Belief, gain: Gain, z: Float[np.ndarray, " Dz"]) -> Belief:
    """Return the belief about x' = f(z) + N(0, B + Q), linearised in [x; v] at the mean."""
    width = dynamics.state_dim
    weights = belief.mean[width:].reshape(width, -1)
    slope = np.zeros((width, len(belief.mean)))
    slope[:, :width] = transition_slope(dynamics, gain, weights)
    columns = width + np.arange(weights.size).reshape(weights.shape)
    slope[np.arange(width)[:, None], columns] = gain.value
    cross = slope @ belief.covariance
    mean, covariance = belief.mean.copy(), belief.covariance.copy()
    mean[:width] = dynamics.mean(z) + np.sum(gain.value * weights, 1)
    covariance[:width, width:] = cross[:, width:]
    covariance[width:, :width] = cross[:, width:].T
    noise = np.diag(gain.residual + dynamics.process_variance)
    covariance[:width, :width] = cross @ slope.T + noise
    return Belief(mean, covariance)


def update(
    dynamics: Dynamics, belief: Belief, y: Float[np.ndarray, " Dy"]
) -> tuple[Belief, Float[np.ndarray, "*S"]]:
    """Return the belief updated by each observed output in turn, and log p(y | previous rows)."""
    width, linear = dynamics.state_dim, dynamics.linear
    mean, covariance = belief
    total = np.zeros(mean.shape[:-1])
    for row in np.flatnonzero(np.isfinite(y)):
        across = covariance[..., :width] @ linear.C[row]
        variance = across[..., :width] @ linear.C[row] + linear.noise_std[row] ** 2
        error = y[row] - mean[..., :width] @ linear.C[row] - linear.d[row]
        mean = mean + across * (error / variance)[..., None]
        scaled = across / variance[..., None]
        covariance = covariance - across[..., :, None] * scaled[..., None, :]
        total = total - 0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
    return Belief(mean, 0.5 * (covariance + covariance.mT)), total


def transition_slope(
    dynamics: Dynamics, gain: Gain, weights: Float[np.ndarray, "*S Dx K"]
) -> Float[np.ndarray, "*S Dx Dx"]:
    """Return ∂f/∂x = ∂m/∂x + Σ_k v_k ∂A_k/∂x."""
    return dynamics.linear.transition + np.sum(weights[..., None] * gain.slope, -2)


def draw_states(
    dynamics: Dynamics,
    points: PointSet,
    weights: Float[np.ndarray, "S Dx K"],
    series: Series,
    rng: np.random.Generator,
) -> Float[np.ndarray, "S T+1 Dx"]:
    """Draw a path for each draw of the weights by a linearised filter and backward sampling.

    x_t | x_{t+1} ~ N(m_t + J_t (x_{t+1} − m⁻_{t+1}), P_t − J_t P⁻_{t+1} J_tᵀ)
    J_t = P_t F_tᵀ (P⁻_{t+1})⁻¹
    """
    count, width = weights.shape[:2]
    mean = np.zeros((count, width))
    covariance = np.broadcast_to(np.eye(width), (count, width, width))
    rows = []
    for u, y in zip(series.u, series.y, strict=True):
        z = np.concatenate([mean, np.broadcast_to(u, (len(mean), len(u)))], 1)
        gain = points.gain(dynamics, z)
        slope = transition_slope(dynamics, gain, weights)
        ahead = dynamics.mean(z) + np.sum(gain.value * weights, -1)
        noise = (gain.residual + dynamics.process_variance)[..., None] * np.eye(width)
        predicted = slope @ covariance @ slope.mT + noise
        rows.append((mean, covariance, slope, ahead, predicted))
        (mean, covariance), _ = update(dynamics, Belief(ahead, predicted), y)

    def draw(
        mean: Float[np.ndarray, "S Dx"], covariance: Float[np.ndarray, "S Dx Dx"]
    ) -> Float[np.ndarray, "S Dx"]:
        noise = rng.standard_normal(mean.shape)
        return mean + np.einsum("sij,sj->si", covariance_root(covariance), noise)

    path = np.empty((count, len(series) + 1, width))
    path[:, -1] = draw(mean, covariance)
    for row, (mean, covariance, slope, ahead, predicted) in reversed(list(enumerate(rows))):
        pull = np.linalg.solve(predicted, slope @ covariance).mT
        centre = mean + np.einsum("sij,sj->si", pull, path[:, row + 1] - ahead)
        path[:, row] = draw(centre, covariance - pull @ predicted @ pull.mT)
    return path


def as_model(dynamics: Dynamics, points: PointSet) -> GPSSM:
    """Return the GPSSM with these inducing points."""
    linear, (width, columns) = dynamics.linear, dynamics.hyper.shape
    return GPSSM.create(
        SquaredExponential(jnp.asarray(dynamics.hyper[:, 0]), jnp.asarray(dynamics.hyper[:, 1:])),
        Stacked(
            (
                InducingPoints(jnp.asarray(points.locations[: points.size])),
                LinearFeatures.build(width, columns - 1, dynamics.slack),
            )
        ),
        LinearMap(*map(jnp.asarray, (linear.transition, linear.input_map, linear.offset))),
        Gaussian.build(*map(jnp.asarray, (linear.C, linear.d, linear.noise_std))),
        jnp.asarray(np.sqrt(dynamics.process_variance)),
    )


def as_dynamics(model: GPSSM) -> tuple[Dynamics, Float[np.ndarray, "P Dz"]]:
    """Return the dynamics and inducing points of a model from `as_model`."""
    kernel: Any = model.kernel
    parts: Any = parts_of(model.basis)
    hyper = np.column_stack([kernel.log_variance, kernel.log_lengthscale])
    slack = float(np.exp(parts[1].log_scale[0, 0]))
    return Dynamics(as_linear(model), hyper, slack), np.asarray(parts[0].locations)
