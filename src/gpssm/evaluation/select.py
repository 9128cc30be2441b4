"""Choose settings by rolling forecasts within the training data."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from gpssm.core.notebook import card
from gpssm.core.places import Arrival, Place
from gpssm.core.table import loss
from gpssm.core.text import check_choice, check_seed, check_whole, is_real
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_list
from gpssm.evaluation.backtest import backtest
from gpssm.fitting.choose import may_be_rectified
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.linear.council import council
from gpssm.posterior.validation import BACKTEST, RollingOrigin

ORDERS = (2, 5)  # smallest and largest order of the candidates; more states are slow to sample
PARTS = 3  # the horizon is at most this fraction of the rows to forecast


@dataclass(frozen=True)
class Selection:
    """The settings with the lowest score, and the table of all candidates.

    Parameters
    ----------
    best : dict
        Settings of `fit`.
    table : DataFrame
        One row per candidate, the best first.
    """

    best: dict[str, Any]
    table: pd.DataFrame

    def _repr_html_(self) -> str:
        best = ", ".join(f"{name} {value}" for name, value in self.best.items())
        return card(f"Selection: {best}", tables={"best first": self.table})

    def __str__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")


def select(
    series: Any,
    candidates: Sequence[Mapping[str, Any]] | None = None,
    *,
    share: float = 0.7,
    horizon: int = BACKTEST.horizon,
    step: int = BACKTEST.step,
    score: str = "ncrps",
    seed: int = 0,
    progress: Mode = True,
    jobs: int = 1,
    cluster: Any = None,
    **fit_arguments: Any,
) -> Selection:
    """Choose settings of `fit` by rolling forecasts of the last part of a training series.

        selection = gpssm.select(train)
        posterior = gpssm.fit(train, **selection.best)

    Each candidate is fitted to the first `share` of the rows and forecasts the remaining rows from
    many origins. No other data are used, so the choice can be evaluated on a test set. If the mean
    of the training rows forecasts better than every candidate, a warning says so.

    Parameters
    ----------
    series
        One training series.
    candidates : sequence of mappings, optional
        Settings of `fit`, including `method`; by default those of `default_candidates`.
    share : float
        Share of the rows to which candidates are fitted.
    horizon : int
        Steps of a forecast, at most a third of the rows to forecast.
    step : int
        Rows between two origins.
    score : str
        Score of `gpssm.metrics.score` whose mean over origins ranks candidates; "ncrps" is the CRPS
        in standard deviations of the training outputs.
    seed : int
        Seed of fits, filters and paths.
    progress
        True for a bar over the candidates, "plain" for one line each, False for no output.
    jobs : int
        Number of processes.
    cluster
        Address of a Dask scheduler to run on instead, such as tcp://host:8786, or a client.
    **fit_arguments
        Settings of `fit` that all candidates share.

    Returns
    -------
    Selection
    """
    experiments = as_list(series)
    seed = check_seed(seed)
    if len(experiments) != 1:
        raise TypeError(f"select accepts one series at a time; got a list of {len(experiments)}")
    whole = experiments[0]
    check_progress(progress)
    for name, value in (("horizon", horizon), ("step", step)):
        check_whole(name, value, 1)
    if not (is_real(share) and 0 < share < 1):
        raise ValueError(f"share of the rows to fit must lie between 0 and 1; got {share!r}")
    candidates = default_candidates(whole) if candidates is None else candidates
    if not isinstance(candidates, Sequence) or not all(map(_are_settings, candidates)):
        raise TypeError("candidates must be a list of settings of fit, such as [{'state_dim': 2}]")
    if not candidates:
        raise ValueError("select needs at least one candidate, such as {'state_dim': 2}")
    start = int(share * len(whole))
    scheme = replace(BACKTEST, horizon=horizon, step=step).within(len(whole) - start, PARTS)
    settings = [
        {"seed": seed, **fit_arguments, **candidate, "progress": False} for candidate in candidates
    ]
    mean = _score(whole, start, scheme, seed, {"method": "mean", "seed": seed, "progress": False})
    check_choice("score", score, mean)
    arrivals = Place(jobs, cluster).run(settings, partial(_score, whole, start, scheme, seed))
    scores = {}

    def settings_of(arrival: Arrival) -> str:
        settings = candidates[arrival[0]]
        return ", ".join(f"{name} {value}" for name, value in settings.items())[:30]

    for number, result in tracked(arrivals, progress, "select", settings_of, len(candidates)):
        if isinstance(result, Exception):
            raise result
        scores[number] = result
    named = ({name: str(value) for name, value in candidate.items()} for candidate in candidates)
    rows = [settings | scores[number] for number, settings in enumerate(named)]
    best, *_ = order = np.argsort([loss(score, row[score]) for row in rows], kind="stable")
    if not loss(score, scores[best][score]) <= loss(score, mean[score]):
        warnings.warn(
            f"No candidate is usable: the best has a {score} of {scores[best][score]:.3g}, the "
            f"mean of the training rows {mean[score]:.3g}. Use more rows, other inputs or other "
            "candidates.",
            stacklevel=2,
        )
    return Selection(dict(candidates[best]), pd.DataFrame([rows[k] for k in order]))


def _are_settings(candidate: Any) -> bool:
    """Whether a candidate is a mapping by name."""
    return isinstance(candidate, Mapping) and all(isinstance(name, str) for name in candidate)


def _score(
    series: Series, start: int, scheme: RollingOrigin, seed: int, settings: Mapping[str, Any]
) -> dict[str, float]:
    """Fit a candidate to the rows before `start`, and score it on the other rows."""
    posterior = fit(series[:start], **settings)
    return backtest(
        posterior,
        series[start:],
        horizon=scheme.horizon,
        step=scheme.step,
        seed=seed,
        progress=False,
    ).scores


def default_candidates(series: Series) -> list[dict[str, Any]]:
    """Return candidates: three orders, starting at the best linear one, with two means each.

    A nonlinear model may need more or fewer states than a linear one. If outputs reach zero but are
    never negative, the absolute value of a signal that changes sign is a candidate too.

    Parameters
    ----------
    series : Series
        Training data.

    Returns
    -------
    list of dict
        Settings of `fit`.
    """
    scaled = Scaler.fit(series).scale(series)
    linear = council([scaled], max_order=ORDERS[1], members=("ss",))
    order = int(np.clip(linear.orders[0], *ORDERS))
    first = min(order, ORDERS[1] - 2)
    orders = range(first, first + 3)
    means = ("linear", "linear-fixed")
    candidates: list[dict[str, Any]]
    candidates = [{"state_dim": number, "mean": mean} for number in orders for mean in means]
    if may_be_rectified([series]):
        candidates.append({"state_dim": max(order, 3), "likelihood": "abs"})
    return candidates
