"""Draws of a fit, with leading axes (chain, draw), and programs that map over them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpssm.core.runtime import in_double_precision, jit
from gpssm.data.clock import Clock
from gpssm.data.series import Series
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

Tree = TypeVar("Tree")
Forecasting = TypeVar("Forecasting")  # a Posterior or a Stack
P = ParamSpec("P")


class Seconds(NamedTuple):
    """Wall-clock seconds of a fit: linear fit and model, compilation, iterations."""

    setup: float
    compile: float
    run: float


class FilterState(NamedTuple):
    """The filtered distribution of the state x, and of the weights v if they are learned.

        [x; v] ~ N(mean, covariance),   or   x ~ Σ_n exp(log_weights_n) δ(x − particles_n)

    Every array has the leading axes of the draws: (chain, draw), or one axis S in compiled code.

    Parameters
    ----------
    mean, covariance
        Moments of the D = Dx coordinates of x, or of the D = Dx + N of x and all weights.
    surprise
        Mean ratio of recent squared errors to their predicted variances; see `filtering.py`.
    particles, log_weights
        The particles of a particle filter and their normalised log weights; None for a Gaussian.
    """

    mean: Float[Array, "*S D"]
    covariance: Float[Array, "*S D D"]
    surprise: Float[Array, "*S"]
    particles: Float[Array, "*S P Dx"] | None = None
    log_weights: Float[Array, "*S P"] | None = None


class CurrentState(NamedTuple):
    """The state of an experiment after its last row.

    Parameters
    ----------
    state
        The state for each draw, given the weights of the draw.
    rows
        Number of rows of the experiment, including training rows.
    clock
        The times of the rows.
    past
        The last inputs, as many as the longest delay.
    """

    state: FilterState
    rows: int
    clock: Clock | None
    past: Float[np.ndarray, "K Du"]

    def after(self, rows: Series, state: FilterState) -> Self:
        """Return this state of the experiment after further rows, in the user's units."""
        past = np.concatenate([self.past, rows.u])[len(rows) :]
        return self._replace(state=state, rows=self.rows + len(rows), past=past)


class Learned(NamedTuple):
    """The joint distribution of state and weights in `learn`.

    Parameters
    ----------
    state
        [x; v] for each draw, from which the weights of the draw are sampled.
    rates
        The forgetting factor of each draw.
    rows
        Number of rows learned from.
    """

    state: FilterState
    rates: Float[np.ndarray, "chain draw"]
    rows: int

    @property
    def forgetting(self) -> float:
        """The smallest forgetting factor."""
        return float(np.min(self.rates))


def merge_chains(leaf: Float[np.ndarray | Array, "chain draw ..."]) -> Float[np.ndarray, "S ..."]:
    """Return the concatenated draws of all chains."""
    return np.asarray(leaf).reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def all_draws(posterior: "Posterior") -> Int[np.ndarray, " S"]:
    """Return the numbers of the draws of all chains."""
    return np.arange(posterior.num_chains * posterior.num_draws)


def take_draws(tree: Tree, draws: Int[np.ndarray, " S"]) -> Tree:
    """Return the arrays of a tree at these draws, numbered over all chains, for compiled code."""
    return jax.tree.map(lambda leaf: jnp.asarray(merge_chains(leaf)[draws]), tree)


def split_chains(tree: Tree, draws: Draw) -> Tree:
    """Return the arrays of a tree with one axis of draws replaced by (chain, draw)."""
    axes = draws.weights.shape[:2]
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*axes, *leaf.shape[1:]), tree)


def each_model(
    function: Callable[Concatenate["Posterior", P], "Posterior"],
) -> Callable[Concatenate[Forecasting, P], Forecasting]:
    """Decorate a function that changes a posterior: given a stack, it changes every member."""

    @functools.wraps(function)
    def change_each(forecaster: Any, /, *args: P.args, **options: P.kwargs) -> Any:
        return forecaster.map_models(lambda model: function(model, *args, **options))

    return change_each


def batch_size() -> int | None:
    """Return the batch size of `jax.lax.map` over draws: one on a CPU, many on a GPU."""
    return None if jax.default_backend() == "cpu" else 256


@in_double_precision
def map_draws(
    values: Callable[[GPSSM, Draw, Any], Any], model: GPSSM, draws: Draw, inputs: Any
) -> Any:
    """Return `values(model, draw, inputs)` for every draw with its model, (chain, draw, ...).

    One program serves all calls with the same function and shapes: pass functions of a module, not
    closures.
    """
    flat = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), draws)
    return split_chains(_map_flat(values, model, flat, inputs, batch_size()), draws)


@jit
def _map_flat(
    values: Callable[[GPSSM, Draw, Any], Any],
    model: GPSSM,
    draws: Draw,
    inputs: Any,
    batch: int | None,
) -> Any:
    return jax.lax.map(
        lambda draw: values(model.with_leaves(draw.leaves), draw, inputs), draws, batch_size=batch
    )


def absorb_common(models: Sequence[GPSSM], draws: Draw) -> tuple[GPSSM, Draw]:
    """Return one model with the leaves that all draws share, and draws with the other leaves.

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
    differing = {name: leaf for name, leaf in leaves.items() if name not in common}
    return first.with_leaves(common), draws._replace(leaves=differing)


@in_double_precision
def model_of(posterior: "Posterior", chain: int, draw: int) -> GPSSM:
    """Return the model with the parameters of one draw."""
    leaves = {name: leaf[chain, draw] for name, leaf in posterior.draws.leaves.items()}
    return posterior.model.with_leaves(leaves)


def differ_in_model(posterior: "Posterior") -> bool:
    """Return whether chains have separate models, which differ in parameters that are not sampled.

    The chains are then several posteriors, over which forecasts average; otherwise they sample one
    posterior.
    """
    sampled = posterior.model.leaves("sample")
    return any(
        np.any(leaf[:, -1] != leaf[:1, -1])
        for name, leaf in posterior.draws.leaves.items()
        if name not in sampled
    )


def past_inputs(
    posterior: "Posterior", index: int = -1, new_experiment: bool = False
) -> Float[np.ndarray, "K Du"]:
    """Return the inputs of the last K rows, K being the longest delay.

    They are NaN before a new experiment, where they are unknown.
    """
    if new_experiment:
        return posterior.dataset.past_inputs(index, 0)
    if posterior.current is None:
        return posterior.dataset.past_inputs(index)
    return posterior.current.past


def stored_rows(forecaster: Any) -> Any:
    """Return a posterior or stack whose training data are only the rows with stored states.

    The inputs of its dataset are delayed.
    """

    def cut(posterior: "Posterior") -> "Posterior":
        if not posterior.dataset.first_states:
            return posterior
        return dataclasses.replace(posterior, dataset=posterior.dataset.with_states())

    return forecaster.map_models(cut)


def check_states(posterior: "Posterior", purpose: str) -> None:
    """Raise if a method needs the states of all training rows and not all are stored."""
    if posterior.dataset.first_states:
        rows = max(len(series) for series in posterior.dataset.with_states().experiments)
        raise ValueError(
            f"{purpose} needs the states of all training rows, but only those of the last {rows} "
            "were stored. Fit with keep_states='all', or use "
            "gpssm.analysis.stored_rows(posterior), which has only these rows."
        )
