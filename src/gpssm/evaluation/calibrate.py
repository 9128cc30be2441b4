"""How much wider intervals must be, by step ahead, from forecasts of rows that a fit did not see.

A forecast stretched by s about its mean μ has the 90 % interval [μ + s (low − μ), μ + s (high −
μ)], which reaches y from the factor

    r = (y − μ) / (high − μ)  if y > μ,   (μ − y) / (μ − low)  otherwise

on. Forecasts from many origins along unseen rows give an r for each origin, step and output, and
the 90 % quantile q_h of those around step h is the factor that would have covered nine outputs in
ten. There are few of them, and forecasts that overlap err together: c origins, `spacing` rows
apart, count as

    n_h = c · min(1, 1.5 · spacing / h)

independent ones, since the errors of h-step forecasts have correlations that fall to zero over h
rows, and 1.5 rows of h is what their squares are worth. So steps are taken by octaves, h = 1, 2, 4,
..., and each octave is a compromise between what it says itself and what the one before said, which
for the first is that the model is right:

    log s_h = max(0, λ log q_h + (1 − λ) log s_{h/2}),   λ = n_h / (n_h + 3),   s_{1/2} = 1

Between octaves log s is linear in log h, and beyond the last that `FEWEST` independent forecasts
speak for, it holds. Intervals are never made narrower than the model's.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.text import check_flag, check_seed, count
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.runner import Runtime
from gpssm.model.likelihoods import Bernoulli, Poisson
from gpssm.posterior.calibration import Calibration
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack, single_posteriors
from gpssm.posterior.validation import (
    CALIBRATION,
    FEWEST_ROWS,
    Fold,
    make_folds,
    rolling_forecasts,
    settling_rows,
)

Single = TypeVar("Single", Posterior, Stack)

LEVEL = 0.9
WORTH = 1.5  # independent squared errors of h-step forecasts in h rows
WIDTH = 0.35  # of the window around an octave, as the standard deviation of log h
TRUST = 3.0  # independent forecasts that are worth as much as what is known before
FEWEST = 2.0  # independent forecasts from which on a step counts as measured
LARGEST = 10.0  # factor


class Needed(NamedTuple):
    """The factors r that outputs needed, NaN where none was observed, and the origins' spacing."""

    factors: Float[np.ndarray, "O H Dy"]
    spacing: int


def calibrate(
    posterior: Single,
    series: Any = None,
    *,
    new_experiment: bool = False,
    index: int = -1,
    seed: int | None = None,
    without: Sequence[tuple[Posterior | Stack, Fold]] = (),
) -> Single:
    """The posterior with forecasts as wide as rows that it did not see say they must be.

        posterior = posterior.calibrate()
        posterior.forecast(u=future)  # widened; calibrated=False for the model's own

    Without rows to measure on, the model is fitted twice more, one short chain each, with the
    settings and the start that the fit had: without the last quarter of every series, and without
    the first.

    :param series: rows that the fit did not see, at least 15; they follow training series `index`,
        or what `condition` was given, unless they are a new experiment.
    :param seed: the fit's, unless given.
    :param without: posteriors of folds, if there are any already, in place of those fits.
    """
    for item in single_posteriors(posterior):
        if isinstance(item.model.likelihood, Poisson | Bernoulli):
            name = type(item.model.likelihood).__name__
            raise TypeError(
                f"the outputs of a {name} likelihood are not numbers on a line: paths cannot be "
                "stretched"
            )
    seed = posterior.seed if seed is None else check_seed(seed)
    check_flag("new_experiment", new_experiment)
    posterior.dataset.experiment(index)
    if series is not None:
        rows = posterior.dataset.align(series)
        measurements = [measure(posterior, rows, new_experiment, index, seed)]
        words = f"{count(len(rows), 'new row')}"
    else:
        pairs = list(without) or fit_folds(posterior, seed)
        measurements = [
            measure(item, rows, fold.before, number, seed)
            for item, fold in pairs
            for number, rows in fold.rest.items()
        ]
        held = sum(len(rows) for _, fold in pairs for rows in fold.rest.values())
        words = f"{held} training rows, held out of fits without them"
    return dataclasses.replace(posterior, calibration=estimate(measurements, words))


def measure(
    posterior: Posterior | Stack, rows: Series, new_experiment: bool, index: int, seed: int
) -> Needed:
    """The factors that the outputs of some rows needed, from origins all along them."""
    if len(rows) < FEWEST_ROWS:
        raise ValueError(f"calibrate needs {FEWEST_ROWS} rows or more to forecast; got {len(rows)}")
    settling = settling_rows(len(rows), new_experiment)
    unseen = len(rows) - settling
    scheme = CALIBRATION.within(unseen, parts=1)
    spacing = scheme.spacing(unseen)
    origins = range(settling, len(rows) - 1, spacing)
    plain = dataclasses.replace(posterior.thinned(scheme.num_draws), calibration=None)
    shared: dict[str, Any] = {"seed": seed, "index": index}
    at_origins = plain.condition_at(rows, origins, new_experiment=new_experiment, **shared)
    factors = np.full((len(origins), scheme.horizon, rows.output_dim), np.nan)
    forecasts = rolling_forecasts(at_origins, rows, origins, scheme, **shared)
    for needed, item in zip(factors, forecasts, strict=True):
        needed[: len(item.rows)] = needed_factors(item.forecast, item.rows.y)
    return Needed(factors, spacing)


