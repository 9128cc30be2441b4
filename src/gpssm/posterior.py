"""What a fit gives back: draws from the posterior, and what follows from them draw by draw."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy import stats

from gpssm.diagnostics import Diagnostics, bfmi, row, row_within
from gpssm.model import GPSSM
from gpssm.runtime import numerical
from gpssm.scaler import Scaler
from gpssm.series import Series
from gpssm.types import Draw, Info

REFERENCES = 20  # inputs at which f is compared
ENTRIES = 200  # quantities of a group at most, evenly spaced, so that diagnostics do not grow with the series
HORIZON = 30
BATCH = 256  # draws at once on a GPU


class Seconds(NamedTuple):
    """Wall-clock seconds of a fit: linear fit and model, compilation, iterations."""

    setup: float
    compile: float
    run: float


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Draws from the posterior of a model. Every leaf of `draws` and `info` has leading axes (chain, draw).

    `draws.states` has one array (chain, draw, T+1, Dx) a series, in scaled units; `draws.weights` is
    (chain, draw, Dx, M); `draws.leaves` holds the parameters that are not fixed, by name. `model` has the values the
    fit started from, and `model_at` those of a draw. `warmup` is the `Info` of the warm-up's iterations. `notes` says
    what went wrong, if anything did.
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

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.draws.weights.shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws kept in each chain."""
        return self.draws.weights.shape[1]

    def __repr__(self) -> str:
        notes = f", {len(self.notes)} notes: see .notes" if self.notes else ""
        return f"Posterior({self.config['method']}, {self.num_chains} chains of {self.num_draws} draws{notes})"

    @numerical
    def model_at(self, chain: int, draw: int) -> GPSSM:
        """The model with the parameters of one draw."""
        return self.model.with_leaves({name: leaf[chain, draw] for name, leaf in self.draws.leaves.items()})

    @numerical
    def function(
        self, x: Float[ArrayLike, "N Dx"], u: Float[ArrayLike, "N Du"]
    ) -> Float[np.ndarray, "chain draw N Dx"]:
        """E[f(z) | v] = m(z) + A(z) v of each draw at the inputs z = [x; u], in scaled units."""

        def values(model: GPSSM, draw: Draw, inputs: tuple[Array, Array]) -> Float[Array, "N Dx"]:
            return model.transition()(*inputs).given(draw.weights)

        return _each_draw(self, values, (jnp.asarray(x), jnp.asarray(u)))

    @numerical
    def outputs(self, index: int = 0) -> Float[np.ndarray, "chain draw T Dy"]:
        """E[y_t | x_{t+1}] of each draw along series `index`, in the user's units."""

        def values(model: GPSSM, draw: Draw, _: None) -> Float[Array, "T Dy"]:
            return model.likelihood.moments(draw.states[index][1:])[0]

        return self.scaler.unscale_mean(_each_draw(self, values, None))

    def diagnostics(self) -> Diagnostics:
        """R-hat and effective sample sizes of parameters, f, states and outputs, and the sampler's own figures.

        f is taken at inputs the training series passed through, the forecast holds the last controls for 30 steps.
        States are identified only up to a change of coordinates, so they are judged within each chain.
        """
        sampled = self.model.leaves("sample")
        parameters = [row(name, leaf) for name, leaf in self.draws.leaves.items() if name in sampled]
        states = np.concatenate([_thinned(path) for path in self.draws.states], -1)
        outputs = np.concatenate([_thinned(self.outputs(index)) for index in range(len(self.series))], -1)
        rows = (
            *parameters,
            row("function values", self.function(*_reference_inputs(self))),
            row_within("states, within chains", states),
            row("smoothed outputs", outputs),
            row(f"{HORIZON}-step forecast mean", forecast_mean(self, np.repeat(self.raw[0].u[-1:], HORIZON, 0))),
            row("log target", self.info.log_target),
        )
        return Diagnostics(
            rows=rows,
            acceptance=np.mean(self.info.acceptance, 1),
            divergences=int(np.sum(self.info.divergent)),
            bfmi=bfmi(self.info.energy),
            gradients=float(np.sum(self.info.gradients) + np.sum(self.warmup.gradients)),
            seconds=self.seconds._asdict(),
            notes=self.notes,
        )


