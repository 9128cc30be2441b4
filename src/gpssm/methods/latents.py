"""Samplers of states and weights as one vector: `ffvd-m` and `ffvd-c-m`, the stochastic-gradient
HMC of Fan, Bonilla, O'Kane & Sisson (2023), and `ffvd-nuts`, a reference.

`ffvd-m` moves states and whitened weights,

    log q*(v, x) = Σ_d log N(v_d; 0, I) + log p(x₀)
                 + Σ_t [ log p(y_t | x_{t+1})
                         + Σ_d { log N(x_{t+1,d}; m_d + A_d·v_d, Q_d) − B_d / 2Q_d } ]

and `ffvd-c-m` moves the states, the weights integrated out,

    log q*(x) = log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d { log N(r_d; 0, Q_d I) − ½ log det P_d
              + ½ b_dᵀ P_d⁻¹ b_d − ½ Σ_t B_d / Q_d }

and v_d | x ~ N(P_d⁻¹ b_d, P_d⁻¹) is drawn exactly.

Gradients are those of the whole series. Unlike in the other samplers everything moves at once: the
latents and the leaves with the role "sample", noises included, are one vector under SGHMC. Leaves
with the role "optimise" take an Adam step up the same density, in warm-up.

**SGHMC that finds its own scales** (Springenberg et al., NeurIPS 2016). With U = −log π, the
gradient ∇U taken at θ (or an unbiased estimate of it), the learning rate ε and the decay α, step n
is, entry by entry,

    V̂ ← (1 − r) V̂ + r (∇U)²,   r = (n + 1)^{−¾}                      in burn-in only,
    p ← (1 − α) p − ε² V̂^{−½} ∇U + N(0, 2 α ε² V̂^{−½}),
    θ ← θ + p.

The averaging window of V̂ grows with n. The authors' window is only as long as the gradient keeps
its sign, so that the scales follow the gradient, steps are largest where it is small, and the
stationary distribution is too wide: on the Gaussian of the tests it has 1.7 times the variance. If
noise levels are learned as well, states with too large a variance increase the noise, which widens
the states further without limit.

Some implementations divide both U and the variance of the noise by the number of rows. V̂^{−½}
compensates for that, and their ε, such as the published .01, is the ε here.

There is no accept step. In a direction of precision λ, with h = ε² V̂^{−½}, the variance is 1/λ · 1
/ (1 − hλ / (4 − 2α)) for exact gradients, so that the error falls with ε². A gradient estimate of
variance S adds a relative error of hS / 2α. The term −ε⁴ that the authors add to the variance of
the noise approximates this correction for minibatches. With exact gradients it would itself be an
error, and it is omitted.

**NUTS.** `ffvd-nuts` has the same targets. The no-U-turn sampler (Hoffman & Gelman 2014) is that of
blackjax, with a diagonal metric adapted by Stan's schedule: the step size throughout the warm-up,
the metric over doubling windows, and both restarted after each window. It is slow, but exact and
independent of the ideas behind the other samplers. With all leaves fixed it is plain NUTS;
otherwise the parameters are updated given the states after each iteration, and the weights are
redrawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core.loops import choose
from gpssm.core.text import check_installed
from gpssm.data.series import Series
from gpssm.inference.hmc import StepSize
from gpssm.inference.parameters import Parameters, Sampler
from gpssm.inference.settings import MethodSettings, States, choice, positive, real, share, whole
from gpssm.methods.ffvd import HMCSettings
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed, log_target
from gpssm.model.types import Draw, Info

# All that a sampler moves at once: states, weights (None where they are integrated out), leaves.
Latents = tuple[States, Float[Array, "Dx M"] | None, dict[str, Array]]


class LatentSampler(Sampler):
    """A sampler of one vector of latents; its carry has a `position` and `parameters`.

    Its settings say whether the weights are integrated out (`collapsed`).
    """

    moves_leaves: ClassVar[bool]  # whether leaves with the role "sample" are part of the vector

    def pack(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> Float[Array, " n"]:
        """Return the vector of these states, a draw of the weights, and the model's leaves."""
        weights = None
        if not self.settings.collapsed:
            weights = self.moves.draw_weights(key, parameters, states, series)
        return ravel_pytree((states, weights, self.leaves))[0]

    def unpack(self, position: Float[Array, " n"]) -> Latents:
        """Return the latents that a vector stands for."""
        model = self.model
        weights = None
        if not self.settings.collapsed:
            shape = (model.state_dim, model.basis.size)
            weights = jnp.zeros(shape, model.log_process_std.dtype)
        return ravel_pytree((self.states, weights, self.leaves))[1](position)

    def log_density(
        self, model: GPSSM, states: States, weights: Any, series: list[Series]
    ) -> Float[Array, ""]:
        """Return log q*(v, x), or log q*(x) if the weights are integrated out."""
        if weights is None:
            return log_collapsed(model, states, series)
        return log_target(model, states, weights, series)

    @property
    def leaves(self) -> dict[str, Array]:
        """The leaves in the vector, at their values in the model."""
        return self.model.leaves("sample") if self.moves_leaves else {}

    def draw(self, key: PRNGKeyArray, carry: Any, series: list[Series]) -> Draw:
        """Return the present latents; weights that are integrated out are drawn."""
        states, weights, _ = self.unpack(carry.position)
        if weights is None:
            weights = self.moves.draw_weights(key, carry.parameters, states, series)
        return Draw(states, weights, carry.parameters.leaves)


