"""Fits that leave rows out: to choose settings, to weight members, to calibrate intervals.

    select     settings of `fit` by rolling forecasts of the last rows
    stack      a mixture of posteriors, weighted by log scores of held-out rows
    calibrate  factors for the width of intervals by step ahead

`linear_models` compares linear models in the same way, without a fit.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from gpssm.core.arguments import check_arguments
from gpssm.core.messages import distinct_warnings, warn
from gpssm.core.places import Arrival, run_tasks
from gpssm.core.table import card, loss
from gpssm.core.text import (
    check_choice,
    check_kind,
    check_whole,
    count,
    is_real,
)
from gpssm.data.dataset import Dataset
from gpssm.data.delays import Rows
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_list
from gpssm.evaluation.scores import backtest
from gpssm.fitting.choose import competitors, may_be_rectified
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.inference.runner import Runtime
from gpssm.linear.council import HORIZON, MAX_ORDER, Horizon, Scores, council
from gpssm.methods.spec import Spec
from gpssm.model.likelihoods import Bernoulli, Poisson
from gpssm.posterior.calibration import estimate, needed_factors
from gpssm.posterior.draws import check_states
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import HeldOutScores, Stack, mix, single_posteriors
from gpssm.posterior.validation import (
    BACKTEST,
    CALIBRATION,
    FEWEST_ROWS,
    HELD_OUT,
    Fold,
    RollingOrigin,
    held_out_forecasts,
    make_folds,
)

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


@check_arguments
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
    check_progress(progress)
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
    score_settings = partial(_score_candidate, whole, start, scheme, seed)
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


def _score_candidate(
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


Member = Posterior | Mapping[str, Any] | str


@check_arguments
def stack(
    series: Any,
    members: Sequence[Member] | Mapping[str, Member] | None = None,
    *,
    seed: int = 0,
    jobs: int = 1,
    cluster: Any = None,
    num_chains: int = 2,
    **fit_arguments: Any,
) -> Stack:
    """Mix posteriors, weighted by the log score of their rolling forecasts of held-out rows.

        mixture = gpssm.stack(train)  # the members of `default_members`
        mixture = gpssm.stack(train, ["lgssm", {"start": "em+shooting"}])
        mixture = gpssm.stack(rows_that_follow, {"two states": small, "four": large})

    *Settings* are fitted twice, without the last and without the first quarter of the series, and
    weighted by forecasts of the rows left out; members with positive weights are then fitted to all
    rows. *Posteriors* are weighted by rows that follow their data, which none of them has seen.

    Parameters
    ----------
    series
        The training data for settings, or the rows by which posteriors are weighted.
    members
        Settings of `fit` (with the method `ffvd` by default) or names of methods; or posteriors. A
        mapping names them; in a list, names are derived from the settings.
    seed : int
        Seed of fits, filters and paths.
    jobs : int
        Number of processes for fits to parts of the series.
    cluster
        A Dask client, or the address of a scheduler (tcp://host:8786), to use instead of processes.
    num_chains : int
        Number of chains of each member in the final fits; fits to parts of the series have one.
    **fit_arguments
        Settings of `fit` that all members share.

    Returns
    -------
    Stack
    """
    experiments = as_list(series)
    named = _named(default_members(experiments) if members is None else members)
    fitted = {name: member for name, member in named.items() if isinstance(member, Posterior)}
    if fitted and len(fitted) < len(named):
        raise TypeError("members must be either all posteriors or all settings")
    if fitted:
        if fit_arguments:
            raise TypeError(f"posteriors are already fitted: leave out {', '.join(fit_arguments)}")
        return _mix_posteriors(fitted, experiments, seed)
    shared = {"method": "ffvd", "seed": seed, "progress": False, "num_chains": num_chains}
    settings: dict[str, dict[str, Any]] = {
        name: shared
        | fit_arguments
        | ({"method": member} if isinstance(member, str) else {**member})
        for name, member in named.items()
    }
    scores = _score_members(settings, experiments, seed, jobs, cluster)
    return mix(scores, lambda name: _fit(experiments, settings[name]))


def _mix_posteriors(
    fitted: Mapping[str, Posterior], experiments: Sequence[Series], seed: int
) -> Stack:
    """Return the stack of posteriors weighted by rows that follow their data."""
    folds = [Fold([], {-1: rows}, before=False) for rows in experiments]
    scores = {
        name: HeldOutScores.of([member] * len(folds), folds, seed)
        for name, member in fitted.items()
    }
    return mix(scores, fitted.__getitem__)


def _score_members(
    settings: Mapping[str, Mapping[str, Any]],
    experiments: Sequence[Series],
    seed: int,
    jobs: int,
    cluster: Any,
) -> dict[str, HeldOutScores | Exception]:
    """Return the scores of settings on held-out rows, or the errors of fits that failed."""
    folds = make_folds(experiments)
    if not folds:
        raise ValueError(
            f"a stack needs a series of {int(FEWEST_ROWS / HELD_OUT)} rows or more, to hold out "
            "some of them"
        )
    arrivals = run_tasks(
        list(settings.values()), partial(_score_member, folds, seed), jobs, cluster
    )
    results: dict[int, HeldOutScores | Exception] = dict(arrivals)
    for result in results.values():
        failed = isinstance(result, Exception)
        if failed and not isinstance(result, ArithmeticError | RuntimeError | ValueError):
            raise result
    return {name: results[number] for number, name in enumerate(settings)}


def default_members(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the default members: `ffvd` from several starts, another basis and sampler, a linear
    model.

    If outputs reach zero but are never negative, the absolute value of a signed signal is included.
    """
    likelihoods = ["gaussian", "abs"] if may_be_rectified(series) else ["gaussian"]
    members = [
        {"method": "ffvd", "start": start, "noise": "free", "likelihood": likelihood}
        for likelihood, start in itertools.product(likelihoods, competitors(series))
    ]
    return [*members, {"method": "rrank"}, {"method": "arx"}]


def _named(members: Any) -> dict[str, Any]:
    """Return members by name; raise unless there are at least two, all settings or posteriors."""
    if isinstance(members, str) or not isinstance(members, Sequence | Mapping):
        raise TypeError(
            f"members must be a list of settings of fit, or posteriors by name; got {members!r}"
        )
    listed = list(members.values() if isinstance(members, Mapping) else members)
    for member in listed:
        check_kind("a member", member, Posterior, Mapping, str)
        if isinstance(member, Mapping) and not all(isinstance(name, str) for name in member):
            raise TypeError(
                f"the settings of a member must be those of fit, by name; got {member!r}"
            )
    names = list(members) if isinstance(members, Mapping) else map(_describe, listed)
    named = dict(zip(names, listed, strict=True))
    if len(named) < 2:
        raise ValueError(
            f"a stack needs at least two members with different names; got {list(named)}"
        )
    return named


def _describe(member: Member) -> str:
    """Return a name for a member from its method and its most important settings."""
    if isinstance(member, str):
        return member
    settings: Mapping[str, Any] = member if isinstance(member, Mapping) else member.spec.describe()
    if isinstance(member, Posterior):
        settings = {**settings, "method": member.method}
    shown = ("method", "start", "noise", "likelihood", "state_dim", "mean", "kernel")
    values = [settings[name] for name in shown if name in settings]
    return " ".join(str(value) for value in values if value not in ("free", "gaussian")) or "ffvd"


def _score_member(folds: Sequence[Fold], seed: int, settings: Mapping[str, Any]) -> HeldOutScores:
    """Fit a member to each fold, with one chain, and score it."""
    with warnings.catch_warnings(action="ignore"):
        posteriors = [_fit(fold.series, {**settings, "num_chains": 1}) for fold in folds]
    return HeldOutScores.of(posteriors, folds, seed)


def _fit(series: Sequence[Series], settings: Mapping[str, Any]) -> Posterior:
    """Fit a member; raise if its settings do not determine a single model."""
    fitted = fit(series, **settings)
    if not isinstance(fitted, Posterior):
        raise TypeError(
            "a member of a stack must be a single model: use a method other than 'auto', such as "
            "'quick' or 'ffvd'"
        )
    return fitted


Single = TypeVar("Single", Posterior, Stack)


@check_arguments
def calibrate(
    posterior: Single,
    series: Any = None,
    *,
    new_experiment: bool = False,
    index: int = -1,
    seed: int | None = None,
    without: Sequence[tuple[Posterior | Stack, Fold]] = (),
) -> Single:
    """Return the posterior with forecasts widened to cover held-out rows.

        posterior = posterior.calibrate()
        posterior.forecast(u=future)  # widened; calibrated=False for the original

    Without `series`, the model is fitted twice more, with one short chain and the settings and
    start of the fit: once without the last quarter of every series, and once without the first.

    Parameters
    ----------
    posterior
        The posterior or stack to calibrate.
    series
        Rows that the fit has not seen, at least 15. They follow training series `index`, or the
        rows of `condition`, unless they are a new experiment.
    new_experiment
        Whether the rows are a new experiment.
    index
        The training series that the rows follow.
    seed
        Seed of fits and forecasts; by default the seed of the fit.
    without
        Posteriors of folds to use instead of new fits, if there are any.

    Returns
    -------
    Posterior or Stack
    """
    for item in single_posteriors(posterior):
        if isinstance(item.model.likelihood, Poisson | Bernoulli):
            name = type(item.model.likelihood).__name__
            raise TypeError(
                f"the outputs of a {name} likelihood are discrete, so that paths cannot be "
                "stretched"
            )
    seed = posterior.seed if seed is None else seed
    posterior.dataset.experiment(index)
    if series is not None:
        rows = posterior.dataset.align(series)
        pairs = [(posterior, Fold([], {index: rows}, new_experiment))]
        words = f"{count(len(rows), 'new row')}"
    else:
        pairs = list(without) or fit_folds(posterior, seed)
        held = sum(len(rows) for _, fold in pairs for rows in fold.rest.values())
        words = f"{held} held-out training rows"
    measured = [factors for item, fold in pairs for factors in measure(item, fold, seed)]
    return dataclasses.replace(posterior, calibration=estimate(measured, words))


def measure(
    posterior: Posterior | Stack, fold: Fold, seed: int
) -> list[tuple[Float[np.ndarray, "1 H Dy"], int]]:
    """Return the factors needed to cover held-out rows, for each origin along them, and the number
    of rows between two origins."""
    for rows in fold.rest.values():
        if len(rows) < FEWEST_ROWS:
            raise ValueError(f"calibrate needs at least {FEWEST_ROWS} rows; got {len(rows)}")
    plain = dataclasses.replace(posterior, calibration=None)
    return [
        (needed_factors(rolling.forecast, rolling.rows.y)[None], rolling.spacing)
        for rolling in held_out_forecasts(plain, fold, CALIBRATION, seed)
    ]


def fit_folds(posterior: Posterior | Stack, seed: int) -> list[tuple[Posterior | Stack, Fold]]:
    """Fit a posterior to each fold with the settings of the fit; for a stack, a stack of such
    fits."""
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
            f"calibrate() holds out a quarter of each series, at least {FEWEST_ROWS} rows, but "
            "the training series are too short. Pass rows that the fit has not seen, "
            "posterior.calibrate(rows)"
        )
    num_draws = min(posterior.spec.settings.num_draws, CALIBRATION.num_draws)
    spec = posterior.spec.replace(calibrate=False, num_draws=num_draws)
    fits = []
    for fold in folds:
        changes: dict[str, Any] = {}
        if spec.gives_states:
            check_states(posterior, "calibrate() of a fit that began at given states")
            paths = [np.asarray(path[0, -1]) for path in posterior.draws.states]
            lengths = [len(item) + 1 for item in fold.series]
            changes["start"] = [
                path[-length:] if fold.before else path[:length]
                for path, length in zip(paths, lengths, strict=True)
            ]
        # One short chain is no posterior to be judged.
        with warnings.catch_warnings(action="ignore"):
            runtime = Runtime(num_chains=1, seed=seed, progress=False)
            fits.append((fit(fold.series, spec=spec.replace(**changes), runtime=runtime), fold))
    return fits
