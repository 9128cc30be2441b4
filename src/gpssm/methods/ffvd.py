"""`ffvd`, the default: HMC on the collapsed free-form posterior, in coordinates that make it nearly standard normal.

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d log ∫ (transitions | v_d) N(v_d; 0, I) dv_d

Weights are integrated out, so only states are moved, and drawn exactly given the states whenever they are needed.
An iteration is a move of the states (`base_hmc.py`) and then the parameters' moves (`base.py`).
"""

from dataclasses import dataclass

from gpssm.methods.base import ParameterMoves, States
from gpssm.methods.base_hmc import HMCConfig, build_hmc
from gpssm.model import GPSSM
from gpssm.types import Method


@dataclass(frozen=True)
class FFVD(HMCConfig):
    """Settings of `ffvd`, the log density of whose moves is log q*(x)."""

    def build(self, model: GPSSM, states: States) -> Method:
        """The three functions of the method, started at these states."""
        return build_hmc(self, ParameterMoves(model, self.num_warmup, self.learning_rate), states)
