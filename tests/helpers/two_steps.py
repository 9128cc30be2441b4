"""Two steps of one state by quadrature: the evidence, the free-form bound, and bounds with
independent q(x) and q(v).
"""

import functools

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

import builders

GRID = np.linspace(-5, 5, 81)


class TwoSteps:
    """Everything about two steps of one state on a grid: axes are x₀, x₁, x₂."""

    def __init__(self):
        model = builders.make_model("inducing", state_dim=1, input_dim=0, output_dim=1, num=2)
        leaves = {
            "kernel.log_variance": jnp.array([-0.5]),
            "kernel.log_lengthscale": jnp.array([[-0.5]]),
        }
        self.model = model.with_leaves(leaves).with_roles("fix", "*")
        self.series = builders.make_series(2, 0, 1)
        step = self.model.transition()(jnp.asarray(GRID)[:, None], jnp.zeros((len(GRID), 0)))
        self.gain, self.residual = np.asarray(step.gain)[0], np.asarray(step.residual)[0]
        self.error = GRID[None] - np.asarray(step.mean)[:, :1]
        self.variance = float(self.model.process_variance[0])
        kernel = np.asarray(
            self.model.kernel(jnp.asarray(GRID)[:, None], jnp.asarray(GRID)[:, None])
        )[0]
        C, d = float(self.model.likelihood.C[0, 0]), float(self.model.likelihood.d[0])
        output = norm.logpdf(
            self.series.y, C * GRID + d, np.exp(float(self.model.likelihood.log_std[0]))
        )
        self.boundary = (
            norm.logpdf(GRID)[:, None, None] + output[0][None, :, None] + output[1][None, None, :]
        )
        self.penalty = -self.residual / (2 * self.variance)
        self.exact = self._integral(self._collapsed(kernel))
        both = self.penalty[:, None, None] + self.penalty[None, :, None]
        self.free_form = self._integral(self._collapsed(self.gain @ self.gain.T) + both)

    def _collapsed(self, cov):
        """log N of the two errors under covariance `cov` of the function values plus noise."""
        own = np.diagonal(cov) + self.variance
        a, b, c = own[:, None, None], own[None, :, None], cov[:, :, None]
        first, second, det = self.error[:, :, None], self.error[None], a * b - c**2
        square = (b * first**2 - 2 * c * first * second + a * second**2) / det
        return -np.log(2 * np.pi) - 0.5 * (np.log(det) + square)

    def _integral(self, values):
        return logsumexp(values + self.boundary) + 3 * np.log(GRID[1] - GRID[0])

    def auxiliary(self, mean, cov):
        """log Z of the model whose states have the best q(x) given q(v), and E[AᵀA] and E[Aᵀr] under it."""
        values = self._expected(mean, cov)
        log_constant = self._integral(values)
        mass = np.exp(values + self.boundary + 3 * np.log(GRID[1] - GRID[0]) - log_constant)
        pair = mass.sum(2) + mass.sum(0)
        gram = np.einsum("n,nm,nk->mk", pair.sum(1), self.gain, self.gain)
        return log_constant, gram, self.gain.T @ (pair * self.error).sum(1)

    def _expected(self, mean, cov):
        """E_q(v) of the log density of both steps, less B/2Q."""
        spread = np.einsum("nm,mk,nk->n", self.gain, cov, self.gain)
        step = norm.logpdf(self.error, (self.gain @ mean)[:, None], np.sqrt(self.variance))
        step = step + self.penalty[:, None] - spread[:, None] / (2 * self.variance)
        return step[:, :, None] + step[None]

    def bound(self, mean, cov):
        """The ELBO of q(v) = N(mean, cov) at the best q(x)."""
        return self.auxiliary(mean, cov)[0] - divergence(mean, cov)

    def bound_of_states(self, mean, cov, log_density):
        """The ELBO of q(v) = N(mean, cov) and any q(x), given by its log density on the grid."""
        mass = np.exp(log_density) * (GRID[1] - GRID[0]) ** 3
        return np.sum(
            mass * (self._expected(mean, cov) + self.boundary - log_density)
        ) - divergence(mean, cov)

    @functools.cached_property
    def best(self):
        """q(v) by coordinate ascent."""
        mean, cov = np.zeros(2), np.eye(2)
        for _ in range(30):
            _, gram, cross = self.auxiliary(mean, cov)
            cov = np.linalg.inv(np.eye(2) + gram / self.variance)
            mean = cov @ cross / self.variance
        return mean, cov


def divergence(mean, cov):
    """KL[N(mean, cov) ‖ N(0, I)]."""
    return 0.5 * (np.trace(cov) + mean @ mean - len(mean) - np.linalg.slogdet(cov)[1])
