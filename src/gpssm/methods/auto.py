"""`auto`: linear models, a quick posterior and, if needed, exact chains, mixed by held-out scores.

The algorithm is in `gpssm.fitting.ladder`.
"""

from dataclasses import dataclass

from gpssm.inference.settings import MethodSettings


@dataclass(frozen=True)
class Auto(MethodSettings):
    """Compare linear and nonlinear models on held-out rows, and mix the best of them.

    Setting a number of iterations in `Spec.replace` selects exact chains, `ffvd`, instead.
    """
