"""`lgssm`: a linear-Gaussian state-space model by subspace identification and expectation-maximisation."""

from dataclasses import dataclass

from gpssm.initialise import fit_linear, select_order
from gpssm.linear_ssm import LinearSSM
from gpssm.methods.base_linear import Baseline
from gpssm.series import Series


@dataclass(frozen=True)
class LGSSM(Baseline):
    """Settings of `lgssm`.

    :param order: number of states; None chooses it by the Bayesian information criterion.
    :param max_order: the largest that is tried.
    """

    order: int | None = None
    max_order: int = 8

    def linear(self, series: list[Series]) -> LinearSSM:
        """The linear fit that the Gaussian process methods start from, at its own order."""
        order = select_order(series, self.max_order).best if self.order is None else self.order
        return fit_linear(series, order)