class SGHMCState(NamedTuple):
    """θ and p, the average V̂ over n gradients, and log π at the last gradient."""

    position: Float[Array, " n"]
    momentum: Float[Array, " n"]
    V_hat: Float[Array, " n"]
    num_averaged: Int[Array, ""]
    value: Float[Array, ""]

    @classmethod
    def start(cls, position: Float[Array, " n"]) -> Self:
        """Return a state at rest, with unit scales."""
        lowest = jnp.full((), -jnp.inf, position.dtype)
        zeros = jnp.zeros_like(position)
        return cls(position, zeros, jnp.ones_like(position), jnp.zeros((), int), lowest)

    def energy(self, learning_rate: float) -> Float[Array, ""]:
        """Return −log π + ½ Σ p² V̂^½ / ε².

        The variance of the momentum is ε² V̂^{−½} in the limit of small decay.
        """
        kinetic = 0.5 * jnp.sum(self.momentum**2 * jnp.sqrt(self.V_hat)) / learning_rate**2
        return kinetic - self.value


def sghmc_step(
    key: PRNGKeyArray,
    state: SGHMCState,
    grad_fn: Callable[[Float[Array, " n"]], tuple[Float[Array, ""], Float[Array, " n"]]],
    learning_rate: float,
    decay: float,
    burn_in: Bool[Array, ""],
) -> SGHMCState:
    """Take one step; `grad_fn` returns log π and its gradient, as `jax.value_and_grad` does."""
    value, slope = grad_fn(state.position)
    num_averaged = state.num_averaged + burn_in
    # An exponent of 1 would never forget the burn-in, and one of ½ or less would follow the noise.
    rate = jnp.where(burn_in, (num_averaged + 1.0) ** -0.75, 0.0)
    V_hat = (1 - rate) * state.V_hat + rate * slope**2
    scale = learning_rate**2 / jnp.sqrt(V_hat)
    noise = jax.random.normal(key, slope.shape, slope.dtype)
    momentum = (1 - decay) * state.momentum + scale * slope + jnp.sqrt(2 * decay * scale) * noise
    return SGHMCState(state.position + momentum, momentum, V_hat, num_averaged, value)


class SGHMCCarry(NamedTuple):
    """The vector of latents with its averages, the parameters, and the number of iterations."""

    sampler: SGHMCState
    parameters: Parameters
    iteration: Int[Array, ""]

    @property
    def position(self) -> Float[Array, " n"]:
        """The vector of latents."""
        return self.sampler.position


class SGHMCSampler(LatentSampler):
    """The iterations of `ffvd-m` and `ffvd-c-m`."""

    moves_leaves: ClassVar[bool] = True

    def init(self, key: PRNGKeyArray, series: list[Series]) -> SGHMCCarry:
        """Return the initial carry."""
        parameters = self.moves.init()
        position = self.pack(key, parameters, self.states, series)
        return SGHMCCarry(SGHMCState.start(position), parameters, jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: SGHMCCarry, series: list[Series]
    ) -> tuple[SGHMCCarry, Info]:
        """Take a step of SGHMC, then one of Adam.

        Every step is accepted; one that is no longer finite is reported as divergent.
        """
        settings = self.settings
        _, move_key = jax.random.split(key)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            states, weights, leaves = self.unpack(position)
            model = self.model.with_leaves(carry.parameters.leaves | leaves)
            prior = model.log_prior() if leaves else 0.0
            return self.log_density(model, states, weights, series) + prior

        burn_in = carry.iteration < settings.num_warmup
        grad_fn = jax.value_and_grad(log_density)
        sampler = sghmc_step(
            move_key, carry.sampler, grad_fn, settings.step_size, settings.decay, burn_in
        )
        states, weights, leaves = self.unpack(sampler.position)
        parameters = self.moves.optimise(
            carry.parameters._replace(leaves=carry.parameters.leaves | leaves),
            lambda model: self.log_density(model, states, weights, series),
            carry.iteration,
            sum(map(len, series)),
        )
        unit = jnp.ones_like(sampler.value)
        finite = jnp.isfinite(sampler.value) & jnp.all(jnp.isfinite(sampler.position))
        energy = sampler.energy(settings.step_size)
        info = Info(sampler.value, unit, ~finite, energy, unit)
        return SGHMCCarry(sampler, parameters, carry.iteration + 1), info


@dataclass(frozen=True)
class SGHMCSettings(MethodSettings):
    """Settings of the stochastic-gradient samplers; `MethodSettings` has the others.

    Parameters
    ----------
    step_size
        ε, the sampler's learning rate; there is no accept step, and the bias falls with its square.
    decay
        α, the part of the momentum that is lost in each step.
    """

    collapsed: ClassVar[bool] = False  # whether the weights are integrated out
    sampler = SGHMCSampler

    num_warmup: int = 5_000
    num_draws: int = 100
    thin: int = 50
    step_size: float = positive(0.01)
    decay: float = real(0.05, lambda value: 0 < value <= 1, "above 0 and at most 1")


