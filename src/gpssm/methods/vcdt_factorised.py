"""The factorised start of VCDT (Ialongo et al. 2019): its conditioner with the weights integrated out.

    q(x, v) = q(v) q(x₀) Π_t q(x_{t+1} | x_t),   x_{t+1} ~ N(F_t f̄ + g_t, V_t)
    KL_t = E_f KL[ N(F f̄ + g, V) ‖ N(f, Q) ] = ½ { (V + ((F − 1) f̄ + g)² + Var f) / Q − 1 + log Q/V }

with f̄ = m + A·mean, Var f = B + A L Lᵀ Aᵀ and V = S + F² Var f: states and weights are independent. F, g and S are free
at every step, diagonal, and start as those of `vcdt` do.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.methods.base import Assumptions, States
from gpssm.methods.base_rollout import WeightLaw, marginal
from gpssm.methods.base_variational import Family, Variational, build_variational
from gpssm.methods.base_vcdt import Paths, Trajectories
from gpssm.model import GPSSM
from gpssm.series import Series
from gpssm.types import Method


@dataclass(frozen=True)
class VCDTFactorised(Variational):
    """Settings of the factorised model; `Variational` has them all."""

    assumptions: ClassVar[Assumptions | None] = Assumptions(False, False, False, "q(v) q(x₀) Π q(x_{t+1} | x_t)")

    num_warmup: int = 600
    learning_rate: float = 0.03

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, its paths around these states at the start."""
        paths_of = Trajectories(states, self.num_samples)

        def bound(
            key: PRNGKeyArray, model: GPSSM, weights: WeightLaw, paths: Paths, series: list[Series], _: Array
        ) -> Float[Array, ""]:
            return paths_of.factorised(key, model, weights, paths, series)

        def draw(
            key: PRNGKeyArray,
            model: GPSSM,
            weights: WeightLaw,
            _: Float[Array, "Dx M"],
            paths: Paths,
            series: list[Series],
        ) -> States:
            return paths_of.draw(key, model, marginal(weights), paths, series)

        return build_variational(self, model, states, Family(paths_of.start, bound, draw))
