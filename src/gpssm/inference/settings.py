"""What METHODS registers: the settings of a method, which check themselves, and what `fit` asks of every method.

A method is a frozen dataclass of settings with a `build`, which gives three pure functions: `init`, `step` and `draw`
(`gpssm.model.types.Method`). `fit` calls, in this order,

    prepare(series, spec, key)      the model of the scaled series, and the states to start from
    adopt(model)                    the model with its leaves' roles as the method plays them
    num_shared(model)               how much of the warm-up one pilot chain does for all
    build(model, states)            the three functions

Leaves with the role "optimise" are learned in the first part of the warm-up only (`pilot_length`), which the chains
share: a posterior given optimised parameters is one posterior, so all chains must have the same.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.linear.fit import linear_fit
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info, Method
from gpssm.starts.build import SLACK, Start, build

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec

States = tuple[Float[Array, "_ Dx"], ...]


class Assumptions(NamedTuple):
    """What a method lets its posterior q(x, v) be; a table of them for all methods is in the documentation."""

    coupled: bool  # states and weights depend on each other in q
    free_states: bool  # no family is imposed on q(x)
    free_weights: bool  # none on q(v)
    words: str  # q(x, v) in a few words


@dataclass(frozen=True)
class MethodSettings:
    """Settings that all methods share, with defaults for what a method may override.

    :param num_warmup: iterations that adapt and are thrown away.
    :param num_draws: draws kept in each chain.
    :param thin: iterations for each draw kept.
    :param learning_rate: Adam's first step size for leaves to be optimised; it falls to zero along the shared part of
        the warm-up.
    """

    learns: ClassVar[bool] = True  # whether the model has parameters to learn while it samples
    compares: ClassVar[bool] = False  # whether start="auto" compares starts
    pads: ClassVar[bool] = (
        False  # whether series are padded, so that many numbers of rows have one program
    )
    judges_bias: ClassVar[bool] = (
        False  # whether it has no accept step, and measures what that costs
    )
    assumptions: ClassVar[Assumptions | None] = Assumptions(True, True, True, "draws from q*(x, v)")

    num_warmup: int = 500
    num_draws: int = 500
    thin: int = 1
    learning_rate: float = 0.03

    def __post_init__(self) -> None:
        for name, least in (("num_warmup", 0), ("num_draws", 1), ("thin", 1)):
            check_whole(name, getattr(self, name), least)
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate!r}.")

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """The model of scaled series, and the states of each to start from: those of a linear fit."""
        linear = linear_fit(series, spec)
        return build(spec, linear, key, self.slack(len(linear.z)))

    def slack(self, rows: int) -> float:
        """Prior standard deviation of a linear mean around the linear fit, given the number of rows."""
        return SLACK

    def adopt(self, model: GPSSM) -> GPSSM:
        """The model with its leaves' roles as this method plays them."""
        return model

    def num_shared(self, model: GPSSM) -> int:
        """The iterations of the warm-up that chains share: none if there is nothing to be optimised."""
        return pilot_length(self.num_warmup) if model.leaves("optimise") else 0

    def draw_independently(
        self, model: GPSSM, series: list[Series], num_chains: int, seed: int
    ) -> tuple[Draw, Info] | None:
        """All draws, (chain, draw) in front, of a method that needs no Markov chain; None where there has to be one."""
        return None

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, started at these states."""
        raise TypeError(
            f"{type(self).__name__} is not a method: take one from gpssm.methods.METHODS."
        )


def pilot_length(num_warmup: int) -> int:
    """The iterations of the warm-up in which leaves are optimised, once for all chains."""
    return 2 * num_warmup // 3
