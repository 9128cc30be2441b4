"""In-sample measures of a fit: residuals and their tests, noise, predictability and nonlinearity.

**Residuals** of one-step predictions along the training data,

    e_t = Φ⁻¹( P(Y_t ≤ y_t | y_1, …, y_{t−1}, u_1, …, u_t) )

is standard normal and independent over steps if the model is correct, for any likelihood. The
probabilities are over draws and filtered states, because smoothed states depend on y_t.
Autocorrelation, or correlation with an input, shows that the outputs contain structure that the
model has missed, perhaps because it has too few states. Parameters were learned from the same data,
so good residuals do not prove that the model is good: use rolling forecasts of held-out rows.

**Drift.** Whether the system changes along the record is tested by a regression of these errors,

    e_t = (a + b τ_t)·z_t + ε_t,  z_t = [1, y_{t−1}, u_t, u_{t−1}],  −1 ≤ τ_t ≤ 1 along the record

If the model is valid throughout, b = 0. If a coefficient of the system drifts, errors grow with the
regressors towards both ends of the record, with opposite signs: b ≠ 0. A model that is wrong in the
same way everywhere has a ≠ 0 and b = 0, and is not mistaken for a drift. A drift is reported only
if the F-test of b = 0 is significant and b explains enough of the errors' variance, because in long
records the test detects effects that are too small to matter.

**The assessment** for the summary is computed from a few draws and the longest training series. All
measures are in sample: parameters and functions were learned from the rows on which they are
evaluated.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import special, stats

from gpssm.core.arguments import check_arguments
from gpssm.core.metrics import fit_percent, pit, rmse
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_whole
from gpssm.data.scaler import output_spread
from gpssm.data.series import Series
from gpssm.posterior.draws import merge_chains, stored_rows
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.rollout import (
    BOUNDS,
    Box,
    Ensemble,
    Members,
    assemble,
    members_of,
    training_box,
)
from gpssm.posterior.stack import Forecaster, draws_outputs
from gpssm.posterior.validation import TRAINING

LAGS = 20
ROWS = 1000  # maximum number of rows of a series, from the first


class Correlation(NamedTuple):
    """A portmanteau test: correlations at several lags, and their p-value."""

    correlations: Float[np.ndarray, " lags"]
    p_value: float

    @property
    def found(self) -> bool:
        """Whether the correlation is significant."""
        return self.p_value < 0.05


class Residuals(NamedTuple):
    """Residuals of a series and their tests, empty if too few outputs were observed.

    Parameters
    ----------
    series
        The rows of the series, in the user's units.
    predicted
        E[y_t | y_1, …, y_{t−1}, u_1, …, u_t].
    values
        The residuals, NaN for missing outputs.
    own
        The autocorrelation test of each output.
    inputs
        The tests of correlation with each input, by name. Their p-values are multiplied by the
        number of inputs (Bonferroni).
    """

    series: Series
    predicted: Float[np.ndarray, "T Dy"]
    values: Float[np.ndarray, "T Dy"]
    own: tuple[Correlation | None, ...]
    inputs: tuple[dict[str, Correlation], ...]

    def table(self) -> list[dict[str, Any]]:
        """The largest correlation of each test, its lag, and p, by output.

        Lag k is e_t with e_{t−k}, or with u_{t−k}. p is the probability of correlations this large
        by chance.
        """
        rows = []
        for output, autocorrelation, inputs in zip(
            self.series.outputs, self.own, self.inputs, strict=True
        ):
            tests = {} if autocorrelation is None else {"its past": (autocorrelation, 1)}
            tests |= {name: (test, -(len(test.correlations) // 2)) for name, test in inputs.items()}
            for name, (test, first) in tests.items():
                place = int(np.argmax(np.abs(test.correlations)))
                correlation = float(test.correlations[place])
                figures = {"correlation": correlation, "lag": place + first, "p": test.p_value}
                rows.append({"output": output, "with": name} | figures)
        return rows


@check_arguments
def find_residuals(
    posterior: Forecaster, index: int = -1, num_paths: int = 300, rows: int = ROWS, seed: int = 0
) -> Residuals:
    """Compute residuals of a training series, treated as a new experiment, and their tests.

    Parameters
    ----------
    posterior
        The fit.
    index
        Number of the training series.
    num_paths
        Number of paths for estimating the probabilities; residuals cannot exceed about Φ⁻¹(1 − 1/(2
        num_paths)).
    rows
        Largest number of rows, counted from the first.
    seed
        Seed of the paths.
    """
    check_whole("rows", rows, 1)
    series = posterior.dataset.experiment(index)[:rows]
    forecast = posterior.predict(series, 1, new_experiment=True, num_paths=num_paths, seed=seed)
    values = special.ndtri(pit(forecast.paths, series.y))
    past: list[Correlation | None] = []
    inputs = []
    for column in values.T:
        enough = np.isfinite(column).sum() >= 8
        pairs = zip(series.inputs, series.u.T, strict=True) if enough else ()
        tests = {name: cross_correlation(column, u) for name, u in pairs}
        past.append(autocorrelation(column) if enough else None)
        inputs.append(
            {
                name: test._replace(p_value=min(1.0, len(tests) * test.p_value))
                for name, test in tests.items()
            }
        )
    return Residuals(series, forecast.mean, values, tuple(past), tuple(inputs))


def autocorrelation(values: Float[np.ndarray, " T"], lags: int = LAGS) -> Correlation:
    """Return the autocorrelations and the Ljung–Box test, n(n+2) Σ_k r_k²/(n_k) ~ χ².

    Entries may be missing.
    """
    centred, number = _centred(values)
    lags = min(lags, max(number // 4, 1))
    products = [centred[lag:] * centred[:-lag] for lag in range(1, lags + 1)]
    counts = np.array([np.isfinite(product).sum() for product in products])
    correlations = np.array([np.nansum(product) for product in products]) / number
    used = counts > 0
    statistic = number * (number + 2) * np.sum(correlations[used] ** 2 / counts[used])
    return Correlation(correlations, float(stats.chi2.sf(statistic, used.sum())))


def cross_correlation(
    values: Float[np.ndarray, " T"], u: Float[np.ndarray, " T"], lags: int = LAGS
) -> Correlation:
    """Return the correlations of e_t with u_{t−k} and a test by regression on u_t, …, u_{t−lags}.

    Lags k run from −lags to lags. For white residuals, n R² ~ χ², with the rank of the regressors
    as degrees of freedom, however smooth the input.
    """
    centred, number = _centred(values)
    driving, _ = _centred(u)
    lags = min(lags, max(number // 4, 1))
    length = len(values)
    correlations = []
    for lag in range(-lags, lags + 1):
        later = centred[max(lag, 0) : length + min(lag, 0)]
        earlier = driving[max(-lag, 0) : length - max(lag, 0)]
        correlations.append(np.nansum(later * earlier) / number)
    past = np.stack([driving[lags - lag : length - lag] for lag in range(lags + 1)], -1)
    rows = np.isfinite(centred[lags:])
    past = past[rows] - past[rows].mean(0)
    target = centred[lags:][rows]
    target = target - target.mean()
    coefficients, _, rank, _ = np.linalg.lstsq(past, target, rcond=1e-6)
    share = target @ past @ coefficients / max(target @ target, np.finfo(float).tiny)
    p_value = stats.chi2.sf(len(target) * share, max(rank, 1))
    return Correlation(np.array(correlations), float(p_value))


def _centred(values: Float[np.ndarray, " T"]) -> tuple[Float[np.ndarray, " T"], int]:
    """Return values with mean 0 and variance 1, and their number; zeros if they do not vary."""
    centred = values - np.nanmean(values)
    spread = np.nanstd(centred)
    return centred / spread if spread > 0 else centred * 0.0, int(np.isfinite(values).sum())


class Drift(NamedTuple):
    """The test of one output: the p-value of b = 0, and the share of the variance that b
    explains."""

    p_value: float
    share: float

    @property
    def found(self) -> bool:
        """Whether the drift is significant and explains more than a tenth of the variance."""
        return self.p_value < 0.001 and self.share > 0.1


def find_drift(residuals: Residuals) -> list[Drift]:
    """Test each output; no drift is reported if too few rows were observed.

    Parameters
    ----------
    residuals
        One-step errors along a training series.
    """
    series = residuals.series
    drivers = np.hstack([_previous(series.y), series.u, _previous(series.u)])
    spread = np.nanstd(drivers, 0)
    drivers = (drivers - np.nanmean(drivers, 0)) / np.where(spread > 0, spread, 1.0)
    regressors = np.hstack([np.ones((len(series), 1)), drivers])
    late = np.linspace(-1, 1, len(series))[:, None]
    tests = []
    for errors in residuals.values.T:
        rows = np.isfinite(errors) & np.isfinite(regressors).all(1)
        constant, rank = _least_squares(regressors[rows], errors[rows])
        changing, larger_rank = _least_squares(
            np.hstack([regressors, late * regressors])[rows], errors[rows]
        )
        tests.append(_f_test(constant, changing, larger_rank - rank, int(rows.sum()) - larger_rank))
    return tests


def _previous(values: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T D"]:
    """Return the values of the previous row, NaN for the first row."""
    return np.vstack([np.full((1, values.shape[1]), np.nan), values[:-1]])


def _least_squares(
    regressors: Float[np.ndarray, "N K"], errors: Float[np.ndarray, " N"]
) -> tuple[float, int]:
    """Return the sum of squared residuals and the rank of a regression."""
    coefficients, _, rank, _ = np.linalg.lstsq(regressors, errors, rcond=1e-6)
    return float(np.sum((errors - regressors @ coefficients) ** 2)), int(rank)


def _f_test(constant: float, changing: float, added: int, freedom: int) -> Drift:
    """Return the F-test of additional coefficients, from both sums of squares."""
    gain = constant - changing
    if added < 1 or freedom < 1 or gain <= 0:
        return Drift(1.0, 0.0)
    statistic = gain / added / (changing / freedom)
    return Drift(float(stats.f.sf(statistic, added, freedom)), gain / constant)


LEAD = 10  # rows at the start of a series in which a filter converges


@dataclass(frozen=True)
class OutputSummary:
    """One output in the user's units.

    Noise levels are standard deviations: `noise` of the observation, `process_noise` of the effect
    on the output of one step's process noise. Errors are root mean squares on the same rows, of
    one-step predictions and over the steps of simulations; fits are 100 (1 − ‖y − ŷ‖ / ‖y − ȳ‖), in
    per cent. `half` and `most` are the steps after which the spread of a simulation reaches 50 and
    90 % of the spread of the data; None if it does not within the simulated steps.
    """

    name: str
    spread: float
    noise: float
    process_noise: float
    one_step_error: float
    simulation_error: float
    half: int | None
    most: int | None
    one_step_fit: float = np.nan
    simulation_fit: float = np.nan
    unit: str = ""

    @property
    def label(self) -> str:
        """The name with its unit, if it is known."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True)
