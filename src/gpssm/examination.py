"""How well a run sampled: draws of what matters to a user, and what diagnostics make of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy import stats

from gpssm.alignment import HORIZON
from gpssm.diagnostics import Diagnostics, bfmi, row, row_within
from gpssm.dynamics import function_values
from gpssm.fitted import Fitted
from gpssm.model import GPSSM
from gpssm.runtime import numerical
from gpssm.smoothing import outputs_of
from gpssm.types import Draw

REFERENCES = 20  # inputs at which f is compared
DISAGREE = 1.2  # R-hat of the forecast at which a fit is not returned without a word
ENOUGH = 100  # draws a chain for that
ENTRIES = 200  # quantities of a group at most, evenly spaced, so that diagnostics do not grow with the series


def diagnose(fitted: Fitted) -> Diagnostics:
    """R-hat, effective sample sizes and the sampler's own figures: see `Posterior.diagnostics`."""
    sampled = fitted.model.leaves("sample")
    parameters = [row(name, leaf) for name, leaf in fitted.draws.leaves.items() if name in sampled]
    states = np.concatenate([_thinned(path) for path in fitted.draws.states], -1)
    outputs = np.concatenate([_thinned(outputs_of(fitted, index)) for index in range(len(fitted.series))], -1)
    rows = (
        *parameters,
        row("function values", function_values(fitted, *_reference_inputs(fitted))),
        row_within("states, within chains", states),
        row("smoothed outputs", outputs),
        row(f"{HORIZON}-step forecast mean", forecast_mean(fitted, np.repeat(fitted.raw[0].u[-1:], HORIZON, 0))),
        row("log target", fitted.info.log_target),
    )
    return Diagnostics(
        rows=rows,
        acceptance=np.mean(fitted.info.acceptance, 1),
        divergences=int(np.sum(fitted.info.divergent)),
        bfmi=bfmi(fitted.info.energy),
        gradients=fitted.num_gradients,
        seconds=fitted.seconds._asdict(),
        notes=fitted.notes,
    )


@numerical
def forecast_mean(fitted: Fitted, u: Float[ArrayLike, "H Du"], index: int = 0) -> Float[np.ndarray, "chain draw H Dy"]:
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

    scaled = jnp.asarray(fitted.scaler.scale_inputs(u))
    return fitted.scaler.unscale_mean(fitted.each_draw(values, scaled))


def find_disagreement(fitted: Fitted) -> list[str]:
    """A note if the chains disagree about the forecast, which does not depend on the states' coordinates; else none.

    A run of few draws is a trial, of which nothing can be said.
    """
    if fitted.num_draws < ENOUGH:
        return []
    rhat = row("", forecast_mean(fitted, np.repeat(fitted.raw[0].u[-1:], HORIZON, 0))).rhat
    if not rhat > DISAGREE:
        return []
    return [
        f"The chains disagree about the {HORIZON}-step forecast (R-hat {rhat:.2f}; below {DISAGREE} is wanted). They "
        "have not run long enough, or the posterior has several modes: raise num_warmup and num_draws, lower "
        "state_dim, or compare the chains' forecasts."
    ]


def non_gaussianity(fitted: Fitted, level: float = 0.05) -> dict[str, float]:
    """The share of marginals of states and weights that D'Agostino and Pearson's test finds not Gaussian at `level`.

    All draws of all chains are tested as if independent: thin a run until its effective sample size is near their
    number, or the test sees autocorrelation. Of Gaussian marginals a share of about `level` is rejected.
    """
    groups = {"states": np.concatenate([_flat(path) for path in fitted.draws.states], -1)}
    groups["weights"] = _flat(fitted.draws.weights)
    return {name: float(np.mean(stats.normaltest(values, axis=0).pvalue < level)) for name, values in groups.items()}


def _flat(values: Float[np.ndarray | Array, "chain draw *shape"]) -> Float[np.ndarray, "N n"]:
    return np.asarray(values).reshape(values.shape[0] * values.shape[1], -1)


def _thinned(values: Float[np.ndarray | Array, "chain draw *shape"]) -> Float[np.ndarray, "chain draw n"]:
    """At most ENTRIES of the quantities, evenly spaced."""
    flat = np.asarray(values).reshape(*values.shape[:2], -1)
    return flat[:, :, :: -(-flat.shape[2] // ENTRIES)]


def _reference_inputs(fitted: Fitted) -> tuple[Float[np.ndarray, "N Dx"], Float[np.ndarray, "N Du"]]:
    """Evenly spaced inputs along the first series, at the states' posterior mean."""
    x = np.mean(fitted.draws.states[0], axis=(0, 1))[:-1]
    chosen = np.linspace(0, len(x) - 1, min(REFERENCES, len(x))).astype(int)
    return x[chosen], fitted.series[0].u[chosen]
