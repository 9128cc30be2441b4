"""What every fit holds: draws from a posterior, and the data, model and settings they came from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.model import GPSSM
from gpssm.runtime import numerical
from gpssm.scaler import Scaler
from gpssm.series import Series
from gpssm.types import Draw, Info

BATCH = 256  # draws at once on a GPU


class Seconds(NamedTuple):
    """Wall-clock seconds of a fit: linear fit and model, compilation, iterations."""

    setup: float
    compile: float
    run: float


class Cloud(NamedTuple):
    """Where the state is now, under each draw: weighted particles, after `rows` rows of an experiment.

    Where the experiment is a training series that went on, the training rows are among them. Of a `gaussian` cloud only
    mean and covariance count. `surprise` is how far the last outputs were from what was expected (`cubature.py`).
    """

    particles: Float[np.ndarray, "chain draw N Dx"]
    log_weights: Float[np.ndarray, "chain draw N"]  # their exponentials add up to 1
    rows: int
    gaussian: bool
    surprise: Float[np.ndarray, "chain draw"]


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """Draws from the posterior of a model. Every leaf of `draws` and `info` has leading axes (chain, draw).

    `draws.states` has one array (chain, draw, T+1, Dx) a series, in scaled units; `draws.weights` is
    (chain, draw, Dx, M); `draws.leaves` holds the parameters that are not fixed, by name. `model` has the values the
    fit started from, and `model_at` those of a draw. `series` are the training data scaled, `raw` as they were given.
    `warmup` is the `Info` of the warm-up's iterations. `notes` says what went wrong, if anything did. `cloud` is where
    the state is now, None for the end of the training series, where each draw has a last state of its own.
    """

    model: GPSSM
    draws: Draw
    info: Info
    warmup: Info
    series: tuple[Series, ...]
    raw: tuple[Series, ...]
    scaler: Scaler
    config: dict[str, Any]
    seconds: Seconds
    seed: int
    notes: tuple[str, ...] = ()
    cloud: Cloud | None = None

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.draws.weights.shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws kept in each chain."""
        return self.draws.weights.shape[1]

    @property
    def num_gradients(self) -> float:
        """Gradients of the target that the fit took; what chains shared in the warm-up counts once."""
        shared = self.config.get("fit", {}).get("num_shared", 0)
        apart = np.sum(self.info.gradients) + np.sum(self.warmup.gradients[:, shared:])
        return float(apart + np.sum(self.warmup.gradients[0, :shared]))

    @numerical
    def model_at(self, chain: int, draw: int) -> GPSSM:
        """The model with the parameters of one draw."""
        return self.model.with_leaves({name: leaf[chain, draw] for name, leaf in self.draws.leaves.items()})

    @numerical
    def each_draw(self, values: Callable[[GPSSM, Draw, Any], Array], inputs: Any) -> np.ndarray:
        """`values(model, draw, inputs)` at every draw, with the model of that draw; axes (chain, draw, ...)."""

        batch = None if jax.default_backend() == "cpu" else BATCH

        @eqx.filter_jit
        def every(model: GPSSM, draws: Draw, inputs: Any) -> Array:
            return jax.lax.map(
                lambda draw: values(model.with_leaves(draw.leaves), draw, inputs), draws, batch_size=batch
            )

        shape = (self.num_chains, self.num_draws)
        draws = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), self.draws)
        result = np.asarray(every(self.model, draws, inputs))
        return result.reshape(*shape, *result.shape[1:])


def settle(model: GPSSM, draws: Draw) -> tuple[GPSSM, Draw]:
    """The model with its optimised leaves as they were learned, and the draws without: there they are all the same."""
    optimised = model.leaves("optimise")
    learned = {name: leaf[0, -1] for name, leaf in draws.leaves.items() if name in optimised}
    rest = {name: leaf for name, leaf in draws.leaves.items() if name not in optimised}
    return model.with_leaves(learned), draws._replace(leaves=rest)
