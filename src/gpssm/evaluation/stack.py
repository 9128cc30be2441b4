"""Fit several models, or use fitted ones, and mix them by log scores of held-out rows."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpssm.core.places import run_tasks
from gpssm.core.text import check_kind, check_seed, check_whole
from gpssm.data.series import Series, as_list
from gpssm.fitting.choose import competitors, may_be_rectified
from gpssm.fitting.fit import fit
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import HeldOutScores, Stack, mix
from gpssm.posterior.validation import FEWEST_ROWS, HELD_OUT, Fold, make_folds

Member = Posterior | Mapping[str, Any] | str


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
    seed = check_seed(seed)
    check_whole("jobs", jobs, 1)
    check_whole("num_chains", num_chains, 1)
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
    scores = _score_settings(settings, experiments, seed, jobs, cluster)
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


def _score_settings(
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
    arrivals = run_tasks(list(settings.values()), partial(_score, folds, seed), jobs, cluster)
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


def _score(folds: Sequence[Fold], seed: int, settings: Mapping[str, Any]) -> HeldOutScores:
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
