"""The sparse model's own law as a target, that of its `simulate`, with the weights integrated out:

    x_{t+1,d} | v_d ~ N(m_d + A_d·v_d, B_d + Q_d),   v_d ~ N(0, I)

Noise of variance B is drawn afresh at each step: it is the FIC approximation of the Gaussian
process. Where B = 0 it is the same as q*; elsewhere it is another distribution. `fic-pg` has this
target, and `ffvd-p` if it is asked to.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import gram, solve_positive
from gpssm.data.series import Series
from gpssm.inference.parameters import Density, ParameterMoves, Parameters
from gpssm.inference.settings import States
from gpssm.model.conditionals import draw_gaussian
from gpssm.model.model import GPSSM, Step
from gpssm.model.target import log_boundary, log_evidence, sum_over_time
from gpssm.model.types import GaussianWeights, Statistics


class PredictiveMoves(ParameterMoves):
    """The moves of the parameters when the target is predictive.

    Q has no exact conditional there and goes by HMC.
    """

    def density(self, states: States, series: list[Series]) -> Density:
        """The log density of the states as a function of the model, the weights integrated out."""
        return lambda model: log_collapsed_predictive(model, states, series)

    def draw_weights(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, "Dx M"]:
        """v | x, exact."""
        return draw_gaussian(
            key, weights_given_states_predictive(self.apply(parameters), states, series)
        )

    def conjugate(self) -> set[str]:
        """The sampled leaves that have an exact conditional: those of the emission."""
        return super().conjugate() - {"log_process_std"}


def log_collapsed_predictive(
    model: GPSSM, states: States, series: list[Series]
) -> Float[Array, ""]:
    """log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d log N(r_d; 0, A_d A_dᵀ + diag(B_d + Q_d)): v
    integrated out.
    """
    count = sum(len(experiment) for experiment in series)
    statistics = scaled_statistics(model, states, series)
    return log_boundary(model, states, series) + log_evidence(
        statistics, jnp.ones_like(statistics.square), count
    )


def weights_given_states_predictive(
    model: GPSSM, states: States, series: list[Series]
) -> GaussianWeights:
    """v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹),  P_d = I + Σ_t AᵀA / (B + Q),  b_d = Σ_t Aᵀr / (B + Q)."""
    statistics = scaled_statistics(model, states, series)
    precision = statistics.gram + jnp.eye(model.basis.size, dtype=statistics.gram.dtype)[None]
    return GaussianWeights(solve_positive(precision, statistics.cross), precision)


def scaled_statistics(model: GPSSM, states: States, series: list[Series]) -> Statistics:
    """The sums over time with A and r divided by √(B + Q), so that their noise has unit variance.

    Σ log(B + Q), which that scaling adds to the log density, stands in the place of ΣB.
    """
    variance = model.process_variance

    def terms(step: Step, following: Float[Array, "N Dx"]) -> Statistics:
        spread = jnp.maximum(step.residual, 0.0) + variance[:, None]
        gain = step.gain / jnp.sqrt(spread)[:, :, None]
        error = (following - step.mean).T / jnp.sqrt(spread)
        cross = jnp.matmul(gain.mT, error[:, :, None])[:, :, 0]
        return Statistics(gram(gain), cross, jnp.sum(error**2, -1), jnp.sum(jnp.log(spread), -1))

    return sum_over_time(model, states, series, terms)
