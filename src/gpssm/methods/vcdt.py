"""VCDT (Ialongo et al. 2019): states that depend on the weights, with a conditioner of free parameters at every step.

    q(x, v) = q(v) q(x₀) Π_t q(x_{t+1} | x_t, v),   x_{t+1} ~ N(F_t (m + A v) + g_t, S_t + F_t B F_t)
    ELBO = Σ_t E log p(y_t | x_{t+1}) − Σ_t KL_t − KL[q(x₀) ‖ p(x₀)] − KL[q(v) ‖ p(v)]
    KL_t = E_f KL[ N(F f + g, S) ‖ N(f, Q) ] = ½ { (S + ((F − 1) f̄ + g)² + (F − 1)² B) / Q − 1 + log Q/S },  f̄ = m + A v

v is drawn once a path, F and S are diagonal. The first part of the warm-up climbs the bound of the factorised model
(`vcdt-factorised`), which has the same parameters. What deviates from the paper: everything starts from a linear fit,
F, g and S from its smoothing distribution in place of F = 1, g = 0, S = Q.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.methods.base import Assumptions, States
from gpssm.methods.base_rollout import WeightLaw, given
from gpssm.methods.base_variational import Family, Variational, build_variational
from gpssm.methods.base_vcdt import Paths, Trajectories
from gpssm.model import GPSSM
from gpssm.series import Series
from gpssm.types import Method


@dataclass(frozen=True)
class VCDT(Variational):
    """Settings of VCDT.

    :param factorised: the share of the warm-up that the factorised model has.
    """

    assumptions: ClassVar[Assumptions | None] = Assumptions(True, False, False, "q(v) q(x₀) Π q(x_{t+1} | x_t, v)")

    num_warmup: int = 600
    learning_rate: float = 0.03
    factorised: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.factorised <= 1:
            raise ValueError(f"factorised is a share of the warm-up, from 0 to 1; got {self.factorised!r}.")

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, its paths around these states at the start."""
        paths_of = Trajectories(states, self.num_samples)

        def bound(
            key: PRNGKeyArray, model: GPSSM, weights: WeightLaw, paths: Paths, series: list[Series], iteration: Array
        ) -> Float[Array, ""]:
            early = iteration < self.factorised * self.num_warmup
            arguments = (key, model, weights, paths, series)
            return jax.lax.cond(early, paths_of.factorised, paths_of.coupled, *arguments)

        def draw(
            key: PRNGKeyArray,
            model: GPSSM,
            _: WeightLaw,
            v: Float[Array, "Dx M"],
            paths: Paths,
            series: list[Series],
        ) -> States:
            return paths_of.draw(key, model, given(v[:, None, :]), paths, series)

        return build_variational(self, model, states, Family(paths_of.start, bound, draw))