@numerical
def forecast_mean(
    posterior: Posterior, u: Float[ArrayLike, "H Du"], index: int = 0
) -> Float[np.ndarray, "chain draw H Dy"]:
    """The mean path of each draw after the end of training series `index`, without noise, in the user's units:

    x_{t+1} = m(z_t) + A(z_t) v from the draw's last state,  E[y_t | x_{t+1}];  controls u (H, Du) in the user's units.
    """

    def values(model: GPSSM, draw: Draw, controls: Float[Array, "H Du"]) -> Float[Array, "H Dy"]:
        transition = model.transition()

        def advance(x: Float[Array, " Dx"], control: Float[Array, " Du"]) -> tuple[Array, Array]:
            following = transition(x[None], control[None]).given(draw.weights)[0]
            return following, following

        _, path = jax.lax.scan(advance, draw.states[index][-1], controls)
        return model.likelihood.moments(path)[0]

    scaled = jnp.asarray(posterior.scaler.scale_inputs(u))
    return posterior.scaler.unscale_mean(_each_draw(posterior, values, scaled))


def non_gaussianity(posterior: Posterior, level: float = 0.05) -> dict[str, float]:
    """The share of marginals of states and weights that D'Agostino and Pearson's test finds not Gaussian at `level`.

    All draws of all chains are tested as if independent: thin a run until its effective sample size is near their
    number, or the test sees autocorrelation. Of Gaussian marginals a share of about `level` is rejected.
    """
    groups = {"states": np.concatenate([_flat(path) for path in posterior.draws.states], -1)}
    groups["weights"] = _flat(posterior.draws.weights)
    return {name: float(np.mean(stats.normaltest(values, axis=0).pvalue < level)) for name, values in groups.items()}


def _flat(values: Float[np.ndarray | Array, "chain draw *shape"]) -> Float[np.ndarray, "N n"]:
    return np.asarray(values).reshape(values.shape[0] * values.shape[1], -1)


def _thinned(values: Float[np.ndarray | Array, "chain draw *shape"]) -> Float[np.ndarray, "chain draw n"]:
    """At most ENTRIES of the quantities, evenly spaced."""
    flat = np.asarray(values).reshape(*values.shape[:2], -1)
    return flat[:, :, :: -(-flat.shape[2] // ENTRIES)]


def _reference_inputs(posterior: Posterior) -> tuple[Float[np.ndarray, "N Dx"], Float[np.ndarray, "N Du"]]:
    """Evenly spaced inputs along the first series, at the states' posterior mean."""
    x = np.mean(posterior.draws.states[0], axis=(0, 1))[:-1]
    chosen = np.linspace(0, len(x) - 1, min(REFERENCES, len(x))).astype(int)
    return x[chosen], posterior.series[0].u[chosen]


def _each_draw(posterior: Posterior, values: Callable[[GPSSM, Draw, Any], Array], inputs: Any) -> np.ndarray:
    """`values(model, draw, inputs)` at every draw, with the model of that draw."""

    batch = None if jax.default_backend() == "cpu" else BATCH

    @eqx.filter_jit
    def every(model: GPSSM, draws: Draw, inputs: Any) -> Array:
        return jax.lax.map(lambda draw: values(model.with_leaves(draw.leaves), draw, inputs), draws, batch_size=batch)

    shape = (posterior.num_chains, posterior.num_draws)
    draws = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), posterior.draws)
    result = np.asarray(every(posterior.model, draws, inputs))
    return result.reshape(*shape, *result.shape[1:])
