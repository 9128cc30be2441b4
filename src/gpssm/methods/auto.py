"""`auto`: linear models, a quick posterior and, where it pays, exact chains, mixed by their worth.

What it does is in `gpssm.fitting.ladder`.
"""

from dataclasses import dataclass
from typing import ClassVar

from gpssm.inference.settings import Assumptions, MethodSettings


@dataclass(frozen=True)
class Auto(MethodSettings):
    """The choice of the method is left to the ladder, which also chooses the numbers of iterations.

    `Spec.replace` with a number of iterations asks for exact chains of that length, `ffvd`.
    """

    assumptions: ClassVar[Assumptions | None] = None  # it has no posterior of its own
