"""Whether a simpler model would do: the fit against linear and naive baselines, on the same rows.

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

from gpssm.data.series import Series
from gpssm.evaluation import metrics
from gpssm.evaluation.backtest import Backtest, backtest
from gpssm.fitting.fit import fit
from gpssm.posterior.forecast import HORIZON
from gpssm.posterior.posterior import Posterior
from gpssm.report.words import count, percent

BASELINES = ("arx", "lgssm", "last", "mean")
LABELS = {"arx": "ARX", "lgssm": "Linear state-space model", "last": "Last value", "mean": "Training mean"}
LINEAR = ("arx", "lgssm")
MODEL = "model"  # the key of the posterior that the report is about
ORIGINS, STEP = 20, 10  # origins at most, and rows between two of them at least
HELD_OUT, TAIL = 600, 180  # rows that are looked at, at most: a filter's time grows with them
DRAWS, PATHS = 100, 500
ALIKE = 0.05  # a relative difference in the deciding number that makes no difference to a user
FEW = 4  # origins at least for a verdict
ERRORS = 2.0  # standard errors, over origins, that a difference must exceed to count


@dataclass(frozen=True)
class Arena:
    """The rows to forecast, the first origin in them, and how far apart and how far ahead forecasts are."""

    rows: Series
    start: int
    step: int
    horizon: int
    held_out: bool

    @property
    def name(self) -> str:
        """Where the rows come from, for the end of a sentence."""
        return "held-out test rows" if self.held_out else "the last training rows (in sample)"


class Entry(NamedTuple):
    """One method: its figures by output, its loss at each origin, and its RMSE by output and step ahead."""

    key: str
    label: str
    figures: dict[str, dict[str, float]]
    losses: Float[np.ndarray, " O"]
    by_step: dict[str, Float[np.ndarray, " H"]]

    @property
    def loss(self) -> float:
        """The deciding number."""
        return float(np.nanmean(self.losses))


class Verdict(NamedTuple):
    """`level` is good where the model earns its keep, caution where a baseline is as good, problem where better."""

    level: str
    headline: str
    detail: str


@dataclass(frozen=True)
class Contest:
    """Entries, the model's first, what they were judged on, the verdict, and what went wrong with baselines."""

    arena: Arena
    entries: tuple[Entry, ...]
    own: Backtest  # of the model
    verdict: Verdict
    failures: tuple[str, ...]

    @property
    def foremost(self) -> set[str]:
        """The keys of the model and of the best baseline."""
        return {MODEL, *(one.key for one in sorted(self.entries[1:], key=lambda one: one.loss)[:1])}


