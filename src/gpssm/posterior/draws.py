"""Draws as a fit keeps them, with leading axes (chain, draw), and programs that map over them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.runtime import in_double_precision, jit
from gpssm.core.text import demand, demand_shape
from gpssm.data.clock import Clock
from gpssm.data.dataset import Dataset
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw


class Seconds(NamedTuple):
    """Wall-clock seconds of a fit: linear fit and model, compilation, iterations."""

    setup: float
    compile: float
    run: float


class CurrentState(NamedTuple):
    """Where the state is now, under each draw: weighted particles, after `rows` rows of an experiment.

    Where the experiment is a training series that went on, the training rows are among them. Where it is `gaussian`
    only mean and covariance count. `surprise` is how far the last outputs were from what was expected (`filtering.py`).
    `clock` is the time of the rows of the experiment, and `past` are its last inputs, as many as the longest delay.
    """

    particles: Float[np.ndarray, "chain draw N Dx"]
    log_weights: Float[np.ndarray, "chain draw N"]  # their exponentials add up to 1
    rows: int
    gaussian: bool
    surprise: Float[np.ndarray, "chain draw"]
    clock: Clock | None
    past: Float[np.ndarray, "K Du"]

    def check(self, draws: Draw, dataset: Dataset) -> None:
        """Refuse what is not a state under each of these draws."""
        axes, states = draws.weights.shape[:2], draws.states[0].shape[-1]
        demand_shape("current.particles", self.particles, *axes, None, states)
        demand_shape("current.log_weights", self.log_weights, *axes, self.particles.shape[2])
        demand_shape("current.surprise", self.surprise, *axes)
        demand_shape("current.past", self.past, max(dataset.delay, default=0), len(dataset.inputs))
        demand("current.clock", isinstance(self.clock, Clock | None), "is no clock")
        plain = type(self.rows) is int and self.rows >= 0 and type(self.gaussian) is bool
        demand("current.rows", plain, "is no number")


class Learned(NamedTuple):
    """What `learn` knows of state and weights together, under each draw: [x; v] ~ N (`learning.py`), N = Dx·M weights.

    `weights` and `covariance` are the moments of v. `state_mean`, `state_covariance` and `cross` = Cov(x, v) are those
    of the state where it is now, if it `follows`: `condition` moves the state on without the weights. `rows` were
    learned from, with the forgetting `rates` of the draws, of which `forgetting` is the fastest.
    """

    state_mean: Float[np.ndarray, "chain draw Dx"]
    state_covariance: Float[np.ndarray, "chain draw Dx Dx"]
    cross: Float[np.ndarray, "chain draw Dx N"]
    weights: Float[np.ndarray, "chain draw Dx M"]
    covariance: Float[np.ndarray, "chain draw N N"]
    rates: Float[np.ndarray, "chain draw"]
    forgetting: float
    rows: int
    follows: bool = True

    def check(self, draws: Draw) -> None:
        """Refuse what is not of these draws."""
        axes, states, size = (
            draws.weights.shape[:2],
            draws.states[0].shape[-1],
            math.prod(draws.weights.shape[2:]),
        )
        demand_shape("learned.state_mean", self.state_mean, *axes, states)
        demand_shape("learned.state_covariance", self.state_covariance, *axes, states, states)
        demand_shape("learned.cross", self.cross, *axes, states, size)
        demand_shape("learned.weights", self.weights, *draws.weights.shape)
        demand_shape("learned.covariance", self.covariance, *axes, size, size)
        demand_shape("learned.rates", self.rates, *axes)
        plain = (
            type(self.forgetting) is float and type(self.rows) is int and type(self.follows) is bool
        )
        demand(
            "learned",
            plain and 0 < self.forgetting <= 1 and self.rows >= 0,
            "has numbers that cannot be",
        )

    def each(self, function: Callable[[np.ndarray], np.ndarray]) -> Self:
        """A function of every array."""
        return self._replace(**{name: function(getattr(self, name)) for name in self._fields[:6]})


def merge_chains(leaf: Float[np.ndarray | Array, "chain draw ..."]) -> Float[np.ndarray, "S ..."]:
    """The draws of all chains one after the other."""
    return np.asarray(leaf).reshape(-1, *leaf.shape[2:])


def batch_size() -> int | None:
    """How many draws `jax.lax.map` should take at once: one on a CPU, many on a GPU."""
    return None if jax.default_backend() == "cpu" else 256


@in_double_precision
def map_draws(
    values: Callable[[GPSSM, Draw, Any], Array], model: GPSSM, draws: Draw, inputs: Any
) -> np.ndarray:
    """`values(model, draw, inputs)` at every draw, with its model; axes (chain, draw, ...).

    One program serves all calls with the same function and shapes: pass functions of a module, not
    closures.
    """
    shape = draws.weights.shape[:2]
    flat = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), draws)
    result = np.asarray(_map_flat(values, model, flat, inputs, batch_size()))
    return result.reshape(*shape, *result.shape[1:])


@jit
def _map_flat(
    values: Callable[[GPSSM, Draw, Any], Array],
    model: GPSSM,
    draws: Draw,
    inputs: Any,
    batch: int | None,
) -> Array:
    return jax.lax.map(
        lambda draw: values(model.with_leaves(draw.leaves), draw, inputs), draws, batch_size=batch
    )


def absorb_common(models: Sequence[GPSSM], draws: Draw) -> tuple[GPSSM, Draw]:
    """One model for all draws, with the leaves that all of them share, and draws of the others.

    Parameters
    ----------
    models
        The model of all chains, or one for each: fixed leaves may differ between them.
    draws
        The draws.
    """
    first = models[0]
    leaves: dict[str, Any] = dict(draws.leaves)
    for name, leaf in first.leaves("fix").items():
        values = np.stack([leaf, *(model.leaves()[name] for model in models[1:])])
        if np.any(values != values[:1]):
            shape = (*draws.weights.shape[:2], *leaf.shape)
            leaves[name] = np.broadcast_to(values[:, None], shape).copy()
    sampled = first.leaves("sample")
    common: dict[str, Any] = {
        name: np.asarray(leaf[0, -1])
        for name, leaf in leaves.items()
        if name not in sampled and np.all(leaf == leaf[:1, -1:])
    }
    model = first.with_leaves(common)
    return model, draws._replace(
        leaves={name: leaf for name, leaf in leaves.items() if name not in common}
    )