def needed_factors(
    forecast: Forecast, actual: Float[np.ndarray, "H Dy"]
) -> Float[np.ndarray, "H Dy"]:
    """r, from which on the stretched 90 % interval holds what happened; NaN where it is missing."""
    mean, (low, high) = forecast.mean, forecast.interval(LEVEL)
    away, reach = np.abs(actual - mean), np.where(actual > mean, high - mean, mean - low)
    factors = np.divide(away, reach, out=np.full_like(away, LARGEST), where=reach > 0)
    return np.where(np.isnan(actual), np.nan, np.minimum(factors, LARGEST))


def estimate(measurements: Sequence[Needed], rows: str) -> Calibration:
    """The factors s_h of each output, from those that were needed."""
    longest = max(item.factors.shape[1] for item in measurements)
    needed = np.concatenate(
        [
            np.pad(
                item.factors,
                ((0, 0), (0, longest - item.factors.shape[1]), (0, 0)),
                constant_values=np.nan,
            )
            for item in measurements
        ]
    )
    steps, spacing = (
        1 + np.arange(longest),
        np.concatenate([np.full(len(item.factors), item.spacing) for item in measurements]),
    )
    # What each origin is worth at each step, where it has any output there.
    worth = np.minimum(1.0, WORTH * spacing[:, None] / steps[None])
    effective = np.sum(np.where(np.isnan(needed).all(-1), 0.0, worth), axis=0)
    if not (measured := np.flatnonzero(effective >= FEWEST)).size:
        raise ValueError(f"calibrate found too few outputs to forecast in {rows}: give more rows")
    horizon = int(measured[-1]) + 1
    columns = [_curve(needed[..., j], worth, horizon) for j in range(needed.shape[-1])]
    covered = np.where(np.isnan(needed), np.nan, needed <= 1)[:, :horizon]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a step without any output has no coverage
        coverage = np.nanmean(covered, axis=0)
    return Calibration(np.stack(columns, axis=-1), coverage, effective[:horizon], len(needed), rows)


def _curve(
    needed: Float[np.ndarray, "O H"], worth: Float[np.ndarray, "O H"], horizon: int
) -> Float[np.ndarray, " horizon"]:
    """s_h of one output."""
    observed = ~np.isnan(needed)
    steps = 1 + np.arange(needed.shape[1])
    effective = np.sum(np.where(observed, worth, 0.0), axis=0)
    values, weights = needed[observed], worth[observed]
    places = np.log(np.broadcast_to(steps, needed.shape)[observed])
    octaves, logs, before = octaves_to(horizon), [], 0.0
    for middle in np.log(octaves):
        near = np.exp(-0.5 * ((places - middle) / WIDTH) ** 2) * weights
        window = np.exp(-0.5 * ((np.log(steps) - middle) / WIDTH) ** 2)
        number = np.sum(window * effective) / np.sum(window)
        if number > 0:
            share = number / (number + TRUST)
            factor = max(weighted_quantile(values, near, LEVEL), 1 / LARGEST)
            before = max(0.0, share * np.log(factor) + (1 - share) * before)
        logs.append(before)
    return np.exp(np.interp(np.log(1 + np.arange(horizon)), np.log(octaves), logs))


def octaves_to(horizon: int) -> Int[np.ndarray, " K"]:
    """1, 2, 4, ... and the last step, which takes the place of an octave just before it."""
    powers = 2 ** np.arange(int(np.log2(horizon)) + 1)
    return np.array([*powers[powers < horizon / np.sqrt(2)], horizon]) if horizon > 1 else powers


def weighted_quantile(
    values: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"], share: float
) -> float:
    """The value below which this share of the weight lies, interpolated between the weights."""
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    return float(np.interp(share * np.sum(weights), np.cumsum(weights) - weights / 2, values))


def fit_folds(posterior: Posterior | Stack, seed: int) -> list[tuple[Posterior | Stack, Fold]]:
    """A posterior of each fold, by the settings of the fit; of a stack, a stack of such fits."""
    if isinstance(posterior, Stack):
        fits = {name: fit_folds(member, seed) for name, member in posterior.members.items()}
        folds = [fold for _, fold in next(iter(fits.values()))]
        return [
            (
                dataclasses.replace(posterior, members={name: fits[name][k][0] for name in fits}),
                fold,
            )
            for k, fold in enumerate(folds)
        ]
    folds = make_folds(posterior.dataset.experiments)
    if not folds:
        raise ValueError(
            f"calibrate() holds out a quarter of a series, {FEWEST_ROWS} rows or more: the "
            "training series are too "
            "short. Give it rows that the fit did not see, posterior.calibrate(rows)"
        )
    num_draws = min(posterior.spec.settings.num_draws, CALIBRATION.num_draws)
    spec = posterior.spec.replace(calibrate=False, num_draws=num_draws)
    fits = []
    for fold in folds:
        changes: dict[str, Any] = {}
        if spec.gives_states:
            posterior.check_states("calibrate() of a fit that began at given states")
            paths = [np.asarray(path[0, -1]) for path in posterior.draws.states]
            lengths = [len(item) + 1 for item in fold.series]
            changes["start"] = [
                path[-length:] if fold.before else path[:length]
                for path, length in zip(paths, lengths, strict=True)
            ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one short chain is no posterior to be judged
            runtime = Runtime(num_chains=1, seed=seed, progress=False)
            fits.append((fit(fold.series, spec=spec.replace(**changes), runtime=runtime), fold))
    return fits
