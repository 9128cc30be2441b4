"""Which model to fit: candidates compared by rolling forecasts inside the training data, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.core.notebook import card
from gpssm.core.places import Arrival, Place
from gpssm.core.text import check_whole, is_real
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_list
from gpssm.evaluation.backtest import backtest
from gpssm.fitting.choose import may_be_rectified
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.linear.identification import select_order
from gpssm.posterior.validation import BACKTEST, RollingOrigin

if TYPE_CHECKING:
    import pandas as pd

ORDERS = (2, 5)  # of the candidates at least and at most; more states are slow to sample
PARTS = 3  # of the rows to forecast, of which the horizon takes one at most


@dataclass(frozen=True)
class Selection:
    """The settings with the least score, and the table of all: a row a candidate, best first."""

    best: dict[str, Any]
    table: "pd.DataFrame"

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
    """Compare settings of `fit` by their rolling forecasts of the last part of one training series.

        found = gpssm.select(train)
        posterior = gpssm.fit(train, **found.best)

    Each candidate is fitted to the first `share` of the rows and forecasts the others from many origins. No other data
    are looked at, so what is chosen may be judged on a test set.

    :param candidates: settings of `fit` each, `method` among them; by default those of `default_candidates`.
    :param horizon: steps of a forecast, or as many as leave a few origins.
    :param score: a figure of `gpssm.metrics.score`, the mean over origins of which is to be least; "ncrps" is the CRPS
        in standard deviations of the training outputs.
    :param progress: True for a bar over the candidates, "plain" for a line each, False for silence.
    :param jobs: processes in which candidates are compared.
    :param cluster: the address of a Dask scheduler whose workers compare them instead, as tcp://host:8786, or a client.
    :param fit_arguments: settings of `fit` that all candidates share.
    """
    import pandas

    several = as_list(series)
    if len(several) != 1:
        raise TypeError(f"select takes one series at a time; got a list of {len(several)}")
    whole = several[0]
    check_progress(progress)
    for name, value in (("horizon", horizon), ("step", step)):
        check_whole(name, value, 1)
    if not (is_real(share) and 0 < share < 1):
        raise ValueError(f"share is the part of the rows that candidates are fitted to, between 0 and 1; got {share!r}")
    if not (candidates is None or isinstance(candidates, Sequence)) or not all(
        isinstance(one, Mapping) and all(isinstance(name, str) for name in one) for one in candidates or ()
    ):
        raise TypeError("candidates are a list of settings of fit, such as [{'state_dim': 2}, {'state_dim': 3}]")
    tried = [dict(one) for one in (default_candidates(whole) if candidates is None else candidates)]
    if not tried:
        raise ValueError("select needs at least one candidate: settings of fit, such as {'state_dim': 2}")
    start = int(share * len(whole))
    scheme = replace(BACKTEST, horizon=horizon, step=step).within(len(whole) - start, PARTS)
    settings = [{"seed": seed, **fit_arguments, **one, "progress": False} for one in tried]
    score_one = partial(_score, whole, start, scheme, seed)
    arrivals = Place(jobs, cluster).run(settings, score_one)
    found = {}

    def in_words(arrival: Arrival) -> str:
        return ", ".join(f"{name} {value}" for name, value in tried[arrival[0]].items())[:30]

    for number, scores in tracked(arrivals, progress, "select", in_words, len(tried)):
        if isinstance(scores, Exception):
            raise scores
        if not isinstance(score, str) or score not in scores:
            raise KeyError(f"Unknown score {score!r}. Known: {', '.join(scores)}.")
        found[number] = scores
    rows = [{str(name): str(value) for name, value in one.items()} | found[k] for k, one in enumerate(tried)]
    order = np.argsort([row[score] for row in rows], kind="stable")
    return Selection(tried[order[0]], pandas.DataFrame([rows[place] for place in order]))


def _score(
    series: Series, start: int, scheme: RollingOrigin, seed: int, settings: Mapping[str, Any]
) -> dict[str, float]:
    """The scores of a candidate, fitted to the rows before `start`, on the others."""
    posterior = fit(series[:start], **settings)
    return backtest(
        series[start:],
        posterior,
        horizon=scheme.horizon,
        step=scheme.step,
        seed=seed,
        progress=False,
    ).scores


def default_candidates(series: Series) -> list[dict[str, Any]]:
    """Three orders, from that of the best linear model on; its transition as a prior's centre, or as it is.

    A function that bends may need states that a linear model does not, or do without some that it needs.

    Where outputs touch zero and never go below, the absolute value of something that changes sign is tried too.
    """
    scaled = Scaler.fit(series).scale(series)
    order = int(np.clip(select_order(scaled, ORDERS[1]).best, *ORDERS))
    first = min(order, ORDERS[1] - 2)
    orders = range(first, first + 3)
    tried = [{"state_dim": number, "mean": mean} for number in orders for mean in ("linear", "linear-fixed")]
    if may_be_rectified([series]):
        tried.append({"state_dim": max(order, 3), "likelihood": "abs"})
    return tried
