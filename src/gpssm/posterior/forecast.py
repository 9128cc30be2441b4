"""A forecast: paths of future outputs in the user's units, and statistics of them.

The paths are draws from p(y_{T+1:T+H} | data), with one draw of the function per path. All results
are statistics over paths; none assumes a Gaussian distribution. `rollout.py` runs the paths; this
file chooses the draws, start states and inputs, and converts the results to the user's units.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gpssm.core import metrics
from gpssm.core.arguments import check_arguments
from gpssm.core.messages import warn
from gpssm.core.runtime import check_memory, in_double_precision, jit
from gpssm.core.table import card
from gpssm.core.text import (
    check_shares,
    count,
    in_line,
    is_real,
    percent,
    printable,
)
from gpssm.data.clock import Clock
from gpssm.data.columns import align_columns
from gpssm.data.series import Series
from gpssm.data.times import Times
from gpssm.posterior import checks
from gpssm.posterior.calibration import Calibration
from gpssm.posterior.draws import check_states, merge_chains, past_inputs, take_draws
from gpssm.posterior.filtering import draw_start, forecast_scale
from gpssm.posterior.rollout import (
    BOUNDS,
    MANY,
    Emission,
    Members,
    Pair,
    Paths,
    emissions,
    members_of,
    path_keys,
    plan_paths,
    simulate_paths,
    split_inputs,
)

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

HORIZON = 30  # steps, if neither the horizon nor inputs are given
LEVELS = (0.5, 0.9)
BLOCK = 32  # horizons are rounded up to multiples of it, so that most of them are one program


@dataclass(frozen=True, eq=False)
class ForecastDiagnostics:
    """Diagnostics of a forecast at each step.

    Parameters
    ----------
    left_by_step : array (H,)
        Share of the paths that had left the known region by each step; or that were not finite, if
        paths are not replaced.
    novelty : array (H,)
        Mean of B(z)/k(z, z) over the remaining paths: the share of the prior variance of f that the
        inducing points do not explain, 0 where f is known and 1 far from all data.
    replaced
        Whether paths that left were replaced by other paths or restarted.
    u : array (H, Du)
        Delayed inputs in the user's units.
    input_range
        Lowest and highest value of each input in training.
    """

    left_by_step: Float[np.ndarray, " H"]
    novelty: Float[np.ndarray, " H"]
    replaced: bool = True
    u: Float[np.ndarray, "H Du"] | None = None
    input_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        trusted = f"{self.trusted.sum()} of {count(len(self.trusted), 'step')} trusted"
        return f"ForecastDiagnostics({percent(self.share_left)} of the paths left, {trusted})"

    @property
    def share_left(self) -> float:
        """The share of the paths that left before the last step."""
        return float(self.left_by_step[-1])

    @property
    def excursion(self) -> Float[np.ndarray, "H Du"]:
        """How far each input is outside its training range, in units of the width of that range; 0
        inside."""
        if self.u is None or not self.input_range:
            return np.zeros((len(self.left_by_step), 0))
        low, high = np.reshape(list(self.input_range.values()), (-1, 2)).T
        distance = np.maximum(np.maximum(low - self.u, self.u - high), 0.0)
        width = np.maximum(high - low, 1e-9 * np.maximum(np.abs(low), np.abs(high)))
        return distance / np.maximum(width, np.finfo(float).tiny)

    @property
    def trusted(self) -> Bool[np.ndarray, " H"]:
        """Whether, at each step, inputs are in their training range and at most 5 % of the paths
        have left."""
        inside = (self.excursion <= checks.SLIGHT_EXCURSION).all(axis=1)
        return inside & (self.left_by_step <= checks.SHARE_LEFT)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the forecast, one sentence each; empty if there are none."""
        results = (checks.check_paths(self), *checks.check_inputs(self))
        return tuple(check.sentence for check in results if check.level != "good")


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """S paths of H steps of the outputs, (S, H, Dy), in the user's units.

        forecast = posterior.forecast(u=future)
        forecast.mean, forecast.interval(0.9)
        forecast.plot(actual=test)

    Parameters
    ----------
    paths : array (S, H, Dy)
        The paths.
    outputs, inputs
        Names of the columns.
    start
        Row number of the first step, counted from the first row of the preceding series.
    u : array (H, Du)
        The inputs of the forecast.
    dt, clock
        Sampling time, and times of the rows.
    moments, moments_ahead : pair of arrays (S, H, Dy), optional
        Mean and variance of y_t given the state of the path, and given its previous state, for
        smoother density estimates.
    diagnostics
        Diagnostics of the forecast.
    units
        Units of columns by name.
    scale : array (Dy,), optional
        Standard deviation of each training output, the unit of scores for ranking.
    """

    paths: Float[np.ndarray, "S H Dy"]
    outputs: tuple[str, ...]
    start: int
    u: Float[np.ndarray, "H Du"]
    inputs: tuple[str, ...] = ()
    dt: float | None = None
    moments: Pair | None = None
    moments_ahead: Pair | None = None
    diagnostics: ForecastDiagnostics | None = None
    clock: Clock | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    scale: Float[np.ndarray, " Dy"] | None = None

    @classmethod
    def of_paths(
        cls,
        paths: Paths,
        posterior: "Posterior",
        bounds: float | None,
        u: Float[np.ndarray, "H Du"],
        acting: Float[np.ndarray, "H Du"],
        start: int,
        dt: float | None,
        clock: Clock | None,
    ) -> Self:
        """Create the forecast from simulated paths, in the user's units.

        Parameters
        ----------
        paths
            Paths of at least H steps.
        posterior
            The posterior of the paths.
        bounds
            The bounds of the known region.
        u
            The inputs at the rows where they are set, in the user's units.
        acting
            The delayed inputs in the model's units.
        start, dt, clock
            As in `Forecast`.
        """
        dataset = posterior.dataset
        # NumPy needs no compilation for a new horizon.
        emission, share_left, novelty = jax.tree.map(lambda part: np.asarray(part)[: len(u)], paths)
        emission = jax.tree.map(
            lambda part: np.ascontiguousarray(np.moveaxis(part, 0, 1)), emission
        )
        outputs, moments, ahead = emission.in_units(dataset)
        # The range of the inputs that `learn` has processed is not known.
        input_range = {} if posterior.learned else dataset.input_range
        diagnostics = ForecastDiagnostics(
            share_left, novelty, bounds is not None, dataset.decode_inputs(acting), input_range
        )
        return cls(
            paths=outputs,
            u=u,
            moments=moments,
            moments_ahead=ahead,
            diagnostics=diagnostics,
            outputs=dataset.outputs,
            inputs=dataset.inputs,
            units=dataset.units,
            scale=dataset.output_spread,
            start=start,
            dt=dt,
            clock=clock,
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join the paths of forecasts of the same steps into a mixture, weighted by numbers of
        paths."""
        sizes = [len(part.paths) for part in parts]
        joint = parts[0]._each(lambda *leaves: np.concatenate(leaves), *parts[1:])
        shown = [part.diagnostics for part in parts if part.diagnostics is not None]
        if len(shown) < len(parts):
            return replace(joint, diagnostics=None)
        means = {
            name: np.average([getattr(item, name) for item in shown], axis=0, weights=sizes)
            for name in ("left_by_step", "novelty")
        }
        replaced = all(item.replaced for item in shown)
        return replace(joint, diagnostics=replace(shown[0], replaced=replaced, **means))

    def thinned(self, num_paths: int) -> Self:
        """Return the forecast with this number of its paths, evenly spaced."""
        chosen = np.arange(num_paths) * len(self.paths) // num_paths
        return self._each(lambda leaf: leaf[chosen])

    def _each(self, function: Callable[..., np.ndarray], *others: Self) -> Self:
        """Return the forecast with a function applied to every array of paths."""
        arrays = ((part.paths, part.moments, part.moments_ahead) for part in (self, *others))
        paths, moments, ahead = jax.tree.map(function, *arrays)
        return replace(self, paths=paths, moments=moments, moments_ahead=ahead)

    @property
    def horizon(self) -> int:
        """H, the number of steps."""
        return self.paths.shape[1]

    @property
    def steps(self) -> np.ndarray:
        """The row numbers (H,) of the steps, counted from the first row of the preceding series."""
        return self.start + np.arange(self.horizon)

    @property
    def axis(self) -> Clock | None:
        """The clock, or a clock that counts rows by `dt`; None if neither is known."""
        return self.clock or (None if self.dt is None else Clock(0.0, self.dt))

    @property
    def time(self) -> np.ndarray:
        """The times of the steps (H,): dates (datetime64[ns], UTC), numbers, or row numbers."""
        return self.steps if self.axis is None else self.axis.times(self.horizon, self.start)

    @property
    def trusted(self) -> Bool[np.ndarray, " H"]:
        """Whether each step is in the known region; see `ForecastDiagnostics.trusted`."""
        return self.diagnostics.trusted if self.diagnostics else np.ones(self.horizon, bool)

    @property
    def mean(self) -> Float[np.ndarray, "H Dy"]:
        """The mean over paths."""
        return np.mean(self.paths, axis=0)

    @property
    def std(self) -> Float[np.ndarray, "H Dy"]:
        """The standard deviation over paths."""
        return np.std(self.paths, axis=0)

    @property
    def median(self) -> Float[np.ndarray, "H Dy"]:
        """The median over paths."""
        return self.quantile(0.5)

    def quantile(self, q: float | Sequence[float]) -> Float[np.ndarray, "*q H Dy"]:
        """Return quantiles over paths: (H, Dy) for one probability, (len(q), H, Dy) for several.

        The quantile of probability q is the q (S + 1)-th smallest path, interpolated, as in
        `gpssm.metrics.central_interval`.
        """
        shares = check_shares("a quantile's probability", q, ends=True)
        return np.quantile(
            self.paths, shares[0] if np.ndim(q) == 0 else shares, axis=0, method="weibull"
        )

    def interval(
        self, level: float = 0.9
    ) -> tuple[Float[np.ndarray, "H Dy"], Float[np.ndarray, "H Dy"]]:
        """Return the central interval (low, high), each (H, Dy), with the share `level` of the
        paths."""
        return metrics.central_interval(self.paths, level)

    @check_arguments
    def to_dataframe(self, levels: Sequence[float] = LEVELS) -> Any:
        """Return a pandas DataFrame with one row per step: mean, std, and limits of intervals.

        Its index continues the times of the training data, or counts rows (`step`) if there are
        none. The last column, `trusted`, tells whether the step is in the known region.

        Parameters
        ----------
        levels
            Levels of the intervals.
        """
        import pandas

        shares = np.array(levels)
        limits = sorted({0.5, *((1 - shares) / 2), *((1 + shares) / 2)})
        names = ["mean", "std", *(f"{100 * limit:g}%" for limit in limits)]
        values = np.concatenate([self.mean[None], self.std[None], self.quantile(limits)])
        columns: dict[str, Any] = {}
        index = pandas.Index(self.steps, name="step")
        if self.clock is not None and self.clock.name is not None:
            index = self.clock.index(self.horizon, self.start)
        elif self.axis is not None:
            columns["time"] = self.time
        for j, output in enumerate(self.outputs):
            columns |= {f"{output} {name}": values[k, :, j] for k, name in enumerate(names)}
        if self.diagnostics:
            columns["trusted"] = self.trusted
        return pandas.DataFrame(columns, index=index)

    def to_xarray(self) -> Any:
        """Return an xarray Dataset with variables (path, time) for outputs and (time) for inputs.

        Times are dates in UTC, numbers, or, if no times are known, row numbers named `step`;
        `trusted` is a coordinate. Units are attributes of the variables.
        """
        import xarray

        time = "step" if self.axis is None else "time"
        values = dict(zip(self.outputs, np.moveaxis(self.paths, -1, 0), strict=True))
        inputs = dict(zip(self.inputs, self.u.T, strict=True))
        dimensions = dict.fromkeys(inputs, (time,)) | dict.fromkeys(values, ("path", time))
        variables = {
            name: (dimensions[name], column, {"units": self.units.get(name, "")})
            for name, column in (inputs | values).items()
        }
        return xarray.Dataset(variables, {time: self.time, "trusted": (time, self.trusted)})

    @check_arguments
    @check_arguments
    def score(self, actual: Any, levels: Sequence[float] = metrics.LEVELS) -> dict[str, Any]:
        """Score the paths against the actual outputs; see `gpssm.metrics.score`.

        Scores in the user's units are averages over outputs, which mean little if the outputs have
        different units. `nrmse` and `ncrps` are in standard deviations of the training outputs, and
        `score_outputs` scores each output separately.

        Parameters
        ----------
        actual
            The actual outputs; see `rows_of`.
        levels
            Levels of the intervals whose coverage is computed.
        """
        return metrics.score(self.paths, self.rows_of(actual), **self._judged_by(levels))

    @check_arguments
    def score_outputs(
        self, actual: Any, levels: Sequence[float] = metrics.LEVELS
    ) -> dict[str, dict[str, Any]]:
        """Return the scores of each output by name, in its units; unobserved outputs are left
        out."""
        return metrics.score_outputs(
            self.paths, self.rows_of(actual), self.outputs, **self._judged_by(levels)
        )

    def _judged_by(self, levels: Sequence[float]) -> dict[str, Any]:
        mixture = self.moments_ahead or self.moments
        return {
            "levels": levels,
            "moments": self.moments,
            "mixture": mixture,
            "scale": self.scale,
        }

    def plot(
        self,
        actual: Any = None,
        history: Any = None,
        levels: Sequence[float] = LEVELS,
    ) -> Any:
        """Plot intervals around the median, one panel per output; requires matplotlib.

        Parameters
        ----------
        actual
            The actual outputs, in black: a Series or an array of at least H rows.
        history
            The previous outputs, in grey: a Series or an array that ends where the forecast starts,
            of which the last 2 H rows are shown.
        levels
            Levels of the intervals.
        """
        from gpssm.plots.forecasts import plot_forecast

        return plot_forecast(self, actual, history, levels)

    def rows_of(self, actual: Any) -> Float[np.ndarray, "H Dy"]:
        """Return the rows at the times of the steps if both have times, otherwise the first H
        rows."""
        values = align_columns(actual, self.outputs, "y")
        times = _times_of(actual)
        clock = self.clock
        axis = actual.axis if isinstance(actual, Series) else None
        if clock is not None and axis is not None and axis.dates == clock.dates:
            clock.check_step(axis, len(values))
        if times is not None and clock and clock.name is not None and times.dates == clock.dates:
            return values[self._rows_at(times)]
        if len(values) < self.horizon:
            raise ValueError(
                f"the forecast has {self.horizon} steps and needs the same number of actual rows; "
                f"got {len(values)}. Cut the forecast, forecast[:{len(values)}], or pass more rows"
            )
        return values[: self.horizon]

    def _rows_at(self, times: Times) -> Int[np.ndarray, " H"]:
        """Return the numbers of the rows at the times of the steps; raise if a step has no row."""
        assert self.clock is not None
        steps = self.clock.times(self.horizon, self.start).astype(times.ticks.dtype)
        middles = times.ticks[:-1] + np.diff(times.ticks) / 2
        rows = np.searchsorted(middles, steps)
        missing = 2 * np.abs(times.ticks[rows] - steps) > self.clock.step
        if missing.any():
            first = int(np.argmax(missing))
            last = self.start + self.horizon - 1
            raise ValueError(
                f"the forecast is of {self.clock.show(self.start)} to {self.clock.show(last)}, "
                f"but the rows, of {times.show(0)} to {times.show(-1)}, have no entry at "
                f"{self.clock.show(self.start + first)}. Pass the rows at the times of the "
                "forecast, cut it, forecast[a:b], or pass an array to match by position"
            )
        return rows

    def __getitem__(self, rows: slice) -> Self:
        if not isinstance(rows, slice):
            raise TypeError(
                f"a Forecast supports slices, forecast[a:b]; got {rows!r}. For a single step use "
                ".paths[:, t]"
            )
        first, stop, step = rows.indices(self.horizon)
        if step != 1 or first >= stop:
            raise ValueError(
                f"a slice of the {self.horizon} steps must be contiguous and not empty; got {rows}"
            )
        steps = slice(first, stop)
        diagnostics = self.diagnostics
        if diagnostics is not None:
            diagnostics = replace(
                diagnostics,
                left_by_step=diagnostics.left_by_step[steps],
                novelty=diagnostics.novelty[steps],
                u=None if diagnostics.u is None else diagnostics.u[steps],
            )
        part = self._each(lambda leaf: leaf[:, steps])
        u = self.u[steps]
        return replace(part, start=self.start + first, u=u, diagnostics=diagnostics)

    def __repr__(self) -> str:
        size = f"{self.horizon} steps from row {self.start}, {len(self.paths)} paths"
        return f"{type(self).__name__}({size}, outputs={self.outputs})"

    def _repr_html_(self) -> str:
        return card(repr(self), tables={"": self.to_dataframe((0.9,))}, notes=self._notes)

    def __str__(self) -> str:
        table = self.to_dataframe((0.9,)).to_string(max_rows=12, float_format="{:.4g}".format)
        lines = [repr(self), table, *(f"note: {in_line(note)}" for note in self._notes)]
        return printable("\n".join(lines))

    @property
    def _notes(self) -> tuple[str, ...]:
        return self.diagnostics.notes if self.diagnostics else ()


def _times_of(rows: Any) -> Times | None:
    """Return the times of a Series with a clock or a DataFrame with dates, otherwise None."""
    index = getattr(rows, "index", None)
    if isinstance(rows, Series):
        named = rows.clock is not None and rows.clock.name is not None
        return Times.of(rows.clock.index(len(rows))) if rows.clock and named else None
    return Times.of(index) if type(index).__name__ == "DatetimeIndex" else None


@check_arguments
@in_double_precision
def forecast(
    posterior: "Posterior",
    horizon: int | None = None,
    u: Any = None,
    *,
    num_paths: int = 1000,
    seed: int = 0,
    noise: bool = True,
    index: int = -1,
    bounds: float | None = BOUNDS,
    calibrated: bool | None = None,
) -> Forecast:
    """Forecast the outputs after the end of the data.

        forecast = posterior.forecast(u=future_inputs)

    Parameters
    ----------
    posterior
        The posterior.
    horizon
        Number of steps; by default the number of rows of `u`, or 30 if there are no inputs.
    u
        Inputs in the user's units, one row per step: an array, a DataFrame (columns by name) or a
        Series. If inputs are delayed, pass them at the rows where they are set; the last rows,
        which act after the horizon, may be left out.
    num_paths
        Number of paths, spread evenly over the draws of all chains; each path follows one draw.
    seed
        Seed of the paths.
    noise
        Whether paths include observation noise; without it, they are E[y_t | x_{t+1}].
    index
        The training series that the forecast continues; no effect after `condition`.
    bounds
        Width of the known region, a box around the training states of each draw, in multiples of
        their range. A path that leaves it is replaced by one inside. None for no box. See
        `Forecast.diagnostics`.
    calibrated
        Whether to widen paths by the factors of `calibrate`; None does so if the posterior is
        calibrated.
    """
    dataset, current = posterior.dataset, posterior.current
    series = dataset.experiment(index)
    horizon = HORIZON if horizon is None and u is None else horizon
    inputs, encoded = dataset.inputs_ahead(u, horizon, past_inputs(posterior, index))
    check_paths(num_paths, bounds, len(inputs) * (series.output_dim + posterior.model.state_dim))
    clock, start = (series.axis, len(series)) if current is None else (current.clock, current.rows)
    if clock is not None and (complaint := clock.complaint("the inputs", u, start)):
        warn(complaint + "They are used for the steps ahead")
    plan = plan_paths(posterior, num_paths, seed, bounds)
    scale = forecast_scale(current, plan.draws)
    padded = np.pad(encoded, ((0, -len(inputs) % BLOCK), (0, 0)), mode="edge")
    within, excess = split_inputs(posterior, padded)
    paths = simulate_paths(
        plan,
        scale,
        start_states(posterior, index, plan.draws, plan.keys, scale),
        jnp.asarray(within),
        jnp.asarray(excess),
        noise,
    )
    result = Forecast.of_paths(
        paths, posterior, bounds, inputs, encoded, start=start, dt=series.dt, clock=clock
    )
    warn_of_paths(result)
    return widened(result, posterior.calibration, 1 + np.arange(result.horizon), calibrated)


def check_paths(num_paths: int, bounds: Any, entries: int) -> None:
    """Check the memory for paths of this number of entries, and the width of the box."""
    # A forecast has five arrays of paths in memory: outputs, and two pairs of moments.
    check_memory(f"num_paths={num_paths}", 5 * 8 * entries * int(num_paths))
    if bounds is not None and not (is_real(bounds) and 0 < bounds <= 1e300):
        raise ValueError(f"bounds must be a positive number or None; got {bounds!r}")


def warn_of_paths(forecast: Forecast) -> None:
    """Warn if most paths of a forecast have left the known region or are not finite."""
    shown = forecast.diagnostics
    # An input that leaves its range by more than the width of the range is worth a warning too.
    if shown and (shown.share_left > MANY or (shown.excursion > 1).any()):
        warn(" ".join(shown.notes))
    elif not np.isfinite(forecast.paths).all():
        share = percent(1 - np.isfinite(forecast.paths).mean())
        warn(f"{share} of the values of this forecast are not finite. Leave bounds at a number")


def widened(
    forecast: Forecast,
    calibration: Calibration | None,
    steps: Int[np.ndarray, " H"],
    calibrated: bool | None,
) -> Forecast:
    """Return the forecast widened by a calibration.

    Parameters
    ----------
    forecast
        The forecast of the model.
    calibration
        The calibration.
    steps
        Number of steps ahead of each row.
    calibrated
        Whether to widen; None does so if there is a calibration.
    """
    if not (calibrated is None or isinstance(calibrated, bool)):
        raise TypeError(f"calibrated is True, False or None; got {calibrated!r}")
    if calibrated and calibration is None:
        raise ValueError(
            "calibrated=True needs a calibrated posterior: posterior = posterior.calibrate()"
        )
    if calibration is None or calibrated is False:
        return forecast
    factors = calibration.at(steps)
    centre = forecast.mean

    def stretch(values: Float[np.ndarray, "S H Dy"]) -> Float[np.ndarray, "S H Dy"]:
        return centre + factors * (values - centre)

    def stretch_mixture(pair: Pair | None) -> Pair | None:
        return pair and (stretch(pair[0]), factors**2 * pair[1])

    return replace(
        forecast,
        paths=stretch(forecast.paths),
        moments=stretch_mixture(forecast.moments),
        moments_ahead=stretch_mixture(forecast.moments_ahead),
    )


def start_states(
    posterior: "Posterior",
    index: int,
    draws: Int[np.ndarray, " S"],
    keys: PRNGKeyArray,
    scale: Float[Array, " S"],
) -> Float[Array, "S P Dx"]:
    """Return the start of paths with keys (S, P): particles of each draw's cloud, by weight.

    The variances of a Gaussian cloud are scaled. Without a cloud, paths start at the last state of
    each draw in training series `index`.
    """
    if posterior.current is None:
        last = merge_chains(posterior.draws.states[index])[draws, -1]
        return jnp.repeat(jnp.asarray(last)[:, None], keys.shape[1], axis=1)
    return draw_start(keys, take_draws(posterior.current.state, draws), scale)


@check_arguments
@in_double_precision
def smooth(posterior: "Posterior", index: int = -1, noise: bool = False, seed: int = 0) -> Forecast:
    """Return the smoothed outputs of a training series: paths (S, T, Dy), one per draw.

        posterior.smooth().interval(0.9)

    Parameters
    ----------
    posterior
        The posterior, with the states of all rows.
    index
        The number of the training series.
    noise
        Whether to add observation noise to the outputs.
    seed
        Seed of the noise.
    """
    check_states(posterior, "smooth")
    dataset = posterior.dataset
    series = dataset.experiment(index)
    states = merge_chains(posterior.draws.states[index])
    draws = np.arange(len(states))
    keys = path_keys(jax.random.key(seed, impl="threefry2x32"), draws, len(series))
    emission = _emit(members_of(posterior, draws), keys, jnp.asarray(states[:, 1:]), noise)
    paths, moments, _ = emission.in_units(dataset)
    return Forecast(
        paths,
        series.outputs,
        0,
        series.u,
        series.inputs,
        series.dt,
        moments,
        clock=series.axis,
        units=series.units,
        scale=dataset.output_spread,
    )


def outputs_of(posterior: "Posterior", index: int = -1) -> Float[np.ndarray, "chain draw T Dy"]:
    """Return E[y_t | x_{t+1}] for each draw of a training series, in the user's units."""
    paths = smooth(posterior, index).paths
    return paths.reshape(posterior.num_chains, posterior.num_draws, *paths.shape[1:])


@jit
def _emit(members: Members, keys: PRNGKeyArray, x: Float[Array, "S T Dx"], noise: bool) -> Emission:
    likelihoods = eqx.filter_vmap(
        lambda leaves: members.model.with_leaves(leaves).likelihood, axis_size=x.shape[0]
    )(members.leaves)
    return emissions(likelihoods, keys, x, noise)
