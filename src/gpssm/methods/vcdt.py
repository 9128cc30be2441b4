"""`vcdt` (Ialongo et al. 2019) and its factorised start: conditioners of free parameters F, g, S at every step.

    q(x, v) = q(v) q(x₀) Π_t q(x_{t+1} | ·)
    ELBO = Σ_t E log p(y_t | x_{t+1}) − Σ_t KL_t − KL[q(x₀) ‖ p(x₀)] − KL[q(v) ‖ p(v)]

F and S are diagonal. In `vcdt` states depend on the weights, which are drawn once a path: x_{t+1} is tied to the f it
came from, f | v ~ N(f̄, B) with f̄ = m + A v,

    x_{t+1} | f ~ N(F_t f + g_t, S_t)
    KL_t = E_f KL[ N(F f + g, S) ‖ N(f, Q) ] = ½ { (S + ((F − 1) f̄ + g)² + (F − 1)² B) / Q − 1 + log Q/S }.

In `vcdt-factorised` the weights are integrated out at each step, f ~ N(f̄, Var f) with f̄ = m + A·mean and
Var f = B + A L Lᵀ Aᵀ: x_{t+1} has the same law, with V = S + F² Var f, but is compared with an f that is independent of
it, so that states and weights are independent,

    x_{t+1} ~ N(F_t f̄ + g_t, V_t)
    KL_t = E_f KL[ N(F f̄ + g, V) ‖ N(f, Q) ] = ½ { (V + ((F − 1) f̄ + g)² + Var f) / Q − 1 + log Q/V }.

Where the weights are certain q(x_{t+1} | x_t) is the same. `vcdt` climbs the factorised bound, which has the same
parameters, in the first part of its warm-up. What deviates from the paper: everything starts from a linear fit, F, g
and S from its smoothing distribution in place of F = 1, g = 0, S = Q.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import BlockTridiagonal, block_cholesky
from gpssm.core.runtime import in_step
from gpssm.data.series import Series
from gpssm.inference.settings import Assumptions, States
from gpssm.inference.whitening import linearise, stack, unstack
from gpssm.methods.variational import (
    Batch,
    Conditional,
    Conditioner,
    Family,
    Function,
    FunctionMoments,
    Rolled,
    StartLaw,
    VariationalSettings,
    WeightLaw,
    build_variational,
    cut,
    divergence_given_function,
    given,
    join,
    marginal,
    path_bound,
    roll,
    take,
)
from gpssm.model.model import GPSSM
from gpssm.model.target import weights_given_states
from gpssm.model.types import Method


@dataclass(frozen=True)
class VCDT(VariationalSettings):
    """States that depend on the weights, by conditioners of free parameters at every step (Ialongo et al. 2019).

    :param factorised: the share of the warm-up that the factorised model has.
    """

    assumptions: ClassVar[Assumptions | None] = Assumptions(
        True, False, False, "q(v) q(x₀) Π q(x_{t+1} | x_t, v)"
    )

    num_warmup: int = 600
    learning_rate: float = 0.03
    factorised: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.factorised <= 1:
            raise ValueError(
                f"factorised is a share of the warm-up, from 0 to 1; got {self.factorised!r}."
            )

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, its paths around these states at the start."""
        paths_of = Trajectories(states, self.num_samples)

        def bound(
            key: PRNGKeyArray,
            model: GPSSM,
            weights: WeightLaw,
            paths: VariationalPaths,
            series: list[Series],
            iteration: Array,
        ) -> Float[Array, ""]:
            early = iteration < self.factorised * self.num_warmup
            arguments = (key, model, weights, paths, series)
            return jax.lax.cond(in_step(early), paths_of.factorised, paths_of.coupled, *arguments)

        def draw(
            key: PRNGKeyArray,
            model: GPSSM,
            _: WeightLaw,
            v: Float[Array, "Dx M"],
            paths: VariationalPaths,
            series: list[Series],
        ) -> States:
            return paths_of.draw(key, model, given(v[:, None, :]), paths, series)

        return build_variational(self, model, states, Family(paths_of.start, bound, draw))


@dataclass(frozen=True)
class VCDTFactorised(VariationalSettings):
    """The factorised start of `vcdt`: its conditioners, with the weights integrated out."""

    assumptions: ClassVar[Assumptions | None] = Assumptions(
        False, False, False, "q(v) q(x₀) Π q(x_{t+1} | x_t)"
    )

    num_warmup: int = 600
    learning_rate: float = 0.03

    def build(self, model: GPSSM, states: States) -> Method:
        """The method for a model, its paths around these states at the start."""
        paths_of = Trajectories(states, self.num_samples)

        def bound(
            key: PRNGKeyArray,
            model: GPSSM,
            weights: WeightLaw,
            paths: VariationalPaths,
            series: list[Series],
            _: Array,
        ) -> Float[Array, ""]:
            return paths_of.factorised(key, model, weights, paths, series)

        def draw(
            key: PRNGKeyArray,
            model: GPSSM,
            weights: WeightLaw,
            _: Float[Array, "Dx M"],
            paths: VariationalPaths,
            series: list[Series],
        ) -> States:
            return paths_of.draw(key, model, marginal(weights), paths, series)

        return build_variational(self, model, states, Family(paths_of.start, bound, draw))


class Free(NamedTuple):
    """(F_t, how far the mean is from its place at the start, log S_t^½) of T steps of P series."""

    slope: Float[Array, "T P Dx"]
    shift: Float[Array, "T P Dx"]
    log_std: Float[Array, "T P Dx"]


class Anchor(NamedTuple):
    """f and x_{t+1} along the path of the start, and S_t^½ there; they stay as they are.

    F f + g is written as F (f − function) + state + std · shift: then a change of F does not move the mean path, and
    steps of one size suit states that are known well and states that are not.
    """

    function: Float[Array, "T P Dx"]
    state: Float[Array, "T P Dx"]
    std: Float[Array, "T P Dx"]