class Assessment:
    """In-sample measures on the training rows.

    Parameters
    ----------
    outputs
        The measures of each output.
    horizon
        Number of steps of the simulations whose errors are given.
    widening
        Standard deviation of a simulation by step, in units of the outputs' spread.
    covered
        Share of the outputs inside the 90 % intervals of the simulations.
    nonlinear, nonlinear_change
        Shares of the variance of f(z), and of f(z) − x, at the training inputs, that the best
        linear map of z does not explain.
    novelty_tail
        Mean of B(z)/k(z, z) in the last tenth of the rows.
    left
        Share of simulations that left the known region.
    """

    outputs: tuple[OutputSummary, ...]
    horizon: int
    widening: Float[np.ndarray, "L Dy"]
    covered: float
    nonlinear: float
    nonlinear_change: float
    novelty_tail: float
    left: float


def simulation_rows(length: int) -> Int[np.ndarray, "L O"]:
    """Return the rows of simulations along a series of this length, one column per origin."""
    length = min(length, ROWS)
    steps = min(TRAINING.horizon, length // 2)
    origins = np.unique(np.linspace(0, length - steps, TRAINING.most_origins).astype(int))
    return origins + np.arange(steps)[:, None]


@in_double_precision
def assess(posterior: Posterior, residuals: Residuals | None = None, seed: int = 0) -> Assessment:
    """Compute the measures on the longest training series.

    Parameters
    ----------
    posterior
        The fit.
    residuals
        Its residuals along that series, if they have been computed.
    seed
        Seed of the simulations.
    """
    posterior = stored_rows(posterior)
    dataset = posterior.dataset
    fewer = posterior.thinned(TRAINING.num_draws)
    index = int(np.argmax([len(item) for item in dataset.scaled]))
    series = dataset.scaled[index]
    y = dataset.experiments[index].y
    states = merge_chains(fewer.draws.states[index])
    points = np.unique(np.linspace(0, len(series) - 1, 400).astype(int))
    runs = simulation_rows(len(series))
    draws = np.arange(len(states))
    starts = states[:, runs[0]]
    measured = _measure(
        members_of(fewer, draws),
        (jnp.asarray(states[:, points]), jnp.asarray(series.u[points])),
        (jnp.asarray(starts), jnp.asarray(series.u[runs])),
        jnp.asarray(np.random.default_rng(seed).normal(size=(len(runs), *starts.shape))),
        training_box(fewer, draws, BOUNDS),
    )
    f, novelty, noise, process, (means, variances, alive) = jax.tree.map(np.asarray, measured)
    # Mean and variance of y over the draws whose path is still there; over all where none is.
    there = np.where(alive.any(1, keepdims=True), alive, True)[..., None]
    mean = np.mean(means, axis=1, where=there)
    variance = np.var(means, axis=1, where=there) + np.mean(variances, axis=1, where=there)
    horizon = min(HORIZON, len(runs))
    distance = (np.abs(series.y[runs] - mean) / np.sqrt(variance))[:horizon]
    observed = ~np.isnan(distance)
    # Both kinds of errors are those of the same rows, in which a filter has settled.
    rows = runs[:horizon]
    settled = rows >= min(LEAD, len(series) // 4)
    predicted = _predicted(posterior, residuals, index)[rows][settled]
    one_step, one_step_fit = _errors(predicted, y[rows][settled])
    simulated = dataset.decode(mean[:horizon])[settled]
    simulation, simulation_fit = _errors(simulated, y[rows][settled])
    scale = np.array(dataset.scaler.output_std)
    spread = output_spread(dataset.scaled)
    widening = np.sqrt(np.mean(variance, axis=1)) / spread
    columns = (
        scale * spread,
        scale * np.sqrt(noise),
        scale * np.sqrt(process),
        one_step,
        simulation,
    )
    return Assessment(
        outputs=tuple(
            OutputSummary(
                name,
                *(float(column[j]) for column in columns),
                half=steps_until(widening[:, j], 0.5),
                most=steps_until(widening[:, j], 0.9),
                one_step_fit=float(one_step_fit[j]),
                simulation_fit=float(simulation_fit[j]),
                unit=dataset.units.get(name, ""),
            )
            for j, name in enumerate(dataset.outputs)
        ),
        horizon=horizon,
        widening=widening,
        covered=float(np.mean(distance[observed] <= 1.645)) if observed.any() else np.nan,
        **nonlinearity(f, states[:, points], series.u[points]),
        novelty_tail=float(np.mean(novelty[:, -max(len(points) // 10, 1) :])),
        left=float(np.mean(~alive[-1])),
    )


def _predicted(
    posterior: Posterior, residuals: Residuals | None, index: int
) -> Float[np.ndarray, "T Dy"]:
    """Return one-step predictions along a training series; NaN beyond the rows of the residuals."""
    y = posterior.dataset.experiments[index].y
    predicted = np.full(y.shape, np.nan)
    if draws_outputs(posterior):
        # Where only the states of the last rows are stored, the series is shorter than it was.
        if residuals is None or len(residuals.predicted) != min(len(y), ROWS):
            residuals = find_residuals(posterior, index)
        predicted[: len(residuals.predicted)] = residuals.predicted
    return predicted


def steps_until(widening: Float[np.ndarray, " L"], share: float) -> int | None:
    """Return the step at which a simulation reaches a share of the spread; None if there is
    none."""
    reached = np.flatnonzero(widening >= share)
    return int(reached[0]) + 1 if len(reached) else None


def _run(
    ensemble: Ensemble,
    start: Float[Array, "S O Dx"],
    u: Float[Array, "L O Du"],
    noises: Array,
    box: Box,
) -> tuple[Array, Array, Array]:
    """Simulate from each start with process noise; a path that leaves the box stays where it was.

    Returns
    -------
    mean, variance : array (L, S, O, Dy)
        Moments of y given x.
    alive : array (L, S, O)
        Whether paths are still in the box.
    """
    box = box.grown(start, ensemble.process_variance)

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[Any, Any]:
        (x, alive), (row, noise) = carry, inputs
        moments = ensemble.moments(x, jnp.broadcast_to(row, (x.shape[0], *row.shape)))
        following = moments.mean + jnp.sqrt(moments.variance) * noise
        alive &= box.away(following, ensemble.process_variance) <= box.bounds
        x = jnp.where(alive[..., None], following, x)
        return (x, alive), (*_emit(ensemble, x), alive)

    return jax.lax.scan(step, (start, jnp.ones(start.shape[:2], bool)), (u, noises))[1]


# Optimising what runs once would take longer than it could save. Equinox passes the option on, but
# has no type for it.
@eqx.filter_jit(
    compiler_options={"xla_backend_optimization_level": 0}  # pyright: ignore[reportCallIssue]
)
def _measure(
    members: Members,
    inputs: tuple[Float[Array, "S N Dx"], Float[Array, "N Du"]],
    starts: tuple[Float[Array, "S O Dx"], Float[Array, "L O Du"]],
    noises: Float[Array, "L S O Dx"],
    box: Box,
) -> tuple[Any, ...]:
    """Compute all quantities in one pass over draws and rows, in scaled units.

    Returns
    -------
    f : array (S, N, Dx)
        The function at the inputs.
    novelty : array (S, N)
        B(z)/k(z, z) there.
    noise, process : array (Dy,)
        Mean variances of y given x, and of the contribution of one step's process noise to y.
    runs : tuple of arrays
        Simulations from the starts.
    """
    x, u = inputs
    ensemble = assemble(*members, u.shape[1])
    moments = ensemble.moments(x, jnp.broadcast_to(u, (x.shape[0], *u.shape)))
    reach = jnp.sqrt(ensemble.process_variance)[:, :, None] * jnp.eye(x.shape[2])[None]

    def effect(along: Float[Array, "S Dx"]) -> Float[Array, "S N Dy"]:
        ends = (_emit(ensemble, x + sign * along[:, None])[0] for sign in (1, -1))
        return jnp.square(jnp.subtract(*ends) / 2)

    process = sum((effect(reach[:, d]) for d in range(x.shape[2])), jnp.zeros(()))
    noise = _emit(ensemble, x)[1]
    variances = (jnp.mean(variance, axis=(0, 1)) for variance in (noise, process))
    return moments.mean, moments.novelty, *variances, _run(ensemble, *starts, noises, box)


def _emit(
    ensemble: Ensemble, x: Float[Array, "S N Dx"]
) -> tuple[Float[Array, "S N Dy"], Float[Array, "S N Dy"]]:
    """Return the mean and variance of y given x, by the likelihood of each draw."""
    return eqx.filter_vmap(lambda likelihood, x: likelihood.moments(x))(ensemble.likelihood, x)


def nonlinearity(
    f: Float[np.ndarray, "S N Dx"], x: Float[np.ndarray, "S N Dx"], u: Float[np.ndarray, "N Du"]
) -> dict[str, float]:
    """Return the shares of the variances of f and of f − x that [x; u; 1] does not explain
    linearly."""
    rest = 0.0
    # Below it there are only rounding errors: the states' variance is near one.
    total = change = 1e-12
    for values, states in zip(f, x, strict=True):
        features = np.hstack([states, u, np.ones((len(u), 1))])
        weights = np.linalg.lstsq(features, values, rcond=None)[0]
        rest += np.var(values - features @ weights, axis=0).sum()
        total += np.var(values, axis=0).sum()
        change += np.var(values - states, axis=0).sum()
    return {"nonlinear": float(rest / total), "nonlinear_change": float(rest / change)}


def _errors(
    mean: Float[np.ndarray, "N Dy"], y: Float[np.ndarray, "N Dy"]
) -> tuple[Float[np.ndarray, " Dy"], Float[np.ndarray, " Dy"]]:
    """Return the root mean square error and fit of each output; NaN if there are no rows to
    compare."""
    errors = []
    for guess, actual in zip(mean.T, y.T, strict=True):
        both = np.isfinite(guess - actual)
        pair = (guess[both], actual[both])
        errors.append((rmse(*pair), fit_percent(*pair)) if both.any() else (np.nan, np.nan))
    return tuple(np.array(errors, float).T)  # pyright: ignore[reportReturnType]
