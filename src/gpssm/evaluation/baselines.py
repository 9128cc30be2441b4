"""The fit beside linear and naive baselines: rolling forecasts of the same rows.

Each method forecasts from several origins along the rows, its functions as they were learned and its state given the
rows up to the origin. One number decides, the mean over outputs of CRPS / (standard deviation of the training output):
it judges forecasts with their intervals, and outputs in different units count alike.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core.text import count
from gpssm.data.series import Series
from gpssm.evaluation import metrics
from gpssm.evaluation.backtest import Backtest, backtest
from gpssm.fitting.fit import fit
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior

BASELINES = ("arx", "lgssm", "last", "mean")
LABELS = {"arx": "ARX", "lgssm": "Linear state-space model", "last": "Last value", "mean": "Training mean"}
ORIGINS, STEP = 20, 10  # origins at most, and rows between two of them at least
HELD_OUT, TAIL = 600, 180  # rows that are looked at, at most: a filter's time grows with them
DRAWS, PATHS = 100, 500


class RollingRows(NamedTuple):
    """The rows to forecast, the first origin in them, and how far apart and how far ahead forecasts are."""

    rows: Series
    start: int
    step: int
    horizon: int
    held_out: bool

    @property
    def protocol(self) -> str:
        """What is judged, and how."""
        where = "held-out rows" if self.held_out else "the last training rows (in sample)"
        number = len(range(self.start, len(self.rows) - self.horizon + 1, self.step))
        return f"{where}, {count(number, 'rolling forecast')} of {count(self.horizon, 'step')}"


class Entry(NamedTuple):
    """One method: its figures by output, its loss at each origin, and its RMSE by output and step ahead."""

    method: str
    figures: dict[str, dict[str, float]]
    losses: Float[np.ndarray, " O"]
    by_step: dict[str, Float[np.ndarray, " H"]]

    @property
    def loss(self) -> float:
        """The deciding number."""
        return float(np.nanmean(self.losses))


@dataclass(frozen=True)
class RollingComparison:
    """Rolling forecasts of a fit (`own`, and the first entry) and of baselines; a sentence for each that failed."""

    judged: RollingRows
    entries: tuple[Entry, ...]
    own: Backtest
    failures: tuple[str, ...]

    @property
    def best_baseline(self) -> Entry | None:
        """The baseline with the least loss."""
        return min(self.entries[1:], key=lambda one: one.loss, default=None)


def fit_baselines(
    posterior: Posterior, baselines: Sequence[str] | Mapping[str, Posterior] = BASELINES
) -> tuple[dict[str, Posterior], tuple[str, ...]]:
    """The baselines by name but for the posterior's own method, and a sentence for each that could not be fitted."""
    own = posterior.config["method"]
    if isinstance(baselines, Mapping):
        return {name: one for name, one in baselines.items() if name != own}, ()
    fitted, failures = {}, []
    for name in baselines:
        try:
            if name != own:
                fitted[name] = fit(list(posterior.raw), method=name, num_chains=1, seed=posterior.seed, progress=False)
        except ValueError as error:
            failures.append(f"{label(name)} could not be fitted: {error}")
    return fitted, tuple(failures)


def label(method: str) -> str:
    """What to call a method in a sentence."""
    return LABELS.get(method, method)


def choose_rows(posterior: Posterior, test: Series | None) -> RollingRows:
    """The test rows if there are any with outputs, else the end of the last training series."""
    if test is not None and np.isfinite(test.y).any():
        rows, start, held_out = test[:HELD_OUT], 0, True
    else:
        rows, held_out = posterior.raw[-1][-TAIL:], False
        start = len(rows) // 3  # where a filter that starts afresh has settled
    left = len(rows) - start
    horizon = min(HORIZON, max(left // 2, 1))
    step = max(STEP, -(-(left - horizon) // (ORIGINS - 1)))
    return RollingRows(rows, start, step, horizon, held_out)


def compare_rolling(posterior: Posterior, baselines: Mapping[str, Posterior], judged: RollingRows) -> RollingComparison:
    """Judge all of them on the same origins; a baseline that fails is told of and left out."""
    spread = np.nanstd(np.concatenate([one.y for one in posterior.raw]), axis=0)
    own = _roll(posterior, judged)
    entries, failures = [_enter(str(posterior.config["method"]), own, spread)], []
    for name, one in baselines.items():
        try:
            entries.append(_enter(name, _roll(one, judged), spread))
        except ValueError as error:
            failures.append(f"{label(name)} could not be judged: {error}")
    return RollingComparison(judged, tuple(entries), own, tuple(failures))


def _roll(posterior: Posterior, judged: RollingRows) -> Backtest:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # paths that left are told of beside the forecast
        return backtest(
            judged.rows,
            posterior,
            horizon=judged.horizon,
            step=judged.step,
            start=judged.start,
            new_experiment=not judged.held_out,
            num_paths=PATHS,
            max_draws=DRAWS,
            progress=False,
        )


def _enter(method: str, found: Backtest, spread: Float[np.ndarray, " Dy"]) -> Entry:
    """Figures from the paths (S, H, O) of each output that was observed at all."""
    figures, by_step, losses = {}, {}, []
    rows = found.origins[None, :] + np.arange(found.horizon)[:, None]
    for j, output in enumerate(found.series.outputs):
        actual = found.series.y[rows, j]
        if np.isnan(actual).all():
            continue
        paths = np.stack([forecast.paths[:, :, j] for forecast in found.forecasts], axis=-1)
        scores = {
            "rmse": metrics.rmse(paths.mean(0), actual),
            "crps": metrics.crps(paths, actual),
            "coverage_90": metrics.coverage(paths, actual, 0.9),
            "width_90": metrics.interval_width(paths[:, ~np.isnan(actual)], 0.9),
        }
        figures[output] = {name: float(value) for name, value in scores.items()}
        by_step[output] = np.asarray(metrics.rmse(paths.mean(0), actual, by_step=True))
        losses.append(np.asarray(metrics.crps(paths.swapaxes(1, 2), actual.T, by_step=True)) / spread[j])
    return Entry(method, figures, np.ma.filled(np.ma.masked_invalid(losses).mean(axis=0), np.nan), by_step)
