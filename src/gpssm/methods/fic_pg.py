"""`fic-pg` (Frigola, Lindsten, Schön & Rasmussen 2013): particle Gibbs with the transition function
integrated out.

    p(x₀:T, y) = p(x₀) Π_t p(y_t | x_{t+1})
                 Π_d N(x_{t+1,d}; m_d + A_d μ_{t,d}, A_d Σ_{t,d} A_dᵀ + B_d + Q_d)

where v_d | x₀:t ~ N(μ_{t,d}, Σ_{t,d}): the states have no Markov property any more, and each
particle carries what its own path says about the weights. Under the fully independent conditional
(FIC), f given v is independent from step to step, so that this is M weights and not t function
values, and changes by rank one (`inference/beliefs.py`): O(N M² T) a sweep. The path that is held
draws a new ancestor at each time, with the probabilities

    w_t^i p(x'_{t+1:T} | x₀:t^i),

a ratio of path evidences. It is the "predictive" target of `ffvd-p`, where v and x are drawn in
turn and so move in small steps if they depend on each other much. Parameters move on the path
evidence, log p(x₀:T, y), as everywhere.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.data.series import Series
from gpssm.inference import beliefs
from gpssm.inference.beliefs import Lineage, Look
from gpssm.inference.parameters import Parameters
from gpssm.inference.settings import Assumptions, States
from gpssm.methods.particle_gibbs import GibbsSampler, ParticleSettings, guide
from gpssm.methods.predictive_target import PredictiveMoves, scaled_statistics
from gpssm.model.model import GPSSM, Transition
from gpssm.model.types import FeynmanKac


@dataclass(frozen=True)
class FICParticleGibbs(ParticleSettings):
    """Settings of `fic-pg`; `ParticleSettings` and `MethodSettings` document them.

    A sweep is slow, so there are few iterations, with larger steps of Adam.
    """

    assumptions: ClassVar[Assumptions | None] = Assumptions(
        True, True, True, "draws from the FIC model's posterior"
    )

    num_warmup: int = 120
    num_draws: int = 25
    learning_rate: float = 0.08
    num_particles: int = 16

    def build(self, model: GPSSM, states: States) -> "FICSampler":
        """Return the method for a model, started at these states."""
        moves = PredictiveMoves(model, self.num_warmup, self.learning_rate)
        return FICSampler(self, moves, states)


class FICSampler(GibbsSampler):
    """The iterations of `fic-pg`."""

    def move_states(
        self, key: PRNGKeyArray, parameters: Parameters, states: States, series: list[Series]
    ) -> States:
        """Sweep through one series after the other, given what the paths of the others say of v."""
        model = self.moves.apply(parameters)
        moved = list(states)
        sums = [
            scaled_statistics(model, (path,), [experiment])
            for path, experiment in zip(states, series, strict=True)
        ]
        prior = jnp.eye(model.basis.size, dtype=sums[0].gram.dtype)[None]
        for place, experiment in enumerate(series):
            precision = jnp.zeros_like(sums[0].gram) + prior
            linear = jnp.zeros_like(sums[0].cross)
            for other in sums[:place] + sums[place + 1 :]:
                precision = precision + other.gram
                linear = linear + other.cross
            moved[place] = sweep(
                jax.random.fold_in(key, place),
                model,
                moved[place],
                experiment,
                self.settings.num_particles,
                precision,
                linear,
            )
            sums[place] = scaled_statistics(model, (moved[place],), [experiment])
        return tuple(moved)


class FICGeneration(NamedTuple):
    """Particles at one time, and their parents' places at the time before."""

    particles: Float[Array, "N Dx"]
    parents: Int[Array, " N"]


class Inputs(NamedTuple):
    """What a step of the sweep needs: random numbers, the held state, and the transition that
    leaves its future.
    """

    time: Array
    noise: Float[Array, "N Dx"]
    gumbel: Float[Array, "N N"]
    held: Float[Array, " Dx"]
    leaving: Look
    value: Float[Array, "1 Dx"]


