"""How much wider a posterior's intervals must be, by step ahead, and forecasts widened by it.

    y' = μ_h + s_h (y − μ_h),   s_h ≥ 1,   μ_h the mean of all paths at step h

is done to every path of a forecast, for each output: means stay, distances from them grow by s_h,
so that intervals, scores and samples agree. A component N(m, v) of the predictive mixture becomes
N(μ_h + s_h (m − μ_h), s_h² v). The factors are measured by `evaluation/calibrate.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.text import demand, demand_shape
from gpssm.posterior.rollout import Pair

SHOWN = (1, 2, 5, 10, 20, 30, 50, 100, 200)  # steps ahead in a table


@dataclass(frozen=True, eq=False)
class Calibration:
    """Factors by step ahead and output, and the rows they were measured on.

    Parameters
    ----------
    factors : array (H, Dy)
        The factors s.
    coverage : array (H, Dy)
        Share of the outputs inside the model's own 90 % intervals.
    effective : array (H,)
        Number of independent forecasts that the overlapping ones from all origins are worth.
    origins
        Number of origins.
    rows
        Which rows they were of.
    """

    factors: Float[np.ndarray, "H Dy"]
    coverage: Float[np.ndarray, "H Dy"]
    effective: Float[np.ndarray, " H"]
    origins: int
    rows: str

    @property
    def horizon(self) -> int:
        """H, the longest step that was measured."""
        return len(self.factors)

    def check(self, outputs: int) -> None:
        """Refuse what are not factors of so many outputs."""
        demand_shape("calibration.factors", self.factors, None, outputs)
        demand_shape("calibration.coverage", self.coverage, self.horizon, outputs)
        demand_shape("calibration.effective", self.effective, self.horizon)
        demand(
            "calibration.factors",
            self.horizon and np.isfinite(self.factors).all(),
            "are not finite",
        )

    def at(self, steps: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N Dy"]:
        """The factors of these steps ahead, counted from 1; the last holds beyond the horizon."""
        return self.factors[np.minimum(steps, self.horizon) - 1]

    def table(self) -> list[dict[str, Any]]:
        """A table over a few steps ahead: factors, coverage without them, independent forecasts."""
        return [
            {
                "step": step,
                "factors": self.factors[step - 1].tolist(),
                "coverage": self.coverage[step - 1].tolist(),
                "effective": float(self.effective[step - 1]),
            }
            for step in sorted({step for step in SHOWN if step < self.horizon} | {self.horizon})
        ]


def stretch(
    factors: Float[np.ndarray, "H Dy"], paths: Float[np.ndarray, "S H Dy"], *mixtures: Pair | None
) -> tuple[Any, ...]:
    """Return paths, and mixtures of Gaussians, further from the mean of the paths by factors."""
    centre = np.mean(paths, axis=0)

    def widen(values: Float[np.ndarray, "S H Dy"]) -> Float[np.ndarray, "S H Dy"]:
        return centre + factors * (values - centre)

    return widen(paths), *(
        (widen(pair[0]), factors**2 * pair[1]) if pair else None for pair in mixtures
    )