def fit_baselines(
    posterior: Posterior, baselines: Sequence[str] | Mapping[str, Posterior]
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


def label(name: str) -> str:
    """What to call a method on the page."""
    return "This model" if name == MODEL else LABELS.get(name, name)


def choose_arena(posterior: Posterior, test: Series | None) -> Arena:
    """The test rows if there are any with outputs, else the end of the last training series."""
    if test is not None and np.isfinite(test.y).any():
        rows, start, held_out = test[:HELD_OUT], 0, True
    else:
        rows, held_out = posterior.raw[-1][-TAIL:], False
        start = len(rows) // 3  # where a filter that starts afresh has settled
    left = len(rows) - start
    horizon = min(HORIZON, max(left // 2, 1))
    step = max(STEP, -(-(left - horizon) // (ORIGINS - 1)))
    return Arena(rows, start, step, horizon, held_out)


def hold_contest(posterior: Posterior, baselines: Mapping[str, Posterior], arena: Arena) -> Contest:
    """Judge all of them; a baseline that fails is told of and left out."""
    spread = np.nanstd(np.concatenate([one.y for one in posterior.raw]), axis=0)
    own = _roll(posterior, arena)
    entries, failures = [_enter(MODEL, own, spread)], []
    for name, one in baselines.items():
        try:
            entries.append(_enter(name, _roll(one, arena), spread))
        except ValueError as error:
            failures.append(f"{label(name)} could not be judged: {error}")
    verdict = decide(entries[0], entries[1:], arena)
    return Contest(arena, tuple(entries), own, verdict, tuple(failures))


def _roll(posterior: Posterior, arena: Arena) -> Backtest:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # paths that left are told of beside the forecast
        return backtest(
            arena.rows,
            posterior,
            horizon=arena.horizon,
            step=arena.step,
            start=arena.start,
            new_experiment=not arena.held_out,
            num_paths=PATHS,
            max_draws=DRAWS,
            progress=False,
        )


def _enter(key: str, found: Backtest, spread: Float[np.ndarray, " Dy"]) -> Entry:
    """Figures from the paths (S, H, O) of each output that was observed at all."""
    figures, by_step, losses = {}, {}, []
    windows = found.origins[None, :] + np.arange(found.horizon)[:, None]
    for j, output in enumerate(found.series.outputs):
        actual = found.series.y[windows, j]
        if np.isnan(actual).all():
            continue
        paths = np.stack([forecast.paths[:, :, j] for forecast in found.forecasts], axis=-1)
        figures[output] = _figures(paths, actual)
        by_step[output] = np.asarray(metrics.rmse(paths.mean(0), actual, by_step=True))
        by_origin = metrics.crps(paths.swapaxes(1, 2), actual.T, by_step=True)
        losses.append(np.asarray(by_origin) / spread[j])
    table = np.ma.masked_invalid(losses)
    return Entry(key, label(key), figures, np.ma.filled(table.mean(axis=0), np.nan), by_step)


def _figures(paths: Float[np.ndarray, "S H O"], actual: Float[np.ndarray, "H O"]) -> dict[str, float]:
    found = {
        "rmse": metrics.rmse(paths.mean(0), actual),
        "crps": metrics.crps(paths, actual),
        "coverage_90": metrics.coverage(paths, actual, 0.9),
        "width_90": metrics.interval_width(paths[:, ~np.isnan(actual)], 0.9),
    }
    return {name: float(value) for name, value in found.items()}


def decide(model: Entry, others: Sequence[Entry], arena: Arena) -> Verdict:
    """One plain sentence: is the model worth it, and what was that judged on?"""
    if not others:
        return Verdict("unknown", "There is no baseline to compare with.", "")
    best = min(others, key=lambda one: one.loss)
    detail, name, gain = _judged(model, best, arena), _in_sentence(best), 1 - model.loss / best.loss
    differences = model.losses - best.losses
    differences = differences[np.isfinite(differences)]
    if len(differences) < FEW:
        return Verdict("caution", "There are too few rows to tell whether a simpler model would do.", detail)
    # Origins share rows, so that their spread understates the error: what is within it is certainly no difference.
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    if abs(gain) < ALIKE or abs(np.mean(differences)) < ERRORS * error:
        return Verdict("caution", f"{name} forecasts as well: {_advice(best)}.", detail)
    if gain < 0:
        worse = percent(model.loss / best.loss - 1)
        return Verdict("problem", f"{name} forecasts better, by {worse}: {_advice(best)}.", detail)
    return Verdict("good", f"The model forecasts {percent(gain)} better than the best baseline, {best.label}.", detail)


def _judged(model: Entry, best: Entry, arena: Arena) -> str:
    number, steps = count(len(model.losses), "forecast"), count(arena.horizon, "step")
    flattered = (
        " These rows were part of the training data, which flatters the more flexible model: hold rows out for a fair "
        "answer."
    )
    return (
        f"Judged on {arena.name}: {number} of {steps}. Average error with intervals (scaled CRPS) {model.loss:.3g}, "
        f"against {best.loss:.3g} of the best baseline, {best.label}.{'' if arena.held_out else flattered}"
    )


def _in_sentence(best: Entry) -> str:
    words = {"last": "Repeating the last value", "mean": "The training mean", "lgssm": "A linear state-space model"}
    return words.get(best.key, best.label)


def _advice(best: Entry) -> str:
    if best.key in LINEAR or best.key not in LABELS:
        return "consider the simpler model"
    return "nothing that helps at this horizon was learned from these data"