def sweep(
    key: PRNGKeyArray,
    model: GPSSM,
    path: Float[Array, "T+1 Dx"],
    series: Series,
    count: int,
    precision: Float[Array, "Dx M M"],
    linear: Float[Array, "Dx M"],
) -> Float[Array, "T+1 Dx"]:
    """A new path given the present one, the weights integrated out under p(v_d) ∝ exp(bᵀv − ½
    vᵀPv).

    Particle 0 is held on the present path and draws new ancestors.
    """
    start_key, inputs_key, end_key = jax.random.split(key, 3)
    transition, u = model.transition(), jnp.asarray(series.u, path.dtype)
    later = jax.tree.map(lambda part: jnp.roll(part, -1, 0), _look(model, transition, path[:-1], u))
    # After the last transition there is no other: a look without gain says nothing.
    future, values = later._replace(gain=later.gain.at[-1].set(0.0)), jnp.roll(path[1:], -1, 0)
    lineage = beliefs.begin(precision, linear, future, values, count)
    start = jax.random.normal(start_key, (count, path.shape[1]), path.dtype).at[0].set(path[0])

    def step(
        carry: tuple[Array, Array, Lineage], inputs: Inputs
    ) -> tuple[tuple[Array, Array, Lineage], FICGeneration]:
        x, log_weight, lineage = carry
        look = _look(
            model, transition, x, jnp.broadcast_to(u[inputs.time][None], (count, u.shape[1]))
        )
        outlook = beliefs.look_ahead(lineage, look)
        law = guide(model, _form(model, series, outlook.past), series)
        proposal = law.propose(inputs.time, x)
        # w_t^i p(x'_{t+1:T} | x₀:t^i)
        log_ancestor = log_weight + lineage.log_future + outlook.whole.log_prob(inputs.held[None])
        scores = (log_weight + proposal.log_ahead)[None] + inputs.gumbel
        parents = jnp.argmax(scores.at[0].set(log_ancestor + inputs.gumbel[0]), -1)
        following = (
            proposal.mean[parents]
            + jnp.matmul(proposal.factor[parents], inputs.noise[:, :, None])[:, :, 0]
        )
        following = following.at[0].set(inputs.held)
        lineage = beliefs.advance(
            lineage, outlook, parents, following, inputs.leaving, inputs.value
        )
        return (
            following,
            law.log_weight(inputs.time, x[parents], following),
            lineage,
        ), FICGeneration(following, parents)

    noise_key, parent_key = jax.random.split(inputs_key)
    steps, dim = values.shape
    rows = Inputs(
        jnp.arange(steps),
        jax.random.normal(noise_key, (steps, count, dim), path.dtype),
        jax.random.gumbel(parent_key, (steps, count, count), path.dtype),
        path[1:],
        jax.tree.map(lambda part: part[:, None], future),
        values[:, None],
    )
    (_, log_weight, _), generations = jax.lax.scan(
        step, (start, jnp.zeros_like(start[:, 0]), lineage), rows
    )
    return _trace(jax.random.categorical(end_key, log_weight), start, generations)


def _trace(
    index: Int[Array, ""], start: Float[Array, "N Dx"], generations: FICGeneration
) -> Float[Array, "T+1 Dx"]:
    """The path of one particle of the last generation, back through its parents."""

    def back(index: Array, generation: FICGeneration) -> tuple[Array, Float[Array, " Dx"]]:
        return generation.parents[index], generation.particles[index]

    first, path = jax.lax.scan(back, index, generations, reverse=True)
    return jnp.concatenate([start[first][None], path])


def _look(
    model: GPSSM, transition: Transition, x: Float[Array, "N Dx"], u: Float[Array, "N Du"]
) -> Look:
    """The transitions from x as looks at the weights: mean m, gain A, spread B + Q."""
    step = transition(x, u)
    spread = jnp.maximum(step.residual.T, 0.0) + model.process_variance[None]
    return Look(step.mean, jnp.moveaxis(step.gain, 0, 1), spread)


def _form(model: GPSSM, series: Series, expected: beliefs.Prediction) -> FeynmanKac:
    """One step of the particles, from what each of them expects: its predictive, and the potential
    p(y_t | x').
    """
    y = jnp.asarray(series.y, expected.mean.dtype)

    def log_potential(
        t: Array, x: Float[Array, "N Dx"], following: Float[Array, "N Dx"]
    ) -> Float[Array, " N"]:
        return model.likelihood.log_prob(
            following, jnp.broadcast_to(y[t][None], (x.shape[0], y.shape[1]))
        )

    return FeynmanKac(lambda t, x: (expected.mean, expected.variance), log_potential)
