"""The central types: statistics of the states, draws, and the interface of a method.

    log q*(v, x) = Σ_d log N(v_d; 0, I) + log p(x₀)
                 + Σ_t [ log p(y_t | x_{t+1})
                         + Σ_d { log N(x_{t+1,d}; m_d + A_d·v_d, Q_d) − B_d / 2Q_d } ]

is the free-form posterior over the weights v and the states x of a model; `target.py` computes it
and the quantities derived from it. One series has states of shape (T+1, Dx); several series have a
list of such arrays and share weights and parameters.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gpssm.data.series import Series

Data = Series | Sequence[Series]
States = Float[Array, "T+1 Dx"] | Sequence[Float[Array, "_ Dx"]]


class Statistics(NamedTuple):
    """The sufficient statistics of the states for the collapsed target: sums over time of products
    of A, B and r = x_{t+1} − m(z_t).
    """

    gram: Float[Array, "Dx M M"]  # AᵀA
    cross: Float[Array, "Dx M"]  # Aᵀr
    square: Float[Array, " Dx"]  # rᵀr
    residual: Float[Array, " Dx"]  # ΣB


class GaussianWeights(NamedTuple):
    """Rows v_d ~ N(mean_d, precision_d⁻¹): the weights, or [C_j, d_j] of the outputs."""

    mean: Float[Array, "Dx M"]
    precision: Float[Array, "Dx M M"]


class FeynmanKac(NamedTuple):
    """A path measure as Gaussian moves and potentials, for particle methods; x₀ ~ N(0, I).

    `moments(t, x)` gives the mean (N, Dx) and variance (N, Dx) of M_{t+1}(· | x), and
    `log_potential(t, x, following)` gives log G_{t+1}(x, x') (N,), for N particles.
    """

    moments: Callable[
        [Array, Float[Array, "N Dx"]], tuple[Float[Array, "N Dx"], Float[Array, "N Dx"]]
    ]
    log_potential: Callable[[Array, Float[Array, "N Dx"], Float[Array, "N Dx"]], Float[Array, " N"]]


class Draw(NamedTuple):
    """One draw from a posterior: a state path for each series, the weights, and the leaves that are
    not fixed.
    """

    states: tuple[Float[Array, "_ Dx"], ...]
    weights: Float[Array, "Dx M"]
    leaves: dict[str, Array]


class Info(NamedTuple):
    """The diagnostics of one iteration of a sampler.

    `bias` is the relative error of the variances of the states, averaged over all coordinates and
    estimated from exact moves; None for methods that do not measure it.
    """

    log_target: Float[Array, ""]
    acceptance: Float[Array, ""]
    divergent: Bool[Array, ""]
    energy: Float[Array, ""]
    gradients: Float[Array, ""]
    bias: Float[Array, ""] | None = None


class Method(abc.ABC):
    """An inference algorithm as three pure functions of (key, carry, series).

    The carry holds everything that the next iteration needs, including the parameters; there is no
    other state. `step` is called in both warm-up and sampling; a method that adapts counts its
    iterations in the carry.
    """

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, series: list[Series]) -> Any:
        """Return the carry before the first iteration."""

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, carry: Any, series: list[Series]) -> tuple[Any, Info]:
        """Return the carry after an iteration, and the diagnostics of the iteration."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
        """Return a draw from the posterior."""
