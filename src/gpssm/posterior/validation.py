"""Rolling-origin evaluation: forecasts of held-out rows from many origins.

    origin r: functions and parameters as fitted, the state given rows 0..r−1,
              a forecast of rows r..r+horizon−1

A forecast uses the inputs of its rows, but none of their outputs. The choice of starts, `backtest`,
`select`, `stack`, `calibrate`, the choice of forgetting, the comparison with baselines and the
benchmark all use `rolling_forecasts`, with different numbers of origins, paths and draws: each has
a `RollingOrigin` below.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from jaxtyping import Float

from gpssm.data.series import Series
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.forecast import HORIZON, Forecast

if TYPE_CHECKING:
    from gpssm.posterior.stack import Forecaster

HELD_OUT = 0.25  # fraction of a series that each fold holds out
FEWEST_ROWS = 15  # held-out rows below which a series is not judged
# Forecasts from neighbouring origins share rows and err together: this number of rows counts as one
# independent entry.
DEPENDENT_ROWS = 10


@dataclass(frozen=True)
class RollingOrigin:
    """How rows are forecast from many origins.

    Parameters
    ----------
    horizon : int
        Steps of a forecast, at most.
    step : int
        Rows between two origins, at least.
    most_origins : int
        Origins are spread further apart where there would be more of them.
    simulated : int
        Steps to which forecasts continue beyond the horizon, at most, to be judged as simulations.
    num_paths : int
        Paths of a forecast.
    num_draws : int
        Draws that are filtered along the rows, at most, evenly spaced over the posterior's.
        Filtering costs draws × particles per row.
    same_seed : bool
        Whether all origins draw the same random numbers. Different ones make the Monte Carlo
        errors of the forecasts cancel in means over origins.
    cut : bool
        Whether forecasts near the end of the rows are cut there, so that the horizon may be as long
        as all rows.
    """

    horizon: int = HORIZON
    step: int = 10
    most_origins: int = sys.maxsize
    simulated: int = 0
    num_paths: int = 1000
    num_draws: int = 200
    same_seed: bool = False
    cut: bool = False

    def within(self, rows: int, parts: int = 2) -> Self:
        """The same with a horizon of at most 1 / `parts` of the rows; of all rows if it is cut."""
        longest = rows if self.cut else rows // parts
        return replace(self, horizon=max(1, min(self.horizon, longest)))

    def spacing(self, rows: int) -> int:
        """Return the distance between origins for this number of rows."""
        return max(self.step, -(-rows // self.most_origins))

    def origins(self, rows: int, first: int = 0) -> range:
        """Row numbers from `first` on that have a horizon of rows from them on, or any if cut."""
        if self.cut:
            return range(first, rows - 1, self.spacing(rows - first))
        stop = rows - self.horizon + 1
        return range(first, stop, self.spacing(stop - first))


LONGEST_SIMULATION = 400  # steps of a forecast that is judged as a simulation, at most
BACKTEST = RollingOrigin()  # also of `select`
# For many candidates with short chains; simulations matter as much as forecasts.
STARTS = RollingOrigin(most_origins=24, simulated=LONGEST_SIMULATION, num_paths=96, same_seed=True)
# Density estimates for log scores need more paths.
STACKING = replace(STARTS, simulated=0, num_paths=200, num_draws=100)
# Every step ahead is calibrated, from all origins in a small number of rows.
CALIBRATION = RollingOrigin(
    horizon=256, step=2, most_origins=40, num_paths=300, num_draws=100, cut=True
)
# For each forgetting factor, within the training rows.
FORGETTING = RollingOrigin(step=1, most_origins=10, num_paths=200, num_draws=40)
# For simulations of the training rows, from the states of each draw.
TRAINING = RollingOrigin(horizon=120, most_origins=8, num_draws=50)
# For the table of every fit; the first row is one more origin.
BASELINES = RollingOrigin(most_origins=19, num_paths=500, num_draws=100)
BENCHMARK = RollingOrigin(num_draws=250, same_seed=True)
# Filtering the weights stores their covariance for each draw.
BENCHMARK_LEARNING = replace(BENCHMARK, num_draws=100)


class Fold(NamedTuple):
    """A split of training series into rows to learn from and rows to forecast.

    Parameters
    ----------
    series : list of Series
        Rows to learn from.
    rest : dict of int to Series
        Held-out rows, by the number of their series.
    before : bool
        Whether the held-out rows come before the others, as a separate experiment.
    """

    series: list[Series]
    rest: dict[int, Series]
    before: bool

    @property
    def rows(self) -> int:
        """Number of rows to learn from."""
        return sum(len(item) for item in self.series)


class RollingForecast(NamedTuple):
    """A forecast from one origin, with the actual rows.

    Parameters
    ----------
    origin : int
        Number of the first forecast row.
    forecast : Forecast
        The forecast of `rows`.
    rows : Series
        The rows from the origin on.
    horizon : int
        Number of steps that are scored as a rolling forecast; the forecast may be longer.
    early : bool
        Whether the origin lies in the first half of the rows, so that the whole forecast can be
        scored as a simulation.
    spacing : int
        Rows between two origins.
    """

    origin: int
    forecast: Forecast
    rows: Series
    horizon: int
    early: bool
    spacing: int


class Errors(NamedTuple):
    """Errors of all paths of a forecast, in standard deviations of the outputs."""

    values: Float[np.ndarray, "S H Dy"]
    horizon: int
    early: bool


def make_folds(series: Sequence[Series]) -> list[Fold]:
    """Hold out the last rows of the three longest series, then the first rows.

    Parameters
    ----------
    series : sequence of Series
        Training data.

    Returns
    -------
    list of Fold
        Two folds of equal lengths, so that fits to them share compiled programs; empty where no
        series is long enough.
    """
    counts = [int(HELD_OUT * len(item)) for item in series]
    counts = [count if count >= FEWEST_ROWS else 0 for count in counts]
    longest = sorted(range(len(series)), key=lambda index: -counts[index])[:3]
    judged = sorted(index for index in longest if counts[index])
    if not judged:
        return []
    stops = [len(item) - count for item, count in zip(series, counts, strict=True)]
    last = {index: series[index][stops[index] :] for index in judged}
    first = {index: series[index][: counts[index]] for index in judged}
    return [
        Fold([item[:stop] for item, stop in zip(series, stops, strict=True)], last, before=False),
        Fold(
            [item[count:] for item, count in zip(series, counts, strict=True)], first, before=True
        ),
    ]


def outputs_spread(series: Sequence[Series]) -> Float[np.ndarray, " Dy"]:
    """Return the standard deviation of each output over all series, the unit of errors; 1 if
    constant.
    """
    spread = np.nanstd(np.concatenate([item.y for item in series]), axis=0)
    return np.where(spread > 0, spread, 1.0)


def settling_rows(rows: int, new_experiment: bool) -> int:
    """Return the number of rows before the first origin, in which the filter finds the state."""
    return min(20, rows // 3) if new_experiment else 0


def rolling_forecasts(
    posteriors: Iterable["Forecaster"],
    rows: Series,
    origins: Sequence[int],
    scheme: RollingOrigin,
    *,
    steps: int | None = None,
    seed: int = 0,
    index: int = -1,
    quiet: bool = True,
) -> Iterator[RollingForecast]:
    """Forecasts of the rows from each origin on.

    Parameters
    ----------
    posteriors : iterable of Posterior or Stack
        The posterior at each origin, such as `condition_at(posterior, rows, origins)` or
        `extended(posterior, rows, origins, extend)`.
    rows : Series
        The rows to forecast, in the user's units.
    origins : sequence of int
        Numbers of the first row of each forecast.
    scheme : RollingOrigin
        Horizon, number of paths, and whether all origins have the same random numbers.
    steps : int, optional
        Steps of each forecast, the horizon by default. Where fewer rows remain, the forecast is
        run over as many steps and cut: all origins share one compiled program.
    seed : int
        Seed of the paths.
    index : int
        The training series that the rows follow.
    quiet : bool
        Whether warnings are suppressed: they are for users, not for forecasts that are judged.

    Yields
    ------
    RollingForecast
    """
    steps = steps or scheme.horizon
    middle = (len(rows) + origins[0]) // 2
    spacing = origins[1] - origins[0] if len(origins) > 1 else scheme.step
    for number, (origin, posterior) in enumerate(zip(origins, posteriors, strict=True)):
        ahead = rows[origin : origin + steps]
        u = np.pad(ahead.u, ((0, steps - len(ahead)), (0, 0)), mode="edge")
        origin_seed = seed if scheme.same_seed else seed + number
        with warnings.catch_warnings(action="ignore" if quiet else None):
            forecast = posterior.forecast(
                steps,
                u,
                num_paths=scheme.num_paths,
                seed=origin_seed,
                index=index,
            )
        forecast = forecast[: len(ahead)]
        early = origin <= middle
        yield RollingForecast(origin, forecast, ahead, scheme.horizon, early, spacing)


def held_out_forecasts(
    posterior: "Forecaster", fold: Fold, scheme: RollingOrigin, seed: int
) -> Iterator[RollingForecast]:
    """Yield forecasts of the held-out rows of a fold, up to their end if the scheme allows it.

    Parameters
    ----------
    posterior : Posterior or Stack
        A fit to the training rows of the fold.
    fold : Fold
        The held-out rows.
    scheme : RollingOrigin
        Origins, paths and draws.
    seed : int
        Seed of filters and paths.

    Yields
    ------
    RollingForecast
    """
    posterior = posterior.thinned(scheme.num_draws)
    for index, rows in fold.rest.items():
        settling = settling_rows(len(rows), fold.before)
        fitting = scheme.within(len(rows) - settling)
        origins = fitting.origins(len(rows), settling)
        at_origins = condition_at(
            posterior,
            rows,
            origins,
            new_experiment=fold.before,
            seed=seed,
            index=index,
        )
        steps = min(len(rows), scheme.simulated)
        yield from rolling_forecasts(
            at_origins,
            rows,
            origins,
            fitting,
            steps=steps,
            seed=seed,
            index=index,
        )


def held_out_errors(posterior: "Forecaster", fold: Fold, seed: int) -> tuple[list[Errors], float]:
    """Return the errors of the forecasts by which starts are compared.

    Parameters
    ----------
    posterior : Posterior or Stack
        A fit to the training rows of the fold.
    fold : Fold
        The held-out rows.
    seed : int
        Seed of filters and paths.

    Returns
    -------
    errors : list of Errors
        One entry per forecast.
    share_left : float
        Mean share of the paths that left the known region.
    """
    spread = outputs_spread(fold.series)
    errors = []
    shares = []
    for rolling in held_out_forecasts(posterior, fold, STARTS, seed):
        forecast = rolling.forecast
        values = (forecast.paths - rolling.rows.y) / spread
        errors.append(Errors(values, rolling.horizon, rolling.early))
        if forecast.diagnostics is not None:
            shares.append(forecast.diagnostics.share_left)
    return errors, float(np.mean(shares)) if shares else 0.0
