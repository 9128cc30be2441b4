"""Convergence diagnostics: R-hat and effective sample sizes (Vehtari et al. 2021).

Draws have leading axes (chain, draw); entries of further axes are separate quantities.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from gpssm.core.mixing import Values, bfmi, ess_bulk, ess_tail, rhat
from gpssm.core.runtime import in_double_precision
from gpssm.core.table import Table, card
from gpssm.core.text import count, readable
from gpssm.methods.spec import ChainStart
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.checks import MIXING, check_mixing, check_sampler
from gpssm.posterior.control import mean_step
from gpssm.posterior.draws import differ_in_model, map_draws, stored_rows
from gpssm.posterior.forecast import HORIZON, outputs_of

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

WITHIN = ", within chains"  # suffix of the names of groups that are assessed within chains
FORECAST = f"{HORIZON}-step forecast mean"
SMOOTHED = "smoothed outputs"
AHEAD = "one-step outputs"
AHEAD_NOISE = "one-step noise"
PRECISE_RHAT = 1.02  # the largest R-hat at which sampling with `precision` stops
PRECISE_SHARE = 0.95  # the share of quantities that must be precise
TRIAL = 100  # runs with fewer draws per chain are trials, whose mixing is not checked
ENTRIES = 200  # maximum number of quantities in a group, to limit the cost


class Row(NamedTuple):
    """The convergence of a group of quantities: worst and median values."""

    name: str
    number: int
    rhat: float
    ess_bulk: float
    ess_bulk_median: float
    ess_tail: float

    @property
    def title(self) -> str:
        """The name with a capital letter."""
        words = readable(self.name)
        return words[:1].upper() + words[1:]

    @property
    def within(self) -> bool:
        """Whether the row assesses each chain separately."""
        return self.name.endswith(WITHIN)

    @property
    def group(self) -> str:
        """The name of the quantities, without "within chains"."""
        return self.name.removesuffix(WITHIN)

    @property
    def is_output(self) -> bool:
        """Whether the quantities are outputs, which do not depend on the coordinates of states."""
        return self.group in (SMOOTHED, AHEAD, FORECAST)

    @property
    def is_identified(self) -> bool:
        """Whether the quantities are independent of the coordinates of states."""
        return self.is_output or self.group in ("log target", "likelihood.log_std", AHEAD_NOISE)


@dataclass(frozen=True)
class Diagnostics:
    """Convergence of a run: one row per group of quantities, and sampler statistics.

    States, and values of f as a function of them, are identified only up to a change of
    coordinates. Predicted outputs do not depend on the coordinates, so compare these across chains.
    States are assessed within chains; if chains have separate models, all other groups have an
    additional row within chains. `print` shows a table; `to_frame` returns a pandas DataFrame.
    """

    rows: tuple[Row, ...]
    acceptance: Float[np.ndarray, " chain"]
    divergences: int
    bfmi: Float[np.ndarray, " chain"]
    seconds: Mapping[str, float]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Row:
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"There is no row {name!r}. Rows: {', '.join(rows)}.")
        return rows[name]

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame, indexed by name."""
        import pandas

        return pandas.DataFrame(self.rows, columns=list(Row._fields)).set_index("name")

    def __repr__(self) -> str:
        outputs = [row.rhat for row in self.rows if row.is_output and not math.isnan(row.rhat)]
        rhat = f"R-hat of outputs up to {max(outputs):.3f}" if outputs else "no R-hat of outputs"
        return f"Diagnostics({rhat}, {count(self.divergences, 'divergent transition')})"

    def _repr_html_(self) -> str:
        facts = {
            "acceptance": _figures(self.acceptance),
            "divergent transitions": self.divergences,
            "E-BFMI": _figures(self.bfmi),
            "seconds": ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items()),
        }
        title = "Diagnostics: each group at its worst"
        return card(title, facts, {"": self.to_frame()}, notes=self.notes)

    def __str__(self) -> str:
        caption = (
            "R-hat and ESS at their worst in each group. States, and f as a function of them, are "
            "identified only up to a change of the states' coordinates: compare predicted outputs "
            "across chains."
        )
        head = ["", "number", "R-hat", "ESS bulk", "(median)", "ESS tail"]
        rows = [
            (row.name, row.number, f"{row.rhat:.3f}", *(f"{figure:.0f}" for figure in row[3:]))
            for row in self.rows
        ]
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items())
        lines = [
            f"acceptance {_figures(self.acceptance)}   divergent transitions {self.divergences}   "
            f"E-BFMI {_figures(self.bfmi)}",
            seconds,
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join([Table(head, rows, caption=caption).text(80), "", *lines])


def _figures(values: Float[np.ndarray, " chain"]) -> str:
    """Return a statistic of each chain as text."""
    return " ".join(f"{value:.2f}" for value in values)


def diagnose(posterior: "Posterior") -> Diagnostics:
    """Compute R-hat and effective sample sizes of parameters, f, states and outputs.

    f is evaluated at inputs from the training series, and the forecast holds the last inputs for 30
    steps. States are identified only up to a change of coordinates, so they are assessed within
    chains.
    """
    posterior = stored_rows(posterior)
    draws, dataset, info = posterior.draws, posterior.dataset, posterior.info
    sampled = posterior.model.leaves("sample")
    # f at inputs of the first series, with posterior mean states
    x = np.mean(draws.states[0], axis=(0, 1))[:-1]
    points = np.linspace(0, len(x) - 1, min(20, len(x))).astype(int)
    inputs = (jnp.asarray(x[points]), jnp.asarray(dataset.scaled[0].u[points]))
    latent: dict[str, Any] = {name: leaf for name, leaf in draws.leaves.items() if name in sampled}
    latent["function values"] = map_draws(_function, posterior.model, draws, inputs)
    observable = output_draws(posterior) | {"log target": info.log_target}
    states = np.concatenate([_thinned(path) for path in draws.states], -1)
    rows = [
        *(row(name, values) for name, values in latent.items()),
        row_within(f"states{WITHIN}", states),
        *(row(name, values) for name, values in observable.items()),
    ]
    if differ_in_model(posterior):
        groups = latent | observable
        rows += [row_within(name + WITHIN, values) for name, values in groups.items()]
    return Diagnostics(
        rows=tuple(rows),
        acceptance=np.mean(info.acceptance, 1),
        divergences=int(np.sum(info.divergent)),
        bfmi=bfmi(info.energy),
        seconds=posterior.seconds._asdict(),
        notes=posterior.notes,
    )


def output_draws(posterior: "Posterior") -> dict[str, Float[np.ndarray, "chain draw n"]]:
    """The outputs by which runs are judged, which do not depend on the states' coordinates."""
    u = jnp.asarray(posterior.dataset.scaled[0].u)
    one_step = map_draws(one_step_dynamics, posterior.model, posterior.draws, u)
    numbers = range(len(posterior.dataset.experiments))
    smoothed = [_thinned(outputs_of(posterior, index)) for index in numbers]
    return {
        SMOOTHED: np.concatenate(smoothed, -1),
        AHEAD: _thinned(one_step[:, :, :-1]),
        AHEAD_NOISE: one_step[:, :, -1],
        FORECAST: held_forecast(posterior),
    }


@in_double_precision
def is_precise(posterior: "Posterior", precision: int, batch: int) -> bool:
    """Return whether chains agree about the outputs and have enough effective draws of them.

        R-hat <= 1.02  and  ESS >= precision

    for 95 % of the smoothed outputs, of the one-step outputs and of a forecast: the largest R-hat
    of hundreds of quantities exceeds 1.02 even if draws are independent. Chains with separate
    models are judged separately. Sampling with `precision` set stops where this holds.

    Parameters
    ----------
    posterior
        The draws so far.
    precision
        The least number of effective draws.
    batch
        Draws per chain that are evaluated at once; a divisor of the number of draws. Looks at more
        and more draws then share one program.
    """
    posterior = stored_rows(posterior)

    def evaluate(begin: int) -> dict[str, Float[np.ndarray, "chain draw n"]]:
        draws = jax.tree.map(lambda leaf: leaf[:, begin : begin + batch], posterior.draws)
        return output_draws(dataclasses.replace(posterior, draws=draws))

    parts = [evaluate(begin) for begin in range(0, posterior.num_draws, batch)]
    for name in (SMOOTHED, AHEAD, FORECAST):
        values = np.concatenate([part[name] for part in parts], 1)
        values = _varying(_within(values) if differ_in_model(posterior) else values)
        settled = (rhat(values) <= PRECISE_RHAT) & (ess_bulk(values) >= precision)
        if settled.size and np.mean(settled) < PRECISE_SHARE:
            return False
    return True


def with_notes(posterior: "Posterior", notes: Sequence[str] = (), remedy: str = "") -> "Posterior":
    """Return the posterior with notes of its run, and of the problems that `fit` warns of.

    Those are problems of the sampler, and chains that disagree. Chains are compared by the
    forecast, which does not depend on the states' coordinates. Chains with
    separate models must each have converged. Runs of fewer than `TRIAL` draws are trials, whose
    mixing is not judged.

    Parameters
    ----------
    posterior
        The posterior to judge.
    notes
        Notes of the run.
    remedy
        As in `check_sampler`.
    """
    checks = list(check_sampler(posterior.info, remedy))
    if posterior.num_draws >= TRIAL:
        paths = held_forecast(posterior)
        forecast = row(FORECAST, paths)
        if differ_in_model(posterior):
            forecast = row_within(FORECAST + WITHIN, paths)
        if not forecast.rhat <= MIXING["caution"][0]:
            checks += check_mixing([forecast], remedy=remedy)
    problems = [check.sentence for check in checks if check.level == "problem"]
    return dataclasses.replace(posterior, notes=(*notes, *problems))


def own_starts(posterior: "Posterior") -> str:
    """Return the starts and noise regimes of chains with separate models; empty for one
    posterior.
    """
    if not differ_in_model(posterior):
        return ""
    spec = posterior.spec
    if isinstance(spec.start, str):
        return f"{spec.start}, noise {spec.noise}"
    starts = [start for start in spec.start if isinstance(start, ChainStart)]
    names = ", ".join(dict.fromkeys(start.name for start in starts)) or "states"
    noises = ", ".join(dict.fromkeys(str(start.noise) for start in starts)) or str(spec.noise)
    return f"{names}, noise {noises}"


def held_forecast(posterior: "Posterior") -> Float[np.ndarray, "chain draw H Dy"]:
    """Return the mean forecast of each draw with the last inputs held constant."""
    u = np.repeat(posterior.dataset.experiments[0].u[-1:], HORIZON, 0)
    return forecast_mean(posterior, u, index=0)


def _function(
    model: GPSSM, draw: Draw, inputs: tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]
) -> Float[Array, "N Dx"]:
    """Return E[f(z) | v] = m(z) + A(z) v."""
    return model.function(draw.weights)(*inputs)


