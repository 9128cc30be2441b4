"""Has a run converged, and how much is it worth: R-hat and effective sample sizes (Vehtari et al. 2021) of what matters
to a user, and what can be read off the sampler's own figures.

Draws have leading axes (chain, draw); any axes behind them are quantities of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy import stats

from gpssm.core.mixing import Values, bfmi, ess_bulk, ess_tail, rhat
from gpssm.core.notebook import card
from gpssm.core.runtime import in_double_precision
from gpssm.core.table import Table
from gpssm.core.text import readable
from gpssm.methods.spec import ChainStart
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.checks import MIXING, check_mixing, check_sampler
from gpssm.posterior.draws import map_draws, merge_chains
from gpssm.posterior.explore import outputs_of
from gpssm.posterior.forecast import HORIZON

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

REFERENCES = 20  # inputs at which f is compared
WITHIN = ", within chains"  # behind the name of a group that is judged in each chain by itself
FORECAST = f"{HORIZON}-step forecast mean"
AHEAD = "one-step outputs"
AHEAD_NOISE = "one-step noise"
TRIAL = 100  # runs with fewer draws in a chain are trials, whose mixing is not judged
ENTRIES = 200  # quantities of a group at most, evenly spaced, so that diagnostics do not grow with the series


class Row(NamedTuple):
    """Convergence of a group of quantities, worst and median."""

    name: str
    number: int
    rhat: float
    ess_bulk: float
    ess_bulk_median: float
    ess_tail: float

    @property
    def title(self) -> str:
        """The name as a sentence begins with it."""
        words = readable(self.name)
        return words[:1].upper() + words[1:]

    @property
    def within(self) -> bool:
        """Whether each chain is judged by itself."""
        return self.name.endswith(WITHIN)

    @property
    def group(self) -> str:
        """The name of the quantities, whether chains are compared or each is judged by itself."""
        return self.name.removesuffix(WITHIN)

    @property
    def is_output(self) -> bool:
        """Whether it is about outputs: what users see, independent of the states' coordinates."""
        return self.group in ("smoothed outputs", AHEAD, FORECAST)

    @property
    def is_absolute(self) -> bool:
        """Whether it is about other quantities that do not depend on the states' coordinates."""
        return self.group in ("log target", "likelihood.log_std", AHEAD_NOISE)


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of a run: one row per group of quantities, and sampler statistics.

    States, and values of f as a function of them, are identified only up to a change of the states' coordinates.
    Predicted outputs do not depend on it and are what to compare across chains. States are judged in each chain by
    itself, and so are, in rows of their own, all groups where chains have models of their own. `print` it for a table;
    `to_frame` gives the rows as a pandas DataFrame.
    """

    rows: tuple[Row, ...]
    acceptance: Float[np.ndarray, " chain"]
    divergences: int
    bfmi: Float[np.ndarray, " chain"]
    gradients: float
    seconds: Mapping[str, float]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Row:
        for one in self.rows:
            if one.name == name:
                return one
        raise KeyError(
            f"No row is called {name!r}. There are: {', '.join(one.name for one in self.rows)}."
        )

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame, indexed by name."""
        import pandas

        return pandas.DataFrame(self.rows, columns=list(Row._fields)).set_index("name")

    def _repr_html_(self) -> str:
        facts = {
            "acceptance": " ".join(f"{one:.2f}" for one in self.acceptance),
            "divergent transitions": self.divergences,
            "E-BFMI": " ".join(f"{one:.2f}" for one in self.bfmi),
            "gradients": f"{self.gradients:.0f}",
            "seconds": ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items()),
        }
        return card(
            "Diagnostics: each group at its worst", facts, {"": self.to_frame()}, notes=self.notes
        )

    def __str__(self) -> str:
        caption = (
            "R-hat and ESS at their worst in each group. States, and f as a function of them, are identified only up "
            "to a change of the states' coordinates: compare predicted outputs across chains."
        )
        head = ["", "number", "R-hat", "ESS bulk", "(median)", "ESS tail"]
        rows = [
            (one.name, one.number, f"{one.rhat:.3f}", *(f"{figure:.0f}" for figure in one[3:]))
            for one in self.rows
        ]
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items())
        acceptance, bfmi = (
            " ".join(f"{one:.2f}" for one in chains) for chains in (self.acceptance, self.bfmi)
        )
        lines = [
            f"acceptance {acceptance}   divergent transitions {self.divergences}   E-BFMI {bfmi}",
            f"gradients {self.gradients:.0f}   {seconds}",
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join([Table(head, rows, caption=caption).text(80), "", *lines])


def diagnose(posterior: "Posterior") -> Diagnostics:
    """R-hat, effective sample sizes and the sampler's own figures: see `Posterior.diagnostics`."""
    posterior, sampled = posterior.with_states(), posterior.model.leaves("sample")
    parameters = {name: leaf for name, leaf in posterior.draws.leaves.items() if name in sampled}
    states = np.concatenate([_thinned(path) for path in posterior.draws.states], -1)
    outputs = np.concatenate(
        [
            _thinned(outputs_of(posterior, index))
            for index in range(len(posterior.dataset.experiments))
        ],
        -1,
    )
    # f at inputs that the first series passed through, evenly spaced, at the states' posterior mean
    x = np.mean(posterior.draws.states[0], axis=(0, 1))[:-1]
    chosen = np.linspace(0, len(x) - 1, min(REFERENCES, len(x))).astype(int)
    u = posterior.dataset.scaled[0].u
    inputs = (jnp.asarray(x[chosen]), jnp.asarray(u[chosen]))
    f = map_draws(_function, posterior.model, posterior.draws, inputs)
    one_step = map_draws(_one_step, posterior.model, posterior.draws, jnp.asarray(u))
    inside = parameters | {"function values": f}
    seen = {
        "smoothed outputs": outputs,
        AHEAD: _thinned(one_step[:, :, :-1]),
        AHEAD_NOISE: one_step[:, :, -1],
        FORECAST: held_forecast(posterior),
        "log target": posterior.info.log_target,
    }
    rows = [row(name, values) for name, values in inside.items()]
    rows += [
        row_within(f"states{WITHIN}", states),
        *(row(name, values) for name, values in seen.items()),
    ]
    if posterior.apart:
        rows += [row_within(name + WITHIN, values) for name, values in (inside | seen).items()]
    return Diagnostics(
        rows=tuple(rows),
        acceptance=np.mean(posterior.info.acceptance, 1),
        divergences=int(np.sum(posterior.info.divergent)),
        bfmi=bfmi(posterior.info.energy),
        gradients=posterior.num_gradients,
        seconds=posterior.seconds._asdict(),
        notes=posterior.notes,
    )


def find_notes(posterior: "Posterior") -> tuple[str, ...]:
    """Return the problems that `fit` warns of: of the sampler, and chains that disagree.

    Chains are compared by the forecast, which does not depend on the states' coordinates. Where
    chains have models of their own, each must have settled by itself. Runs of fewer than `TRIAL`
    draws are trials, whose mixing is not judged.

    Parameters
    ----------
    posterior
        The posterior to judge.

    Returns
    -------
    tuple of str
        One sentence for each problem.
    """
    checks = list(check_sampler(posterior.info))
    if posterior.num_draws >= TRIAL:
        paths = held_forecast(posterior)
        forecast = row_within(FORECAST + WITHIN, paths) if posterior.apart else row(FORECAST, paths)
        if not forecast.rhat <= MIXING["caution"][0]:
            checks += check_mixing([forecast])
    return tuple(check.sentence for check in checks if check.level == "problem")


def own_starts(posterior: "Posterior") -> str:
    """The starts and noises of chains that have models of their own; empty where all chains are one posterior."""
    if not posterior.apart:
        return ""
    spec = posterior.spec
    if isinstance(spec.start, str):
        return f"{spec.start}, noise {spec.noise}"
    starts = [start for start in spec.start if isinstance(start, ChainStart)]
    names = ", ".join(dict.fromkeys(start.name for start in starts)) or "states"
    noises = ", ".join(dict.fromkeys(str(start.noise) for start in starts)) or str(spec.noise)
    return f"{names}, noise {noises}"


def held_forecast(posterior: "Posterior") -> Float[np.ndarray, "chain draw H Dy"]:
    """The mean forecast of each draw under the last controls, held: what a user sees first of all."""
    u = np.repeat(posterior.dataset.experiments[0].u[-1:], HORIZON, 0)
    return forecast_mean(posterior, u, index=0)


def _function(
    model: GPSSM, draw: Draw, inputs: tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]
) -> Float[Array, "N Dx"]:
    """E[f(z) | v] = m(z) + A(z) v."""
    return model.transition()(*inputs).given(draw.weights)