class FFVDM(SGHMCSettings):
    """The joint sampler of Fan et al. (2023): stochastic-gradient HMC on log q*(v, x)."""


class FFVDCM(SGHMCSettings):
    """The collapsed sampler of Fan et al. (2023): stochastic-gradient HMC on log q*(x)."""

    collapsed: ClassVar[bool] = True


class NUTSCarry(NamedTuple):
    """The latents as one vector, the parameters, and the number of iterations.

    `step_size` and `metric`, which is diagonal, hold the states of their adaptation.
    """

    position: Float[Array, " n"]
    step_size: StepSize
    metric: Any
    parameters: Parameters
    iteration: Int[Array, ""]


class NUTSSampler(LatentSampler):
    """The iterations of `ffvd-nuts`, which import blackjax only when they run."""

    moves_leaves: ClassVar[bool] = False

    def init(self, key: PRNGKeyArray, series: list[Series]) -> NUTSCarry:
        """Return the carry at the start."""
        check_installed("the method ffvd-nuts", "blackjax")
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation

        parameters = self.moves.init()
        position = self.pack(key, parameters, self.states, series)
        start_metric, *_ = mass_matrix_adaptation(is_diagonal_matrix=True)
        metric = start_metric(position.shape[0])
        return NUTSCarry(position, StepSize.start(0.1), metric, parameters, jnp.zeros((), int))

    def step(
        self, key: PRNGKeyArray, carry: NUTSCarry, series: list[Series]
    ) -> tuple[NUTSCarry, Info]:
        """Update the latents by a trajectory, then the parameters, with the weights redrawn."""
        from blackjax.mcmc import nuts

        move_key, parameter_key, weights_key = jax.random.split(key, 3)
        model = self.moves.apply(carry.parameters)

        def log_density(position: Float[Array, " n"]) -> Float[Array, ""]:
            states, weights, _ = self.unpack(position)
            return self.log_density(model, states, weights, series)

        sample: Any = nuts.build_kernel()
        point, outcome = sample(
            move_key,
            nuts.init(carry.position, log_density),
            log_density,
            carry.step_size.size(carry.iteration < self.settings.num_warmup),
            carry.metric.inverse_mass_matrix,
            self.settings.max_tree_depth,
        )
        step_size, metric = self.adapt(carry, point.position, outcome.acceptance_rate)
        position = point.position
        parameters = carry.parameters
        if parameters.leaves:
            states, _, _ = self.unpack(position)
            parameters = self.moves.update(
                parameter_key, parameters, states, carry.iteration, series
            )
            position = self.pack(weights_key, parameters, states, series)
        info = Info(
            point.logdensity,
            outcome.acceptance_rate,
            outcome.is_divergent,
            outcome.energy,
            # One more for the initial gradient, since the parameters have changed.
            jnp.asarray(outcome.num_integration_steps + 1, position.dtype),
        )
        return NUTSCarry(position, step_size, metric, parameters, carry.iteration + 1), info

    def adapt(
        self, carry: NUTSCarry, position: Float[Array, " n"], acceptance: Float[Array, ""]
    ) -> tuple[StepSize, Any]:
        """Return step size and metric after a move; they are constant after the warm-up."""
        from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
        from blackjax.adaptation.window_adaptation import build_schedule

        num_warmup = self.settings.num_warmup
        # The last row applies to all iterations after the warm-up.
        schedule = jnp.asarray([*build_schedule(num_warmup), (0, False)], int).astype(bool)
        learns_metric, ends_window = schedule[jnp.minimum(carry.iteration, num_warmup)]
        step = carry.step_size.update(
            acceptance,
            self.settings.target_acceptance,
            carry.iteration < num_warmup,
        )
        _, update_metric, end_metric = mass_matrix_adaptation(is_diagonal_matrix=True)
        metric = choose(learns_metric, update_metric(carry.metric, position), carry.metric)
        step = choose(ends_window, StepSize.start(jnp.exp(step.log_average)), step)
        return step, choose(ends_window, end_metric(metric), metric)


@dataclass(frozen=True)
class FFVDNUTS(HMCSettings):
    """The no-U-turn sampler of blackjax without whitening, a reference for other samplers.

    `MethodSettings` has the other settings.

    Parameters
    ----------
    target
        "collapsed" integrates the weights out; "joint" samples them together with the states.
    max_tree_depth
        A trajectory has at most 2**max_tree_depth steps.
    target_acceptance
        The target acceptance rate of the step-size adaptation.
    """

    sampler = NUTSSampler

    target: Literal["collapsed", "joint"] = choice("collapsed", ("collapsed", "joint"))
    max_tree_depth: int = whole(10)
    target_acceptance: float = share(0.8)

    @property
    def collapsed(self) -> bool:
        """Whether the weights are integrated out."""
        return self.target == "collapsed"