def one_step_dynamics(model: GPSSM, draw: Draw, u: Float[Array, "T Du"]) -> Float[Array, "T+1 Dy"]:
    """Return the one-step dynamics in terms of outputs, along the path of a draw for one series.

    The rows are E[y_t | E[x_{t+1} | x_t, v]]; the last row is the one-step noise in the outputs,
    the root of the mean over time of the diagonal of G Q Gᵀ + R, with G the derivative of the
    emission. Neither depends on the coordinates of the states.
    """
    ahead = model.function(draw.weights)(draw.states[0][:-1], u)

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


def _varying(values: Values) -> Float[np.ndarray, "chain draw n"]:
    """The quantities of which not all draws are equal."""
    flat = np.asarray(values).reshape(*values.shape[:2], -1)
    return flat[:, :, ~(np.ptp(flat, axis=(0, 1)) == 0)]


def _within(values: Values) -> Float[np.ndarray, "chain draw *shape"]:
    """The draws less their chain's mean, as multiples of the spread in the halves of the chain."""
    values, half = np.asarray(values), max(1, values.shape[1] // 2)
    spread = np.sqrt(0.5 * (np.var(values[:, :half], 1) + np.var(values[:, -half:], 1)))[:, None]
    return (values - np.mean(values, 1, keepdims=True)) / np.where(spread > 0, spread, 1.0)


def row(name: str, values: Values) -> Row:
    """Summarise draws of many quantities; constant quantities are omitted."""
    flat = _varying(values)
    if not flat.size:
        return Row(name, 0, np.nan, np.nan, np.nan, np.nan)
    bulk = ess_bulk(flat)
    figures = (np.max(rhat(flat)), np.min(bulk), np.median(bulk), np.min(ess_tail(flat)))
    return Row(name, flat.shape[2], *(float(figure) for figure in figures))


def row_within(name: str, values: Values) -> Row:
    """As `row`, of draws centred within chains.

    R-hat then compares halves of chains, and not chains. (The worst R-hat of four separate chains
    would be above 1.05 even for independent draws, because each compares two short halves.)
    """
    return row(name, _within(values))


@in_double_precision
def forecast_mean(
    posterior: "Posterior", u: Float[ArrayLike, "H Du"], index: int = -1
) -> Float[np.ndarray, "chain draw H Dy"]:
    """Return the mean path of each draw after training series `index`, in the user's units.

    x_{t+1} = m(z_t) + A(z_t) v from the last state of the draw,  E[y_t | x_{t+1}],   without noise

    Parameters
    ----------
    posterior
        The posterior.
    u : array (H, Du)
        Inputs in the user's units.
    index
        The number of the training series.
    """
    # Only the last state is passed, so that series of any length share one program.
    draws = posterior.draws._replace(states=(posterior.draws.states[index][:, :, -1:],))
    encoded = jnp.asarray(posterior.dataset.encode_inputs(np.asarray(u)))
    return posterior.dataset.decode(map_draws(_mean_path, posterior.model, draws, encoded))


def _mean_path(model: GPSSM, draw: Draw, u: Float[Array, "H Du"]) -> Float[Array, "H Dy"]:
    return jax.lax.scan(mean_step(model, draw.weights), draw.states[0][-1], u)[1]