def _one_step(model: GPSSM, draw: Draw, u: Float[Array, "T Du"]) -> Float[Array, "T+1 Dy"]:
    """The dynamics as outputs show them, whatever the states' coordinates, along the draw's own path of one series.

    Rows E[y_t | E[x_{t+1} | x_t, v]], the function's values as outputs, and in the last row the root of the mean over
    time of the diagonal of G Q Gᵀ + R, with G the slope of the emission: the noise of one step as outputs have it.
    """
    ahead = model.transition()(draw.states[0][:-1], u).given(draw.weights)

    def emit(x: Float[Array, " Dx"]) -> tuple[Array, Array]:
        mean, variance = model.likelihood.moments(x[None])
        return mean[0], variance[0]

    def noise(x: Float[Array, " Dx"]) -> Float[Array, " Dy"]:
        slope, variance = jax.jacfwd(lambda x: emit(x)[0])(x), emit(x)[1]
        return jnp.matmul(slope**2, model.process_variance) + variance

    mean = model.likelihood.moments(ahead)[0]
    return jnp.concatenate([mean, jnp.sqrt(jnp.mean(jax.vmap(noise)(ahead), 0, keepdims=True))])


def _thinned(
    values: Float[np.ndarray | Array, "chain draw *shape"],
) -> Float[np.ndarray, "chain draw n"]:
    """At most ENTRIES of the quantities, evenly spaced."""
    flat = np.asarray(values).reshape(*values.shape[:2], -1)
    return flat[:, :, :: -(-flat.shape[2] // ENTRIES)]


def row(name: str, values: Values) -> Row:
    """Summarise draws of many quantities; those that do not vary at all are left out."""
    flat = values.reshape(*values.shape[:2], -1)
    flat = flat[:, :, ~(np.ptp(flat, axis=(0, 1)) == 0)]
    if not flat.size:
        return Row(name, 0, np.nan, np.nan, np.nan, np.nan)
    bulk = ess_bulk(flat)
    figures = (np.max(rhat(flat)), np.min(bulk), np.median(bulk), np.min(ess_tail(flat)))
    return Row(name, flat.shape[2], *(float(figure) for figure in figures))


def row_within(name: str, values: Values) -> Row:
    """As `row`, of draws less their chain's mean, as multiples of the spread in its halves: R-hat then compares halves
    of chains, and not chains. (The worst of four chains, each by itself, is above 1.05 for draws that are independent:
    so many halves are compared, of so few draws each.)
    """
    values, half = np.asarray(values), max(1, values.shape[1] // 2)
    spread = np.sqrt(0.5 * (np.var(values[:, :half], 1) + np.var(values[:, -half:], 1)))[:, None]
    away = values - np.mean(values, 1, keepdims=True)
    return row(name, away / np.where(spread > 0, spread, 1.0))


@in_double_precision
def forecast_mean(
    posterior: "Posterior", u: Float[ArrayLike, "H Du"], index: int = -1
) -> Float[np.ndarray, "chain draw H Dy"]:
    """The mean path of each draw after the end of training series `index`, without noise, in the user's units:

    x_{t+1} = m(z_t) + A(z_t) v from the draw's last state,  E[y_t | x_{t+1}];  controls u (H, Du) in the user's units.
    """
    # Of the states only the last is asked for: the program is the same whatever the length of the series.
    draws = posterior.draws._replace(states=(posterior.draws.states[index][:, :, -1:],))
    encoded = jnp.asarray(posterior.dataset.encode_inputs(np.asarray(u)))
    return posterior.dataset.decode(map_draws(_mean_path, posterior.model, draws, encoded))


def _mean_path(model: GPSSM, draw: Draw, controls: Float[Array, "H Du"]) -> Float[Array, "H Dy"]:
    transition = model.transition()

    def advance(x: Float[Array, " Dx"], control: Float[Array, " Du"]) -> tuple[Array, Array]:
        following = transition(x[None], control[None]).given(draw.weights)[0]
        return following, following

    _, path = jax.lax.scan(advance, draw.states[0][-1], controls)
    return model.likelihood.moments(path)[0]


def non_gaussianity(posterior: "Posterior", level: float = 0.05) -> dict[str, float]:
    """The share of marginals of states and weights that are not Gaussian by D'Agostino and Pearson's test.

    All draws of all chains are tested as if independent: thin a run until its effective sample size is near their
    number, or the test sees autocorrelation. Of Gaussian marginals a share of about `level` is rejected.
    """
    groups = {"states": posterior.draws.states, "weights": (posterior.draws.weights,)}
    found = {}
    for name, leaves in groups.items():
        values = np.concatenate(
            [merge_chains(leaf).reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in leaves], -1
        )
        found[name] = float(np.mean(stats.normaltest(values, axis=0).pvalue < level))
    return found