class Law(NamedTuple):
    """q(x_{t+1} | f) of every step; beyond the end of a series it has no effect."""

    steps: Free
    anchor: Anchor


class VariationalPaths(NamedTuple):
    """q(x₀) of each series, and the law of its steps."""

    start: StartLaw
    law: Law


def tied(
    now: Law, x: Float[Array, "N Dx"], f: FunctionMoments, variance: Float[Array, "1 Dx"]
) -> Conditional:
    """x_{t+1} ~ N(F f + g, S) of f ~ N(f̄, B):  KL_t = E_f KL[ N(F f + g, S) ‖ N(f, Q) ]."""
    (slope, shift, log_std), anchor = now.steps, now.anchor
    mean, noise = (
        slope * (f.mean - anchor.function) + anchor.state + anchor.std * shift,
        jnp.exp(2 * log_std),
    )
    divergence = divergence_given_function(mean - f.mean, slope, noise, f.variance, variance)
    return Conditional(mean, noise + slope**2 * f.variance, divergence)


def apart(
    now: Law, x: Float[Array, "N Dx"], f: FunctionMoments, variance: Float[Array, "1 Dx"]
) -> Conditional:
    """The same law of x_{t+1}, N(F f̄ + g, V) with V = S + F² Var f:  KL_t = E_f KL[ N(F f̄ + g, V) ‖ N(f, Q) ]."""
    law = tied(now, x, f, variance)
    divergence = divergence_given_function(
        law.mean - f.mean, 0.0, law.variance, f.variance, variance
    )
    return law._replace(divergence=divergence)


class Trajectories(NamedTuple):
    """Whole series from these states, with so many sample paths for each estimate of a bound."""

    states: States
    num_samples: int

    @property
    def lengths(self) -> list[int]:
        """Rows of each series."""
        return [len(path) - 1 for path in self.states]

    def start(self, key: PRNGKeyArray, model: GPSSM, series: list[Series]) -> VariationalPaths:
        """The paths around these states: the law of x_{t+1} given x_t and all later outputs, linearised there.

        Its precision is K_t = Q⁻¹ + what later rows tell, which comes from eliminating states from the last one on. The
        best diagonal S and F for it are S = 1 / diag K and F = S / Q, and g makes these states the mean path.
        """
        precision = linearise(model, stack(self.states), series).precision(model)
        backward = BlockTridiagonal(precision.diagonal[::-1], precision.lower[::-1].mT)
        information = jnp.sum(block_cholesky(backward).diagonal[::-1] ** 2, -1)
        weights = weights_given_states(model, self.states, series).mean
        transition, variance = model.transition(), model.process_variance[None]
        starts, steps = [], []
        for path, one, known in zip(self.states, series, unstack(information, series), strict=True):
            function = transition(path[:-1], jnp.asarray(one.u, path.dtype)).given(weights)
            std = known[1:] ** -0.5
            rows = (std**2 / variance, jnp.zeros_like(std), jnp.log(std), function, path[1:], std)
            steps.append(
                [jnp.pad(part, ((0, max(self.lengths) - len(one)), (0, 0))) for part in rows]
            )
            starts.append((path[0], -0.5 * jnp.log(known[0])))
        parts = [jnp.stack(part, 1) for part in zip(*steps, strict=True)]
        start = StartLaw(*(jnp.stack(part) for part in zip(*starts, strict=True)))
        return VariationalPaths(start, Law(Free(*parts[:3]), Anchor(*parts[3:])))

    def coupled(
        self,
        key: PRNGKeyArray,
        model: GPSSM,
        weights: WeightLaw,
        paths: VariationalPaths,
        series: list[Series],
    ) -> Float[Array, ""]:
        """The bound with weights drawn once a path; the series of one sample share them."""
        weights_key, path_key = jax.random.split(key)
        v = jnp.tile(weights.draw(weights_key, self.num_samples), (1, len(series), 1))
        rolled = self.roll(path_key, model, given(v), tied, paths, series, self.num_samples)
        return path_bound(model, rolled, paths.start, self.batch(series)) - weights.divergence()

    def factorised(
        self,
        key: PRNGKeyArray,
        model: GPSSM,
        weights: WeightLaw,
        paths: VariationalPaths,
        series: list[Series],
    ) -> Float[Array, ""]:
        """The bound with the weights integrated out at each step, states and weights independent."""
        rolled = self.roll(key, model, marginal(weights), apart, paths, series, self.num_samples)
        return path_bound(model, rolled, paths.start, self.batch(series)) - weights.divergence()

    def draw(
        self,
        key: PRNGKeyArray,
        model: GPSSM,
        function: Function,
        paths: VariationalPaths,
        series: list[Series],
    ) -> States:
        """One path for each series."""
        rolled = self.roll(key, model, function, tied, paths, series, 1)
        return join(rolled.states, cut(self.lengths, None), self.lengths)

    def roll(
        self,
        key: PRNGKeyArray,
        model: GPSSM,
        function: Function,
        conditioner: Conditioner,
        paths: VariationalPaths,
        series: list[Series],
        count: int,
    ) -> Rolled:
        """`count` paths of each series; the anchor of their law stays as it is."""
        start_key, path_key = jax.random.split(key)
        law = paths.law._replace(anchor=jax.lax.stop_gradient(paths.law.anchor))
        start = paths.start.draw(start_key, count)
        return roll(path_key, model, function, conditioner, start, self.batch(series).u, law)

    def batch(self, series: list[Series]) -> Batch:
        """The series side by side."""
        return take(series, cut(self.lengths, None))
