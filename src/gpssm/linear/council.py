"""The comparison of linear models by their forecasts of held-out training rows.

    ranking = council(scaled, horizon=30)
    ranking.best, ranking.scores, ranking.orders, ranking.models["arx-reg"]

Its candidates are

- `mean` and `last`: white noise around the mean, and a random walk;
- `arx`: a regression on a few past outputs and inputs, with orders by BIC;
- `arx-reg`: a long regularised regression, without an order to choose;
- `arx-memory`: the same with few past outputs and a long memory of the inputs;
- `ss-1`, …, `ss-10`: state-space models of each order, reduced from `arx-reg`.

Windows of the training rows are held out in turn: the first quarter and each of the last three
sixths. Models fitted to the other rows make forecasts from many origins in the window, given all
rows before each origin, and simulate the window.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr

from gpssm.data.series import Series
from gpssm.linear import kalman
from gpssm.linear.arx import (
    LAGS,
    NO_NOISE,
    innovations_form,
    reduce,
    regress,
    regress_regularised,
    select_orders,
    to_state_space,
)
from gpssm.linear.state_space import LinearSSM, stabilise

Horizon = int | Literal["simulation"]
HORIZON = 30
MAX_ORDER = 10
MEMORY = (5, 60)  # lags of outputs and inputs of `arx-memory`: three times those of `arx-reg`
# Fractions of each series that are held out in turn.
FOLDS = ((0.0, 0.25), (0.5, 2 / 3), (2 / 3, 5 / 6), (5 / 6, 1.0))

MEMBERS = ("arx", "arx-reg", "arx-memory", "ss", "last", "mean")


class Scores(NamedTuple):
    """Mean scores of each fold over origins, steps and outputs, in units of the outputs' standard
    deviation.

    `simulation` is the root-mean-square error of one simulation of the window.
    """

    crps: Float[np.ndarray, " folds"]
    log_score: Float[np.ndarray, " folds"]
    rmse: Float[np.ndarray, " folds"]
    simulation: Float[np.ndarray, " folds"]


@dataclass(frozen=True, eq=False)
class Council:
    """Linear models fitted to all training rows, best first, and their scores on held-out
    windows.
    """

    horizon: Horizon
    models: dict[str, LinearSSM]
    scores: dict[str, Scores]

    @property
    def best(self) -> str:
        """The name of the best model."""
        return next(iter(self.models))

    def losses(self, name: str) -> Float[np.ndarray, " folds"]:
        """Return the deciding score of a model: the CRPS at the horizon, or the error of
        simulations.
        """
        result = self.scores[name]
        return result.simulation if self.horizon == "simulation" else result.crps

    def is_better(self, name: str, other: str) -> bool:
        """Return whether a model's loss is lower than another's by more than one standard error."""
        gain = self.losses(other) - self.losses(name)
        return len(gain) > 1 and bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))

    @property
    def orders(self) -> tuple[int, ...]:
        """Return the one or two best orders of state-space models.

        The first is the smallest order whose loss is within 5 % of the least. The second, if there
        is one, is a smaller order that the best does not beat by one standard error over the
        held-out windows (Breiman et al. 1984).
        """
        ranked = [name for name in self.models if name.startswith("ss-")]
        if not ranked:
            return (1,)
        least = self.losses(ranked[0])
        bound = 1.05 * least.mean() if len(least) else np.inf
        close = min(int(name[3:]) for name in ranked if not self.losses(name).mean() > bound)
        simple = min(int(name[3:]) for name in ranked if not self.is_better(ranked[0], name))
        return (close, simple) if simple < close else (close,)


def council(
    series: Sequence[Series],
    horizon: Horizon = HORIZON,
    max_order: int = MAX_ORDER,
    members: Sequence[str] = MEMBERS,
) -> Council:
    """Fit linear models to scaled series, score them on held-out windows, and rank them.

    Parameters
    ----------
    series
        Training series in scaled units; missing outputs are NaN.
    horizon
        Steps ahead at which the CRPS of forecasts decides; "simulation" lets the error of
        simulations decide.
    max_order
        The largest order of the state-space models.
    members
        Kinds of models to fit; "ss" stands for state-space models of all orders.

    Returns
    -------
    The models, fitted to all rows and ranked, with the scores of each fold. Kinds that cannot be
    fitted to so few rows are omitted.
    """
    steps = HORIZON if horizon == "simulation" else horizon
    models, hyper = fit_members(series, steps, max_order, members)
    scale = np.nanstd(np.concatenate([item.y for item in series]), axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    parts: list[dict[str, np.ndarray]] = []
    for fold in FOLDS:
        windows = [item.y[slice(*_window(item, fold))] for item in series]
        observed = any(np.isfinite(window).any() for window in windows)
        if observed and (rest := _without(series, fold)):
            fitted, _ = fit_members(rest, steps, max_order, members, hyper)
            parts.append(_score(fitted, series, fold, steps, scale))
    scores = {
        name: Scores(*np.array([part[name] for part in parts]).reshape(-1, len(Scores._fields)).T)
        for name in models
        if all(name in part for part in parts)
    }
    field = "simulation" if horizon == "simulation" else "crps"
    ranked = sorted(
        scores, key=lambda name: np.mean(getattr(scores[name], field) if parts else 0.0)
    )
    return Council(
        horizon, {name: models[name] for name in ranked}, {name: scores[name] for name in ranked}
    )


def fit_members(
    series: Sequence[Series],
    horizon: int = HORIZON,
    max_order: int = MAX_ORDER,
    members: Sequence[str] = MEMBERS,
    start: dict[str, Any] | None = None,
) -> tuple[dict[str, LinearSSM], dict[str, Any]]:
    """Return models by name, and the hyper-parameters of regularised ones, optimised from
    `start`.
    """
    start = start or {}
    models: dict[str, LinearSSM] = {}
    hyper: dict[str, Any] = {}
    for name in members:
        with suppress(ValueError):
            if name == "arx":
                models[name] = to_state_space(regress(series, *select_orders(series)))
            elif name == "arx-memory":
                long = regress_regularised(series, *MEMORY, start.get(name))
                models[name], hyper[name] = to_state_space(long), long.hyper
            elif name == "last":
                models[name] = fit_last(series)
            elif name == "mean":
                models[name] = fit_mean(series)
    if "arx-reg" in members or "ss" in members:
        long = regress_regularised(series, LAGS, LAGS, start.get("arx-reg"))
        hyper["arx-reg"] = long.hyper
        if "arx-reg" in members:
            models["arx-reg"] = to_state_space(long)
        if "ss" in members:
            components = reduce(long, series, max_order, horizon)
            for order in range(1, components.before.shape[1] + 1):
                models[f"ss-{order}"] = innovations_form(components, order)
    return models, hyper


def fit_last(series: Sequence[Series]) -> LinearSSM:
    """Fit a random walk, x_{t+1} = x_t + N(0, Q), y_t = x_{t+1}, with Q the mean square step."""
    steps = np.concatenate([np.diff(item.y, axis=0) for item in series])
    if np.isnan(steps).all(0).any():
        raise ValueError(
            "The model `last` needs two consecutive outputs to estimate the size of a step; "
            "there are none."
        )
    width, input_dim = series[0].output_dim, series[0].input_dim
    variance = np.maximum(np.nanmean(steps**2, 0), NO_NOISE**2)
    zeros, identity = np.zeros(width), np.eye(width)
    return LinearSSM(
        identity, np.zeros((width, input_dim)), zeros, identity, zeros, np.diag(variance), zeros
    )


def fit_mean(series: Sequence[Series]) -> LinearSSM:
    """Fit white noise, x_{t+1} ~ N(0, I), y_t = σ x_{t+1} + μ, to mean and standard deviation."""
    y = np.concatenate([item.y for item in series])
    width, input_dim = series[0].output_dim, series[0].input_dim
    spread = np.diag(np.maximum(np.nanstd(y, 0), NO_NOISE))
    still, inputs = np.zeros((width, width)), np.zeros((width, input_dim))
    zeros = np.zeros(width)
    return LinearSSM(still, inputs, zeros, spread, np.nanmean(y, 0), np.eye(width), zeros)


def _without(series: Sequence[Series], fold: tuple[float, float]) -> list[Series]:
    """Return the rows before and after a window of each series, as separate series."""
    parts = []
    for item in series:
        first, end = _window(item, fold)
        parts += [
            item[begin:stop] for begin, stop in ((0, first), (end, len(item))) if stop > begin
        ]
    return parts


def _window(series: Series, fold: tuple[float, float]) -> tuple[int, int]:
    return round(fold[0] * len(series)), round(fold[1] * len(series))


def _score(
    members: dict[str, LinearSSM],
    series: Sequence[Series],
    fold: tuple[float, float],
    horizon: int,
    scale: Float[np.ndarray, " Dy"],
) -> dict[str, Float[np.ndarray, "4"]]:
    """Return the scores on one window of each series; state-space models run in parallel."""
    stacked = [name for name in members if name.startswith("ss-")]
    groups = [[name] for name in members if name not in stacked] + ([stacked] if stacked else [])
    result = {}
    for names in groups:
        models = kalman.stack([members[name] for name in names])
        steady = kalman.stack([stabilise(members[name]) for name in names])
        parts = [
            part
            for item in series
            if (part := _score_series(models, steady, item, fold, horizon, scale)) is not None
        ]
        means = [np.nanmean(np.concatenate(leaf, 1), 1) for leaf in zip(*parts, strict=True)]
        for k, name in enumerate(names):
            crps, log_score, square, simulated = (leaf[k] for leaf in means)
            result[name] = np.array([crps, log_score, np.sqrt(square), np.sqrt(simulated)])
    return result


def _score_series(
    models: LinearSSM,
    steady: LinearSSM,
    series: Series,
    fold: tuple[float, float],
    horizon: int,
    scale: Float[np.ndarray, " Dy"],
) -> tuple[np.ndarray, ...] | None:
    """Return CRPS, −log density, squared error and squared simulation error, (K, entries) each."""
    first, end = _window(series, fold)
    steps = min(horizon, end - first)
    if steps < 1 or np.isnan(series.y[first:end]).all():
        return None
    # At the start of a series the state is still unknown: the first origin comes after the lags.
    begin = min(max(first, LAGS), end - steps)
    stride = max(1, (end - steps - begin) // 40)
    origins = np.arange(begin, end - steps + 1, stride)
    filtered = kalman.filter_states(models, series[:end])
    mean, covariance = kalman.forecast(models, filtered, series.u, origins, steps)
    std = np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), NO_NOISE**2)) / scale
    actual = series.y[origins[:, None] + np.arange(steps)]
    error = (actual - mean) / scale
    inputs = np.broadcast_to(series.u[begin:end], (len(mean), 1, end - begin, series.input_dim))
    simulated = kalman.simulate(steady, filtered.means[:, [begin]], inputs)[:, 0]
    misses = (series.y[begin:end] - simulated) / scale
    negative_log_density = 0.5 * ((error / std) ** 2 + np.log(2 * np.pi)) + np.log(std)
    leaves = (gaussian_crps(error, std), negative_log_density, error**2, misses**2)
    return tuple(leaf.reshape(len(mean), -1) for leaf in leaves)


def gaussian_crps(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return E|X − y| − ½ E|X − X′| for X ~ N(μ, σ²) with z = (y − μ)/σ.

    σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π)
    """
    z = error / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
