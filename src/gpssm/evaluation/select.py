"""Choose settings within the training data: by rolling forecasts, or by linear models alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from gpssm.core.messages import distinct_warnings, warn
from gpssm.core.places import Arrival, run_tasks
from gpssm.core.table import card, loss
from gpssm.core.text import check_choice, check_seed, check_whole, count, is_real
from gpssm.data.dataset import Dataset
from gpssm.data.delays import Rows
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_list
from gpssm.evaluation.backtest import backtest
from gpssm.fitting.choose import may_be_rectified
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.linear.council import HORIZON, MAX_ORDER, Horizon, Scores, council
from gpssm.methods.spec import Spec
from gpssm.posterior.validation import BACKTEST, RollingOrigin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDERS = (2, 5)  # of the candidates at least and at most; more states are slow to sample


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

    def __repr__(self) -> str:
        return f"Selection(best {self.best} of {count(len(self.table), 'candidate')})"

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
    seed = check_seed(seed)
    check_progress(progress)
    check_whole("horizon", horizon, 1)
    check_whole("step", step, 1)
    if not (is_real(share) and 0 < share < 1):
        raise ValueError(f"share of the rows to fit must lie between 0 and 1; got {share!r}")
    experiments = as_list(series)
    if len(experiments) != 1:
        raise TypeError(f"select accepts one series at a time; got a list of {len(experiments)}")
    whole = experiments[0]
    candidates = default_candidates(whole) if candidates is None else _checked(candidates)
    start = int(share * len(whole))
    # At least three horizons are forecast.
    scheme = replace(BACKTEST, horizon=horizon, step=step).within(len(whole) - start, parts=3)
    score_settings = partial(_score, whole, start, scheme, seed)
    shared = {"seed": seed, **fit_arguments}
    settings = [{**shared, **candidate, "progress": False} for candidate in candidates]
    with distinct_warnings():
        mean = score_settings({"method": "mean", "seed": seed, "progress": False})
        check_choice("score", score, mean)
        arrivals = run_tasks(settings, score_settings, jobs, cluster)
        scores = _collect(arrivals, candidates, progress)
    order = np.argsort([loss(score, figures[score]) for figures in scores], kind="stable")
    best = scores[order[0]][score]
    if not loss(score, best) <= loss(score, mean[score]):
        warn(
            f"No candidate is usable: the best has a {score} of {best:.3g}, the mean of the "
            f"training rows {mean[score]:.3g}. Use more rows, other inputs or other candidates."
        )
    rows = [_texts(candidates[number]) | scores[number] for number in order]
    return Selection(dict(candidates[order[0]]), pd.DataFrame(rows))


def _checked(candidates: Any) -> Sequence[Mapping[str, Any]]:
    """Return the candidates, if they are settings by name."""

    def are_settings(candidate: Any) -> bool:
        return isinstance(candidate, Mapping) and all(isinstance(name, str) for name in candidate)

    if not isinstance(candidates, Sequence) or not all(map(are_settings, candidates)):
        raise TypeError("candidates must be a list of settings of fit, such as [{'state_dim': 2}]")
    if not candidates:
        raise ValueError("select needs at least one candidate, such as {'state_dim': 2}")
    return candidates


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as they stand in a table."""
    return {name: str(value) for name, value in settings.items()}


def _collect(
    arrivals: Iterator[Arrival], candidates: Sequence[Mapping[str, Any]], progress: Mode
) -> list[dict[str, float]]:
    """Return the scores of all candidates as they arrive, in the order of the candidates."""
    scores: dict[int, dict[str, float]] = {}

    def name_of(arrival: Arrival) -> str:
        texts = _texts(candidates[arrival[0]])
        return ", ".join(f"{name} {value}" for name, value in texts.items())[:30]

    for number, result in tracked(arrivals, progress, "select", name_of, len(candidates)):
        if isinstance(result, Exception):
            raise result
        scores[number] = result
    return [scores[number] for number in range(len(candidates))]


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


@dataclass(frozen=True, eq=False, repr=False)
class LinearComparison:
    """Linear models and their scores on held-out windows of a series, best first.

    Parameters
    ----------
    table : DataFrame
        One row per model with the mean of each score over the windows, in standard deviations of
        the outputs: `crps`, `log_score` and `rmse` of forecasts, and the RMSE of a `simulation`;
        and the `loss` by which models are ranked, with its `standard_error`. State-space models are
        named `ss-1`, `ss-2`, ….
    orders : tuple of int
        The order that `state_dim="auto"` uses and, if there is one, a smaller order that may be
        equally good.
    horizon : int or "simulation"
        The horizon at which models are compared.
    """

    table: pd.DataFrame
    orders: tuple[int, ...]
    horizon: Horizon

    @property
    def best(self) -> str:
        """The name of the best model."""
        return str(self.table.index[0])

    @property
    def protocol(self) -> str:
        """Description of the loss."""
        if self.horizon == "simulation":
            return "RMSE of simulations"
        return f"CRPS of forecasts {self.horizon} steps ahead"

    def plot(self) -> "Figure":
        """Plot the loss of state-space models over their order, and of the other models."""
        from gpssm.plots.forecasts import plot_orders

        return plot_orders(self)

    def __repr__(self) -> str:
        return f"LinearComparison(best {self.best}, order {self.orders[0]}, by the {self.protocol})"

    def __str__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")

    def _repr_html_(self) -> str:
        return card(repr(self), tables={"best first": self.table})


def linear_models(
    series: Any,
    horizon: Horizon = HORIZON,
    *,
    max_order: int = MAX_ORDER,
    delay: Rows | Literal["auto"] = 0,
) -> LinearComparison:
    """Compare linear models on held-out windows of the training rows, in about a second.

        print(gpssm.linear_models(train))
        gpssm.linear_models(train, horizon="simulation").plot()

    Parameters
    ----------
    series
        The training data, as for `fit`.
    horizon
        Steps ahead at which forecasts are compared; "simulation" for simulations of a window.
    max_order
        The largest order of a state-space model.
    delay
        As for `fit`.

    Returns
    -------
    LinearComparison
    """
    spec = Spec(horizon=horizon, likelihood="gaussian")
    check_whole("max_order", max_order, 1)
    dataset = Dataset.of(as_list(series), delay=delay)
    results = council(spec.scale(dataset.experiments)[1], horizon, max_order)

    def mean(values: Any) -> float:
        return float(values.mean()) if len(values) else float("nan")

    rows = {}
    for name in results.models:
        losses = results.losses(name)
        error = losses.std(ddof=1) / len(losses) ** 0.5 if len(losses) > 1 else float("nan")
        rows[name] = {"loss": mean(losses), "standard_error": error}
        rows[name] |= dict(zip(Scores._fields, map(mean, results.scores[name]), strict=True))
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    return LinearComparison(table, results.orders, horizon)
