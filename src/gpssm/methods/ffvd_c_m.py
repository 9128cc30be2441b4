"""FFVD-C-M, the paper's collapsed sampler: stochastic-gradient HMC on the states with the weights integrated out.

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d { log N(r_d; 0, Q_d I) − ½ log det P_d
              + ½ b_dᵀ P_d⁻¹ b_d − ½ Σ_t B_d / Q_d },    v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹) drawn exactly.

P_d couples all transitions, so that no window of time gives an unbiased gradient, and none is offered.
"""

from dataclasses import dataclass

from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.methods.base import States
from gpssm.methods.base_sghmc import Latents, SGHMCConfig, build_sghmc
from gpssm.model import GPSSM
from gpssm.series import Series
from gpssm.target import log_collapsed
from gpssm.types import Method


@dataclass(frozen=True)
class FFVDCM(SGHMCConfig):
    """SGHMC on log q*(x); Fan, Bonilla, O'Kane, Sisson (2023)."""

    def build(self, model: GPSSM, states: States) -> Method:
        """The sampler for a model, started at these states."""

        def density(key: PRNGKeyArray, model: GPSSM, latents: Latents, series: list[Series]) -> Float[Array, ""]:
            return log_collapsed(model, latents.states, series)

        return build_sghmc(self, model, states, density, collapsed=True, cost=1.0)
